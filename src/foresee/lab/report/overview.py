"""The page's parts about all experiments: areas, who wins, health, and what was run."""

from collections.abc import Iterable, Mapping, Sequence

from foresee.lab.report import published, words
from foresee.lab.report.caveats import absent, not_begun, shortened, unfinished, unhealthy
from foresee.lab.report.markup import e, named, note, table, td
from foresee.lab.report.measures import COST, Tallies, areas, aucs
from foresee.lab.report.palette import Pen
from foresee.lab.report.statistics import Auc, Tally, mean_std, win_tie_loss
from foresee.lab.report.study import Study


def auc_tables(found: Sequence[Study], pens: Mapping[str, Pen]) -> str:
    """The paper's two tables, its own figures under ours."""
    parts = []
    for shift, caption in ((False, "Without shift"), (True, "With shift")):
        group = [study for study in found if study.experiment.shift is shift]
        if any(aucs(study) for study in group):
            rows = [(e(study.experiment.dataset), *_auc_cells(study, pens)) for study in group]
            parts.append(table(_heads("Data set", pens), rows, caption, "auc"))
    return "".join(parts) or note("No trial is finished yet.")


def cost_table(found: Sequence[Study], pens: Mapping[str, Pen]) -> str:
    """Mean cost over the labels bought, where a loss matrix was given."""
    rows = []
    for study in found:
        if row := aucs(study, COST):
            best = min(row.values())
            cells = (_cost_cell(row[m], row[m] == best) if m in row else words.ABSENT for m in pens)
            rows.append((e(study.title), *cells))
    return table(_heads("Experiment", pens), rows, "Cost, lower is better", "auc") if rows else ""


def rival_tables(tallies: Tallies, pens: Mapping[str, Pen]) -> str:
    """Wins, ties and losses by both rules."""
    if not any(sum(tally) for row in tallies["paper"].values() for tally in row.values()):
        return note("There are not two methods with two finished seeds each yet.")
    captions = {"paper": "By the paper’s rule", "paired": "By a paired t-test over seeds"}
    return "".join(_rival_table(tallies[rule], pens, text) for rule, text in captions.items())


def seeds_compared(found: Sequence[Study]) -> str:
    """How many finished seeds the comparisons stand on."""
    numbers = [len(by_seed) for study in found for by_seed in areas(study).values()]
    return words.span(numbers) if numbers else "0"


def health_table(found: Sequence[Study], pens: Mapping[str, Pen], at_most: int = 50) -> str:
    """Every badly trained round, up to a number that can still be read."""
    bad = [each for study in found for each in unhealthy(study)]
    if not bad:
        recorded = any(r.train_loss is not None for s in found for t in s.all for r in t.rounds)
        return note(
            "No round looks badly trained." if recorded else "No training health was recorded."
        )
    rows = [
        (
            e(each.study.title),
            td(named(each.trial.method, pens[each.trial.method]), "text"),
            str(each.trial.seed),
            str(each.round.number),
            words.count(each.round.n_labelled),
            words.percent(_known(each.round.train_accuracy), 1),
            words.digits(_known(each.round.train_loss)),
            words.percent(each.round.accuracy, 1),
            td(e(each.problem), "text"),
        )
        for each in bad[:at_most]
    ]
    head = ("Experiment", "Method", "Seed", "Round", "Labels", "Train accuracy", "Train loss")
    more = (
        f"The first {at_most} of {len(bad)}; all are in health.csv." if len(bad) > at_most else ""
    )
    return table((*head, "Test accuracy", "Problem"), rows, kind="health") + note(more)


def run_table(found: Sequence[Study]) -> str:
    """The sizes of every experiment and how far it has come."""
    rows = []
    for study in found:
        setup = study.experiment
        finished = len(study.all) - len(unfinished(study))
        rows.append(
            (
                e(study.title),
                td(e(words.ranges(study.seeds)), "text"),
                f"{finished} of {len(study.all)}",
                f"{words.count(setup.n_seed)} + {setup.rounds} × {words.count(setup.n_query)}",
                words.count(setup.n_pool),
                td(e(setup.network), "text"),
                words.count(setup.recipe.iterations),
                td(e(shortened(study) or "full training"), "text"),
                td(e(", ".join(_devices(study)) or words.ABSENT), "text"),
            )
        )
    head = ("Experiment", "Seeds", "Trials finished", "Labels", "Pool", "Network", "Iterations")
    return table((*head, "Training", "Device"), rows, kind="run")


