"""The vocabulary of the library: axes, contracts and the values that travel between modules.

Axes, one letter everywhere:

    n  pool points            t  posterior draws      l  labelled points
    m  validation points      c  classes              d  features
    a  actions of a loss

The validation set is an unlabelled sample of the data the model will meet: the target.

``probs [n t c]``: ``probs[i, k]`` is the prediction of draw k for input i. Draw k is ONE parameter
vector, the same for every input, every batch and every call; that is what ties a pool point to a
validation point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays
from foresee.errors import InputError

Array: TypeAlias = NDArray[Any] | Tensor
# The kind of array that came in is the kind that goes out.
A = TypeVar("A", NDArray[Any], Tensor)
# Whatever the model reads, with one row for each example: see `arrays.rows`.
Inputs: TypeAlias = Any


class Score(Protocol):
    """The worth of each pool point, from draws alone; larger = label first.

    Row i of the result depends on row i of the pool only, so scores stream and shard.
    """

    def __call__(self, pool: Any, val: Any, /) -> Any:
        """Map draws of the pool [n t c] and of the validation set [m t c] to scores [n]."""


class Posterior(Protocol):
    """A fitted model with uncertainty: the same draws at every input.

    One that can draw more has a fourth method, ``at_least(draws) -> Posterior``, which returns the
    same posterior with so many draws or more; see `more_draws`.
    """

    def predict(self, inputs: Inputs, /) -> Array:
        """Probabilities of every draw [n t c]."""

    def point(self, inputs: Inputs, /) -> Array:
        """Probabilities of the fitted model itself, without sampling [n c]."""

    def embed(self, inputs: Inputs, /) -> Array:
        """Penultimate representation [n d]."""


def more_draws(posterior: Posterior, draws: int) -> Posterior:
    """Ask for at least so many draws; a posterior that cannot draw more comes back as it is.

    >>> from foresee.networks import mlp
    >>> from foresee.posteriors import mc_dropout
    >>> more_draws(mc_dropout(mlp(features=4, classes=2), draws=10), 300).draws
    300
    """
    ask = getattr(posterior, "at_least", None)
    return posterior if ask is None else ask(draws)


class Sampler(Protocol):
    """Fits a model to labelled data, then draws from its posterior."""

    def __call__(self, inputs: Inputs, labels: Array, rng: np.random.Generator, /) -> Posterior:
        """Fit on the inputs and their labels [l]."""


@dataclass(frozen=True)
class View:
    """All that a strategy may look at. No label of the pool is in it, so none can leak.

    Args:
        posterior: the fitted model; ``predict(inputs)`` gives the probabilities of its draws.
        labelled: inputs [l …] that have a label; None for strategies that do not look at them.
        labels: their labels [l].
        pool: inputs [n …] to choose from.
        val: inputs [m …] of the target; None for strategies that do not look at them.

    Inputs may be arrays, tensors, frames, sparse matrices, lists or map-style Datasets. They are
    read by position, and ``view.val[:]`` is the whole in the form it came in.

    >>> view = View(None, [[0.0]], [1], pool=["a", "b", "c"], val=None)
    >>> view.pool[np.array([2, 0])]
    ['c', 'a']
    """

    posterior: Posterior
    labelled: Inputs
    labels: Array
    pool: Inputs
    val: Inputs

    def __post_init__(self) -> None:
        for name in ("labelled", "pool", "val"):
            inputs = getattr(self, name)
            if inputs is not None or name == "pool":
                object.__setattr__(self, name, arrays.rows(name, inputs))
        if self.labelled is None:
            return
        if not isinstance(self.labels, Tensor):  # a series would be read by its index
            object.__setattr__(self, "labels", arrays.numpy(self.labels, "labels"))
        given: Any = len(self.labels) if self.labels.ndim else self.labels
        if not self.labels.ndim or given != len(self.labelled):
            raise InputError(
                f"labels must be one for each of the {len(self.labelled)} rows of labelled, got "
                f"{given}"
            )


class Strategy(Protocol):
    """Chooses which pool points to label next."""

    def __call__(self, view: View, size: int, rng: np.random.Generator, /) -> NDArray[np.int64]:
        """Return ``size`` distinct positions in ``view.pool``."""


@dataclass(frozen=True)
class Task:
    """Data split for active learning. Labels of the pool can only be bought from the oracle.

    ``in_target`` [n] tells which of the pool are of the target, where that is narrower than the
    pool, ``scrambled`` [n] which are noise, where there is some; no method is shown either.
    """

    n_classes: int
    seed: Inputs
    seed_labels: NDArray[np.int64]
    pool: Inputs
    val: Inputs
    test: Inputs
    test_labels: NDArray[np.int64]
    oracle: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    in_target: NDArray[np.bool_] | None = None
    scrambled: NDArray[np.bool_] | None = None
