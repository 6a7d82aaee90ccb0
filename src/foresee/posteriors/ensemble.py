"""Ensembles: every draw is a trained network (Lakshminarayanan et al. 2017)."""

import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee import checks, seeding
from foresee.errors import InputError
from foresee.posteriors.batching import (
    BATCH,
    POSITIONAL,
    Batch,
    Outputs,
    answers,
    map_batches,
    penultimate,
    probabilities,
)
from foresee.recipe import Recipe
from foresee.training import Training, fit, seeded
from foresee.types import Inputs


def ensemble(
    models: Iterable[nn.Module],
    *,
    outputs: Outputs = "logits",
    classes: int | None = None,
    batch: int = BATCH,
) -> "Ensemble":
    """Take trained networks as posterior draws.

    Args:
        models: at least two networks that map inputs [n ...] to ``outputs`` [n c], or to something
            with ``.logits``. They run in eval mode and are given back as they were.
        outputs: what they return, "logits" or "probs".
        classes: how many outputs are expected; unknown by default.
        batch: inputs that pass through a network at once.

    >>> ensemble([nn.Linear(4, 3), nn.Linear(4, 3)]).predict(torch.ones(2, 4)).shape
    torch.Size([2, 2, 3])
    """
    if not isinstance(models, nn.ModuleList) and isinstance(models, nn.Module):
        raise InputError(
            f"models must be a list of networks, got one, a {type(models).__name__}: pass a list "
            "of at least 2 trained apart, or draw from this one with mc_dropout"
        )
    return Ensemble(tuple(models), outputs, classes, batch)


def train_ensemble(
    build: Callable[..., nn.Module],
    inputs: Inputs,
    labels: Any,
    draws: int,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    batch: int = BATCH,
    device: str | torch.device | None = None,
    advance: Callable[[int], None] | None = None,
) -> "Ensemble":
    """Train ``draws`` networks apart, each with its own weights and order of the data.

    Args:
        build: makes a fresh network from its argument ``seed``, or from the one it needs. A class
            or a function that needs none is called under a seed of torch's own numbers.
        inputs: what the network reads [l ...]; see `training.fit`.
        labels: whole numbers [l] from 0.
        draws: how many networks, t; the first k are the same for any larger number.
        recipe: how to train each.
        rng: seeds the weights and orders the data.
        batch: inputs that pass through a network at once in predictions.
        device: where to train and leave the networks; by default where they are built.
        advance: called with the number of iterations done by all.

    >>> from functools import partial
    >>> from foresee.networks import mlp
    >>> x, y = np.eye(4, dtype=np.float32), np.arange(4) % 2
    >>> recipe, rng = Recipe(iterations=5), np.random.default_rng(0)
    >>> train_ensemble(partial(mlp, 4, 2), x, y, 3, recipe, rng).predict(x).shape
    torch.Size([4, 3, 2])
    """
    checks.n_draws(draws)
    seeding.check(rng)
    trainings: list[Training] = []
    first: list[Tensor] = []

    def count(iterations: int) -> None:
        if advance is not None:
            advance(len(trainings) * recipe.iterations + iterations)

    for own in rng.spawn(draws):
        model = built(build, seeding.number(own))
        if any(model is training.model for training in trainings):
            raise InputError("build returned the same network twice: let it build a fresh one")
        if len(trainings) == 1 and all(map(torch.equal, first, model.parameters())):
            warnings.warn(
                "build gave the first two networks the same weights, so only training sets members "
                "apart: let it take a seed, such as lambda seed: Network(..., seed=seed)",
                stacklevel=2,
            )
        first = first or [p.detach().clone() for p in model.parameters()]
        trainings.append(fit(model, inputs, labels, recipe, own, device=device, advance=count))
    models = tuple(training.model for training in trainings)
    return Ensemble(models, batch=batch, trainings=tuple(trainings))


@dataclass(frozen=True)
class Ensemble:
    """Networks of one task, each one posterior draw; `ensemble` builds it from trained ones."""

    models: tuple[nn.Module, ...]
    outputs: Outputs = "logits"
    classes: int | None = None
    batch: int = BATCH
    # Health of the trainings behind it, where they are known.
    trainings: tuple[Training, ...] = ()

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise InputError(
                f"models has {len(self.models)} member: an ensemble needs at least 2; train more, "
                "or draw from a single network with mc_dropout"
            )
        for model in self.models:
            if not isinstance(model, nn.Module):
                raise InputError(
                    f"models must hold a torch.nn.Module each, got {type(model).__name__}: pass "
                    "the trained networks themselves; for classifiers of scikit-learn take members"
                )
        if len({id(model) for model in self.models}) < len(self.models):
            raise InputError(
                "models holds the same network twice: pass networks trained apart, such as copies "
                "made by copy.deepcopy before each training"
            )
        devices = {parameter.device for model in self.models for parameter in model.parameters()}
        if len(devices) > 1:
            names = " and ".join(sorted(map(str, devices)))
            raise InputError(f"models are on {names}: move them to one device with model.to")

    def predict(self, inputs: Inputs) -> Tensor:
        """Probabilities of every member [n t c]."""

        def members(x: Batch) -> Tensor:
            outputs = [answers(model, x) for model in self.models]
            sizes = sorted({y.shape[1] for y in outputs})
            if len(sizes) > 1:
                raise InputError(
                    f"models disagree on the number of classes, {sizes}: give every member one "
                    "output for each class of the task"
                )
            return torch.stack(outputs, 1)

        outputs = map_batches(members, inputs, *self.models, batch=self.batch)
        # All rows at once: in a single row, logits can pass for probabilities by chance.
        for member in outputs.unbind(1):
            probabilities(member, self.outputs, self.classes)  # a mean would hide the odd one
        return probabilities(outputs, self.outputs, self.classes)

    def point(self, inputs: Inputs) -> Tensor:
        """Probabilities of the ensemble, the mean of its members [n c]."""
        return self.predict(inputs).mean(1)

    def embed(self, inputs: Inputs) -> Tensor:
        """Penultimate representation of the first member [n d]; members share no axes."""
        first = self.models[0]
        return map_batches(lambda x: penultimate(first, x), inputs, first, batch=self.batch)


def built(build: Callable[..., nn.Module], seed: int) -> nn.Module:
    """Build from a seed; what takes none must not read it as the width of a layer."""
    remedy = "pass a function of a seed, such as lambda seed: Network(...)"
    takes = inspect.signature(build).parameters
    needs = [p.name for p in takes.values() if p.default is p.empty and p.kind in POSITIONAL]
    if "seed" not in takes and (len(needs) > 1 or (needs and isinstance(build, type))):
        raise InputError(f"build needs {', '.join(needs)}: {remedy}")
    made: Any = build
    if not isinstance(build, nn.Module):
        with seeded(torch.device("cpu"), seed):
            made = build(seed=seed) if "seed" in takes else build(*(seed for _ in needs))
    if made is build or not isinstance(made, nn.Module):
        raise InputError(f"build must make fresh networks, got a {type(made).__name__}: {remedy}")
    return made
