"""The tables and curves of results/*.md and docs/methods.md, made from the packed rounds.

A table stands in a page between ``<!-- made: NAME PART ... -->`` and ``<!-- end -->``; `rewrite`
makes all of them anew.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from counted import Counted, Gap, found, gaps, in_paper, ordered, studies
from PIL import Image
from plans import PARTS
from scipy import stats

from foresee.lab.report import published, words
from foresee.lab.report.measures import ACCURACY
from foresee.lab.report.palette import INKS, pens
from foresee.lab.report.statistics import SIGNIFICANT, Auc, paired, win_tie_loss

MADE = re.compile(r"(<!-- made: (\w+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
LEGEND = "†: so many rounds trained a second network; ‡: so many trained badly."
NOTHING = "Too little of it has been run yet."
RIVALS = ("Default", "GreedySure", "BADGE", "MELL", "Random")
CHOOSE = ("sample", "score", "select")


# --- tables -----------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; minus signs are those of a printer."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def signed(value: float, places: int = 2) -> str:
    """A difference.

    >>> signed(-0.5), signed(2)
    ('−0.50', '+2.00')
    """
    return f"{value:+.{places}f}".replace("-", "−")


def _footing(columns: Sequence[Counted], width: int = 1) -> list[list[str]]:
    """Rows that say what the columns above them count."""

    def row(name: str, cells: Iterable[str]) -> list[str]:
        return [name, *(part for cell in cells for part in (cell, *[""] * (width - 1)))]

    def seeds(one: Counted) -> str:
        return words.span([len(by_seed) for by_seed in one.areas.values()])

    def network(one: Counted) -> str:
        setup = one.study.experiment
        return f"{setup.network}, {words.count(setup.recipe.iterations)} iterations"

    lengths = (f"{one.rounds} of {one.study.experiment.rounds + 1}" for one in columns)
    footing = [
        row("*seeds*", map(seeds, columns)),
        row("*rounds*", lengths),
        row("*network*", map(network, columns)),
        row("*trained*", map(_trained, columns)),
        row("*train accuracy at the end*", map(_fit, columns)),
    ]
    if any(one.study.parted for one in columns):
        footing.append(row("*seeds of several first networks*", map(_parted, columns)))
    if any(one.left_out for one in columns):
        footing.append(row("*rounds left out*", (str(one.left_out) for one in columns)))
    if any(one.behind for one in columns):
        footing.append(row("*not so far yet*", (words.few(one.behind) for one in columns)))
    return footing


def _trained(one: Counted) -> str:
    rounds = one.rounds * sum(map(len, one.areas.values()))
    return f"{one.again.total()} again and {one.bad.total()} badly of {words.count(rounds)} rounds"


def _parted(one: Counted) -> str:
    return f"{len(one.study.parted)} of {len(one.study.seeds)}"


def _network(one: Counted) -> str:
    setup = one.study.experiment
    return f"{setup.network}, {words.part(setup.budget)}"


def _fit(one: Counted) -> str:
    return words.ABSENT if one.fit is None else f"{100 * one.fit:.0f} %"


def default_table(
    here: Path, parts: Sequence[str], name: str = "Default", sound: bool = False
) -> str:
    """The default less each other method, experiment by experiment."""
    columns = [one for one in found(here, parts, sound) if name in one.areas]
    noisy = [one for one in columns if one.study.experiment.pool_noise]
    clean = [one for one in columns if one not in noisy]
    return "\n\n".join(_less_table(some, name) for some in (clean, noisy) if some) or NOTHING


def glance_table(here: Path, parts: Sequence[str]) -> str:
    """The default less its rivals, an experiment a row."""
    rivals = ("BADGE", "MELL", "Random")
    rows = []
    for one in found(here, parts):
        tests = gaps(one)
        if not tests.keys() >= set(rivals):
            continue
        seeds = [tests[rival].seeds for rival in rivals]
        cells = (_told(tests[rival]) + one.marks(rival) for rival in rivals)
        title = one.title + one.marks("Default")
        rows.append([title, _network(one), _fit(one), words.span(seeds), *cells])
    head = ["", "network, part of the iterations", "train accuracy at the end", "seeds"]
    return f"{markdown([*head, *(f'less {rival}' for rival in rivals)], rows)}\n\n{LEGEND}"


def first_table(here: Path, parts: Sequence[str]) -> str:
    """What was the default at first, less each other method."""
    return default_table(here, parts, "Greedy4000")


def sound_table(here: Path, parts: Sequence[str]) -> str:
    """The same without the rounds in which a network trained badly, for all methods of its seed."""
    return default_table(here, parts, sound=True)


def _less_table(columns: Sequence[Counted], ours: str) -> str:
    tests = [gaps(one, ours) for one in columns]

    def cell(one: Counted, test: Gap | None, method: str) -> str:
        return words.ABSENT if test is None else _told(test) + one.marks(method)

    def name(method: str) -> str:
        seeds = [test[method].seeds for test in tests if method in test]
        fewer = min(seeds) < max(len(one.areas[ours]) for one in columns)
        return f"{method} (seeds: {words.span(seeds)})" if fewer else method

    areas = (words.plus_minus(*one.means()[ours]) + one.marks(ours) for one in columns)
    rows = [[f"*{ours} itself*", *areas]]
    for method in ordered(m for test in tests for m in test):
        pairs = zip(columns, tests, strict=True)
        rows.append([name(method), *(cell(one, test.get(method), method) for one, test in pairs)])
    return _made(columns, rows)


def _told(test: Gap) -> str:
    """A difference with its interval, in bold where it is sure."""
    told = signed(test.mean)
    if test.seeds > 1:
        told += f" ({signed(test.mean - test.half)} to {signed(test.mean + test.half)})"
    return f"**{told}**" if test.p < SIGNIFICANT else told


def tally_table(here: Path, parts: Sequence[str]) -> str:
    """Wins, ties and losses against some methods, by the paired test, without noise in the pool."""
    columns = [one for one in found(here, parts) if not one.study.experiment.pool_noise]
    tests = {rival: [gaps(one, rival) for one in columns] for rival in RIVALS}

    def cell(method: str, rival: str) -> str:
        known = [test[method] for test in tests[rival] if method in test]
        sure = [gap.mean for gap in known if gap.p < SIGNIFICANT]
        lost = sum(mean > 0 for mean in sure)
        return f"{len(sure) - lost}/{len(known) - len(sure)}/{lost}" if known else words.ABSENT

    methods = ordered(m for one in columns for m in one.areas)
    rows = [[method, *(cell(method, rival) for rival in RIVALS)] for method in methods]
    return markdown(["wins/ties/losses", *(f"against {rival}" for rival in RIVALS)], rows)


def auc_table(here: Path, parts: Sequence[str]) -> str:
    """Areas: in bold the best, and what it does not beat by the paired test."""
    columns = found(here, parts)

    def cell(one: Counted, method: str) -> str:
        if method not in one.areas:
            return words.ABSENT
        means = one.means()
        best = max(means, key=lambda m: means[m].mean)
        test = paired(one.areas[best], one.areas[method])
        top = method == best or (test is not None and test.p >= SIGNIFICANT)
        told = words.plus_minus(*means[method])
        return (f"**{told}**" if top else told) + one.marks(method)

    methods = ordered(m for one in columns for m in one.areas)
    return _made(columns, [[m, *(cell(one, m) for one in columns)] for m in methods])


def _made(columns: Sequence[Counted], rows: Sequence[Sequence[str]]) -> str:
    if not columns:
        return NOTHING
    titles = [one.title for one in columns]
    networks = [f", {one.study.experiment.network}" for one in columns]
    heads = (t + n * (titles.count(t) > 1) for t, n in zip(titles, networks, strict=True))
    table = markdown(["", *heads], [*rows, *_footing(columns)])
    marked = any(one.again or one.bad for one in columns)
    return table + (f"\n\n{LEGEND}" if marked else "")


def paper_table(here: Path, parts: Sequence[str]) -> str:
    """Our areas, the paper's, the difference, and how alike the order of the methods is."""
    known = [(one, in_paper(one)) for one in found(here, parts) if one.whole]
    sets: dict[str, list[tuple[Counted, dict[str, Auc]]]] = {}
    for one, theirs in known:
        if theirs:
            sets.setdefault(one.study.experiment.dataset, []).append((one, theirs))
    return "\n\n".join(map(_paper_table, sets.values())) or NOTHING


