"""Ensembles: every draw is a trained network (Lakshminarayanan et al. 2017)."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee.errors import InputError
from foresee.posteriors.batching import (
    BATCH,
    Outputs,
    evaluating,
    map_batches,
    one_row_each,
    penultimate,
    probabilities,
)
from foresee.recipe import Recipe
from foresee.training import Training, fit
from foresee.types import Array, Inputs, Posterior


@dataclass(frozen=True)
class Ensemble:
    """Networks of one task, each one posterior draw; `ensemble` builds it from trained ones."""

    models: tuple[nn.Module, ...]
    outputs: Outputs = "logits"
    classes: int | None = None
    batch: int = BATCH
    trainings: tuple[Training, ...] = ()
    """Health of the trainings behind it, where they are known."""

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise InputError(
                f"models has {len(self.models)} member: an ensemble needs at least 2; train more, "
                "or draw from a single network with mc_dropout"
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

        def members(x: Tensor) -> Tensor:
            outputs = [one_row_each(model(x), len(x)) for model in self.models]
            sizes = sorted({y.shape[1] for y in outputs})
            if len(sizes) > 1:
                raise InputError(
                    f"models disagree on the number of classes, {sizes}: give every member one "
                    "output for each class of the task"
                )
            return torch.stack(outputs, 1)

        with evaluating(*self.models):
            outputs = map_batches(members, inputs, self.models[0], self.batch)
        # All rows at once: in a single row, logits can pass for probabilities by chance.
        return probabilities(outputs, self.outputs, self.classes)

    def point(self, inputs: Inputs) -> Tensor:
        """Probabilities of the ensemble, the mean of its members [n c]."""
        return self.predict(inputs).mean(1)

    def embed(self, inputs: Inputs) -> Tensor:
        """Penultimate representation of the first member [n d]; members share no axes."""
        first = self.models[0]
        return map_batches(lambda x: penultimate(first, x), inputs, first, self.batch)


@dataclass(frozen=True)
class Combined:
    """The draws of several posteriors as one posterior; `combined` builds it."""

    posteriors: tuple[Posterior, ...]

    def __post_init__(self) -> None:
        if len(self.posteriors) < 2:
            raise InputError(
                f"posteriors has {len(self.posteriors)} member: pass at least 2, or use it alone"
            )

    def predict(self, inputs: Inputs) -> Array:
        """Probabilities of every draw of every posterior, one after the other [n t c]."""
        parts = [posterior.predict(inputs) for posterior in self.posteriors]
        _check_agreement([(type(p), len(p), p.shape[2]) for p in parts])
        if isinstance(parts[0], Tensor):
            return torch.cat(parts, 1)  # type: ignore[arg-type]
        return np.concatenate(parts, 1)

    def point(self, inputs: Inputs) -> Array:
        """Mean of the posteriors' own points [n c], each counted once however many its draws."""
        parts: list[Any] = [posterior.point(inputs) for posterior in self.posteriors]
        _check_agreement([(type(p), len(p), p.shape[1]) for p in parts])
        return sum(parts[1:], start=parts[0]) / len(parts)

    def embed(self, inputs: Inputs) -> Array:
        """Penultimate representation of the first posterior [n d]."""
        return self.posteriors[0].embed(inputs)


def ensemble(
    models: Sequence[nn.Module],
    *,
    outputs: Outputs = "logits",
    classes: int | None = None,
    batch: int = BATCH,
) -> Ensemble:
    """Take trained networks as posterior draws.

    They run in eval mode and are given back as they were. ``outputs`` says what they return,
    ``classes`` how many are expected.
    """
    return Ensemble(tuple(models), outputs, classes, batch)


def train_ensemble(
    build: Callable[[int], nn.Module],
    inputs: Array,
    labels: Any,
    draws: int,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    batch: int = BATCH,
    device: str | torch.device | None = None,
    advance: Callable[[int], None] | None = None,
) -> Ensemble:
    """Train ``draws`` networks apart, from ``build(seed)``, each with its own weights and order.

    The first k of them are the same for any larger number of draws. ``advance`` is called with the
    number of iterations done by all.
    """
    _check_draws(draws)
    trainings: list[Training] = []

    def count(iterations: int) -> None:
        if advance is not None:
            advance(len(trainings) * recipe.iterations + iterations)

    for own in rng.spawn(draws):
        model = build(_seed(own))
        if any(model is training.model for training in trainings):
            raise InputError("build returned the same network twice: let it build a fresh one")
        trainings.append(fit(model, inputs, labels, recipe, own, device=device, advance=count))
    models = tuple(training.model for training in trainings)
    return Ensemble(models, batch=batch, trainings=tuple(trainings))


def snapshots(
    build: Callable[[int], nn.Module],
    inputs: Array,
    labels: Any,
    draws: int,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    batch: int = BATCH,
    device: str | torch.device | None = None,
    advance: Callable[[int], None] | None = None,
) -> Ensemble:
    """Train one network in cycles and keep a copy at the end of each (Huang et al. 2017).

    The iterations of the recipe are split into ``draws`` cycles; in each the learning rate falls
    from the recipe's to zero along a cosine, which takes the place of its decay. Each copy keeps
    its own BatchNorm statistics.
    """
    _check_draws(draws)
    if draws > recipe.iterations:
        raise InputError(
            f"draws = {draws} is more than the {recipe.iterations} iterations of recipe, and every "
            "snapshot needs a cycle: ask for fewer, or train for longer"
        )
    (own,) = rng.spawn(1)
    model = build(_seed(own))
    kept: list[nn.Module] = []

    def keep(iterations: int) -> None:
        if iterations * draws // recipe.iterations > len(kept):
            kept.append(copy.deepcopy(model).eval())
        if advance is not None:
            advance(iterations)

    training = fit(
        model,
        inputs,
        labels,
        recipe,
        own,
        device=device,
        schedule=lambda iteration: cyclical_rate(recipe, iteration, draws),
        advance=keep,
    )
    return Ensemble(tuple(kept), batch=batch, trainings=(training,))


def combined(posteriors: Sequence[Posterior]) -> Combined:
    """Join the draws of several posteriors of one task: MC dropout × ensemble, for example.

    ``combined([mc_dropout(model, draws=20, seed=i) for i, model in enumerate(models)])``
    """
    return Combined(tuple(posteriors))


def cyclical_rate(recipe: Recipe, iteration: int, cycles: int) -> float:
    """Step size of `snapshots` at an iteration, counted from 0: a cosine in each of the cycles."""
    phase = iteration * cycles % recipe.iterations / recipe.iterations
    return recipe.learning_rate / 2 * (1 + math.cos(math.pi * phase))


def _check_draws(draws: int) -> None:
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 2:
        raise InputError(f"draws must be a whole number, at least 2, got {draws!r}: 5 is usual")


def _check_agreement(forms: list[tuple[type, int, int]]) -> None:
    if len(set(forms)) > 1:
        described = ", ".join(f"{kind.__name__} with n={n}, c={c}" for kind, n, c in forms)
        raise InputError(
            f"posteriors disagree: {described}; combine posteriors of one task that return the "
            "same kind of array"
        )


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))
