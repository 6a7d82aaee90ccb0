"""`foresee run` and `status`: what they refuse, what they say, and that they may be killed."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.table import Table
from typer.testing import CliRunner

import foresee
import kills
import tiny
from foresee.cli.app import app
from foresee.cli.console import show
from foresee.lab import data, paper, runner, store
from tiny import untimed

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS, SEEDS = "mell,random", 2
LONG = ["run", "digits", "--shift", "--budget", "20", "--seeds", str(SEEDS), "--methods", METHODS]
"""Four trials of three rounds, each long enough to be killed in."""
TOTAL = 12


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Digits with few points, one core, and an empty folder to work in."""
    monkeypatch.setattr(paper, "OURS", tiny.BOTH)
    monkeypatch.setattr(paper, "NARROW", tiny.NARROW)
    monkeypatch.setattr("foresee.cli.run.cores", lambda: 1)
    monkeypatch.setattr(runner, "_WAIT", 0.1)
    runner._prepared.cache_clear()  # its paths are relative to a folder that we leave
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args, **env):
    return CliRunner().invoke(app, list(map(str, args)), env=env)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rounds of `LONG` when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "OURS", tiny.BOTH)
        patch.setattr("foresee.cli.run.cores", lambda: 1)
        out = tmp_path_factory.mktemp("whole")
        result = command(*LONG, "--out", out)
        assert result.exit_code == 0, result.output
        return contents(out)


def contents(out):
    """Every trial's rounds, without their seconds."""
    return {(t.method, t.seed): untimed(t.rounds) for t in store.trials(Path(out))}


def assert_part_of(some, whole):
    """What was finished is as in the whole run, round by round."""
    for trial, rounds in some.items():
        assert rounds == whole.get(trial, [])[: len(rounds)]


# What it refuses


