"""Posteriors of scikit-learn models: ensembles, the bootstrap, Laplace draws.

Columns are the classes that the models know, in sorted order, or 0 … ``classes`` − 1; one that a
model never saw has probability 0. Inputs are what the models read (arrays, images flattened or not,
frames, sparse matrices, lists), or a Dataset or a DataLoader of such rows, which is read in
batches. Arrays come out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import softmax
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.posteriors.batching import batches
from foresee.types import Inputs

_ENTRIES = 1 << 20  # logits that are computed at once
_MOST = 8  # GiB that the draws of a logistic regression may take
_LAZY = (Dataset, DataLoader, arrays.Rows)  # what is read in batches
_APART = ("liblinear", "newton-cholesky")  # solvers that set each class against the rest


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
    if hasattr(models, "predict_proba"):  # trees number the classes of their forest anew
        raise InputError(
            f"models must be a list of classifiers, got one, a {type(models).__name__}: pass a "
            "list, or take Forest for a random forest, extra trees or bagging"
        )
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
    from sklearn.utils import resample

    def fit(x: Inputs, y: Any) -> Any:
        return fresh(model, rng).fit(x, y)

    checks.n_draws(draws)
    seeding.check(rng)
    inputs = _held(inputs)
    whole = fit(inputs, labels)
    class_names([whole], classes)
    refits: list[Any] = []
    least = min(2, len(whole.classes_))
    while len(refits) < draws:
        x, y = resample(inputs, labels, random_state=rng.integers(2**31))
        if len(np.unique(y)) >= least:
            refits.append(fit(x, y))
    return Members(tuple(refits), classes, whole)


def fresh(model: Any, rng: Generator) -> Any:
    """Clone a classifier, unfitted, with random states of its own.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> fresh(DecisionTreeClassifier(), np.random.default_rng(0))
    DecisionTreeClassifier(random_state=1826701615)
    """
    from sklearn.base import clone

    states = [k for k in model.get_params() if f"__{k}".endswith("__random_state")]
    return clone(model).set_params(**{k: seeding.number(rng) for k in states})


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

    H is the Hessian of Σ_l −log p(y_l | x_l, w) + |w|² / 2C, intercepts free: (classes · r)²
    numbers, with r the number of features or of labels, whichever is smaller. Weights at right
    angles to all inputs stay as the prior has them, N(0, C), and need no Hessian.

    Args:
        model: a LogisticRegression with an L2 penalty, fitted without sample weights; it is left
            as it was.
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
    seeding.check_number(seed)
    inputs = _held(inputs)
    class_names([model], classes)
    same = np.array_equal(np.unique(labels), model.classes_)
    if not same or len(labels) != len(arrays.rows("inputs", inputs)):
        raise InputError("labels do not fit inputs and model: pass the data it was fitted to")
    most = _check_laplace(model, len(labels), draws)
    x = np.asarray(_dense(inputs), np.float64)
    seen = np.linalg.qr(x.T)[0] if len(x) < x.shape[1] else np.eye(x.shape[1])  # [d r]
    hessian = _hessian(model, x @ seen, model.predict_proba(inputs), labels)
    k, r = hessian.shape[:2]
    if k > 1 and model.fit_intercept:
        # No probability depends on what all intercepts share: any prior on it will do.
        hessian[:, -1, :, -1] += 1 / model.C
    try:
        factor = np.linalg.cholesky(hessian.reshape(k * r, k * r))
    except np.linalg.LinAlgError as error:
        raise InputError("the data leave weights of model open: fit it with a smaller C") from error

    def draw(t: int) -> tuple[Any, ...]:
        rng, t = np.random.default_rng(seed), min(t, most)
        noise = rng.standard_normal((k * r, t))
        steps = solve_triangular(factor.T, noise).T.reshape(t, k, r)
        weights = steps[..., : seen.shape[1]] @ seen.T
        if len(x) < x.shape[1]:  # of what no input shows, the prior knows as much as before
            unseen = rng.standard_normal(weights.shape) * model.C**0.5
            weights += unseen - unseen @ seen @ seen.T
        models = tuple(copy(model) for _ in steps)
        for drawn, step, weight in zip(models, steps, weights, strict=True):
            drawn.coef_ = model.coef_ + weight
            drawn.intercept_ = model.intercept_ + (step[:, -1] if model.fit_intercept else 0)
        return models

    return Members(draw(draws), classes, model, draw)


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
            table = _numbers(self.model, x)
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
    """Fitted classifiers, each one posterior draw; ``whole``, if any, is their point model.

    ``redraw``, if any, gives any number of them, or as many as fit into memory.
    """

    models: tuple[Any, ...]
    classes: int | None = None
    whole: Any = None
    redraw: Callable[[int], tuple[Any, ...]] | None = None

    def __post_init__(self) -> None:
        checks.n_draws(len(self.models))
        self._names()

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of every member [n t c]."""
        return map_rows(self._every, inputs)

    def at_least(self, draws: int) -> "Members":
        """The same posterior, drawn anew where draws are fewer."""
        if self.redraw is None or draws <= len(self.models):
            return self
        return replace(self, models=self.redraw(draws))

    def point(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the model fitted to all labels, or the mean over members [n c]."""
        if self.whole is None:
            return map_rows(lambda x: self._every(x).mean(1), inputs)
        return map_rows(lambda x: class_probs(self.whole, x, self._names()), inputs)

    def embed(self, inputs: Inputs) -> NDArray[np.float32]:
        """The inputs themselves [n d], if every member is linear in them."""
        if not all(hasattr(model, "coef_") for model in self.models):
            raise InputError("no embedding of these members: use a score from draws, or a network")
        from sklearn.utils import check_array  # refuses NaN, as each of the models would

        return map_rows(lambda x: check_array(_dense(_numbers(self.models[0], x))), inputs)

    def _names(self) -> NDArray[Any]:
        models = self.models if self.whole is None else (*self.models, self.whole)
        return class_names(models, self.classes)

    def _every(self, x: Inputs) -> NDArray[np.float32]:
        names = self._names()
        plain = isinstance(x, np.ndarray | Tensor) or hasattr(x, "tocsr")  # frames have names
        if plain and _is_one_product(self.models):
            return _logistic_probs(self.models, _table(self.models[0], x), names)
        return np.stack([class_probs(model, x, names) for model in self.models], 1)


def _check_laplace(model: Any, labels: int, draws: int) -> int:
    """Refuse what cannot be drawn from, and return how many draws would fit."""
    from sklearn.linear_model import LogisticRegression

    known = type(model) is LogisticRegression and _is_softmax(model)
    ridge = getattr(model, "penalty", "deprecated") in ("l2", "deprecated")
    if not (known and ridge) or model.l1_ratio or not np.isfinite(model.C):
        raise InputError(
            f"model is {model}: fit a LogisticRegression with an L2 penalty, a finite C and lbfgs, "
            "or use bootstrap"
        )
    k, d = model.coef_.shape
    r = min(d, labels)
    size = k * (r + int(model.fit_intercept))
    # The Hessian's factor is as large as it is; draws are held thrice while they are made.
    least, each = 2 * size**2 + 2 * labels * d, 3 * k * d
    gigabytes = 8 * (least + draws * each) / 2**30
    if gigabytes > _MOST:
        raise InputError(
            f"{draws} draws and the Hessian of {k} · {r} weights would take {gigabytes:.3g} GiB, "
            f"the limit is {_MOST}: fit to fewer features (TruncatedSVD, SelectKBest), or use "
            "bootstrap"
        )
    return int((_MOST * 2**30 / 8 - least) // each)


def _hessian(
    model: Any, x: NDArray[np.float64], probs: NDArray[np.float64], labels: Any
) -> NDArray[np.float64]:
    """Σ_l s_l (diag p_l − p_l p_lᵀ) ⊗ x_l x_lᵀ + I ⊗ diag(1/C … 1/C, 0), [k r k r].

    Two classes have one set of weights (k = 1), that of the second. s_l is the class weight.
    """
    from sklearn.utils.class_weight import compute_sample_weight

    k, d = len(model.coef_), x.shape[1]
    probs = probs[:, -k:]
    x = np.column_stack([x, np.ones((len(probs), int(model.fit_intercept)))])
    hessian = np.zeros((k, x.shape[1], k, x.shape[1]))
    weight = compute_sample_weight(model.class_weight, labels)
    for a in range(k):
        curvature = (weight * probs[:, a])[:, None] * (np.eye(k)[a] - probs)
        hessian[a] = np.tensordot(x, curvature[:, :, None] * x[:, None], (0, 0))
        hessian[a, :d, a, :d] += np.eye(d) / model.C
    return hessian


def _is_softmax(model: Any) -> bool:
    """Whether a logistic regression has the softmax of its logits, of two classes 0 and the one.

    liblinear penalises the intercept, too. Before scikit-learn 1.8 ``multi_class`` could ask for
    each class against the rest, or for ± the one, and before 1.6 newton-cholesky took the former.
    """
    older = getattr(model, "multi_class", None)
    apart = ("liblinear",) if older is None or len(model.coef_) == 1 else _APART
    return older in (None, "auto", "deprecated") and model.solver not in apart


def _is_one_product(models: Sequence[Any]) -> bool:
    """Whether these are logistic regressions of the same classes, with one softmax."""
    first = models[0]
    return all(
        type(model).__name__ == "LogisticRegression"
        and np.array_equal(model.classes_, first.classes_)
        and _is_softmax(model)
        and model.coef_.shape == first.coef_.shape
        for model in models
    )


def _logistic_probs(models: Sequence[Any], x: Any, names: NDArray[Any]) -> NDArray[np.float32]:
    """Probabilities of all models [n t c], by one matrix product for all of them."""
    from sklearn.utils import check_array

    weights = np.concatenate([model.coef_ for model in models])  # [t·k d]
    shifts = np.concatenate([model.intercept_ for model in models])
    known = np.searchsorted(names, models[0].classes_)
    x = check_array(x, accept_sparse="csr")  # refuses NaN, as each of the models would
    out = np.zeros((x.shape[0], len(models), len(names)), np.float32)
    rows = max(1, _ENTRIES // len(weights))
    for start in range(0, x.shape[0], rows):
        part = x[start : start + rows]
        logits = np.asarray(part @ weights.T) + shifts
        logits = logits.reshape(len(logits), len(models), -1)
        if logits.shape[2] == 1:  # two classes have the weights of the second
            logits = np.concatenate([np.zeros_like(logits), logits], 2)
        out[start : start + rows, :, known] = softmax(logits, axis=2)
    return out


def map_rows(
    function: Callable[[Inputs], NDArray[np.float32]], inputs: Inputs
) -> NDArray[np.float32]:
    """Apply a function of rows to all inputs, in batches where they come as a Dataset."""
    inputs = _own_kind(inputs)
    if not isinstance(inputs, _LAZY):
        return function(inputs)
    return np.concatenate([function(x) for x in batches(inputs)])


def _own_kind(inputs: Inputs) -> Inputs:
    """Rows in the container that they came in; those of a Dataset stay to be read in batches."""
    whole = isinstance(inputs, arrays.Rows) and not isinstance(inputs.data, Dataset)
    return inputs[:] if whole else inputs


def _held(inputs: Inputs) -> Inputs:
    """What a model can be fitted to: a Dataset or a DataLoader is read into one array."""
    inputs = _own_kind(inputs)
    return map_rows(arrays.numpy, inputs) if isinstance(inputs, _LAZY) else inputs


def _dense(x: Any) -> NDArray[np.float32]:
    return np.asarray(arrays.numpy(x), np.float32)


def read_by_last_step(model: Any, inputs: Inputs) -> NDArray[np.float32]:
    """What the last step of a pipeline reads [n d]; the inputs of what is no pipeline."""
    if hasattr(model, "steps") and len(model) > 1:
        return _dense(model[:-1].transform(_table(model, inputs)))
    return _dense(_numbers(model, inputs))


def _numbers(model: Any, inputs: Inputs) -> Any:
    """Rows without names [n d]; those of a frame must be as the model was fitted to them."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None and hasattr(inputs, "columns") and list(inputs.columns) != list(names):
        raise InputError(
            f"inputs have the columns {list(inputs.columns)}, but {type(model).__name__} was "
            f"fitted to {list(names)}: pass these, in this order"
        )
    return _table(model, inputs.tocsr() if hasattr(inputs, "tocsr") else arrays.numpy(inputs))


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
    if classes is not None:
        checks.whole("classes", classes)
    for model in models:
        name = type(model).__name__
        if not hasattr(model, "predict_proba"):
            wrapper = "ensemble" if hasattr(model, "forward") else "CalibratedClassifierCV"
            raise InputError(f"{name} has no predict_proba: wrap it in {wrapper}")
        if not hasattr(model, "classes_"):
            raise InputError(f"{name} has no classes_: call fit first")
        single = all(np.ndim(c) == 0 for c in model.classes_)
        if not single or (classes and any(c not in range(classes) for c in model.classes_)):
            expected = f"integers from 0 to {classes - 1}" if classes else "one label for each row"
            raise InputError(
                f"{name} knows the classes {', '.join(map(str, model.classes_))}, expected "
                f"{expected}: encode labels so, or raise classes"
            )
    return np.arange(classes) if classes else np.unique([c for m in models for c in m.classes_])
