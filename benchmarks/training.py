"""Milliseconds of a training iteration, as `foresee.training.fit` takes them.

    python benchmarks/training.py [--device cuda] [--network vgg16] [--sizes 32 64]

On a GPU the steps are recorded and replayed; the same without that is timed beside it.
"""

import argparse

import numpy as np
import torch
from torch import nn

from foresee import networks, training
from foresee.recipe import Recipe
from foresee.training import fit

ITERATIONS = 400


def milliseconds(network: str, size: int, device: str, precision: str) -> float:
    """Train on noise: what the images show does not matter for the time."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (600, 3, size, size), np.uint8)).to(device)
    build = networks.vgg16 if network == "vgg16" else networks.small_cnn
    model = nn.Sequential(networks.Standardise([0.5] * 3, [0.3] * 3), *build(10, size, 3))
    recipe = Recipe(ITERATIONS, learning_rate=1e-4, precision=precision)  # type: ignore[arg-type]
    return fit(model, pixels, np.arange(600) % 10, recipe, rng, device=device).seconds / 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="small_cnn", choices=["vgg16", "small_cnn"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32])
    args = parser.parse_args()
    recording = training._WORTH_RECORDING
    for size in args.sizes:
        for precision in ("float32", "bfloat16") if args.device != "cpu" else ("float32",):
            training._WORTH_RECORDING = recording
            usual = milliseconds(args.network, size, args.device, precision)
            training._WORTH_RECORDING = ITERATIONS + 1
            plain = milliseconds(args.network, size, args.device, precision)
            print(
                f"{args.network} {size}×{size} {precision} on {args.device}: {usual:.2f} ms an "
                f"iteration, {plain:.2f} ms step by step, ratio {plain / usual:.2f}"
            )


if __name__ == "__main__":
    main()
