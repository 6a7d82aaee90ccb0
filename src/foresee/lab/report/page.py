"""One HTML file that needs nothing else: text, tables, and the numbers that its script draws."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from foresee.lab.report import detail, overview, words
from foresee.lab.report.caveats import (
    BEHIND,
    FEW_SEEDS,
    GUESSING,
    Caution,
    cautions,
    shortened,
    unfinished,
)
from foresee.lab.report.markup import e, swatch
from foresee.lab.report.measures import (
    GAIN,
    METRICS,
    REMAINING,
    Metric,
    Tallies,
    curve,
    gain,
    promises,
)
from foresee.lab.report.palette import INKS, STAGE_INKS, Pen
from foresee.lab.report.statistics import SIGNIFICANT
from foresee.lab.report.study import Study


def html(found: Sequence[Study], pens: Mapping[str, Pen], tallies: Tallies) -> str:
    """Fill the template."""
    known = (METRICS[0], GAIN, *METRICS[1:])
    used = [metric for metric in known if any(_curves(study, pens, metric) for study in found)]
    return Template(_file("page.html")).substitute(
        css=_inks() + _file("page.css"),
        script=_file("chart.js") + _file("page.js"),
        data=_json(_data(found, pens, used)),
        heading=e(_heading(found, pens)),
        facts=_facts(found),
        cautions="".join(map(_caution, cautions(found, list(pens)))),
        auc=overview.auc_tables(found, pens),
        cost=overview.cost_table(found, pens),
        rivals=overview.rival_tables(tallies, pens),
        compared=overview.seeds_compared(found),
        significant=f"{SIGNIFICANT}",
        few_seeds=f"{FEW_SEEDS}",
        guessing=words.percent(GUESSING),
        behind=f"{100 * BEHIND:.0f}",
        jumps="".join(f'<option value="{e(s.name)}">{e(s.title)}</option>' for s in found),
        metrics="".join(f'<option value="{e(m.key)}">{e(m.label)}</option>' for m in used),
        legend="".join(_key(place, *item) for place, item in enumerate(pens.items())),
        experiments="".join(detail.experiment(s, pens, i) for i, s in enumerate(found)),
        health=overview.health_table(found, pens),
        run=overview.run_table(found),
        missing=overview.missing_list(found, list(pens)),
    )


def _heading(found: Sequence[Study], pens: Mapping[str, Pen]) -> str:
    where = found[0].title if len(found) == 1 else words.some(len(found), "experiment")
    return f"{words.some(len(pens), 'method')} on {where}"


def _facts(found: Sequence[Study]) -> str:
    trials = [trial for study in found for trial in study.all]
    finished = len(trials) - sum(len(unfinished(study)) for study in found)
    seconds = sum(s for t in trials for r in t.rounds for _, s in r.seconds)
    facts = {
        "Trials": f"{words.count(finished)} of {words.count(len(trials))} finished",
        "Seeds": words.span([len(study.seeds) for study in found]),
        "Network": _joined(study.experiment.network for study in found),
        "Training": _joined(shortened(study) or "full" for study in found),
        "Device": _joined(t.header.get("device", "") for t in trials),
        "Computing": words.duration(seconds),
        "Versions": _joined(
            f"{name} {number}"
            for trial in trials
            for name, number in (trial.header.get("versions") or {}).items()
        ),
    }
    return "".join(f"<div><dt>{k}</dt><dd>{e(v)}</dd></div>" for k, v in facts.items() if v)


def _caution(caution: Caution) -> str:
    link = f' <a href="#{caution.see}">Which?</a>' if caution.see else ""
    return f"<li>{e(caution.text)}{link}</li>"


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _key(place: int, method: str, pen: Pen) -> str:
    return (
        f'<button type="button" class="key" data-method="{place}" aria-pressed="true">'
        f"{swatch(pen)}{e(method)}</button>"
    )


def _data(found: Sequence[Study], pens: Mapping[str, Pen], used: Sequence[Metric]) -> Any:
    return {
        "methods": [
            {"name": method, "ink": pen.ink, "dash": " ".join(map(str, pen.dash))}
            for method, pen in pens.items()
        ],
        "metrics": {
            metric.key: {
                "label": metric.label,
                "up": metric.higher_is_better,
                "unit": metric.unit,
            }
            for metric in (*used, REMAINING)
        },
        "experiments": [
            {
                "title": study.title,
                "curves": {m.key: _curves(study, pens, m) for m in (*used, REMAINING)},
                "promises": [
                    [place, *(_short(number) for number in point)]
                    for place, method in enumerate(pens)
                    for point in promises(study.trials.get(method, ()))
                ],
            }
            for study in found
        ],
    }


def _curves(study: Study, methods: Iterable[str], metric: Metric) -> list[dict[str, Any]]:
    curves = []
    for place, method in enumerate(methods):
        trials = study.trials.get(method, ())
        if found := gain(study, method) if metric == GAIN else curve(trials, metric):
            curves.append(
                {
                    "method": place,
                    "x": found.n_labelled,
                    "n": found.seeds,
                    "mean": [_short(value) for value in found.mean],
                    "sd": [_short(value) for value in found.std],
                }
            )
    return curves


def _short(value: float) -> float | None:
    """Five digits are more than a screen shows; JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _json(data: Any) -> str:
    """No text can end the script element that holds it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _inks() -> str:
    def block(ground: str) -> str:
        inks = [f"--ink-{i}:{getattr(ink, ground)}" for i, ink in enumerate(INKS)]
        inks += [f"--stage-{name}:{getattr(ink, ground)}" for name, ink in STAGE_INKS.items()]
        return f":root{{{';'.join(inks)}}}"

    return f"{block('light')}\n@media (prefers-color-scheme: dark){{{block('dark')}}}\n"


def _file(name: str) -> str:
    return (files("foresee.lab.report") / name).read_text(encoding="utf-8")
