"""What every strategy starts from: the points to choose from, the targets, their predictions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.types import Array, Posterior, View, more_draws

# Bytes of pool predictions that are held at once.
CHUNK = 64 << 20

_PART = 4096  # rows that are read at once where a pool must be read first
_LONGEST = 4e18  # row, the square of whose distance from another float32 can hold
_SHARE = 16  # parts of free memory, of which the work on one of them needs several


def check_subsets(candidates: int | None, targets: int | None, fewest: int = 1) -> None:
    """Check the sizes of random subsets of the pool and of the validation set."""
    checks.whole("candidates", candidates, optional=True)
    checks.whole("targets", targets, fewest, optional=True)


def check_number(name: str, value: Any, zero: bool = False, optional: bool = False) -> None:
    """Check a finite number above zero, or that may be zero; or None, if that is an option."""
    if optional and value is None:
        return
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or not (0 < value < np.inf or (zero and value == 0)):
        or_none, least = "None or " if optional else "", "at least 0" if zero else "positive"
        raise InputError(f"{name} must be {or_none}{least} and finite, got {value}")


def check_request(view: View, size: int, rng: np.random.Generator) -> None:
    """Check what every strategy is called with."""
    seeding.check(rng)
    checks.count("size", size, len(view.pool), of="the pool")


def check_target(view: View) -> None:
    """Check that there is a validation set, with a point at least."""
    if view.val is None or not len(view.val):
        what = "None" if view.val is None else "empty"
        raise InputError(
            f"view.val is {what}, and this method needs a target: pass an unlabelled sample of the "
            "data that the model will meet, or take a method without a target, such as Badge() or "
            "TopK(bald, targets=0)"
        )


def draw_candidates(
    view: View, size: int, candidates: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of the pool, or of a random subset to pick ``size`` from, in random order."""
    check_request(view, size, rng)
    if candidates is not None:
        checks.count("size", size, candidates, of="the candidates")
    return rng.permutation(len(view.pool))[:candidates]


def draw_targets(view: View, targets: int | None, rng: np.random.Generator) -> Array:
    """Predictions for the validation set, or for a random subset of it; as `predicted`."""
    check_target(view)
    m = len(view.val)
    n = m if targets is None else min(targets, m)
    inputs = view.val[rng.choice(m, n, replace=False) if n < m else slice(None)]
    return predicted("posterior.predict(val)", view.posterior.predict, inputs, n)


def predicted(
    name: str, predict: Callable[[Any], Any], inputs: Any, n: int, axes: str = "n t c"
) -> Array:
    """What a posterior answers for n inputs; checked for its form, not for its values."""
    probs: Array = checks.array(name, predict(inputs), axes)
    _check_rows(name, len(probs), n)
    return probs


