"""The page's pictures as PNG files, for papers and slides."""

import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from foresee.lab.report import words
from foresee.lab.report.measures import ACCURACY, IN_TARGET, SCRAMBLED, STAGES, Curve, Metric
from foresee.lab.report.palette import INKS, STAGE_INKS, Pen
from foresee.lab.report.study import Picture, Study

if TYPE_CHECKING:  # drawing is the only part of foresee that waits for matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 5.0  # inches beside the names of the rows
_ROW = 0.24  # inches
_TOP = 0.4  # inches
_FEW = 6  # methods, whose names leave room for curves in the same plot
_NAME = 0.18  # inches of a line of names


def drawings(study: Study, pens: Mapping[str, Pen]) -> dict[str, Callable[[], bytes]]:
    """Every picture of a study, yet to be drawn, by the first part of its file's name."""
    on = " on the target" if study.experiment.setting == "narrow" else ""
    some: dict[str, Callable[[], bytes]] = {
        "curves": partial(curves, study.title, study.curves[ACCURACY], pens, on)
    }
    for name, metric in (("target", IN_TARGET), ("noise", SCRAMBLED)):
        if metric in study.noted:
            both = study.curves[ACCURACY], study.curves[metric]
            some[name] = partial(
                bought, study.title, metric, *both, study.of_pool(metric), pens, on
            )
    if times := {m: seconds for m, seconds in study.seconds.items() if sum(seconds.values())}:
        some["time"] = partial(time, study.title, times)
    if study.shares:
        some["balance"] = partial(balance, study.title, study.shares, study.usual_share, pens)
    if study.pictures:
        some["picks"] = partial(picks, study.title, study.pictures)
    return some


def draw(some: Mapping[str, Callable[[], bytes]]) -> dict[str, bytes]:
    """Draw what `drawings` listed."""
    return {name: drawing() for name, drawing in some.items()}


def curves(title: str, found: Mapping[str, Curve], pens: Mapping[str, Pen], on: str = "") -> bytes:
    """Draw the accuracy of every method, mean and one standard deviation over seeds."""
    width = 6.4
    columns, low = _below(found, width)
    axes = _axes(title, (width, 4.2 + low), left=0.75, foot=0.55 + low, right=0.25)
    _draw(axes, found, pens, f"test accuracy{on}, %")
    _legend(axes, columns)
    return _png(axes)


def bought(
    title: str,
    metric: Metric,
    accuracy: Mapping[str, Curve],
    found: Mapping[str, Curve],
    of_pool: float,
    pens: Mapping[str, Pen],
    on: str = "",
) -> bytes:
    """Draw accuracy, and beside it the share of every batch that a metric counts, and of the pool.

    The shares are means over seeds: of a small batch they vary too much for a band to be read.
    """
    width, half = 10.4, 5.2
    columns, low = _below(accuracy, width)
    size, foot = (width, 3.9 + low), 0.55 + low
    left = _axes(title, size, left=0.7, foot=foot, right=half + 0.1)
    _draw(left, accuracy, pens, f"test accuracy{on}, %")
    _legend(left, columns)
    right = _axes("", size, left=half + 0.7, foot=foot, figure=left.get_figure(root=True))
    plain = {method: curve._replace(std=(0.0,) * len(curve.std)) for method, curve in found.items()}
    _draw(right, plain, pens, f"{metric.label.lower()}, % of a batch")
    right.axhline(100 * of_pool, color="black", lw=0.8, ls=":")
    right.set_xlim(left.get_xlim())
    right.set_ylim(0, 100)
    right.text(left.get_xlim()[1], 100 * of_pool, "the pool ", ha="right", va="bottom")
    return _png(left)


def _draw(axes: "Axes", found: Mapping[str, Curve], pens: Mapping[str, Pen], label: str) -> None:
    for method, (n_labelled, _, means, stds) in found.items():
        colour = INKS[pens[method].ink].light
        mean, std = 100 * np.array(means), 100 * np.nan_to_num(stds)
        (line,) = axes.plot(n_labelled, mean, color=colour, label=_plain(method), lw=1.6)
        if pens[method].dash:
            line.set_dashes(pens[method].dash)
        if len(mean) == 1:
            line.set_marker("o")
        axes.fill_between(n_labelled, mean - std, mean + std, color=colour, alpha=0.13, lw=0)
    axes.set_xlabel("labels")
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)


