"""baal's heuristics and batchbald_redux as strategies of foresee: both choose from draws alone."""

import inspect
import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.interop.models import contained
from foresee.strategies.candidates import check_request, gathered, pool_draws, target_draws
from foresee.types import View

# So little that entropies do not show it, so much that a product of twenty is no zero.
_TINY = 1e-15


def from_baal(kind: type[Any], /, **settings: Any) -> "BaalStrategy":
    """Take a heuristic of baal as a strategy.

    Args:
        kind: the class, such as ``baal.active.heuristics.BALD``.
        settings: its arguments; the size of the batch is passed on where it asks for it.

    >>> class FirstClass:  # as baal's are: [n c t] -> the order of the points
    ...     def __call__(self, predictions, target_predictions=None):
    ...         return predictions[:, 0].mean(-1).argsort()[::-1]
    ...     def compute_score(self, predictions, target_predictions=None): ...
    >>> from foresee.testing import random_view
    >>> from_baal(FirstClass)(random_view(np.random.default_rng(0)), 2, np.random.default_rng(0))
    array([11,  2])
    """
    return BaalStrategy(kind, settings)


@dataclass(frozen=True)
class BaalStrategy:
    """A heuristic of baal; `from_baal` makes it."""

    kind: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, type) and hasattr(self.kind, "compute_score")):
            raise InputError(
                f"kind must be a class of baal.active.heuristics, got {self.kind!r}: pass the "
                "class itself, and its arguments by name"
            )
        self._made(1)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        check_request(view, size, rng)
        n = len(view.pool)
        given = [_classes_first(gathered(pool_draws(view, np.arange(n)), n))]
        if _needs(self.kind.compute_score, "target_predictions"):
            given.append(_classes_first(target_draws(view, None, rng)))
        with contained(rng):
            ranks = np.asarray(self._made(size)(*given))
        return checks.picks(self.kind.__name__, ranks[:size], size, n)

    def _made(self, size: int) -> Any:
        takes = inspect.signature(self.kind).parameters
        sizes = {name: size for name in ("num_samples", "query_size") if name in takes}
        try:
            return self.kind(**{**sizes, **self.settings})
        except TypeError as error:
            raise InputError(f"settings of {self.kind.__name__} do not fit: {error}") from None


def _classes_first(draws: Tensor) -> NDArray[Any]:
    """[n t c] as baal has it, [n c t]."""
    return draws.transpose(1, 2).contiguous().cpu().numpy()


def _needs(function: Any, name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def from_batchbald_redux(samples: int = 10_000) -> "ReduxStrategy":
    """Take the BatchBALD of batchbald_redux as a strategy.

    Args:
        samples: label vectors that stand for all, its ``num_samples``.

    >>> from_batchbald_redux(samples=1000)
    ReduxStrategy(samples=1000)
    """
    return ReduxStrategy(samples)


@dataclass(frozen=True)
class ReduxStrategy:
    """BatchBALD by batchbald_redux; `from_batchbald_redux` makes it."""

    samples: int = 10_000

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        try:
            from batchbald_redux.batchbald import get_batchbald_batch
        except ModuleNotFoundError as error:
            raise InputError(
                f"batchbald_redux cannot be used ({error}): pip install --no-deps batchbald_redux "
                "toma psutil tqdm, as its torchvision is not needed"
            ) from None
        check_request(view, size, rng)
        n = len(view.pool)
        # It takes 0 log 0 for NaN, and NaN for the largest.
        draws = gathered(pool_draws(view, np.arange(n)), n).cpu().double().clamp_min(_TINY)
        with contained(rng), redirect_stderr(io.StringIO()):  # of its progress bars
            batch = get_batchbald_batch(draws.log(), size, self.samples, dtype=torch.double)
        return checks.picks("batchbald_redux", batch.indices, size, n)
