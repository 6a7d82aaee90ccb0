"""The page's pictures as PNG files, for papers and slides."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image

from foresee.lab.report import words
from foresee.lab.report.measures import (
    ACCURACY,
    STAGES,
    curve,
    seconds_per_round,
    shares,
    usual_share,
)
from foresee.lab.report.palette import INKS, STAGE_INKS, Pen
from foresee.lab.report.study import Study

if TYPE_CHECKING:  # drawing is the only part of foresee that waits for matplotlib
    from matplotlib.axes import Axes

Drawing: TypeAlias = Callable[[Study, Mapping[str, Pen]], bytes | None]
_WIDTH = 5.0  # inches beside the names of the rows
_ROW = 0.24  # inches


def curves(study: Study, pens: Mapping[str, Pen]) -> bytes:
    """Draw the accuracy of every method, mean and one standard deviation over seeds."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6.4, 4.2), layout="constrained", dpi=200).subplots()
    _dress(axes, study.title)
    for method, trials in study.trials.items():
        found = curve(trials, ACCURACY)
        if found is None:
            continue
        colour = INKS[pens[method].ink].light
        mean, std = 100 * np.array(found.mean), 100 * np.nan_to_num(found.std)
        (line,) = axes.plot(found.n_labelled, mean, color=colour, label=_plain(method), lw=1.6)
        if pens[method].dash:
            line.set_dashes(pens[method].dash)
        if len(mean) == 1:
            line.set_marker("o")
        axes.fill_between(found.n_labelled, mean - std, mean + std, color=colour, alpha=0.13, lw=0)
    axes.set_xlabel("labels")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.25)
    if axes.lines:
        axes.legend(frameon=False, fontsize="small")
    return _png(axes)


def time(study: Study, pens: Mapping[str, Pen]) -> bytes | None:
    """Draw the seconds per round of every method, stage after stage."""
    times = {method: seconds_per_round(trials) for method, trials in study.trials.items()}
    times = {method: seconds for method, seconds in times.items() if sum(seconds.values())}
    if not times:
        return None
    axes = _rows(study.title, list(times), _ROW * len(times), foot=0.75)
    ends = np.zeros(len(times))
    for stage in STAGES:
        spent = np.array([seconds.get(stage, 0.0) for seconds in times.values()])
        if spent.any():
            colour = STAGE_INKS[stage].light
            axes.barh(range(len(times)), spent, left=ends, height=0.7, color=colour, label=stage)
            ends += spent
    for row, total in enumerate(ends):
        axes.text(total, row, f" {words.digits(total)}", va="center", fontsize="small")
    axes.set_xlabel("seconds per round")
    axes.margins(x=0.1)
    axes.figure.legend(frameon=False, fontsize="small", ncols=len(STAGES), loc="lower right")
    return _png(axes)


def balance(study: Study, pens: Mapping[str, Pen]) -> bytes | None:
    """Draw the share of each class among every method's picks, over that of Random or equal ones.

    All rows have one scale.
    """
    known = shares(study)
    if not known:
        return None
    classes = study.experiment.classes
    usual = usual_share(known, classes)
    scale = 0.85 / max(max(share) for share in (*known.values(), usual))
    axes = _rows(study.title, list(known), 1.6 * _ROW * len(known), foot=0.5)
    edges = np.arange(classes + 1) - 0.5
    for row, (method, share) in enumerate(known.items()):
        colour = INKS[pens[method].ink].light
        floor = row + 0.45  # rows are counted downwards
        drawn = floor - scale * np.array((share, usual))
        axes.stairs(drawn[0], edges, baseline=floor, fill=True, color=colour, alpha=0.6)
        axes.stairs(drawn[1], edges, baseline=None, color="black", lw=0.6)
    axes.set_xlim(edges[0], edges[-1])
    axes.locator_params(axis="x", integer=True, nbins=20)
    line = "of Random" if "Random" in known else "if all were equal"
    axes.set_xlabel(f"class; height: share of the picks, line: share {line}")
    return _png(axes)


def picks(study: Study, pens: Mapping[str, Pen]) -> bytes | None:
    """Draw the first images that every method picked, a row each."""
    strips = {
        f"{method}, seed {seed}": Image.open(io.BytesIO(data)).convert("RGB")
        for method, (seed, data) in first_picks(study).items()
    }
    if not strips:
        return None
    height = 4 + max(strip.height for strip in strips.values())
    width = max(strip.width for strip in strips.values())
    axes = _rows(study.title, list(strips), _WIDTH * height / width * len(strips), foot=0.1)
    for row, strip in enumerate(strips.values()):
        right, half = strip.width / width, strip.height / height / 2
        axes.imshow(strip, extent=(0, right, row + half, row - half), aspect="auto")
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines[["bottom"]].set_visible(False)
    return _png(axes)


DRAWINGS: dict[str, Drawing] = {"curves": curves, "time": time, "balance": balance, "picks": picks}
"""Every picture of a study by the first part of its file's name; None where there is no data."""


def first_picks(study: Study) -> dict[str, tuple[int, bytes]]:
    """The seed and the file of the first picture that each method kept."""
    found = {}
    for method, trials in study.trials.items():
        kept = ((trial.seed, data) for trial in trials if (data := _picture(trial.picture)))
        if first := next(kept, None):
            found[method] = first
    return found


def _picture(path: Path | None) -> bytes:
    """Read a picture; what is none counts as absent."""
    try:
        data = path.read_bytes() if path else b""
        Image.open(io.BytesIO(data), formats=["PNG"]).load()
    except (OSError, SyntaxError):  # Pillow raises the latter for a broken chunk
        return b""
    return data


def _rows(title: str, names: Sequence[str], height: float, foot: float) -> "Axes":
    """Make room for a row per name, from above; sizes are inches, and long names widen the page."""
    from matplotlib.figure import Figure

    left, top = 0.2 + 0.1 * max(map(len, names)), 0.4
    size = (left + _WIDTH + 0.1, foot + height + top)
    axes = Figure(figsize=size, dpi=200).add_axes(
        (left / size[0], foot / size[1], _WIDTH / size[0], height / size[1])
    )
    _dress(axes, title)
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_autoscaley_on(False)
    return axes


def _dress(axes: "Axes", title: str) -> None:
    axes.set_title(_plain(title), loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _png(axes: "Axes") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(axes.get_figure(root=True)).print_png(image)
    return image.getvalue()


def _plain(text: str) -> str:
    """Keep dollar signs from being read as formulas."""
    return text.replace("$", r"\$")
