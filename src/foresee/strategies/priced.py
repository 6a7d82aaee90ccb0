"""The default's greedy conditioning where labels have prices: always the largest gain per price.

The equations are those of `drawspace`; all labels are followed, in float64.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import (
    draw_candidates,
    gathered,
    pool_draws,
    target_draws,
    with_draws,
)
from foresee.strategies.drawspace import Labels, reflected, target_gram
from foresee.strategies.greedy import GreedyConditioning, coarsened
from foresee.types import View


@dataclass(frozen=True, eq=False)
class Priced:
    """Label the point whose label lowers the expected Brier loss most per price, again and again.

    Args:
        costs: the price of each point of the pool [n], positive.
        classes: classes of a point that are told apart, as in `GreedyConditioning`.
        noise: ε, likewise, if ``aleatoric`` is False.

    >>> from foresee.testing import random_view
    >>> view, costs = random_view(np.random.default_rng(0), n=40), np.ones(40)
    >>> Priced(costs)(view, 3, np.random.default_rng(0))
    array([34, 11,  6])
    >>> costs[11] = 1000
    >>> 11 in Priced(costs)(view, 3, np.random.default_rng(0))
    False
    """

    costs: NDArray[np.float64]
    classes: int = 16
    noise: float | None = None

    def __post_init__(self) -> None:
        costs = arrays.numpy(arrays.tensor(self.costs, "costs").double())
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
        rule = GreedyConditioning(classes=self.classes, noise=self.noise, aleatoric=False)
        view = with_draws(view, lambda classes: rule.enough_draws(size, classes))
        val = target_draws(view, None, rng)
        noise = rule.enough_noise(size, *val.shape[1:])
        pool = pool_draws(view, order, val)
        rows = (reflected(coarsened(probs.double(), self.classes)) for probs in pool)
        with tiled.full_precision():
            labels = Labels(gathered(rows, len(order)), target_gram(val), noise, rule.aleatoric)
            return order[_select(labels, torch.from_numpy(self.costs[order]), size)]


def _select(labels: Labels, costs: Float[Tensor, "n"], size: int) -> NDArray[np.int64]:
    costs, survey, picks = costs.to(labels.E), labels.survey(), list[Tensor]()
    everybody = costs.new_zeros(1)  # a bound that all reach
    for _ in range(size):
        pick = (survey.scores(everybody) / costs).argmax(0, keepdim=True)
        survey.take(labels, pick, pick)
        picks.append(pick)
    return torch.cat(picks).cpu().numpy()
