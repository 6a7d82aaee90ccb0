"""Many trials: each is run once, by whoever is free, and one that fails stops no other."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

import tiny
from foresee import training
from foresee.errors import InputError
from foresee.lab import data, loop, runner, store
from foresee.lab.runner import Job, Outcome, Place, plan, run_all, run_trial
from foresee.recipe import Recipe
from tiny import DIGITS, untimed

pytestmark = pytest.mark.usefixtures("one_thread")
RANDOM, BALD = Job(DIGITS, "Random", 0), Job(DIGITS, "BALD", 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    monkeypatch.setattr(runner, "_WAIT", 0.05)
    runner._prepared.cache_clear()
    runner._first_rounds.clear()


def rounds(job, out):
    trial = store.read(store.trial_path(out, job.experiment, job.method, job.seed))
    return untimed(trial.rounds)


def failure(job, place):
    outcome = run_trial(job, place)
    assert (outcome.job, outcome.state) == (job, "failed")
    return outcome.message


def own(folder, body, arguments="view, size, rng"):
    """A job whose method is a function of one's own, named `mine`."""
    lines = [f"def mine({arguments}):", *(f"    {line}" for line in body.split("; "))]
    (folder / "mine.py").write_text("\n".join(["import sys", "import numpy as np", *lines, ""]))
    return Job(DIGITS, f"{folder}/mine.py:mine", 0)


# Trials


def test_whatever_is_finished_early_compares_all_methods():
    jobs = plan([DIGITS, tiny.LINEAR], ["A", "B"], range(2))
    assert [(j.seed, j.experiment.name, j.method) for j in jobs] == [
        (seed, name, method)
        for seed in (0, 1)
        for name in ("digits-shift", "toy-noshift")
        for method in ("A", "B")
    ]


@pytest.mark.parametrize(
    "names", [("a.py:f", "b.py:f"), ("MELL", "own.py:mell"), ("a.py:f", "a.py:F")]
)
def test_methods_that_would_share_files_are_refused_before_any_work(names):
    with pytest.raises(
        InputError, match=rf"methods {names[0]} and {names[1]} would .*: rename one"
    ):
        plan([DIGITS], names, [0])
    assert len(plan([DIGITS], ["MELL", "own.py:mall", "MELL"], [0])) == 3


def test_a_trial_is_what_the_loop_yields(tmp_path):
    assert run_trial(RANDOM, Place(tmp_path)) == Outcome(RANDOM, "finished")
    expected = loop.run(DIGITS, tiny.digits_method("Random"), 0, tiny.digits_task())
    assert rounds(RANDOM, tmp_path) == untimed(expected)
    (trial,) = store.trials(tmp_path)
    assert (trial.header["device"], trial.header["threads"]) == ("cpu", 1)


def test_a_trial_computes_with_its_share_of_threads(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    run_trial(RANDOM, Place(tmp_path, threads=3))
    assert asked[0] == 3


def test_a_finished_trial_is_left_as_it_is(tmp_path, monkeypatch):
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    before = trial.path.read_bytes()
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: pytest.fail("trained in vain"))
    assert run_trial(RANDOM, Place(tmp_path, threads=2)) == Outcome(RANDOM, "finished")
    assert trial.path.read_bytes() == before


def test_the_first_picks_are_kept_as_a_picture(tmp_path):
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    pixels = np.asarray(Image.open(trial.path.with_suffix(".png")))
    pool = tiny.digits_task().pool[:, 0].numpy()
    step = 48 + runner._GAP
    for place, pick in enumerate(trial.rounds[0].picks):
        enlarged = pool[pick].repeat(6, 0).repeat(6, 1)
        np.testing.assert_array_equal(pixels[:, place * step :][:, :48], enlarged)
    assert pixels.shape == (48, 5 * step - runner._GAP)
    assert (pixels[:, 48:step] == 255).all()
    assert not list(trial.path.parent.glob("*.tmp"))


def test_a_trial_that_picks_nothing_has_no_picture(tmp_path):
    job = Job(replace(DIGITS, rounds=0), "Random", 0)
    assert run_trial(job, Place(tmp_path)) == Outcome(job, "finished")
    assert not list(tmp_path.glob("*/*.png"))


def test_a_trial_that_cannot_run_says_why_and_stops_no_other(tmp_path):
    bad = Job(replace(DIGITS, network="vgg16"), "MELL", 0)
    outcomes = list(run_all([bad, RANDOM], Place(tmp_path)))
    assert [o.state for o in outcomes] == ["failed", "finished"]
    assert "image_size must be a multiple of 32" in outcomes[0].message
    assert [t.method for t in store.trials(tmp_path)] == ["Random"]


