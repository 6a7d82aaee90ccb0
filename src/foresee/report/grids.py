"""Tables to be read: for the terminal and, with booktabs, for LaTeX."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foresee.report import words
from foresee.report.measures import STAGES, Tallies, aucs, saturation, seconds_per_round
from foresee.report.study import Study, methods, studies
from foresee.store import Trial

_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "–": "--",
    words.THIN: r"\,",
}


class Grid(NamedTuple):
    """What a table shows, its columns and its rows; the first ``names`` columns are names."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    names: int = 1


def auc_table(trials: Sequence[Trial]) -> Grid:
    """AUC × 100, mean ± sd over the seeds that finished: experiments by methods."""
    return _auc(studies(trials), methods(trials), "AUC × 100, mean ± sd over seeds")


def tex_files(found: Sequence[Study], names: Sequence[str], tallies: Tallies) -> dict[str, str]:
    """Every table by file name."""
    auc = [
        _auc(group, names, f"AUC × 100, mean ± sd over seeds, {caption}")
        for shift, caption in ((False, "no shift"), (True, "shift"))
        if (group := [study for study in found if study.experiment.shift is shift])
    ]
    return {
        "auc.tex": _tex(auc),
        "win_tie_loss.tex": _tex(_win_tie_loss(tallies)),
        "saturation.tex": _tex([_saturation(found, names)]),
        "time.tex": _tex([_time(found)]),
    }


def labels_text(labels: float, study: Study, method: str) -> str:
    """Labels needed for a goal, in words where it was not reached or met from the start."""
    if math.isnan(labels):
        done = any(trial.finished for trial in study.trials[method])
        return "not reached" if done else "not yet"
    at_start = labels <= study.experiment.n_seed
    return f"≤ {words.count(labels)}" if at_start else words.count(labels)


def _auc(found: Sequence[Study], names: Sequence[str], caption: str) -> Grid:
    rows = []
    for study in found:
        row = {name: words.plus_minus(100 * a.mean, 100 * a.std) for name, a in aucs(study).items()}
        rows.append((study.title, *(row.get(name, words.ABSENT) for name in names)))
    return Grid(caption, ("Experiment", *names), rows)


def _win_tie_loss(tallies: Tallies) -> Iterable[Grid]:
    rules = {"paper": "mean ± sd", "paired": "a paired t-test over seeds, p < 0.05"}
    for rule, by_method in tallies.items():
        caption = f"wins/ties/losses of the row against the column by {rules[rule]}"
        rows = [
            (one, *("" if one == other else "/".join(map(str, row[other])) for other in by_method))
            for one, row in by_method.items()
        ]
        yield Grid(caption, ("", *by_method), rows)


def _saturation(found: Sequence[Study], names: Sequence[str]) -> Grid:
    rows = []
    for study in found:
        for level in saturation(study):
            cells = {
                name: labels_text(labels, study, name) for name, labels in level.labels.items()
            }
            goal = (words.percent(level.part), words.percent(level.goal, 1))
            rows.append((study.title, *goal, *(cells.get(name, words.ABSENT) for name in names)))
    columns = ("Experiment", "Of the best", "Accuracy", *names)
    return Grid("labels needed for a part of the best accuracy", columns, rows)


def _time(found: Sequence[Study]) -> Grid:
    rows = []
    for study in found:
        for name, trials in study.trials.items():
            seconds = seconds_per_round(trials)
            cells = (words.digits(seconds[s]) if s in seconds else words.ABSENT for s in STAGES)
            rows.append((study.title, name, *cells, words.digits(sum(seconds.values()))))
    columns = ("Experiment", "Method", *STAGES, "total")
    return Grid("seconds per round", columns, rows, names=2)


def _tex(grids: Iterable[Grid]) -> str:
    return "\n".join(map(_tabular, grids))


def _tabular(grid: Grid) -> str:
    alignment = "l" * grid.names + "r" * (len(grid.columns) - grid.names)
    lines = (" & ".join(map(_escape, row)) + r" \\" for row in grid.rows)
    return "\n".join(
        (
            f"% {grid.caption}; needs \\usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(map(_escape, grid.columns)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        )
    )


def _escape(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
