"""k-means++: points far apart, each drawn by its squared distance to the nearest one before.

D² only falls, so old values serve to propose points; accepted with chance D²(now) / D²(old), they
follow the exact law, and all points catch up with many picks at once, in one matrix product. Points
may lie on a GPU: the host sees proposals alone, and waits for them once for many picks.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee.strategies.candidates import at_once

# Points proposed from the same D²; those accepted are then taken into account together.
PROPOSALS = 64

# Rounding of a squared distance by float32 products, in squared lengths, with a margin.
RESOLUTION = 2e-6
_TILE = 1 << 20  # distances computed at once (4 MiB), to at most so many centres
_COLUMNS = 1024


class Vectors(Protocol):
    """Points of a space where only distances are known."""

    squares: Float[Tensor, "n"]  # squared lengths

    def squared(self, i: Any, j: Any, /) -> Float[Tensor, "i j"]:
        """Squared distances between the points at positions i and those at j."""


def approach(
    far: Float[Tensor, "n"], k: int, squared: Callable[[slice, slice], Float[Tensor, "i j"]]
) -> None:
    """Lower ``far`` to the squared distance to the nearest of k centres, by tiles of pairs."""
    columns = max(1, min(k, _COLUMNS))
    rows = max(1, at_once(_TILE, far) // columns)
    for j in range(0, k, columns):
        for i in range(0, len(far), rows):
            tile = far[i : i + rows]
            nearest = squared(slice(i, i + rows), slice(j, j + columns)).amin(1)
            torch.minimum(tile, nearest, out=tile)


def kmeanspp(
    vectors: Vectors, size: int, rng: np.random.Generator, *, from_origin: bool = False
) -> NDArray[np.int64]:
    """Choose ``size`` points by k-means++, each ∝ its squared distance to the nearest pick.

    The first is drawn uniformly, or, with the origin for a pick that comes for free, ∝ its square.
    """
    n = len(vectors.squares)
    nearest = vectors.squares.clone()
    if not from_origin:
        nearest.fill_(torch.inf)
    picks = fresh = rng.integers(n, size=0 if from_origin else 1)
    while len(picks) < size:
        if len(fresh):
            _add_centres(nearest, vectors, fresh)
        if not bool(nearest.any()):
            # Every point equals a pick.
            others = np.setdiff1d(np.arange(n), picks)
            fresh = rng.choice(others, size - len(picks), replace=False)
        else:
            fresh = _draw(nearest, vectors, rng)[: size - len(picks)]
        picks = np.append(picks, fresh)
    return picks


def _add_centres(nearest: Float[Tensor, "n"], vectors: Vectors, fresh: NDArray[np.int64]) -> None:
    centres = torch.from_numpy(fresh).to(nearest.device)
    approach(nearest, len(centres), lambda i, j: vectors.squared(i, centres[j]))
    nearest.index_fill_(0, centres, 0)


def _draw(
    stale: Float[Tensor, "n"], vectors: Vectors, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a few points, each ∝ D² given those before; some proposal is nearly always accepted."""
    cumulative = stale.cumsum(0, dtype=torch.float64)
    levels = torch.from_numpy(rng.random(PROPOSALS)).to(stale.device) * cumulative[-1]
    which = torch.searchsorted(cumulative, levels, right=True).clamp_max(len(stale) - 1)
    proposals, current, between = (
        x.cpu().numpy() for x in (which, stale[which], vectors.squared(which, which))
    )
    needed = rng.random(PROPOSALS) * current
    accepted: list[int] = []
    for k, proposal in enumerate(proposals):  # accepted with chance D²(now) / D²(then)
        if needed[k] < current[k]:
            accepted.append(proposal)
            np.minimum(current, between[k], out=current)
            current[proposals == proposal] = 0
    return np.array(accepted, dtype=np.int64)
