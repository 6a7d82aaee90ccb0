"""Tables to be read: for the terminal and, with booktabs, for LaTeX."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foresee.lab.report import published, words
from foresee.lab.report.measures import STAGES
from foresee.lab.report.rivals import Tallies
from foresee.lab.report.study import Study, methods

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


class Table(NamedTuple):
    """What a table shows, its columns and its rows; the first ``names`` columns are names."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1


def auc_table(found: Sequence[Study]) -> Table:
    """AUC × 100, mean ± sd over the seeds that finished: experiments by methods."""
    names = methods(trial for study in found for trial in study.all)
    return _auc(found, names, "AUC × 100, mean ± sd over seeds")


def stages(found: Sequence[Study]) -> list[str]:
    """The columns of the times: "score" only where it was told apart from "select"."""
    known = {stage for study in found for seconds in study.seconds.values() for stage in seconds}
    return [stage for stage in STAGES if stage != "score" or stage in known]


def tex_files(found: Sequence[Study], names: Sequence[str], tallies: Tallies) -> dict[str, str]:
    """Every table by file name; one that has no rows is left out."""
    what = "AUC × 100, mean ± sd over seeds, the paper's under ours"
    auc = [
        _auc(group, names, f"{what}, {caption}", with_paper=True)
        for caption, group in by_setting(found).items()
    ]
    tables = {
        "auc.tex": auc,
        "cost.tex": [_cost(found, names)],
        "target.tex": [_noted(found)],
        "win_tie_loss.tex": list(_win_tie_loss(tallies)),
        "saturation.tex": [_saturation(found, names)],
        "time.tex": [_time(found)],
        "balance.tex": [_balance(found)],
        "health.tex": [_health(found)],
    }
    return {
        name: "\n".join(map(_tabular, some))
        for name, some in tables.items()
        if any(table.rows for table in some)
    }


def by_setting(found: Sequence[Study]) -> dict[str, list[Study]]:
    """The studies of each setting that some are of, with what it is called."""
    captions = {"noshift": "no shift", "shift": "shift", "narrow": "narrow target"}
    groups = {c: [s for s in found if s.experiment.setting == key] for key, c in captions.items()}
    return {caption: group for caption, group in groups.items() if group}


def moved_text(share: list[float], usual: list[float]) -> str:
    """Say what part of the picks went to other classes than is usual."""
    if share is usual:
        return words.ABSENT
    return words.percent(sum(abs(a - b) for a, b in zip(share, usual, strict=True)) / 2)


def labels_text(labels: float, study: Study, method: str) -> str:
    """Labels needed for a goal, in words where it was not reached or met from the start."""
    if math.isnan(labels):
        done = any(trial.finished for trial in study.trials[method])
        return "not reached" if done else "not yet"
    at_start = labels <= study.experiment.n_seed
    return f"≤ {words.count(labels)}" if at_start else words.count(labels)


def _auc(
    found: Sequence[Study], names: Sequence[str], caption: str, with_paper: bool = False
) -> Table:
    rows = []
    for study in found:
        row = {
            name: words.plus_minus(100 * a.mean, 100 * a.std) + " *" * (study.bad_rounds[name] > 0)
            for name, a in study.mean_areas.items()
        }
        rows.append((study.title, *(row.get(name, words.ABSENT) for name in names)))
        theirs = [published.auc(study.experiment, name) for name in names if with_paper]
        if any(theirs):
            cells = (words.plus_minus(*auc) if auc else words.ABSENT for auc in theirs)
            rows.append(("in the paper", *cells))
    if any(study.bad_rounds for study in found):
        caption += "; *: some of its rounds trained badly"
    return Table(caption, ("Experiment", *names), rows)


def _cost(found: Sequence[Study], names: Sequence[str]) -> Table:
    rows = []
    for study in found:
        if row := {name: words.plus_minus(*cost, 3) for name, cost in study.mean_costs.items()}:
            rows.append((study.title, *(row.get(name, words.ABSENT) for name in names)))
    return Table(
        "mean cost over the labels bought, mean ± sd over seeds", ("Experiment", *names), rows
    )