def test_a_damaged_trial_says_so_and_stops_no_other(tmp_path):
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    trial.path.write_bytes(b"rubbish\n" * 3)
    outcomes = list(run_all([RANDOM, BALD], Place(tmp_path)))
    assert [o.state for o in outcomes] == ["failed", "finished"]
    assert str(trial.path) in outcomes[0].message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "MemoryError"),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "CUDA out of memory; every finished round is safe: run the same again with fewer "
            "--jobs",
        ),
        (InputError("training diverged"), "training diverged"),
    ],
)
def test_a_trial_that_breaks_off_keeps_its_rounds(tmp_path, monkeypatch, error, words):
    def breaking(*args):
        yield first
        raise error

    whole = loop.steps
    first = next(loop.run(DIGITS, tiny.digits_method("Random"), 0, tiny.digits_task()))
    monkeypatch.setattr(loop, "steps", breaking)
    assert failure(RANDOM, Place(tmp_path)) == words
    assert len(rounds(RANDOM, tmp_path)) == 1
    monkeypatch.setattr(loop, "steps", whole)
    assert run_trial(RANDOM, Place(tmp_path)).state == "finished"
    assert len(rounds(RANDOM, tmp_path)) == 3


def test_errors_of_ours_are_not_hidden_and_stop_no_other(tmp_path, monkeypatch):
    def bug(experiment, method, *rest):
        if method.name == "Random":
            raise ValueError("a bug, not an input")
        return whole(experiment, method, *rest)

    whole = loop.steps
    monkeypatch.setattr(loop, "steps", bug)
    failed, finished = run_all([RANDOM, BALD], Place(tmp_path))
    assert (failed.state, finished.state) == ("failed", "finished")
    assert failed.message.startswith("Traceback")
    assert failed.message.endswith("ValueError: a bug, not an input")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two lines ({file}:2)"),
        ("return pool.nothing", "AttributeError: 'Tensor' object has no attribute 'nothing' ({"),
        ("raise RuntimeError", "RuntimeError: RuntimeError ({file}:2)"),
        ("return None", "score boom must return one real number for each of the "),
    ],
)
def test_an_error_in_a_score_of_ones_own_is_one_line_that_says_where(tmp_path, line, said):
    file = tmp_path / "mine.py"
    file.write_text(f"def boom(pool, val):\n    {line}\n")
    message = failure(Job(DIGITS, f"{file}:boom", 0), Place(tmp_path))
    assert message.startswith(said.replace("{file}", str(file)).removesuffix("{"))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("body", "arguments", "words"),
    [
        ("return [0] * size", "view, size, rng", "strategy mine must return each position once"),
        ("return np.arange(size + 3)", "view, size, rng", "strategy mine must return 5 positions"),
        ("return pool[:, 0, 0] * np.nan", "pool, val", "must be finite, got nan for"),
        ("return pool[:, 0, 0] * 1j", "pool, val", "must return one real number for each of"),
        ("return pool[:, 0]", "pool, val", "must return one real number for each of"),
    ],
)
def test_a_method_that_breaks_its_contract_is_named_and_nothing_of_it_is_kept(
    tmp_path, body, arguments, words
):
    message = failure(own(tmp_path, body, arguments), Place(tmp_path / "out"))
    assert words in message
    assert "mine" in message
    assert "\n" not in message
    assert list((tmp_path / "out").glob("*/*.jsonl")) == []


@pytest.mark.parametrize("code", ["3", "0", "", "'enough'"])
def test_a_method_that_exits_fails_alone(tmp_path, code):
    job = own(tmp_path, f"sys.exit({code})")
    failed, finished = run_all([job, RANDOM], Place(tmp_path))
    assert (failed.state, finished.state) == ("failed", "finished")
    said = code.strip("'") or "SystemExit"
    assert failed.message == f"SystemExit: {said} ({tmp_path}/mine.py:4)"


