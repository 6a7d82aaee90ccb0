"""Rounds whose network is not what they were meant to measure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

from foresee.lab.experiment import Round
from foresee.lab.store import Trial

GUESSING = 0.95  # of log(classes), the loss of a network that learnt nothing
BEHIND = 0.10  # in train accuracy, under the median of the trials at the same round


class Unhealthy(NamedTuple):
    """A badly trained round, and what is wrong with it."""

    trial: Trial
    round: Round
    problem: str

    @property
    def train_accuracy(self) -> float:
        """NaN where it was not recorded."""
        return _known(self.round.train_accuracy)

    @property
    def train_loss(self) -> float:
        """NaN where it was not recorded."""
        return _known(self.round.train_loss)


def unhealthy(trials: Iterable[Trial], classes: int) -> list[Unhealthy]:
    """List the rounds whose training went wrong; one such round ruins an AUC.

    Not finite: a loss is NaN or infinite. Plateau: the network that was trained a second time is
    stuck too, or the train loss is that of guessing. Behind: the train accuracy is more than 10
    points under the median of all trials at the same round.
    """
    trials = list(trials)
    groups: dict[int, list[float]] = defaultdict(list)
    for number, value in _train_accuracies(trials):
        groups[number].append(value)
    usual = {number: median(values) for number, values in groups.items()}
    return [
        Unhealthy(trial, round_, problem)
        for trial in trials
        for round_ in trial.rounds
        if (problem := _what_is_wrong(round_, classes, usual))
    ]


def restarted(trials: Iterable[Trial]) -> list[tuple[Trial, Round]]:
    """List the rounds whose first network never left its plateau, and was trained once more."""
    return [(trial, found) for trial in trials for found in trial.rounds if found.restarted]


def fit(trials: Iterable[Trial]) -> float | None:
    """Median train accuracy of all rounds; None where it was not recorded."""
    values = [value for _, value in _train_accuracies(trials)]
    return median(values) if values else None


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _train_accuracies(trials: Iterable[Trial]) -> Iterator[tuple[int, float]]:
    for trial in trials:
        for round_ in trial.rounds:
            if round_.train_accuracy is not None and math.isfinite(round_.train_accuracy):
                yield round_.number, round_.train_accuracy


def _what_is_wrong(round_: Round, classes: int, usual: Mapping[int, float]) -> str:
    measured = (round_.train_loss, round_.train_accuracy, round_.accuracy, round_.log_loss)
    if not all(math.isfinite(value) for value in (*measured, round_.brier) if value is not None):
        return "not finite"
    if round_.stuck:
        return "plateau"
    if round_.train_loss is not None and round_.train_loss >= GUESSING * math.log(classes):
        return "plateau"
    if round_.train_accuracy is not None:
        behind = usual[round_.number] - round_.train_accuracy
        if behind > BEHIND:
            return f"{100 * behind:.0f} points behind"
    return ""
