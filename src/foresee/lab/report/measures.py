"""What is known of an experiment: curves, areas, labels needed, times, picks, promises."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from foresee.lab.experiment import Stage
from foresee.lab.report.statistics import (
    Auc,
    Tally,
    area_under_curve,
    labels_needed,
    mean_std,
    paired_win_tie_loss,
    win_tie_loss,
)
from foresee.lab.report.study import Study, methods
from foresee.lab.store import Trial

GOALS = (0.90, 0.95, 0.99)
STAGES: tuple[Stage, ...] = get_args(Stage)


class Metric(NamedTuple):
    """A number that a round measures on the test set."""

    key: str
    label: str
    higher_is_better: bool = False
    unit: Literal["", "%", "points"] = ""


ACCURACY = Metric("accuracy", "Accuracy", higher_is_better=True, unit="%")
GAIN = Metric("gain", "Accuracy above Random", higher_is_better=True, unit="points")
COST = Metric("cost", "Cost")
METRICS = (
    ACCURACY,
    Metric("log_loss", "Log loss"),
    Metric("brier", "Brier loss"),
    Metric("calibration_error", "Calibration error", unit="%"),
    COST,
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


def gain(study: Study, method: str) -> Curve | None:
    """Accuracy less that of Random with the same seed: what they share cancels out."""
    chance = {
        (trial.seed, round_.n_labelled): round_.accuracy
        for trial in study.trials.get("Random", ())
        for round_ in trial.rounds
    }
    values: dict[int, list[float]] = defaultdict(list)
    for trial in study.trials.get(method, ()):
        for round_ in trial.rounds:
            if (base := chance.get((trial.seed, round_.n_labelled))) is not None:
                values[round_.n_labelled].append(round_.accuracy - base)
    return _moments(values)


def areas(study: Study, metric: Metric = ACCURACY) -> dict[str, dict[int, float]]:
    """Area under the curve of every finished trial, by method and seed."""
    found = {
        method: {trial.seed: area for trial in trials if (area := _area(trial, metric)) is not None}
        for method, trials in study.trials.items()
    }
    return {method: by_seed for method, by_seed in found.items() if by_seed}


def aucs(study: Study, metric: Metric = ACCURACY) -> dict[str, Auc]:
    """Mean and standard deviation of the areas over seeds."""
    return {method: mean_std(a.values()) for method, a in areas(study, metric).items()}


Tallies: TypeAlias = dict[str, dict[str, dict[str, Tally]]]
"""Wins, ties and losses by rule ("paper" or "paired"), method and other method."""


def rivals(found: Sequence[Study]) -> Tallies:
    """Compare every method with every other by the paper's rule and by the paired t-test."""
    means = {study.name: aucs(study) for study in found}
    by_seed = {study.name: areas(study) for study in found}
    known = {name for row in means.values() for name in row}
    names = [name for name in methods(t for s in found for t in s.all) if name in known]
    return {
        "paper": {name: win_tie_loss(means, name) for name in names},
        "paired": {name: paired_win_tie_loss(by_seed, name) for name in names},
    }


class Saturation(NamedTuple):
    """Labels that each method needs for a part of the best accuracy that any reached."""

    part: float
    goal: float
    labels: dict[str, float]


def saturation(study: Study) -> list[Saturation]:
    """Read the labels off the mean accuracy curves; NaN where the goal is not reached."""
    curves = {m: c for m, trials in study.trials.items() if (c := curve(trials, ACCURACY))}
    best = max((a for c in curves.values() for a in c.mean if math.isfinite(a)), default=math.nan)
    return [
        Saturation(
            part,
            part * best,
            {m: labels_needed(c.n_labelled, c.mean, part * best) for m, c in curves.items()},
        )
        for part in GOALS
    ]


def seconds_per_round(trials: Iterable[Trial]) -> dict[Stage, float]:
    """Mean seconds of each stage over the rounds that chose; the last round only trains."""
    rounds = [round_ for trial in trials for round_ in trial.rounds]
    rounds = [round_ for round_ in rounds if round_.picks] or rounds
    totals: Counter[Stage] = Counter()
    for round_ in rounds:
        totals.update(dict(round_.seconds))
    return {stage: totals[stage] / len(rounds) for stage in STAGES if stage in totals}


def shares(study: Study) -> dict[str, list[float]]:
    """Shares of the classes among the picks of each method that picked."""
    picked = {method: (counts, sum(counts)) for method, counts in study.picked.items()}
    return {
        m: [count / total for count in counts] for m, (counts, total) in picked.items() if total
    }


def usual_share(known: Mapping[str, list[float]], classes: int) -> list[float]:
    """What the shares are held against: those of Random, or equal ones where it did not run."""
    return known.get("Random", [1 / classes] * classes)


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


def _area(trial: Trial, metric: Metric) -> float | None:
    values = [getattr(round_, metric.key) for round_ in trial.rounds]
    if not trial.finished or len(values) < 2 or None in values:
        return None
    area = area_under_curve([round_.n_labelled for round_ in trial.rounds], values)
    return area if math.isfinite(area) else None


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
