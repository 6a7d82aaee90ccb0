"""Trials grouped by experiment, and every quantity of an experiment, computed once."""

import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from foresee.errors import InputError
from foresee.lab.experiment import Experiment, Round
from foresee.lab.report import health, measures, published, statistics, words
from foresee.lab.report.light import NOTED, Light, light
from foresee.lab.report.measures import (
    ACCURACY,
    COST,
    GAIN,
    IN_TARGET,
    METRICS,
    PROMISED,
    REMAINING,
    SCRAMBLED,
)
from foresee.lab.store import Skip, Trial, alike, refuse

_CLASSES = 100_000
_SIZE = 2**53  # larger ones are not whole numbers any more once they are floats
_PIXELS, _BYTES = 20_000_000, 20_000_000  # of a picture; those of `foresee run` have a fiftieth


class Picture(NamedTuple):
    """The first picks of a trial, as a PNG file."""

    seed: int
    png: bytes


@dataclass(frozen=True)
class Study:
    """All trials of one experiment, by method; methods stand in the order of the paper.

    ``name`` is that of its files.
    """

    name: str
    experiment: Experiment
    trials: Mapping[str, tuple[Light, ...]]
    pictures: Mapping[str, Picture]

    @property
    def title(self) -> str:
        """Name on the page."""
        return f"{self.experiment.dataset}, {self.setting}"

    @property
    def setting(self) -> str:
        """Whether the seed set is another than the target, or the pool wider, and its noise."""
        setting, noise = self.experiment.setting, self.experiment.pool_noise
        told = f", {words.part(noise)} noise" if noise else ""
        return ("no shift" if setting == "noshift" else setting) + told

    @cached_property
    def all(self) -> list[Light]:
        """The trials of every method."""
        return [trial for group in self.trials.values() for trial in group]

    @cached_property
    def seeds(self) -> list[int]:
        """Every seed that some method has."""
        return sorted({trial.seed for trial in self.all})

    @cached_property
    def unfinished(self) -> list[Light]:
        """The trials that have not come to their last round."""
        return [trial for trial in self.all if not trial.finished]

    @cached_property
    def curves(self) -> dict[measures.Metric, dict[str, measures.Curve]]:
        """The curve of every metric and method; those that nobody measured are absent."""
        found = {
            metric: {m: measures.curve(trials, metric) for m, trials in self.trials.items()}
            for metric in (*METRICS, PROMISED, REMAINING)
        }
        random = self.trials.get("Random", ())
        found[GAIN] = {m: measures.gain(trials, random) for m, trials in self.trials.items()}
        return {
            metric: {m: curve for m, curve in curves.items() if curve}
            for metric, curves in found.items()
        }

    @cached_property
    def areas(self) -> dict[str, dict[int, float]]:
        """Area under the accuracy curve of every finished trial, by method and seed."""
        return self._areas(ACCURACY)

    @cached_property
    def costs(self) -> dict[str, dict[int, float]]:
        """The same of the costs, where they were counted."""
        return self._areas(COST)

    @cached_property
    def mean_areas(self) -> dict[str, statistics.Auc]:
        """Mean and standard deviation of the areas over seeds."""
        return {method: statistics.mean_std(a.values()) for method, a in self.areas.items()}

    @cached_property
    def mean_costs(self) -> dict[str, statistics.Auc]:
        """Mean and standard deviation of the costs over seeds."""
        return {method: statistics.mean_std(a.values()) for method, a in self.costs.items()}

    @cached_property
    def paired(self) -> dict[tuple[str, str], statistics.Paired]:
        """The paired test of every two methods, either way round."""
        return statistics.pairs(self.areas)

    @cached_property
    def saturation(self) -> list[measures.Saturation]:
        """Labels needed for parts of the best accuracy."""
        return measures.saturation(self.curves[ACCURACY])

    @cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Mean seconds of each stage of a round, by method that recorded some."""
        found = {m: measures.seconds_per_round(trials) for m, trials in self.trials.items()}
        return {method: seconds for method, seconds in found.items() if seconds}

    @cached_property
    def picked(self) -> dict[str, list[int]]:
        """How often each method that chose picked each class, over all rounds and seeds."""
        found = {}
        for method, trials in self.trials.items():
            counts = sum((Counter(trial.bought) for trial in trials), Counter())
            if counts:
                found[method] = [counts[label] for label in range(self.experiment.classes)]
        return found

    @cached_property
    def shares(self) -> dict[str, list[float]]:
        """Shares of the classes among the picks of each method."""
        return {m: [count / sum(counts) for count in counts] for m, counts in self.picked.items()}

    @cached_property
    def usual_share(self) -> list[float]:
        """What shares are held against: those of Random, or equal ones where it did not run."""
        classes = self.experiment.classes
        return self.shares.get("Random", [1 / classes] * classes)

    @cached_property
    def effective_classes(self) -> dict[str, float]:
        """How many equally frequent classes would be as diverse as those picked."""
        return {m: statistics.effective_classes(counts) for m, counts in self.picked.items()}

    @cached_property
    def noted(self) -> dict[measures.Metric, dict[str, statistics.Auc]]:
        """Shares of all labels bought, by method: in the target, and of noise, where noted."""
        found = {
            metric: {
                method: statistics.mean_std(shares)
                for method, trials in self.trials.items()
                if (shares := [t.shares[metric.key] for t in trials if metric.key in t.shares])
            }
            for metric in (IN_TARGET, SCRAMBLED)
        }
        return {metric: by_method for metric, by_method in found.items() if by_method}

    def of_pool(self, metric: measures.Metric) -> float:
        """The same share of the pool, mean over seeds; NaN where no header has it."""
        noted = (trial.header.get("pool") or {} for trial in self.all)
        counts = [pool[metric.key] for pool in noted if metric.key in pool]
        return sum(counts) / (len(counts) * self.experiment.n_pool) if counts else math.nan

    @cached_property
    def promises(self) -> dict[str, list[measures.Kept]]:
        """What each method promised, and what came of it."""
        return {m: measures.promises(trials) for m, trials in self.trials.items()}

    @cached_property
    def unhealthy(self) -> list[health.Unhealthy]:
        """Rounds that trained badly."""
        return health.unhealthy(self.all, self.experiment.classes)

    @cached_property
    def restarted(self) -> list[tuple[Trial, Round]]:
        """Rounds that trained a second network, as the first never left its plateau."""
        return health.restarted(self.all)

    @cached_property
    def bad_rounds(self) -> Counter[str]:
        """How many rounds of the trials in its area trained badly, by method."""
        return Counter(bad.trial.method for bad in self.unhealthy if bad.trial.finished)

    @cached_property
    def fit(self) -> float | None:
        """Median train accuracy of all rounds; None where it was not recorded."""
        return health.fit(self.all)

    @cached_property
    def parted(self) -> list[int]:
        """Seeds whose methods began from networks that differ, as those of two machines may."""
        first: dict[tuple[int, str], set[float]] = defaultdict(set)
        for trial in self.all:
            sampler = trial.header.get("method", {}).get("sampler")
            if trial.rounds and isinstance(sampler, dict):
                sampler = {**sampler, "device": ""}
                first[trial.seed, str(sampler)].add(trial.rounds[0].accuracy)
        return sorted({seed for (seed, _), found in first.items() if len(found) > 1})

    def _areas(self, metric: measures.Metric) -> dict[str, dict[int, float]]:
        found = {
            method: {
                trial.seed: area
                for trial in trials
                if (area := measures.area(trial, metric)) is not None
            }
            for method, trials in self.trials.items()
        }
        return {method: by_seed for method, by_seed in found.items() if by_seed}


def studies(trials: Iterable[Trial], skip: Skip = refuse) -> list[Study]:
    """Group trials by experiment, in the order of the paper.

    ``skip`` hears of each that cannot be counted with the others: one of another configuration than
    most of its experiment, a second of the same seed, one whose numbers cannot be, a picture that
    is none. By default that is an error.
    """
    groups: dict[str, list[Light]] = defaultdict(list)
    for trial in map(light, trials):
        if flaw := _flaw(trial):
            skip(InputError(f"{trial.path} cannot be of a trial ({flaw}): move it away"))
        else:
            groups[trial.experiment.name].append(trial)
    if not groups:
        raise InputError("trials is empty: run an experiment first, foresee run --out runs/")
    places = {dataset.lower(): i for i, dataset in enumerate(published.order("dataset"))}

    def place(name: str) -> tuple[int, str, str]:
        dataset = groups[name][0].experiment.dataset.lower()
        return places.get(dataset, len(places)), _file_name(name), name

    found: dict[str, Study] = {}
    for name in sorted(groups, key=place):
        file_name = _file_name(name)
        while file_name in found:  # of "a b" and "a_b"
            file_name += "_"
        found[file_name] = _study(file_name, groups[name], skip)
    return list(found.values())


def methods(trials: Iterable[Trial]) -> list[str]:
    """Name the methods: the paper's in its order, then the others."""
    places = {method: i for i, method in enumerate(published.order("method"))}
    return sorted({t.method for t in trials}, key=lambda m: (places.get(m, len(places)), m))


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)