def missing_list(found: Sequence[Study], methods: Sequence[str]) -> str:
    """Name the trials that a reader would look for in vain."""
    items = []
    for study in found:
        total = study.experiment.rounds + 1
        parts = [
            f"{t.method} seed {t.seed} is at {len(t.rounds)} of {total} rounds"
            for t in unfinished(study)
            if t.rounds
        ]
        parts += [f"{m}{_seeds(seeds)} not begun" for m, seeds in not_begun(study).items()]
        for method, seeds in absent(study, methods).items():
            which = _seeds(seeds) if method in study.trials else ""
            parts.append(f"{method}{which} absent")
        if parts:
            items.append(f"<li><b>{e(study.title)}</b>: {e('; '.join(parts))}.</li>")
    return f'<ul class="missing">{"".join(items)}</ul>' if items else note("Nothing is missing.")


def _seeds(some: Sequence[int]) -> str:
    return f" seed{'s' * (len(some) > 1)} {words.ranges(some)}"


def _heads(first: str, pens: Mapping[str, Pen]) -> tuple[str, ...]:
    return (first, *(named(method, pen) for method, pen in pens.items()))


def _auc_cells(study: Study, methods: Iterable[str]) -> Iterable[str]:
    by_method = areas(study)
    ours = {method: mean_std(by_seed.values()) for method, by_seed in by_method.items()}
    most = max(map(len, by_method.values()), default=0)
    leaders = _leaders(ours)
    for method in methods:
        key = (study.experiment.dataset.lower(), study.experiment.shift, method)
        theirs = published.aucs().get(key)
        paper = f'<span class="paper">{words.plus_minus(*theirs)}</span>' if theirs else ""
        if method not in ours:
            yield td(f"{words.ABSENT}{paper}", "absent")
            continue
        seeds = len(by_method[method])
        fewer = f'<span class="fewer">n = {seeds}</span>' if seeds < most else ""
        value = _mean_and_deviation(Auc(*(100 * part for part in ours[method])), 2)
        yield td(f"{value}{paper}{fewer}", "top" if method in leaders else "")


def _leaders(row: Mapping[str, Auc]) -> set[str]:
    """The best mean, and those it does not beat by the paper's rule."""
    if not row:
        return set()
    best = max(row, key=lambda method: row[method].mean)
    against = win_tie_loss({"here": row}, best)
    return {best} | {other for other, tally in against.items() if tally.ties}


def _cost_cell(cost: Auc, best: bool) -> str:
    return td(_mean_and_deviation(cost, 3), "top" if best else "")


def _mean_and_deviation(value: Auc, places: int) -> str:
    mean, _, deviation = words.plus_minus(*value, places).partition(" ")
    return f"{mean} <small>{deviation}</small>" if deviation else mean


def _rival_table(
    tallies: Mapping[str, Mapping[str, Tally]], pens: Mapping[str, Pen], caption: str
) -> str:
    shown = {method: pens[method] for method in tallies}
    rows = [
        (
            named(one, pens[one]),
            *(td("", "self") if one == other else _tally(row[other]) for other in tallies),
        )
        for one, row in tallies.items()
    ]
    return table(_heads("", shown), rows, caption, "rivals")


def _tally(tally: Tally) -> str:
    tilt = (tally.wins - tally.losses) / max(1, sum(tally))
    kind = "win" if tilt > 0 else "loss" if tilt < 0 else ""
    text = "<i>/</i>".join(map(str, tally)) if sum(tally) else words.ABSENT
    return td(text, kind, f"--tilt:{abs(tilt):.2f}")


def _devices(study: Study) -> list[str]:
    return sorted({str(t.header["device"]) for t in study.all if t.header.get("device")})


def _known(value: float | None) -> float:
    return float("nan") if value is None else value