def _paper_table(columns: Sequence[tuple[Counted, dict[str, Auc]]]) -> str:
    head = [""]
    for one, _ in columns:
        head += [f"{one.title}: ours", "paper", "ours less paper"]
    rows = []
    for method in ordered(m for one, _ in columns for m in one.areas):
        row = [method]
        for one, theirs in columns:
            ours = one.means().get(method)
            told = words.ABSENT if ours is None else words.plus_minus(*ours) + one.marks(method)
            row += [told, words.plus_minus(*theirs[method]) if method in theirs else words.ABSENT]
            row += [signed(ours.mean - theirs[method].mean)] if ours and method in theirs else [""]
        rows.append(row)
    alike = ["*order, Spearman’s ρ*"]
    for one, theirs in columns:
        alike += [spearman(one.means(), theirs), "", ""]
    footing = _footing([one for one, _ in columns], width=3)
    marked = any(one.again or one.bad for one, _ in columns)
    return markdown(head, [*rows, alike, *footing]) + (f"\n\n{LEGEND}" if marked else "")


def spearman(ours: Mapping[str, Auc], theirs: Mapping[str, Auc]) -> str:
    """Rank correlation of the methods that both have.

    >>> some = {"a": Auc(1, 0), "b": Auc(2, 0), "c": Auc(3, 0)}
    >>> spearman(some, some)
    '1.00 of 3 methods'
    """
    both = [method for method in ours if method in theirs]
    if len(both) < 3:
        return words.ABSENT
    figures = ([figure[method].mean for method in both] for figure in (ours, theirs))
    return f"{stats.spearmanr(*figures).statistic:.2f} of {len(both)} methods".replace("-", "−")


