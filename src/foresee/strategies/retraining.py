"""Expected error reduction as it began: refit the model for every candidate and every label."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from foresee.errors import InputError
from foresee.strategies.candidates import draw_candidates
from foresee.types import View


@dataclass(frozen=True)
class RetrainingEER:
    """Roy & McCallum (2001): label the points that, once learnt, leave the least expected loss.

    ``model`` is any scikit-learn classifier with ``predict_proba``. It is cloned and refitted on
    the labelled set plus (x_i, y) for every candidate i and class y; the loss that this model
    expects on the validation set is averaged over y by the present prediction for x_i:
    J × classes fits for each call. Classes are those of the labelled set.

    ``candidates`` and ``targets`` draw random subsets, as in `TopK`. Equal scores are ordered at
    random.
    """

    model: Any
    loss: Literal["log", "zero-one"] = "log"
    candidates: int | None = None
    targets: int | None = None

    def __post_init__(self) -> None:
        if self.loss not in ("log", "zero-one"):
            raise InputError(f'loss must be "log" or "zero-one", got {self.loss!r}')
        if not hasattr(self.model, "predict_proba"):
            raise InputError(
                f"model must be a scikit-learn classifier with predict_proba, got "
                f"{type(self.model).__name__}: wrap it in CalibratedClassifierCV"
            )

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates, best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = view.val[rng.permutation(len(view.val))[: self.targets]]
        now = self._fit(view.labelled, view.labels)
        present = now.predict_proba(view.pool[order])
        after = [
            sum(
                weight * self._expected_loss(view, view.pool[i], label, val)
                for label, weight in zip(now.classes_, probs, strict=True)
                if weight > 0
            )
            for i, probs in zip(order, present, strict=True)
        ]
        return order[np.argsort(after, kind="stable")[:size]]

    def _expected_loss(self, view: View, point: Any, label: Any, val: Any) -> float:
        inputs = np.concatenate([view.labelled, point[None]])
        labels = np.append(np.asarray(view.labels), label)
        probs = self._fit(inputs, labels).predict_proba(val)
        risk = entr(probs).sum(1) if self.loss == "log" else 1 - probs.max(1)
        return float(risk.mean())

    def _fit(self, inputs: Any, labels: Any) -> Any:
        from sklearn.base import clone  # slow to import, and only this strategy needs it

        return clone(self.model).fit(inputs, labels)
