"""How many draws a batch needs, and how much noise: greedy conditioning on digits, beside BADGE.

    python benchmarks/draws.py --seeds 8 --jobs 2                  # the rule of the default
    python benchmarks/draws.py --seeds 8 --jobs 2 --grid           # every T and ε

In three settings (no shift, shift, narrow target) batches of 10, 40 and 100 labels are chosen among
the whole pool by T draws with noise ε. Printed are the area under the learning curve × 100 less
that of BADGE from the same networks, mean ± standard error over seeds, and, on the narrow target,
the share of the labels that were bought where they count. Minutes for each seed on two cores.
"""

import argparse
import warnings
from dataclasses import replace
from itertools import product

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from foresee import Badge, DrawsWarning, GreedyConditioning, networks
from foresee.lab import data, loop, methods, paper
from foresee.lab.data import splits
from foresee.lab.experiment import Method
from foresee.lab.report.statistics import area_under_curve
from foresee.types import Strategy

SETTINGS: dict[str, dict[str, bool]] = {
    "no shift": {},
    "shift": {"shift": True},
    "narrow": {"narrow": True},
}
# Picks of a batch, and how many batches.
BATCHES = ((10, 8), (40, 2), (100, 2))
DRAWS = (5, 10, 20, 30, 100, 300, 1000)
NOISES = (1e-3, 0.1, 1.0, 10.0)


def trial(
    setting: str, batch: tuple[int, int], strategy: Strategy, seed: int
) -> tuple[float, float]:
    """Area under the curve × 100, and the share of the labels that the narrow target counts."""
    warnings.simplefilter("ignore", DrawsWarning)
    images = data.load("digits")
    experiment = replace(
        paper.experiment("digits", shift=setting == "shift", narrow=setting == "narrow"),
        n_query=batch[0],
        rounds=batch[1],
    )
    sampler = methods.method("Random", experiment, *networks.statistics(images.pixels)).sampler
    task = splits.task(images, splits.split(images, experiment, seed))
    rounds = list(loop.run(experiment, Method("trial", sampler, strategy), seed, task))
    area = area_under_curve([r.n_labelled for r in rounds], [r.accuracy for r in rounds])
    target = [int(name) for name in paper.experiment("digits", narrow=True).target]
    bought = np.concatenate([r.labels for r in rounds if r.labels])
    return 100 * area, float(np.isin(bought, target).mean())


def main() -> None:
    """Print a row for every choice."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--grid", action="store_true", help="every T and ε, not the rule alone")
    given = parser.parse_args()
    grid = [GreedyConditioning(draws=t, noise=e) for t, e in product(DRAWS, NOISES)]
    choices = [GreedyConditioning(), *(grid if given.grid else [])]
    work = list(product(SETTINGS, BATCHES, [Badge(), *choices], range(given.seeds)))
    results = Parallel(n_jobs=given.jobs, return_as="generator")(delayed(trial)(*w) for w in work)
    found = dict(
        zip(work, track(results, total=len(work), console=Console(stderr=True)), strict=True)
    )
    table = Table("batches", "T", "ε", *SETTINGS, "in the target")
    for batch, choice in product(BATCHES, choices):
        cells = []
        for setting in SETTINGS:
            pairs = [(setting, batch, s, k) for s in (choice, Badge()) for k in range(given.seeds)]
            ours, badge = np.split(np.array([found[pair][0] for pair in pairs]), 2)
            error = (ours - badge).std(ddof=1) / given.seeds**0.5
            cells.append(f"{(ours - badge).mean():+.1f} ± {error:.1f}")
        share = np.mean([found["narrow", batch, choice, k][1] for k in range(given.seeds)])
        drawn, noise = (str(v or "rule") for v in (choice.draws, choice.noise))
        table.add_row(f"{batch[1]} of {batch[0]}", drawn, noise, *cells, f"{share:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
