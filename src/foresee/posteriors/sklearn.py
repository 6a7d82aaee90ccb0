"""Posteriors of scikit-learn models."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.checks import InputError


@dataclass(frozen=True)
class Forest:
    """The trees of a fitted random forest (or extra trees), each one posterior draw.

    Classes are 0 … n_classes − 1; one that was never seen in training has probability 0.
    """

    model: Any
    n_classes: int

    def __post_init__(self) -> None:
        if not hasattr(self.model, "estimators_"):
            raise InputError(
                f"model must be a fitted forest, got {type(self.model).__name__} without "
                "estimators_: call fit first"
            )
        if not set(self.model.classes_) <= set(range(self.n_classes)):
            raise InputError(
                f"model knows the classes {list(self.model.classes_)}, expected integers from 0 "
                f"to {self.n_classes - 1}: encode labels so, or raise n_classes"
            )

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Probabilities of every tree [n t c]."""
        trees = [tree.predict_proba(inputs) for tree in self.model.estimators_]
        return self._aligned(np.stack(trees, 1))

    def point(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Probabilities of the whole forest [n c]."""
        return self._aligned(self.model.predict_proba(inputs))

    def embed(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """A forest has no penultimate representation."""
        raise InputError(
            "a forest has no embedding: Coreset and BADGE need a network; use a score from draws"
        )

    def _aligned(self, probs: NDArray[Any]) -> NDArray[np.float32]:
        out = np.zeros((*probs.shape[:-1], self.n_classes), np.float32)
        out[..., np.asarray(self.model.classes_, int)] = probs
        return out