REFUSALS = {
    "data set": (
        ["run", "imagenet"],
        ["DATASET must be paper, a .toml file, or one of cifar10", "digits", "got imagenet"],
    ),
    "data folder": (
        ["run", "mnist"],
        ["--data is needed for mnist", "pass the folder that holds it", "foresee data get mnist"],
    ),
    "wrong data folder": (
        ["run", "mnist", "--data", "nowhere"],
        ["error: there is no MNIST/raw/train-images", "in the data folder nowhere: pass another"],
    ),
    "paper": (["run", "Paper"], ["--data is needed for cifar10"]),
    "method": (
        ["run", "digits", "--methods", "mell,bold"],
        ["--methods knows mell, mezl", "got bold"],
    ),
    "no method": (["run", "digits", "--methods", ""], ["--methods is empty", "such as mell"]),
    "methods of one name": (
        ["run", "digits", "--methods", "mell,OWN:mell"],
        ["methods MELL and ", ":mell would be kept in the same files", "rename one function"],
    ),
    "no function's name": (
        ["run", "digits", "--methods", "OWN:../../mell"],
        ["'../../mell' is no name of a function: write file.py:function"],
    ),
    "commas": (["run", "digits", "--methods", " , ,"], ["--methods is empty"]),
    "device": (
        ["run", "digits", "--device", "quantum"],
        ["--device must be cpu, cuda or cuda:N", "got quantum"],
    ),
    "device that only pretends": (["run", "digits", "--device", "meta"], ["got meta"]),
    "budget 0": (["run", "digits", "--budget", "0"], ["budget must be positive, got 0.0", "0.1"]),
    "budget below 0": (["run", "digits", "--budget", "-1"], ["budget must be positive, got -1.0"]),
    "budget nan": (["run", "digits", "--budget", "nan"], ["budget must be positive, got nan"]),
    "budget inf": (["run", "digits", "--budget", "inf"], ["budget must be positive, got inf"]),
    "two settings": (
        ["run", "digits", "--shift", "--narrow"],
        ["--shift and --narrow exclude each other: pass one of them"],
    ),
    "shift and none": (
        ["run", "digits", "--shift", "--no-shift"],
        ["--no-shift and --shift exclude each other"],
    ),
    "a setting of one's own": (
        ["run", "mine.toml", "--narrow"],
        ["--narrow is for data sets by name: mine.toml says that"],
    ),
    "nothing but noise": (
        ["run", "digits", "--pool-noise", "1"],
        ["pool_noise must be a share from 0 to less than 1, got 1.0"],
    ),
    "no store": (["status", "nowhere"], ["there is no folder nowhere", "foresee run --out"]),
    "empty store": (["status", "."], ["there is no trial in .", "foresee run --out"]),
    "report on nothing": (["report", "nowhere"], ["there is no folder nowhere"]),
    "unknown data": (["data", "get", "imagenet"], ["imagenet", "digits"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_an_error_that_says_what_to_do_and_leaves_nothing(
    small, tmp_path_factory, case
):
    own = tmp_path_factory.mktemp("own") / "own.py"
    own.write_text("def mell(pool, val):\n    pass\n")
    args, words = REFUSALS[case]
    result = command(*(arg.replace("OWN", str(own)) for arg in args))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_counts_must_be_positive_numbers(small, option, value):
    result = command("run", "digits", option, value)
    assert result.exit_code == 2
    assert option in result.stderr
    assert list(small.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(small):
    for name in ("cuda", "cuda:1"):
        result = command("run", "digits", "--device", name)
        assert result.exit_code == 2
        assert result.stderr == (
            f"error: --device {name}, but torch sees no GPU: use --device cpu\n"
        )


def test_what_fails_every_trial_is_said_once(small):
    Path("mine.py").write_text("def boom(pool, val):\n    raise ValueError('no')\n")
    args = ["run", "digits", "--shift", "--seeds", "2", "--methods"]
    result = command(*args, "mine.py:boom")
    assert result.exit_code == 1
    assert result.stderr == (
        "2 trials; foresee status runs tells how far they are\n"
        "digits-shift mine.py:boom seed 0 failed: ValueError: no (mine.py:2)\n"
        "2 of 2 trials failed\n"
    )
    result = command(*args, "mine.py:boom,random")
    assert result.stderr.endswith("\n2 of 4 trials failed; the others are kept\n")


def test_a_changed_configuration_is_said_once(small):
    args = ["run", "digits", "--shift", "--seeds", "2", "--methods", "random"]
    assert command(*args).exit_code == 0
    result = command(*args, "--budget", "0.5")
    assert result.stderr.count("experiment.budget: 1.0 on disk, 0.5 asked for") == 1
    assert result.stderr.endswith("\n2 of 2 trials failed\n")


def test_out_that_cannot_be_written_is_known_before_any_training(small):
    Path("file").write_text("mine")
    result = command("run", "digits", "--out", "file")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --out: cannot write in file/digits-noshift (Not a")
    assert Path("file").read_text() == "mine"


# What it says


@pytest.mark.parametrize(
    ("options", "seeds"),
    [([], 10), (["--budget", "0.3"], 3), (["--budget", "1e-9"], 1), (["--budget", "1e300"], 10)],
)
def test_a_budget_scales_the_seeds_unless_they_are_given(small, monkeypatch, options, seeds):
    planned = []
    monkeypatch.setattr(runner, "run_all", lambda jobs, *_: planned.append(jobs) or [])
    command("run", "digits", "--methods", "mell", *options)
    command("run", "digits", "--methods", "mell", *options, "--seeds", "7")
    assert [[job.seed for job in jobs if job.experiment.shift] for jobs in planned] == [
        list(range(seeds)),
        list(range(7)),
    ]


def test_a_run_its_status_and_another_run_of_the_same(small):
    args = ["run", "Digits", "--no-shift", "--methods", "MELL, random,mell", "--seeds", 2]
    result = command(*args)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    begun, *finished, advice = result.stderr.splitlines()
    assert begun == "4 trials; foresee status runs tells how far they are"
    assert advice == "next: foresee report runs -o report"
    found = store.trials(Path("runs"))
    assert [(t.experiment.name, t.method, t.seed, t.finished) for t in found] == [
        ("digits-noshift", method, seed, True) for method in ("MELL", "Random") for seed in (0, 1)
    ]
    assert sorted(finished) == sorted(
        f"{t.experiment.name} {t.method} seed {t.seed} finished, accuracy "
        f"{100 * t.rounds[-1].accuracy:.1f} %"
        for t in found
    )
    before = {t.path: t.path.read_bytes() for t in found}
    again = command(*args)
    assert again.exit_code == 0
    assert {path: path.read_bytes() for path in before} == before

    status = command("status", "runs")
    assert status.exit_code == 0
    rows = [line.split() for line in status.stdout.splitlines() if "digits" in line]
    mean = 50 * sum(t.rounds[-1].accuracy for t in found[:2])
    assert rows[0] == ["digits-noshift", "MELL", "2/2", "0", "6/6", f"{mean:.1f}", "%"]
    assert len(rows) == 2


def test_status_shows_what_is_running_and_what_is_not(small):
    command("run", "digits", "--shift", "--methods", "mell", "--seeds", "2")
    first, second = store.trials(Path("runs"))
    for trial, rounds in ((first, 1), (second, 0)):
        kept = trial.path.read_bytes().splitlines(keepends=True)[: 1 + rounds]
        trial.path.write_bytes(b"".join(kept))
    (tiny_row,) = rows_of(command("status", "runs"))
    assert tiny_row[2:5] == ["0/2", "0", "1/6"]
    method = tiny.digits_method("MELL")
    header = second.header
    with store.recording(Path("runs"), tiny.DIGITS, method, 1, header["data"]):
        (tiny_row,) = rows_of(command("status", "runs"))
    assert tiny_row[2:5] == ["0/2", "1", "1/6"]


def test_status_counts_picks_in_the_target_not_rounds(monkeypatch):
    setup = replace(tiny.NARROW[0], n_query=59)  # and of 60 one is left for the second round
    monkeypatch.setattr(paper, "NARROW", (setup,))
    command("run", "digits", "--narrow", "--methods", "random", "--seeds", "1")
    (found,) = store.trials(Path("runs"))
    inside = [round_.in_target for round_ in found.rounds[:2]]
    assert inside[1] in (0, 1)
    share = (59 * inside[0] + inside[1]) / 60
    assert rows_of(command("status", "runs"))[0][-2:] == [f"{100 * share:.0f}", "%"]


def rows_of(result):
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines() if "digits" in line]


def planned_names(monkeypatch, *args):
    planned = []
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_all", lambda jobs, *_: planned.append(jobs) or [])
        patch.setattr("foresee.cli.run._prepare", lambda *_: None)
        result = command("run", *args, "--methods", "random", "--seeds", "1")
    assert result.exit_code == 0, result.output
    return [job.experiment.name for job in planned[0]]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], ["noshift", "shift", "narrow"]),
        (["--no-shift"], ["noshift"]),
        (["--shift"], ["shift"]),
        (["--narrow"], ["narrow"]),
        (["--pool-noise", "0.2"], ["noshift-noise20", "shift-noise20", "narrow-noise20"]),
        (["--narrow", "--pool-noise", "0"], ["narrow"]),
    ],
)
def test_all_settings_are_run_unless_one_is_named(small, monkeypatch, options, settings):
    names = planned_names(monkeypatch, "digits", *options)
    assert names == [f"digits-{setting}" for setting in settings]


