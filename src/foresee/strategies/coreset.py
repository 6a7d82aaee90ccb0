"""Coreset: cover the pool with balls around labelled points, and make the balls small.

k-centre (Sener and Savarese 2018, arXiv:1708.00489): choose B to minimise the covering radius
max_i min_{j ∈ labelled ∪ B} ‖h_i − h_j‖, with h the embedding. Greedily: label the point farthest
from all centres, again and again; that is at most twice the smallest radius.

Distances to the nearest centre only fall, so old ones are upper bounds: while the farthest point of
a block, whose distances are up to date, beats the bounds of all points outside, it is the farthest
of all. The others catch up with many centres at once, in one matrix product.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import matrix
from foresee.strategies.kmeanspp import approach
from foresee.types import View

BLOCK = 256
"""Points with the largest bounds, among which the next picks are made."""
REFINABLE = 8192
"""Points of the largest pool that can be refined: all its pairs are held at once."""

_TAKEN = -1.0  # in place of a squared distance: below all of them, so never the farthest


@dataclass(frozen=True)
class Coreset:
    """Greedy k-centre: always the point farthest from what is labelled or chosen already.

    ``refine`` allows that many seconds to shrink the radius by mixed-integer programs that may
    leave ``outliers`` points uncovered; when they are over the best batch so far is returned, which
    then depends on the machine's speed. Equal distances are ordered at random.
    """

    refine: float | None = None
    outliers: int = 0

    def __post_init__(self) -> None:
        if self.refine is not None and not self.refine > 0:
            raise InputError(f"refine must be seconds > 0, or None; got {self.refine}")
        if self.outliers < 0:
            raise InputError(f"outliers must be at least 0, got {self.outliers}")
        if self.outliers and self.refine is None:
            raise InputError("outliers are left out by the refinement only: set refine")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in the pool, in the order of the greedy choice if not refined."""
        n = len(view.pool)
        checks.count("size", size, n, of="the pool")
        if self.refine is not None and n > REFINABLE:
            raise InputError(
                f"refine compares all pairs of at most {REFINABLE} points and the pool has {n}: "
                "pass refine=None or a part of the pool"
            )
        order = rng.permutation(n)  # among equals the first wins: let chance say which is first
        points = matrix("posterior.embed(pool)", view.posterior.embed(view.pool))[order]
        # ‖x‖² + ‖y‖² − 2 xy cancels less around the mean.
        mean = points.mean(0)
        points = points.sub_(mean).float()
        labelled = points[:0]
        if len(view.labelled):
            embedded = view.posterior.embed(view.labelled)
            labelled = (matrix("posterior.embed(labelled)", embedded) - mean).float()
        with tiled.full_precision():
            far = points.new_full((n,), torch.inf)
            _add_centres(far, points, labelled)
            picks = _farthest_first(points, far.clone(), size)
            if self.refine is not None:
                picks = _refine(points, far, picks, self.outliers, self.refine)
        return order[picks]


def _add_centres(
    far: Float[Tensor, "n"], points: Float[Tensor, "n d"], centres: Float[Tensor, "k d"]
) -> None:
    approach(far, len(centres), lambda i, j: _squared(points[i], centres[j]))


def _squared(x: Float[Tensor, "i d"], y: Float[Tensor, "j d"]) -> Float[Tensor, "i j"]:
    """‖x_i − y_j‖²."""
    squares = [torch.linalg.vector_norm(z, dim=1).square_() for z in (x, y)]
    products = torch.addmm(squares[1], x, y.T, alpha=-2)
    return products.add_(squares[0][:, None]).clamp_(min=0)


def _farthest_first(
    points: Float[Tensor, "n d"], far: Float[Tensor, "n"], size: int
) -> NDArray[np.int64]:
    """Add the farthest point to the centres, ``size`` times. Overwrites ``far``."""
    picks: list[int] = []
    while True:
        fresh = _picks_of_one_block(points, far, size - len(picks))
        picks += fresh
        if len(picks) == size:
            return np.array(picks, dtype=np.int64)
        _add_centres(far, points, points[fresh])
        far[fresh] = _TAKEN


def _picks_of_one_block(
    points: Float[Tensor, "n d"], far: Float[Tensor, "n"], most: int
) -> list[int]:
    inside = min(BLOCK, len(far))
    by_bound = np.argpartition(far.numpy(), -inside)
    block, outside = by_bound[-inside:], by_bound[:-inside]
    bound = far.numpy()[outside].max(initial=_TAKEN)
    exact = far.numpy()[block]
    between = _squared(points[block], points[block]).numpy()
    picks: list[int] = []
    while len(picks) < most:
        farthest = exact.argmax()
        if exact[farthest] < bound:
            break
        picks.append(int(block[farthest]))
        np.minimum(exact, between[farthest], out=exact)
        exact[farthest] = _TAKEN
    return picks


def _refine(
    points: Float[Tensor, "n d"],
    far: Float[Tensor, "n"],
    best: NDArray[np.int64],
    outliers: int,
    seconds: float,
) -> NDArray[np.int64]:
    """Find the smallest radius that as many centres can have, by bisection of all distances."""
    deadline = time.monotonic() + seconds
    n, size = len(far), len(best)
    between = _squared(points, points).fill_diagonal_(0)

    def distances(picks: NDArray[np.int64]) -> Float[Tensor, "n"]:
        return torch.minimum(far, between[:, picks].amin(1))

    def radius(picks: NDArray[np.int64]) -> float:
        return float(distances(picks).sort().values[max(0, n - 1 - outliers)])

    reached = radius(best)
    # No radius is below half the greedy one (a quarter when squared, less some rounding), unless
    # outliers are left out.
    least = 0.0 if outliers else 0.249 * reached
    radii = np.unique(torch.cat([x[(least <= x) & (x < reached)] for x in (between, far)]))
    low, high = 0, len(radii)  # those below `low` are impossible, those from `high` on are reached
    while low < high and (left := deadline - time.monotonic()) > 0:
        middle = (low + high) // 2
        near, uncovered = between <= float(radii[middle]), far > float(radii[middle])
        # A hard program must not eat up the time: undecided counts as impossible.
        chosen = _cover(near[uncovered].numpy(), size, outliers, left / 2)
        if chosen is None:
            low = middle + 1
        else:
            rest = distances(chosen)
            rest[chosen] = _TAKEN
            best = np.append(chosen, _farthest_first(points, rest, size - len(chosen)))
            high = int(np.searchsorted(radii, radius(best)))
    return best


def _cover(
    near: NDArray[np.bool_], size: int, outliers: int, seconds: float
) -> NDArray[np.int64] | None:
    """Choose at most ``size`` columns so that every row, but for some outliers, is near to one."""
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    # Unknowns: whether each column is chosen, then whether each row is left out.
    rows, columns = near.shape
    chosen, left_out = np.repeat([1, 0], [columns, rows]), np.repeat([0, 1], [columns, rows])
    covered = sparse.csr_array(np.hstack([near, np.eye(rows, dtype=np.bool_)])).astype(np.float64)
    solution = milp(
        c=np.zeros(columns + rows),
        integrality=chosen,
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(covered, lb=1),
            LinearConstraint(chosen, ub=size),
            LinearConstraint(left_out, ub=outliers),
        ],
        options={"time_limit": seconds},
    )
    return None if solution.x is None else np.flatnonzero(solution.x[:columns] > 0.5)
