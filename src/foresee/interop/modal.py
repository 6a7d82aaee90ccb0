"""modAL: our strategies as its query functions. modAL itself is never imported."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, seeding
from foresee.interop.models import check_strategy, posterior_of
from foresee.types import Inputs, Strategy, View


def to_modal(
    strategy: Strategy, target: Inputs | None = None, *, seed: int = 0
) -> Callable[..., tuple[NDArray[np.int64], Any]]:
    """Make a query function, the ``query_strategy`` of modAL's learners and committees.

    Args:
        strategy: of foresee.
        target: inputs [m …] of the data that the model will meet; None for strategies without.
        seed: of the strategy; it and the number of labels decide what is drawn.

    Returns:
        A function (classifier, X_pool, n_instances=1) -> (positions [n_instances], their rows).
        The classifier may be modAL's, or any that `posterior_of` takes.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from foresee import TopK, bald
    >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> query = to_modal(TopK(bald, targets=0))
    >>> positions, rows = query(RandomForestClassifier(5, random_state=0).fit(x, y), x, 2)
    >>> bool((rows == x[positions]).all())
    True
    """

    check_strategy(strategy)

    def query(
        classifier: Any, X_pool: Inputs, n_instances: int = 1
    ) -> tuple[NDArray[np.int64], Any]:
        labelled, labels = _known(classifier)
        view = View(posterior_of(classifier), labelled, labels, X_pool, target)
        rng = seeding.generator(seed, len(labels), "query")
        picks = strategy(view, n_instances, rng)
        return picks, view.pool[picks]

    return query


def _known(classifier: Any) -> tuple[Inputs | None, Any]:
    """What a learner was fitted to; of a committee, what all of its learners were, together."""
    learners = getattr(classifier, "learner_list", [classifier])
    pairs = [
        (one.X_training, one.y_training)
        for one in learners
        if getattr(one, "X_training", None) is not None
    ]
    if not pairs:
        return None, np.empty(0, np.int64)
    x, y = ([arrays.numpy(part) for part in parts] for parts in zip(*pairs, strict=True))
    if all(np.array_equal(x[0], other) for other in x):
        return pairs[0]
    return np.concatenate(x), np.concatenate(y)
