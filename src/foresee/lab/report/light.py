"""Trials without their picks, which can be millions: all that a report keeps of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from foresee.errors import InputError
from foresee.lab import store
from foresee.lab.store import Trial


@dataclass(frozen=True)
class Light(Trial):
    """A trial without its picks and labels, which can be millions: how often it bought a class.

    A round that chose keeps one pick.
    """

    bought: Mapping[int, int]


def light(trial: Trial) -> Light:
    """Count the labels of a trial, and let go of them and of its picks."""
    if isinstance(trial, Light):
        return trial
    bought: Counter[int] = Counter()
    for round_ in trial.rounds:
        bought.update(round_.labels)
    rounds = tuple(replace(r, picks=r.picks[:1], labels=()) for r in trial.rounds)
    kept = {part.name: getattr(trial, part.name) for part in fields(Trial)}
    return Light(**{**kept, "rounds": rounds, "bought": bought})


def read(folder: Path, only: str) -> tuple[list[Light], list[InputError]]:
    """Read the trials of some experiments, and what had to be left out of them."""
    left_out: list[InputError] = []
    return [light(trial) for trial in store.trials(folder, left_out.append, only)], left_out
