"""Learning curves as a PNG, for papers and slides."""

import io

import numpy as np

from foresee.report.measures import ACCURACY, curve
from foresee.report.palette import INKS, Pen
from foresee.report.study import Study


def png(study: Study, pens: dict[str, Pen]) -> bytes:
    """Draw the accuracy of every method, mean and one standard deviation over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained", dpi=200)
    axes = figure.subplots()
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
    axes.set_title(_plain(study.title))
    axes.set_xlabel("labels")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize="small")
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    return image.getvalue()


def _plain(text: str) -> str:
    """Keep dollar signs from being read as formulas."""
    return text.replace("$", r"\$")
