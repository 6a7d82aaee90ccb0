"""The store: what is finished survives whatever happens to the process, the file and the disk."""

import functools
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace

import fuzz_store
import packed
import pytest

import tiny
from foresee.errors import InputError
from foresee.lab import loop, store
from foresee.lab.experiment import Experiment, Method, Own
from foresee.recipe import Recipe
from foresee.scores import mebl, mell
from foresee.strategies import Default, GreedyConditioning, Random, TopK
from tiny import LINEAR, MELL, RANDOM

TASK = tiny.linear_task()


@pytest.fixture(autouse=True)
def frozen_clock(monkeypatch):
    """Every stage takes no time: two runs of a trial are the same bytes."""
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: 0.0))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The bytes of a whole trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        return go_on(tmp_path_factory.mktemp("whole")).read_bytes()


def go_on(folder, method=MELL, experiment=LINEAR, seed=0, stop_after=None, task=TASK, **where):
    """Run a trial from where it stopped; return its path."""
    with store.recording(folder, experiment, method, seed, **where) as recorder:
        for count, found in enumerate(loop.run(experiment, method, seed, task, recorder.done)):
            if count == stop_after:
                break
            recorder.append(found)
    return recorder.path


def place(folder, content, method="MELL"):
    path = store.trial_path(folder, LINEAR, method, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path, change, summed=True):
    """Change the values of a trial's lines; hash and checksums fit what comes out."""
    header, *rounds = fuzz_store.unseal(path.read_bytes())
    change(header, *rounds)
    fuzz_store.rehash(header)
    announced = {**header, "checksums": "crc32"} if summed else header
    path.write_bytes((fuzz_store.seal if summed else fuzz_store.unsummed)([announced, *rounds]))


# What is kept


def test_what_is_written_is_what_is_read(tmp_path):
    experiment = replace(LINEAR, loss=((0.0, 1.0), (2.5, 0.0), (1.0, 1.0)), recipe=Recipe(batch=7))
    with store.recording(tmp_path, experiment, MELL, 3, "split", device="abacus") as recorder:
        assert recorder.done == ()
        rounds = tuple(loop.run(experiment, MELL, 3, TASK))
        assert rounds[0].cost is not None
        for found in rounds:
            recorder.append(found)
    (trial,) = store.trials(tmp_path)
    assert trial == store.read(tmp_path / "toy-noshift" / "MELL-3.jsonl")
    assert (trial.experiment, trial.method, trial.seed) == (experiment, "MELL", 3)
    assert trial.rounds == rounds
    assert trial.finished
    assert trial.header["data"] == "split"
    assert trial.header["device"] == "abacus"
    assert set(trial.header["versions"]) == {"foresee", "torch", "numpy"}


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, 1e22, math.pi, 1 / 3])
def test_every_digit_survives(tmp_path, value):
    (found,) = loop.run(replace(LINEAR, rounds=0), RANDOM, 0, TASK)
    found = replace(found, log_loss=value, seconds=(("train", value),))
    with store.recording(tmp_path, LINEAR, RANDOM, 0) as recorder:
        recorder.append(found)
    assert store.read(recorder.path).rounds == (found,)


def test_every_line_is_json_that_any_tool_reads(tmp_path):
    header, *rounds = lines(go_on(tmp_path))
    assert (header["kind"], header["format"]) == ("header", 1)
    assert [r["kind"] for r in rounds] == ["round"] * 4
    assert rounds[0]["picks"] == list(store.trials(tmp_path)[0].rounds[0].picks)


def test_trials_are_ordered_by_experiment_method_and_seed(tmp_path):
    for method, seed in ((RANDOM, 10), (MELL, 2), (RANDOM, 9)):
        go_on(tmp_path, method, seed=seed)
    go_on(tmp_path, MELL, replace(LINEAR, dataset="abc"))
    found = [(t.experiment.name, t.method, t.seed) for t in store.trials(tmp_path)]
    toy = "toy-noshift"
    assert found == [
        ("abc-noshift", "MELL", 0),
        (toy, "MELL", 2),
        (toy, "Random", 9),
        (toy, "Random", 10),
    ]


def test_other_files_in_the_store_are_left_alone(tmp_path):
    path = go_on(tmp_path)
    others = [tmp_path / "notes.jsonl", path.parent / "README", path.parent / "empty.jsonl"]
    for other in others:
        other.touch()
    (path.parent / "begun.jsonl").write_text('{"kind": "head')
    (path.parent / "deeper").mkdir()
    go_on(tmp_path, RANDOM)
    assert [t.method for t in store.trials(tmp_path)] == ["MELL", "Random"]
    assert all(other.read_text() == "" for other in others)


@pytest.mark.parametrize(
    "content",
    [
        '{"some": "table"}\n{"of": "others"}\n',
        '{"experiment": "none", "method": {"name": "x"}, "seed": 0}\n',
        '{"experiment": {"recipe": 3}}\n',
        '{"experiment": {}, "method": 1}\n',
        '{"kind": "header"}\n{"number": 0, "picks": 1}\n',
    ],
)
def test_a_foreign_table_is_refused_by_name(tmp_path, content):
    path = place(tmp_path, content.encode(), "other")
    with pytest.raises(InputError, match=r"other-0.jsonl is no trial .* move it away"):
        store.read(path)
    go_on(tmp_path)  # it is in nobody's way
    assert path.read_text() == content


def test_an_empty_or_absent_store_says_what_to_pass(tmp_path):
    with pytest.raises(InputError, match=r"no trial in .* pass the folder given to foresee run"):
        store.trials(tmp_path)
    with pytest.raises(InputError, match=r"no folder .*nowhere: pass the one given to foresee run"):
        store.trials(tmp_path / "nowhere")


# Crashes


def test_a_trial_stopped_after_any_round_ends_in_the_same_bytes(tmp_path, finished):
    for stop in range(5):
        folder = tmp_path / str(stop)
        before = go_on(folder, stop_after=stop).read_bytes()
        assert before.count(b"\n") == 1 + stop
        assert finished.startswith(before)
        assert go_on(folder).read_bytes() == finished
        assert go_on(folder).read_bytes() == finished  # nothing is left to do


