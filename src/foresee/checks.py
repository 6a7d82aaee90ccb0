"""Checks of what users pass in, once, at the public edge: every message names the remedy."""

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.types import Array

_LOOKED_AT = 1 << 22  # numbers at once, for what is wrong with them


def array(name: str, value: Any, axes: str) -> Any:
    """Check float type, rank and that no axis is empty; ``axes`` as in "n t c".

    Returns the tensor, or else the NumPy array of what is nested in lists or frames.
    """
    kind = type(value).__name__
    value = value if isinstance(value, Tensor) else arrays.numpy(value, name)
    if not (value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"):
        got = kind if value.dtype == object else value.dtype
        raise InputError(
            f"{name} must hold probabilities as floats, got {got}: pass predicted "
            f"probabilities [{axes}], not labels or counts"
        )
    shape = tuple(value.shape)
    if len(shape) != len(axes.split()):
        hint = ""
        if axes == "n t c" and len(shape) == 2:
            hint = ": one prediction per input has no draws; stack the predictions of several "
            hint += "posterior draws along axis 1"
        raise InputError(f"{name} must have shape [{axes}], got {list(shape)}{hint}")
    for axis, size in zip(axes.split(), shape, strict=True):
        if size == 0:
            raise InputError(f"{name} is empty: axis {axis} of [{axes}] has length 0")
    if shape[-1] < 2:
        raise InputError(f"{name} has {shape[-1]} class; [{axes}] needs at least 2 classes")
    return value


def draws(name: str, value: Any) -> Any:
    """Check the form of probabilities [n t c] and return them; see `rows_sum_to_one` too."""
    value = array(name, value, "n t c")
    if value.shape[1] < 2:
        raise InputError(
            f"{name} has one draw (t = 1), so there is no posterior to learn from: pass at least "
            "2 draws (MC dropout, an ensemble, a forest's trees), or rank by entropy(point)"
        )
    return value


def same_posterior(pool: Array, val: Array, name: str = "val") -> None:
    """Check that pool and val, known to the caller as ``name``, can come from the same draws."""
    if isinstance(pool, Tensor) is not isinstance(val, Tensor):
        raise InputError(
            f"pool is a {type(pool).__name__} and {name} is a {type(val).__name__}: pass two NumPy "
            "arrays or two torch tensors"
        )
    for axis, what in ((1, "draws t"), (2, "classes c")):
        if pool.shape[axis] != val.shape[axis]:
            raise InputError(
                f"pool and {name} must share {what}: pool is {list(pool.shape)}, {name} is "
                f"{list(val.shape)}; predict both with the same draws of the same model"
            )
    if isinstance(pool, Tensor) and isinstance(val, Tensor) and pool.device != val.device:
        raise InputError(
            f"pool is on {pool.device} and {name} is on {val.device}: move one, "
            f"{name}.to(pool.device)"
        )


def loss_matrix(loss: Any, classes: int) -> Tensor:
    """Check ℓ[y, a]: one row per class, one column per action, finite; return it as a tensor."""
    matrix = arrays.tensor(loss, "loss")
    shape = list(matrix.shape)
    if len(shape) != 2 or shape[0] != classes or shape[1] < 1:
        raise InputError(
            f"loss must have shape [c a] with c = {classes} rows, loss[y, a] being the cost of "
            f"action a when the class is y; got {shape}"
        )
    if not bool(matrix.isfinite().all()):
        raise InputError("loss must be finite: replace NaN and infinity by large costs")
    return matrix


def rows_sum_to_one(name: str, probs: Tensor, offset: int = 0) -> None:
    """Check that values are probabilities; ``offset`` is the position of the first row."""
    tolerance = max(1e-4, 2 * torch.finfo(probs.dtype).eps)
    if probs.dtype.itemsize < 4:
        probs = probs.float()
    if tiled.are_probabilities(probs, tolerance):
        return
    parts = probs.split(max(1, _LOOKED_AT // probs[0].numel()))  # a whole pool may be large
    wrong = (k for k, part in enumerate(parts) if not tiled.are_probabilities(part, tolerance))
    first = next(wrong, 0)
    offset += first * len(parts[0])
    raise InputError(_what_is_wrong(name, parts[first].double(), tolerance, offset))


def whole(name: str, value: Any, fewest: int = 1, optional: bool = False) -> None:
    """Check a whole number that is not below the fewest; or None, if that is an option."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if value < fewest:
        or_none = "None or " if optional else ""
        raise InputError(f"{name} must be {or_none}at least {fewest}, got {value}")


def count(name: str, size: Any, limit: int, of: str) -> None:
    """Check 1 ≤ size ≤ limit."""
    whole(name, size)
    if size > limit:
        raise InputError(f"{name} = {size} is more than the {limit} points of {of}: ask for fewer")


def n_draws(draws: Any) -> None:
    """Check how many draws a posterior is to have."""
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 2:
        raise InputError(
            f"draws must be a whole number, at least 2, got {draws!r}: one draw has no "
            "uncertainty; 100 is usual"
        )


def takes(function: Any, arguments: str) -> bool:
    """Whether it can be called with these arguments by place, as far as it tells.

    >>> takes(lambda *given: 0, "view, size, rng"), takes(lambda view, size: 0, "view, size, rng")
    (True, False)
    """
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        return False
    except ValueError:  # C code does not tell
        return True
    return True


def picks(who: str, values: Any, size: int, n: int) -> NDArray[np.int64]:
    """Check what the strategy ``who`` returned: ``size`` distinct positions in a pool of n."""
    found = arrays.numpy(values, f"what strategy {who} returns")
    problem = ""
    if found.dtype.kind not in "iu":
        problem = f"whole numbers, got {found.dtype}"
    elif found.shape != (size,):
        problem = f"{size} positions [{size}], got shape {list(found.shape)}"
    elif len(found) and not (found.min() >= 0 and found.max() < n):
        problem = f"positions from 0 to {n - 1}, got {found.min()} to {found.max()}"
    elif len(np.unique(found)) < size:
        problem = f"each position once, got {size - len(np.unique(found))} of {size} again"
    if problem:
        raise InputError(f"strategy {who} must return {problem}: mend the strategy")
    return found.astype(np.int64)


def scores(who: str, values: Any, n: int) -> NDArray[Any]:
    """Check what the score ``who`` returned: one finite real number for each of n points."""
    found = arrays.numpy(values, f"what score {who} returns")
    if found.dtype.kind not in "iuf" or found.shape != (n,):
        raise InputError(
            f"score {who} must return one real number for each of the {n} points, got "
            f"{found.dtype} {list(found.shape)}: reduce over draws and classes"
        )
    if not np.isfinite(found).all():
        bad = np.flatnonzero(~np.isfinite(found))
        raise InputError(
            f"score {who} must be finite, got {found[bad[0]]} for {len(bad)} of {n} points"
        )
    return found


def byte_count(name: str, size: Any) -> None:
    """Check an amount of memory."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"{name} must be a whole number of bytes, at least 1, got {size!r}")


def _what_is_wrong(name: str, probs: Tensor, tolerance: float, offset: int) -> str:
    def first(bad: Tensor) -> str:
        index = bad.nonzero()[0].tolist()
        return f"{name}[{', '.join(map(str, [index[0] + offset, *index[1:]]))}]"

    def sums_to_one(values: Tensor, axis: int = -1) -> bool:
        return bool(((values.sum(axis) - 1).abs() <= tolerance).all())

    if not bool(probs.isfinite().all()):
        bad = ~probs.isfinite()
        return (
            f"{first(bad)} is {probs[bad][0].item()}: {name} must be finite; look for a diverged "
            "model or an overflow in its softmax"
        )
    if bool((probs <= 0).all()) and sums_to_one(probs.exp()):
        return f"{name} holds log-probabilities: pass their exp()"
    negative, sums = probs < 0, probs.sum(-1)
    if bool((negative | (probs > 1)).any()) and not bool((sums - 1).abs().amax() <= tolerance):
        lo, hi = probs.amin().item(), probs.amax().item()
        return (
            f"{name} holds values from {lo:.3g} to {hi:.3g} that look like logits: apply softmax "
            "over the last axis first"
        )
    if bool(negative.any()):
        value = probs[negative][0].item()
        return f"{first(negative)} is {value:.3g}: probabilities are never negative"
    if probs.ndim == 3 and sums_to_one(probs, axis=1):
        return (
            f"{name} looks like [n c t], it sums to one over axis 1: swap its last two axes to "
            "get [n t c]"
        )
    error = (sums - 1).abs()
    bad = error >= error.amax().clamp_max(tolerance)  # in float64 a sum may be nearer
    return (
        f"{first(bad)} sums to {sums[bad][0].item():.6g}, not to 1: pass probabilities over all "
        "classes on the last axis"
    )