def test_the_paper_has_fourteen_experiments_and_a_narrow_one_of_each_set_if_asked(
    small, monkeypatch
):
    names = planned_names(monkeypatch, "paper")
    assert names == [e.name for e in paper.EXPERIMENTS]
    assert len(names) == 14
    narrow = planned_names(monkeypatch, "paper", "--narrow")
    assert narrow == [f"{name}-narrow" for name in paper.datasets(ours=False)]


def test_a_narrow_target_and_noise_are_run_kept_and_reported(small):
    args = ["run", "digits", "--narrow", "--methods", "mell,random", "--seeds", "2"]
    result = command(*args, "--pool-noise", "0.25")
    assert result.exit_code == 0, result.output
    found = store.trials(Path("runs"))
    setup = replace(tiny.NARROW[0], pool_noise=0.25)
    assert [t.experiment for t in found] == [setup] * 4
    images = data.load("digits")
    for trial in found:
        drawn = data.Split.read(f"runs/digits-narrow-noise25/split-{trial.seed}.json")
        task = data.mark(data.task(images, drawn), images, drawn, setup, trial.seed)
        assert trial.header["pool"] == {"in_target": task.in_target.sum(), "scrambled": 15}
        for round_ in trial.rounds[:-1]:
            picks = list(round_.picks)
            assert round_.in_target == task.in_target[picks].mean()
            assert round_.scrambled == task.scrambled[picks].mean()
        assert (trial.rounds[-1].in_target, trial.rounds[-1].scrambled) == (None, None)
    before = {t.path: t.path.read_bytes() for t in found}
    assert command(*args, "--pool-noise", "0.25").exit_code == 0
    assert {path: path.read_bytes() for path in before} == before

    rows = rows_of(command("status", "runs"))
    inside = [r.in_target for t in found[:2] for r in t.rounds[:-1]]
    assert rows[0][-2:] == [f"{100 * sum(inside) / 4:.0f}", "%"]
    assert command("report", "runs").exit_code == 0
    assert {p.name for p in Path("report").glob("*target*")} == {
        *("target.csv", "target.tex", "target-digits-narrow-noise25.png")
    }