def cuts(content, elsewhere):
    """Every place to cut the last line at, and some to cut the others at."""
    start = content[:-1].rindex(b"\n")
    return [*range(0, start, elsewhere), *range(start, len(content))]


def test_a_file_cut_anywhere_holds_the_whole_rounds_before_the_cut(tmp_path, finished):
    path = place(tmp_path, b"")
    whole = [r.number for r in store.read(place(tmp_path, finished)).rounds]
    for size in cuts(finished, elsewhere=11):
        path.write_bytes(finished[:size])
        rounds = finished[:size].count(b"\n") - 1
        trial = store.read(path)
        if rounds < 0:
            assert trial is None
        else:
            assert [r.number for r in trial.rounds] == whole[:rounds]
            assert not trial.finished


def test_a_trial_cut_anywhere_goes_on_to_the_same_bytes(tmp_path, finished):
    for size in cuts(finished, elsewhere=97)[::5]:
        path = place(tmp_path, finished[:size])
        assert go_on(tmp_path) == path
        assert path.read_bytes() == finished


@pytest.mark.parametrize("torn", [b'{"kind": "rou\x00\x00\x00\n', b"\xff\xfe\n", b"12\n", b"\n"])
def test_a_last_line_of_rubbish_is_dropped(tmp_path, finished, torn):
    whole = finished[: finished[:-1].rindex(b"\n") + 1]
    path = place(tmp_path, whole + torn)
    assert len(store.read(path).rounds) == 3
    assert go_on(tmp_path).read_bytes() == finished


def spoil(number, change):
    def spoiled(content):
        parts = content.splitlines(keepends=True)
        parts[number : number + 1] = change(parts[number])
        return b"".join(parts)

    return spoiled


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (spoil(0, lambda part: [part[:-9] + b"\n"]), 1),
        (spoil(2, lambda part: [b"\x00" * len(part)]), 3),
        (spoil(2, lambda part: [part[:40] + b"\n"]), 3),
        (spoil(3, lambda part: [part.replace(b"{", b"", 1)]), 4),
        (spoil(2, lambda part: []), 3),
        (spoil(2, lambda part: [part, part]), 4),
        (lambda content: content[:-1] + content[:-1], 5),
        (lambda content: content + content.splitlines(keepends=True)[-1], 6),
        (lambda content: content[: content[:-1].rindex(b"\n")] + b'\nrubbish\n{"kind', 5),
    ],
)
def test_damage_that_no_crash_makes_is_refused_and_left_for_the_owner(
    tmp_path, finished, damage, line
):
    path = place(tmp_path, damage(finished))
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"{path} is damaged in line {line}.*backup, or delete"):
        store.read(path)
    with pytest.raises(InputError, match=rf"is damaged in line {line}"):
        go_on(tmp_path)
    assert path.read_bytes() == before


# Configurations


CHANGES = {
    "experiment.recipe.iterations": (
        lambda: (MELL, replace(LINEAR, recipe=Recipe(iterations=9))),
        "46875 on disk, 9 asked for",
    ),
    "experiment.n_query": (lambda: (MELL, replace(LINEAR, n_query=5)), "4 on disk, 5 asked for"),
    "experiment.loss": (
        lambda: (MELL, replace(LINEAR, loss=((0.0,),) * 3)),
        "None on disk, a matrix of 3 × 1 asked for",
    ),
    "method.sampler.draws": (
        lambda: (replace(MELL, sampler=tiny.LinearSampler(9)), LINEAR),
        "4 on disk, 9 asked for",
    ),
    "method.strategy.targets": (
        lambda: (replace(MELL, strategy=TopK(mell, 15, 6)), LINEAR),
        "5 on disk, 6 asked for",
    ),
    "method.strategy.score": (
        lambda: (replace(MELL, strategy=TopK(mebl, 15, 5)), LINEAR),
        "'foresee.scores.mell' on disk, 'foresee.scores.mebl' asked for",
    ),
}


@pytest.mark.parametrize("key", CHANGES)
def test_another_configuration_is_refused_and_the_difference_shown(tmp_path, key):
    path = go_on(tmp_path, stop_after=1)
    before = path.read_bytes()
    change, words = CHANGES[key]
    method, experiment = change()
    with pytest.raises(InputError) as refused:
        go_on(tmp_path, method, experiment)
    message = str(refused.value)
    assert message.startswith(f"{path} was begun with another configuration")
    assert [line for line in message.splitlines() if line.startswith("  ")] == [f"  {key}: {words}"]
    assert message.endswith("run with the old values, choose another --out, or delete that file")
    assert path.read_bytes() == before


def test_another_split_is_refused_but_another_machine_is_not(tmp_path):
    path = go_on(tmp_path, stop_after=1, data="aaa", device="one GPU", threads=2)
    with pytest.raises(InputError, match="  data: 'aaa' on disk, 'bbb' asked for"):
        go_on(tmp_path, data="bbb", device="one GPU", threads=2)
    go_on(tmp_path, data="aaa", device="another GPU", threads=8)
    assert len(store.read(path).rounds) == 4


def test_a_value_that_only_the_file_has_is_shown_too(tmp_path):
    path = go_on(tmp_path, stop_after=1)
    rewrite(path, lambda header, *_: header["method"]["strategy"].update(temperature=3))
    with pytest.raises(InputError, match=r"strategy.temperature: 3 on disk, None asked for"):
        go_on(tmp_path)


def test_a_header_without_rounds_binds_nobody(tmp_path, finished):
    """A run that was killed at once, because it was the wrong one, must not block the right one."""
    experiment = replace(LINEAR, network="vgg16")
    path = go_on(tmp_path, MELL, experiment, stop_after=0)
    go_on(tmp_path, RANDOM, experiment, stop_after=0)
    assert path.read_bytes().count(b"\n") == 1
    assert go_on(tmp_path).read_bytes() == finished


