"""Strategies that score every point by itself: the highest scores win."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.types import Score, View

CHUNK = 64 << 20
"""Bytes of pool predictions that are held at once."""


@dataclass(frozen=True)
class TopK:
    """Label the points with the highest scores.

    ``candidates`` (J in the paper) and ``targets`` (L) draw random subsets of the pool and of the
    validation set; None takes all, ``targets=0`` is for scores that look at no target.
    ``point=True`` gives the score the point predictions [n c] in place of draws.

    The pool streams through in chunks of ``chunk`` bytes of predictions (or of the targets' size,
    if that is larger), so memory does not grow with it. Equal scores are ordered at random.
    """

    score: Score
    candidates: int | None = None
    targets: int | None = None
    point: bool = False
    chunk: int = CHUNK

    def __call__(
        self, view: View, size: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates, best first."""
        n = len(view.pool)
        checks.count("size", size, n, of="the pool")
        if self.candidates is not None:
            checks.count("size", size, self.candidates, of="the candidates")
        order = rng.permutation(n)[: self.candidates]
        scores = self._scores(view, order, rng)
        # The order is random and the sort stable: ties fall to the generator.
        return order[np.argsort(-scores, kind="stable")[:size]]

    def _scores(
        self, view: View, order: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[Any]:
        predict = view.posterior.point if self.point else view.posterior.predict
        against: tuple[Any, ...] = ()
        if not self.point:
            against = (None if self.targets == 0 else predict(self._targets(view, rng)),)
        parts, size = [], 1
        for start in _growing(len(order), lambda: size):
            probs = predict(_rows(view.pool, order[start : start + size]))
            parts.append(_numpy(self.score(probs, *against)))
            size = self._rows_per_chunk(probs, *against)
        return np.concatenate(parts)