def test_the_demo_shows_the_default_beside_others_on_a_narrow_target(small, monkeypatch):
    run_all = runner.run_all
    planned = []

    def first(jobs, *place):
        planned.extend(jobs)
        return run_all(jobs[:1], *place)

    monkeypatch.setattr(runner, "run_all", first)
    result = command("demo", "--jobs", "1")
    assert result.exit_code == 0, result.output
    methods = ("Default", "BADGE", "MELL", "BALD", "Random")
    assert planned == [runner.Job(tiny.NARROW[0], m, s) for s in range(5) for m in methods]
    assert Path("demo-output/report/target-digits-narrow.png").exists()
    assert "report: demo-output/report/index.html" in result.stdout


def test_passes_in_bfloat16_are_a_choice_that_is_kept(small):
    words = "run digits --shift --methods random --seeds 1 --out a --precision bfloat16"
    result = command(*words.split())
    assert result.exit_code == 0, result.output
    (trial,) = store.trials(Path("a"))
    assert trial.experiment.recipe.precision == "bfloat16"


def test_a_killed_run_says_what_is_missing(small, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.loop, "steps", killed)
    result = command("run", "digits", "--methods", "random,entropy", "--seeds", "3")
    assert result.exit_code == 130
    rows = rows_of(command("status", "runs"))
    assert [row[:2] for row in rows] == [
        [f"digits-{setting}", method]
        for setting in ("narrow", "noshift", "shift")
        for method in ("Entropy", "Random")
    ]
    assert all(row[2:] == ["0/3", "0", "0/9", "0–2"] for row in rows)
    result = command("report", "runs")
    assert result.exit_code == 0, result.output
    page = Path("report/index.html").read_text()
    assert "0 of 18 finished" in page
    assert "<b>digits, shift</b>: Random seeds 0–2 not begun; Entropy seeds 0–2 not begun." in page


def test_a_damaged_trial_and_a_broken_plan_are_named_and_left_out(small):
    command("run", "digits", "--shift", "--methods", "random", "--seeds", "2")
    Path("runs/digits-shift/Random-0.jsonl").write_bytes(b"rubbish\n" * 3)
    Path("runs/digits-shift/plan.json").write_text("rubbish")
    result = command("status", "runs")
    (row,) = rows_of(result)
    assert row[:3] == ["digits-shift", "Random", "1/1"]
    damaged, broken = result.stderr.splitlines()
    assert damaged.startswith("note: left out: runs/digits-shift/Random-0.jsonl is damaged")
    assert broken.startswith("note: left out: runs/digits-shift/plan.json is no plan")
    assert command("report", "runs").exit_code == 0


def test_a_loss_is_minimised_by_eer_alone(small, monkeypatch):
    planned = []
    monkeypatch.setattr(runner, "run_all", lambda jobs, *_: planned.append(jobs) or [])
    Path("costs.csv").write_text("\n".join(",".join("0" * 10) for _ in range(10)))
    args = ["run", "digits", "--seeds", "1", "--loss", "costs.csv", "--methods"]
    said = [command(*args, methods).stderr for methods in ("random", "all", "eer")]
    assert ["--methods eer minimises it" in text for text in said] == [True, False, False]
    assert command("run", "digits", "--seeds", "1", "--methods", "all").exit_code == 0
    found = ["EER" in {job.method for job in jobs} for jobs in planned]
    assert found == [False, True, True, False]


def test_a_pipe_cuts_no_name(small):
    name = "a_method_with_a_name_that_is_as_long_as_a_terminal_is_wide_and_still_a_little_longer"
    Path("mine.py").write_text(f"def {name}(pool, val):\n    return pool[:, 0, 0]\n")
    result = command("run", "digits", "--shift", "--seeds", "1", "--methods", f"mine.py:{name}")
    assert result.exit_code == 0, result.output
    assert f":{name} seed 0 finished, accuracy " in result.stderr
    assert f" {name} " in command("status", "runs").stdout


def test_a_pipe_takes_tables_of_any_width(capsys):
    names = [f"experiment-{i}" for i in range(40)]
    table = Table(*names, box=None)
    table.add_row(*["12.34 ± 0.56"] * 40)
    show(table)
    head, row = capsys.readouterr().out.splitlines()
    assert (head.split(), row.count("12.34 ± 0.56")) == (names, 40)