def predict_in_chunks(
    predict: Callable[[Any], Any],
    pool: Any,
    order: NDArray[np.int64],
    budget: int = CHUNK,
    axes: str = "n t c",
) -> Iterator[Array]:
    """Predict for the points in this order, ``budget`` bytes of predictions at a time."""
    name = f"posterior.{'predict' if axes == 'n t c' else 'point'}(pool)"
    start, rows = 0, 1  # one row tells how large a row is
    while start < len(order):
        part = order[start : start + rows]
        probs = predicted(name, predict, pool[part], len(part), axes)
        yield probs
        start += len(probs)
        rows = max(1, budget // (probs.nbytes // len(probs)))


def with_draws(view: View, draws: Callable[[int], int]) -> View:
    """The view with at least ``draws(classes)`` draws, where its posterior can make them."""
    if not hasattr(view.posterior, "at_least"):
        return view
    one = predicted("posterior.predict(pool)", view.posterior.predict, view.pool[:1], 1)
    return replace(view, posterior=more_draws(view.posterior, draws(one.shape[2])))


def target_draws(
    view: View, targets: int | None, rng: np.random.Generator
) -> Float[Tensor, "m t c"]:
    """Checked predictions for the validation set, or for a random subset of it."""
    return checked_draws("posterior.predict(val)", draw_targets(view, targets, rng))


def pool_draws(
    view: View,
    order: NDArray[np.int64],
    val: Float[Tensor, "m t c"] | None = None,
    budget: int = CHUNK,
) -> Iterator[Float[Tensor, "k t c"]]:
    """Checked predictions for the points in this order, by the draws behind ``val``, in chunks."""
    for chunk in predict_in_chunks(view.posterior.predict, view.pool, order, budget):
        probs = checked_draws("posterior.predict(pool)", chunk)
        if val is not None:
            checks.same_posterior(probs, val)
        yield probs


def draws_at(
    view: View, name: Literal["pool", "val"], positions: NDArray[np.int64]
) -> Float[Tensor, "k t c"]:
    """Checked predictions for the points at these positions of the pool or the target, at once."""
    answered, inputs = f"posterior.predict({name})", getattr(view, name)[positions]
    draws = predicted(answered, view.posterior.predict, inputs, len(positions))
    return checked_draws(answered, draws)


def checked_draws(name: str, values: Any) -> Float[Tensor, "n t c"]:
    """Checked probabilities, contiguous, on the device they came on, as float32 or float64."""
    probs = arrays.tensor(checks.draws(name, values)).contiguous()
    checks.rows_sum_to_one(name, probs)
    return probs if probs.dtype == torch.float64 else probs.float()


def gathered(parts: Iterator[Tensor], n: int) -> Tensor:
    """Put n rows that come in parts into one tensor, without holding them twice."""
    whole, start = torch.empty(0), 0
    for part in parts:
        if start == 0:
            whole = part.new_empty(n, *part.shape[1:])
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


def at_once(cached: int, like: Tensor) -> int:
    """How many such numbers to work on: what a CPU's cache holds, or a GPU's free memory allows."""
    if not like.is_cuda:
        return cached
    unused = torch.cuda.memory_reserved(like.device) - torch.cuda.memory_allocated(like.device)
    free = torch.cuda.mem_get_info(like.device)[0] + unused
    return max(cached, free // (_SHARE * like.element_size()))


def point_predictions(name: str, posterior: Posterior, inputs: Any) -> Float[Tensor, "n c"]:
    """Checked point predictions of the inputs of this name, as float32 or float64."""
    name = f"posterior.point({name})"

    def checked(some: Any) -> Tensor:
        values = arrays.tensor(posterior.point(some), name)
        probs = checks.array(name, values if values.is_floating_point() else 1.0 * values, "n c")
        checks.rows_sum_to_one(name, probs)
        # Rows of 16 bits are far enough from one for what is computed in more to notice.
        return probs if probs.dtype.itemsize >= 4 else probs.float() / probs.float().sum(1, True)

    return matrix(name, checked, inputs)


def labelled_embeddings(view: View, like: Float[Tensor, "n d"]) -> Float[Tensor, "l d"]:
    """Embeddings of what is labelled, where these others are; none, if nothing is."""
    if view.labelled is None or not len(view.labelled):
        return like[:0]
    name, embed = "posterior.embed(labelled)", view.posterior.embed
    return matrix(name, embed, view.labelled).to(like.device)


def matrix(name: str, function: Callable[[Any], Any], inputs: Any) -> Float[Tensor, "n d"]:
    """One row of finite numbers for each input, where they came, as float32 or float64."""
    n = len(inputs)
    if not isinstance(inputs, arrays.Rows):
        return _finite(name, function(inputs), n)
    starts = range(0, n, _PART)
    rows = (_finite(name, function(inputs[i : i + _PART]), min(_PART, n - i)) for i in starts)
    return gathered(rows, n)


def _finite(name: str, values: Any, n: int) -> Float[Tensor, "n d"]:
    numbers = arrays.tensor(values, name)
    fits = numbers.ndim == 2 and not numbers.is_complex()
    if fits:
        numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
        fits = bool((torch.linalg.vector_norm(numbers, dim=1) <= _LONGEST).all())
    if not fits:
        raise InputError(
            f"{name} must be a finite matrix, one row for each point, none longer than "
            f"{_LONGEST:.0e}; got shape {list(numbers.shape)}: flatten the rows or, if they are "
            "flat, look for a diverged model"
        )
    _check_rows(name, len(numbers), n)
    return numbers


def _check_rows(name: str, rows: int, n: int) -> None:
    if rows != n:
        raise InputError(
            f"{name} must have a row for each of the {n} inputs it was asked for, got {rows} rows: "
            "mend the posterior"
        )
