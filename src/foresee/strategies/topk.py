"""Strategies that look at every point by itself: the highest scores win, or chance does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
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
        raise checks.InputError(
            f"score must return one number for each of the {points} points, got "
            f"{list(scores.shape)}: reduce over draws and classes"
        )
    return numpy(scores)


def check_subsets(candidates: int | None, targets: int | None, fewest: int = 1) -> None:
    """Check the sizes of random subsets of the pool and of the validation set."""
    if candidates is not None and candidates < 1:
        raise checks.InputError(f"candidates must be None or at least 1, got {candidates}")
    if targets is not None and targets < fewest:
        raise checks.InputError(f"targets must be None or at least {fewest}, got {targets}")


def draw_candidates(
    view: View, size: int, candidates: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of the pool, or of a random subset to pick ``size`` from, in random order."""
    checks.count("size", size, len(view.pool), of="the pool")
    if candidates is not None:
        checks.count("size", size, candidates, of="the candidates")
    return rng.permutation(len(view.pool))[:candidates]


def draw_targets(view: View, targets: int | None, rng: np.random.Generator) -> Any:
    """The validation set, or a random subset of it."""
    if targets is None or targets >= len(view.val):
        return view.val
    return view.val[rng.choice(len(view.val), targets, replace=False)]


def predict_in_chunks(
    predict: Callable[[Any], Any], pool: Any, order: NDArray[np.int64], budget: int = CHUNK
) -> Iterator[Any]:
    """Predict for the points in this order, ``budget`` bytes of predictions at a time."""
    start, rows = 0, 1  # one row tells how large a row is
    while start < len(order):
        probs = predict(pool[order[start : start + rows]])
        yield probs
        start += len(probs)
        rows = max(1, budget // (probs.nbytes // len(probs)))


def draws(name: str, values: Any) -> Tensor:
    """Checked probabilities [n t c] on the device they came on, as float32 or float64."""
    checks.draws(name, values)
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    values = values.detach()
    checks.rows_sum_to_one(name, values)
    return values if values.dtype == torch.float64 else values.float()


def numpy(values: Array) -> NDArray[Any]:
    """Return the values as a NumPy array."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values