def test_a_narrow_terminal_cuts_no_name_either(small, monkeypatch):
    monkeypatch.setattr("foresee.cli.console._WIDE", 70)
    methods = ["targetherding", "targetuherding"]
    command("run", "digits", "--shift", "--seeds", "1", "--methods", ",".join(methods))
    for words in ("status", "runs"), ("report", "runs"):
        shown = command(*words).stdout
        assert "…" not in shown
        assert "Target" in shown


def test_a_narrow_terminal_cuts_no_number_in_two(small, monkeypatch):
    command("run", "digits", "--methods", "random,mell", "--seeds", "2")
    monkeypatch.setattr("foresee.cli.console._WIDE", 45)
    shown = command("report", "runs").stdout
    assert max(map(len, shown.splitlines())) <= 45
    assert len(re.findall(r"\d+\.\d\d ± \d+\.\d\d ", shown)) == 6
    assert [shown.count(f"digits, {of}") for of in ("no shift", "shift", "narrow")] == [1, 1, 1]
    monkeypatch.setattr("foresee.cli.console._WIDE", 80)
    rows = rows_of(command("status", "runs"))
    assert [row[:5] for row in rows[:1]] == [["digits-narrow", "MELL", "2/2", "0", "6/6"]]
    assert len(rows) == 6


def test_a_terminal_gets_a_bar_and_no_line_for_every_trial(small):
    result = command(
        "run", "digits", "--shift", "--methods", "random", "--seeds", "2", FORCE_COLOR="1"
    )
    assert result.exit_code == 0
    assert "all trials" in result.stderr
    assert "/6 rounds" in result.stderr
    assert "finished" not in result.stderr


def test_another_budget_is_refused_beside_the_first(small):
    args = ["run", "digits", "--shift", "--seeds", "1"]
    command(*args, "--methods", "mell")
    for method in ("mell", "random"):
        result = command(*args, "--methods", method, "--budget", "0.5")
        assert result.exit_code == 1
        assert "MELL-0.jsonl" in result.stderr
        assert "  experiment.budget: 1.0 on disk, 0.5 asked for\n" in result.stderr
        assert "choose another --out" in result.stderr
    assert len(store.trials(Path("runs"))) == 1


def test_splits_of_another_run(small):
    args = ["run", "digits", "--shift", "--seeds", "1", "--methods"]
    command(*args, "random", "--out", "theirs")
    result = command(*args, "bald", "--out", "ours", "--splits", "theirs")
    assert result.exit_code == 0, result.output
    theirs, ours = (store.trials(Path(out))[0] for out in ("theirs", "ours"))
    assert theirs.header["data"] == ours.header["data"]
    assert theirs.rounds[0].accuracy == ours.rounds[0].accuracy
    missing = command(*args, "bald", "--out", "third", "--splits", "nowhere")
    assert missing.exit_code == 1
    assert "there is no split nowhere/digits-shift/split-0.json" in missing.stderr


def test_a_data_set_is_read_once(small, monkeypatch):
    read, load = [], data.load
    monkeypatch.setattr(data, "load", lambda *args, **kw: read.append(args) or load(*args, **kw))
    runner.read.cache_clear()
    assert command("run", "digits", "--methods", "random", "--seeds", "1").exit_code == 0
    assert len(read) == 1


def test_the_version_is_that_of_the_package():
    result = command("--version")
    assert (result.exit_code, result.stdout) == (0, f"foresee {foresee.__version__}\n")


