"""Milliseconds of a training iteration and network, alone and side by side.

    python benchmarks/training.py [--device cuda] [--network vgg16] [--size 32] [--models 1 4 8 16]

Times are differences of a longer and a shorter training, by `foresee.training.fit_all`: without
what comes before the first iteration and after the last. On a CPU networks are trained one after
another, and one is timed.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

from foresee import networks
from foresee.recipe import Recipe
from foresee.training import Request, Training, fit_all

SHORT, LONG = 100, 400  # iterations


def seconds(build: "Build", iterations: int, models: int, precision: str, device: str) -> float:
    """Train on noise: what the images show does not matter for the time."""
    rng = np.random.default_rng(0)
    size = build.size
    pixels = torch.from_numpy(rng.integers(0, 256, (2000, 3, size, size), np.uint8)).to(device)
    recipe = Recipe(iterations, learning_rate=1e-4, precision=precision)  # type: ignore[arg-type]
    requests = [
        Request(build(i).to(device), pixels, np.arange(2000) % 10, recipe, rng.spawn(1)[0])
        for i in range(models)
    ]
    start = time.perf_counter()
    outcomes = fit_all(requests)
    assert all(isinstance(outcome, Training) for outcome in outcomes), outcomes
    return time.perf_counter() - start


class Build:
    """Builds a network by name for images of a size."""

    def __init__(self, network: str, size: int) -> None:
        self.network, self.size = network, size

    def __call__(self, seed: int) -> nn.Sequential:
        build = networks.vgg16 if self.network == "vgg16" else networks.small_cnn
        body = build(10, self.size, 3, seed=seed)
        return nn.Sequential(networks.Standardise([0.5] * 3, [0.3] * 3), *body)


def milliseconds(build: Build, models: int, precision: str, device: str = "cuda") -> float:
    """Time an iteration of one of several networks, after all was set up by a training."""
    seconds(build, 1, 1, precision, device)
    short, long = (seconds(build, n, models, precision, device) for n in (SHORT, LONG))
    return 1e3 * (long - short) / (LONG - SHORT) / models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="small_cnn", choices=["vgg16", "small_cnn"])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--models", type=int, nargs="+", default=[1, 4, 8, 16])
    args = parser.parse_args()
    build, on_cpu = Build(args.network, args.size), args.device == "cpu"
    for precision in ("float32",) if on_cpu else ("float32", "bfloat16"):
        for models in (1,) if on_cpu else args.models:
            ms = milliseconds(build, models, precision, args.device)
            print(
                f"{args.network} {args.size}×{args.size} {precision} on {args.device}: {ms:.3f} ms "
                f"an iteration and network, {models} side by side",
                flush=True,
            )


if __name__ == "__main__":
    main()
