"""What the packed rounds of `results/` amount to: areas, differences, and their health.

Of an experiment that is not finished, so many rounds count that the trials that have them, times
the square of these rounds, are most; methods that are not so far are named.
"""

import functools
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import packed
from scipy import stats

from foresee.lab.methods import METHODS
from foresee.lab.report import folder, health, published
from foresee.lab.report.statistics import Auc, area_under_curve, mean_std, paired
from foresee.lab.report.study import Study


@dataclass(frozen=True, eq=False)
class Counted:
    """The areas × 100 of a study by method and seed, over its first ``rounds``.

    ``again`` and ``bad`` are rounds among them that trained a second network, and that trained
    badly, by method; ``behind`` are methods without a trial so long; ``fit`` is the median train
    accuracy of the last round that counts; ``left_out`` are rounds, of a seed each, that do not.
    """

    study: Study
    rounds: int
    areas: Mapping[str, Mapping[int, float]]
    again: Counter[str]
    bad: Counter[str]
    behind: tuple[str, ...]
    fit: float | None
    left_out: int = 0

    @property
    def title(self) -> str:
        """The experiment, as tables call it."""
        return self.study.title

    @property
    def whole(self) -> bool:
        """Whether all rounds of the experiment count, so that its areas can stand beside others."""
        return self.rounds > self.study.experiment.rounds

    def marks(self, method: str) -> str:
        """What a number of this method must not be read without."""
        kinds = (("†", self.again[method]), ("‡", self.bad[method]))
        return "".join(f" {mark}{number}" for mark, number in kinds if number)

    def means(self) -> dict[str, Auc]:
        """Mean and deviation over seeds."""
        return {method: mean_std(by_seed.values()) for method, by_seed in self.areas.items()}


def counted(study: Study, sound: bool = False) -> Counted:
    """Count so many rounds of a study that the most trials, and long ones, do.

    If ``sound``, a round in which a network trained badly is left out for all methods of its seed,
    whoever comes off better by that.
    """
    lengths = [len(trial.rounds) for trial in study.all if len(trial.rounds) > 1]
    rounds = max(set(lengths), key=lambda r: r * r * sum(n >= r for n in lengths), default=0)
    long = [t for t in study.all if rounds and len(t.rounds) >= rounds]
    trials = [replace(trial, rounds=trial.rounds[:rounds]) for trial in long]
    bad = health.unhealthy(trials, study.experiment.classes)
    left_out = {(one.trial.seed, one.round.number) for one in bad if sound}
    areas: dict[str, dict[int, float]] = {}
    for trial in trials:
        kept = [r for r in trial.rounds if (trial.seed, r.number) not in left_out]
        if len(kept) > 1:
            curve = [r.n_labelled for r in kept], [r.accuracy for r in kept]
            areas.setdefault(trial.method, {})[trial.seed] = 100 * area_under_curve(*curve)
    return Counted(
        study,
        rounds,
        {method: areas[method] for method in ordered(areas)},
        Counter(trial.method for trial, _ in health.restarted(trials)),
        Counter(one.trial.method for one in bad if not sound),
        tuple(method for method in study.trials if method not in areas),
        health.fit(replace(trial, rounds=trial.rounds[-1:]) for trial in trials),
        len(left_out),
    )


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods as they stand in `METHODS`, the default first, others by name at the end."""
    known = ["Default", *METHODS]
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


def studies(here: Path, part: str) -> list[Study]:
    """All that is packed of a part."""
    archive = here / part / "runs.tar.xz"
    return _unpacked(archive) if archive.exists() else []


@functools.cache
def _unpacked(archive: Path) -> list[Study]:
    with tempfile.TemporaryDirectory() as place:
        packed.unpack(archive, Path(place))
        return folder.read(Path(place)).studies


def found(here: Path, parts: Sequence[str], sound: bool = False) -> list[Counted]:
    """What counts of some parts, experiment by experiment, where it is half of the rounds."""
    some = [study for part in parts for study in sorted(studies(here, part), key=_place)]
    every = [counted(study, sound) for study in some]
    return [one for one in every if 2 * one.rounds > one.study.experiment.rounds]


def _place(study: Study) -> tuple[str, float, int]:
    """Settings in their order, those with noise after those without."""
    setup = study.experiment
    return setup.dataset, setup.pool_noise, ("noshift", "shift", "narrow").index(setup.setting)


class Gap(NamedTuple):
    """A method less another over the seeds that both have: mean, half of 95 %, p."""

    seeds: int
    mean: float
    half: float
    p: float


def gaps(one: Counted, name: str = "Default") -> dict[str, Gap]:
    """A method less each other, p by Holm's rule over all of them."""
    ours = one.areas.get(name, {})
    tests = {}
    for method, theirs in one.areas.items():
        both = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
        if method != name and both:
            test, n = paired(ours, theirs), len(both)
            deviation = np.std(both, ddof=1) if n > 1 else math.nan
            half = stats.t.ppf(0.975, n - 1) * deviation / math.sqrt(n) if n > 1 else math.nan
            tests[method] = Gap(n, float(np.mean(both)), half, test.p if test else math.nan)
    order = sorted((m for m in tests if tests[m].seeds > 1), key=lambda m: tests[m].p)
    for method, p in zip(order, holm_adjusted([tests[m].p for m in order]), strict=True):
        tests[method] = tests[method]._replace(p=p)
    return tests


def holm_adjusted(ascending: Sequence[float]) -> list[float]:
    """p-values by Holm's step-down rule, of p-values that ascend.

    >>> holm_adjusted([0.01, 0.03, 0.04])
    [0.03, 0.06, 0.06]
    """
    scaled = [p * (len(ascending) - i) for i, p in enumerate(ascending)]
    return np.minimum(np.maximum.accumulate(scaled), 1).tolist()


def in_paper(one: Counted) -> dict[str, Auc]:
    """The paper's figures of an experiment, for methods that we have too."""
    figures = {method: published.auc(one.study.experiment, method) for method in one.areas}
    return {method: auc for method, auc in figures.items() if auc}
