"""A fitted model without draws: enough for BADGE, Coreset and Entropy, whatever the model."""

from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from foresee.errors import InputError
from foresee.posteriors import sklearn
from foresee.posteriors.batching import (
    BATCH,
    Outputs,
    answers,
    map_batches,
    penultimate,
    probabilities,
)
from foresee.types import Array, Inputs


def point(
    model: Any,
    *,
    outputs: Outputs = "logits",
    classes: int | None = None,
    batch: int = BATCH,
) -> "Point":
    """Take a fitted network or classifier as it is, for methods that need no draws.

    Args:
        model: a network that maps inputs [n ...] to ``outputs`` [n c], or to something with
            ``.logits``; or a scikit-learn style classifier with ``predict_proba``, ``classes_``.
        outputs: what a network returns, "logits" or "probs".
        classes: how many outputs are expected of a network; a classifier's labels are
            0 … classes − 1, or by default those that it knows.
        batch: inputs that pass through a network at once.

    >>> import numpy as np
    >>> from foresee import Badge, View
    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> view = View(point(LogisticRegression().fit(x, y)), x, y, pool=x, val=x)
    >>> Badge()(view, 2, np.random.default_rng(0)).shape
    (2,)
    """
    return Point(model, outputs, classes, batch)


@dataclass(frozen=True)
class Point:
    """One fitted model; `point` builds it."""

    model: Any
    outputs: Outputs = "logits"
    classes: int | None = None
    batch: int = BATCH

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            sklearn.class_names([self.model], self.classes)

    def predict(self, inputs: Inputs) -> NoReturn:
        """One model has no draws."""
        raise InputError(
            "point(model) has no draws, and this score needs them: use mc_dropout, an ensemble or "
            "laplace for a network, Forest, bootstrap or laplace_logistic for a classifier; or a "
            "method that needs the point alone: TopK(entropy, point=True), Badge() or Coreset()"
        )

    def point(self, inputs: Inputs) -> Array:
        """Probabilities of the model [n c]."""
        model = self.model
        if not isinstance(model, nn.Module):
            names = sklearn.class_names([model], self.classes)
            return sklearn.map_rows(lambda x: sklearn.class_probs(model, x, names), inputs)
        outputs = map_batches(lambda x: answers(model, x), inputs, model, batch=self.batch)
        return probabilities(outputs, self.outputs, self.classes)

    def embed(self, inputs: Inputs) -> Array:
        """What the last linear layer, or the last step of a pipeline, reads [n d]."""
        model = self.model
        if not isinstance(model, nn.Module):
            return sklearn.map_rows(lambda x: sklearn.read_by_last_step(model, x), inputs)
        return map_batches(lambda x: penultimate(model, x), inputs, model, batch=self.batch)
