"""Expected error reduction as it began: refit the model for every candidate and every label."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import entr

from foresee import arrays
from foresee.errors import InputError
from foresee.strategies.candidates import check_subsets, check_target, draw_candidates
from foresee.types import View


@dataclass(frozen=True)
class RetrainingEER:
    """Roy & McCallum (2001): label the points that, once learnt, leave the least expected loss.

    The model is cloned and refitted on the labelled set plus (x_i, y) for every candidate i and
    class y; the loss that it then expects on the validation set is averaged over y by the present
    prediction for x_i: candidates × classes fits for each call. Classes are those of the labelled
    set. The posterior of the view is not used.

    Args:
        model: any scikit-learn classifier with ``predict_proba``; it is left as it is.
        loss: "log" or "zero-one".
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all.

    Equal scores are ordered at random.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> RetrainingEER(GaussianNB(), candidates=10)(view, 3, np.random.default_rng(0))
    array([27,  2,  1])
    """

    model: Any
    loss: Literal["log", "zero-one"] = "log"
    candidates: int | None = None
    targets: int | None = None

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        if self.loss not in ("log", "zero-one"):
            raise InputError(f'loss must be "log" or "zero-one", got {self.loss!r}')
        if not hasattr(self.model, "predict_proba"):
            raise InputError(
                f"model must be a scikit-learn classifier with predict_proba, got "
                f"{type(self.model).__name__}: wrap it in CalibratedClassifierCV"
            )

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates [size], best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        check_target(view)
        if view.labelled is None or not len(view.labelled):
            raise InputError(
                "view.labelled is empty, and the model learns from it: label some points"
            )
        val = _table(view.val[rng.permutation(len(view.val))[: self.targets]])
        points = _table(view.pool[order])
        labelled, labels = _table(view.labelled[:]), arrays.numpy(view.labels)
        join = sparse.vstack if hasattr(labelled, "tocsr") else np.concatenate
        now = self._fit(labelled, labels)
        present = _probabilities(now, points)
        after = np.zeros(len(order))
        for k, probs in enumerate(present):
            inputs = join([labelled, points[k : k + 1]])
            for label, weight in zip(now.classes_, probs, strict=True):
                if weight > 0:
                    then = self._fit(inputs, np.append(labels, label))
                    after[k] += weight * self._expected_loss(_probabilities(then, val))
        return order[np.argsort(after, kind="stable")[:size]]

    def _expected_loss(self, probs: NDArray[Any]) -> float:
        risk = entr(probs).sum(1) if self.loss == "log" else 1 - probs.max(1)
        return float(risk.mean())

    def _fit(self, inputs: Any, labels: NDArray[Any]) -> Any:
        from sklearn.base import clone  # slow to import, and only this strategy needs it

        return clone(self.model).fit(inputs, labels)


def _probabilities(model: Any, inputs: Any) -> NDArray[Any]:
    probs = arrays.numpy(model.predict_proba(inputs), "model.predict_proba")
    if not np.isfinite(probs).all():
        raise InputError(
            f"model.predict_proba must be finite, got {probs[~np.isfinite(probs)][0]}: look for a "
            "diverged fit, or scale the features"
        )
    return probs


def _table(rows: Any) -> Any:
    """Rows as scikit-learn reads them: a sparse matrix by rows, or an array."""
    return rows.tocsr() if hasattr(rows, "tocsr") else arrays.numpy(rows)
