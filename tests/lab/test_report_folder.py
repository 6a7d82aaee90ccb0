import base64
import csv
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
from PIL import Image
from test_report_study import NARROW, TOY, noted, trial

from foresee.errors import InputError
from foresee.lab import store
from foresee.lab.experiment import Method, Own
from foresee.lab.report import figures, folder, measures, statistics, study as study_module
from foresee.lab.report.palette import pens
from foresee.lab.report.study import studies
from foresee.lab.report.tables import auc_table
from foresee.lab.report.words import THIN

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def full():
    """Two experiments; promises, costs, an unfinished trial, a plateau, a method that is absent."""
    shift = replace(TOY, dataset="MNIST", shift=True, budget=0.05, loss=((0.0, 1.0), (2.0, 0.0)))
    trials = [
        trial(method, seed, (0.5, 0.6 + 0.01 * seed, 0.7 + 0.02 * i), shift)
        for i, method in enumerate(("MELL", "Random", "BADGE"))
        for seed in range(3)
    ]
    trials = [
        replace(t, rounds=tuple(replace(r, cost=2 * r.brier, promise_pool=0.3) for r in t.rounds))
        for t in trials
    ]
    promising = (replace(r, promise=0.2 if r.picks else None) for r in trials[0].rounds)
    trials[0] = replace(trials[0], rounds=tuple(promising))
    return [
        *trials,
        trial("MELL", 0, (0.4, 0.5), finished=False),
        trial("Random", 0, train_loss=(0.01, 0.693, 0.01), train_accuracy=(1.0, 0.5, 1.0)),
    ]


def write(trials, out, *more):
    return folder.write(studies(trials), out, *more)


