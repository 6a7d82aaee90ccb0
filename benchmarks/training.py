"""Milliseconds of a training iteration and network, alone and side by side.

    python benchmarks/training.py [--device cuda] [--network vgg16] [--size 32] [--models 1 4 8 16]

Timed are iterations in the midst of a training by `foresee.training.fit_all`, without what comes
before the first and after the last. On a CPU networks are trained one after another, and one is
timed.
"""

import argparse
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from foresee import networks
from foresee.recipe import Recipe
from foresee.training import Request, Training, fit_all

FIRST, LAST = 101, 501  # iterations whose losses are looked at: then the GPU is done with them


@dataclass(frozen=True)
class Build:
    """Builds a network by name for images of a size."""

    network: str
    size: int

    def __call__(self, seed: int) -> nn.Sequential:
        build = networks.vgg16 if self.network == "vgg16" else networks.small_cnn
        body = build(10, self.size, 3, seed=seed)
        return nn.Sequential(networks.Standardise([0.5] * 3, [0.3] * 3), *body)


def milliseconds(
    build: Build,
    models: int,
    precision: Literal["float32", "bfloat16"],
    device: str = "cuda",
) -> float:
    """Time an iteration of one of several networks on noise: what images show does not matter."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2000, 3, build.size, build.size), np.uint8)
    inputs, labels = torch.from_numpy(pixels).to(device), np.arange(2000) % 10
    recipe = Recipe(LAST, learning_rate=1e-4, precision=precision)
    times = {}
    outcomes = fit_all(
        [
            Request(
                build(seed).to(device),
                inputs,
                labels,
                recipe,
                np.random.default_rng(seed),
                lambda done: times.update({done: time.perf_counter()}),  # the last one's count
            )
            for seed in range(models)
        ]
    )
    assert all(isinstance(outcome, Training) for outcome in outcomes), outcomes
    return 1e3 * (times[LAST] - times[FIRST]) / (LAST - FIRST) / models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="small_cnn", choices=["vgg16", "small_cnn"])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--models", type=int, nargs="+", default=[1, 4, 8, 16])
    args = parser.parse_args()
    build, on_cpu = Build(args.network, args.size), args.device == "cpu"
    precisions: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    for precision in precisions[:1] if on_cpu else precisions:
        for models in (1,) if on_cpu else args.models:
            ms = milliseconds(build, models, precision, args.device)
            print(
                f"{args.network} {args.size}×{args.size} {precision} on {args.device}: {ms:.3f} ms "
                f"an iteration and network, {models} side by side",
                flush=True,
            )


if __name__ == "__main__":
    main()