def test_a_damaged_header_without_rounds_binds_nobody_either(tmp_path, finished):
    header = finished[: finished.index(b"\n") + 1]
    place(tmp_path, header.replace(b'"n_query": 4', b'"n_query": 5'))
    assert go_on(tmp_path).read_bytes() == finished
    with go_on(tmp_path / "torn", MELL, replace(LINEAR, n_query=5), stop_after=0).open("a") as file:
        file.write("a torn round\n")
    assert go_on(tmp_path / "torn").read_bytes() == finished


def test_experiments_that_no_report_compares_are_not_run_side_by_side(tmp_path):
    go_on(tmp_path, RANDOM, stop_after=1)
    with pytest.raises(InputError) as refused:
        go_on(tmp_path, MELL, replace(LINEAR, budget=0.5))
    message = str(refused.value)
    assert "Random-0.jsonl is of another experiment" in message
    assert "  experiment.budget: 1.0 on disk, 0.5 asked for\n" in message
    assert "choose another --out" in message
    go_on(tmp_path, MELL, replace(LINEAR, dataset="toy2", budget=0.5))


def test_trials_of_one_name_share_their_method(tmp_path):
    other = replace(MELL, strategy=replace(MELL.strategy, candidates=7))
    go_on(tmp_path, replace(other, name="MELL-2"), stop_after=1)  # its files begin with MELL-, too
    go_on(tmp_path, stop_after=1)
    with pytest.raises(InputError, match=r"MELL-0\.jsonl is of another method(.|\n)*candidates: "):
        go_on(tmp_path, other, seed=1)
    go_on(tmp_path, seed=1)


@pytest.mark.parametrize("mine", [None, Own("npz", "")])
def test_trials_on_ones_own_data_share_their_model_wherever_they_run(tmp_path, mine):
    experiment = replace(LINEAR, own=mine)
    config = {**store.configuration(experiment, RANDOM, 1), "data": ""}
    network = {"type": "DropoutNetwork", "draws": 5, "device": "cpu"}

    def unlike(method, sampler):
        given = {**config, "method": {**config["method"], "name": method, "sampler": sampler}}
        return store._unlike(tmp_path / experiment.name / f"{method}-1.jsonl", given)

    go_on(tmp_path, RANDOM, experiment, stop_after=1)
    (path,) = tmp_path.glob("*/*.jsonl")
    first, second = path.read_bytes().splitlines(keepends=True)
    header = {**json.loads(first), "method": {**config["method"], "sampler": network}}
    del header["sum"], header["checksums"]
    header["hash"] = store._digest({key: header[key] for key in store._CONFIGURATION})
    path.write_bytes(json.dumps(header).encode() + b"\n" + second)
    elsewhere = {**network, "device": "cuda"}
    assert unlike("MELL", elsewhere) == ""
    assert unlike("MELL", {"type": "CyclicalNetwork", "like": elsewhere}) == ""
    told = "  model.draws: 5 on disk, 6 asked for\n" if mine else ""
    assert told in unlike("MELL", {**network, "draws": 6})
    assert bool(unlike("MELL", {**network, "draws": 6})) == bool(mine)


def test_trials_of_one_seed_share_their_sets(tmp_path):
    go_on(tmp_path, RANDOM, stop_after=1, data="some rows")
    go_on(tmp_path, RANDOM, stop_after=0, seed=1, data="its own")
    go_on(tmp_path, MELL, seed=1, data="of another seed")
    with pytest.raises(InputError, match=r"Random-0\.jsonl has other sets .* pass --splits as"):
        go_on(tmp_path, MELL, data="other rows")
    go_on(tmp_path, MELL, data="some rows")


def ask(pool, val, price):
    return mell(pool, val)


def other(pool, val, price):
    return mell(pool, val)


def either(pool, val=None):
    return mell(pool, pool if val is None else val)


@dataclass(frozen=True)
class Tuned:
    weights: tuple[float, ...]
    function: object = ask


def test_methods_that_choose_otherwise_are_described_otherwise():
    strategies = [
        Random(),
        TopK(mell),
        TopK(mell, 15),
        TopK(either),
        TopK(either, point=True),
        TopK(functools.partial(ask, price=1)),
        TopK(functools.partial(ask, price=2)),
        TopK(functools.partial(other, price=1)),
        TopK(functools.partial(ask, 1)),
        TopK(functools.partial(ask, 2)),
        Tuned((1.0, 2.0)),
        Tuned((1.0, 3.0)),
        Tuned((1.0, 2.0), other),
    ]
    texts = {
        json.dumps(store.configuration(LINEAR, Method("m", tiny.LinearSampler(), s), 0))
        for s in strategies
    }
    assert len(texts) == len(strategies)


@pytest.mark.parametrize("thing", [lambda pool, val: pool, object(), {1, 2}])
def test_what_has_no_lasting_description_is_refused(tmp_path, thing):
    with pytest.raises(InputError, match="no lasting description: use dataclasses, functions with"):
        go_on(tmp_path, replace(MELL, strategy=Tuned((), thing)))


# Disks


