"""Every number of the report as long CSV tables, one value per cell, for any tool to read on."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from foresee.lab.report import published
from foresee.lab.report.caveats import unhealthy
from foresee.lab.report.measures import (
    ACCURACY,
    COST,
    METRICS,
    PROMISED,
    REMAINING,
    STAGES,
    Metric,
    Tallies,
    areas,
    curve,
    gain,
    saturation,
    seconds_per_round,
)
from foresee.lab.report.statistics import effective_classes, mean_std, paired
from foresee.lab.report.study import Study

Row: TypeAlias = tuple[Any, ...]


def csv_files(found: Sequence[Study], tallies: Tallies) -> dict[str, str]:
    """Every table by file name; that of costs only where costs were counted."""
    who = ("experiment", "dataset", "shift", "method")
    auc = (*who, "seeds", "mean_auc", "std_auc", "paper_mean_auc", "paper_std_auc")
    per_method = ("experiment", "method")
    tables: dict[str, tuple[Sequence[str], Iterable[Row]]] = {
        "auc.csv": (auc, _each(found, _aucs)),
        "cost.csv": ((*who, "seeds", "mean_cost", "std_cost"), _each(found, _costs)),
        "win_tie_loss.csv": (
            ("rule", "method", "against", "wins", "ties", "losses"),
            _wtl(tallies),
        ),
        "paired.csv": (
            ("experiment", "method", "against", "seeds", "mean_difference", "p"),
            _each(found, _pairs),
        ),
        "saturation.csv": (
            ("experiment", "part_of_best", "accuracy", "method", "labels"),
            _each(found, _saturation),
        ),
        "time.csv": ((*per_method, *STAGES, "total"), _each(found, _times)),
        "balance.csv": (
            (*per_method, "class", "picks", "share", "effective_classes"),
            _each(found, _balance),
        ),
        "curves.csv": (
            (*per_method, "metric", "n_labelled", "seeds", "mean", "std"),
            _each(found, _curves),
        ),
        "health.csv": (
            (*per_method, "seed", "round", "n_labelled", "train_accuracy", "train_loss", "problem"),
            _each(found, _health),
        ),
    }
    texts = {name: _text(columns, rows) for name, (columns, rows) in tables.items()}
    if texts["cost.csv"].count("\n") == 1:
        del texts["cost.csv"]
    return texts


def _each(found: Sequence[Study], rows: Callable[[Study], Iterator[Row]]) -> Iterator[Row]:
    for study in found:
        for row in rows(study):
            yield study.name, *row


def _aucs(study: Study) -> Iterator[Row]:
    dataset, shift = study.experiment.dataset, study.experiment.shift
    for row in _areas(study, ACCURACY, scale=100):
        theirs = published.aucs().get((dataset.lower(), shift, row[2]), (math.nan, math.nan))
        yield *row, *theirs


def _costs(study: Study) -> Iterator[Row]:
    yield from _areas(study, COST, scale=1)


def _areas(study: Study, metric: Metric, scale: int) -> Iterator[Row]:
    where = (study.experiment.dataset, "shift" if study.experiment.shift else "none")
    for method, by_seed in areas(study, metric).items():
        mean, std = mean_std(by_seed.values())
        yield *where, method, len(by_seed), scale * mean, scale * std


def _wtl(tallies: Tallies) -> Iterator[Row]:
    for rule, by_method in tallies.items():
        for method, others in by_method.items():
            for other, tally in others.items():
                yield rule, method, other, *tally


def _pairs(study: Study) -> Iterator[Row]:
    by_method = areas(study)
    for one, other in combinations(by_method, 2):
        if result := paired(by_method[one], by_method[other]):
            yield one, other, result.seeds, 100 * result.difference, result.p


def _saturation(study: Study) -> Iterator[Row]:
    for level in saturation(study):
        for method, labels in level.labels.items():
            yield level.part, level.goal, method, labels


def _times(study: Study) -> Iterator[Row]:
    for method, trials in study.trials.items():
        seconds = seconds_per_round(trials)
        yield method, *(seconds.get(stage) for stage in STAGES), sum(seconds.values())


def _balance(study: Study) -> Iterator[Row]:
    for method, counts in study.picked.items():
        if total := sum(counts):
            effective = effective_classes(counts)
            for label, count in enumerate(counts):
                yield method, label, count, count / total, effective


def _curves(study: Study) -> Iterator[Row]:
    for method, trials in study.trials.items():
        for metric in (*METRICS, PROMISED, REMAINING):
            if found := curve(trials, metric):
                for point in zip(*found, strict=True):
                    yield method, metric.key, *point
        if above := gain(study, method):
            for point in zip(*above, strict=True):
                yield method, "accuracy_above_random", *point


def _health(study: Study) -> Iterator[Row]:
    for bad in unhealthy(study):
        at = bad.round
        where = (bad.trial.method, bad.trial.seed, at.number, at.n_labelled)
        yield *where, at.train_accuracy, at.train_loss, bad.problem


def _text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Empty cells stand for what is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        unknown = (isinstance(cell, float) and math.isnan(cell) for cell in row)
        writer.writerow("" if no else cell for cell, no in zip(row, unknown, strict=True))
    return text.getvalue()
