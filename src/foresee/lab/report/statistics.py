"""The paper's numbers: area under the learning curve, and who wins against whom.

SciPy takes half a second to load, and whoever only draws does without.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

SIGNIFICANT = 0.05


def area_under_curve(n_labelled: Sequence[int], accuracy: Sequence[float]) -> float:
    """Mean height of a learning curve: composite Simpson's rule, divided by the labels bought.

    Where a pool ran out, the last step is shorter and is added as a trapezoid: a parabola through
    steps of two lengths can leave the curve by far.

    Args:
        n_labelled: labelled-set sizes [k], ascending, at least two.
        accuracy: what was measured at each of them [k].

    Returns:
        The area over the width, on the scale of ``accuracy``.

    >>> round(area_under_curve([100, 150, 200], [0.5, 0.7, 0.8]), 4)
    0.6833
    """
    from scipy.integrate import simpson

    *steps, last = np.diff(n_labelled)
    ran_out = last < min(steps, default=0)
    even = len(n_labelled) - int(ran_out)
    area = float(simpson(accuracy[:even], x=n_labelled[:even]))
    if ran_out:
        area += last * (accuracy[-1] + accuracy[-2]) / 2
    return area / (n_labelled[-1] - n_labelled[0])


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
    with np.errstate(all="ignore"):  # an infinite loss has an infinite mean and no deviation
        std = float(array.std(ddof=1)) if len(array) > 1 else math.nan
        return Auc(float(array.mean()), std)


class Tally(NamedTuple):
    """How often a method won, tied and lost."""

    wins: int
    ties: int
    losses: int


def tally(verdicts: Iterable[int | None]) -> Tally:
    """Count verdicts: 1 won, 0 tied, -1 lost, None does not count.

    >>> tally([1, 1, 0, None])
    Tally(wins=2, ties=1, losses=0)
    """
    counts = Counter(verdicts)
    return Tally(counts[1], counts[0], counts[-1])


def verdict(ours: Auc, theirs: Auc) -> int | None:
    """Compare two methods by the paper's rule; None where one seed has no deviation.

    >>> verdict(Auc(90.0, 1.0), Auc(87.0, 1.0)), verdict(Auc(90.0, 1.0), Auc(89.0, 1.0))
    (1, 0)
    """
    if math.isnan(ours.std) or math.isnan(theirs.std):
        return None
    return _beats(ours, theirs) - _beats(theirs, ours)


def win_tie_loss(aucs: Mapping[str, Mapping[str, Auc]], method: str) -> dict[str, Tally]:
    """Compare a method with every other, by the paper's rule.

    A method wins an experiment if its mean − sd is above the other's mean + sd; if neither does,
    they tie. Experiments that one of the two did not finish do not count, nor do those with one
    seed, which have no sd.

    Args:
        aucs: mean and deviation by experiment, then by method.
        method: whose wins are counted.

    Returns:
        Wins, ties and losses by the other method, in alphabetical order.

    >>> aucs = {"digits": {"MELL": Auc(85.1, 1.6), "Random": Auc(81.6, 1.8)}}
    >>> win_tie_loss(aucs, "MELL")
    {'Random': Tally(wins=1, ties=0, losses=0)}
    """
    others = sorted({name for row in aucs.values() for name in row} - {method})
    return {
        other: tally(
            verdict(row[method], row[other]) for row in aucs.values() if {method, other} <= set(row)
        )
        for other in others
    }


class Paired(NamedTuple):
    """Two methods on the seeds that both finished: the mean difference and its p-value."""

    seeds: int
    difference: float
    p: float

    @property
    def verdict(self) -> int:
        """Whoever has the higher mean wins where p < 0.05."""
        return 0 if self.p >= SIGNIFICANT else 1 if self.difference > 0 else -1


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Two-sided paired t-test of two methods' AUCs by seed; None with fewer than two in common.

    >>> paired({0: 0.91, 1: 0.93, 2: 0.92}, {0: 0.90, 1: 0.91, 2: 0.89, 3: 0.5}).seeds
    3
    """
    from scipy.stats import ttest_1samp

    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if np.ptp(gaps) < 1e-12:  # the test would divide by their spread
        p = 0.0 if abs(gaps[0]) > 1e-12 else 1.0
    else:
        p = float(ttest_1samp(gaps, 0.0).pvalue)
    return Paired(len(seeds), float(gaps.mean()), p)


def pairs(areas: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, str], Paired]:
    """Test every two methods of ``areas[method][seed]`` once; a pair is found either way round."""
    found = {}
    for one, other in combinations(areas, 2):
        if result := paired(areas[one], areas[other]):
            found[one, other] = result
            found[other, one] = result._replace(difference=-result.difference)
    return found


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
    from scipy.stats import entropy

    return float(np.exp(entropy(np.fromiter(counts, float))))


def _beats(one: Auc, other: Auc) -> bool:
    return one.mean - one.std > other.mean + other.std
