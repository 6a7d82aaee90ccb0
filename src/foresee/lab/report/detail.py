"""The page's part about one experiment: curves, labels needed, time, picks, promises, pictures."""

import base64
import math
from collections.abc import Mapping

from foresee.lab.report import words
from foresee.lab.report.caveats import fit, shortened
from foresee.lab.report.figures import first_picks
from foresee.lab.report.markup import e, named, note, panel, table, td
from foresee.lab.report.measures import (
    ACCURACY,
    REMAINING,
    STAGES,
    curve,
    promises,
    saturation,
    seconds_per_round,
    shares,
    usual_share,
)
from foresee.lab.report.palette import Pen
from foresee.lab.report.statistics import effective_classes
from foresee.lab.report.study import Study
from foresee.lab.report.tables import labels_text, moved_text

_FEW_CLASSES = 20  # as many bars as can be told apart


def experiment(study: Study, pens: Mapping[str, Pen], place: int) -> str:
    """Everything about one experiment; ``place`` is where its curves are in the page's data."""
    shift = "shift" if study.experiment.shift else "no shift"
    return (
        f'<section class="experiment" id="{e(study.name)}">'
        f"<h3>{e(study.experiment.dataset)} <span>{shift}</span></h3>"
        f'<p class="meta">{e(_facts(study))}</p>'
        f'<div class="chart curves" data-experiment="{place}"></div>'
        f"{note(_seeds_note(study))}"
        '<div class="panels">'
        f"{panel('Labels needed', _saturation(study, pens))}"
        f"{panel('Classes picked', _balance(study, pens))}"
        f"{panel('Seconds per round', _times(study, pens), wide=True)}"
        f"{panel('Promised and kept', _promise(study, place), wide=True)}"
        f"{panel('First picks', _gallery(study, pens), wide=True)}"
        "</div></section>"
    )


def _facts(study: Study) -> str:
    setup = study.experiment
    usual = fit(study)
    bought = f"{setup.rounds} × {words.count(setup.n_query)}"
    return " · ".join(
        part
        for part in (
            f"{setup.classes} classes",
            f"{words.count(setup.n_seed)} labels, then {bought} of {words.count(setup.n_pool)}",
            words.some(len(study.seeds), "seed"),
            setup.network + (f", {shortened(study)}" if shortened(study) else ""),
            "" if usual is None else f"train accuracy {words.percent(usual, 1)} (median)",
        )
        if part
    )


def _seeds_note(study: Study) -> str:
    curves = [found for trials in study.trials.values() if (found := curve(trials, ACCURACY))]
    numbers = [n for found in curves for n in found.seeds]
    if not numbers:
        return "No round is finished yet."
    band = " The band is ± 1 standard deviation." if max(numbers) > 1 else ""
    uneven = min(numbers) != max(numbers)
    how = ", as many as have come so far at each point" if uneven else ""
    seeds = "1 seed" if max(numbers) == 1 else f"Mean over {words.span(numbers)} seeds{how}"
    return f"{seeds}.{band}"


def _saturation(study: Study, pens: Mapping[str, Pen]) -> str:
    levels = saturation(study)
    if not levels[0].labels:
        return ""
    head = [
        f"{words.percent(level.part)}<small>{words.percent(level.goal, 1)}</small>"
        for level in levels
    ]
    rows = []
    for method in levels[0].labels:
        cells = []
        for level in levels:
            labels = level.labels[method]
            fewest = min((n for n in level.labels.values() if n == n), default=math.nan)
            kind = "absent" if math.isnan(labels) else "top" if labels == fewest else ""
            cells.append(td(labels_text(labels, study, method), kind))
        rows.append((named(method, pens[method]), *cells))
    best = words.percent(levels[0].goal / levels[0].part, 1)
    return table(("", *head), rows) + note(
        f"to reach 90, 95 and 99 % of the best accuracy of any method, {best}, on the mean curve"
    )


