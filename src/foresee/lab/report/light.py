"""Trials without their picks, which can be millions: all that a report keeps of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from foresee.errors import InputError
from foresee.lab import store
from foresee.lab.store import Trial

NOTED = ("in_target", "scrambled")


@dataclass(frozen=True)
class Light(Trial):
    """A trial without its picks and labels, which can be millions: how often it bought a class.

    A round that chose keeps one pick. ``shares`` of all picks are those of `Round` that were noted:
    "in_target", "scrambled".
    """

    bought: Mapping[int, int]
    shares: Mapping[str, float]


def light(trial: Trial) -> Light:
    """Count the labels of a trial, and let go of them and of its picks."""
    if isinstance(trial, Light):
        return trial
    bought: Counter[int] = Counter()
    for round_ in trial.rounds:
        bought.update(round_.labels)
    rounds = tuple(replace(r, picks=r.picks[:1], labels=()) for r in trial.rounds)
    shares = {key: share for key in NOTED if (share := _share(trial, key)) is not None}
    return Light(**{**vars(trial), "rounds": rounds, "bought": bought, "shares": shares})


def _share(trial: Trial, key: str) -> float | None:
    """What share of all picks a trial notes as such; None where it does not."""
    parts = [(len(r.picks), share) for r in trial.rounds if (share := getattr(r, key)) is not None]
    picked = sum(number for number, _ in parts)
    return sum(number * share for number, share in parts) / picked if picked else None


def read(folder: Path, only: str) -> tuple[list[Light], list[InputError]]:
    """Read the trials of some experiments, and what had to be left out of them."""
    left_out: list[InputError] = []
    return [light(trial) for trial in store.trials(folder, left_out.append, only)], left_out
