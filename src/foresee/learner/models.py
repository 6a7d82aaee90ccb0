"""What people bring as a model, as a function that fits it: told apart by what the object is.

No package is imported for that: whoever brings a Lightning module has imported Lightning.
"""

import copy
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, TensorDataset

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.iterations import learning_rate, optimiser_of
from foresee.networks import Standardise, statistics
from foresee.posteriors import Forest, bootstrap, laplace_logistic, mc_dropout
from foresee.posteriors.batching import forward, map_batches, one_row_each, placed, size, weight_of
from foresee.posteriors.ensemble import Ensemble, built
from foresee.posteriors.sklearn import fresh, map_rows
from foresee.recipe import Recipe
from foresee.training import class_numbers, fit, seeded, stacked, unlabelled
from foresee.types import Array, Inputs, Posterior, more_draws

# Fits labels 0 … classes − 1: (inputs, labels [l], rng, classes).
Fit: TypeAlias = Callable[[Inputs, NDArray[np.int64], np.random.Generator, int], Posterior]

# Networks of an ensemble, where there is no dropout to draw from.
MEMBERS = 10


@dataclass(frozen=True)
class Frozen:
    """A feature extractor that stays as it is, and a model that learns from its features.

    Features of the pool and of the target are computed once, when they are first needed, and kept.

    Args:
        extractor: a network that maps inputs [n ...] to features [n d], or any function that does.
        head: any model that a `Learner` takes; it reads the features.
        cache: a folder to keep features in, for any learner and process; by default one beside the
            learner's ``path``, and without that they are kept in memory.

    >>> from sklearn.linear_model import LogisticRegression
    >>> frozen = Frozen(nn.Flatten(), LogisticRegression())
    >>> frozen.features(np.zeros((5, 1, 2, 2), np.float32)).shape
    (5, 4)
    """

    extractor: Any
    head: Any
    cache: Any = None

    def features(self, inputs: Inputs) -> NDArray[np.float32]:
        """The features of inputs [n d], computed in batches."""
        rows, extractor = arrays.rows("inputs", inputs), self.extractor
        if isinstance(extractor, nn.Module):
            found: Any = map_batches(
                lambda x: one_row_each(_flat(forward(extractor, x)), size(x)), rows, extractor
            )
        else:
            parts = [extractor(rows[i : i + _PART]) for i in range(0, len(rows), _PART)]
            found = np.concatenate([arrays.numpy(_flat(part), "features") for part in parts])
        features = np.asarray(arrays.numpy(found, "features"), np.float32)
        if features.ndim != 2 or len(features) != len(rows) or not np.isfinite(features).all():
            raise InputError(
                f"extractor must return a finite row of features for each of {len(rows)} inputs, "
                f"got {list(features.shape)}: mend it"
            )
        return features


_PART = 4096  # rows that a function is given at once


def fitting(model: Any, recipe: Recipe | None, draws: int, device: Any) -> Fit:
    """A function that fits the model and draws from its posterior; for arguments see `Learner`."""
    kind = type(model).__name__
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputError(
            f"recipe must be a Recipe, got {recipe!r}: pass foresee.Recipe(iterations=1000)"
        )
    if isinstance(model, nn.Module):
        if recipe is None:
            raise InputError(
                f"model is the network {kind}, and nothing says how to train it: pass recipe, such "
                "as foresee.Recipe(iterations=1000)"
            )
        if not has_dropout(model):
            raise InputError(
                f"model is one network, {kind}, without dropout, and copies of it would hardly "
                "differ: pass a function that builds a fresh network, or add nn.Dropout layers"
            )
        return partial(_fit_network, lambda: copy.deepcopy(model), recipe, draws, device)
    if hasattr(model, "fit") and not isinstance(model, type):
        if recipe is not None:
            raise InputError(f"recipe is for networks, and model is {kind}: leave it out")
        if not hasattr(model, "predict_proba"):
            raise InputError(
                f"model {kind} has no predict_proba: wrap it in CalibratedClassifierCV"
            )
        return partial(_fit_classifier, model, draws)
    if not callable(model) or hasattr(model, "fit"):
        raise InputError(
            f"model must be a scikit-learn classifier, a network or a function that builds one, or "
            f"a function (inputs, labels, rng) -> Posterior; got {model!r}: pass one of these"
        )
    if recipe is not None:
        return partial(_fit_network, model, recipe, draws, device)
    if not checks.takes(model, "inputs, labels, rng"):
        raise InputError(
            f"model must take (inputs, labels, rng) and return a posterior, got {model!r}: if it "
            "builds a network, pass recipe, such as foresee.Recipe(iterations=1000)"
        )
    return partial(_fit_by_function, model)


def _fit_by_function(
    function: Callable[..., Posterior],
    inputs: Inputs,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    classes: int,
) -> Posterior:
    posterior = function(inputs, labels, rng)
    if not (hasattr(posterior, "predict") and hasattr(posterior, "point")):
        raise InputError(
            f"model must return a posterior with predict and point, got "
            f"{type(posterior).__name__}: see foresee.posteriors; a function that builds a network "
            "needs a recipe"
        )
    return posterior


