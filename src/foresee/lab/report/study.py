"""Trials grouped by experiment."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from foresee.errors import InputError
from foresee.lab.experiment import Experiment
from foresee.lab.report import published
from foresee.lab.store import Trial


@dataclass(frozen=True)
class Study:
    """All trials of one experiment, by method; methods stand in the order of the paper."""

    experiment: Experiment
    trials: Mapping[str, tuple[Trial, ...]]

    @property
    def name(self) -> str:
        """Name of its files."""
        return "".join(c if c.isalnum() or c in "-_" else "_" for c in self.experiment.name)

    @property
    def title(self) -> str:
        """Name on the page."""
        return f"{self.experiment.dataset}, {'shift' if self.experiment.shift else 'no shift'}"

    @property
    def seeds(self) -> list[int]:
        """Every seed that some method has."""
        return sorted({trial.seed for trial in self.all})

    @cached_property
    def picked(self) -> dict[str, list[int]]:
        """How often each method picked each class, over all rounds and seeds."""
        return {method: self._count(trials) for method, trials in self.trials.items()}

    @property
    def all(self) -> list[Trial]:
        """The trials of every method."""
        return [trial for group in self.trials.values() for trial in group]

    def _count(self, trials: Iterable[Trial]) -> list[int]:
        counts: Counter[int] = Counter()
        for trial in trials:
            for round_ in trial.rounds:
                counts.update(round_.labels)
        return [counts[label] for label in range(self.experiment.classes)]


def studies(trials: Sequence[Trial]) -> list[Study]:
    """Group trials; those of one name must share one configuration, and no seed comes twice."""
    if not trials:
        raise InputError("trials is empty: run an experiment first, foresee run --out runs/")
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.experiment.name].append(trial)
    places = {dataset.lower(): i for i, dataset in enumerate(published.order("dataset"))}
    found = [_study(group) for group in groups.values()]
    return sorted(
        found, key=lambda s: (places.get(s.experiment.dataset.lower(), len(places)), s.name)
    )


def methods(trials: Iterable[Trial]) -> list[str]:
    """Name the methods: the paper's in its order, then the others."""
    places = {method: i for i, method in enumerate(published.order("method"))}
    return sorted({t.method for t in trials}, key=lambda m: (places.get(m, len(places)), m))


def _study(group: list[Trial]) -> Study:
    first = group[0]
    for trial in group:
        if trial.experiment != first.experiment:
            raise InputError(
                f"{trial.path} and {first.path} are trials of {first.experiment.name} with two "
                "configurations, whose numbers must not mix: report on them from two folders"
            )
    by_method: dict[str, dict[int, Trial]] = {method: {} for method in methods(group)}
    for trial in group:
        twin = by_method[trial.method].setdefault(trial.seed, trial)
        if twin is not trial:
            raise InputError(
                f"{trial.path} and {twin.path} are the same trial ({first.experiment.name}, "
                f"{trial.method}, seed {trial.seed}): pass each once"
            )
    return Study(
        first.experiment,
        {method: tuple(s for _, s in sorted(seeds.items())) for method, seeds in by_method.items()},
    )
