"""Strategies that look at every point by itself: the highest scores win, or chance does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import checks
from foresee.errors import InputError
from foresee.strategies.candidates import (
    CHUNK,
    check_subsets,
    draw_candidates,
    draw_targets,
    numpy,
    predict_in_chunks,
)
from foresee.types import Score, View


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

    score: Score | Callable[[Any], Any]
    candidates: int | None = None
    targets: int | None = None
    point: bool = False
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets, fewest=0)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates, best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        scores = self.scores(view, order, rng)
        # The order is random and the sort is stable: ties fall to the generator.
        return order[np.argsort(-scores, kind="stable")[:size]]

    def scores(
        self, view: View, order: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[Any]:
        """Score the points at these positions."""
        predict = view.posterior.point if self.point else view.posterior.predict
        val: tuple[Any, ...] = ()
        if not self.point:
            val = (None if self.targets == 0 else predict(draw_targets(view, self.targets, rng)),)
        score: Any = self.score
        # A score prepares its targets on every call: chunks at least as large repay that.
        budget = max([self.chunk, *(v.nbytes for v in val if v is not None)])
        chunks = predict_in_chunks(predict, view.pool, order, budget)
        return np.concatenate([_one_each(score(probs, *val), len(probs)) for probs in chunks])


def _one_each(scores: Any, points: int) -> NDArray[Any]:
    if tuple(scores.shape) != (points,):
        raise InputError(
            f"score must return one number for each of the {points} points, got "
            f"{list(scores.shape)}: reduce over draws and classes"
        )
    return numpy(scores)