def test_a_folder_that_cannot_be_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out: cannot write in .*file.* choose another folder"):
        go_on(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@contextmanager
def files_of_at_most(size):
    """What the kernel does when a disk is full: write what fits, then refuse."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("spare", [0, 1, 300])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_what_does_not_fit_costs_no_finished_round(tmp_path, finished, rounds, spare):
    size = len(b"".join(finished.splitlines(keepends=True)[: 1 + rounds]))
    path = store.trial_path(tmp_path, LINEAR, "MELL", 0)
    with files_of_at_most(size + spare), pytest.raises(InputError) as refused:
        go_on(tmp_path)
    assert str(refused.value).startswith(f"{path} could not be written (File too large): make room")
    assert "make room and do the same again" in str(refused.value)
    assert path.read_bytes() == finished[:size]
    assert go_on(tmp_path).read_bytes() == finished


def test_what_does_not_fit_before_the_first_round_leaves_nothing(tmp_path, finished):
    path = store.trial_path(tmp_path, LINEAR, "MELL", 0)
    for size in (0, 100, finished.index(b"\n") + 50):  # nothing, of the header, of the round
        with files_of_at_most(size), pytest.raises(InputError, match="could not be written"):
            go_on(tmp_path)
        assert not path.exists()
    assert go_on(tmp_path).read_bytes() == finished


@pytest.fixture
def small_disk(tmp_path):
    """Sixteen kilobytes, mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_costs_no_finished_round(small_disk, tmp_path):
    experiment = replace(LINEAR, n_pool=1500, n_query=500)  # rounds of half a page of the disk
    trial = {"method": RANDOM, "experiment": experiment, "task": tiny.linear_task(experiment)}
    whole = go_on(tmp_path / "elsewhere", **trial).read_bytes()
    path = go_on(small_disk, **trial, stop_after=1)
    before = path.read_bytes()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), open(filler, "wb") as file:
        file.write(bytes(1 << 20))
    with pytest.raises(InputError, match=r"Random-0.jsonl could not be written \(No space left"):
        go_on(small_disk, **trial)
    kept = path.read_bytes()
    assert kept.startswith(before)
    assert whole.startswith(kept)
    assert kept.endswith(b"\n")
    filler.unlink()
    assert go_on(small_disk, **trial).read_bytes() == whole


def test_a_read_only_disk_is_refused_and_can_still_be_read(small_disk):
    go_on(small_disk, stop_after=1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(InputError, match=r"--out: cannot write in .*\(Read-only file system\)"):
        go_on(small_disk)
    (trial,) = store.trials(small_disk)
    assert len(trial.rounds) == 1
    assert not store.busy(trial)


# Locks


def test_a_second_writer_is_told_that_it_is_the_second(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    with store.recording(tmp_path, LINEAR, MELL, 0) as recorder:
        with (
            pytest.raises(store.BusyError, match=r"MELL-0.jsonl is being written by another"),
            store.recording(tmp_path, LINEAR, MELL, 0),
        ):
            pytest.fail("two writers")
        with (
            store.recording(tmp_path, LINEAR, MELL, 1),
            store.recording(tmp_path, LINEAR, RANDOM, 0),
        ):
            pass  # other trials are free
        assert store.busy(store.read(recorder.path))
    assert not store.busy(store.read(recorder.path))
    go_on(tmp_path)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_writer_that_fails_gives_its_trial_back(tmp_path, finished, error):
    for rounds in (0, 2):
        path = go_on(tmp_path, stop_after=rounds)
        with pytest.raises(error), store.recording(tmp_path, LINEAR, MELL, 0):
            raise error
        assert path.exists() == (rounds > 0)
    assert go_on(tmp_path).read_bytes() == finished


def test_the_lock_dies_with_its_process(tmp_path, monkeypatch, finished):
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    program = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from foresee.lab import store
        from tiny import LINEAR, MELL
        with store.recording(Path({str(tmp_path)!r}), LINEAR, MELL, 0):
            print("locked", flush=True)
            time.sleep(600)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(store.BusyError):
            go_on(tmp_path)
        child.kill()
    assert go_on(tmp_path).read_bytes() == finished


def test_going_on_shows_in_the_time_of_the_file_and_looking_does_not(tmp_path):
    path = go_on(tmp_path, stop_after=1)
    os.utime(path, (1, 1))
    store.trials(tmp_path)
    store.busy(store.read(path))
    assert path.stat().st_mtime == 1
    go_on(tmp_path, stop_after=0)
    assert path.stat().st_mtime > 1
    go_on(tmp_path)
    os.utime(path, (1, 1))
    go_on(tmp_path)  # finished: there is nothing to go on with
    assert path.stat().st_mtime == 1


def test_of_two_loss_matrices_the_first_cell_that_differs_is_shown(tmp_path):
    costs = ((0.0, 1.0), (2.0, 0.0), (1.0, 1.0))
    go_on(tmp_path, MELL, replace(LINEAR, loss=costs), stop_after=1)
    with pytest.raises(InputError) as refused:
        go_on(tmp_path, MELL, replace(LINEAR, loss=(costs[0], (3.0, 0.0), costs[2])))
    assert (
        "  experiment.loss: the matrix differs, first in row 1, column 0: 2.0 on disk, 3.0 asked "
        "for\n"
    ) in str(refused.value)


# Plans


def test_plans_of_two_runs_add_up(tmp_path):
    store.keep_plan(tmp_path, LINEAR, {"MELL": range(2), "Random": [0]})
    store.keep_plan(tmp_path, LINEAR, {"Random": [4], "BALD": [0]})
    go_on(tmp_path)
    assert [(t.method, t.seed, len(t.rounds)) for t in store.trials(tmp_path)] == [
        ("BALD", 0, 0),
        ("MELL", 0, 4),
        ("MELL", 1, 0),
        ("Random", 0, 0),
        ("Random", 4, 0),
    ]


def test_plans_made_at_once_add_up(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        for seed in range(16):
            threads.submit(store.keep_plan, tmp_path, LINEAR, {"MELL": [seed]})
    assert [t.seed for t in store.trials(tmp_path)] == list(range(16))
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_plan_of_another_experiment_is_dropped_unless_it_has_rounds(tmp_path):
    other = replace(LINEAR, budget=0.5)
    store.keep_plan(tmp_path, LINEAR, {"MELL": [0, 1]})
    store.keep_plan(tmp_path, other, {"Random": [0]})
    assert [(t.experiment, t.method) for t in store.trials(tmp_path)] == [(other, "Random")]
    plan = go_on(tmp_path, RANDOM, other, stop_after=1).with_name("plan.json")
    before = plan.read_bytes()
    store.keep_plan(tmp_path, LINEAR, {"MELL": [0, 1]})
    assert plan.read_bytes() == before
    assert [(t.experiment, t.method) for t in store.trials(tmp_path)] == [(other, "Random")]


def test_a_plan_that_was_given_up_is_not_counted_with_what_was_run(tmp_path):
    store.keep_plan(tmp_path, LINEAR, {"MELL": [0, 1]})
    path = go_on(tmp_path, RANDOM, replace(LINEAR, budget=0.5), stop_after=1)
    assert [trial.path for trial in store.trials(tmp_path)] == [path]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"seeds": 3}', '{"seeds": {"MELL": ["x"]}}'])
def test_a_broken_plan_costs_nothing_that_is_finished(tmp_path, content):
    path = go_on(tmp_path).with_name("plan.json")
    path.write_text(content)
    heard = []
    assert [t.method for t in store.trials(tmp_path, heard.append)] == ["MELL"]
    store.keep_plan(tmp_path, LINEAR, {"Random": [0]}, heard.append)
    assert [str(problem).startswith(f"{path} is no plan") for problem in heard] == [True, True]
    assert [t.method for t in store.trials(tmp_path)] == ["MELL", "Random"]


def test_a_damaged_trial_does_not_hide_the_others(tmp_path):
    go_on(tmp_path)
    damaged = place(tmp_path, b"rubbish\n" * 3, "Random")
    heard = []
    assert [t.method for t in store.trials(tmp_path, heard.append)] == ["MELL"]
    assert [str(problem).split(" in ")[0] for problem in heard] == [f"{damaged} is damaged"]
    with pytest.raises(InputError, match="is damaged in line 1"):
        store.trials(tmp_path)


# What does not agree


@functools.cache
def contents():
    with tempfile.TemporaryDirectory() as folder:
        trials = ((RANDOM, 0), (RANDOM, 1), (MELL, 0))
        paths = [go_on(Path(folder), method, seed=seed) for method, seed in trials]
        return {path.name: path.read_bytes() for path in paths}


def three(folder):
    """Three trials; the first is to be damaged."""
    (folder / "toy-noshift").mkdir()
    paths = [folder / "toy-noshift" / name for name in contents()]
    for path in paths:
        path.write_bytes(contents()[path.name])
    return paths


def left_out(folder, *others):
    """What is said of the files that are not read; all others are."""
    heard = []
    assert {trial.path for trial in store.trials(folder, heard.append)} == set(others)
    return [str(problem) for problem in heard]


def other_format(header, *rounds):
    header["format"] = 2


def other_seed(header, *rounds):
    header["seed"] = 5


def other_dataset(header, *rounds):
    header["experiment"]["dataset"] = "toy2"


def other_method(header, *rounds):
    header["method"]["name"] = "../Random"


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_format, r"is no trial that .* \(line 1: .*2 - at `\$\.format`\): move it away"),
        (
            other_seed,
            r"holds the trial 'toy-noshift/Random-5.jsonl': give it its own name back, or",
        ),
        (other_dataset, r"holds the trial 'toy2-noshift/Random-0.jsonl': give"),
        (other_method, r"holds the trial 'toy-noshift/\.\./Random-0.jsonl': give"),
    ],
)
def test_a_header_is_checked_against_what_it_should_be(tmp_path, change, said, summed):
    path, *others = three(tmp_path)
    rewrite(path, change, summed)
    (problem,) = left_out(tmp_path, *others)
    assert re.match(f"{path} {said}", problem), problem
    before = path.read_bytes()
    with pytest.raises(InputError, match=re.escape(problem)):
        go_on(tmp_path, RANDOM)
    assert path.read_bytes() == before


