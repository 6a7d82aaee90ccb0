"""What a learner is made with, checked; `foresee.learner.answers` checks what it is told."""

import math
import reprlib
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, checks, seeding
from foresee.errors import InputError


def prices_of(costs: Any, strategy: Any, n: int) -> NDArray[np.float64] | None:
    """The price of each of ``n`` rows, where there are some."""
    if costs is None:
        return None
    if strategy is not None:
        raise InputError(
            "costs are for the strategy by default, and strategy is given: leave one out, or let "
            "the strategy know the prices"
        )
    prices = np.empty(0)
    with suppress(TypeError, ValueError):
        prices = np.asarray(arrays.numpy(costs, "costs"), np.float64)
    if prices.shape != (n,) or not (np.isfinite(prices).all() and (prices > 0).all()):
        raise InputError(
            f"costs must be positive, one for each of the {n} rows of the pool in their order, got "
            f"{reprlib.repr(costs)}"
        )
    return prices


def check_width(pool: Any, target: Any) -> None:
    """Check that rows of a table are as long in both; columns of frames have names instead."""
    shapes: list[list[int]] = []
    for rows in (pool, target):
        data = rows.data if isinstance(rows, arrays.Rows) else rows
        named = hasattr(data, "iloc") or arrays.is_polars(data)
        shapes.append([] if named else list(getattr(data, "shape", ())))
    widths = {math.prod(shape[1:]) for shape in shapes}
    if all(shapes) and 2 in map(len, shapes) and len(widths) > 1:
        raise InputError(
            f"target must have the columns of pool {shapes[0]}, got {shapes[1]}: pass rows of the "
            "same kind"
        )


def check_numbers(seed: Any, holdout: Any, draws: Any, candidates: Any, targets: Any) -> None:
    """Check those that are numbers."""
    seeding.check_number(seed)
    if isinstance(holdout, bool) or not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise InputError(f"holdout must be a share, 0 ≤ holdout < 1, got {holdout!r}: 0.1 is usual")
    checks.n_draws(draws)
    for name, size in (("candidates", candidates), ("targets", targets)):
        if size is not None:
            checks.count(name, size, 1 << 40, of="any set")


def check_strategy(strategy: Any) -> None:
    """Check that it is None or can be called as one."""
    if strategy is not None and (
        isinstance(strategy, type) or not checks.takes(strategy, "view, size, rng")
    ):
        raise InputError(
            f"strategy must be a function (view, size, rng) -> positions, got {strategy!r}: "
            "pass an object, as in BatchMell(), and a score as TopK(mell)"
        )
