"""scikit-activeml: our strategies as its query strategies, and its pool strategies as ours."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from skactiveml.base import SingleAnnotatorPoolQueryStrategy, SkactivemlClassifier
from skactiveml.utils import MISSING_LABEL, is_labeled
from sklearn.base import clone

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.interop.models import check_strategy, contained, posterior_of
from foresee.strategies import TopK
from foresee.strategies.candidates import check_request, draw_candidates, matrix
from foresee.types import Posterior, Strategy, View

Features = Literal["embedding", "inputs"]
_REFITS = (
    "fits its model anew, and a view holds one that is fitted: for expected error reduction by "
    "retraining take foresee.RetrainingEER"
)


def to_skactiveml(
    strategy: Strategy, missing_label: Any = MISSING_LABEL, random_state: Any = None
) -> "ForeseeQuery":
    """Make a query strategy of scikit-activeml.

    Args:
        strategy: of foresee, such as ``TopK(mell)`` for a score.
        missing_label: what stands in y where there is no label.
        random_state: as everywhere in scikit-activeml.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from skactiveml.classifier import SklearnClassifier
    >>> from foresee import mell
    >>> x, y = np.random.default_rng(0).random((30, 2)), np.full(30, np.nan)
    >>> y[:6] = [0, 1, 0, 1, 0, 1]
    >>> forest = SklearnClassifier(RandomForestClassifier(20, random_state=0), classes=[0, 1])
    >>> query = to_skactiveml(TopK(mell), random_state=0)
    >>> query.query(x, y, forest, X_eval=x[20:], batch_size=3).shape
    (3,)
    """
    check_strategy(strategy)
    return ForeseeQuery(strategy, missing_label, random_state)


class ForeseeQuery(SingleAnnotatorPoolQueryStrategy):  # type: ignore[misc]
    """A strategy of foresee as one of scikit-activeml; `to_skactiveml` makes it."""

    def __init__(
        self, strategy: Any = None, missing_label: Any = MISSING_LABEL, random_state: Any = None
    ) -> None:
        super().__init__(missing_label=missing_label, random_state=random_state)
        self.strategy = strategy

    def query(
        self,
        X: Any,
        y: Any,
        ensemble: Any,
        fit_ensemble: bool = True,
        X_eval: Any = None,
        candidates: Any = None,
        batch_size: int = 1,
        return_utilities: bool = False,
    ) -> Any:
        """Choose which candidates to label, by the conventions of scikit-activeml.

        Args:
            X: all samples [n d].
            y: their labels [n], ``missing_label`` where there is none.
            ensemble: a classifier of scikit-activeml around a forest or bagging, or a list of
                classifiers: their members are the draws; or of foresee a posterior, taken as it is,
                or a function (inputs, labels, rng) -> posterior, called with what is labelled.
            fit_ensemble: fit classifiers to X and y first.
            X_eval: inputs [m d] of the target, for strategies that look at one.
            candidates: None: all without a label; positions in X; or samples themselves.
            batch_size: how many to choose.
            return_utilities: return the scores, too; of a `TopK` alone.

        Returns:
            Positions [batch_size] in X, or in candidates where those are samples; and, if asked
            for, utilities [batch_size n], nan for what cannot be chosen.
        """
        X, y, candidates, batch_size, return_utilities = self._validate_data(
            X, y, candidates, batch_size, return_utilities, reset=True
        )
        if return_utilities and not isinstance(self.strategy, TopK):
            raise InputError(
                f"return_utilities must be False: {type(self.strategy).__name__} judges a batch as "
                "a whole, and no number of a point says why; or take TopK(score)"
            )
        rows, mapping = self._transform_candidates(candidates, X, y)
        labelled = is_labeled(y, missing_label=self.missing_label_)
        inputs, labels = X[labelled], _whole_numbers(y[labelled])
        fitting, seed = (int(self.random_state_.randint(2**31 - 1)) for _ in range(2))
        rng = np.random.default_rng(fitting)
        posterior = _drawn(ensemble, fit_ensemble, X, y, inputs, labels, rng)
        view = View(posterior, inputs, labels, rows, X_eval)
        picks = self.strategy(view, batch_size, np.random.default_rng(seed))
        indices = picks if mapping is None else mapping[picks]
        if not return_utilities:
            return indices
        scores = _scores(self.strategy, view, batch_size, np.random.default_rng(seed))
        utilities = np.full((batch_size, len(rows if mapping is None else X)), np.nan)
        utilities[:, slice(None) if mapping is None else mapping] = scores
        for rank, index in enumerate(indices):
            utilities[rank + 1 :, index] = np.nan
        return indices, utilities


def _drawn(
    ensemble: Any,
    fit: bool,
    X: Any,
    y: Any,
    inputs: Any,
    labels: Any,
    rng: np.random.Generator,
) -> Posterior:
    """The posterior of what a query was given, see there."""
    if hasattr(ensemble, "point"):
        return cast(Posterior, ensemble)
    if callable(ensemble) and not hasattr(ensemble, "fit"):
        return cast(Posterior, ensemble(inputs, labels, rng))
    if fit and not len(labels):
        raise InputError(
            "y has no label yet, so ensemble cannot be fitted: take RandomSampling or TypiClust of "
            "skactiveml.pool first"
        )
    many = isinstance(ensemble, list | tuple)
    models = list(ensemble) if many else [ensemble]
    if fit and not all(hasattr(model, "missing_label") for model in models):
        raise InputError(
            "ensemble must be of skactiveml.classifier to be fitted to y, in which labels are "
            "missing: wrap it in SklearnClassifier, or fit it and pass fit_ensemble=False"
        )
    fitted = [clone(model).fit(X, y) for model in models] if fit else models
    return posterior_of(fitted if many else fitted[0])


def _scores(strategy: TopK, view: View, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """What the strategy judged the pool by, with the same rng: nan for no candidates [n]."""
    order = draw_candidates(view, size, strategy.candidates, rng)
    scores = np.full(len(view.pool), np.nan)
    scores[order] = strategy.scores(view, order, rng)
    return scores


def _whole_numbers(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels beside nan are floats, though they number classes."""
    if labels.dtype.kind == "f" and (labels == labels.round()).all():
        return labels.astype(np.int64)
    return labels