def _study(name: str, group: list[Light], skip: Skip) -> Study:
    ((experiment, _),) = Counter(trial.experiment for trial in group).most_common(1)
    by_method: dict[str, dict[int, Light]] = {method: {} for method in methods(group)}
    usual: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for trial in group:
        if trial.rounds and trial.experiment == experiment:
            for what, value in _shared(trial).items():
                usual[what][value] += 1
    for trial in group:
        if trial.experiment != experiment:
            problem = (
                f"has another configuration than most trials of {experiment.name}, and their "
                "numbers must not mix: report on it from a folder of its own"
            )
        elif odd := [
            f"{what} than most trials of {experiment.name}{whose}"
            for (what, whose), value in _shared(trial).items()
            if trial.rounds and value != usual[what, whose].most_common(1)[0][0]
        ]:
            problem = (
                f"has {odd[0]}, and must not be paired with them: report on it from a folder of "
                "its own"
            )
        elif (twin := by_method[trial.method].setdefault(trial.seed, trial)) is not trial:
            problem = (
                f"and {twin.path} are the same trial ({experiment.name}, {trial.method}, seed "
                f"{trial.seed}): pass each once"
            )
        else:
            continue
        skip(InputError(f"{trial.path} {problem}"))
    trials = {m: tuple(s for _, s in sorted(seeds.items())) for m, seeds in by_method.items()}
    trials = {method: some for method, some in trials.items() if some}
    pictures = {m: shown for m, some in trials.items() if (shown := _first_picture(some, skip))}
    return Study(name, experiment, trials, pictures)