def _times(study: Study, pens: Mapping[str, Pen]) -> str:
    times = {method: seconds_per_round(trials) for method, trials in study.trials.items()}
    times = {method: seconds for method, seconds in times.items() if seconds}
    longest = max((sum(seconds.values()) for seconds in times.values()), default=0.0)
    if not longest:
        return ""
    stages = [stage for stage in STAGES if any(stage in seconds for seconds in times.values())]
    head = [f'<span class="stage"><i style="--c:var(--stage-{s})"></i>{s}</span>' for s in stages]
    places = 2 if longest > 1 else 4
    rows = []
    for method, seconds in times.items():
        bar = "".join(
            f'<i style="width:{100 * seconds.get(s, 0) / longest:.2f}%;--c:var(--stage-{s})"'
            f' title="{s}: {words.digits(seconds.get(s, 0))} s"></i>'
            for s in stages
        )
        cells = (f"{seconds[s]:.{places}f}" if s in seconds else words.ABSENT for s in stages)
        total = td(f"{sum(seconds.values()):.{places}f}", "total")
        rows.append((named(method, pens[method]), td(f"<div>{bar}</div>", "bar"), total, *cells))
    return table(("", "", "total", *head), rows, kind="times")


def _balance(study: Study, pens: Mapping[str, Pen]) -> str:
    classes = study.experiment.classes
    known = shares(study)
    if not known:
        return ""
    usual = usual_share(known, classes)
    few = classes <= _FEW_CLASSES
    rows = []
    for method, share in known.items():
        strip = [td(_strip(share, usual), "strip")] if few else []
        effective = f"{effective_classes(share):.1f}"
        rows.append((named(method, pens[method]), *strip, effective, moved_text(share, usual)))
    reference = "Random" if "Random" in known else "uniform"
    head = ("", *(["shares"] if few else []), f"effective<small>of {classes}</small>")
    lines = f"Lines: {'the shares of Random' if reference == 'Random' else 'equal shares'}. "
    return table((*head, f"moved<small>from {reference}</small>"), rows, kind="balance") + note(
        f"{lines if few else ''}Effective: as many equally frequent classes are as diverse. "
        "Moved: the part of the picks that went to other classes."
    )


def _strip(share: list[float], usual: list[float]) -> str:
    width, height = 9, 30
    scale = height / max(*share, *usual)
    bars = "".join(
        f'<g><title>class {i}: {words.percent(s, 1)}</title><rect x="{i * width}" '
        f'y="{height - scale * s:.1f}" width="{width - 2}" height="{scale * s:.1f}"/>'
        f'<line x1="{i * width - 1}" x2="{i * width + width - 1}" y1="{height - scale * u:.1f}" '
        f'y2="{height - scale * u:.1f}"/></g>'
        for i, (s, u) in enumerate(zip(share, usual, strict=True))
    )
    size = f'width="{width * len(share)}" height="{height + 2}"'
    return f'<svg {size} viewBox="-1 -1 {width * len(share)} {height + 2}">{bars}</svg>'


def _promise(study: Study, place: int) -> str:
    kept = [point for trials in study.trials.values() for point in promises(trials)]
    parts = []
    if kept:
        promised, fell = (sum(column) / len(kept) for column in list(zip(*kept, strict=True))[1:])
        parts.append(
            f'<div><div class="chart scatter" data-experiment="{place}"></div>'
            + note(
                "Fall of the Brier loss from one batch: expected on the validation set, and found "
                "on the test set a round later. One point per method and round, means over seeds; "
                f"on the line they agree. On average {words.digits(promised)} was promised and "
                f"{words.digits(fell)} came."
            )
            + "</div>"
        )
    if any(curve(trials, REMAINING) for trials in study.trials.values()):
        parts.append(
            f'<div><div class="chart remaining" data-experiment="{place}" '
            f'data-metric="{REMAINING.key}"></div>'
            + note(
                "Fall of the Brier loss expected if the whole rest of the pool were labelled: "
                "where it nears zero, more labels will not help."
            )
            + "</div>"
        )
    return f'<div class="pair">{"".join(parts)}</div>' if parts else ""


def _gallery(study: Study, pens: Mapping[str, Pen]) -> str:
    figures = []
    for method, (seed, data) in first_picks(study).items():
        image = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        figures.append(
            f"<figure><figcaption>{named(method, pens[method])}<small>seed {seed}</small>"
            f'</figcaption><div class="scroll" tabindex="0"><img src="{image}" '
            f'alt="the first picks of {e(method)}, seed {seed}"></div></figure>'
        )
    return f'<div class="gallery">{"".join(figures)}</div>' if figures else ""
