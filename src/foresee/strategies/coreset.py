"""Coreset: cover the pool with balls around labelled points, and make the balls small.

k-centre (Sener and Savarese 2018, arXiv:1708.00489): choose B to minimise the covering radius
max_i min_{j ∈ labelled ∪ B} ‖h_i − h_j‖, with h the embedding. Greedily: label the point farthest
from all centres, again and again; that is at most twice the smallest radius.

Distances to the nearest centre only fall, so old ones are upper bounds: while the farthest point of
a block, whose distances are up to date, beats the bounds of all points outside, it is the farthest
of all. The others catch up with many centres at once, in one matrix product. Points may lie on a
GPU: the host sees blocks alone, and waits for them once for many picks.

Distances come from products in float32; where these leave no digits of them, as beside a point a
million times farther away than others, all picks are made once more in float64.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee.kernels import tiled
from foresee.strategies.candidates import check_request, labelled_embeddings, matrix
from foresee.strategies.kmeanspp import RESOLUTION, approach
from foresee.types import View

# Points with the largest bounds, among which the next picks are made.
BLOCK = 256

_TAKEN = -1.0  # in place of a squared distance: below all of them, so never the farthest


@dataclass(frozen=True)
class Coreset:
    """Greedy k-centre: always the point farthest from what is labelled or chosen already.

    Needs neither draws nor target: it asks the posterior for embeddings [n d]. Equal distances are
    ordered at random.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> Coreset()(view, 3, np.random.default_rng(0))
    array([34, 11, 13])
    """

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        check_request(view, size, rng)
        order = rng.permutation(len(view.pool))  # of equals the first wins: chance says which it is
        rows = matrix("posterior.embed(pool)", view.posterior.embed, view.pool)
        known = labelled_embeddings(view, rows)
        with tiled.full_precision():
            points = rows[order]
            # ‖x‖² + ‖y‖² − 2 xy cancels less around the mean.
            mean = points.mean(0)
            points = points.sub_(mean).float()
            picks, resolved = _k_centre(points, (known - mean).float(), size)
            if not resolved:
                points = rows[order].double()
                middle = points[:BLOCK].median(0).values  # which no outlier takes along
                picks, _ = _k_centre(points.sub_(middle), known - middle, size)
        return order[picks]


def _k_centre(
    points: Float[Tensor, "n d"], known: Float[Tensor, "k d"], size: int
) -> tuple[NDArray[np.int64], bool]:
    """Positions [size], and whether float32 can tell the last, and so all, from other centres."""
    far = points.new_full((len(points),), torch.inf)
    # Without any centre, the first is as far as all.
    picks, centres = ([], known) if len(known) else ([0], points[:1])
    _add_centres(far, points, centres)
    chosen = _farthest_first(points, far, size, picks)
    centres = torch.cat([known, points[chosen]])
    longest = torch.linalg.vector_norm(centres, dim=1).amax()
    from_last = _squared(centres[-1:], centres[:-1])
    return chosen, bool((from_last >= RESOLUTION * longest**2).all())


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
    points: Float[Tensor, "n d"], far: Float[Tensor, "n"], size: int, picks: list[int]
) -> NDArray[np.int64]:
    """Add the farthest point to the picks until there are ``size``. Overwrites ``far``."""
    far[picks] = _TAKEN
    while len(picks) < size:
        fresh = _picks_of_one_block(points, far, size - len(picks))
        picks = picks + fresh
        centres = torch.tensor(fresh, device=far.device)
        _add_centres(far, points, points[centres])
        far.index_fill_(0, centres, _TAKEN)
    return np.array(picks, dtype=np.int64)


def _picks_of_one_block(
    points: Float[Tensor, "n d"], far: Float[Tensor, "n"], most: int
) -> list[int]:
    largest = far.topk(min(BLOCK + 1, len(far)))
    inside = largest.indices[:BLOCK].sort().values
    bound = float(largest.values[BLOCK]) if len(far) > BLOCK else _TAKEN
    between, exact, block = (
        x.cpu().numpy() for x in (_squared(points[inside], points[inside]), far[inside], inside)
    )
    picks: list[int] = []
    while len(picks) < most:
        farthest = exact.argmax()
        if exact[farthest] < bound:
            break
        picks.append(int(block[farthest]))
        np.minimum(exact, between[farthest], out=exact)
        exact[farthest] = _TAKEN
    return picks