def _shared(trial: Light) -> dict[tuple[str, str], str]:
    """What it must have in common with other trials, by what that is and which they are."""
    found = {("other sets", f" of seed {trial.seed}"): str(trial.header.get("data", ""))}
    if "method" in trial.header:
        whose = {"model": "", "method": f" that are called {trial.method}"}
        for kind, part in alike(trial.header).items():
            found[f"another {kind}", whose[kind]] = json.dumps(part, sort_keys=True)
    return found


def _flaw(trial: Light) -> str:
    """Say what no run can have recorded, and would stop a table or a picture."""
    setup, sizes = trial.experiment, [round_.n_labelled for round_ in trial.rounds]
    if not f"{setup.dataset}{setup.network}{trial.method}".isprintable():
        return "a name cannot be printed"
    numbers = [*vars(setup).values(), *vars(setup.recipe).values(), *sizes]
    if not all(0 <= number < _SIZE for number in numbers if type(number) is int):
        return "a size is negative or beyond all bounds"
    if not 1 <= setup.classes <= _CLASSES:
        return f"it has {setup.classes} classes"
    if not all(0 <= label < setup.classes for label in trial.bought):
        return "it bought a class that is none"
    if not all(a < b for a, b in pairwise(sizes)):
        return "its labelled set does not grow"
    if any(r.accuracy < 0 or r.accuracy > 1 for r in trial.rounds):
        return "an accuracy is not between 0 and 1"
    noted = [getattr(r, key) for r in trial.rounds for key in NOTED]
    if not all(0 <= share <= 1 for share in noted if share is not None):
        return "a share is not between 0 and 1"
    if not all(0 <= n <= setup.n_pool for n in (trial.header.get("pool") or {}).values()):
        return "more of its pool is noted than there is"
    if not all(0 <= spent < _SIZE for r in trial.rounds for _, spent in r.seconds):
        return "its seconds are negative or beyond all bounds"
    return ""


def _first_picture(trials: Iterable[Trial], skip: Skip) -> Picture | None:
    for trial in trials:
        path = trial.path.with_suffix(".png")
        if path.exists():
            try:
                return Picture(trial.seed, _png(path))
            except Exception as error:  # Pillow has many for a broken file
                skip(InputError(f"{path} is no picture to show ({error}): delete it"))
    return None


def _png(path: Path) -> bytes:
    """Read a picture; its size is known before it is decoded."""
    if not path.is_file() or path.resolve().parent != path.parent.resolve():
        raise ValueError("it is no file of this folder")
    if path.stat().st_size > _BYTES:
        raise ValueError(f"it has more than {_BYTES:,} bytes")
    png = path.read_bytes()
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        if image.width * image.height > _PIXELS or image.height > image.width:
            raise ValueError(f"{image.width} × {image.height} pixels are no row of images")
        image.load()
    return png
