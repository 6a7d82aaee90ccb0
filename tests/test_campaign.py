"""The campaign of results/: its rounds are read, packed, gone on with, and made into a page."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import campaign
import counted
import numpy as np
import packed
import page
import plans
import plateau
import pytest
from PIL import Image
from scipy import stats

import data as packed_data
import tiny
from foresee.lab import data, methods, runner, store
from foresee.lab.experiment import Round
from foresee.lab.paper import experiment
from foresee.lab.report import health
from foresee.lab.report.statistics import Auc
from foresee.lab.report.study import studies
from foresee.recipe import Recipe

HERE = Path(campaign.__file__).parent


@pytest.fixture
def part(monkeypatch, tmp_path):
    """A campaign of one small part, in a folder of its own."""
    plan = plans.Plan([replace(tiny.DIGITS, rounds=1)], ["Random", "BALD"], range(2))
    monkeypatch.setattr(campaign, "PARTS", {"tiny": (plan,)})
    monkeypatch.setattr(campaign, "HERE", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return plan


def test_what_is_packed_is_gone_on_with(part, tmp_path, capsys):
    runs, place = tmp_path / "runs", runner.Place(tmp_path / "runs" / "tiny")
    first, *others = part.groups()
    assert campaign._run_group(first, place) == []
    (runs / "tiny" / "budget.json").write_text("{}")
    campaign.status(["tiny"], runs)
    campaign.pack(["tiny"], runs)
    packed = tmp_path / "results" / "tiny" / "runs.tar.xz"
    before = packed.read_bytes()
    again = tmp_path / "again"
    campaign.unpack(["tiny"], again)
    campaign.pack(["tiny"], again)
    assert packed.read_bytes() == before
    assert (again / "tiny" / "budget.json").read_text() == "{}"
    for jobs in others:
        assert campaign._run_group(jobs, replace(place, out=again / "tiny")) == []
    campaign.status(["tiny"], again)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("tiny: 4 of 8 rounds, about 0:0")
    assert said[1] == "tiny: 8 of 8 rounds"
    assert len(store.trials(again / "tiny")) == 4
    campaign.pack(["tiny"], again)
    campaign.report(["tiny"])
    assert (tmp_path / "results" / "tiny" / "report" / "index.html").exists()


def test_what_is_packed_comes_back_to_the_byte_or_is_refused(part, tmp_path):
    runs, archive, again = tmp_path / "runs", tmp_path / "runs.tar.xz", tmp_path / "again"
    for jobs in part.groups():
        assert campaign._run_group(jobs, runner.Place(runs)) == []
    paths = sorted(runs.glob("*/*.jsonl"))
    paths[0].write_bytes(paths[0].read_bytes()[:-300])  # a kill while it wrote
    before = {path.relative_to(runs): path.read_bytes() for path in paths}
    packed.pack(runs, archive)
    packed.unpack(archive, again)
    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*.*")} == before
    wrong = re.sub(rb'"labels": \[\d', b'"labels": [77', before[paths[1].relative_to(runs)])
    paths[1].with_name("Another-1.jsonl").write_bytes(wrong)  # an image has two labels now
    with pytest.raises(ValueError, match="not come back as it is"):
        packed.pack(runs, archive)
    paths[1].with_name("Another-1.jsonl").unlink()
    paths[1].write_bytes(wrong.replace(b"[77", b"[-7"))  # no number of four bytes
    with pytest.raises(ValueError, match="not come back as it is"):
        packed.pack(runs, archive)


def test_a_campaign_whose_time_is_over_ends(part, tmp_path, capsys):
    campaign.run(["tiny"], tmp_path, runner.Place(tmp_path), 1, time.monotonic())
    assert capsys.readouterr().out == "stopped at group 1 of 2: run the same again\n"


WORKER = """
import multiprocessing, os, time
import campaign
if __name__ == "__main__":
    pool = multiprocessing.get_context("spawn").Pool(1, campaign._end_with_parent)
    worker = pool.apply(os.getpid)
    pool.apply_async(time.sleep, (60,))
    print(worker, flush=True)
    time.sleep(60)
