"""Every number of the report as long CSV tables, one value per cell, for any tool to read on."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

from foresee.lab.report import published
from foresee.lab.report.measures import GAIN, METRICS, PROMISED, REMAINING
from foresee.lab.report.rivals import Tallies
from foresee.lab.report.statistics import Auc
from foresee.lab.report.study import Study
from foresee.lab.report.tables import stages

Row: TypeAlias = tuple[Any, ...]
_CURVES = {GAIN: "accuracy_above_random"}
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_UNKNOWN = Auc(math.nan, math.nan)


def csv_files(found: Sequence[Study], tallies: Tallies) -> dict[str, str]:
    """Every table by file name; those of costs and of targets only where they have rows."""
    who = ("experiment", "dataset", "shift", "method")
    auc = (*who, "seeds", "mean_auc", "std_auc", "paper_mean_auc", "paper_std_auc")
    trained = ("restarted_rounds", "bad_rounds")
    per_method = ("experiment", "method")
    shown = stages(found)
    tables: dict[str, tuple[Sequence[str], Iterable[Row]]] = {
        "auc.csv": ((*auc, *trained), _each(found, _aucs)),
        "cost.csv": ((*who, "seeds", "mean_cost", "std_cost"), _each(found, _costs)),
        "target.csv": (
            (*per_method, "share", "seeds", "mean", "std", "of_pool"),
            _each(found, _noted),
        ),
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
        "time.csv": ((*per_method, *shown, "total"), _each(found, partial(_times, shown))),
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
    for name in ("cost.csv", "target.csv"):
        if texts[name].count("\n") == 1:
            del texts[name]
    return texts


def _each(found: Sequence[Study], rows: Callable[[Study], Iterator[Row]]) -> Iterator[Row]:
    for study in found:
        for row in rows(study):
            yield study.name, *row


def _aucs(study: Study) -> Iterator[Row]:
    setup = study.experiment
    for method, auc in study.mean_areas.items():
        theirs = published.auc(setup, method) or _UNKNOWN
        spread = (100 * auc.mean, 100 * auc.std)
        again = sum(trial.method == method and trial.finished for trial, _ in study.restarted)
        figures = (len(study.areas[method]), *spread, *theirs, again, study.bad_rounds[method])
        yield setup.dataset, _shift(study), method, *figures


def _costs(study: Study) -> Iterator[Row]:
    for method, cost in study.mean_costs.items():
        yield study.experiment.dataset, _shift(study), method, len(study.costs[method]), *cost


def _shift(study: Study) -> str:
    return "none" if study.experiment.setting == "noshift" else study.experiment.setting


def _noted(study: Study) -> Iterator[Row]:
    for metric, by_method in study.noted.items():
        for method, share in by_method.items():
            seeds = sum(metric.key in trial.shares for trial in study.trials[method])
            yield method, metric.key, seeds, *share, study.of_pool(metric)


def _wtl(tallies: Tallies) -> Iterator[Row]:
    for rule, by_method in tallies.items():
        for method, others in by_method.items():
            for other, tally in others.items():
                yield rule, method, other, *tally


def _pairs(study: Study) -> Iterator[Row]:
    for one, other in combinations(study.areas, 2):
        if result := study.paired.get((one, other)):
            yield one, other, result.seeds, 100 * result.difference, result.p


def _saturation(study: Study) -> Iterator[Row]:
    for level in study.saturation:
        for method, labels in level.labels.items():
            yield level.part, level.goal, method, labels


def _times(stages: Sequence[str], study: Study) -> Iterator[Row]:
    for method, seconds in study.seconds.items():
        yield method, *(seconds.get(stage) for stage in stages), sum(seconds.values())


def _balance(study: Study) -> Iterator[Row]:
    for method, counts in study.picked.items():
        for label, (count, share) in enumerate(zip(counts, study.shares[method], strict=True)):
            yield method, label, count, share, study.effective_classes[method]


def _curves(study: Study) -> Iterator[Row]:
    for method in study.trials:
        for metric in (*METRICS, PROMISED, REMAINING, GAIN):
            if found := study.curves[metric].get(method):
                for point in zip(*found, strict=True):
                    yield method, _CURVES.get(metric, metric.key), *point


def _health(study: Study) -> Iterator[Row]:
    for trial, at, problem in study.unhealthy:
        where = (trial.method, trial.seed, at.number, at.n_labelled)
        yield *where, at.train_accuracy, at.train_loss, problem


def _text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Leave empty what is not known, and keep names from being taken for formulas."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
