"""Draws that agree more than they are right: greedy conditioning by two accounts of noise.

    python benchmarks/sure.py --seeds 6 --jobs 2 --csv benchmarks/sure.csv

On digits, less dropout makes surer draws: with 0.02 they explain a fiftieth of the test loss; those
of VGG16 on MNIST, a twentieth. Batches of 10, 40 and 100 labels are chosen among the whole pool by
conditioning that takes for noise what the draws do not explain, by conditioning that does not, by
herding of the target, and by the default. Printed are the area under the learning curve × 100 less
that of BADGE from the same networks, mean ± standard error over seeds, and what share of the loss
the draws explain: what all labels of the pool together promise over the Brier loss, a mean over
rounds of BADGE. `sure.csv` holds the means that docs/theory.md and docs/methods.md show.
"""

import argparse
import csv
import warnings
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from draws import BATCHES
from foresee import (
    Badge,
    Default,
    DrawsWarning,
    GreedyConditioning,
    UncertaintyHerding,
    networks,
)
from foresee.lab import data, loop, methods, paper
from foresee.lab.data import splits
from foresee.lab.experiment import Method
from foresee.lab.report.statistics import area_under_curve
from foresee.lab.samplers import DropoutNetwork
from foresee.types import Strategy

SETTINGS = ("no shift", "shift", "narrow")
DROPOUTS = (0.5, 0.02)
STRATEGIES: dict[str, Strategy] = {
    "BADGE": Badge(),
    "aleatoric": GreedyConditioning(targets=1000),
    "not aleatoric": GreedyConditioning(targets=1000, aleatoric=False),
    "TargetUHerding": UncertaintyHerding(cover="target"),
    "Default": Default(),
}
CSV = Path(__file__).with_suffix(".csv")


class Mean(NamedTuple):
    """A row of the file: what a strategy brought, over seeds."""

    dropout: float
    setting: str
    batch: int
    method: str
    seeds: int
    auc: float
    less_badge: float
    error: float
    explained: float


@dataclass(frozen=True)
class Sure(DropoutNetwork):
    """The MLP of digits with another probability of dropout."""

    dropout: float = 0.5

    def build(self, seed: int) -> nn.Sequential:
        body = networks.mlp(self.image_size**2, self.classes, dropout=self.dropout, seed=seed)
        return nn.Sequential(networks.Standardise(self.mean, self.std), *body)


def trial(
    dropout: float, setting: str, batch: tuple[int, int], name: str, seed: int
) -> tuple[float, float]:
    """Area under the curve × 100, and the share of the loss that the draws explain."""
    warnings.simplefilter("ignore", DrawsWarning)
    images = data.load("digits")
    setup = paper.experiment("digits", shift=setting == "shift", narrow=setting == "narrow")
    setup = replace(setup, n_query=batch[0], rounds=batch[1])
    usual = methods.method("Random", setup, *networks.statistics(images.pixels)).sampler
    assert isinstance(usual, DropoutNetwork)
    known = {field.name: getattr(usual, field.name) for field in fields(usual)}
    method = Method(name, Sure(**known, dropout=dropout), STRATEGIES[name])
    task = splits.task(images, splits.split(images, setup, seed))
    rounds = list(loop.run(setup, method, seed, task))
    area = area_under_curve([r.n_labelled for r in rounds], [r.accuracy for r in rounds])
    told = [r.promise_pool / r.brier for r in rounds if r.promise_pool is not None]
    return 100 * area, float(np.mean(told))


def read(path: Path = CSV) -> list[Mean]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Mean(float(p), s, int(b), m, int(k), *map(float, rest)) for p, s, b, m, k, *rest in rows
    ]


def main() -> None:
    """Print a row for every strategy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="a file for the means")
    given = parser.parse_args()
    cases = list(product(DROPOUTS, SETTINGS, BATCHES, STRATEGIES))
    work = [(*case, seed) for case in cases for seed in range(given.seeds)]
    results = Parallel(n_jobs=given.jobs, return_as="generator")(delayed(trial)(*w) for w in work)
    shown = track(results, total=len(work), console=Console(stderr=True))
    found = dict(zip(work, shown, strict=True))
    means = []
    for p, setting, batch, name in cases:
        seeds = range(given.seeds)
        ours, badge = (
            np.array([found[p, setting, batch, m, seed] for seed in seeds]) for m in (name, "BADGE")
        )
        less = ours[:, 0] - badge[:, 0]
        error = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else 0.0
        numbers = (ours[:, 0].mean(), less.mean(), error)
        auc, gap, error = (round(float(number), 2) for number in numbers)
        told = round(float(badge[:, 1].mean()), 3)
        means.append(Mean(p, setting, batch[0], name, len(less), auc, gap, error, told))
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([Mean._fields, *means])
    table = Table("dropout", "batches of", "method", *SETTINGS, "explained")
    for p, (size, _), name in product(DROPOUTS, BATCHES, list(STRATEGIES)[1:]):
        rows = [m for m in means if (m.dropout, m.batch, m.method) == (p, size, name)]
        cells = [f"{row.less_badge:+.1f} ± {row.error:.1f}" for row in rows]
        shares = " ".join(f"{row.explained:.0%}" for row in rows)
        table.add_row(f"{p:g}", str(size), name, *cells, shares)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