def _noted(found: Sequence[Study]) -> Table:
    """Shares of the labels bought that are in the target or noise: all, first and last batch."""
    rows = []
    for study in found:
        for metric, by_method in study.noted.items():
            for name, share in by_method.items():
                batches = study.curves[metric][name].mean
                parts = (study.of_pool(metric), batches[0], batches[-1])
                cells = (words.percent(part, 1) for part in parts)
                all_ = words.plus_minus(100 * share.mean, 100 * share.std, 1)
                rows.append((study.title, name, metric.label, all_, *cells))
    columns = ("Experiment", "Method", "Share", "All, %", "Of the pool", "First", "Last")
    return Table("shares of the labels bought, all and by batch", columns, rows, names=3)


def _win_tie_loss(tallies: Tallies) -> Iterable[Table]:
    rules = {"paper": "mean ± sd", "paired": "a paired t-test over seeds, p < 0.05"}
    for rule, by_method in tallies.items():
        caption = f"wins/ties/losses of the row against the column by {rules[rule]}"
        rows = [
            (one, *("" if one == other else "/".join(map(str, row[other])) for other in by_method))
            for one, row in by_method.items()
        ]
        yield Table(caption, ("", *by_method), rows)


def _saturation(found: Sequence[Study], names: Sequence[str]) -> Table:
    rows = []
    for study in found:
        for level in study.saturation:
            cells = {
                name: labels_text(labels, study, name) for name, labels in level.labels.items()
            }
            goal = (words.percent(level.part), words.percent(level.goal, 1))
            rows.append((study.title, *goal, *(cells.get(name, words.ABSENT) for name in names)))
    columns = ("Experiment", "Of the best", "Accuracy", *names)
    return Table("labels needed for a part of the best accuracy", columns, rows)


def _time(found: Sequence[Study]) -> Table:
    shown = stages(found)
    rows = []
    for study in found:
        for name, seconds in study.seconds.items():
            cells = (words.digits(seconds[s]) if s in seconds else words.ABSENT for s in shown)
            rows.append((study.title, name, *cells, words.digits(sum(seconds.values()))))
    return Table("seconds per round", ("Experiment", "Method", *shown, "total"), rows, names=2)


def _balance(found: Sequence[Study]) -> Table:
    rows = []
    for study in found:
        for name, share in study.shares.items():
            effective = f"{study.effective_classes[name]:.1f} of {study.experiment.classes}"
            rows.append((study.title, name, effective, moved_text(share, study.usual_share)))
    caption = "classes among the picks: as many equally frequent ones are as diverse; part of the"
    caption += " picks that went to other classes than Random's, or than equal shares without it"
    return Table(caption, ("Experiment", "Method", "Effective classes", "Moved"), rows, names=2)


def _health(found: Sequence[Study]) -> Table:
    rows = []
    for study in found:
        for bad in study.unhealthy:
            trial, at, problem = bad
            where = (str(trial.seed), str(at.number), words.count(at.n_labelled))
            train = (words.percent(bad.train_accuracy, 1), words.digits(bad.train_loss))
            accuracy = words.percent(at.accuracy, 1)
            rows.append((study.title, trial.method, problem, *where, *train, accuracy))
    columns = ("Experiment", "Method", "Problem", "Seed", "Round", "Labels")
    measures = ("Train accuracy", "Train loss", "Test accuracy")
    return Table("badly trained rounds", (*columns, *measures), rows, names=3)


def _tabular(table: Table) -> str:
    alignment = "l" * table.names + "r" * (len(table.columns) - table.names)
    lines = (" & ".join(map(_escape, row)) + r" \\" for row in table.rows)
    return "\n".join(
        (
            f"% {table.caption}; needs \\usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(map(_escape, table.columns)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        )
    )


def _escape(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
