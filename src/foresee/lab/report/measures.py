"""What the rounds of some trials amount to: curves, areas, labels needed, times, promises."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from foresee.lab.report.statistics import area_under_curve, labels_needed, mean_std
from foresee.lab.store import Trial

GOALS = (0.90, 0.95, 0.99)
# Of a round, in their order; where "score" is not told apart it is a part of "select".
STAGES = ("train", "test", "sample", "score", "select", "promise")


class Metric(NamedTuple):
    """A number that a round measures on the test set."""

    key: str
    label: str
    higher_is_better: bool = False
    unit: Literal["", "%", "points"] = ""


ACCURACY = Metric("accuracy", "Accuracy", higher_is_better=True, unit="%")
GAIN = Metric("gain", "Accuracy above Random", higher_is_better=True, unit="points")
COST = Metric("cost", "Cost")
IN_TARGET = Metric("in_target", "Labels bought in the target", higher_is_better=True, unit="%")
SCRAMBLED = Metric("scrambled", "Labels bought of noise", unit="%")
METRICS = (
    ACCURACY,
    Metric("log_loss", "Log loss"),
    Metric("brier", "Brier loss"),
    Metric("calibration_error", "Calibration error", unit="%"),
    COST,
    IN_TARGET,
    SCRAMBLED,
)
PROMISED = Metric("promise", "Expected fall of the Brier loss by the next batch")
REMAINING = Metric("promise_pool", "Expected remaining fall of the Brier loss")


class Curve(NamedTuple):
    """A metric over the labelled-set size: mean and standard deviation over the seeds there."""

    n_labelled: tuple[int, ...]
    seeds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def curve(trials: Iterable[Trial], metric: Metric) -> Curve | None:
    """Average over the seeds that reached each size; None where nobody measured it."""
    values: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        for round_ in trial.rounds:
            value = getattr(round_, metric.key)
            if value is not None:
                values[round_.n_labelled].append(value)
    return _moments(values)


def gain(trials: Iterable[Trial], random: Iterable[Trial]) -> Curve | None:
    """Accuracy less that of Random with the same seed: what they share cancels out."""
    chance = {(t.seed, r.n_labelled): r.accuracy for t in random for r in t.rounds}
    values: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        for round_ in trial.rounds:
            if (base := chance.get((trial.seed, round_.n_labelled))) is not None:
                values[round_.n_labelled].append(round_.accuracy - base)
    return _moments(values)


def area(trial: Trial, metric: Metric) -> float | None:
    """Area under the curve of a finished trial; None of any other, or where a value is missing."""
    values = [getattr(round_, metric.key) for round_ in trial.rounds]
    if not trial.finished or len(values) < 2 or None in values:
        return None
    found = area_under_curve([round_.n_labelled for round_ in trial.rounds], values)
    return found if math.isfinite(found) else None


class Saturation(NamedTuple):
    """Labels that each method needs for a part of the best accuracy that any reached."""

    part: float
    goal: float
    labels: dict[str, float]


def saturation(curves: Mapping[str, Curve]) -> list[Saturation]:
    """Read the labels off the mean accuracy curves; NaN where the goal is not reached."""
    best = max((a for c in curves.values() for a in c.mean if math.isfinite(a)), default=math.nan)
    return [
        Saturation(
            part,
            part * best,
            {m: labels_needed(c.n_labelled, c.mean, part * best) for m, c in curves.items()},
        )
        for part in GOALS
    ]


def seconds_per_round(trials: Iterable[Trial]) -> dict[str, float]:
    """Mean seconds of each stage over the rounds that chose; the last round only trains."""
    rounds = [round_ for trial in trials for round_ in trial.rounds]
    rounds = [round_ for round_ in rounds if round_.picks] or rounds
    totals: Counter[str] = Counter()
    for round_ in rounds:
        totals.update(dict(round_.seconds))
    return {stage: totals[stage] / len(rounds) for stage in STAGES if stage in totals}


class Kept(NamedTuple):
    """A promise and what came of it: means over seeds at one labelled-set size."""

    n_labelled: int
    promised: float
    fell: float


def promises(trials: Iterable[Trial]) -> list[Kept]:
    """Compare the expected fall of the Brier loss with its fall on the test set a round later."""
    pairs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for trial in trials:
        for now, then in zip(trial.rounds, trial.rounds[1:], strict=False):
            if now.promise is not None:
                pairs[now.n_labelled].append((now.promise, now.brier - then.brier))
    means = {n: [sum(v) / len(v) for v in zip(*values, strict=True)] for n, values in pairs.items()}
    return [Kept(n, promised, fell) for n, (promised, fell) in sorted(means.items())]


def _moments(values: Mapping[int, Collection[float]]) -> Curve | None:
    if not values:
        return None
    sizes = sorted(values)
    moments = [mean_std(values[size]) for size in sizes]
    return Curve(
        tuple(sizes),
        tuple(len(values[size]) for size in sizes),
        tuple(m.mean for m in moments),
        tuple(m.std for m in moments),
    )