def beside_table(here: Path, parts: Sequence[str]) -> str:
    """How far our areas are from the paper's, and how alike the orders are, an experiment a row."""
    rows = []
    for one in found(here, parts):
        means, theirs = one.means(), in_paper(one) if one.whole else {}
        if not theirs:
            continue
        far = sorted((means[m].mean - theirs[m].mean, m) for m in theirs)
        ends = (f"{signed(less)} ({method})" for less, method in (far[-1], far[0]))
        seeds = [len(one.areas[m]) for m in theirs]
        told = [words.span(seeds), *ends, spearman(means, theirs), _trained(one)]
        rows.append([one.title, _network(one), *told])
    head = ["", "network, part of the iterations", "seeds", "highest", "lowest"]
    return markdown([*head, "order, Spearman’s ρ", "trained"], rows) if rows else NOTHING


def rivals_table(here: Path, parts: Sequence[str]) -> str:
    """Wins, ties and losses of MELL by the paper's rule, in the paper and here, part by part."""
    whole: dict[str, dict[str, Auc]] = {}
    for (dataset, shift, method), auc in published.aucs().items():
        whole.setdefault(f"{dataset} {shift}", {})[method] = auc
    columns = {"paper, all 14": win_tie_loss(whole, "MELL")}
    notes = []
    for part in parts:
        both = {one: in_paper(one) for one in found(here, [part]) if one.whole}
        both = {one: theirs for one, theirs in both.items() if "MELL" in theirs}
        if not both:
            continue
        ours = {one.title: {m: one.means()[m] for m in theirs} for one, theirs in both.items()}
        theirs = {one.title: figures for one, figures in both.items()}
        columns[f"{part}: paper"] = win_tie_loss(theirs, "MELL")
        columns[f"{part}: ours"] = win_tie_loss(ours, "MELL")
        notes.append(f"{part}: {'; '.join(f'{one.title}, {_trained(one)}' for one in both)}.")

    def cells(method: str) -> list[str]:
        told = (column.get(method) for column in columns.values())
        return ["/".join(map(str, tally)) if tally else words.ABSENT for tally in told]

    rows = [[f"against {m}", *cells(m)] for m in ordered(columns["paper, all 14"])]
    return "\n\n".join([markdown(["MELL wins/ties/losses", *columns], rows), *notes])


