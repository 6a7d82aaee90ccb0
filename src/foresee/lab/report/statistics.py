"""The paper's numbers: area under the learning curve, and who wins against whom."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.integrate import simpson
from scipy.stats import entropy, ttest_1samp

SIGNIFICANT = 0.05
T = TypeVar("T")


def area_under_curve(n_labelled: Sequence[int], accuracy: Sequence[float]) -> float:
    """Composite Simpson's rule over the labelled-set size, divided by the labels bought.

    >>> round(area_under_curve([100, 150, 200], [0.5, 0.7, 0.8]), 4)
    0.6833
    """
    return float(simpson(accuracy, x=n_labelled)) / (n_labelled[-1] - n_labelled[0])


class Auc(NamedTuple):
    """Mean and standard deviation of a method's AUC over seeds; the latter is NaN for one seed."""

    mean: float
    std: float


def mean_std(values: Collection[float]) -> Auc:
    """Mean and sample standard deviation.

    >>> mean_std([1.0, 2.0, 3.0])
    Auc(mean=2.0, std=1.0)
    """
    array = np.fromiter(values, float)
    with np.errstate(invalid="ignore"):  # an infinite loss has an infinite mean and no deviation
        std = float(array.std(ddof=1)) if len(array) > 1 else math.nan
        return Auc(float(array.mean()), std)


class Tally(NamedTuple):
    """How often a method won, tied and lost."""

    wins: int
    ties: int
    losses: int


def win_tie_loss(aucs: Mapping[str, Mapping[str, Auc]], method: str) -> dict[str, Tally]:
    """Compare ``method`` with every other over the experiments in ``aucs[experiment][method]``.

    The paper's rule: a method wins if its mean − sd is above the other's mean + sd; if neither
    does, they tie. Experiments that one of the two did not finish do not count, nor do those with
    one seed, which have no sd.
    """
    return _tallies(aucs, method, _verdict)


class Paired(NamedTuple):
    """Two methods on the seeds that both finished: the mean difference and its p-value."""

    seeds: int
    difference: float
    p: float


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Two-sided paired t-test of two methods' AUCs by seed; None with fewer than two in common.

    >>> paired({0: 0.91, 1: 0.93, 2: 0.92}, {0: 0.90, 1: 0.91, 2: 0.89, 3: 0.5}).seeds
    3
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if np.ptp(gaps) < 1e-12:  # the test would divide by their spread
        p = 0.0 if abs(gaps[0]) > 1e-12 else 1.0
    else:
        p = float(ttest_1samp(gaps, 0.0).pvalue)
    return Paired(len(seeds), float(gaps.mean()), p)


def paired_win_tie_loss(
    areas: Mapping[str, Mapping[str, Mapping[int, float]]], method: str
) -> dict[str, Tally]:
    """Compare as `win_tie_loss` does, by the paired test over ``areas[experiment][method][seed]``.

    A method wins where its mean is higher and p < 0.05. Experiments where the two share fewer than
    two seeds do not count.
    """
    return _tallies(areas, method, _paired_verdict)


def labels_needed(n_labelled: Sequence[int], accuracy: Sequence[float], goal: float) -> float:
    """Where the curve first reaches the goal, between rounds by a straight line; NaN if never.

    >>> labels_needed([100, 200, 300], [0.5, 0.7, 0.8], goal=0.6)
    150.0
    """
    points = [(n, a) for n, a in zip(n_labelled, accuracy, strict=True) if math.isfinite(a)]
    for i, (size, value) in enumerate(points):
        if value >= goal:
            below_size, below = points[max(i - 1, 0)]
            part = (goal - below) / (value - below) if i else 0.0
            return below_size + part * (size - below_size)
    return math.nan


def effective_classes(counts: Collection[float]) -> float:
    """How many equally frequent classes would be as diverse: e to the entropy of the shares.

    >>> round(effective_classes([50, 50, 0]), 6)
    2.0
    """
    return float(np.exp(entropy(np.fromiter(counts, float))))


def _tallies(
    rows: Mapping[str, Mapping[str, T]], method: str, verdict: Callable[[T, T], int | None]
) -> dict[str, Tally]:
    others = sorted({name for row in rows.values() for name in row} - {method})
    tallies = {}
    for other in others:
        pairs = [(row[method], row[other]) for row in rows.values() if {method, other} <= set(row)]
        verdicts = [verdict(ours, theirs) for ours, theirs in pairs]
        tallies[other] = Tally(verdicts.count(1), verdicts.count(0), verdicts.count(-1))
    return tallies


def _verdict(ours: Auc, theirs: Auc) -> int | None:
    if math.isnan(ours.std) or math.isnan(theirs.std):
        return None
    return _beats(ours, theirs) - _beats(theirs, ours)


def _beats(one: Auc, other: Auc) -> bool:
    return one.mean - one.std > other.mean + other.std


def _paired_verdict(ours: Mapping[int, float], theirs: Mapping[int, float]) -> int | None:
    result = paired(ours, theirs)
    if result is None:
        return None
    return 0 if result.p >= SIGNIFICANT else 1 if result.difference > 0 else -1
