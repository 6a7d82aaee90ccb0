"""The laws that scores, posteriors and strategies obey, to run against your own.

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
from scipy.special import softmax

from foresee import arrays, checks
from foresee.errors import InputError
from foresee.types import Posterior, Score, Strategy, View


def random_draws(
    rng: np.random.Generator, n: int, t: int, c: int, spread: float = 1.0, seed: int = 0
) -> NDArray[np.float64]:
    """Probabilities [n t c] of a random linear model with ``t`` draws of its weights.

    >>> random_draws(np.random.default_rng(0), n=5, t=4, c=3).shape
    (5, 4, 3)

    Arrays made with the same ``seed`` share the draws, whatever ``rng``: a pool and a validation
    set of one model. ``spread`` is the standard deviation of a logit over draws.
    """
    weights = np.random.default_rng(seed).standard_normal((t, 4, c))
    logits = np.einsum("nd,tdc->ntc", rng.standard_normal((n, 4)), weights) * spread / 2
    return np.asarray(softmax(logits + 2 * rng.standard_normal((n, 1, c)), axis=-1))


def check_score(
    score: Score,
    *,
    nonnegative: bool = True,
    class_symmetric: bool = True,
    float32_error: float = 1e-5,
) -> None:
    """Check a score against the laws of a score.

    Args:
        score: the function (pool [n t c], val [m t c]) -> [n].
        nonnegative: the score promises never to be below 0.
        class_symmetric: renaming the classes changes nothing.
        float32_error: largest error of a float32 score, in standard deviations of the scores.

    Raises:
        AssertionError: a law is broken; the message says which.

    >>> from foresee import bald
    >>> check_score(bald)
    """
    for c in (2, 3, 10):
        for spread in (0.1, 3.0):
            rng = np.random.default_rng(c)
            pool, val = random_draws(rng, 31, 12, c, spread), random_draws(rng, 9, 12, c, spread)
            _check_score_on(score, pool, val, rng, nonnegative, class_symmetric, float32_error)
    certain = np.eye(3)[np.random.default_rng(0).integers(3, size=(8, 6))]
    law = "one score for each pool point, finite on exact zeros and ones"
    _obeys(law, checks.scores, _name(score), score(certain, certain), len(certain))


def _check_score_on(
    score: Score,
    pool: NDArray[np.float64],
    val: NDArray[np.float64],
    rng: np.random.Generator,
    nonnegative: bool,
    class_symmetric: bool,
    float32_error: float,
) -> None:
    law = "one score for each pool point, a finite real number"

    def scored(pool: Any, val: Any, **options: Any) -> Any:
        found = score(pool, val, **options)
        _obeys(law, checks.scores, _name(score), found, len(pool))
        return found

    before = pool.copy(), val.copy()
    base = scored(pool, val)
    unmoved = np.array_equal(pool, before[0]) and np.array_equal(val, before[1])
    _require(unmoved, "pool and val are left as they were")
    n, t, c = pool.shape
    _require(isinstance(base, np.ndarray), "NumPy arrays give a NumPy array")
    _require(not nonnegative or base.min() >= 0, f"non-negative: {base.min()}")

    def unchanged(law: str, other: Any, expected: Any = base) -> None:
        worst = float(np.abs(other - expected).max())
        _require(worst <= 1e-9 * (np.abs(base).max() + 1e-9), f"{law}: changed by {worst:.3g}")

    some = rng.permutation(n)[:7]
    unchanged("a score depends on its own row only", scored(pool[some], val), base[some])
    for size in (1, 8):
        parts = [scored(pool[i : i + size], val) for i in range(0, n, size)]
        unchanged("chunk sizes do not matter", np.concatenate(parts))
    if "scratch" in inspect.signature(score).parameters:
        unchanged("the cap on memory does not matter", scored(pool, val, scratch=1 << 14))
    unchanged("the order of targets does not matter", scored(pool, val[rng.permutation(len(val))]))
    draws, classes = rng.permutation(t), rng.permutation(c)
    unchanged("the order of draws does not matter", scored(pool[:, draws], val[:, draws]))
    twice = np.repeat(np.arange(t), 2)
    unchanged("duplicated draws change nothing", scored(pool[:, twice], val[:, twice]))
    if class_symmetric:
        unchanged("names of classes do not matter", scored(pool[..., classes], val[..., classes]))

    tensor = scored(torch.from_numpy(pool), torch.from_numpy(val))
    _require(isinstance(tensor, torch.Tensor), "torch tensors give a torch tensor")
    unchanged("tensors and arrays agree", arrays.numpy(tensor))

    pool32, val32 = pool.astype(np.float32), val.astype(np.float32)
    exact = scored(pool32.astype(np.float64), val32.astype(np.float64))
    error = np.abs(scored(pool32, val32) - exact).max()
    _require(
        error <= float32_error * exact.std() + 1e-30,
        f"float32 agrees with float64: error {error:.3g}, sd of scores {exact.std():.3g}",
    )


def check_strategy(strategy: Strategy) -> None:
    """Check a strategy against the laws of a strategy.

    Args:
        strategy: the function (view, size, rng) -> positions in ``view.pool``, int64 [size].

    Raises:
        AssertionError: a law is broken; the message says which.

    >>> from foresee import Random
    >>> check_strategy(Random())
    """
    view = random_view(np.random.default_rng(0))
    n = len(view.pool)
    for size in (1, 7, n):
        before = _global_random_state()
        picks = strategy(_Sealed(**vars(view)), size, np.random.default_rng(size))
        _require(_global_random_state() == before, "randomness comes from rng alone")
        _require(isinstance(picks, np.ndarray) and picks.dtype == np.int64, "int64 positions")
        law = f"{size} positions in the pool, no pick twice"
        _obeys(law, checks.picks, _name(strategy), picks, size, n)
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


def check_sampler(
    build: Callable[[], Posterior],
    inputs: Any,
    *,
    model: torch.nn.Module | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Check that a posterior has one parameter vector per draw, whatever it is asked.

    Args:
        build: makes the posterior, the same one every time.
        inputs: an array or tensor [n …] of at least 5 different rows.
        model: the network it wraps, which must be left as it was.
        tolerance: largest difference of probabilities: products of other shapes round otherwise.

    Raises:
        AssertionError: a law is broken; the message says which.

    >>> weights = np.random.default_rng(0).standard_normal((8, 2, 3))  # of 8 draws
    >>> check_sampler(lambda: LinearPosterior(weights), np.random.default_rng(1).random((9, 2)))
    """
    before = None if model is None else _state(model)
    posterior = build()

    def predict(rows: Any) -> NDArray[Any]:
        probs = arrays.numpy(posterior.predict(rows))
        _require(probs.ndim == 3, f"predict gives [n t c]: shape {probs.shape}")
        return probs

    n = len(inputs)
    if n < 5:
        raise InputError(f"inputs must be at least 5 different rows, got {n}: pass more")
    seen: Any = inputs if isinstance(inputs, np.ndarray | torch.Tensor) else []
    given = arrays.numpy(seen).copy()
    probs = predict(inputs)
    _require(np.array_equal(arrays.numpy(seen), given), "inputs are left as they were")
    _require(len(probs) == n, f"predict gives [n t c]: shape {probs.shape} for {n} inputs")
    _require(probs.shape[1] >= 2, "at least two draws")
    _require(probs.min() >= 0 and np.abs(probs.sum(2) - 1).max() < 1e-4, "rows sum to one")

    def same_draws(law: str, other: NDArray[Any], expected: NDArray[Any] = probs) -> None:
        _require(other.shape == expected.shape, f"{law}: shape {other.shape}")
        worst = float(np.abs(other - expected).max())
        _require(worst <= tolerance, f"{law}: changed by {worst:.3g}")

    same_draws("two calls give the same draws", predict(inputs))
    for size in (1, 3):
        for some in (slice(i, i + size) for i in range(0, n, size)):
            same_draws(f"batches of {size} give the same draws", predict(inputs[some]), probs[some])
    order = np.arange(n)[::-1].copy()
    same_draws("another order gives the same draws", predict(inputs[order]), probs[order])
    twice = predict(inputs[np.array([0, 0])])
    same_draws("equal inputs get equal draws", twice[0], twice[1])
    covariance = twice[0].astype(np.float64).var(0).sum()  # of two labels, over equal classes
    _require(covariance > 1e-15, "labels of equal inputs are correlated: draws disagree")
    few = order[:2]
    fresh = arrays.numpy(build().predict(inputs[few]))
    same_draws("the same seed gives the same draws, whatever is asked first", fresh, probs[few])

    point = arrays.numpy(posterior.point(inputs))
    _require(point.shape == (n, probs.shape[2]), f"point gives [n c]: shape {point.shape}")
    _require(point.min() >= 0 and np.abs(point.sum(1) - 1).max() < 1e-4, "rows of point sum to one")
    part = arrays.numpy(posterior.point(inputs[few]))
    same_draws("point looks at each row alone", part, point[few])
    try:
        embedding = arrays.numpy(posterior.embed(inputs))
    except ValueError:  # not every model has one, but it must say so clearly
        pass
    else:
        _require(embedding.ndim == 2 and len(embedding) == n, "embed gives [n d]")
        scale = max(1.0, float(np.abs(embedding).max()))
        part = arrays.numpy(posterior.embed(inputs[few]))
        same_draws("embed looks at each row alone", part / scale, embedding[few] / scale)
    if model is not None:
        _require(_state(model) == before, "the wrapped model is left as it was")