def bought_table(here: Path, parts: Sequence[str]) -> str:
    """What share of the labels was bought in a narrow target, and of noise."""
    columns = [
        (one, metric, shares)
        for one in found(here, parts)
        for metric, shares in one.study.noted.items()
    ]
    if not columns:
        return NOTHING
    head = ["% of the labels", *(f"{one.title}: {_what[m.key]}" for one, m, _ in columns)]
    rows = [
        [method, *(f"{100 * s[method].mean:.0f}" if method in s else words.ABSENT
                   for _, _, s in columns)]
        for method in ordered(m for _, _, shares in columns for m in shares)
    ]  # fmt: skip
    pool = ["*of the pool*", *(f"{100 * one.study.of_pool(m):.0f}" for one, m, _ in columns)]
    trained = ["*trained*", *(_trained(one) for one, *_ in columns)]
    return markdown(head, [*rows, pool, trained])


_what = {"in_target": "in the target", "scrambled": "noise"}


def time_table(here: Path, parts: Sequence[str]) -> str:
    """Seconds of a round to train, and to draw, score and choose."""
    columns = found(here, parts)
    if not columns:
        return NOTHING

    def seconds(one: Counted, method: str, stages: Sequence[str]) -> str:
        spent = one.study.seconds.get(method)
        return words.digits(sum(spent.get(s, 0) for s in stages), 2) if spent else words.ABSENT

    rows = [
        [method, *(seconds(one, method, CHOOSE) for one in columns)]
        for method in ordered(m for one in columns for m in one.areas)
    ]
    training = [[s["train"] for s in one.study.seconds.values() if "train" in s] for one in columns]
    median = ["*training*", *(words.digits(float(np.median(s)), 2) for s in training)]
    trained = ["*trained*", *map(_trained, columns)]
    return markdown(["seconds a round", *(one.title for one in columns)], [*rows, median, trained])


def subset_table(here: Path, parts: Sequence[str]) -> str:
    """Scores on a random subset of the pool, on the whole pool, and the difference."""
    columns = found(here, parts)
    if not columns:
        return NOTHING
    head, rows = [""], [[method] for method in ("MELL", "BALD", "Entropy_MC", "Entropy")]
    random = ["Random"]
    for one in columns:
        means, setup = one.means(), one.study.experiment
        head += [f"{one.title}: of {setup.candidates}", f"of {setup.n_pool}", "difference"]
        for row in rows:
            some, whole = f"{row[0]}_subset", row[0]
            if some not in means:
                some, whole = row[0], f"{row[0]}_whole"
            told = (words.plus_minus(*means[m]) + one.marks(m) for m in (some, whole))
            row += [*told, _told(gaps(one, some)[whole])]
        random += [words.plus_minus(*means["Random"]) + one.marks("Random"), "", ""]
    return markdown(head, [*rows, random, *_footing(columns, width=3)])


def budget_table(here: Path, parts: Sequence[str]) -> str:
    """How many networks left their plateau at which budget."""
    rows = []
    for part in parts:
        if (path := here / part / "budget.json").exists():
            rows += [[part, *_tried(one)] for one in json.loads(path.read_text())["found"]]
    if not rows:
        return NOTHING
    head = ["", "budget", "iterations", "labels", "left the plateau", "train accuracy, median"]
    return markdown(head, rows)


def _tried(one: Mapping[str, Any]) -> list[str]:
    usual = f"{100 * np.median(one['train_accuracy']):.1f} %"
    sizes = [str(one["budget"]), words.count(one["iterations"]), words.count(one["labels"])]
    return [*sizes, f"{one['left']} of {one['of']}", usual]


def longer_table(here: Path, parts: Sequence[str]) -> str:
    """The areas of the same methods and seeds at two budgets."""
    pairs = [
        (one, other)
        for one in found(here, parts[:1])
        for other in found(here, parts[1:])
        if one.title == other.title
    ]
    rows = []
    for one, other in pairs:
        for method in ordered(one.areas.keys() & other.areas.keys()):
            for seed in sorted(one.areas[method].keys() & other.areas[method].keys()):
                areas = [f"{c.areas[method][seed]:.2f}" for c in (one, other)]
                rows.append([f"{one.title}, {method}, seed {seed}", *areas])
        rows.append([f"*{one.title}: trained*", _trained(one), _trained(other)])
    if not rows:
        return NOTHING
    budgets = [f"{words.part(c.study.experiment.budget)} of the iterations" for c in pairs[0]]
    return markdown(["AUC × 100", *budgets], rows)