def _fit_classifier(
    model: Any,
    draws: int,
    inputs: Inputs,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    classes: int,
) -> Posterior:
    """Trees of a forest, Gaussian weights of a logistic regression, a bootstrap of all others."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    inputs = arrays.rows("inputs", _flat(inputs[:]))  # classifiers read no images
    forest = hasattr(type(last), "estimators_samples_")
    if forest or type(last).__name__ == "LogisticRegression":
        whole = fresh(model, rng).fit(inputs[:], labels)
        piped = hasattr(whole, "steps")
        before, head = (whole[:-1], whole[-1]) if piped else (None, whole)
        with suppress(InputError):  # a penalty or a size for which there is no Gaussian
            posterior: Posterior
            if forest:
                posterior = Forest(head, classes)
            else:
                x = before.transform(inputs[:]) if before else inputs[:]
                seed = seeding.number(rng)
                posterior = laplace_logistic(head, x, labels, draws, seed, classes=classes)
            return Piped(before, posterior) if before else posterior
    return bootstrap(model, inputs, labels, draws, classes=classes, rng=rng)


@dataclass(frozen=True)
class Piped:
    """The posterior of a pipeline's last step, which reads what the fitted steps before return."""

    before: Any
    posterior: Posterior

    def predict(self, inputs: Inputs) -> Array:
        """Probabilities of every draw [n t c]."""
        return self._map("predict", inputs)

    def point(self, inputs: Inputs) -> Array:
        """Probabilities of the fitted pipeline [n c]."""
        return self._map("point", inputs)

    def embed(self, inputs: Inputs) -> Array:
        """What the last step reads, if it is linear [n d]."""
        return self._map("embed", inputs)

    def at_least(self, draws: int) -> "Piped":
        """The same pipeline with so many draws of its last step, where they can be made."""
        return Piped(self.before, more_draws(self.posterior, draws))

    def _map(self, method: str, inputs: Inputs) -> Array:
        function = getattr(self.posterior, method)
        return map_rows(lambda x: function(self.before.transform(_flat(x))), inputs)


def _fit_network(
    build: Callable[..., nn.Module],
    recipe: Recipe,
    draws: int,
    device: Any,
    inputs: Inputs,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    classes: int,
) -> Posterior:
    """MC dropout, or an ensemble where the network has no dropout."""
    takes = inspect.signature(build).parameters
    if "classes" in takes and takes["classes"].default is inspect.Parameter.empty:
        build = partial(build, classes=classes)
    masks, *owns = rng.spawn(1 + MEMBERS)
    first = _trained(build, recipe, device, inputs, labels, owns[0])
    if has_dropout(first):
        return mc_dropout(first, draws, seeding.number(masks), classes=classes)
    others = [_trained(build, recipe, device, inputs, labels, own) for own in owns[1:]]
    return Ensemble((first, *others), classes=classes)


def has_dropout(model: nn.Module) -> bool:
    """Whether there is a layer to draw masks for."""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


def _trained(
    build: Callable[..., nn.Module],
    recipe: Recipe,
    device: Any,
    inputs: Inputs,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
) -> nn.Module:
    initial, order = rng.spawn(2)
    model = built(build, seeding.number(initial)).to(device)
    kinds = {base.__name__ for base in type(model).__mro__}
    rows = unlabelled(arrays.rows("inputs", inputs)[:])
    if "LightningModule" in kinds:
        return _trained_by_lightning(model, stacked(rows), labels, recipe, order)
    if "PreTrainedModel" in kinds or isinstance(rows, dict):
        return _trained_by_name(model, rows, labels, recipe, order)
    x = stacked(rows)
    if x.dtype == torch.uint8 and not any(isinstance(m, Standardise) for m in model.modules()):
        model = nn.Sequential(Standardise(*statistics(x)), model).to(device)
    return fit(model, x, labels, recipe, order, device=device).model


def _trained_by_name(
    model: nn.Module,
    rows: Any,
    labels: NDArray[np.int64],
    recipe: Recipe,
    rng: np.random.Generator,
) -> nn.Module:
    """Train a network that reads columns by name, or returns its logits among other things."""
    like, columns = weight_of(model), arrays.rows("inputs", rows)
    y = class_numbers(labels, torch.empty(len(columns), 1))
    optimiser = optimiser_of(model.parameters(), recipe)
    with seeded(like.device, seeding.number(rng)):
        model.train()
        for iteration in range(recipe.iterations):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, iteration)
            some = rng.permutation(len(y))[: recipe.batch]
            outputs = forward(model, placed(columns[some], model))
            optimiser.zero_grad()
            cross_entropy(outputs, y[torch.from_numpy(some)].to(outputs.device)).backward()
            optimiser.step()
    return model.eval()


def _trained_by_lightning(
    model: nn.Module,
    x: torch.Tensor,
    labels: NDArray[np.int64],
    recipe: Recipe,
    rng: np.random.Generator,
) -> nn.Module:
    """Train a module by its own steps and optimisers; the recipe tells iterations and batch."""
    package = next(
        base.__module__.split(".")[0]
        for base in type(model).__mro__
        if base.__name__ == "LightningModule"
    )
    lightning: Any = sys.modules[package]
    trainer_of = getattr(lightning, "Trainer", None) or lightning.pytorch.Trainer
    y = class_numbers(labels, x)
    order = torch.Generator().manual_seed(seeding.number(rng))
    loader = DataLoader(
        TensorDataset(x, y), min(recipe.batch, len(y)), shuffle=True, drop_last=True,
        generator=order,
    )  # fmt: skip
    with seeded(torch.device("cpu"), seeding.number(rng)):
        trainer = trainer_of(
            max_steps=recipe.iterations,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
    return model.eval()


def _flat(values: Any) -> Any:
    return values.reshape(len(values), -1) if getattr(values, "ndim", 2) > 2 else values
