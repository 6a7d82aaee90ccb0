"""What all bridges share: draws from other people's models, and randomness that stays inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from foresee import checks, seeding
from foresee.errors import InputError
from foresee.posteriors import Forest, members, point
from foresee.training import seeded
from foresee.types import Posterior


def posterior_of(model: Any) -> Posterior:
    """Take a fitted model as a posterior.

    Args:
        model: a foresee posterior, which is taken as it is; a committee, list or tuple of
            classifiers, or a forest or bagging, whose members are the draws; a learner of modAL
            or a classifier of scikit-activeml around one of these; or one classifier, which has
            no draws: scores that need them say so.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> posterior_of(RandomForestClassifier(5).fit(x, y)).predict(x).shape
    (4, 5, 2)
    """
    if hasattr(model, "predict") and hasattr(model, "point"):
        return model
    if hasattr(type(model), "estimators_samples_"):
        return Forest(model)
    many = getattr(model, "learner_list", model)  # a committee of modAL
    if isinstance(many, list | tuple):
        return members(m if hasattr(m, "classes_") else getattr(m, "estimator", m) for m in many)
    for home, inner in (("skactiveml", "estimator_"), ("modAL", "estimator")):
        # Elsewhere these are what was fitted beside it, such as a forest without its calibration.
        if any(kind.__module__.startswith(f"{home}.") for kind in type(model).__mro__):
            wrapped = getattr(model, inner, None)
            if hasattr(wrapped, "classes_"):
                return posterior_of(wrapped)
    return point(model)


def check_strategy(strategy: Any) -> None:
    """Refuse a score, or a class, in the place of a strategy."""
    if isinstance(strategy, type) or not checks.takes(strategy, "view, size, rng"):
        raise InputError(
            f"strategy must be a function (view, size, rng) -> positions, got {strategy!r}: pass "
            "an object, as in Default(), and a score as TopK(mell)"
        )


@contextmanager
def contained(rng: np.random.Generator) -> Iterator[None]:
    """Seed the global generators of NumPy and torch from ``rng``, and put them back.

    >>> with contained(np.random.default_rng(0)):
    ...     a = np.random.rand()
    >>> with contained(np.random.default_rng(0)):
    ...     print(a == np.random.rand())
    True
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seeding.number(rng))  # noqa: NPY002
    try:
        with seeded(torch.device("cpu"), seeding.number(rng)):
            yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