def test_ctrl_c_ends_all(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "steps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(run_all([RANDOM, BALD], Place(tmp_path)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("view.val.div_(2, rounding_mode='floor'); return np.arange(size)", "the task's val in pl"),
        ("view.val.zero_(); raise ValueError('too late')", "ValueError: too late"),
    ],
)
@pytest.mark.parametrize("width", [1, 2])
def test_what_one_method_does_to_the_data_does_not_reach_another(tmp_path, body, words, width):
    run_trial(BALD, Place(tmp_path / "alone"))
    both = [own(tmp_path, body), BALD]
    failed, finished = runner._side_by_side(both, Place(tmp_path / "beside"), width)
    assert failed.state == "failed"
    assert words in failed.message
    assert finished.state == "finished"
    assert rounds(BALD, tmp_path / "beside") == rounds(BALD, tmp_path / "alone")


def test_trials_of_a_seed_share_what_was_read(tmp_path, monkeypatch):
    read, load = [], data.load
    monkeypatch.setattr(data, "load", lambda *args, **kw: read.append(args) or load(*args, **kw))
    runner.read.cache_clear()
    list(run_all(plan([DIGITS, tiny.BOTH[0]], ["Random", "BALD"], [0, 1]), Place(tmp_path)))
    assert len(read) == 1


def test_out_that_is_a_file_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    message = failure(RANDOM, Place(tmp_path / "file"))
    assert message.startswith(f"--out: cannot write in {tmp_path / 'file' / 'digits-shift'} (Not a")
    assert "choose another folder" in message


def test_a_picture_that_cannot_be_written_costs_no_picture(tmp_path, monkeypatch):
    def full(source, target):
        if str(target).endswith(".png"):
            raise OSError(28, "No space left on device")
        whole(source, target)

    whole = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        message = failure(RANDOM, Place(tmp_path))
    assert "Random-0.png could not be written (No space left on device): make room" in message
    assert not list(tmp_path.glob("*/.*.tmp"))
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    assert trial.finished
    assert trial.path.with_suffix(".png").exists()


# Side by side


@pytest.fixture
def trained(monkeypatch):
    """How many trainings were done, each time that some were."""
    numbers, whole = [], runner.fit_all
    monkeypatch.setattr(
        runner, "fit_all", lambda requests: numbers.append(len(requests)) or whole(requests)
    )
    return numbers


@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_trials_side_by_side_are_what_the_loop_yields(tmp_path, trained, width):
    jobs = plan([DIGITS], ["Random", "BALD"], range(2))
    outcomes = list(runner._side_by_side(jobs, Place(tmp_path), width))
    assert sorted(map(str, outcomes)) == sorted(str(Outcome(job, "finished")) for job in jobs)
    assert max(trained) == min(width, len(jobs))
    for job in jobs:
        task, method = tiny.digits_task(seed=job.seed), tiny.digits_method(job.method)
        assert rounds(job, tmp_path) == untimed(loop.run(DIGITS, method, job.seed, task))


@pytest.mark.usefixtures("short_chain")
@pytest.mark.parametrize("width", [1, 3])
def test_the_first_round_of_a_seed_is_trained_once_for_all_methods(tmp_path, trained, width):
    jobs = plan([replace(DIGITS, rounds=1)], ["Random", "MELL_MCMC", "BALD"], range(2))
    list(runner._side_by_side(jobs, Place(tmp_path), width))
    assert sum(trained) == 2 + len(jobs)
    first = {job: rounds(job, tmp_path)[0] for job in jobs}
    for job in jobs:
        assert first[job].accuracy == first[Job(job.experiment, "Random", job.seed)].accuracy
    for trial in store.trials(tmp_path):  # each says what its network took
        assert all(dict(found.seconds)["train"] > 0 for found in trial.rounds)


def test_what_a_method_does_to_its_first_network_does_not_reach_another(tmp_path):
    spoil = "for p in view.posterior.posterior.training.model.parameters(): p.data.mul_(0.5)"
    jobs = [own(tmp_path, f"{spoil}; return np.arange(size)"), BALD, RANDOM]
    run_trial(BALD, Place(tmp_path / "alone"))
    runner._first_rounds.clear()
    assert {o.state for o in runner._side_by_side(jobs, Place(tmp_path / "beside"), 3)} == {
        "finished"
    }
    assert rounds(BALD, tmp_path / "beside") == rounds(BALD, tmp_path / "alone")


def test_other_networks_and_other_data_are_not_taken_for_the_same(tmp_path, trained):
    once = replace(DIGITS, rounds=0)
    jobs = [Job(replace(once, recipe=Recipe(9)), "BALD", 0), Job(once, "Random", 1)]
    for place, job in enumerate([Job(once, "Random", 0), *jobs]):
        run_trial(job, Place(tmp_path / str(place)))
    with another_split(tmp_path / "theirs"):
        run_trial(Job(once, "Random", 0), Place(tmp_path / "3", splits=tmp_path / "theirs"))
    assert sum(trained) == 4