def status_table(here: Path, parts: Sequence[str]) -> str:
    """How many of the planned rounds are packed, and of which trials all are."""
    rows = []
    for part, plans in PARTS.items():
        jobs = [job for plan in plans for group in plan.groups() for job in group]
        planned = sum(job.experiment.rounds + 1 for job in jobs)
        trials = [trial for study in studies(here, part) for trial in study.all]
        done = sum(len(trial.rounds) for trial in trials)
        whole = sum(trial.finished for trial in trials)
        rows.append([part, f"{whole} of {len(jobs)}", f"{done} of {planned}"])
    return markdown(["part", "trials finished", "rounds"], rows)


def curves(here: Path, parts: Sequence[str]) -> str:
    """The picture of each part."""
    shown = [part for part in parts if found(here, [part])]
    return "\n".join(f"![Accuracy over labels: {part}](curves/{part}.png)" for part in shown)


TABLES: dict[str, Callable[[Path, Sequence[str]], str]] = {
    "glance": glance_table,
    "default": default_table,
    "first": first_table,
    "sound": sound_table,
    "tally": tally_table,
    "auc": auc_table,
    "paper": paper_table,
    "beside": beside_table,
    "rivals": rivals_table,
    "bought": bought_table,
    "time": time_table,
    "subset": subset_table,
    "budget": budget_table,
    "longer": longer_table,
    "status": status_table,
    "curves": curves,
}


# --- the page ---------------------------------------------------------------------------------


def made(here: Path, text: str) -> str:
    """The page's text with all its tables made anew."""

    def table(match: re.Match[str]) -> str:
        begin, name, parts, end = match.groups()
        return f"{begin}{TABLES[name](here, parts.split())}\n{end}"

    return MADE.sub(table, text)


def rewrite(here: Path) -> None:
    """Make the tables of the pages anew, and the curves of every part that they show."""
    for path in pages(here):
        text = path.read_text()
        for name, parts in ((match[2], match[3].split()) for match in MADE.finditer(text)):
            for part in parts if name == "curves" else ():
                if columns := found(here, [part]):
                    draw(columns, here / "curves" / f"{part}.png")
        path.write_text(made(here, text))


def pages(here: Path) -> list[Path]:
    """Those with made tables."""
    return [here / "README.md", here / "studies.md", here.parent / "docs" / "methods.md"]


def draw(columns: Sequence[Counted], path: Path) -> None:
    """Accuracy over labels, an experiment a panel; bands of one deviation where they are few."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    across = min(3, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(4.2 * across, 3.2 * down + 0.6), dpi=110, layout="constrained")
    methods = ordered(m for one in columns for m in one.areas)
    colours = pens(methods)
    for place, one in enumerate(columns, start=1):
        axes = figure.add_subplot(down, across, place)
        axes.set_title(one.title, loc="left", fontsize="medium")
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.spines[["top", "right"]].set_visible(False)
        for method in ordered(one.areas):
            curve, pen = one.study.curves[ACCURACY][method], colours[method]
            mean, deviation = 100 * np.array(curve.mean), 100 * np.nan_to_num(curve.std)
            width = 2.4 if method == "Default" else 1.1
            (line,) = axes.plot(
                curve.n_labelled, mean, color=INKS[pen.ink].light, label=method, lw=width
            )
            if pen.dash:
                line.set_dashes(pen.dash)
            if len(methods) < 10:
                low, high = np.clip([mean - deviation, mean + deviation], 0, 100)
                axes.fill_between(curve.n_labelled, low, high, color=line.get_color(), alpha=0.1)
    for axes in figure.axes[-across:]:
        axes.set_xlabel("labels")
    figure.axes[0].set_ylabel("test accuracy, %")
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    inches = 0.4 + 0.08 * max(map(len, methods))  # of the longest name
    names = min((3, 6, 8)[across - 1], int(4.2 * across / inches))  # in a row
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=names, frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn)
    few = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}  # a third of the file
    Image.open(drawn).convert("RGB").quantize(**few).save(path)
