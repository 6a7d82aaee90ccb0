"""The paper's numbers: area under the learning curve, and who wins against whom."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.integrate import simpson


def area_under_curve(n_labelled: Sequence[int], accuracy: Sequence[float]) -> float:
    """Composite Simpson's rule over the labelled-set size, divided by the labels bought.

    >>> round(area_under_curve([100, 150, 200], [0.5, 0.7, 0.8]), 4)
    0.6833
    """
    return float(simpson(accuracy, x=n_labelled)) / (n_labelled[-1] - n_labelled[0])


class Auc(NamedTuple):
    """Mean and standard deviation of a method's AUC over seeds."""

    mean: float
    std: float


class Tally(NamedTuple):
    """How often a method won, tied and lost."""

    wins: int
    ties: int
    losses: int


def win_tie_loss(aucs: Mapping[str, Mapping[str, Auc]], method: str) -> dict[str, Tally]:
    """Compare ``method`` with every other over the experiments in ``aucs[experiment][method]``.

    The paper's rule: a method wins if its mean − sd is above the other's mean + sd; if neither
    does, they tie. Experiments that one of the two did not finish do not count.
    """
    others = sorted({name for row in aucs.values() for name in row} - {method})
    tallies = {}
    for other in others:
        pairs = [(row[method], row[other]) for row in aucs.values() if {method, other} <= set(row)]
        wins = sum(_beats(ours, theirs) for ours, theirs in pairs)
        losses = sum(_beats(theirs, ours) for ours, theirs in pairs)
        tallies[other] = Tally(wins, len(pairs) - wins - losses, losses)
    return tallies


def _beats(one: Auc, other: Auc) -> bool:
    return one.mean - one.std > other.mean + other.std