"""


def test_no_worker_outlives_a_campaign_that_is_killed(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as started:
        worker = int(started.stdout.readline())
        os.kill(worker, 0)
        started.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_a_trial_is_in_one_plan_alone():
    for some in campaign.PARTS.values():
        jobs = [job for plan in some for group in plan.groups() for job in group]
        trials = {(job.experiment, job.method, job.seed) for job in jobs}
        assert len(trials) == len(jobs)


def test_committed_rounds_are_those_of_the_plans():
    for name, some in campaign.PARTS.items():
        planned = {experiment for plan in some for experiment in plan.experiments}
        assert {study.experiment for study in counted.studies(HERE, name)} <= planned


def test_committed_rounds_of_the_first_default_are_gone_on_with(tmp_path):
    packed.unpack(HERE / "mnist-small" / "runs.tar.xz", tmp_path)
    every = store.trials(tmp_path, only="mnist-noshift")
    trials = [trial for trial in every if trial.method == "Greedy4000"]
    assert len(trials) == 10
    for trial in trials:
        sampler = trial.header["method"]["sampler"]
        pixels = tuple(sampler["mean"]), tuple(sampler["std"])
        method = methods.method("Greedy4000", trial.experiment, *pixels, sampler["device"])
        with store.recording(
            tmp_path, trial.experiment, method, trial.seed, trial.header["data"]
        ) as recorder:
            assert recorder.done == trial.rounds


@pytest.mark.parametrize("path", page.pages(HERE), ids=lambda path: path.name)
def test_pages_say_what_the_packed_rounds_give(path):
    text = path.read_text()
    emptied = page.MADE.sub(r"\1\4", text)
    assert emptied != text
    assert page.made(HERE, emptied) == text
    for shown in (line for line in text.splitlines() if line.startswith("![")):
        with Image.open(HERE / shown.partition("(")[2].rstrip(")")) as picture:
            assert min(picture.size) > 300


def outcomes(part, rival, noise=0.0):
    """What methods did against a rival, by method and setting: 1 won, 0 tied, -1 lost."""
    found = {}
    for one in counted.found(HERE, [part]):
        if one.study.experiment.pool_noise == noise:
            for method, gap in counted.gaps(one, rival).items():
                outcome = -np.sign(gap.mean) if gap.p < 0.05 else 0
                found.setdefault(method, {})[one.study.experiment.setting] = int(outcome)
    return found


def test_what_the_guide_to_methods_advises_follows_from_the_rounds():
    small, digits = "mnist-small", "digits-settings"
    first = [outcomes(part, "Greedy4000") for part in (small, digits)]
    noisy = [outcomes(part, "Greedy4000", 0.2) for part in (small, digits)]
    badge = [outcomes(part, "BADGE") for part in (small, digits)]
    mell = [outcomes(part, "MELL") for part in (small, digits)]

    def of(found, method):
        return [outcome for one in found for outcome in one[method].values()]

    default, sure = (
        [outcomes(digits, name, noise) for noise in (0.0, 0.2)]
        for name in ("Default", "GreedySure")
    )
    for method in ("BADGE", "MELL", "MEBL", "Random"):
        assert max(of(first + noisy, method)) <= 0
        assert of(default, method) == of(sure, method) == [-1] * 6
    assert of(default, "Greedy4000") == [-1] * 6
    for method in ("MELL", "MEBL", "Random"):
        assert of([outcomes(small, "Default", noise) for noise in (0.0, 0.2)], method) == [-1] * 6
    assert of(sure, "Greedy4000") == [0, 0, -1, -1, -1, -1]
    assert of(default, "GreedySure") == [-1, -1, 0, 0, -1, 1]
    assert of(default, "TargetUHerding") == [-1, -1, 0, 0, 0, 1]
    assert max(of(default, "TargetBAIT") + of(default[:1], "UHerding")) == 0
    assert sorted(of(first, "TargetUHerding")) == [0, 0, 1, 1, 1, 1]
    assert min(of(first, "TargetBAIT")) == 0
    assert of(mell, "TargetBAIT") == [1] * 6
    assert sorted(of(badge, "TargetBAIT")) == [0, 1, 1, 1, 1, 1]
    assert all(one[m]["narrow"] <= 0 for one in mell for m in ("UHerding", "BAIT"))
    assert [one["Greedy"] for one in first] == [{"noshift": 0, "shift": 0, "narrow": -1}] * 2
    assert min(of(badge, "BatchMELL") + of(badge, "BatchBALD")) == 0
    assert min(of(badge + mell, "Greedy") + of(badge + mell, "Greedy4000")) == 0
    assert not any(of(badge, "RelevantBADGE") + of(badge, "Margin") + of(mell, "MEZL"))
    for method in ("MaxHerding", "TypiClust"):
        assert sum(outcome < 0 for outcome in mell[0][method].values()) == 2
    assert sum(outcome < 0 for outcome in first[0]["TargetHerding"].values()) == 2
    for method in ("Coreset", "Entropy", "Entropy_MC", "BALD"):
        assert max(of(badge, method)) <= 0
        assert of(first, method) == [-1] * 6
    assert all(one["Random"]["shift"] == 0 for one in mell)
    for one in counted.found(HERE, [small, digits]):
        means = one.means()
        for method in {"PowerMELL", "MEBL++"} & means.keys():
            assert (means[method] > means["MELL"]) == (one.study.experiment.setting == "shift")


def test_the_draws_of_a_large_network_explain_little_of_its_loss():
    def explained(part):
        for study in counted.studies(HERE, part):
            if not study.experiment.pool_noise:
                rounds = [r for trial in study.all for r in trial.rounds[1:]]
                known = [r for r in rounds if r.promise_pool is not None]
                yield np.mean([r.promise_pool / r.brier for r in known])

    assert all(0.035 < share < 0.065 for share in explained("mnist-vgg16"))
    assert all(0.865 < share < 1.055 for share in explained("mnist-small"))


def test_promises_order_rounds_and_are_no_forecast():
    told = {}
    for study in counted.studies(HERE, "mnist-small"):
        trials = [t for t in study.all if t.method in ("Default", "BADGE", "MELL", "Random")]
        pairs = [zip(t.rounds, t.rounds[1:], strict=False) for t in trials]
        fell = np.array([[(r.promise, r.brier - s.brier) for r, s in rounds] for rounds in pairs])
        later = np.corrcoef(fell[:, 1:].reshape(-1, 2).T)[0, 1]
        told[study.experiment.name] = [*fell[:, 0].mean(0), *fell[:, -1].mean(0), later]
    np.testing.assert_allclose(told["mnist-shift"], [0.12, 0.84, 0.03, 0.001, 0.81], atol=0.005)
    assert told["mnist-noshift"][-1] == pytest.approx(0.35, abs=0.005)


def test_what_is_read_in_the_results_of_the_default():
    every = counted.found(HERE, ["digits-settings", "mnist-mlp"])
    gaps = [counted.gaps(one, "Default") for one in every if "Default" in one.areas]
    assert len(gaps) == 9
    for rival in ("BADGE", "MELL", "Random"):
        assert all(one[rival].mean > 0 and one[rival].p < 0.05 for one in gaps)
    small = {
        one.study.experiment.name: counted.gaps(one) for one in counted.found(HERE, ["mnist-small"])
    }
    assert len(small) == 6
    for (name, gaps), rival in product(small.items(), ("BADGE", "MELL", "Random")):
        gap = gaps[rival]
        assert gap.seeds == 10
        assert gap.mean - gap.half > (0 if "narrow" in name else -0.5)
        assert (gap.p < 0.05) == ((name, rival) != ("mnist-noshift", "BADGE"))
    narrow = small["mnist-narrow"]
    assert [round(narrow[m].mean, 1) for m in ("TargetUHerding", "TargetBAIT")] == [-0.3, -0.4]
    lost = [(n, m) for n, one in small.items() for m, g in one.items() if g.mean < 0 and g.p < 0.05]
    assert lost == [("mnist-narrow", "TargetUHerding"), ("mnist-narrow", "TargetBAIT")]
    clean = [one for one in counted.found(HERE, ["mnist-small"]) if "GreedySure" in one.areas]
    sure = [counted.gaps(one, "GreedySure") for one in clean]
    assert [round(one["BADGE"].mean, 1) for one in sure] == [-0.1, 1.2, 1.5]
    for one, rival in product(sure, ("BADGE", "MELL", "Random")):
        assert one[rival].mean > 0 or one[rival].p > 0.05
    (cameras,) = (counted.gaps(one) for one in counted.found(HERE, ["iwildcam-slice"]))
    means = [round(cameras[rival].mean, 1) for rival in ("BADGE", "MELL", "Random")]
    assert means == [1.0, 1.9, 3.9]


def test_the_default_lost_only_where_networks_do_not_fit():
    parts = ["cifar100-slim", "svhn-slim"]
    short = {one.study.experiment.name: one for one in counted.found(HERE, parts)}
    lost = {
        (name, rival): round(gap.mean, 1)
        for name, one in short.items()
        for rival, gap in counted.gaps(one).items()
        if gap.p < 0.05
    }
    assert lost == {
        ("cifar100-noshift", "Random"): -0.6,
        ("svhn-noshift", "Random"): -0.9,
        ("svhn-noshift", "BADGE"): -1.1,
        ("svhn-noshift", "MELL"): -1.3,
    }
    assert round(short["cifar100-noshift"].fit, 2) == 0.47
    assert round(short["svhn-noshift"].fit, 2) == 0.84
    for one in short.values():
        ends = {}
        for trial in one.study.all:
            ends.setdefault(trial.method, []).append(trial.rounds[-1].train_accuracy)
        assert min(ends, key=lambda method: np.mean(ends[method])) == "Default"


def test_the_default_lost_nowhere_where_networks_fit():
    parts = ["svhn-slim-longer", "cifar100-slim-longer", "cifar10-slim"]
    longer = {one.study.experiment.name: one for one in counted.found(HERE, parts)}
    assert all(one.fit > 0.98 for one in longer.values())
    gaps = {name: counted.gaps(one) for name, one in longer.items()}
    means = {
        name: [round(one[m].mean, 1) for m in ("BADGE", "MELL", "Random")]
        for name, one in gaps.items()
    }
    assert means["svhn-noshift"] == [-0.1, -0.1, 0.7]
    assert means["cifar100-noshift"] == [0.5, 1.0, 0.1]
    assert means["cifar10-narrow"] == [2.2, 2.6, 2.9]
    sure = [(name, m) for name, one in gaps.items() for m, gap in one.items() if gap.p < 0.05]
    won = [("cifar100-noshift", m) for m in ("MELL", "BADGE")]
    assert sure == won + [("cifar10-narrow", m) for m in ("MELL", "Random", "Coreset", "BADGE")]
    random = counted.gaps(longer["cifar10-noshift"], "Random")
    assert round(random["MELL"].mean, 1) == 0.7
    assert min(gap.p for gap in random.values()) > 0.05
    level = [longer[f"cifar10-{setting}"] for setting in ("noshift", "shift")]
    assert max(level[0].means().values()) == level[0].means()["Random"]
    ahead = [
        gaps[one.study.experiment.name][m].mean
        for one in level
        for m in ("BALD", "Entropy", "Coreset")
    ]
    assert [round(min(ahead), 1), round(max(ahead), 1)] == [0.5, 1.6]
    orders = [page.spearman(one.means(), counted.in_paper(one)) for one in level]
    assert orders == ["−0.09 of 6 methods", "−0.26 of 6 methods"]
    for one in level:
        theirs = [auc.mean for m, auc in counted.in_paper(one).items() if m != "Random"]
        assert max(theirs) - min(theirs) <= 0.25 + 1e-9


def test_what_is_read_of_cifar10_at_two_budgets():
    before, longer = (counted.found(HERE, [f"cifar10-slim{n}"]) for n in ("", "-longer"))

    def ahead(one, rival, seeds):
        return [one.areas["Default"][seed] - one.areas[rival][seed] for seed in seeds]

    (noshift, narrow), gaps = longer, counted.gaps(longer[1])
    for rival, ours, theirs, single in (
        ("BADGE", [1.9, 1.2, 2.6], 2.4, (-0.3, -0.4)),
        ("Random", [2.4, 1.5, 3.4], 2.8, (-0.2, -0.5)),
    ):
        mean, half = gaps[rival].mean, gaps[rival].half
        assert [round(value, 1) for value in (mean, mean - half, mean + half)] == ours
        assert gaps[rival].p < 0.05
        then, now = (ahead(one, rival, range(3)) for one in (before[2], narrow))
        assert round(np.mean(then), 1) == theirs
        assert (np.subtract(then, now) > 1).tolist() == [True, False, False]
        assert tuple(round(ahead(one, rival, [0])[0], 1) for one in (before[0], noshift)) == single
    assert min(one.fit for one in longer) > 0.995


def test_what_is_read_of_the_papers_network():
    plain = _, shift, _ = counted.found(HERE, ["mnist-vgg16"])
    assert page.spearman(shift.means(), counted.in_paper(shift)) == "0.88 of 8 methods"
    without = counted.found(HERE, ["mnist-vgg16"], sound=True)
    badly = [
        other.areas[method][seed] - area
        for one, other in zip(plain, without, strict=True)
        for method in one.bad
        for seed, area in one.areas[method].items()
    ]
    assert round(max(badly)) == 13
    networks, bad = set(), set()
    for study in counted.studies(HERE, "mnist-vgg16"):
        name = study.experiment.name
        networks |= {(name, t.seed, r.number, r.train_loss) for t in study.all for r in t.rounds}
        found = health.unhealthy(study.all, study.experiment.classes)
        ends = [(one.trial.seed, one.round) for one in found]
        bad |= {(name, seed, r.number, r.train_loss) for seed, r in ends}
    assert (len(networks) // 10, len(bad)) == (157, 11)
    assert sum((seed, number) == (3, 7) for _, seed, number, _ in bad) == 5
    sound = {one.study.experiment.setting: counted.gaps(one) for one in without}
    means = {
        setting: [round(one[m].mean, 1) for m in ("BADGE", "MELL", "Random")]
        for setting, one in sound.items()
    }
    assert means == {
        "noshift": [0.1, 0.3, 2.3],
        "shift": [-1.1, 1.6, 1.5],
        "narrow": [2.0, 2.2, 7.0],
    }
    sure = {s: {m for m, gap in one.items() if gap.p < 0.05} for s, one in sound.items()}
    assert sure["noshift"] & {"BADGE", "MELL", "Random"} == {"Random"}
    assert sure["shift"] == {"Coreset", "Entropy_MC"}
    assert sure["narrow"] == sound["narrow"].keys() - {"Greedy4000"}
    assert min(gap.mean for gap in sound["narrow"].values()) > 0
    assert min(counted.gaps(shift)[m].half for m in ("BADGE", "MELL", "Random")) > 1.9
    first = [r.accuracy for trial in shift.study.all for r in trial.rounds[:1]]
    assert (round(100 * min(first)), round(100 * max(first))) == (12, 17)
    slim = [one for n in ("short", "longer") for one in counted.found(HERE, [f"mnist-slim-{n}"])]
    random = [counted.gaps(one, "Random") for one in slim]
    assert [round(one["Coreset"].mean, 1) for one in random] == [2.1, 1.3]
    assert [round(one["Entropy_MC"].mean, 1) for one in random] == [7.3, 6.9]
    assert [round(counted.gaps(one)["BADGE"].mean, 1) for one in slim] == [1.0, 1.0]
    ours, theirs = shift.means(), counted.in_paper(shift)
    assert min(theirs, key=lambda m: ours[m].mean) == "Entropy_MC"
    below = {method: round(theirs[method].mean - ours[method].mean) for method in theirs}
    assert (below.pop("Entropy_MC"), below.pop("Coreset")) == (11, 9)
    assert (min(below.values()), max(below.values())) == (3, 7)
    assert round(ours["Random"].mean - ours["Coreset"].mean, 1) == 5.3
    assert round(theirs["Random"].mean - theirs["Coreset"].mean, 1) == 0.4
    assert round(theirs["Random"].mean - theirs["Entropy_MC"].mean, 1) == 3.8


def test_what_is_read_of_cifar10_with_the_papers_network_so_far():
    every = noshift, *_ = counted.found(HERE, ["cifar10-vgg16"])
    assert max(one.fit for one in every) < 0.62
    assert round(noshift.fit, 2) == 0.54
    random = counted.gaps(noshift, "Random")
    assert round(min(gap.mean for gap in random.values()), 1) == 3.7
    assert (round(random["Default"].mean, 1), random["Default"].seeds) == (5.3, 2)
    assert random["Default"].p < 0.05
    for trial in noshift.study.all:
        if len(trial.rounds) == noshift.rounds:
            assert abs(trial.rounds[-1].accuracy - trial.rounds[0].accuracy) < 0.06
    below = [
        theirs[method].mean - one.means()[method].mean
        for one, theirs in ((one, counted.in_paper(one)) for one in every)
        for method in theirs
    ]
    assert (round(min(below)), round(max(below))) == (29, 41)
    found = json.loads((HERE / "cifar10-vgg16" / "budget.json").read_text())["found"]
    assert sum(one["left"] for one in found) == 32


def test_what_is_read_of_subsets():
    noshift, shift = counted.found(HERE, ["mnist-slim-subset"])
    some = ("MELL", "BALD_subset", "Entropy_subset", "Entropy_MC_subset")
    every = ("MELL_whole", "BALD", "Entropy", "Entropy_MC")
    of_some, of_every = (counted.gaps(shift, name) for name in ("MELL", "MELL_whole"))
    assert [round(of_some[m].mean, 1) for m in some[1:]] == [0.1, 2.3, 2.7]
    assert round(of_every["BALD"].mean, 1) == -0.2
    assert round(of_some["BALD"].mean, 1) == 8.3
    random = counted.gaps(shift, "Random")
    assert min(random[m].mean for m in every) > 6
    assert [round(random[m].mean, 1) for m in ("Entropy_MC_subset", "Entropy_MC")] == [1.2, 7.7]
    for one, least, most in (noshift, 0.4, 0.7), (shift, 6.4, 8.5):
        lower = [
            one.means()[a].mean - one.means()[b].mean for a, b in zip(some, every, strict=True)
        ]
        assert (round(min(lower), 1), round(max(lower), 1)) == (least, most)
    level = [noshift.means()[m].mean for m in some]
    assert max(level) - min(level) < 0.3


def noise_bought(part):
    """Per cent of labels that are of scrambled images, by method: least and most of settings."""
    shares = {}
    for one in counted.found(HERE, [part]):
        for metric, by_method in one.study.noted.items():
            if metric.key == "scrambled":
                for method, share in by_method.items():
                    shares.setdefault(method, []).append(round(100 * share.mean))
    return {method: (min(found), max(found)) for method, found in shares.items()}


def test_how_much_noise_methods_buy():
    digits, small = noise_bought("digits-settings"), noise_bought("mnist-small")
    assert digits["Default"] == (13, 24)
    assert digits["GreedySure"] == (2, 8)
    assert digits["Greedy4000"] == (21, 28)
    assert digits["MELL"] == (38, 48)
    assert digits["BADGE"] == (43, 52)
    assert digits["TargetUHerding"] == (0, 0)
    assert small["Default"] == (3, 7)
    assert small["Greedy4000"] == (0, 1)
    assert small["BADGE"] == (52, 61)


def test_areas_are_those_of_the_report():
    every = [counted.counted(study) for study in counted.studies(HERE, "mnist-small")]
    whole = [one for one in every if one.rounds == one.study.experiment.rounds + 1]
    assert whole
    for one in whole:
        by_method = one.study.areas.items()
        areas = {m: {seed: 100 * area for seed, area in some.items()} for m, some in by_method}
        assert dict(one.areas) == areas


# --- made-up trials ---------------------------------------------------------------------------


SETUP = experiment("mnist", budget=0.05)


def trial(method, seed, accuracy, setup=SETUP, **changes):
    """A trial with these accuracies; ``changes`` are lists, one value per round."""
    rounds = []
    for k, value in enumerate(accuracy):
        last = k == setup.rounds
        made = Round(
            *(k, setup.n_seed + k * setup.n_query, value, 0.1, 0.1, 0.1),
            *(() if last else (k,), () if last else (0,), (("train", 2.0), ("select", 1.0))),
            train_loss=0.01,
            train_accuracy=1.0,
        )
        rounds.append(replace(made, **{name: values[k] for name, values in changes.items()}))
    path = Path("runs") / setup.name / f"{method}-{seed}.jsonl"
    return store.Trial(setup, method, seed, tuple(rounds), {}, path)


def level(method, seed, height, length=11, **changes):
    """A trial whose area is its height, in per cent."""
    return trial(method, seed, [height / 100] * length, **changes)


@pytest.fixture
def shown(monkeypatch):
    """Let a part be made of these trials."""

    def show(*trials):
        def found(here, parts, sound=False):
            return [counted.counted(study, sound) for study in studies(trials)]

        monkeypatch.setattr(page, "found", found)
        return found(HERE, [])

    return show


def cells(table, name):
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_methods_are_compared_over_the_seeds_that_they_have(shown):
    rng = np.random.default_rng(0)
    ours, theirs, some = 90 + rng.normal(size=(3, 6))
    (one,) = shown(
        *(level("Default", seed, ours[seed] + 1) for seed in range(6)),
        *(level("BADGE", seed, theirs[seed]) for seed in range(6)),
        *(level("BALD", seed, some[seed]) for seed in (1, 3, 4)),
        level("Entropy", 2, 50.0),
    )
    found = counted.gaps(one)
    raw = {}
    for method, values, seeds in (("BADGE", theirs, range(6)), ("BALD", some, (1, 3, 4))):
        test = stats.ttest_rel(ours[list(seeds)] + 1, values[list(seeds)])
        low, high = test.confidence_interval()
        assert found[method].seeds == len(seeds)
        assert found[method].mean - found[method].half == pytest.approx(low)
        assert found[method].mean + found[method].half == pytest.approx(high)
        raw[method] = test.pvalue
    least, most = sorted(raw, key=raw.get)
    assert found[least].p == pytest.approx(min(1, 2 * raw[least]))
    assert found[most].p == pytest.approx(max(raw[most], found[least].p))
    table = page.default_table(HERE, [])
    assert cells(table, "BALD (seeds: 3)")[0].endswith(")")
    assert cells(table, "Entropy (seeds: 1)") == [f"{ours[2] + 1 - 50:+.2f}"]
    assert cells(table, "*seeds*") == ["1–6"]


def test_at_a_glance_the_default_is_less_its_rivals_where_all_of_them_are(shown):
    heights = {"Default": 95.0, "BADGE": 94.0, "MELL": 96.0, "Random": 90.0, "BALD": 80.0}
    narrow = experiment("mnist", narrow=True, budget=0.05)
    shown(
        *(level(m, s, h + s * (m == "MELL")) for m, h in heights.items() for s in range(3)),
        *(level(m, 0, 90.0, setup=narrow) for m in ("Default", "BADGE", "MELL")),
    )
    table = page.glance_table(HERE, [])
    row = ["vgg16, 5 %", "100 %", "3", "**+1.00 (+1.00 to +1.00)**", "−2.00 (−4.48 to +0.48)"]
    assert cells(table, "MNIST, no shift")[:5] == row
    assert "narrow" not in table


def test_holm_corrects_for_the_number_of_comparisons():
    assert counted.holm_adjusted([0.01, 0.03, 0.04]) == pytest.approx([0.03, 0.06, 0.06])
    assert counted.holm_adjusted([0.6, 0.7]) == [1, 1]


def test_of_what_is_not_finished_the_rounds_count_that_most_trials_have(shown):
    (one,) = shown(
        *(level(m, s, 90.0, 8) for m in ("Default", "BADGE") for s in range(5)),
        level("Default", 5, 90.0, 11),
        level("BADGE", 5, 90.0, 2),
        level("BALD", 0, 90.0, 3),
    )
    assert one.rounds == 8
    assert {m: list(by_seed) for m, by_seed in one.areas.items()} == {
        "Default": [0, 1, 2, 3, 4, 5],
        "BADGE": [0, 1, 2, 3, 4],
    }
    table = page.default_table(HERE, [])
    assert cells(table, "*rounds*") == ["8 of 11"]
    assert cells(table, "*not so far yet*") == ["BALD"]


def test_trials_that_have_only_begun_do_not_cut_those_that_are_finished():
    begun = [level("BALD", seed, 90.0, 5) for seed in range(8)]
    (study,) = studies([*begun, *(level("Default", seed, 90.0) for seed in range(5))])
    assert (counted.counted(study).rounds, counted.counted(study).behind) == (11, ("BALD",))


def test_a_rising_curve_is_cut_where_the_others_end():
    rising = np.linspace(0.1, 0.9, 11)
    (study,) = studies([trial("Default", s, rising[: 11 - (s > 0)]) for s in range(9)])
    assert counted.counted(study).areas["Default"][0] == pytest.approx(100 * rising[:10].mean())


def test_the_papers_figures_stand_beside_ours(shown):
    heights = {"MELL": (97.0, 97.2), "Random": (96.0, 96.4), "BADGE": (96.9, 97.1)}
    shown(
        *(level(m, s, h) for m, both in heights.items() for s, h in enumerate(both)),
        level("Default", 0, 98.0),
        level("Random", 0, 98.0, setup=experiment("mnist", narrow=True, budget=0.05)),
    )
    table = page.paper_table(HERE, [])
    assert cells(table, "MELL") == ["97.10 ± 0.14", "97.50 ± 0.11", "−0.40"]
    assert cells(table, "Default") == ["98.00", "–", ""]
    assert cells(table, "*order, Spearman’s ρ*")[0] == "0.50 of 3 methods"
    assert "narrow" not in table
    told = ["vgg16, 5 %", "2", "−0.03 (Random)", "−0.60 (BADGE)", "0.50 of 3 methods"]
    beside = page.beside_table(HERE, [])
    assert cells(beside, "MNIST, no shift")[:5] == told
    assert "narrow" not in beside
    rivals = page.rivals_table(HERE, ["mine"])
    assert cells(rivals, "against Random") == ["10/4/0", "1/0/0", "1/0/0"]
    assert cells(rivals, "against BADGE") == ["0/7/2", "0/1/0", "0/1/0"]
    assert cells(rivals, "against BALD") == ["4/10/0", "–", "–"]
    assert page.spearman({"a": Auc(1, 0)}, {"a": Auc(1, 0)}) == "–"


def test_what_is_not_finished_does_not_stand_beside_the_paper(shown):
    shown(*(level(m, s, 90.0, 8) for m in ("MELL", "BADGE", "Random") for s in range(2)))
    assert page.paper_table(HERE, []) == page.beside_table(HERE, []) == page.NOTHING


def test_a_score_of_a_subset_stands_beside_that_of_the_pool(shown):
    heights = {"MELL": 95.0, "MELL_whole": 90.0, "Random": 80.0}
    heights |= {"BALD": 88.0, "BALD_subset": 94.0, "Entropy_MC": 87.0, "Entropy_MC_subset": 86.0}
    heights |= {"Entropy": 85.0, "Entropy_subset": 85.5}
    shown(*(level(m, s, h + s * (m == "MELL")) for m, h in heights.items() for s in range(3)))
    table = page.subset_table(HERE, [])
    assert table.startswith("|  | MNIST, no shift: of 800 | of 44800 | difference |")
    assert cells(table, "MELL") == ["96.00 ± 1.00", "90.00 ± 0.00", "**+6.00 (+3.52 to +8.48)**"]
    assert [cells(table, m)[2][:7] for m in ("BALD", "Entropy_MC", "Entropy")] == [
        "**+6.00",
        "**−1.00",
        "**+0.50",
    ]
    assert cells(table, "Random") == ["80.00 ± 0.00", "", ""]


def test_no_table_is_silent_about_a_network_that_never_left_its_plateau(shown):
    stuck, again = [k == 3 for k in range(11)], [k in (3, 4) for k in range(11)]
    shown(
        *(level(m, s, 97.0 - s) for m in ("Default", "Random", "MELL") for s in range(3)),
        *(level("BADGE", s, 96.0 + s) for s in (0, 1)),
        level("BADGE", 2, 60.0, stuck=stuck, restarted=again),
    )
    marked, tables = " †2 ‡1", {name: page.TABLES[name] for name in ("default", "auc", "paper")}
    for name, table in tables.items():
        text = table(HERE, [])
        assert cells(text, "BADGE")[0].endswith(marked), name
        assert page.LEGEND in text, name
        assert marked not in "".join(cells(text, "MELL"))
    for name in ("default", "auc", "paper", "beside", "rivals", "time"):
        assert "2 again and 1 badly of 132 rounds" in page.TABLES[name](HERE, ["mine"]), name


def test_a_round_that_trained_badly_is_left_out_for_all_methods_of_its_seed(shown):
    falls = [0.9, 0.9, 0.9, 0.1, *[0.9] * 7]
    (whole,) = shown(
        trial("Default", 0, falls, train_accuracy=[1.0, 1.0, 1.0, 0.4, *[1.0] * 7]),
        *(level("Default", seed, 90.0) for seed in (1, 2)),
        *(trial("BADGE", seed, falls) for seed in range(3)),  # fits its labels, and errs
    )
    ruined = whole.areas["Default"][0]
    assert ruined < 85
    assert whole.areas["BADGE"] == pytest.approx(dict.fromkeys(range(3), ruined))
    sound = counted.counted(whole.study, sound=True)
    assert sound.areas["Default"] == pytest.approx(dict.fromkeys(range(3), 90.0))
    assert sound.areas["BADGE"] == pytest.approx({0: 90.0, 1: ruined, 2: ruined})
    assert (sound.rounds, sound.bad.total(), whole.bad.total()) == (11, 0, 1)
    assert cells(page.sound_table(HERE, []), "*rounds left out*") == ["1"]
    assert "left out" not in page.default_table(HERE, [])


def test_tables_tell_how_well_the_last_networks_fit(shown):
    fits = [1.0] * 10 + [0.5]
    trials = [level("Default", seed, 90.0, train_accuracy=fits) for seed in range(2)]
    shown(*trials, level("BADGE", 0, 90.0))
    for table in (page.default_table, page.auc_table, page.paper_table):
        assert cells(table(HERE, []), "*train accuracy at the end*")[0] == "50 %"
    shown(level("Default", 0, 90.0, train_accuracy=[None] * 11))
    assert cells(page.auc_table(HERE, []), "*train accuracy at the end*") == ["–"]


# --- the budget and the data ------------------------------------------------------------------


def test_networks_of_the_search_are_those_of_the_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(plateau, "SEEDS", 2)
    setup = replace(tiny.DIGITS, n_seed=300, recipe=Recipe(iterations=15))
    found = plateau.trained(setup, data.load("digits"), 0, "cpu")
    jobs = runner.plan([replace(setup, rounds=1)], ["Random"], range(2))
    list(runner.run_all(jobs, runner.Place(tmp_path)))
    first = [round(trial.rounds[0].train_accuracy, 4) for trial in store.trials(tmp_path)]
    assert found["train_accuracy"] == first
    last = plateau.trained(setup, data.load("digits"), setup.rounds, "cpu")
    assert (found["labels"], last["labels"], last["of"]) == (300, 310, 2)


@pytest.mark.parametrize(
    ("left", "asked", "chosen"),
    [
        ({(0.1, 0): 16, (0.1, 2): 15}, [(0.1, 0), (0.1, 2)], 0.1),
        ({(0.1, 0): 14, (0.2, 0): 15, (0.2, 2): 16}, [(0.1, 0), (0.2, 0), (0.2, 2)], 0.2),
        (
            {(0.1, 0): 16, (0.1, 2): 14, (0.2, 0): 14},
            [(0.1, 0), (0.1, 2), (0.2, 0)],
            None,
        ),
    ],
)
def test_the_first_budget_of_the_ladder_that_is_enough_is_chosen(
    tmp_path, monkeypatch, capsys, left, asked, chosen
):
    tried = []

    def trained(setup, images, number, device):
        tried.append((setup.budget, number))
        return {"budget": setup.budget, "round": number, "left": left[tried[-1]]}

    monkeypatch.setattr(plateau, "trained", trained)
    ladder = [replace(tiny.DIGITS, budget=budget) for budget in (0.1, 0.2)]
    kept = tmp_path / "some" / "budget.json"
    for _ in range(2):  # what is known is not trained again
        assert plateau.search(ladder, runner.Place(tmp_path), kept) == chosen
    assert tried == asked
    assert json.loads(kept.read_text())["chosen"] == chosen
    assert ("make it longer" in capsys.readouterr().out) == (chosen is None)


@pytest.mark.parametrize("enough", [0.1, None])
def test_a_part_is_not_run_at_another_budget_than_is_enough(part, tmp_path, monkeypatch, enough):
    monkeypatch.setattr(campaign, "search", lambda ladder, place, kept: enough)
    with pytest.raises(SystemExit, match=r"plans.py has 1.0 for it: change BUDGETS"):
        campaign.budget(["tiny"], tmp_path, runner.Place(tmp_path))
    monkeypatch.setattr(campaign, "search", lambda ladder, place, kept: 1.0)
    campaign.budget(["tiny"], tmp_path, runner.Place(tmp_path))


def test_cameras_become_the_domains_of_wilds(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 3, 64, 64), dtype=np.uint8)
    cameras, labels = np.array([3, 0, 7, 2, 3]), np.array([1, 0, 2, 0, 1])
    packed = {"pixels": pixels, "camera": cameras, "y": labels}
    packed_data.as_wilds(packed, tmp_path / "iwildcam_v2.0")
    images = data.load("iwildcam", tmp_path)
    assert (images.pixels == pixels).all()
    assert images.labels.tolist() == labels.tolist()
    assert images.source.tolist() == [True, False, True, False, True]
    assert len(images.classes) == 3
