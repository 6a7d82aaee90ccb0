"""Batches spread by chance: noise on the scores, or k-means++ where a score is a squared length."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.scores import mell
from foresee.strategies.candidates import (
    check_subsets,
    draw_candidates,
    gathered,
    pool_draws,
    target_draws,
)
from foresee.strategies.drawspace import explained, target_gram
from foresee.strategies.kmeanspp import RESOLUTION, kmeanspp
from foresee.strategies.topk import TopK
from foresee.types import Score, View


@dataclass(frozen=True)
class PowerMell:
    """Label points drawn without replacement, each ∝ score^power (Kirsch et al. 2023).

    It costs what the score costs.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all, 0: none.
        power: how far to trust the score; 0 is chance among points whose score is not zero,
            infinity would be `TopK`. Points of score zero come last.
        score: maps draws [n t c] and [m t c] to scores [n], none of them negative.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> PowerMell()(view, 3, np.random.default_rng(0))
    array([38, 15, 12])
    """

    candidates: int | None = None
    targets: int | None = None
    power: float = 1.0
    score: Score = mell

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets, fewest=0)
        if not 0 <= self.power < np.inf:
            raise InputError(f"power must be at least 0 and finite, got {self.power}")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order they were drawn."""
        order = draw_candidates(view, size, self.candidates, rng)
        scores = TopK(self.score, targets=self.targets).scores(view, order, rng).astype(np.float64)
        if scores.min() < 0:
            raise InputError(
                f"score must not be negative, got {scores.min():.3g}: its power has no meaning"
            )
        # The largest of log-weights with Gumbel noise are a draw without replacement.
        with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0 · log 0
            keys = self.power * np.log(scores) + rng.gumbel(size=len(scores))
        keys[scores == 0] = -np.inf
        return order[np.argsort(-keys, kind="stable")[:size]]


@dataclass(frozen=True)
class MeblPlusPlus:
    """Label points far apart in the space where the squared length of a point is its MEBL.

    k-means++ from the origin: the first pick is drawn in proportion to MEBL, each later one in
    proportion to its squared distance from the origin and the picks before, the nearest of them.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all.
        memory: bytes for the embeddings. Of their c·t dimensions, those along as many principal
            axes r of the targets are kept as fit: a squared length then falls short of MEBL by at
            most λ_{r+1} Σ_c ‖E_c‖² (see `drawspace`).

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> MeblPlusPlus()(view, 3, np.random.default_rng(0))
    array([20, 24, 36])
    """

    candidates: int | None = None
    targets: int | None = None
    memory: int = 512 << 20

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        checks.byte_count("memory", self.memory)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order they were drawn."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        fit = max(1, self.memory // (4 * len(order) * val.shape[2]))
        with tiled.full_precision():
            axes = tiled.root(target_gram(val)).float()[:, -fit:]

        def embedded(probs: Float[Tensor, "k t c"]) -> Float[Tensor, "k c r"]:
            with tiled.full_precision():
                return explained(probs.float()) @ axes

        parts = map(embedded, pool_draws(view, order, val))
        rows = gathered(parts, len(order)).flatten(1)
        with tiled.full_precision():
            return order[kmeanspp(_Euclidean(rows), size, rng, from_origin=True)]


class _Euclidean:
    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows = rows
        # A little short, so that the distance between equal points is zero, not rounding noise.
        self.squares = torch.linalg.vector_norm(rows, dim=1).square_() * (1 - RESOLUTION)

    def squared(self, i: Any, j: Any) -> Float[Tensor, "i j"]:
        sums: Tensor = self.squares[i, None] + self.squares[j]
        return sums.sub_(self.rows[i] @ self.rows[j].T, alpha=2).clamp_(min=0)
