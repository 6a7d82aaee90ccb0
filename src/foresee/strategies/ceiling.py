"""What no batch of a pool exceeds, from one more pass over it.

In the terms of `drawspace` label i is a look at the draws with the noise N_i, and a batch B lowers
the expected Brier loss on the targets by

    worth(B) = tr S − tr S W,   W = (I + Σ_{i ∈ B} J_i)⁻¹
    J_i [t t] = E_iᵀ N_i⁻¹ E_i,   N_i [k k] = (1 + ε) I − E_i E_iᵀ

Now X ↦ −tr S (I + X)⁻¹ is concave for X ⪰ 0, as the inverse is convex, and a concave function lies
below its tangents. So with the one at Σ_B J_i, for any other batch C, however it was found,

    worth(C) ≤ worth(B) + Σ_{i ∈ C} g_i − Σ_{i ∈ B} g_i,   g_i = tr(J_i W S W)

A slope g_i depends on point i alone: slopes stream and shard as scores do, and the k largest of the
pool bound what any k of its points are worth. What a point outside a shortlist can still gain is
in them, as no point is left out.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from foresee.kernels.elementwise import renormalised
from foresee.strategies.drawspace import reflected, target_gram

_ENTRIES = 1 << 20  # of the predictions that are worked on at once


@dataclass(frozen=True)
class Tangent:
    """The tangent at a batch.

    Attributes:
        A: W S W [t t].
        noise: ε.
        worth: of the batch, a Brier loss.
        own: the sum of the batch's slopes.
        most: tr S, all that there is to know.
    """

    A: Float[Tensor, "t t"]
    noise: float
    worth: float
    own: float
    most: float

    def slopes(self, probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n"]:
        """g of points, in float64."""
        parts = probs.split(max(1, _ENTRIES // probs[0].numel())) if len(probs) else ()
        looks = (_looks(part, self.noise) for part in parts)
        return torch.cat(
            [torch.zeros(0).double(), *(((L @ self.A) * L).sum((1, 2)) for L in looks)]
        )

    def ceiling(self, largest: Float[Tensor, "k"]) -> float:
        """What no k points are worth more than, k slopes being the largest of the pool."""
        return min(self.worth + max(0.0, float(largest.sum()) - self.own), self.most)


def tangent(batch: Float[Tensor, "k t c"], val: Float[Tensor, "m t c"], noise: float) -> Tangent:
    """Find the tangent at a batch.

    Args:
        batch: probabilities [k t c] of its points.
        val: probabilities [m t c] of the targets, by the same draws.
        noise: ε, the share of a label's variance that is error; see `GreedyConditioning`.

    >>> from foresee.testing import random_draws
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> pool, val = (torch.tensor(random_draws(rng, n, t=20, c=3)) for n in (500, 50))
    >>> found = tangent(pool[:5], val, noise=0.05)
    >>> ceiling = found.ceiling(found.slopes(pool).topk(5).values)
    >>> round(found.worth, 3), round(ceiling, 3)
    (0.004, 0.052)
    """
    S = target_gram(renormalised(val))
    L = _looks(batch, noise)
    rows = L.flatten(0, 1)
    W = torch.linalg.inv(torch.eye(len(S), dtype=S.dtype, device=S.device) + rows.T @ rows)
    A = W @ S @ W
    own, most = float(((L @ A) * L).sum()), float(S.trace())
    return Tangent(A, noise, most - float((S * W).sum()), own, most)


def _looks(probs: Float[Tensor, "n t c"], noise: float) -> Float[Tensor, "n k t"]:
    """L with LᵀL = J."""
    E = reflected(renormalised(probs))
    N = (1 + noise) * torch.eye(E.shape[1], dtype=E.dtype, device=E.device) - E @ E.mT
    return torch.linalg.solve_triangular(torch.linalg.cholesky(N), E, upper=False)
