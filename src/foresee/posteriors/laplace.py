"""Laplace approximation of a trained network, by laplace-torch (the extra ``foresee[laplace]``).

A Gaussian around the trained weights, with the curvature of the loss as its precision (Daxberger et
al. 2021). Weights are drawn once, so every input meets the same draws; laplace-torch's own
predictive draws anew for each batch of inputs.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foresee import checks, seeding
from foresee.errors import InputError
from foresee.posteriors.batching import (
    BATCH,
    bare,
    forward,
    last_linear,
    map_batches,
    penultimate,
    probabilities,
)
from foresee.posteriors.point import Point
from foresee.posteriors.sgmcmc import Samples, labelled
from foresee.types import Array, Inputs, Posterior


def laplace(
    model: nn.Module,
    inputs: Inputs,
    labels: Array,
    draws: int = 100,
    seed: int = 0,
    *,
    subset: Literal["last_layer", "subnetwork"] = "last_layer",
    subnetwork_size: int = 256,
    prior_precision: float | None = None,
    batch: int = BATCH,
) -> Posterior:
    """Fit a Laplace approximation on the labelled data and draw from it.

    Args:
        model: a trained network that maps inputs [n ...] to logits [n c]; it is left as it was.
        inputs: what it was trained on [l ...].
        labels: whole numbers [l] from 0 to c − 1.
        draws: how many draws of the weights, t.
        seed: of the draws.
        subset: "last_layer" is random in the last linear layer only, whose output must be the
            model's (Kronecker-factored curvature); "subnetwork" in the ``subnetwork_size``
            trainable weights of largest magnitude (full curvature).
        subnetwork_size: how many weights those are.
        prior_precision: of every weight; None maximises the marginal likelihood.
        batch: inputs that pass through the network at once.

    ``laplace(network, x, y).predict(pool)`` are probabilities [n t c].
    """
    Laplace = _library()
    checks.n_draws(draws)
    seeding.check_number(seed)
    if subset not in ("last_layer", "subnetwork"):
        raise InputError(f'subset must be "last_layer" or "subnetwork", got {subset!r}')
    trained, network = (copy.deepcopy(bare(model)).eval() for _ in range(2))
    x, y = labelled(trained, inputs, labels, "logits")
    if subset == "last_layer":
        name, layer = _output_layer(trained, x[:BATCH])
        options: dict[str, Any] = {"hessian_structure": "kron", "last_layer_name": name}
    else:
        indices = _largest(trained, subnetwork_size)
        options = {"hessian_structure": "full", "subnetwork_indices": indices}
        for parameter in network.parameters():  # the library counts no frozen ones
            parameter.requires_grad_(True)
    approximation = Laplace(network, "classification", subset_of_weights=subset, **options)
    pairs = torch.utils.data.TensorDataset(x, y)
    approximation.fit(torch.utils.data.DataLoader(pairs, batch_size=batch))
    if prior_precision is None:
        approximation.optimize_prior_precision(method="marglik")
    else:
        approximation.prior_precision = prior_precision

    def sample(t: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(seed)
        return approximation.sample(t, generator=generator).detach()

    if subset == "last_layer":
        return LastLayer(
            trained, *_split(sample(draws), layer), batch, lambda t: _split(sample(t), layer)
        )
    return Samples(trained, _by_name(sample(draws), trained))


@dataclass(frozen=True)
class LastLayer:
    """Draws of the weights [t c d] and biases [t c] of the last linear layer of a network.

    ``redraw`` gives any number of them.
    """

    model: nn.Module
    weight: Tensor
    bias: Tensor
    batch: int = BATCH
    redraw: Callable[[int], tuple[Tensor, Tensor]] | None = None

    def predict(self, inputs: Inputs) -> Tensor:
        """Probabilities of every draw [n t c]; the rest of the network runs once."""

        def draws(x: Tensor) -> Tensor:
            features = penultimate(self.model, x).to(self.weight.dtype)
            return torch.einsum("nd,tcd->ntc", features, self.weight) + self.bias

        outputs = map_batches(draws, inputs, self.model, batch=self.batch)
        return probabilities(outputs, "logits")

    def at_least(self, draws: int) -> "LastLayer":
        """The same posterior, drawn anew where draws are fewer."""
        if self.redraw is None or draws <= len(self.weight):
            return self
        weight, bias = self.redraw(draws)
        return replace(self, weight=weight, bias=bias)

    def point(self, inputs: Inputs) -> Array:
        """Probabilities of the trained network [n c]."""
        return Point(self.model, batch=self.batch).point(inputs)

    def embed(self, inputs: Inputs) -> Array:
        """What enters the last linear layer [n d]."""
        return Point(self.model, batch=self.batch).embed(inputs)


def _library() -> Any:
    try:
        from laplace import Laplace
    except ImportError as error:
        raise InputError(
            "laplace needs the package laplace-torch: pip install 'foresee[laplace]'"
        ) from error
    return Laplace


def _largest(model: nn.Module, size: int) -> Tensor:
    trainable = [
        p.detach().abs() if p.requires_grad else -torch.ones_like(p) for p in model.parameters()
    ]
    magnitudes = nn.utils.parameters_to_vector(trainable)
    most = int((magnitudes >= 0).sum())
    if not 1 <= size <= most:
        raise InputError(
            f"subnetwork_size must be from 1 to the {most} trainable weights of the model, got "
            f"{size}"
        )
    return magnitudes.topk(size).indices.sort().values.cpu()


def _output_layer(model: nn.Module, x: Tensor) -> tuple[str, nn.Linear]:
    """Find the linear layer whose output is the model's."""
    remedy = 'pass subset="subnetwork"'
    name, features = last_linear(model, x)
    if features is None:
        raise InputError(f"the model has no linear layer: {remedy}")
    layer: Any = model.get_submodule(name)
    holds = [key for key, _ in layer.named_parameters()]
    if holds not in (["weight", "bias"], ["weight"]):
        raise InputError(
            f"the last linear layer, {name!r}, holds {holds}, expected its weight and bias alone: "
            f"{remedy}, or remove what computes its weight (a norm, pruning, adapters)"
        )
    with torch.no_grad():
        ours = nn.functional.linear(features, layer.weight, layer.bias)
        outputs = forward(model, x)
    error = 10 * torch.finfo(ours.dtype).eps ** 0.5
    if features.ndim != 2 or ours.shape != outputs.shape:
        raise InputError(
            f"the last linear layer, {name!r}, reads {list(features.shape)} and the model returns "
            f"{list(outputs.shape)} for {len(x)} inputs, expected [n d] and [n c]: {remedy}, or "
            "pool before that layer"
        )
    ours, outputs = ours.log_softmax(-1), outputs.log_softmax(-1)
    if not torch.allclose(ours, outputs, error, error * float(outputs.abs().amax())):
        raise InputError(
            f"the model changes what its last linear layer, {name!r}, returns (a temperature, an "
            f"offset, a skip), which draws of that layer would miss: {remedy}, or move that into "
            "or before the layer"
        )
    return name, layer


def _split(weights: Tensor, layer: nn.Linear) -> tuple[Tensor, Tensor]:
    t, shape = len(weights), layer.weight.shape
    weight = weights[:, : shape.numel()].reshape(t, *shape)
    bias = weights[:, shape.numel() :] if layer.bias is not None else weights.new_zeros(t, shape[0])
    return weight, bias


def _by_name(weights: Tensor, model: nn.Module) -> dict[str, Tensor]:
    states, start = {}, 0
    for name, parameter in model.named_parameters():
        stop = start + parameter.numel()
        states[name] = weights[:, start:stop].reshape(len(weights), *parameter.shape)
        start = stop
    return states