def _state(model: torch.nn.Module) -> list[Any]:
    tensors = [(name, x.cpu().numpy().tobytes()) for name, x in model.state_dict().items()]
    flags = [p.requires_grad for p in model.parameters()]
    modes = [
        (m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    return [tensors, flags, modes]


@dataclass(frozen=True)
class LinearPosterior:
    """A softmax-linear model with random weights [t d c]: a posterior for tests."""

    weights: NDArray[np.float64]

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Probabilities of every draw [n t c]."""
        logits = np.einsum("nd,tdc->ntc", inputs, self.weights)
        return np.asarray(softmax(logits, axis=-1), np.float32)

    def point(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Probabilities of the mean weights [n c]."""
        return np.asarray(softmax(inputs @ self.weights.mean(0), axis=-1), np.float32)

    def embed(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """The inputs themselves [n d]."""
        return inputs.astype(np.float32)


def random_view(
    rng: np.random.Generator, n: int = 40, m: int = 11, t: int = 8, c: int = 3, d: int = 5
) -> View:
    """A view of n + m random inputs [d] under a `LinearPosterior` of t draws and c classes."""
    posterior = LinearPosterior(rng.standard_normal((t, d, c)))
    labelled, pool, val = (rng.standard_normal((size, d)) for size in (4 * c, n, m))
    return View(posterior, labelled, np.arange(4 * c) % c, pool, val)


class _Sealed(View):
    """A view that says so when a strategy reaches for more than it holds."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks, as for a copy
            raise AttributeError(name)
        raise AssertionError(f"broken law: a strategy sees no label, but asked for view.{name}")


def _global_random_state() -> tuple[Any, ...]:
    legacy = np.random.get_state()  # noqa: NPY002
    return str(legacy), torch.get_rng_state().numpy().tobytes()


def _obeys(law: str, check: Callable[..., Any], *args: Any) -> None:
    try:
        check(*args)
    except InputError as error:
        raise AssertionError(f"broken law: {law}: {error}") from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _require(holds: Any, law: str) -> None:
    if not holds:
        raise AssertionError(f"broken law: {law}")