def test_a_configuration_that_was_edited_is_damage(tmp_path):
    path, *others = three(tmp_path)
    path.write_bytes(fuzz_store.unsummed(fuzz_store.unseal(path.read_bytes())))
    path.write_bytes(path.read_bytes().replace(b'"n_query": 4', b'"n_query": 5'))
    assert left_out(tmp_path, *others) == [str(store.lines.damage(path, 1))]
    go_on(tmp_path, MELL, seed=1)  # it binds nobody


def test_a_trial_is_found_wherever_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(go_on(tmp_path).parent)
    assert store.read(Path("MELL-0.jsonl")).finished


def test_a_copy_under_another_name_does_not_count(tmp_path):
    path, other, *others = three(tmp_path)
    path.write_bytes(other.read_bytes())
    (problem,) = left_out(tmp_path, other, *others)
    assert problem.startswith(f"{path} holds the trial 'toy-noshift/Random-1.jsonl'")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


WRONG = {
    "accuracy": [None, "0.5", True, [0.5], 10**400],
    "n_labelled": ["a", 6.0, None],
    "number": [True, "0", 1],
    "picks": [None, 3, "ab", {"a": 1}, [1.5], [True], [[1]], [1]],
    "labels": [None, [None], {}],
    "seconds": [None, [], {"train": "1"}, {"lunch": 1.0}],
    "cost": ["1", [], True],
    "kind": ["header", None, 3],
    "stranger": [1],
}


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(("key", "value"), [(k, v) for k, many in WRONG.items() for v in many])
def test_a_round_of_wrong_types_is_left_out_by_name(tmp_path, key, value, summed):
    path, *others = three(tmp_path)
    rewrite(path, lambda header, first, *rest: first.update({key: value}), summed)
    (problem,) = left_out(tmp_path, *others)
    assert problem.startswith(f"{path} is ")
    assert re.search(rf"line 2: .*{key}.* move it away|damaged in line 2", problem), problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "0"),
        ("seed", False),
        ("device", 5),
        ("threads", "2"),
        ("pool", {"in_target": "3"}),
        ("pool", 3),
        ("versions", {"torch": 2}),
        ("versions", None),
        ("data", None),
        ("python", 3.11),
        ("machine", []),
        ("method", "Random"),
        ("method", {"name": 5}),
        ("method", {}),
        ("experiment", None),
        ("kind", "round"),
        ("format", True),
        ("format", 1.0),
    ],
)
def test_a_header_of_wrong_types_is_left_out_by_name(tmp_path, key, value):
    path, *others = three(tmp_path)
    rewrite(path, lambda header, *rounds: header.update({key: value}))
    (problem,) = left_out(tmp_path, *others)
    assert problem.startswith(f"{path} is no trial that this version of foresee can read (line 1:")


