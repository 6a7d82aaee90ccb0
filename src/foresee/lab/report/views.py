"""What the page's templates ask of a study beside its numbers: words, leaders, sums."""

import base64
import math
from collections.abc import Mapping
from typing import NamedTuple

from foresee.lab.report import caveats, words
from foresee.lab.report.measures import ACCURACY, IN_TARGET, STAGES, Metric
from foresee.lab.report.statistics import Auc, Tally, verdict
from foresee.lab.report.study import Picture, Study

BAD_ROUNDS = 50  # as many as can still be read
FEW_CLASSES = 20  # as many bars as can be told apart


def devices(study: Study) -> str:
    """Where its trials ran."""
    return ", ".join(sorted({str(t.header["device"]) for t in study.all if t.header.get("device")}))


def leaders(row: Mapping[str, Auc]) -> set[str]:
    """The best mean, and those it does not beat by the paper's rule."""
    best = max(row, key=lambda method: row[method].mean, default=None)
    if best is None:
        return set()
    return {best} | {other for other in row if verdict(row[best], row[other]) != 1}


def percent(auc: Auc) -> Auc:
    """The same in per cent."""
    return Auc(100 * auc.mean, 100 * auc.std)


def tilt(tally: Tally) -> float:
    """From -1, all lost, to 1, all won."""
    return (tally.wins - tally.losses) / max(1, sum(tally))


def about(study: Study) -> str:
    """Its sizes and its training, in a line."""
    setup = study.experiment
    bought = f"{setup.rounds} × {words.count(setup.n_query)}"
    parts = (
        f"{setup.classes} classes",
        f"target: {words.few(setup.target)}" if setup.target else "",
        f"{words.count(setup.n_seed)} labels, then {bought} of {words.count(setup.n_pool)}",
        words.some(len(study.seeds), "seed"),
        ", ".join(filter(None, (setup.network, caveats.shortened(study)))),
        "" if study.fit is None else f"train accuracy {words.percent(study.fit, 1)} (median)",
    )
    return " · ".join(filter(None, parts))


def seeds_note(study: Study) -> str:
    """How many seeds its curves are means of."""
    numbers = [n for curve in study.curves[ACCURACY].values() for n in curve.seeds]
    if not numbers:
        return "No round is finished yet."
    band = " The band is ± 1 standard deviation." if max(numbers) > 1 else ""
    uneven = min(numbers) != max(numbers)
    how = ", as many as have come so far at each point" if uneven else ""
    seeds = "1 seed" if max(numbers) == 1 else f"Mean over {words.span(numbers)} seeds{how}"
    return f"{seeds}.{band}"


def noted(study: Study, metric: Metric) -> str:
    """Say who bought most of what counts, or of noise, and who least, beside its share of all."""
    shares = study.noted[metric]
    least, most = (f(shares, key=lambda m: shares[m].mean) for f in (min, max))
    whole = words.percent(study.of_pool(metric), 1)
    what = "in the target" if metric is IN_TARGET else "scrambled and teaches nothing"
    first, last = (most, least) if metric.higher_is_better else (least, most)
    told = f"{whole} of the pool is {what}; so is {words.percent(shares[first].mean, 1)} of what "
    told += f"{first} bought"
    if first != last:
        told += f", {words.percent(shares[last].mean, 1)} of what {last} bought"
    return f"{told}. Each point is one batch."


def iterations(study: Study) -> str:
    """How long its networks are trained; a dash where the model is none."""
    setup = study.experiment
    network = setup.own is None or setup.own.posterior == "dropout"
    return words.count(setup.recipe.iterations) if network else words.ABSENT


def batches(study: Study, metric: Metric) -> dict[int, str]:
    """The labelled-set sizes at which some method chose, and how they are written."""
    sizes = {n for curve in study.curves[metric].values() for n in curve.n_labelled}
    return {size: words.count(size) for size in sorted(sizes)}


def fewest(labels: Mapping[str, float]) -> float:
    """The least that any method needed; NaN where none got there."""
    return min((n for n in labels.values() if not math.isnan(n)), default=math.nan)


def goals(study: Study) -> list[tuple[str, str]]:
    """Each part of the best accuracy, and what it is."""
    return [(words.percent(s.part), words.percent(s.goal, 1)) for s in study.saturation]


class Times(NamedTuple):
    """The stages of the seconds that methods recorded, and how they are written."""

    stages: list[str]
    longest: float
    places: int


def times(study: Study) -> Times | None:
    """Seconds per round; None where nothing took any time."""
    rows = study.seconds.values()
    longest = max((sum(seconds.values()) for seconds in rows), default=0.0)
    if not longest:
        return None
    stages = [stage for stage in STAGES if any(stage in seconds for seconds in rows)]
    return Times(stages, longest, places=2 if longest > 1 else 4)


def kept(study: Study) -> tuple[float, float] | None:
    """What was promised and what came, on average."""
    points = [point for points in study.promises.values() for point in points]
    if not points:
        return None
    _, promised, fell = (sum(column) / len(points) for column in zip(*points, strict=True))
    return promised, fell


def source(picture: Picture) -> str:
    """The address of an image that is in the page itself."""
    return f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
