"""The laws that scores and strategies obey, to run against your own.

>>> from foresee import mell
>>> check_score(mell)

A broken law raises AssertionError and says which.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foresee.types import Score, Strategy, View


def random_draws(
    rng: np.random.Generator, n: int, t: int, c: int, spread: float = 1.0, seed: int = 0
) -> NDArray[np.float64]:
    """Probabilities [n t c] of a random linear model with ``t`` draws of its weights.

    Arrays made with the same ``seed`` share the draws, whatever ``rng``: a pool and a validation
    set of one model. ``spread`` is the standard deviation of a logit over draws.
    """
    weights = np.random.default_rng(seed).standard_normal((t, 4, c))
    logits = np.einsum("nd,tdc->ntc", rng.standard_normal((n, 4)), weights) * spread / 2
    return _softmax(logits + 2 * rng.standard_normal((n, 1, c)))


def check_score(
    score: Score,
    *,
    nonnegative: bool = True,
    class_symmetric: bool = True,
    float32_error: float = 1e-5,
) -> None:
    """Check a score (pool [n t c], val [m t c]) -> [n] against the laws of a score.

    ``nonnegative``: the score promises never to be below 0. ``class_symmetric``: renaming the
    classes changes nothing. ``float32_error``: largest error of a float32 score, in standard
    deviations of the scores.
    """
    for c in (2, 3, 10):
        for spread in (0.1, 3.0):
            rng = np.random.default_rng(c)
            pool, val = random_draws(rng, 31, 12, c, spread), random_draws(rng, 9, 12, c, spread)
            _check_score_on(score, pool, val, rng, nonnegative, class_symmetric, float32_error)
    certain = np.eye(3)[np.random.default_rng(0).integers(3, size=(8, 6))]
    _require(np.isfinite(score(certain, certain)).all(), "finite on exact zeros and ones")


def _check_score_on(
    score: Score,
    pool: NDArray[np.float64],
    val: NDArray[np.float64],
    rng: np.random.Generator,
    nonnegative: bool,
    class_symmetric: bool,
    float32_error: float,
) -> None:
    base = score(pool, val)
    n, t, c = pool.shape
    _require(isinstance(base, np.ndarray), "NumPy arrays give a NumPy array")
    _require(base.shape == (n,), f"one score for each pool point: shape {base.shape} != ({n},)")
    _require(np.isfinite(base).all(), "finite")
    _require(not nonnegative or base.min() >= 0, f"non-negative: {base.min()}")

    def unchanged(law: str, other: Any, expected: Any = base) -> None:
        worst = float(np.abs(other - expected).max())
        _require(worst <= 1e-9 * (np.abs(base).max() + 1e-9), f"{law}: changed by {worst:.3g}")

    some = rng.permutation(n)[:7]
    unchanged("a score depends on its own row only", score(pool[some], val), base[some])
    for size in (1, 8):
        parts = [score(pool[i : i + size], val) for i in range(0, n, size)]
        unchanged("chunk sizes do not matter", np.concatenate(parts))
    if "scratch" in inspect.signature(score).parameters:
        tight: Callable[..., Any] = score
        unchanged("the cap on memory does not matter", tight(pool, val, scratch=1 << 14))
    unchanged("the order of targets does not matter", score(pool, val[rng.permutation(len(val))]))
    draws, classes = rng.permutation(t), rng.permutation(c)
    unchanged("the order of draws does not matter", score(pool[:, draws], val[:, draws]))
    twice = np.repeat(np.arange(t), 2)
    unchanged("duplicated draws change nothing", score(pool[:, twice], val[:, twice]))
    if class_symmetric:
        unchanged("names of classes do not matter", score(pool[..., classes], val[..., classes]))

    tensor = score(torch.from_numpy(pool), torch.from_numpy(val))
    _require(isinstance(tensor, torch.Tensor), "torch tensors give a torch tensor")
    unchanged("tensors and arrays agree", tensor.numpy())

    pool32, val32 = pool.astype(np.float32), val.astype(np.float32)
    exact = score(pool32.astype(np.float64), val32.astype(np.float64))
    error = np.abs(score(pool32, val32) - exact).max()
    _require(
        error <= float32_error * exact.std() + 1e-30,
        f"float32 agrees with float64: error {error:.3g}, sd of scores {exact.std():.3g}",
    )


def check_strategy(strategy: Strategy) -> None:
    """Check a strategy (view, size, rng) -> positions against the laws of a strategy."""
    view = random_view(np.random.default_rng(0))
    n = len(view.pool)
    for size in (1, 7, n):
        before = _global_random_state()
        picks = strategy(_Sealed(*_values(view)), size, np.random.default_rng(size))
        _require(_global_random_state() == before, "randomness comes from rng alone")
        _require(isinstance(picks, np.ndarray) and picks.dtype == np.int64, "int64 positions")
        _require(picks.shape == (size,), f"{size} picks: shape {picks.shape}")
        _require(len(set(picks.tolist())) == size, "no pick twice")
        _require(picks.min() >= 0 and picks.max() < n, "picks are positions in the pool")
        again = strategy(view, size, np.random.default_rng(size))
        _require(np.array_equal(picks, again), "the same seed gives the same picks")
    fresh = random_view(np.random.default_rng(0))
    for field in fields(View):
        if field.name != "posterior":
            same = np.array_equal(getattr(view, field.name), getattr(fresh, field.name))
            _require(same, f"view.{field.name} is left as it was")
    for size in (0, n + 1):
        try:
            strategy(view, size, np.random.default_rng(0))
        except ValueError:
            continue
        _require(False, f"size = {size} of a pool of {n} is an error")


@dataclass(frozen=True)
class LinearPosterior:
    """A softmax-linear model with random weights [t d c]: a posterior for tests."""

    weights: NDArray[np.float64]

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Probabilities of every draw [n t c]."""
        logits = np.einsum("nd,tdc->ntc", inputs, self.weights)
        return _softmax(logits).astype(np.float32)

    def point(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Probabilities of the mean weights [n c]."""
        return _softmax(inputs @ self.weights.mean(0)).astype(np.float32)

    def embed(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """The inputs themselves [n d]."""
        return inputs.astype(np.float32)


def random_view(
    rng: np.random.Generator, n: int = 40, m: int = 11, t: int = 8, c: int = 3, d: int = 5
) -> View:
    """A view of random inputs under a `LinearPosterior`."""
    posterior = LinearPosterior(rng.standard_normal((t, d, c)))
    labelled, pool, val = (rng.standard_normal((size, d)) for size in (4 * c, n, m))
    return View(posterior, labelled, np.arange(4 * c) % c, pool, val)


class _Sealed(View):
    """A view that says so when a strategy reaches for more than it holds."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"broken law: a strategy sees no label, but asked for view.{name}")


def _values(view: View) -> list[Any]:
    return [getattr(view, field.name) for field in fields(View)]


def _global_random_state() -> tuple[Any, ...]:
    legacy = np.random.get_state()  # noqa: NPY002
    return str(legacy), torch.get_rng_state().numpy().tobytes()


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _require(holds: Any, law: str) -> None:
    if not holds:
        raise AssertionError(f"broken law: {law}")