def from_skactiveml(
    kind: type[Any], /, *, features: Features = "embedding", **settings: Any
) -> "SkactivemlStrategy":
    """Take a pool strategy of scikit-activeml as a strategy of foresee.

    It sees what is labelled and the pool; a model that it asks for is the view's posterior, as it
    is fitted: the point as classifier, the draws as ensemble.

    Args:
        kind: the class, such as ``skactiveml.pool.TypiClust``.
        features: what distances are taken of, the posterior's "embedding" or the "inputs".
        settings: arguments of the class, but for missing_label and random_state.

    >>> from skactiveml.pool import TypiClust
    >>> from foresee.testing import random_view
    >>> strategy = from_skactiveml(TypiClust, k=3)
    >>> strategy(random_view(np.random.default_rng(0)), 2, np.random.default_rng(0)).shape
    (2,)
    """
    return SkactivemlStrategy(kind, settings, features)


@dataclass(frozen=True)
class SkactivemlStrategy:
    """A pool strategy of scikit-activeml; `from_skactiveml` makes it."""

    kind: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    features: Features = "embedding"

    def __post_init__(self) -> None:
        kind = self.kind
        if not (isinstance(kind, type) and issubclass(kind, SingleAnnotatorPoolQueryStrategy)):
            raise InputError(
                f"kind must be a class of skactiveml.pool, got {kind!r}: pass the class itself, "
                "and its arguments by name"
            )
        asked = inspect.signature(kind.query).parameters
        for name in ("reg", "discriminator"):
            if name in asked:
                raise InputError(
                    f"{kind.__name__} asks for a {name}, and a posterior is a fitted classifier: "
                    "take one that asks for clf, estimator, ensemble, or no model"
                )
        if "ignore_partial_fit" in asked:
            raise InputError(f"{kind.__name__} {_REFITS}")
        if self.features not in get_args(Features):
            raise InputError(
                f'features must be "embedding" or "inputs", got {self.features!r}: choose one'
            )
        for name in ("missing_label", "random_state"):
            if name in self.settings:
                raise InputError(f"{name} follows from the view and rng: leave it out")
        try:
            kind(**self.settings)
        except TypeError as error:
            raise InputError(f"settings of {kind.__name__} do not fit: {error}") from None

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        check_request(view, size, rng)
        n = len(view.pool)
        rows = _rows(view, self.features)
        known = len(rows) - n
        y = np.full(len(rows), np.nan)
        if known:
            y[:known] = _numbers(view.labels)
        strategy = self.kind(**self.settings, random_state=seeding.number(rng))
        models = self._models(view, rows)
        with contained(rng):
            found = strategy.query(
                rows, y, candidates=np.arange(known, len(rows)), batch_size=int(size), **models
            )
        return checks.picks(self.kind.__name__, np.asarray(found) - known, size, n)

    def _models(self, view: View, rows: NDArray[Any]) -> dict[str, Any]:
        """The model that the strategy asks for, under the name by which it does."""
        takes = inspect.signature(self.kind.query).parameters
        for name in ("clf", "estimator"):
            if name in takes:
                point = _every(view, "point")  # [l + n, c]
                return {name: _Fitted(_found(rows, point), point.shape[1]), f"fit_{name}": False}
        if "ensemble" not in takes:
            return {}
        draws = _every(view, "predict")  # [l + n, t, c]
        answer, (_, t, c) = _found(rows, draws), draws.shape
        members = [_Fitted(lambda x, k=k: answer(x)[:, k], c) for k in range(t)]
        return {"ensemble": members, "fit_ensemble": False}