def _below(names: Collection[str], width: float) -> tuple[int, float]:
    """Columns and inches of a legend below a plot; none where it is short enough to lie in it."""
    if len(names) <= _FEW:
        return 0, 0.0
    columns = max(1, int(width / (0.6 + 0.085 * max(map(len, names)))))
    return columns, 0.1 + _NAME * math.ceil(len(names) / columns)


def _legend(axes: "Axes", columns: int) -> None:
    if columns:
        axes.figure.legend(
            handles=axes.lines,
            frameon=False,
            fontsize="small",
            ncols=columns,
            loc="lower center",
        )
    elif axes.lines:
        axes.legend(frameon=False, fontsize="small")


def time(title: str, times: Mapping[str, Mapping[str, float]]) -> bytes:
    """Draw the seconds per round of every method, stage after stage."""
    axes = _rows(title, list(times), _ROW * len(times), foot=0.75)
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


def balance(
    title: str,
    shares: Mapping[str, Sequence[float]],
    usual: Sequence[float],
    pens: Mapping[str, Pen],
) -> bytes:
    """Draw the share of each class among every method's picks, over that of Random or equal ones.

    All rows have one scale.
    """
    scale = 0.85 / max(max(share) for share in (*shares.values(), usual))
    axes = _rows(title, list(shares), 1.6 * _ROW * len(shares), foot=0.5)
    edges = np.repeat(np.arange(len(usual) + 1) - 0.5, 2)[1:-1]
    for row, (method, share) in enumerate(shares.items()):
        colour = INKS[pens[method].ink].light
        floor = row + 0.45  # rows are counted downwards
        drawn = floor - scale * np.repeat((share, usual), 2, axis=1)
        axes.fill_between(edges, drawn[0], floor, color=colour, alpha=0.6, lw=0)
        axes.plot(edges, drawn[1], color="black", lw=0.6)
    axes.set_xlim(edges[0], edges[-1])
    axes.locator_params(axis="x", integer=True, nbins=20)
    line = "of Random" if "Random" in shares else "if all were equal"
    axes.set_xlabel(f"class; height: share of the picks, line: share {line}")
    return _png(axes)


def picks(title: str, pictures: Mapping[str, Picture]) -> bytes:
    """Draw the first images that every method picked, a row each."""
    strips = {
        f"{method}, seed {seed}": Image.open(io.BytesIO(png), formats=["PNG"]).convert("RGB")
        for method, (seed, png) in pictures.items()
    }
    height = 4 + max(strip.height for strip in strips.values())
    width = max(strip.width for strip in strips.values())
    axes = _rows(title, list(strips), _WIDTH * height / width * len(strips), foot=0.1)
    for row, strip in enumerate(strips.values()):
        right, half = strip.width / width, strip.height / height / 2
        axes.imshow(strip, extent=(0, right, row + half, row - half), aspect="auto")
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines[["bottom"]].set_visible(False)
    return _png(axes)


def _rows(title: str, names: Sequence[str], height: float, foot: float) -> "Axes":
    """Make room for a row per name, from above; sizes are inches, and long names widen the page."""
    left = 0.2 + 0.1 * max(map(len, names))
    axes = _axes(title, (left + _WIDTH + 0.1, foot + height + _TOP), left, foot)
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_autoscaley_on(False)
    return axes


def _axes(
    title: str,
    size: tuple[float, float],
    left: float,
    foot: float,
    right: float = 0.1,
    figure: "Figure | None" = None,
) -> "Axes":
    """One plot under its title, on a page of this size; margins are fixed: to fit them is slow."""
    from matplotlib.figure import Figure

    width, height = size
    place = (left / width, foot / height, 1 - (left + right) / width, 1 - (foot + _TOP) / height)
    axes = (figure or Figure(figsize=size, dpi=200)).add_axes(place)
    axes.set_title(_plain(title), loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _png(axes: "Axes") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(axes.get_figure(root=True)).print_png(image, pil_kwargs={"compress_level": 3})
    return image.getvalue()


def _plain(text: str) -> str:
    """Keep dollar signs from being read as formulas."""
    return text.replace("$", r"\$")
