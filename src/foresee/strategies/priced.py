"""Greedy conditioning where labels have prices: always the label with the largest gain per price.

The equations are those of `drawspace`, with S = F Fᵀ. All labels are followed: E W F and M of each
are brought up to date after every pick, by

    E W F ← E W F − (E K)(Kᵀ F),    M ← M − (E K)(E K)ᵀ.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import draw_candidates, gathered, pool_draws, target_draws
from foresee.strategies.drawspace import explained, target_gram
from foresee.strategies.greedy import coarsened
from foresee.types import View


@dataclass(frozen=True, eq=False)
class Priced:
    """Label the point whose label lowers the expected Brier loss most per price, again and again.

    Args:
        costs: the price of each point of the pool [n], positive.
        classes: classes of a point that are told apart, as in `GreedyConditioning`.
        noise: the share of a label's variance that is error, likewise.

    >>> from foresee.testing import random_view
    >>> view, costs = random_view(np.random.default_rng(0), n=40), np.ones(40)
    >>> Priced(costs)(view, 3, np.random.default_rng(0))
    array([24, 34, 15])
    >>> costs[34] = 1000
    >>> 34 in Priced(costs)(view, 3, np.random.default_rng(0))
    False
    """

    costs: NDArray[np.float64]
    classes: int = 16
    noise: float = 1e-3

    def __post_init__(self) -> None:
        costs = np.asarray(arrays.numpy(self.costs, "costs"), np.float64)
        if costs.ndim != 1 or not (np.isfinite(costs).all() and (costs > 0).all()):
            raise InputError("costs must be positive and finite [n], one for each point")
        object.__setattr__(self, "costs", costs)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, None, rng)
        if len(order) != len(self.costs):
            raise InputError(
                f"costs must be one for each of the {len(order)} points of the pool, got "
                f"{len(self.costs)}"
            )
        val = target_draws(view, None, rng)

        def rows() -> Iterator[Float[Tensor, "k c t"]]:
            for probs in pool_draws(view, order, val):
                yield explained(coarsened(probs, self.classes))

        E = gathered(rows(), len(order))
        with tiled.full_precision():
            picks = _select(
                E,
                tiled.root(target_gram(val)).to(E),
                torch.from_numpy(self.costs[order]),
                size,
                self.noise,
            )
        return order[picks]


def _select(
    E: Float[Tensor, "n c t"],
    F: Float[Tensor, "t t"],
    costs: Float[Tensor, "n"],
    size: int,
    noise: float,
) -> list[int]:
    n, c, t = E.shape
    W = torch.eye(t).to(E)
    EWF = E @ F
    M = (1 + noise) * torch.eye(c).to(E).repeat(n, 1, 1)
    costs, picks = costs.to(E), list[int]()
    while True:
        L = torch.linalg.cholesky(M)
        gains = torch.linalg.solve_triangular(L, EWF, upper=False).square().sum((1, 2)) / costs
        gains[picks] = -1.0
        pick = int(gains.argmax())
        picks.append(pick)
        if len(picks) == size:
            return picks
        K = torch.linalg.solve_triangular(L[pick], E[pick] @ W, upper=False).mT  # [t c]
        W = W - K @ K.mT
        EK = E @ K
        EWF -= EK @ (K.mT @ F)
        M -= EK @ EK.mT
