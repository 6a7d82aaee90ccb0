"""Strategies that look at every point by itself: the highest scores win, or chance does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.types import Array, Score, View

CHUNK = 64 << 20
"""Bytes of pool predictions that are held at once."""


@dataclass(frozen=True)
class Random:
    """Label points drawn uniformly at random."""

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ``size`` distinct positions."""
        checks.count("size", size, len(view.pool), of="the pool")
        return rng.choice(len(view.pool), size, replace=False)


@dataclass(frozen=True)
class TopK:
    """Label the points with the highest scores.

    ``candidates`` (J in the paper) and ``targets`` (L) draw random subsets of the pool and of the
    validation set; None takes all, ``targets=0`` is for scores that look at no target.
    ``point=True`` scores the point predictions [n c] in place of draws.

    The pool streams through in chunks of ``chunk`` bytes of predictions, or of the targets' size
    if that is larger: memory does not grow with the pool. Equal scores are ordered at random.
    """

    score: Score
    candidates: int | None = None
    targets: int | None = None
    point: bool = False
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < 1:
            raise checks.InputError(f"candidates must be None or at least 1, got {self.candidates}")
        if self.targets is not None and self.targets < 0:
            raise checks.InputError(f"targets must be None or at least 0, got {self.targets}")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates, best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        scores = self._scores(view, order, rng)
        # The order is random and the sort is stable: ties fall to the generator.
        return order[np.argsort(-scores, kind="stable")[:size]]

    def _scores(
        self, view: View, order: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[Any]:
        predict = view.posterior.point if self.point else view.posterior.predict
        val: tuple[Any, ...] = ()
        if not self.point:
            val = (None if self.targets == 0 else predict(self._draw_targets(view, rng)),)
        parts, start, rows = [], 0, 1
        while start < len(order):
            probs = predict(view.pool[order[start : start + rows]])
            parts.append(_numpy(self.score(probs, *val)))
            start += len(probs)
            # A score prepares its targets on every call: chunks at least as large repay that.
            budget = max([self.chunk, *(v.nbytes for v in val if v is not None)])
            rows = max(1, budget // (probs.nbytes // len(probs)))
        return np.concatenate(parts)

    def _draw_targets(self, view: View, rng: np.random.Generator) -> Any:
        if self.targets is None or self.targets >= len(view.val):
            return view.val
        return view.val[rng.choice(len(view.val), self.targets, replace=False)]


def draw_candidates(
    view: View, size: int, candidates: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of the pool, or of a random subset to pick ``size`` from, in random order."""
    checks.count("size", size, len(view.pool), of="the pool")
    if candidates is not None:
        checks.count("size", size, candidates, of="the candidates")
    return rng.permutation(len(view.pool))[:candidates]


def _numpy(values: Array) -> NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, Tensor) else values
