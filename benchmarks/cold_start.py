"""A first batch, when nothing is labelled yet: points that cover the target, beside chance.

    python benchmarks/cold_start.py [--seeds 12] [--batch 20]

On digits, a logistic regression of the pixels learns from the batch alone, and is tested on images
like the target: of all digits, or of the narrow target's. Printed is the share that it has right,
mean ± standard error over seeds, and what share of the batch the target counts.
"""

import argparse
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from foresee import Random
from foresee.lab import data, paper
from foresee.seeding import generator
from foresee.strategies.default import ColdStart
from foresee.types import Strategy, View


def trial(narrow: bool, strategy: Strategy, size: int, seed: int) -> tuple[float, float]:
    """The accuracy on the target after a first batch, and the share of the batch inside it."""
    images, setting = data.load("digits"), paper.experiment("digits", narrow=narrow)
    split = data.split(images, setting, seed)
    pixels = images.pixels.reshape(len(images), -1) / 255.0
    no_model: Any = None
    view = View(no_model, None, np.empty(0), pixels[split.pool], pixels[split.val])
    picks = split.pool[strategy(view, size, generator(seed, "first"))]
    learnt = LogisticRegression(max_iter=1000).fit(pixels[picks], images.labels[picks])
    accuracy = learnt.score(pixels[split.test], images.labels[split.test])
    target = np.unique(images.labels[split.test])
    return accuracy, np.isin(images.labels[picks], target).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=20)
    given = parser.parse_args()
    print("| first batch | all digits | narrow target | in the target |\n|---|---|---|---|")
    strategies: dict[str, Strategy] = {"herd": ColdStart(), "chance": Random()}
    for name, strategy in strategies.items():
        cells = []
        for narrow in (False, True):
            found = [trial(narrow, strategy, given.batch, seed) for seed in range(given.seeds)]
            accuracy, inside = 100 * np.array(found).T
            error = accuracy.std(ddof=1) / given.seeds**0.5
            cells.append(f"{accuracy.mean():.0f} ± {error:.0f} %")
        print(f"| {name} | {' | '.join(cells)} | {inside.mean():.0f} % |")


if __name__ == "__main__":
    main()
