"""One HTML file that needs nothing else: text, tables, and the numbers that its script draws."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from foresee.lab.report import (
    caveats,
    health,
    measures,
    palette,
    published,
    statistics,
    tables,
    views,
    words,
)
from foresee.lab.report.measures import ACCURACY, GAIN, METRICS, REMAINING, Metric
from foresee.lab.report.palette import Pen
from foresee.lab.report.rivals import Tallies
from foresee.lab.report.study import Study

_ASKED = (caveats, health, measures, palette, published, statistics, tables, views, words)


def html(
    found: Sequence[Study],
    pens: Mapping[str, Pen],
    tallies: Tallies,
    left_out: Sequence[Exception] = (),
) -> str:
    """Fill the template."""
    known = (ACCURACY, GAIN, *METRICS[1:])
    used = [metric for metric in known if any(study.curves[metric] for study in found)]
    names = list(pens)
    return (
        _templates()
        .get_template("page.html")
        .render(
            found=found,
            pens=pens,
            metrics=used,
            data=_data(found, pens, used),
            heading=_heading(found, names),
            facts=_facts(found),
            cautions=caveats.cautions(found, names, len(left_out)),
            tallies=tallies,
            rivalry=any(sum(t) for row in tallies["paper"].values() for t in row.values()),
            compared=words.span([len(s) for study in found for s in study.areas.values()] or [0]),
            bad_rounds=[(study, bad) for study in found for bad in study.unhealthy],
            missing=[
                (study, parts)
                for study in found
                if (parts := caveats.missing(study, names, left_out))
            ],
            left_out=list(map(str, left_out)),
        )
    )


@cache
def _templates() -> Environment:
    loader = PackageLoader("foresee.lab.report")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.globals.update({module.__name__.rpartition(".")[2]: module for module in _ASKED})
    made.globals["zip"] = zip
    made.globals["file"] = lambda name: loader.get_source(made, name)[0]
    return made


def _heading(found: Sequence[Study], names: Sequence[str]) -> str:
    where = found[0].title if len(found) == 1 else words.some(len(found), "experiment")
    return f"{words.some(len(names), 'method')} on {where}"


def _facts(found: Sequence[Study]) -> dict[str, str]:
    trials = [trial for study in found for trial in study.all]
    finished = len(trials) - sum(len(study.unfinished) for study in found)
    seconds = sum(s for t in trials for r in t.rounds for _, s in r.seconds)
    return {
        "Trials": f"{words.count(finished)} of {words.count(len(trials))} finished",
        "Seeds": words.span([len(study.seeds) for study in found]),
        "Network": _joined(study.experiment.network for study in found),
        "Training": _joined(caveats.shortened(study) or "full" for study in found),
        "Device": _joined(t.header.get("device", "") for t in trials),
        "Computing": words.duration(seconds),
        "Versions": _joined(
            f"{name} {number}"
            for trial in trials
            for name, number in (trial.header.get("versions") or {}).items()
        ),
    }


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value))


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
                    [place, point.n_labelled, _short(point.promised), _short(point.fell)]
                    for place, method in enumerate(pens)
                    for point in study.promises.get(method, ())
                ],
            }
            for study in found
        ],
    }


def _curves(study: Study, names: Iterable[str], metric: Metric) -> list[dict[str, Any]]:
    return [
        {
            "method": place,
            "x": curve.n_labelled,
            "n": curve.seeds,
            "mean": list(map(_short, curve.mean)),
            "sd": list(map(_short, curve.std)),
        }
        for place, method in enumerate(names)
        if (curve := study.curves[metric].get(method))
    ]


def _short(value: float) -> float | None:
    """Five digits are more than a screen shows; JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