def read(out, name):
    with open(out / name, newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_every_table_and_picture(tmp_path):
    heard = []
    index = write(full(), tmp_path / "a" / "b", (), lambda done, of: heard.append((done, of)))
    assert index == tmp_path / "a" / "b" / "index.html"
    assert {path.name for path in index.parent.iterdir()} == {
        *("auc.csv", "auc.tex", "balance.csv", "balance.tex", "cost.csv", "cost.tex", "curves.csv"),
        *(
            "health.csv",
            "health.tex",
            "paired.csv",
            "saturation.csv",
            "saturation.tex",
            "time.csv",
            "time.tex",
        ),
        *("win_tie_loss.csv", "win_tie_loss.tex", "index.html", folder.RECORD),
        *(f"{kind}-mnist-shift.png" for kind in ("curves", "time", "balance")),
        *(f"{kind}-toy-noshift.png" for kind in ("curves", "time", "balance")),
    }
    assert heard == [(1, 2), (2, 2)]
    for path in index.parent.glob("*.png"):
        size, colours = looks(path)
        assert min(size) > 200, path
        assert colours > 20, path


def test_restarted_trainings_are_named(tmp_path):
    again = [trial("MELL", 3, restarted=(False, True, True)), trial("Random", 3)]
    page = write(again, tmp_path / "some").read_text()
    text = " ".join(page.split())
    assert "toy, no shift: 2 rounds trained a second network from other seeds" in text
    assert "plateau: MELL seed 3 round 1, MELL seed 3 round 2.</p>" in text
    assert "second network" not in write(again[1:], tmp_path / "none").read_text()


def test_no_trial_that_never_left_its_plateau_counts_silently(tmp_path):
    """Not one either whose loss is better than that of guessing, as classes are not all alike."""
    hopeless = trial("MELL", 3, restarted=(False, True, False), stuck=(False, True, False))
    page = write([hopeless, trial("Random", 3)], tmp_path).read_text()
    text = " ".join(page.split())
    assert "1 round trained badly." in text
    assert "1 round trained a second network, as the first never left its plateau." in text
    assert text.count('<span class="fewer">1 bad round</span>') == 1
    rows = {row["method"]: row for row in read(tmp_path, "auc.csv")}
    counted = {m: (row["restarted_rounds"], row["bad_rounds"]) for m, row in rows.items()}
    assert counted == {"MELL": ("1", "1"), "Random": ("0", "0")}
    (health,) = read(tmp_path, "health.csv")
    assert (health["method"], health["round"], health["problem"]) == ("MELL", "1", "plateau")
    shown = auc_table(studies([hopeless, trial("Random", 3)]))
    assert [cell.endswith(" *") for cell in shown.rows[0]] == [False, True, False]
    assert shown.caption.endswith("; *: some of its rounds trained badly")
    assert " * & " in (tmp_path / "auc.tex").read_text()


def test_batches_that_use_up_their_draws_are_named(tmp_path):
    some = [trial("Greedy", 3, exhausted=(False, True, False)), trial("Random", 3)]
    text = " ".join(write(some, tmp_path / "some").read_text().split())
    assert "Greedy chose batches whose labels can use up the draws" in text
    assert "use up" not in write(some[1:], tmp_path / "none").read_text()


def narrow():
    """Two settings of one set beside each other, one of them narrow and with noise."""
    return [
        *(trial(m, s, experiment=replace(NARROW, target=(), pool_noise=0.0))
          for m in ("MELL", "Random") for s in range(2)),
        *(noted("MELL", s, (1.0, 0.5, None)) for s in range(2)),
        *(noted("Random", s, (0.0, 0.5, None)) for s in range(2)),
    ]  # fmt: skip


def test_a_narrow_target_has_tables_pictures_and_words_of_its_own(tmp_path):
    page = " ".join(write(narrow(), tmp_path).read_text().split())
    names = {path.name for path in tmp_path.iterdir()}
    assert {"target-mnist-narrow-noise20.png", "noise-mnist-narrow-noise20.png"} <= names
    assert {name for name in names if name.startswith("target")} == {
        *("target.csv", "target.tex", "target-mnist-narrow-noise20.png")
    }
    rows = read(tmp_path, "target.csv")
    assert [tuple(row.values())[:4] for row in rows] == [
        ("mnist-narrow-noise20", method, share, "2")
        for share in ("in_target", "scrambled")
        for method in ("MELL", "Random")
    ]
    assert [(float(row["mean"]), float(row["of_pool"])) for row in rows] == [
        *((0.75, 0.25), (0.25, 0.25), (0.25, 0.2), (0.25, 0.2))
    ]
    by_batch = [r for r in read(tmp_path, "curves.csv") if r["metric"] == "in_target"]
    assert [(r["method"], r["n_labelled"], r["mean"]) for r in by_batch] == [
        *(("MELL", "10", "1.0"), ("MELL", "20", "0.5")),
        *(("Random", "10", "0.0"), ("Random", "20", "0.5")),
    ]
    assert "25.0 % of the pool is in the target; so is 75.0 % of what MELL bought" in page
    assert '<option value="in_target">Labels bought in the target</option>' in page
    assert page.index("Without shift") < page.index("Narrow target, accuracy on it")
    tex = (tmp_path / "auc.tex").read_text()
    assert re.findall("under ours, (.*);", tex) == ["no shift", "narrow target"]
    assert tex.count("in the paper") == 1, "beside the experiment that the paper has"
    share = (tmp_path / "target.tex").read_text()
    assert r"noise & MELL & Labels bought in the target & 75.0 $\pm$ 0.0 & 25.0 \% & 100.0" in share


def test_nothing_of_targets_is_said_where_none_is_narrow(tmp_path):
    page = write(full(), tmp_path).read_text()
    assert not list(tmp_path.glob("*target*"))
    assert "in the target" not in page
    assert "Narrow" not in page


def looks(path):
    with Image.open(path) as image:
        return image.size, len(image.convert("RGB").getcolors(maxcolors=2**24))


def test_the_tables_hold_what_was_measured(tmp_path):
    write(full(), tmp_path)
    first = read(tmp_path, "auc.csv")[0]
    assert (first["experiment"], first["method"], first["seeds"]) == ("mnist-shift", "MELL", "3")
    # Simpson: (0.5 + 4 (0.6 + 0.01 seed) + 0.7) / 6, mean over seeds 0, 1, 2.
    assert float(first["mean_auc"]) == pytest.approx(100 * (1.2 + 4 * 0.61) / 6)
    assert float(first["std_auc"]) == pytest.approx(100 * 0.04 / 6)
    assert (first["paper_mean_auc"], first["paper_std_auc"]) == ("91.96", "0.52")
    assert [row["experiment"] for row in read(tmp_path, "cost.csv")] == ["mnist-shift"] * 3
    settings = {(row["experiment"], row["shift"]) for row in read(tmp_path, "auc.csv")}
    assert settings == {("mnist-shift", "shift"), ("toy-noshift", "none")}
    (health,) = read(tmp_path, "health.csv")
    assert (health["method"], health["round"], health["problem"]) == ("Random", "1", "plateau")
    assert (health["train_accuracy"], health["train_loss"]) == ("0.5", "0.693")
    needed = read(tmp_path, "saturation.csv")[0]
    assert (needed["part_of_best"], needed["method"]) == ("0.9", "MELL")
    assert float(needed["accuracy"]) == pytest.approx(0.9 * 0.74)
    assert float(needed["labels"]) == pytest.approx(20 + 10 * (0.666 - 0.61) / (0.7 - 0.61))
    curves = read(tmp_path, "curves.csv")
    last = [r for r in curves if r["experiment"] == "toy-noshift" and r["metric"] == "accuracy"]
    assert [(r["method"], r["n_labelled"]) for r in last[:2]] == [("MELL", "10"), ("MELL", "20")]
    assert last[0]["std"] == "", "one seed has no deviation"
    above = [r for r in curves if r["metric"] == "accuracy_above_random" and r["method"] == "BADGE"]
    assert [float(row["mean"]) for row in above] == pytest.approx([0, 0, 0.02])
    tallies = {tuple(row.values())[:3]: row["wins"] for row in read(tmp_path, "win_tie_loss.csv")}
    assert tallies["paper", "BADGE", "MELL"] == "0", "seeds differ as much as methods"
    assert tallies["paired", "BADGE", "MELL"] == "1", "but at every seed alike"
    pairs = {(row["method"], row["against"]): row for row in read(tmp_path, "paired.csv")}
    assert float(pairs["MELL", "BADGE"]["mean_difference"]) == pytest.approx(-100 * 0.04 / 6)
    assert float(pairs["MELL", "BADGE"]["p"]) == 0.0
    times = read(tmp_path, "time.csv")[0]
    assert [times[name] for name in ("train", "select", "sample")] == ["2.0", "1.0", ""]
    assert times["total"] == "3.5"
    balance = read(tmp_path, "balance.csv")[0]
    assert (balance["class"], balance["share"]) == ("0", "0.5")
    assert float(balance["effective_classes"]) == pytest.approx(2)


def test_latex_says_what_the_page_says(tmp_path):
    write(full(), tmp_path)
    auc, balance, health, cost = (
        (tmp_path / f"{name}.tex").read_text() for name in ("auc", "balance", "health", "cost")
    )
    ours, theirs = auc[auc.index("MNIST, shift") :].splitlines()[:2]
    assert ours.startswith(r"MNIST, shift & 60.67 $\pm$ 0.67 &")
    assert theirs.startswith(r"in the paper & 91.96 $\pm$ 0.52 &")
    assert auc.count("in the paper") == 1, "the toy is not the paper's"
    assert r"MNIST, shift & MELL & 2.0 of 2 & 0 \% \\" in balance
    assert r"MNIST, shift & Random & 2.0 of 2 & -- \\" in balance
    assert r"toy, no shift & Random & plateau & 0 & 1 & 20 & 50.0 \% & 0.693 & 60.0 \%" in health
    assert "MNIST, shift" in cost
    assert "toy" not in cost
    write([trial()], tmp_path / "healthy")
    written = {path.name for path in (tmp_path / "healthy").iterdir()}
    assert not {"health.tex", "cost.tex", "cost.csv"} & written


def test_latex_is_escaped(tmp_path):
    write([trial("Entropy_MC"), trial("50 % & more")], tmp_path)
    text = (tmp_path / "auc.tex").read_text()
    assert r"Entropy\_MC & 50 \% \& more \\" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    write(full(), tmp_path)
    assert r"$\pm$" in (tmp_path / "auc.tex").read_text()
    for path in tmp_path.glob("*.tex"):
        code = [line for line in path.read_text().splitlines() if not line.startswith("%")]
        assert all(line.isascii() for line in code), path


def test_the_same_trials_give_the_same_files(tmp_path):
    for name in ("one", "two"):
        write(full(), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


ODD = {
    "one seed": [trial()],
    "one round": [trial(accuracy=(0.5,))],
    "no round": [trial(accuracy=(), finished=False)],
    "begun": [trial(accuracy=(0.5,), finished=False), trial("BALD", accuracy=())],
    "nan": [trial(accuracy=(math.nan,) * 3, log_loss=(math.inf,) * 3, train_loss=(math.nan,) * 3)],
    "a gap": [trial(seed=s, accuracy=(0.5, math.nan, 0.5)) for s in (0, 1)],
    "no health": [
        trial(seed=s, train_accuracy=(None,) * 3, train_loss=(None,) * 3) for s in (0, 1)
    ],
    "flat and timeless": [trial(seed=s, accuracy=(0,) * 3, seconds=((),) * 3) for s in (0, 1)],
    "odd promises": [trial(promise=(math.nan, -0.1, None), promise_pool=(math.inf, 0.0, 0.0))],
    "many classes": [trial(experiment=replace(TOY, classes=200, n_pool=10**6))],
    "no header": [replace(trial(), header={})],
}


@pytest.mark.parametrize("trials", ODD.values(), ids=ODD)
def test_a_report_is_written_of_any_run(trials, tmp_path):
    page = write(trials, tmp_path).read_text()
    embedded = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    data = json.loads(embedded, parse_constant=pytest.fail)  # JSON has no NaN
    assert len(data["experiments"]) == 1


def test_text_from_files_cannot_become_markup(tmp_path):
    evil = '</script><img src=x onerror=alert(1)>"&'
    setup = replace(TOY, dataset=evil, network=evil)
    made = replace(trial(evil, experiment=setup), header={"device": evil, "versions": {evil: evil}})
    page = write([made], tmp_path).read_text()
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


def test_the_page_asks_for_nothing_outside_itself(tmp_path):
    page = write(full(), tmp_path).read_text()
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+[^\s\"']*", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody fetches"
    assert not re.findall(r"<link|<iframe|@import|url\(|src=\"(?!data:)|fetch\(|XMLHttp", page)
    assert "default-src 'none'" in page


def test_the_page_says_what_was_run_and_what_is_missing(tmp_path):
    page = write(full(), tmp_path).read_text().replace(THIN, " ")
    for text in (
        "3 methods on 2 experiments",
        "10 of 11 finished",
        "Networks were trained for 5 % of the paper’s iterations in MNIST, shift.",
        "MELL seed 0 is at 2 of 3 rounds; BADGE absent.",
        '<span class="paper">91.96 ± 0.52</span>',
        "not reached",
        "torch 2.13.0",
    ):
        assert text in page, text


def png(width, height):
    """A PNG whose header says it is that large; its pixels are all missing."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_pictures_are_embedded_and_other_files_are_not(tmp_path):
    made = [trial(m, seed, folder=tmp_path / "runs") for m in ("MELL", "BALD") for seed in (0, 1)]
    made[0].path.parent.mkdir(parents=True)
    made[1].path.with_suffix(".png").write_bytes(PIXEL)
    page = write(made, tmp_path / "report").read_text()
    assert page.count(base64.b64encode(PIXEL).decode()) == 1
    assert "the first picks of MELL, seed 1" in page
    assert "the first picks of BALD" not in page
    (size, _) = looks(tmp_path / "report" / "picks-toy-noshift.png")
    assert size[0] > 1000


NO_PICTURES = {
    "no picture": b"not a picture",
    "cut": PIXEL[:30],
    "400 megapixels": png(20_000, 20_000),
    "100 megapixels": png(10_000, 10_000),
    "30 megapixels": png(10_000, 3_000),
    "a tower": png(1, 1000),
    "another format": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "more bytes than pixels": PIXEL + bytes(21_000_000),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("content", NO_PICTURES.values(), ids=NO_PICTURES)
def test_what_is_no_picture_is_named_and_not_decoded(content, tmp_path, monkeypatch):
    first, second = (trial(seed=seed, folder=tmp_path) for seed in (0, 1))
    first.path.parent.mkdir(parents=True)
    first.path.with_suffix(".png").write_bytes(content)
    second.path.with_suffix(".png").write_bytes(PIXEL)
    heard = []
    (found,) = studies([first, second], heard.append)
    (problem,) = heard
    assert str(problem).startswith(f"{first.path.with_suffix('.png')} is no picture to show")
    assert found.pictures["MELL"] == (1, PIXEL), "the next is shown"


def test_a_picture_from_elsewhere_is_not_shown(tmp_path):
    made = trial(folder=tmp_path / "runs")
    made.path.parent.mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(PIXEL)
    made.path.with_suffix(".png").symlink_to(tmp_path / "secret.png")
    heard = []
    (found,) = studies([made], heard.append)
    assert (found.pictures, len(heard)) == ({}, 1)
    made.path.with_suffix(".png").unlink()
    os.mkfifo(made.path.with_suffix(".png"))
    (found,) = studies([made], heard.append)
    assert (found.pictures, len(heard)) == ({}, 2)


def stored(trials, place):
    """Write trials as `foresee run` does."""
    for made in trials:
        method = Method(made.method, len, max)
        with store.recording(place, made.experiment, method, made.seed, device="cpu") as recorder:
            for each in made.rounds:
                recorder.append(each)


def tables(out):
    return {p.name: p.read_bytes() for p in out.iterdir() if p.suffix in (".csv", ".tex", ".png")}


def test_trials_come_from_a_store(tmp_path):
    stored(full(), tmp_path / "runs")
    found, left_out = folder.read(tmp_path / "runs")
    assert left_out == []
    folder.write(found, tmp_path / "stored")
    write(full(), tmp_path / "direct")
    assert tables(tmp_path / "stored") == tables(tmp_path / "direct")


def test_a_large_store_is_read_and_drawn_by_several_processes(tmp_path, monkeypatch):
    stored(full(), tmp_path / "runs")
    (tmp_path / "runs" / "toy-noshift" / "MELL-7.jsonl").write_text("{}\n{}\n")
    alone, left_out_alone = folder.read(tmp_path / "runs")
    folder.write(alone, tmp_path / "alone")
    monkeypatch.setattr(folder, "_SHARE", 1)
    monkeypatch.setattr(folder, "_STUDIES", 1)
    monkeypatch.setattr(folder, "cpu_count", lambda: 2)
    together, left_out = folder.read(tmp_path / "runs")
    folder.write(together, tmp_path / "together")
    assert tables(tmp_path / "together") == tables(tmp_path / "alone")
    assert list(map(str, left_out)) == list(map(str, left_out_alone))
    assert "MELL-7.jsonl" in str(left_out[0])


def test_the_page_says_what_was_left_out_and_why(tmp_path):
    stored(full(), tmp_path / "runs")
    bad = tmp_path / "runs" / "toy-noshift" / "Random-0.jsonl"
    store.keep_plan(tmp_path / "runs", TOY, {"Random": [0, 1]})
    bad.write_bytes(bad.read_bytes().replace(b'"accuracy"', b'"<accuracy>"', 1))
    bad.with_name("MELL-0.png").write_bytes(b"no picture")
    found, left_out = folder.read(tmp_path / "runs")
    page = folder.write(found, tmp_path / "report", left_out).read_text()
    assert "2 files were left out, whole or in part." in page
    listed = page[page.index('<h3 id="left-out">') :]
    assert f"{bad} is" in listed
    assert f"{bad.with_name('MELL-0.png')} is no picture to show" in listed
    assert "<accuracy>" not in page
    assert "Random seed 0 left out; Random seed 1 not begun" in page
    assert "Left out" not in write(full(), tmp_path / "whole").read_text()


def test_every_quantity_is_computed_once(tmp_path, monkeypatch):
    calls = []

    def count(module, name):
        function = getattr(module, name)

        def counted(*given):
            calls.append((name, *map(repr, given)))
            return function(*given)

        monkeypatch.setattr(module, name, counted)

    for name in ("curve", "gain", "area", "saturation", "seconds_per_round", "promises"):
        count(measures, name)
    for name in ("paired", "effective_classes"):
        count(statistics, name)
    for name in ("unhealthy", "fit"):
        count(study_module.health, name)
    write(full(), tmp_path)
    assert {name for name, *_ in calls} == {
        *("curve", "gain", "area", "saturation", "seconds_per_round", "promises"),
        *("paired", "effective_classes", "unhealthy", "fit"),
    }
    twice = [call for call in calls if calls.count(call) > 1]
    assert {name for name, *_ in twice} <= {"effective_classes"}, "of equal counts"


def test_names_are_no_formulas(tmp_path):
    names = ("=1+1", "+1", "-1", "@SUM(A1)")
    setup = replace(TOY, dataset="=cmd")
    write([trial(name, seed, experiment=setup) for name in names for seed in (0, 1)], tmp_path)
    for path in tmp_path.glob("*.csv"):
        for row in read(tmp_path, path.name):
            for column, cell in row.items():
                number = column not in ("experiment", "dataset", "method", "against")
                assert number or cell[0] not in "=+-@", (path.name, column, cell)
    assert read(tmp_path, "auc.csv")[0]["dataset"] == "'=cmd"
    assert {row["method"] for row in read(tmp_path, "auc.csv")} == {f"'{name}" for name in names}
    below = [row["mean_difference"] for row in read(tmp_path, "paired.csv")]
    assert all(float(number) <= 0 for number in below)


def test_times_with_and_without_a_stage_of_scores(tmp_path):
    spent = (("train", 2.0), ("score", 0.5), ("select", 1.0))
    write([trial(seconds=(spent,) * 3), trial("BALD")], tmp_path / "old")
    old, bald = read(tmp_path / "old", "time.csv")
    assert (old["score"], bald["score"], old["total"]) == ("0.5", "", "3.5")
    assert "& score &" in (tmp_path / "old" / "time.tex").read_text()
    page = write([trial()], tmp_path / "new").read_text()
    (new,) = read(tmp_path / "new", "time.csv")
    assert " ".join(new) == "experiment method train test sample select promise total"
    assert "score" not in (tmp_path / "new" / "time.tex").read_text()
    assert "</i>score</span>" not in page


def test_a_method_that_has_not_begun_takes_no_zero_seconds(tmp_path):
    write([trial(), trial("BALD", accuracy=(), finished=False)], tmp_path)
    assert [row["method"] for row in read(tmp_path, "time.csv")] == ["MELL"]
    assert "BALD" not in (tmp_path / "time.tex").read_text()


def test_only_networks_have_iterations(tmp_path):
    own = Own("npz", "", posterior="forest")
    forest = trial(experiment=replace(TOY, network="forest", own=own))
    shown = [
        "46 875" in write([t], tmp_path).read_text().replace(THIN, " ") for t in (trial(), forest)
    ]
    assert shown == [True, False]


@pytest.mark.parametrize("methods", [2, 10, 26])
@pytest.mark.parametrize("kind", ["curves", "target", "noise"])
def test_a_picture_names_every_method(kind, methods, monkeypatch):
    monkeypatch.setattr(figures, "_png", lambda axes: axes.get_figure(root=True))
    (found,) = studies([noted(f"a_method_{i}", 0, (1.0, 0.5, None)) for i in range(methods)])
    figure = figures.drawings(found, pens(list(found.trials)))[kind]()
    assert figure.axes[0].get_ylabel() == "test accuracy on the target, %"
    (legend,) = filter(None, [*figure.legends, figure.axes[0].get_legend()])
    figure.draw_without_rendering()
    assert [text.get_text() for text in legend.get_texts()] == list(found.trials)
    box, plot = legend.get_window_extent(), figure.axes[0].get_tightbbox()
    assert figure.bbox.containsx(box.x0)
    assert figure.bbox.containsx(box.x1)
    assert box.y0 >= 0
    if methods > 6:
        assert box.y1 <= plot.y0, "below the plot"


def test_half_a_character_has_no_bytes_and_stops_nothing(tmp_path):
    page = write([replace(trial(), header={"device": "half \ud800"})], tmp_path)
    assert "half ?" in page.read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be a folder"):
        write([trial()], tmp_path / "file")
    with pytest.raises(InputError, match="could not be written"):
        write([trial()], tmp_path / "file" / "below")


def test_a_crash_leaves_the_old_page_and_no_rubbish(tmp_path, monkeypatch):
    index = write([trial()], tmp_path)
    before = index.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(InputError, match=r"No space left.*make room"):
        write(full(), tmp_path)
    assert index.read_bytes() == before
    assert not list(tmp_path.glob(".foresee-*"))


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures that take no time."""
    monkeypatch.setattr(figures, "draw", lambda some: {kind: kind.encode() for kind in some})


def held(out):
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def test_what_an_earlier_report_wrote_goes_and_nothing_else(undrawn, tmp_path):
    fresh = held(write([trial()], tmp_path / "fresh").parent)
    out = write(full(), tmp_path / "out").parent
    assert {"cost.csv", "cost.tex", "curves-mnist-shift.png"} <= held(out).keys()
    own = {"notes.md": b"mine", "curves-mine.png": PIXEL, "cost.tex": b"improved"}
    for name, content in own.items():
        (out / name).write_bytes(content)
    (out / "cost.csv").unlink()
    (out / "time-mnist-shift.png").unlink()
    (out / "time-mnist-shift.png").mkdir()
    for _ in range(2):
        write([trial()], out)
        assert held(out) == fresh | own
    assert (out / "time-mnist-shift.png").is_dir()


def test_nothing_goes_that_is_not_recorded_or_lies_elsewhere(undrawn, tmp_path):
    out = write(full(), tmp_path / "out").parent
    (out / folder.RECORD).unlink()  # reports of before have none
    before = held(out).keys()
    write([trial()], out)
    assert held(out).keys() == before | {folder.RECORD}
    (out / "inner").mkdir()
    digest = hashlib.sha256(b"").hexdigest()
    for name in ("../a", f"{tmp_path}/b", "inner/c"):
        (out / name).write_bytes(b"")
        for record in (f"{digest}  {name}\n".encode(), b"\xff", f"{digest}  \0\nshort".encode()):
            (out / folder.RECORD).write_bytes(record)
            write([trial()], out)
            assert (out / name).exists()


def test_a_report_cut_short_anywhere_is_readable_and_leaves_nothing(undrawn, tmp_path, monkeypatch):
    other, last = ([trial(experiment=replace(TOY, dataset=name))] for name in ("other", "last"))
    pages = [write(some, tmp_path / "page").read_bytes() for some in (full(), other)]
    fresh, replaced, whole = held(write(last, tmp_path / "fresh").parent), os.replace, False
    for cut in itertools.count(step=3):
        index = write(full(), tmp_path / str(cut))
        left = list(range(cut))

        def until(*paths, left=left):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            replaced(*paths)

        monkeypatch.setattr(os, "replace", until)
        with suppress(KeyboardInterrupt):
            write(other, index.parent)
            whole = True
        monkeypatch.setattr(os, "replace", replaced)
        assert index.read_bytes() in pages
        write(last, index.parent)
        assert held(index.parent) == fresh
        if whole:
            break
    assert cut > 15


@pytest.mark.parametrize(
    ("command", "never"),
    [
        (["report", "--help"], "torch scipy matplotlib numpy jinja2 PIL joblib"),
        (["status", "runs"], "torch scipy matplotlib numpy jinja2 PIL joblib"),
        (["report", "runs"], "torch sklearn numba"),
    ],
)
def test_a_command_loads_only_what_it_needs(command, never, tmp_path):
    stored([trial()], tmp_path / "runs")
    code = (
        "import sys\n"
        "from foresee.cli.app import app\n"
        f"app({command}, standalone_mode=False)\n"
        f"loaded = [name for name in {never.split()} if name in sys.modules]\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield running
        running.close()


def opened(browser, index, width=1280):
    """The page in a browser, and what went wrong there so far: messages, errors, requests."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url))
    page.goto(index.as_uri())
    problems.remove(index.as_uri())
    return page, problems


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_works_in_a_browser(browser, width, tmp_path):
    page, problems = opened(browser, write(full(), tmp_path), width)
    lines = page.locator("#mnist-shift .curves .line")
    assert lines.count() == 3
    for i in range(3):
        box = lines.nth(i).bounding_box()
        assert box["width"] > 100
        assert box["height"] > 20
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"

    key = page.locator(".key", has_text="Random")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert lines.count() == 2
    assert page.locator("#mnist-shift .curves .series[data-method='1']").count() == 0
    page.locator("#show-all").click()
    assert lines.count() == 3

    chart = page.locator("#mnist-shift .curves")
    chart.scroll_into_view_if_needed()
    chart.hover(position={"x": 60, "y": 120})
    tip = chart.locator(".tip")
    assert tip.is_visible()
    assert "10 labels" in tip.inner_text()
    assert "50.00" in tip.inner_text()

    page.select_option("#metric", "cost")
    assert chart.locator(".title").first.text_content() == "Cost"
    assert page.locator("#toy-noshift .curves").inner_text() == "Cost: not recorded"
    assert page.locator("#mnist-shift .scatter circle").count() == 2
    assert page.locator("#mnist-shift .remaining .line").count() == 3
    assert problems == []


def eventually(page, expression):
    """Ask until it is true: the page's own policy forbids Playwright to ask from within."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def test_the_menu_follows_the_page(browser, tmp_path):
    page, problems = opened(browser, write(full(), tmp_path))
    menu = page.locator("#jump")
    at_top = "Math.abs(document.getElementById('{}').getBoundingClientRect().top - 86) < 3"
    assert menu.input_value() == "mnist-shift"
    page.locator("#toy-noshift .meta").evaluate("meta => meta.scrollIntoView()")
    eventually(page, "document.getElementById('jump').value === 'toy-noshift'")
    menu.dispatch_event("pointerdown")
    assert menu.input_value() == "", "so that choosing the same is a change"
    assert menu.evaluate("menu => menu.selectedOptions[0].textContent") == "toy, no shift"
    menu.select_option("toy-noshift")
    eventually(page, at_top.format("toy-noshift"))
    menu.select_option("mnist-shift")
    eventually(page, at_top.format("mnist-shift"))
    eventually(page, "document.getElementById('jump').value === 'mnist-shift'")
    assert problems == []


@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_wide_tables_use_the_window_and_no_more(browser, width, tmp_path):
    many = [trial(f"a_long_name_{i}", seed) for i in range(15) for seed in (0, 1)]
    page, problems = opened(browser, write(many, tmp_path), width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for table in page.locator("section > .scroll, .rival-tables > .scroll").all():
        box = table.bounding_box()
        assert 0 < box["x"] < box["x"] + box["width"] < width
    box = page.locator("#auc .scroll").bounding_box()
    assert box["width"] > 0.9 * width - 1, "as much as there is"
    assert problems == []


def test_ticks_of_labels_are_whole_and_each_is_there_once(browser, tmp_path):
    page, _ = opened(browser, write([trial(accuracy=(0.5,), finished=False)], tmp_path))
    ticks = page.locator(".curves text[text-anchor=middle]").all_text_contents()
    assert ticks == ["9", "10", "11"]
    assert page.evaluate("ticks([0.1, 0.5], 4)[1]") == pytest.approx(0.1)


def test_a_band_is_no_wider_than_what_is_possible(browser, tmp_path):
    page, _ = opened(browser, write([trial("a", s, (s, 0.5, 1 - s)) for s in (0, 1)], tmp_path))
    ticks = page.locator(".curves text[text-anchor=end]").all_text_contents()
    assert (ticks[0], ticks[-2:]) == ("0", ["100", "labels"])
    band, none = (page.locator(f".curves {one}").first.bounding_box() for one in (".band", ".grid"))
    assert band["y"] + band["height"] == pytest.approx(none["y"], abs=1)


@pytest.mark.parametrize(("methods", "named"), [(28, True), (60, False)])
def test_names_beside_curves_end_where_the_plot_does(browser, tmp_path, methods, named):
    page, _ = opened(browser, write([trial(f"m{i}") for i in range(methods)], tmp_path))
    axis = page.locator(".curves line.axis").first.bounding_box()
    names = page.locator(".curves .series text").all()
    assert len(names) == methods * named
    assert all(name.bounding_box()["y"] < axis["y"] + 4 for name in names)


def test_a_name_beside_its_curve_is_in_the_window(browser, tmp_path):
    index = write([trial("a_function_of_somebody_with_a_name")], tmp_path)
    page, _ = opened(browser, index, 800)
    name = page.locator(".curves text", has_text="a_function").bounding_box()
    assert name["x"] + name["width"] <= 800


def test_odd_runs_work_in_a_browser(browser, tmp_path):
    trials = [
        replace(each, experiment=replace(each.experiment, dataset=f"odd {i}"))
        for i, group in enumerate(ODD.values())
        for each in group
    ]
    page, problems = opened(browser, write(trials, tmp_path))
    axis = page.locator(f"#odd_{list(ODD).index('flat and timeless')}-noshift .curves")
    assert "\u2212" not in axis.inner_text(), "no accuracy is below 0"
    for metric in page.locator("#metric option").all():
        page.select_option("#metric", metric.get_attribute("value"))
        assert page.locator(".curves svg, .curves .empty").count() == len(ODD)
        assert "NaN" not in page.locator("#experiments").inner_html()
    assert problems == []
