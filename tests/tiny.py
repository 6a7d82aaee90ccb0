"""Experiments so small that tests run them whole: a linear model, and digits in a few steps."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foresee import networks
from foresee.lab import data, methods, paper
from foresee.lab.experiment import Experiment, Method
from foresee.recipe import Recipe
from foresee.scores import mell
from foresee.strategies import Random, TopK
from foresee.testing import LinearPosterior
from foresee.types import Task

CLASSES, FEATURES = 3, 5
LINEAR = Experiment("toy", False, 1, CLASSES, 6, 12, 30, 4, 25, 3, 5, 15, 4, "mlp")
DIGITS = replace(
    paper.experiment("digits", shift=True),
    n_val=30,
    n_pool=60,
    n_query=5,
    n_test=200,
    rounds=2,
    targets=10,
    candidates=30,
    draws=4,
    recipe=Recipe(iterations=20, batch=16, decay_every=15),
)

BOTH = (replace(DIGITS, shift=False), DIGITS)
"""In place of `paper.OURS`, for commands."""
NARROW = (
    replace(DIGITS, shift=False, target=("3", "5", "8", "9")),
    *(e for e in paper.NARROW if e.dataset != "digits"),
)
"""In place of `paper.NARROW`."""


@dataclass(frozen=True)
class LinearSampler:
    """A posterior that depends on every label, input and random number it is given."""

    draws: int = 4

    def __call__(self, inputs, labels, rng):
        towards = inputs.T @ np.eye(CLASSES)[labels] / len(labels)
        return LinearPosterior(towards + rng.standard_normal((self.draws, FEATURES, CLASSES)))


RANDOM = Method("Random", LinearSampler(), Random())
MELL = Method("MELL", LinearSampler(), TopK(mell, LINEAR.candidates, LINEAR.targets))


def linear_task(experiment=LINEAR, seed=0):
    """Classes that a linear model can learn; `task.oracle.asked` lists what was bought."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((FEATURES, CLASSES))
    sizes = (experiment.n_seed, experiment.n_pool, experiment.n_val, experiment.n_test)
    first, pool, val, test = (rng.standard_normal((size, FEATURES)) for size in sizes)
    first_labels, pool_labels, test_labels = ((x @ truth).argmax(1) for x in (first, pool, test))
    return Task(CLASSES, first, first_labels, pool, val, test, test_labels, Oracle(pool_labels))


class Oracle:
    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def __call__(self, picks):
        self.asked += picks.tolist()
        return self.answers[picks]


def digits_task(experiment=DIGITS, seed=0):
    images = data.load("digits")
    return data.task(images, data.split(images, experiment, seed))


def digits_method(name, experiment=DIGITS):
    return methods.method(name, experiment, *networks.statistics(data.load("digits").pixels))


def untimed(rounds):
    """Rounds without the one thing that no two runs share."""
    return [replace(found, seconds=()) for found in rounds]


def workers(parent):
    """The worker processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            ours = int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if ours and b"LokyProcess" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def end(pids, within):
    """Wait for processes, of others too, to end; tell whether they did."""
    deadline = time.monotonic() + within
    while any(map(_lives, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
