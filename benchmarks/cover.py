"""What herding covers: the pool, the target, or both, while labels are few and when they are many.

    python benchmarks/cover.py --seeds 8 --jobs 2 --csv benchmarks/cover.csv

On digits, 20 + 10 × 20 labels, an MLP, 300 points of the target or 200 where it is narrow. Printed
is the mean accuracy × 100 over the first six rounds and over the last five, less that of BADGE,
from the same networks, mean ± standard error over seeds. `cover.csv` holds what docs/methods.md
tells.
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
from rich.console import Console
from rich.progress import track
from rich.table import Table

from foresee import DrawsWarning, networks
from foresee.lab import data, loop, methods, paper
from foresee.lab.data import splits
from sure import SETTINGS

METHODS = ("BADGE", "GreedySure", "UHerding", "TargetUHerding", "Default")
HALVES = {"first": slice(6), "second": slice(6, None)}
CSV = Path(__file__).with_suffix(".csv")


class Mean(NamedTuple):
    """A row of the file: accuracy × 100 of a method over a half of the rounds, and over seeds."""

    setting: str
    method: str
    half: str
    seeds: int
    accuracy: float
    less_badge: float
    error: float


def trial(setting: str, name: str, seed: int) -> list[float]:
    """Accuracy × 100, round by round."""
    warnings.simplefilter("ignore", DrawsWarning)
    images = data.load("digits")
    setup = paper.experiment("digits", shift=setting == "shift", narrow=setting == "narrow")
    setup = replace(setup, n_query=20, rounds=10)
    method = methods.method(name, setup, *networks.statistics(images.pixels))
    task = splits.task(images, splits.split(images, setup, seed))
    return [100 * r.accuracy for r in loop.run(setup, method, seed, task)]


def read(path: Path = CSV) -> list[Mean]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [Mean(s, m, h, int(k), *map(float, rest)) for s, m, h, k, *rest in rows]


def main() -> None:
    """Print a row for every method."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="a file for the means")
    given = parser.parse_args()
    work = list(product(SETTINGS, METHODS, range(given.seeds)))
    results = Parallel(n_jobs=given.jobs, return_as="generator")(delayed(trial)(*w) for w in work)
    shown = track(results, total=len(work), console=Console(stderr=True))
    rounds = np.reshape(list(shown), (len(SETTINGS), len(METHODS), given.seeds, -1))
    means = []
    for (s, setting), (m, method), half in product(enumerate(SETTINGS), enumerate(METHODS), HALVES):
        ours, badge = (rounds[s, k, :, HALVES[half]].mean(1) for k in (m, 0))
        less = ours - badge
        error = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else 0.0
        numbers = (round(float(number), 2) for number in (ours.mean(), less.mean(), error))
        means.append(Mean(setting, method, half, len(less), *numbers))
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([Mean._fields, *means])
    table = Table("method", *(f"{s}, {half}" for s, half in product(SETTINGS, HALVES)))
    for method in METHODS[1:]:
        rows = [m for m in means if m.method == method]
        table.add_row(method, *(f"{row.less_badge:+.2f} ± {row.error:.2f}" for row in rows))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