@pytest.mark.parametrize("to", [">&-", "> /dev/full"])
@pytest.mark.parametrize("args", ["--version", "--help", "data list", "suggest"])
def test_output_that_cannot_be_written_is_one_line_and_a_failure(small, args, to):
    if to == "> /dev/full" and not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    if args == "suggest":
        np.save("pool.npy", np.random.default_rng(0).dirichlet([1, 1, 1], (6, 4)))
        args = "suggest --pool pool.npy --score bald -k 2"
    line = f"{sys.executable} -m foresee.cli {args} {to}"
    done = subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    said = "stdout is closed" if to == ">&-" else "No space left on device"
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_letter_that_stdout_has_not_is_one_line_and_a_failure():
    done = subprocess.run(
        [sys.executable, "-m", "foresee.cli", "run", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("cannot be written in ascii: set PYTHONIOENCODING=utf-8:surrogateescape")


def test_closed_stderr_stops_nothing(small):
    np.save("pool.npy", np.random.default_rng(0).dirichlet([1, 1, 1], (6, 4)))
    line = f"{sys.executable} -m foresee.cli suggest --pool pool.npy --score bald -k 2 2>&-"
    done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)


# The program itself


CODE = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    "import tiny\n"
    "from foresee.cli import app, run\n"
    "from foresee.lab import paper, runner\n"
    "paper.OURS, run.cores, runner._WAIT = tiny.BOTH, lambda: 1, 0.1\n"
    "app.main()"
)
PROGRAM = [sys.executable, "-c", CODE, *LONG]
"""A fresh Python with the same small experiments."""
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def start(*args):
    return subprocess.Popen(
        [*PROGRAM, *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_rounds(out, count, child):
    """Wait until so many rounds are on the disk."""
    while rounds_in(out) < count:
        assert child.poll() is None, child.stderr.read()
        time.sleep(0.005)


def rounds_in(out):
    return sum(path.read_bytes().count(b"\n") - 1 for path in Path(out).glob("*/*.jsonl"))


@LINUX
def test_killed_it_leaves_nobody_and_goes_on_to_the_same_end(small, whole):
    rng, total = random.Random(0), Counter()
    for number in (4, 5, 6):  # a worker, all, and the parent, after a round each
        total.update(kills.one_kill(PROGRAM, Path("runs"), whole, number, 0.1, rng))
    assert kills.wrong(total) == 0, total
    assert total["kills after a stored round"] >= 2
    assert rounds_in("runs") < TOTAL
    assert command(*LONG).exit_code == 0
    assert contents("runs") == whole
    assert kills.temporary(Path("runs")) == set()


@LINUX
def test_killed_as_its_workers_start_it_leaves_nobody(small):
    with start("--jobs", "2") as child:
        while not kills.workers(child.pid):
            time.sleep(0.001)
        child.kill()
        assert kills.gone(child.pid, within=60)  # they are busy importing when it happens


def interrupted(child):
    """Interrupt all its processes, as a terminal does; what it and they said."""
    workers = tiny.workers(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait() == 130
    assert tiny.end(workers, within=60)
    return child.stderr.read().splitlines()


@LINUX
def test_interrupted_it_says_so_loses_nothing_and_leaves_nobody(small, whole):
    with start("--jobs", "2", "--seeds", "5") as child:  # more trials than loky takes at once
        wait_for_rounds("runs", 2, child)
        before = contents("runs")
        begun, *earlier, last = interrupted(child)
        assert (begun[:9], last) == ("10 trials", "interrupted")
        assert all("finished, accuracy" in line for line in earlier)
    after = contents("runs")
    assert_part_of(before, after)
    assert_part_of(after, whole)


@LINUX
def test_interrupted_as_its_workers_start_it_says_nothing_else(small):
    with start("--jobs", "2") as child:
        while len(kills.workers(child.pid)) < 2:
            time.sleep(0.001)
        time.sleep(0.2)  # they are busy importing
        assert interrupted(child)[1:] == ["interrupted"]


def test_interrupted_in_its_own_process_it_loses_nothing(small, whole, monkeypatch):
    written = []

    def append(self, found):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(found)
        to_disk(self, found)

    to_disk = store.Recorder.append
    monkeypatch.setattr(store.Recorder, "append", append)
    result = command(*LONG)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted")
    assert rounds_in("runs") == 4
    monkeypatch.setattr(store.Recorder, "append", to_disk)
    assert command(*LONG).exit_code == 0
    assert contents("runs") == whole


def test_two_at_once_share_the_work_and_one_takes_over_when_the_other_is_killed(
    small, whole, monkeypatch
):
    ours = []

    def append(self, found):
        ours.append(found)
        if len(ours) == 3:
            theirs.append(rounds_in("runs") - 2)
            child.kill()
        to_disk(self, found)

    theirs, to_disk = [], store.Recorder.append
    with start() as child:
        wait_for_rounds("runs", 1, child)
        child.send_signal(signal.SIGSTOP)  # or it might be done with all before we begin
        monkeypatch.setattr(store.Recorder, "append", append)
        result = command(*LONG)
        assert child.wait() == -signal.SIGKILL
    assert result.exit_code == 0, result.output
    assert result.stderr.count("finished") == 4  # whoever did it
    assert contents("runs") == whole
    assert rounds_in("runs") == TOTAL  # no round twice
    assert theirs[0] >= 1
    assert len(ours) <= TOTAL - theirs[0]
