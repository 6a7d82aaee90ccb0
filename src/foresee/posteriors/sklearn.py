"""Posteriors of scikit-learn models: ensembles, the bootstrap, Laplace draws.

Classes are 0 … n_classes − 1; one that a model never saw has probability 0.
Inputs are what the models read, images flattened or not, or a Dataset or a DataLoader of such rows,
which is read in batches. Arrays come out.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foresee.errors import InputError
from foresee.posteriors.batching import batches
from foresee.types import Inputs


@dataclass(frozen=True)
class Forest:
    """The members of a fitted random forest, extra trees or bagging, each one posterior draw."""

    model: Any
    n_classes: int

    def __post_init__(self) -> None:
        resampled = hasattr(type(self.model), "estimators_samples_")  # boosting is no posterior
        if not (resampled and hasattr(self.model, "estimators_")):
            raise InputError(
                "model must be a random forest, extra trees or bagging, and not one without "
                f"estimators_: call fit first; got {type(self.model).__name__}"
            )
        _check_draws(len(self.model.estimators_))
        for model in (self.model, *self.model.estimators_):
            _classes(model, self.n_classes)

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of every member [n t c]."""
        trees, names = self.model.estimators_, _classes(self.model, self.n_classes)
        subsets = getattr(self.model, "estimators_features_", [slice(None)] * len(trees))

        def every(x: Inputs) -> NDArray[np.float32]:
            table = _table(self.model, x if isinstance(x, Tensor) else np.asarray(x))
            parts = [(tree, table[:, some]) for tree, some in zip(trees, subsets, strict=True)]
            return np.stack([_probs(tree, part, self.n_classes, names) for tree, part in parts], 1)

        return _map(every, inputs)

    def point(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the whole [n c]."""
        return _map(lambda x: _probs(self.model, x, self.n_classes), inputs)

    def embed(self, inputs: Inputs) -> NDArray[np.float32]:
        """A forest has no penultimate representation."""
        raise InputError("a forest has no embedding: use a score from draws, or a network")


@dataclass(frozen=True)
class Members:
    """Fitted classifiers, each one posterior draw; ``whole``, if any, is their point model."""

    models: tuple[Any, ...]
    n_classes: int
    whole: Any = None

    def __post_init__(self) -> None:
        _check_draws(len(self.models))
        for model in self.models:
            _classes(model, self.n_classes)

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of every member [n t c]."""
        return _map(self._every, inputs)

    def point(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the model fitted to all labels, or the mean over members [n c]."""
        if self.whole is None:
            return _map(lambda x: self._every(x).mean(1), inputs)
        return _map(lambda x: _probs(self.whole, x, self.n_classes), inputs)

    def embed(self, inputs: Inputs) -> NDArray[np.float32]:
        """The inputs themselves [n d], if every member is linear in them."""
        if not all(hasattr(model, "coef_") for model in self.models):
            raise InputError("no embedding of these members: use a score from draws, or a network")
        return _map(lambda x: np.asarray(_table(self.models[0], x), np.float32), inputs)

    def _every(self, x: Inputs) -> NDArray[np.float32]:
        return np.stack([_probs(model, x, self.n_classes) for model in self.models], 1)


def members(models: Iterable[Any], n_classes: int) -> Members:
    """Take fitted classifiers, of any kinds, as posterior draws."""
    return Members(tuple(models), n_classes)


def bootstrap(
    model: Any, inputs: Inputs, labels: Any, n_classes: int, draws: int = 100, *, rng: Generator
) -> Members:
    """Refit clones of any classifier to resamples of the labelled data [l d], [l].

    A resample of one class is drawn again, because many classifiers refuse it.
    """
    from sklearn.base import clone
    from sklearn.utils import resample

    def fit(x: Inputs, y: Any) -> Any:
        states = [k for k in model.get_params() if f"__{k}".endswith("__random_state")]
        return clone(model).set_params(**{k: rng.integers(2**31) for k in states}).fit(x, y)

    _check_draws(draws)
    whole = fit(inputs, labels)
    refits: list[Any] = []
    least = min(2, len(_classes(whole, n_classes)))
    while len(refits) < draws:
        x, y = resample(inputs, labels, random_state=rng.integers(2**31))
        if len(np.unique(y)) >= least:
            refits.append(fit(x, y))
    return Members(tuple(refits), n_classes, whole)


def laplace_logistic(
    model: Any, inputs: Inputs, labels: Any, n_classes: int, draws: int = 100, *, rng: Generator
) -> Members:
    """Draw weights of a fitted LogisticRegression from the Gaussian N(w, H⁻¹) at its weights w.

    H is the Hessian of Σ_l −log p(y_l | x_l, w) + |w|² / 2C, intercepts free, on the data [l d],
    [l] that the model was fitted to: (classes · features)² numbers.
    """
    _check_draws(draws)
    same = np.array_equal(np.unique(labels), _classes(model, n_classes))
    if not same or len(labels) != len(inputs):
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
    steps = solve_triangular(factor.T, rng.standard_normal((k * d, draws))).T.reshape(draws, k, d)
    models = tuple(copy(model) for _ in steps)
    for drawn, step in zip(models, steps, strict=True):
        drawn.coef_ = model.coef_ + step[:, : model.n_features_in_]
        drawn.intercept_ = model.intercept_ + (step[:, -1] if model.fit_intercept else 0)
    return Members(models, n_classes, model)


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
    probs = model.predict_proba(inputs)[:, -k:]
    x = np.column_stack([inputs, np.ones((len(probs), int(model.fit_intercept)))])
    hessian = np.zeros((k, x.shape[1], k, x.shape[1]))
    weight = compute_sample_weight(model.class_weight, labels)
    for a in range(k):
        curvature = (weight * probs[:, a])[:, None] * (np.eye(k)[a] - probs)
        hessian[a] = np.tensordot(x, curvature[:, :, None] * x[:, None], (0, 0))
        hessian[a, :d, a, :d] += np.eye(d) / model.C
    return hessian


def _map(function: Callable[[Inputs], NDArray[np.float32]], inputs: Inputs) -> NDArray[np.float32]:
    if not isinstance(inputs, Dataset | DataLoader):
        return function(inputs)
    return np.concatenate([function(x) for x in batches(inputs)])


def _table(model: Any, inputs: Inputs) -> Inputs:
    """Rows [n d] of an array, as the model was fitted to; other kinds are left to the model."""
    d = getattr(model, "n_features_in_", None)
    if d is None or not isinstance(inputs, np.ndarray | Tensor):
        return inputs
    x = inputs.numpy(force=True) if isinstance(inputs, Tensor) else inputs
    if x.ndim < 2 or math.prod(x.shape[1:]) != d:
        raise InputError(
            f"inputs must have shape [n {d}], or flatten to it, as {type(model).__name__} "
            f"was fitted to {d} features, got {list(x.shape)}: prepare them as in training"
        )
    if len(x) == 0:
        raise InputError("inputs are empty: pass at least one row")
    return x.reshape(len(x), d)


def _probs(model: Any, inputs: Inputs, n_classes: int, names: Any = None) -> NDArray[np.float32]:
    """Probabilities in columns 0 … n_classes − 1; ``names[i]`` is what the model knows as i."""
    probs, classes = model.predict_proba(_table(model, inputs)), _classes(model, n_classes)
    out = np.zeros((len(probs), n_classes), np.float32)
    out[:, classes if names is None else names[classes]] = probs
    return out


def _classes(model: Any, n_classes: int) -> NDArray[np.int64]:
    name = type(model).__name__
    if not hasattr(model, "predict_proba"):
        raise InputError(f"{name} has no predict_proba: wrap it in CalibratedClassifierCV")
    if not hasattr(model, "classes_"):
        raise InputError(f"{name} has no classes_: call fit first")
    if any(np.ndim(c) or c not in range(n_classes) for c in model.classes_):
        raise InputError(
            f"{name} knows the classes {list(model.classes_)}, expected integers from 0 to "
            f"{n_classes - 1}: encode labels so, or raise n_classes"
        )
    return np.asarray(model.classes_, np.int64)


def _check_draws(draws: int) -> None:
    if draws < 2:
        raise InputError(f"a posterior needs at least 2 draws, got {draws}: fit more members")