@pytest.mark.parametrize(
    "key", [f.name for f in fields(Experiment) if f.name not in ("network", "loss")]
)
def test_an_experiment_of_wrong_types_is_left_out_by_name(tmp_path, key):
    path, *others = three(tmp_path)
    wrong = "a" if key == "target" else ["a"]
    rewrite(path, lambda header, *rounds: header["experiment"].update({key: wrong}))
    (problem,) = left_out(tmp_path, *others)
    assert f"{path} is no trial" in problem
    assert "(line 1: Expected" in problem
    assert f"at `$.experiment.{key}`)" in problem


def test_a_target_that_was_named_with_ones_own_data_is_read(tmp_path):
    setup = replace(LINEAR, own=Own("npz", "abc"), target=("b", "c"))
    with store.recording(tmp_path, setup, MELL, 0, "split") as recorder:
        recorder.append(next(loop.run(setup, MELL, 0, tiny.linear_task())))
    (path,) = tmp_path.glob("*/*.jsonl")
    store.keep_plan(tmp_path, setup, {"MELL": [0, 1]})

    def as_before(header, *rounds):
        experiment = header["experiment"]
        experiment["own"]["target_classes"] = experiment.pop("target")

    rewrite(path, as_before)
    (plan,) = tmp_path.glob("*/plan.json")
    (planned,) = fuzz_store.unseal(plan.read_bytes())
    as_before(planned)
    plan.write_bytes(fuzz_store.seal([{**planned, "checksums": "crc32"}]))
    begun, waiting = store.trials(tmp_path)
    assert begun.experiment == waiting.experiment == setup
    assert (begun.experiment.name, len(begun.rounds)) == ("toy-narrow", 1)


def test_what_an_experiment_does_without_is_not_in_its_header(tmp_path):
    three(tmp_path)
    values = lines(tmp_path / "toy-noshift" / "MELL-0.jsonl")[0]["experiment"]
    assert not {"own", "target", "pool_noise"} & values.keys()


def test_headers_hold_what_the_default_is(tmp_path):
    default = Method("Default", tiny.LinearSampler(), Default())
    strategy = lines(go_on(tmp_path, default, stop_after=1))[0]["method"]["strategy"]
    assert strategy["with_embeddings"]["cover"] == "both"
    assert strategy["with_draws"]["classes"] == 16
    other = replace(default, strategy=Default(with_draws=GreedyConditioning(classes=3)))
    with pytest.raises(InputError, match=r"with_draws.classes: 16 on disk, 3 asked for"):
        go_on(tmp_path, other)


def test_rounds_of_another_default_do_not_mix(tmp_path):
    default = Method("Default", tiny.LinearSampler(), Default())
    path = go_on(tmp_path, default, stop_after=1)

    def as_before(header, *rounds):
        header["method"]["strategy"] = {"type": "Default"}  # without values, as it was at first

    rewrite(path, as_before)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"widest: None on disk, 4096 asked for"):
        go_on(tmp_path, default)
    assert path.read_bytes() == before


def test_older_headers_took_noise_by_the_draws_account(tmp_path):
    method = Method("Greedy", tiny.LinearSampler(), GreedyConditioning())
    path = go_on(tmp_path, method, stop_after=1)

    def as_before(header, *rounds):
        del header["method"]["strategy"]["aleatoric"]

    rewrite(path, as_before)
    before = path.read_bytes()
    other = replace(method, strategy=GreedyConditioning(aleatoric=False))
    with pytest.raises(InputError, match=r"aleatoric: True on disk, False asked for"):
        go_on(tmp_path, other)
    assert go_on(tmp_path, method).read_bytes().startswith(before)


@pytest.mark.parametrize("empty", [{}, "", None])
def test_what_is_empty_but_no_array_is_no_array(tmp_path, empty):
    path, *others = three(tmp_path)
    rewrite(path, lambda header, *rounds: rounds[-1].update(picks=empty))
    (problem,) = left_out(tmp_path, *others)
    assert "(line 5: Expected `array`, got `" in problem
    assert "at `$.picks`)" in problem


@pytest.mark.parametrize("summed", [True, False])
def test_nothing_follows_the_last_round(tmp_path, summed):
    path, *others = three(tmp_path)
    values = fuzz_store.unseal(path.read_bytes())
    values[0] |= {"checksums": "crc32"} if summed else {}
    values.append({**values[-1], "number": 4})
    path.write_bytes((fuzz_store.seal if summed else fuzz_store.unsummed)(values))
    assert left_out(tmp_path, *others) == [str(store.lines.damage(path, 6))]


@pytest.mark.parametrize("summed", [True, False])
def test_a_loss_that_is_no_number_is_read_as_it_was_written(tmp_path, summed):
    path, *_ = three(tmp_path)
    rewrite(path, lambda header, first, *rest: first.update(train_loss=math.nan), summed)
    assert b"NaN" in path.read_bytes()
    assert math.isnan(store.read(path).rounds[0].train_loss)


def test_a_field_that_is_missing_is_named(tmp_path):
    path, *others = three(tmp_path)
    rewrite(path, lambda header, first, *rest: first.pop("brier"))
    (problem,) = left_out(tmp_path, *others)
    assert "(line 2: Object missing required field `brier`)" in problem


@pytest.mark.parametrize("place", [0, 1, 4])
def test_deep_nesting_is_left_out_by_name(tmp_path, place):
    path, *others = three(tmp_path)
    whole = path.read_bytes().splitlines(keepends=True)
    whole[place] = b'{"kind": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    path.write_bytes(b"".join(whole))
    (problem,) = left_out(tmp_path, *others, *[path] * (place == 4))
    assert str(path) in problem


def test_nesting_that_can_be_read_but_not_written_is_left_out_by_name(tmp_path):
    path, *others = three(tmp_path)
    rewrite(path, lambda header, *rounds: header["method"].update(sampler=nested(500)), False)
    seen = left_out(tmp_path, path, *others)  # odd, but somebody's
    assert seen == []


