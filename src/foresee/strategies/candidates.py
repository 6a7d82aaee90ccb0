"""What every strategy starts from: the points to choose from, the targets, their predictions."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.types import Array, View

CHUNK = 64 << 20
"""Bytes of pool predictions that are held at once."""


def check_subsets(candidates: int | None, targets: int | None, fewest: int = 1) -> None:
    """Check the sizes of random subsets of the pool and of the validation set."""
    if candidates is not None and candidates < 1:
        raise InputError(f"candidates must be None or at least 1, got {candidates}")
    if targets is not None and targets < fewest:
        raise InputError(f"targets must be None or at least {fewest}, got {targets}")


def draw_candidates(
    view: View, size: int, candidates: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of the pool, or of a random subset to pick ``size`` from, in random order."""
    checks.count("size", size, len(view.pool), of="the pool")
    if candidates is not None:
        checks.count("size", size, candidates, of="the candidates")
    return rng.permutation(len(view.pool))[:candidates]


def draw_targets(view: View, targets: int | None, rng: np.random.Generator) -> Any:
    """The validation set, or a random subset of it."""
    if targets is None or targets >= len(view.val):
        return view.val
    return view.val[rng.choice(len(view.val), targets, replace=False)]


def predict_in_chunks(
    predict: Callable[[Any], Any], pool: Any, order: NDArray[np.int64], budget: int = CHUNK
) -> Iterator[Any]:
    """Predict for the points in this order, ``budget`` bytes of predictions at a time."""
    start, rows = 0, 1  # one row tells how large a row is
    while start < len(order):
        probs = predict(pool[order[start : start + rows]])
        yield probs
        start += len(probs)
        rows = max(1, budget // (probs.nbytes // len(probs)))


def draws(name: str, values: Any) -> Tensor:
    """Checked probabilities [n t c] on the device they came on, as float32 or float64."""
    checks.draws(name, values)
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    values = values.detach()
    checks.rows_sum_to_one(name, values)
    return values if values.dtype == torch.float64 else values.float()


def numpy(values: Array) -> NDArray[Any]:
    """Return the values as a NumPy array."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def matrix(name: str, value: Array) -> Float[Tensor, "n d"]:
    """Return finite numbers on the CPU, as float32 or float64; shares memory where it can."""
    if not isinstance(value, Tensor):
        # Torch cannot read all strides and complains about read-only memory.
        value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    value = value.detach().cpu()
    value = value if value.dtype == torch.float64 else value.float()
    if value.ndim != 2 or not bool(value.isfinite().all()):
        raise InputError(
            f"{name} must be a finite matrix, one row for each point; got shape "
            f"{list(value.shape)}: flatten the rows or, if they are flat, look for a diverged model"
        )
    return value
