"""Laplace approximation of a trained network, by laplace-torch (the extra ``foresee[laplace]``).

A Gaussian around the trained weights, with the curvature of the loss as its precision (Daxberger et
al. 2021). Weights are drawn once, so every input meets the same draws; laplace-torch's own
predictive draws anew for each batch of inputs.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foresee.errors import InputError
from foresee.posteriors.batching import BATCH, map_batches, penultimate, probabilities
from foresee.posteriors.sgmcmc import Samples
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

    The model returns logits and is left as it was. ``subset="last_layer"`` is random in the last
    linear layer only (Kronecker-factored curvature); ``"subnetwork"`` in the ``subnetwork_size``
    weights of largest magnitude (full curvature). ``prior_precision=None`` maximises the marginal
    likelihood.
    """
    Laplace = _library()
    if draws < 2:
        raise InputError(f"draws must be at least 2, got {draws}: 100 is usual")
    network = copy.deepcopy(model).eval()
    x = map_batches(lambda rows: rows, inputs, network)
    y = torch.as_tensor(labels).to(x.device, torch.long)
    if y.shape != x.shape[:1]:
        raise InputError(
            f"labels must be {len(x)} whole numbers, got shape {list(y.shape)}: pass one for each "
            "input"
        )
    options: dict[str, Any] = {"subset_of_weights": "last_layer", "hessian_structure": "kron"}
    if subset == "subnetwork":
        indices = _largest(network, subnetwork_size)
        options = {
            "subset_of_weights": "subnetwork",
            "hessian_structure": "full",
            "subnetwork_indices": indices,
        }
    elif subset != "last_layer":
        raise InputError(f'subset must be "last_layer" or "subnetwork", got {subset!r}')
    approximation = Laplace(network, "classification", **options)
    pairs = torch.utils.data.TensorDataset(x, y)
    approximation.fit(torch.utils.data.DataLoader(pairs, batch_size=batch))
    if prior_precision is None:
        approximation.optimize_prior_precision(method="marglik")
    else:
        approximation.prior_precision = prior_precision
    generator = torch.Generator(x.device).manual_seed(seed)
    weights = approximation.sample(draws, generator=generator).detach()
    trained = copy.deepcopy(model).eval()
    if subset == "last_layer":
        return LastLayer(trained, *_split(weights, _last_linear(trained, x[:1])), batch)
    return Samples(trained, _by_name(weights, trained))


@dataclass(frozen=True)
class LastLayer:
    """Draws of the weights [t c d] and biases [t c] of the last linear layer of a network."""

    model: nn.Module
    weight: Tensor
    bias: Tensor
    batch: int = BATCH

    def predict(self, inputs: Inputs) -> Tensor:
        """Probabilities of every draw [n t c]; the rest of the network runs once."""

        def draws(x: Tensor) -> Tensor:
            return torch.einsum("nd,tcd->ntc", penultimate(self.model, x), self.weight) + self.bias

        return probabilities(map_batches(draws, inputs, self.model, self.batch), "logits")

    def point(self, inputs: Inputs) -> Tensor:
        """Probabilities of the trained network [n c]."""
        with torch.no_grad():
            outputs = map_batches(self.model, inputs, self.model, self.batch)
        return probabilities(outputs, "logits")

    def embed(self, inputs: Inputs) -> Tensor:
        """What enters the last linear layer [n d]."""
        return map_batches(lambda x: penultimate(self.model, x), inputs, self.model, self.batch)


def _library() -> Any:
    try:
        from laplace import Laplace
    except ImportError as error:
        raise InputError(
            "laplace needs the package laplace-torch: pip install 'foresee[laplace]'"
        ) from error
    return Laplace


def _largest(model: nn.Module, size: int) -> Tensor:
    magnitudes = nn.utils.parameters_to_vector(model.parameters()).detach().abs()
    if not 1 <= size <= len(magnitudes):
        raise InputError(
            f"subnetwork_size must be from 1 to the {len(magnitudes)} weights of the model, got "
            f"{size}"
        )
    return magnitudes.topk(size).indices.sort().values.cpu()


def _last_linear(model: nn.Module, x: Tensor) -> nn.Linear:
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    seen: list[nn.Linear] = []
    hooks = [m.register_forward_hook(lambda m, *_: seen.append(m)) for m in linears]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise InputError("the model has no linear layer: pass subset='subnetwork'")
    return seen[-1]


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