class _Fitted(SkactivemlClassifier):  # type: ignore[misc]
    """A classifier that is fitted, and knows its answers."""

    def __init__(self, answer: Any = None, classes: Any = None) -> None:
        super().__init__(classes=list(range(classes)))
        self.answer = answer
        self.classes_ = np.arange(classes)
        self.cost_matrix_ = 1 - np.eye(classes)

    def __deepcopy__(self, memo: Any) -> "_Fitted":
        return self  # it never changes

    def __sklearn_clone__(self) -> "_Fitted":
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NoReturn:
        raise InputError(f"this strategy of scikit-activeml {_REFITS}")

    def predict_proba(self, X: Any, **_: Any) -> NDArray[np.float64]:
        return self.answer(X)

    def predict(self, X: Any, **_: Any) -> NDArray[np.int64]:
        return self.answer(X).argmax(1)


def _found(rows: NDArray[Any], answers: NDArray[Any]) -> Callable[[Any], NDArray[Any]]:
    """A function that finds the answers [k …] for some of the rows [k d]."""
    place: dict[bytes, int] = {}
    for i, row in enumerate(rows):
        first = place.setdefault(row.tobytes(), i)
        if first != i and not np.allclose(answers[i], answers[first], atol=1e-5):
            raise InputError(
                f"rows {first} and {i} have the same embedding and other predictions, so no "
                'strategy can tell them apart: pass features="inputs"'
            )

    def find(some: Any) -> NDArray[Any]:
        wanted = np.ascontiguousarray(some, rows.dtype)
        try:
            return answers[[place[row.tobytes()] for row in wanted]]
        except KeyError:
            raise InputError(
                "this strategy of scikit-activeml asks for predictions of points that are neither "
                "labelled nor in the pool, which a view does not hold: take another"
            ) from None

    return find


def _every(view: View, method: str) -> NDArray[np.float64]:
    """What the posterior says of the labelled points and of the pool [l + n …]."""
    predict = getattr(view.posterior, method)
    axes = "n t c" if method == "predict" else "n c"
    parts = [
        arrays.numpy(checks.array(f"posterior.{method}", predict(inputs), axes))
        for inputs in (view.labelled, view.pool)
        if inputs is not None and len(inputs)
    ]
    return np.concatenate(parts).astype(np.float64)


def _rows(view: View, features: Features) -> NDArray[Any]:
    """Features of the labelled points, then of the pool [l + n, d]."""
    function = _flat if features == "inputs" else view.posterior.embed
    parts = []
    for name, inputs in (("labelled", view.labelled), ("pool", view.pool)):
        if inputs is None or not len(inputs):
            continue
        try:
            parts.append(matrix(f"features of {name}", function, inputs).cpu())
        except InputError as error:
            if features == "inputs":
                raise
            raise InputError(f'{error}; or pass features="inputs"') from None
    return torch.cat(parts).numpy()


def _flat(inputs: Any) -> torch.Tensor:
    return arrays.tensor(inputs, "inputs").flatten(1).float()


def _numbers(labels: Any) -> NDArray[Any]:
    """Labels as numbers: themselves, or their places among all that occur."""
    found = arrays.numpy(labels, "labels")
    return found if found.dtype.kind in "iu" else np.unique(found, return_inverse=True)[1]