# What is no file


def fifo(path):
    os.mkfifo(path)


STRANGERS = {
    "folder": lambda path: path.mkdir(),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "looping link": lambda path: path.symlink_to(path.name),
    "pipe": fifo,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_file_is_left_out_by_name_and_in_nobodys_way(tmp_path, kind):
    path, *others = three(tmp_path)
    stranger = path.with_name("x.jsonl")
    STRANGERS[kind](stranger)
    path.unlink()
    STRANGERS[kind](path)
    problems = left_out(tmp_path, *others)
    assert [problem.split(" ")[0] for problem in problems] == [str(path), str(stranger)]
    assert all(problem.endswith(": move it away") for problem in problems)
    with pytest.raises(InputError, match=re.escape(problems[0])):
        go_on(tmp_path, RANDOM)
    go_on(tmp_path, MELL, seed=1)
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_plan_that_is_no_file_costs_nothing_that_is_finished(tmp_path, kind):
    path = go_on(tmp_path)
    STRANGERS[kind](path.with_name("plan.json"))
    (problem,) = left_out(tmp_path, path)
    assert problem.startswith(str(path.with_name("plan.json")))


def test_what_others_remove_while_it_is_read_is_no_error(tmp_path, monkeypatch):
    path, *others = three(tmp_path)

    def remove_and_open(file, mode):
        path.unlink(missing_ok=True)
        return open(file, mode)

    content = path.read_bytes()
    monkeypatch.setattr(store.lines, "open", remove_and_open, raising=False)
    assert left_out(tmp_path, *others) == []
    path.write_bytes(content)
    with store.recording(tmp_path, LINEAR, MELL, 2):
        assert not path.exists()
    path.write_bytes(content)
    assert store.read(path) is None
    assert store.read(path) is None


# Names


@pytest.mark.parametrize(
    "name", ["../../evil", "a/b", "", ".", "..", ".hidden", "a\\b", "a\0", "a\n"]
)
def test_no_name_leaves_the_store(tmp_path, name):
    with pytest.raises(InputError, match=r"letters, digits and _ \+ - .* rename it"):
        go_on(tmp_path / "runs", replace(MELL, name=name))
    with pytest.raises(InputError, match="rename it"):
        store.trial_path(tmp_path, replace(LINEAR, dataset=f"{name}/x"), "MELL", 0)
    with pytest.raises(InputError, match="rename it"):
        store.keep_plan(tmp_path, LINEAR, {name: [0]})
    with pytest.raises(InputError, match="rename it"):
        store.keep_plan(tmp_path / "runs", replace(LINEAR, dataset=f"../{name}"), {"MELL": [0]})
    assert not list(tmp_path.rglob("*.jsonl"))
    assert not list(tmp_path.rglob("plan.json"))


@pytest.mark.parametrize("name", ["MEBL++", "Entropy_MC", "mine", "Größe", "v1.2-b"])
def test_names_that_methods_have(tmp_path, name):
    assert store.trial_path(tmp_path, LINEAR, name, 3).name == f"{name}-3.jsonl"


def test_names_that_some_disks_take_for_one_are_refused(tmp_path):
    path = go_on(tmp_path, stop_after=1)
    with pytest.raises(InputError, match=r"mell-0.jsonl and MELL-0.jsonl would be one file"):
        go_on(tmp_path, replace(RANDOM, name="mell"))
    go_on(tmp_path, replace(RANDOM, name="mell"), seed=1)
    assert sorted(other.name for other in path.parent.glob("*.jsonl")) == [
        "MELL-0.jsonl",
        "mell-1.jsonl",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"a note to myself\n",
        b"a note without an end",
        b'{"some": "table"}\n',
        b'{"kind": "header"}\n',
        b'{"some": "table"}\nrubbish\n',
    ],
)
def test_a_foreign_file_named_like_a_trial_is_not_overwritten(tmp_path, content):
    path = place(tmp_path, content)
    with pytest.raises(InputError, match=r"MELL-0.jsonl is no trial, and would be overwritten"):
        go_on(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("left", [b"", b"\0" * 700, b'{"kind": "head', b'{"kind": "head\0\0\0'])
def test_what_a_crash_leaves_of_a_header_is_written_anew(tmp_path, finished, left):
    place(tmp_path, left)
    assert go_on(tmp_path).read_bytes() == finished


# Plans that do not agree


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seeds", {"a/b": [0]}),
        ("seeds", {"MELL": ["0"]}),
        ("seeds", {"MELL": [1.5]}),
        ("seeds", {"MELL": 3}),
        ("seeds", [0]),
        ("format", 2),
        ("kind", "header"),
        ("experiment", {"dataset": "toy"}),
        ("experiment", None),
        ("stranger", 1),
    ],
)
@pytest.mark.parametrize("summed", [True, False])
def test_a_plan_of_wrong_types_is_left_out_by_name(tmp_path, key, value, summed):
    path = go_on(tmp_path)
    store.keep_plan(tmp_path, LINEAR, {"MELL": [0, 1]})
    plan = path.with_name("plan.json")
    (values,) = fuzz_store.unseal(plan.read_bytes())
    values[key] = value
    announced = {**values, "checksums": "crc32"}
    plan.write_bytes(fuzz_store.seal([announced]) if summed else fuzz_store.unsummed([values]))
    (problem,) = left_out(tmp_path, path)
    assert problem.startswith(f"{plan} is no plan that this version of foresee can read (")
    assert "delete it, or run the same again; no round is lost" in problem


def test_a_plan_of_another_folder_is_left_out_by_name(tmp_path):
    path = go_on(tmp_path)
    store.keep_plan(tmp_path, replace(LINEAR, dataset="abc"), {"MELL": [0, 1]})
    os.replace(tmp_path / "abc-noshift" / "plan.json", path.with_name("plan.json"))
    (problem,) = left_out(tmp_path, path)
    assert "(it is of 'abc-noshift')" in problem


