"""k-means++: points far apart, each drawn by its squared distance to the nearest one before.

D² only falls, so old values serve to propose points; accepted with chance D²(now) / D²(old), they
follow the exact law, and all points catch up with many picks at once, in one matrix product.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

# Points proposed from the same D²; those accepted are then taken into account together.
PROPOSALS = 64

# Of float32 products, with a margin: what is closer than that is the same.
RESOLUTION = 2e-6
_TILE = 1 << 20  # distances computed at once (4 MiB), to at most so many centres
_COLUMNS = 1024


class Vectors(Protocol):
    """Points of a space where only distances are known."""

    # Squared lengths.
    squares: Float[Tensor, "n"]

    def squared(self, i: Any, j: Any, /) -> Float[Tensor, "i j"]:
        """Squared distances between the points at positions i and those at j."""


def approach(
    far: Float[Tensor, "n"], k: int, squared: Callable[[slice, slice], Float[Tensor, "i j"]]
) -> None:
    """Lower ``far`` to the distance to the nearest of k centres, a tile of all pairs at a time."""
    columns = max(1, min(k, _COLUMNS))
    rows = _TILE // columns
    for j in range(0, k, columns):
        for i in range(0, len(far), rows):
            tile = far[i : i + rows]
            found = squared(slice(i, i + rows), slice(j, j + columns)).amin(1)
            torch.minimum(tile, found, out=tile)


def kmeanspp(
    vectors: Vectors, size: int, rng: np.random.Generator, *, from_origin: bool = False
) -> NDArray[np.int64]:
    """Choose ``size`` points by k-means++, each ∝ its squared distance to the nearest pick.

    The first is drawn uniformly, or, with the origin for a pick that comes for free, ∝ its square.
    """
    n = len(vectors.squares)
    nearest = vectors.squares.cpu() if from_origin else torch.full((n,), torch.inf)
    picks = fresh = rng.integers(n, size=0 if from_origin else 1)
    while len(picks) < size:
        if len(fresh):
            _add_centres(nearest, vectors, fresh)
        if not bool(nearest.any()):
            # Every point equals a pick.
            others = np.setdiff1d(np.arange(n), picks)
            fresh = rng.choice(others, size - len(picks), replace=False)
        else:
            fresh = _draw(nearest.numpy(), vectors, rng)[: size - len(picks)]
        picks = np.append(picks, fresh)
    return picks


def _add_centres(nearest: Float[Tensor, "n"], vectors: Vectors, centres: NDArray[np.int64]) -> None:
    approach(nearest, len(centres), lambda i, j: vectors.squared(i, centres[j]))
    nearest[centres] = 0


def _draw(
    stale: NDArray[np.float32], vectors: Vectors, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a few points, each ∝ D² given those before; the first proposal is always accepted."""
    cumulative = np.cumsum(stale, dtype=np.float64)
    levels = rng.random(PROPOSALS) * cumulative[-1]
    proposals = np.searchsorted(cumulative, levels, side="right")  # never one with D² = 0
    between = vectors.squared(proposals, proposals).numpy()
    current = stale[proposals]
    needed = rng.random(PROPOSALS) * current
    accepted: list[int] = []
    for k, proposal in enumerate(proposals):
        if needed[k] < current[k]:
            accepted.append(proposal)
            np.minimum(current, between[k], out=current)
            current[proposals == proposal] = 0
    return np.array(accepted)