def test_a_trial_that_fails_or_diverges_leaves_those_beside_it_alone(tmp_path):
    wild = Job(replace(DIGITS, shift=False, recipe=Recipe(200, learning_rate=1e9)), "Random", 0)
    late = own(tmp_path, "if len(view.labels) > 20: raise ValueError('late'); return range(size)")
    for job in (RANDOM, BALD):
        run_trial(job, Place(tmp_path / "alone"))
    outcomes = list(runner._side_by_side([wild, RANDOM, late, BALD], Place(tmp_path / "beside"), 4))
    said = {o.job: o.message for o in outcomes if o.state == "failed"}
    assert set(said) == {wild, late}
    assert "training diverged" in said[wild]
    assert "ValueError: late" in said[late]
    for job in (RANDOM, BALD):
        assert rounds(job, tmp_path / "beside") == rounds(job, tmp_path / "alone")
    assert not store.trial_path(tmp_path / "beside", wild.experiment, "Random", 0).exists()


def test_an_interrupt_loses_no_round_and_leaves_no_lock(tmp_path, monkeypatch):
    def interrupted(requests):
        if requests and not left.pop():
            raise KeyboardInterrupt
        return whole(requests)

    jobs, left, whole = [RANDOM, BALD], [False, True], runner.fit_all
    for job in jobs:
        run_trial(job, Place(tmp_path / "alone"))
    runner._first_rounds.clear()
    monkeypatch.setattr(runner, "fit_all", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        list(runner._side_by_side(jobs, Place(tmp_path / "cut"), 2))
    monkeypatch.setattr(runner, "fit_all", whole)
    assert [len(rounds(job, tmp_path / "cut")) for job in jobs] == [1, 1]
    again = runner._side_by_side(jobs, Place(tmp_path / "cut"), 1)
    assert [outcome.state for outcome in again] == ["finished"] * 2
    del kept  # what was interrupted lives as long as its traceback
    for job in jobs:
        assert rounds(job, tmp_path / "cut") == rounds(job, tmp_path / "alone")


def test_seconds_of_a_trial_are_not_those_of_its_neighbours(tmp_path):
    jobs = plan([replace(DIGITS, rounds=1)], ["Random"], range(6))
    start = time.perf_counter()
    list(runner._side_by_side(jobs, Place(tmp_path), 6))
    whole = time.perf_counter() - start
    spent = [dict(r.seconds) for trial in store.trials(tmp_path) for r in trial.rounds]
    assert 0 < sum(sum(seconds.values()) for seconds in spent) <= whole


def test_a_restart_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_stuck", lambda *_: True)
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    assert [(found.restarted, found.stuck) for found in trial.rounds] == [(True, True)] * 3
    lines = trial.path.read_text().splitlines()
    assert all('"restarted": true' in line for line in lines[1:])


def test_rounds_from_before_there_were_restarts_are_read(tmp_path):
    run_trial(RANDOM, Place(tmp_path))
    (trial,) = store.trials(tmp_path)
    plain = re.sub(r', "(sum|checksums)": "\w+"', "", trial.path.read_text())
    trial.path.write_text(re.sub(', "(restarted|stuck)": false', "", plain))
    (again,) = store.trials(tmp_path)
    assert again.rounds == trial.rounds


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_trial_does_not_depend_on_how_many_there_are(tmp_path):
    both = [replace(e, recipe=replace(e.recipe, precision=p)) for e, p in
            zip(tiny.BOTH, ("bfloat16", "float32"), strict=True)]  # fmt: skip
    jobs = plan(both, ["Random", "BALD", "Coreset"], range(2))
    for width in (1, 5, 12):
        place = Place(tmp_path / str(width), device="cuda")
        assert {o.state for o in run_all(jobs, place, width)} == {"finished"}
    for job in jobs:
        one, some, every = (rounds(job, tmp_path / str(width)) for width in (1, 5, 12))
        assert one == some == every


# Splits


def test_the_split_is_written_beside_the_trials(tmp_path):
    run_trial(RANDOM, Place(tmp_path))
    kept = data.Split.read(tmp_path / "digits-shift" / "split-0.json")
    drawn = data.split(data.load("digits"), DIGITS, 0)
    for part in ("seed", "val", "pool", "test"):
        np.testing.assert_array_equal(getattr(kept, part), getattr(drawn, part))


@contextmanager
def another_split(folder, **changes):
    """A folder with the split that seed 1 draws, in the place of that of seed 0."""
    split = data.split(data.load("digits"), DIGITS, 1)
    path = folder / "digits-shift" / "split-0.json"
    path.parent.mkdir(parents=True)
    replace(split, **changes).write(path)
    yield path


def test_splits_of_another_run_are_taken(tmp_path):
    with another_split(tmp_path / "theirs"):
        run_trial(RANDOM, Place(tmp_path / "ours", splits=tmp_path / "theirs"))
    task = tiny.digits_task(seed=1)
    expected = loop.run(DIGITS, tiny.digits_method("Random"), 0, task)
    assert rounds(RANDOM, tmp_path / "ours") == untimed(expected)


def test_a_trial_goes_on_with_the_split_it_began_with(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run_trial(RANDOM, Place(ours))
    with another_split(theirs):
        for job in (RANDOM, BALD):  # one that is there, and one that would be paired with it
            message = failure(job, Place(ours, splits=theirs))
            assert f"{ours}/digits-shift/split-0.json holds another split" in message
            assert "choose another --out" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "mnist"}, "has dataset mnist, but digits-shift has digits"),
        ({"size": 1800}, "has size 1800, but digits-shift has 1797"),
        ({"val": np.arange(0)}, "has n_val 0, but digits-shift has 30"),
        ({"test": np.arange(0)}, "has n_test 0, but digits-shift has 200"),
    ],
)
def test_splits_of_something_else_are_refused_and_not_kept(tmp_path, changes, words):
    with another_split(tmp_path / "theirs", **changes) as path:
        message = failure(RANDOM, Place(tmp_path / "ours", splits=tmp_path / "theirs"))
    assert message.startswith(f"--splits: {path} {words}")
    assert "pass the --out of a run of the same experiment" in message
    assert not (tmp_path / "ours").exists()


