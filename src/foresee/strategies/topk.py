"""Strategies that look at every point by itself: the highest scores win, or chance does."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import checks
from foresee.errors import InputError
from foresee.strategies.candidates import (
    CHUNK,
    check_request,
    check_subsets,
    draw_candidates,
    draw_targets,
    predict_in_chunks,
)
from foresee.types import Score, View


@dataclass(frozen=True)
class Random:
    """Label points drawn uniformly at random.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> Random()(view, 3, np.random.default_rng(0))
    array([24, 20, 32])
    """

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ``size`` distinct positions in ``view.pool`` [size]."""
        check_request(view, size, rng)
        return rng.choice(len(view.pool), size, replace=False)


@dataclass(frozen=True)
class TopK:
    """Label the points with the highest scores.

    Args:
        score: maps draws of the pool [n t c] and of the targets [m t c] to scores [n].
        candidates: size of a random subset of the pool to choose from (J in the paper); None: all.
            The highest scores of a large pool are alike; docs/methods.md says how many did well.
        targets: size of a random subset of the validation set (L); None: all, 0: none, for scores
            that look at no target.
        point: score the point predictions [n c] in place of draws; the score takes these alone.
        chunk: bytes of predictions that are held at once, or as many as the targets need if those
            are more: memory does not grow with the pool.

    Equal scores are ordered at random.

    >>> from foresee import mell
    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> TopK(mell, candidates=20)(view, 3, np.random.default_rng(0))
    array([24, 11, 10])
    """

    score: Score | Callable[[Any], Any]
    candidates: int | None = None
    targets: int | None = None
    point: bool = False
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets, fewest=0)
        checks.byte_count("chunk", self.chunk)
        given = "point" if self.point else "pool, val"
        if not checks.takes(self.score, given):
            raise InputError(
                f"score must take ({given}), as point={self.point} has it, got {self.score!r}: "
                "change point, or bind other arguments by functools.partial"
            )

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates [size], best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        scores = self.scores(view, order, rng)
        # The order is random and the sort is stable: ties fall to the generator. The minus of a
        # whole number, which may be unsigned, is not always the opposite.
        return order[np.argsort(-1.0 * scores, kind="stable")[:size]]

    def scores(
        self, view: View, order: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[Any]:
        """Score the points at these positions [k] of the pool: finite numbers [k]."""
        score: Any = self.score
        inner = score
        if isinstance(score, partial):  # the function it was given, or its own: one's own, or eer
            inner = next(filter(callable, score.args), score.func)
        who = getattr(inner, "__name__", type(inner).__name__)
        predict, axes = view.posterior.predict, "n t c"
        val: tuple[Any, ...] = (None,)
        if self.point:
            predict, axes, val = view.posterior.point, "n c", ()
        elif self.targets != 0:
            val = (draw_targets(view, self.targets, rng),)
        # A score prepares its targets on every call: chunks at least as large repay that.
        budget = max([self.chunk, *(v.nbytes for v in val if v is not None)])
        chunks = predict_in_chunks(predict, view.pool, order, budget, axes)
        return np.concatenate([checks.scores(who, score(p, *val), len(p)) for p in chunks])
