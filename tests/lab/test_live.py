"""What running trials look like: the bar, a line for each trial at work, the time that is left."""

import os
from dataclasses import replace
from itertools import islice

import pytest
from rich.console import Console

import tiny
from foresee.lab import live, loop, store
from foresee.lab.live import Board, clock
from foresee.lab.runner import Job
from tiny import LINEAR, MELL, RANDOM

START = 1_000_000.0
TASK = tiny.linear_task()


@pytest.fixture
def now(monkeypatch):
    """The time, to be moved by hand."""
    clock = [START]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    return clock


def advance(folder, method, seed, rounds, when):
    with store.recording(folder, LINEAR, method, seed) as recorder:
        for found in islice(loop.run(LINEAR, method, seed, TASK, recorder.done), rounds):
            recorder.append(found)
    os.utime(recorder.path, (when, when))
    return recorder.path


def shown(board):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(board)
    bar, *lines = capture.get().splitlines()
    return bar, [" ".join(line.split()) for line in lines if line.strip()]


def board(folder, workers=2, seeds=2):
    jobs = [Job(LINEAR, m, s) for s in range(seeds) for m in ("MELL", "Random")]
    return Board(jobs, folder, workers)


def test_nothing_has_begun(tmp_path, now):
    bar, lines = shown(board(tmp_path))
    assert bar.startswith("all trials")
    assert "0/16 rounds" in bar
    assert bar.rstrip().endswith("eta -:--:--")
    assert lines == []


def test_trials_at_work_have_a_line_and_those_that_are_not_have_none(tmp_path, now):
    running = board(tmp_path)
    advance(tmp_path, MELL, 0, 4, when=START + 10)  # finished
    path = advance(tmp_path, RANDOM, 0, 1, when=START + 30)
    advance(tmp_path, MELL, 1, 0, when=START + 20)  # a header: it has just begun
    now[0] = START + 100
    bar, lines = shown(running)
    assert "5/16 rounds" in bar
    first = store.read(path).rounds[0]
    known = f"accuracy {100 * first.accuracy:.1f} % promise {first.promise:.2g}"
    # 100 seconds for 5 rounds: 20 for each, and 40 for one of two workers.
    assert bar.rstrip().endswith("eta 0:03:40")
    assert lines == [
        "toy-noshift MELL seed 1 round 0/3 eta 0:02:40",
        f"toy-noshift Random seed 0 round 1/3 {known} eta 0:02:00",
    ]


def test_there_are_no_more_lines_than_workers_and_the_latest_win(tmp_path, now):
    running = board(tmp_path, workers=1)
    advance(tmp_path, RANDOM, 0, 2, when=START + 30)
    advance(tmp_path, MELL, 0, 1, when=START + 60)
    _, lines = shown(running)
    assert len(lines) == 1
    assert "MELL seed 0" in lines[0]


def test_what_was_there_before_counts_as_done_but_not_as_speed(tmp_path, now):
    advance(tmp_path, MELL, 0, 4, when=START - 500)
    advance(tmp_path, RANDOM, 0, 2, when=START - 400)
    running = board(tmp_path)
    now[0] = START + 10
    bar, lines = shown(running)
    assert "6/16 rounds" in bar
    assert bar.rstrip().endswith("eta -:--:--")
    assert lines == []  # whoever ran it is gone
    advance(tmp_path, RANDOM, 0, 1, when=START + 20)
    now[0] = START + 20
    bar, lines = shown(running)
    assert bar.rstrip().endswith("eta 0:03:00")  # 20 seconds for the one new round, 9 are left
    assert lines[0].startswith("toy-noshift Random seed 0 round 3/3 accuracy")


def test_a_resumed_trial_has_its_line_from_the_start(tmp_path, now):
    advance(tmp_path, RANDOM, 0, 2, when=START - 400)
    running = board(tmp_path)
    with store.recording(tmp_path, LINEAR, RANDOM, 0):
        _, lines = shown(running)
    assert len(lines) == 1
    assert lines[0].endswith("eta -:--:--")  # nobody knows how long a round takes


def test_a_clock_that_is_set_back_hides_no_trial_and_takes_no_time_back(tmp_path, now, monkeypatch):
    days = [START]
    monkeypatch.setattr(live.time, "time", lambda: days[0])
    running = board(tmp_path)
    days[0] -= 3600
    advance(tmp_path, RANDOM, 0, 1, when=days[0])
    now[0] += 20
    bar, lines = shown(running)
    assert bar.rstrip().endswith("eta 0:05:00")  # 20 seconds for one round, 15 are left
    assert lines[0].startswith("toy-noshift Random seed 0 round 1/3")


def test_a_trial_whose_pool_ran_dry_is_done(tmp_path, now):
    dry = replace(LINEAR, n_pool=6)
    running = Board([Job(dry, "Random", 0)], tmp_path, 1)
    with store.recording(tmp_path, dry, RANDOM, 0) as recorder:
        for found in loop.run(dry, RANDOM, 0, tiny.linear_task(dry)):
            recorder.append(found)
    assert len(store.read(recorder.path).rounds) == 3
    now[0] = START + 60
    bar, lines = shown(running)
    assert "4/4 rounds" in bar
    assert bar.rstrip().endswith("eta 0:00:00")
    assert lines == []


def test_a_damaged_or_vanishing_file_does_not_stop_the_show(tmp_path, now):
    path = advance(tmp_path, RANDOM, 0, 2, when=START)
    running = board(tmp_path)
    path.write_bytes(b"rubbish\n" * 3)
    bar, _ = shown(running)
    assert "0/16 rounds" in bar
    path.unlink()
    assert "0/16 rounds" in shown(running)[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.4, "0:00:59"),
        (59.6, "0:01:00"),
        (3599.7, "1:00:00"),
        (360_000, "100:00:00"),
    ],
)
def test_the_clock_counts_hours_beyond_a_day(seconds, text):
    assert clock(seconds) == text