def test_absent_splits_are_named(tmp_path):
    message = failure(RANDOM, Place(tmp_path, splits=tmp_path / "nowhere"))
    assert f"there is no split {tmp_path}/nowhere/digits-shift/split-0.json" in message


# Others who run the same


def test_trials_of_others_are_waited_for_and_taken_over(tmp_path):
    place = Place(tmp_path)
    run_trial(RANDOM, place)
    (trial,) = store.trials(tmp_path)
    whole = rounds(RANDOM, tmp_path)
    trial.path.write_bytes(b"".join(trial.path.read_bytes().splitlines(keepends=True)[:2]))
    lock = FileLock(trial.path.with_name(".Random-0.lock"), thread_local=False)
    outcomes = run_all([RANDOM, BALD], place)
    with lock:
        assert run_trial(RANDOM, place) == Outcome(RANDOM, "busy")
        assert next(outcomes) == Outcome(BALD, "finished")
        assert len(rounds(RANDOM, tmp_path)) == 1
        threading.Timer(0.3, lock.release, [True]).start()
        assert next(outcomes) == Outcome(RANDOM, "finished")  # it came back for it
    assert list(outcomes) == []
    assert rounds(RANDOM, tmp_path) == whole


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_workers_have_their_share_of_threads_and_end_with_the_run(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    outcomes = run_all(plan([DIGITS], ["Random", "BALD"], [0]), Place(tmp_path), 2)
    assert next(outcomes).state == "finished"
    workers = tiny.workers(os.getpid())
    assert len(workers) == 2
    for pid in workers:
        assert b"\0NUMBA_NUM_THREADS=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    outcomes.close()  # as an interrupt does
    assert tiny.end(workers, within=60)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_worker_that_is_killed_ends_the_run_with_a_remedy_and_leaves_nobody(tmp_path):
    endless = replace(DIGITS, recipe=Recipe(iterations=10**7))
    seen = []

    def kill_one():
        while not list(tmp_path.glob("*/*.jsonl")):
            time.sleep(0.02)
        seen.extend(tiny.workers(os.getpid()))
        os.kill(seen[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    remedy = r"a worker was killed, most likely for want of memory.* fewer --jobs, they were 2"
    with pytest.raises(InputError, match=remedy):
        list(run_all(plan([endless], ["Random", "BALD"], [0]), Place(tmp_path), workers=99))
    killer.join()
    assert len(seen) == 2  # not 99: there are no more trials
    assert tiny.end(seen, within=60)
