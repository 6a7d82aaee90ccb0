"""Posteriors of scikit-learn models: ensembles, the bootstrap, Laplace draws.

Columns are the classes that the models know, in sorted order, or 0 … ``classes`` − 1; one that a
model never saw has probability 0. Inputs are what the models read (arrays, images flattened or not,
frames, sparse matrices, lists), or a Dataset or a DataLoader of such rows, which is read in
batches. Arrays come out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.posteriors.batching import batches
from foresee.types import Inputs

_MOST = 8  # GiB that the Hessian of a logistic regression may take


def members(models: Iterable[Any], classes: int | None = None) -> "Members":
    """Take fitted classifiers, of any kinds, as posterior draws.

    Args:
        models: at least two classifiers with ``predict_proba`` and ``classes_``.
        classes: labels are 0 … classes − 1; None: the classes that the models know.

    >>> from sklearn.naive_bayes import BernoulliNB, GaussianNB
    >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> members([GaussianNB().fit(x, y), BernoulliNB().fit(x, y)]).predict(x).shape
    (4, 2, 2)
    """
    return Members(tuple(models), classes)


def bootstrap(
    model: Any,
    inputs: Inputs,
    labels: Any,
    draws: int = 100,
    *,
    classes: int | None = None,
    rng: Generator,
) -> "Members":
    """Refit clones of any classifier to resamples of the labelled data.

    A resample of one class is drawn again, because many classifiers refuse it.

    Args:
        model: a classifier, fitted or not; it is left as it was.
        inputs: what it reads [l d].
        labels: [l].
        draws: how many clones, t.
        classes: labels are 0 … classes − 1; None: the classes among ``labels``.
        rng: draws the resamples and seeds the clones.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> x, y, rng = np.eye(4), np.array([0, 1, 0, 1]), np.random.default_rng(0)
    >>> bootstrap(GaussianNB(), x, y, draws=5, rng=rng).predict(x).shape
    (4, 5, 2)
    """
    from sklearn.base import clone
    from sklearn.utils import resample

    def fit(x: Inputs, y: Any) -> Any:
        states = [k for k in model.get_params() if f"__{k}".endswith("__random_state")]
        return clone(model).set_params(**{k: rng.integers(2**31) for k in states}).fit(x, y)

    checks.n_draws(draws)
    seeding.check(rng)
    inputs = _own_kind(inputs)
    whole = fit(inputs, labels)
    class_names([whole], classes)
    refits: list[Any] = []
    least = min(2, len(whole.classes_))
    while len(refits) < draws:
        x, y = resample(inputs, labels, random_state=rng.integers(2**31))
        if len(np.unique(y)) >= least:
            refits.append(fit(x, y))
    return Members(tuple(refits), classes, whole)


def laplace_logistic(
    model: Any,
    inputs: Inputs,
    labels: Any,
    draws: int = 100,
    seed: int = 0,
    *,
    classes: int | None = None,
) -> "Members":
    """Draw weights of a fitted LogisticRegression from the Gaussian N(w, H⁻¹) at its weights w.

    H is the Hessian of Σ_l −log p(y_l | x_l, w) + |w|² / 2C, intercepts free: (classes · features)²
    numbers.

    Args:
        model: a LogisticRegression with an L2 penalty; it is left as it was.
        inputs: what it was fitted to [l d].
        labels: [l].
        draws: how many draws of the weights, t.
        seed: of the draws.
        classes: labels are 0 … classes − 1; None: the classes that the model knows.

    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> laplace_logistic(LogisticRegression().fit(x, y), x, y, draws=5).predict(x).shape
    (4, 5, 2)
    """
    checks.n_draws(draws)
    inputs = _own_kind(inputs)
    class_names([model], classes)
    same = np.array_equal(np.unique(labels), model.classes_)
    if not same or len(labels) != len(arrays.rows("inputs", inputs)):
        raise InputError("labels do not fit inputs and model: pass the data it was fitted to")
    hessian = _hessian(model, inputs, labels)
    k, d = hessian.shape[:2]
    if k > 1 and model.fit_intercept:
        # No probability depends on what all intercepts share: any prior on it will do.
        hessian[:, -1, :, -1] += 1 / model.C
    try:
        factor = np.linalg.cholesky(hessian.reshape(k * d, k * d))
    except np.linalg.LinAlgError as error:
        raise InputError("the data leave weights of model open: fit it with a smaller C") from error
    noise = np.random.default_rng(seed).standard_normal((k * d, draws))
    steps = solve_triangular(factor.T, noise).T.reshape(draws, k, d)
    models = tuple(copy(model) for _ in steps)
    for drawn, step in zip(models, steps, strict=True):
        drawn.coef_ = model.coef_ + step[:, : model.n_features_in_]
        drawn.intercept_ = model.intercept_ + (step[:, -1] if model.fit_intercept else 0)
    return Members(models, classes, model)


@dataclass(frozen=True)
class Forest:
    """The members of a fitted random forest, extra trees or bagging, each one posterior draw.

    Args:
        model: fitted; its ``estimators_`` are the draws, t.
        classes: labels are 0 … classes − 1; None: the classes that the model knows.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> x, y = np.eye(4), np.array(["cat", "dog", "cat", "dog"])
    >>> Forest(RandomForestClassifier(5).fit(x, y)).predict(x).shape
    (4, 5, 2)
    """

    model: Any
    classes: int | None = None

    def __post_init__(self) -> None:
        resampled = hasattr(type(self.model), "estimators_samples_")  # boosting is no posterior
        if not (resampled and hasattr(self.model, "estimators_")):
            raise InputError(
                "model must be a random forest, extra trees or bagging, and not one without "
                f"estimators_: call fit first; got {type(self.model).__name__}"
            )
        checks.n_draws(len(self.model.estimators_))
        class_names([self.model], self.classes)
        class_names(self.model.estimators_, None)

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of every member [n t c]."""
        trees, names = self.model.estimators_, class_names([self.model], self.classes)
        subsets = getattr(self.model, "estimators_features_", [slice(None)] * len(trees))

        def every(x: Inputs) -> NDArray[np.float32]:
            rows = x.tocsr() if hasattr(x, "tocsr") else arrays.numpy(x)
            table = _table(self.model, rows)
            known = [self.model.classes_[tree.classes_.astype(int)] for tree in trees]
            parts = zip(trees, [table[:, some] for some in subsets], known, strict=True)
            return np.stack([class_probs(tree, x, names, mine) for tree, x, mine in parts], 1)

        return map_rows(every, inputs)

    def point(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the whole [n c]."""
        names = class_names([self.model], self.classes)
        return map_rows(lambda x: class_probs(self.model, x, names), inputs)

    def embed(self, inputs: Inputs) -> NDArray[np.float32]:
        """A forest has no penultimate representation."""
        raise InputError("a forest has no embedding: use a score from draws, or a network")


@dataclass(frozen=True)
class Members:
    """Fitted classifiers, each one posterior draw; ``whole``, if any, is their point model."""

    models: tuple[Any, ...]
    classes: int | None = None
    whole: Any = None

    def __post_init__(self) -> None:
        checks.n_draws(len(self.models))
        self._names()

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of every member [n t c]."""
        return map_rows(self._every, inputs)

    def point(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the model fitted to all labels, or the mean over members [n c]."""
        if self.whole is None:
            return map_rows(lambda x: self._every(x).mean(1), inputs)
        return map_rows(lambda x: class_probs(self.whole, x, self._names()), inputs)

    def embed(self, inputs: Inputs) -> NDArray[np.float32]:
        """The inputs themselves [n d], if every member is linear in them."""
        if not all(hasattr(model, "coef_") for model in self.models):
            raise InputError("no embedding of these members: use a score from draws, or a network")
        return map_rows(lambda x: _dense(_table(self.models[0], x)), inputs)

    def _names(self) -> NDArray[Any]:
        models = self.models if self.whole is None else (*self.models, self.whole)
        return class_names(models, self.classes)

    def _every(self, x: Inputs) -> NDArray[np.float32]:
        names = self._names()
        return np.stack([class_probs(model, x, names) for model in self.models], 1)


def _hessian(model: Any, inputs: Inputs, labels: Any) -> NDArray[np.float64]:
    """Σ_l s_l (diag p_l − p_l p_lᵀ) ⊗ x_l x_lᵀ + I ⊗ diag(1/C … 1/C, 0), [k d k d].

    Two classes have one set of weights (k = 1), that of the second. s_l is the class weight.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils.class_weight import compute_sample_weight

    older = {getattr(model, name, "deprecated") for name in ("penalty", "multi_class")}
    softmax = type(model) is LogisticRegression and older <= {"l2", "auto", "deprecated"}
    # liblinear penalises the intercept.
    if not softmax or model.l1_ratio or model.solver == "liblinear" or not np.isfinite(model.C):
        raise InputError(
            f"model is {model}: fit a LogisticRegression with an L2 penalty, a finite C and lbfgs, "
            "or use bootstrap"
        )
    k, d = model.coef_.shape
    size = k * (d + int(model.fit_intercept))
    if (gigabytes := 2 * 8 * size**2 / 2**30) > _MOST:  # its factor is as large
        raise InputError(
            f"the Hessian of {k} · {d} weights and its factor would take {gigabytes:.3g} GiB, the "
            f"limit is {_MOST}: fit to fewer features (TruncatedSVD, SelectKBest), or use bootstrap"
        )
    probs = model.predict_proba(inputs)[:, -k:]
    x = np.column_stack([_dense(inputs), np.ones((len(probs), int(model.fit_intercept)))])
    hessian = np.zeros((k, x.shape[1], k, x.shape[1]))
    weight = compute_sample_weight(model.class_weight, labels)
    for a in range(k):
        curvature = (weight * probs[:, a])[:, None] * (np.eye(k)[a] - probs)
        hessian[a] = np.tensordot(x, curvature[:, :, None] * x[:, None], (0, 0))
        hessian[a, :d, a, :d] += np.eye(d) / model.C
    return hessian


def map_rows(
    function: Callable[[Inputs], NDArray[np.float32]], inputs: Inputs
) -> NDArray[np.float32]:
    """Apply a function of rows to all inputs, in batches where they come as a Dataset."""
    inputs = _own_kind(inputs)
    if not isinstance(inputs, Dataset | DataLoader | arrays.Rows):
        return function(inputs)
    return np.concatenate([function(x) for x in batches(inputs)])


def _own_kind(inputs: Inputs) -> Inputs:
    """Rows in the container that they came in; those of a Dataset stay to be read in batches."""
    lazy = not isinstance(inputs, arrays.Rows) or isinstance(inputs.data, Dataset)
    return inputs if lazy else inputs[:]


def _dense(x: Any) -> NDArray[np.float32]:
    return np.asarray(arrays.numpy(x), np.float32)


def read_by_last_step(model: Any, inputs: Inputs) -> NDArray[np.float32]:
    """What the last step of a pipeline reads [n d]; the inputs of what is no pipeline."""
    x = _table(model, inputs)
    return _dense(model[:-1].transform(x) if hasattr(model, "steps") and len(model) > 1 else x)


def _table(model: Any, inputs: Inputs) -> Inputs:
    """Rows [n d] of an array, as the model was fitted to; other kinds are left to the model."""
    d, sparse = getattr(model, "n_features_in_", None), hasattr(inputs, "tocsr")
    if d is None or not (sparse or isinstance(inputs, np.ndarray | Tensor)):
        return inputs
    x = inputs if sparse else arrays.numpy(inputs)
    if x.ndim < 2 or math.prod(x.shape[1:]) != d:
        raise InputError(
            f"inputs must have shape [n {d}], or flatten to it, as {type(model).__name__} "
            f"was fitted to {d} features, got {list(x.shape)}: prepare them as in training"
        )
    if x.shape[0] == 0:
        raise InputError("inputs are empty: pass at least one row")
    return x if sparse else x.reshape(len(x), d)


def class_probs(
    model: Any, inputs: Inputs, names: NDArray[Any], known: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """Probabilities [n c]; ``known`` are the names of what the model calls its classes."""
    probs = model.predict_proba(_table(model, inputs))
    out = np.zeros((len(probs), len(names)), np.float32)
    out[:, np.searchsorted(names, model.classes_ if known is None else known)] = probs
    return out


def class_names(models: Sequence[Any], classes: int | None) -> NDArray[Any]:
    """The class of each column, in sorted order."""
    for model in models:
        name = type(model).__name__
        if not hasattr(model, "predict_proba"):
            raise InputError(f"{name} has no predict_proba: wrap it in CalibratedClassifierCV")
        if not hasattr(model, "classes_"):
            raise InputError(f"{name} has no classes_: call fit first")
        single = all(np.ndim(c) == 0 for c in model.classes_)
        if not single or (classes and any(c not in range(classes) for c in model.classes_)):
            expected = f"integers from 0 to {classes - 1}" if classes else "one label for each row"
            raise InputError(
                f"{name} knows the classes {list(model.classes_)}, expected {expected}: encode "
                "labels so, or raise classes"
            )
    return np.arange(classes) if classes else np.unique([c for m in models for c in m.classes_])
