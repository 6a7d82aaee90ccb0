"""small-text: our strategies as its query strategies. small-text itself is never imported."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import seeding
from foresee.errors import InputError
from foresee.interop.models import check_strategy, posterior_of
from foresee.types import Inputs, Sampler, Strategy, View


def to_small_text(
    strategy: Strategy, target: Any = None, *, sampler: Sampler | None = None, seed: int = 0
) -> "SmallTextQuery":
    """Make a query strategy for a ``PoolBasedActiveLearner`` of small-text.

    Args:
        strategy: of foresee.
        target: a ``SklearnDataset``, or its rows [m d], of the texts that the model will meet;
            None for strategies without.
        sampler: a function (inputs, labels, rng) -> posterior that fits to what is labelled, for
            draws; None: the learner's own ``SklearnClassifier``, whose draws are the members of its
            forest or bagging.
        seed: of the strategy; it and the number of labels decide what is drawn.

    >>> from types import SimpleNamespace
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from foresee import TopK, mell
    >>> x, y = np.random.default_rng(0).random((30, 2)), np.array([0, 1] * 15)
    >>> forest = RandomForestClassifier(20, random_state=0).fit(x[:6], y[:6])
    >>> clf, texts = SimpleNamespace(model=forest), SimpleNamespace(x=x)  # as small-text has them
    >>> query = to_small_text(TopK(mell), target=x[20:])
    >>> query.query(clf, texts, np.arange(6, 30), np.arange(6), y[:6], n=3).shape
    (3,)
    """
    check_strategy(strategy)
    return SmallTextQuery(strategy, target, sampler, seed)


@dataclass(frozen=True)
class SmallTextQuery:
    """A strategy of foresee as one of small-text; `to_small_text` makes it."""

    strategy: Strategy
    target: Any = None
    sampler: Sampler | None = None
    seed: int = 0

    def query(
        self,
        clf: Any,
        dataset: Any,
        indices_unlabeled: NDArray[Any],
        indices_labeled: NDArray[Any],
        y: Any,
        n: int = 10,
    ) -> NDArray[Any]:
        """Choose which texts to label, by the conventions of small-text.

        Args:
            clf: the learner's classifier, fitted.
            dataset: all texts, a ``SklearnDataset`` or rows [k d] in its place.
            indices_unlabeled: positions in the dataset to choose from.
            indices_labeled: positions that have a label.
            y: their labels.
            n: how many to choose.

        Returns:
            Positions in the dataset [n], best first.
        """
        if hasattr(y, "tocsr"):
            raise InputError(
                "y holds several labels for each text, and a score is of one: take a learner for "
                "each label, with multi_label=False"
            )
        rows, labels = _rows(dataset), np.asarray(y)
        labelled, pool = rows[indices_labeled], rows[indices_unlabeled]
        rng = seeding.generator(self.seed, len(labels), "query")
        if self.sampler is None:
            posterior = posterior_of(_estimator(clf))
        else:
            posterior = self.sampler(labelled, labels, rng)
        target = None if self.target is None else _rows(self.target)
        picks = self.strategy(View(posterior, labelled, labels, pool, target), n, rng)
        return np.asarray(indices_unlabeled)[picks]


def _rows(dataset: Any) -> Inputs:
    """The matrix [k d] of a dataset, dense or sparse."""
    rows = getattr(dataset, "x", dataset)
    if not (hasattr(rows, "shape") and len(rows.shape) == 2):
        raise InputError(
            f"dataset must be a SklearnDataset or rows [k d], got {type(dataset).__name__}: pass "
            "representation= to query, or take a Learner, which reads texts"
        )
    return rows


def _estimator(clf: Any) -> Any:
    """The scikit-learn model in a classifier of small-text."""
    model = getattr(clf, "model", None)
    if not hasattr(model, "classes_"):
        raise InputError(
            f"clf must be a fitted SklearnClassifier, got {type(clf).__name__}: small-text draws "
            "dropout for each text apart, so its draws are of no common parameters; pass "
            "sampler=, a function (inputs, labels, rng) -> posterior"
        )
    return model
