"""How many draws a batch needs, and how much noise: greedy conditioning on digits, beside BADGE.

    python benchmarks/draws.py --seeds 8 --jobs 2                  # the rule, and herding
    python benchmarks/draws.py --seeds 8 --jobs 2 --batch 10       # in batches of 10 alone
    python benchmarks/draws.py --seeds 8 --jobs 2 --grid           # every T and ε, and MELL
    python benchmarks/draws.py --grid --csv benchmarks/draws.csv   # and keep the means

In four settings (no shift, shift, a narrow target, and one that the seed set has not seen: none of
its labels is of the target) batches of 10, 40 and 100 labels are chosen among the whole pool by T
draws with noise ε. Printed are the area under the learning curve × 100 less that of BADGE from the
same networks, mean ± standard error over seeds, and, on the narrow target, the share of the labels
that were bought where they count. Minutes for each seed on two cores. `draws.csv` holds the means
that docs/theory.md shows, for the narrow target not of the whole grid.
"""

import argparse
import csv
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from foresee import Badge, DrawsWarning, GreedyConditioning, MaxHerding, TopK, mell, networks
from foresee.lab import data, loop, methods, paper
from foresee.lab.data import splits
from foresee.lab.experiment import Experiment, Method
from foresee.lab.report.statistics import area_under_curve
from foresee.types import Strategy

SETTINGS = ("no shift", "shift", "narrow", "unseen")
# Picks of a batch, and how many batches.
BATCHES = ((10, 8), (40, 2), (100, 2))
DRAWS = (5, 10, 20, 30, 100, 300, 1000)
NOISES = (None, 1e-3, 0.1, 1.0, 10.0)
CSV = Path(__file__).with_suffix(".csv")


class Choice(NamedTuple):
    """A method, its draws T and its noise ε; None: what the method does by itself."""

    method: str
    draws: int | None = None
    noise: float | None = None

    def strategy(self) -> Strategy:
        if self.method == "Greedy":
            return GreedyConditioning(draws=self.draws, noise=self.noise)
        if self.method == "TargetHerding":
            return MaxHerding(cover="target")
        return TopK(mell) if self.method == "MELL" else Badge()


class Mean(NamedTuple):
    """A row of the file: what a choice brought, over seeds."""

    setting: str
    batch: int
    method: str
    draws: str
    noise: str
    seeds: int
    auc: float
    less_badge: float
    error: float
    inside: float


BADGE, RULE, HERDING = Choice("BADGE"), Choice("Greedy"), Choice("TargetHerding")
GRID = [
    *(Choice("Greedy", t, e) for t, e in product(DRAWS, NOISES)),
    *(Choice("MELL", t) for t in (100, 1000)),
]


def experiment(setting: str, batch: tuple[int, int], choice: Choice) -> Experiment:
    narrow = setting in ("narrow", "unseen")
    found = paper.experiment("digits", shift=setting == "shift", narrow=narrow)
    # A strategy can only ask for more draws than there are.
    draws = found.draws if choice.draws is None else choice.draws
    return replace(found, n_query=batch[0], rounds=batch[1], draws=draws)


def trial(setting: str, batch: tuple[int, int], choice: Choice, seed: int) -> tuple[float, float]:
    """Area under the curve × 100, and the share of the labels that the narrow target counts."""
    warnings.simplefilter("ignore", DrawsWarning)
    images = data.load("digits")
    wanted = experiment(setting, batch, choice)
    sampler = methods.method("Random", wanted, *networks.statistics(images.pixels)).sampler
    split = splits.split(images, wanted, seed)
    target = [int(name) for name in paper.experiment("digits", narrow=True).target]
    inside = np.isin(images.labels, target)
    task = splits.task(images, without_target(split, inside) if setting == "unseen" else split)
    method = Method("trial", sampler, choice.strategy())
    rounds = list(loop.run(wanted, method, seed, task))
    area = area_under_curve([r.n_labelled for r in rounds], [r.accuracy for r in rounds])
    bought = np.concatenate([r.labels for r in rounds if r.labels])
    return 100 * area, float(np.isin(bought, target).mean())


def without_target(split: splits.Split, inside: NDArray[np.bool_]) -> splits.Split:
    """The same sets, but what the seed set has of the target has changed places with the pool."""
    seed, pool = split.seed.copy(), split.pool.copy()
    here = np.flatnonzero(inside[seed])
    there = np.flatnonzero(~inside[pool])[: len(here)]
    seed[here], pool[there] = pool[there], seed[here]
    return replace(split, seed=seed, pool=pool)


def mean(
    setting: str,
    batch: int,
    choice: Choice,
    ours: list[tuple[float, float]],
    badge: list[tuple[float, float]],
) -> Mean:
    """One row of paired trials."""
    auc, inside = np.array(ours).T
    less = auc - np.array(badge)[:, 0]
    error = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else 0.0
    drawn, noise = ("" if value is None else f"{value:g}" for value in choice[1:])
    numbers = (round(float(x), 2) for x in (auc.mean(), less.mean(), error, inside.mean()))
    return Mean(setting, batch, choice.method, drawn, noise, len(less), *numbers)


def write(means: list[Mean], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([Mean._fields, *means])


def read(path: Path = CSV) -> list[Mean]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [Mean(s, int(b), m, t, e, int(k), *map(float, rest)) for s, b, m, t, e, k, *rest in rows]


def main() -> None:
    """Print a row for every choice."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--batch", type=int, choices=[size for size, _ in BATCHES])
    parser.add_argument("--grid", action="store_true", help="every T and ε, not the rule alone")
    parser.add_argument("--csv", type=Path, help="a file for the means")
    given = parser.parse_args()
    choices = [RULE, HERDING, *(GRID if given.grid else [])]
    batches = [batch for batch in BATCHES if given.batch in (None, batch[0])]
    work = list(product(SETTINGS, batches, [BADGE, *choices], range(given.seeds)))
    results = Parallel(n_jobs=given.jobs, return_as="generator")(delayed(trial)(*w) for w in work)
    found = dict(
        zip(work, track(results, total=len(work), console=Console(stderr=True)), strict=True)
    )

    def trials(setting: str, batch: tuple[int, int], choice: Choice) -> list[tuple[float, float]]:
        return [found[setting, batch, choice, seed] for seed in range(given.seeds)]

    means = {
        (s, b, c): mean(s, b[0], c, trials(s, b, c), trials(s, b, BADGE))
        for s, b, c in product(SETTINGS, batches, [BADGE, *choices])
    }
    if given.csv:
        write(list(means.values()), given.csv)
    table = Table("batches", "method", "T", "ε", *SETTINGS, "in the target")
    for batch, choice in product(batches, choices):
        rows = [means[setting, batch, choice] for setting in SETTINGS]
        drawn, noise = (value or "rule" for value in rows[0][3:5])
        cells = [f"{row.less_badge:+.1f} ± {row.error:.1f}" for row in rows]
        size = f"{batch[1]} of {batch[0]}"
        table.add_row(size, choice.method, drawn, noise, *cells, f"{rows[2].inside:.0%}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