def test_a_plan_written_before_checksums_is_read(tmp_path):
    store.keep_plan(tmp_path, LINEAR, {"MELL": [0, 1]})
    plan = tmp_path / "toy-noshift" / "plan.json"
    plan.write_bytes(fuzz_store.unsummed(fuzz_store.unseal(plan.read_bytes())))
    store.keep_plan(tmp_path, LINEAR, {"MELL": [2]})
    assert [trial.seed for trial in store.trials(tmp_path)] == [0, 1, 2]


# Checksums


def test_every_line_ends_in_a_checksum_that_anybody_can_compute(tmp_path, finished):
    header, *rounds = fuzz_store.unseal(finished)
    assert json.loads(finished.splitlines()[0])["checksums"] == "crc32"
    assert finished == fuzz_store.seal([{**header, "checksums": "crc32"}, *rounds])


def test_a_digit_that_changed_is_damage(tmp_path, finished):
    parts = finished.splitlines(keepends=True)
    for number, part in enumerate(parts):
        for at in [m.start() for m in re.finditer(rb"\d", part)][::7]:
            other = b"%d" % ((int(part[at : at + 1]) + 1) % 10)
            changed = part[:at] + other + part[at + 1 :]
            path = place(tmp_path, b"".join([*parts[:number], changed, *parts[number + 1 :]]))
            with pytest.raises(InputError, match=rf"is damaged in line {number + 1}, and not by"):
                store.read(path)


def test_a_round_of_another_trial_is_damage(tmp_path):
    path, *others = three(tmp_path)
    mine, theirs = (p.read_bytes().splitlines(keepends=True) for p in (path, others[0]))
    path.write_bytes(b"".join([*mine[:2], theirs[2], *mine[3:]]))
    assert left_out(tmp_path, *others) == [str(store.lines.damage(path, 3))]


@pytest.mark.parametrize("key", ["sum", "checksums"])
def test_checksums_cannot_be_taken_away(tmp_path, finished, key):
    first, rest = finished.split(b"\n", 1)
    header = json.loads(first)
    del header[key]
    path = place(tmp_path, json.dumps(header).encode() + b"\n" + rest)
    with pytest.raises(InputError, match="damaged in line 1"):
        store.read(path)


def test_a_store_without_checksums_is_read_and_goes_on_without(tmp_path, finished):
    whole = fuzz_store.unsummed(fuzz_store.unseal(finished))
    parts = whole.splitlines(keepends=True)
    path = place(tmp_path, whole)
    assert store.read(path).rounds == store.read(place(tmp_path / "new", finished)).rounds
    for size in range(2, 6):
        path.write_bytes(b"".join(parts[:size]))
        assert go_on(tmp_path).read_bytes() == whole


def test_stores_of_earlier_versions_are_read(tmp_path):
    for name, number in (("digits", 300), ("mnist", 150), ("mnist-slim", 20)):
        archive = Path(__file__).parents[2] / "results" / name / "runs.tar.xz"
        packed.unpack(archive, tmp_path / name)
        heard = []
        found = store.trials(tmp_path / name, heard.append)
        assert (len(found), heard) == (number, [])
        assert all(trial.finished for trial in found)


def test_a_torn_line_is_said_to_be_one_and_costs_no_other(tmp_path):
    path, *others = three(tmp_path)
    content = path.read_bytes()
    for cut, line in ((1, 5), (200, 5), (len(content) - 40, 1)):
        path.write_bytes(content[:-cut])
        whole = [path] * (line > 1)
        (problem,) = left_out(tmp_path, *whole, *others)
        assert problem == (
            f"the torn last line of {path} (line {line}), whose writing was cut short: foresee run "
            "does that round again"
        )
        assert len(store.trials(tmp_path)) == len(whole) + 2  # unasked, it is no error
        assert go_on(tmp_path, RANDOM).read_bytes() == content


@pytest.mark.parametrize(("change", "times"), [("flip", 150), ("mutate", 60)])
@pytest.mark.parametrize("summed", [True, False])
def test_no_damage_crashes_hides_another_or_goes_unsaid(tmp_path, change, times, summed):
    fuzz_store.build(tmp_path)
    counts = fuzz_store.damage(tmp_path, getattr(fuzz_store, change), times, summed=summed)
    assert counts["left out"] > times / 2
    assert sum(counts.values()) == times


def test_a_round_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        synced.append(path.read_bytes())

    path = store.trial_path(tmp_path, LINEAR, RANDOM.name, 0)
    monkeypatch.setattr(os, "fsync", fsync)
    with store.recording(tmp_path, LINEAR, RANDOM, 0) as recorder:
        assert synced == [path.read_bytes()]
        for number, found in enumerate(loop.run(LINEAR, RANDOM, 0, TASK), start=2):
            recorder.append(found)
            assert len(synced) == number
            assert synced[-1] == path.read_bytes()
            assert synced[-1].count(b"\n") == number


# Looking


def test_some_experiments_alone_can_be_read(tmp_path):
    path = go_on(tmp_path)
    go_on(tmp_path, MELL, replace(LINEAR, dataset="abc"))
    store.keep_plan(tmp_path, LINEAR, {"MELL": [1]})
    store.keep_plan(tmp_path, replace(LINEAR, dataset="abc"), {"MELL": [1]})
    found = store.trials(tmp_path, only="toy-*")
    assert [trial.path.name for trial in found] == ["MELL-0.jsonl", "MELL-1.jsonl"]
    assert {trial.path.parent for trial in found} == {path.parent}
    assert store.trials(tmp_path, only="nothing") == []


def test_status_loads_nothing_heavy(tmp_path):
    go_on(tmp_path, stop_after=1)
    program = textwrap.dedent(f"""
        import sys
        from foresee.cli.app import app
        app(["status", {str(tmp_path)!r}], standalone_mode=False)
        heavy = {{"torch", "numpy", "scipy", "sklearn", "matplotlib", "joblib", "numba", "PIL"}}
        print(sorted(heavy & sys.modules.keys()))
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "1/4" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"
