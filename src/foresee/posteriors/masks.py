"""Dropout masks that are the same for every input: what a mask is, and where none can be fixed.

The mask of draw k at a dropout layer is a pure function of (seed, name of the layer, k, shape of
one input's activation there): it cannot depend on the batch, on the order of the inputs or on
earlier calls.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from foresee.errors import InputError
from foresee.posteriors.batching import (
    Batch,
    answers,
    evaluating,
    forward,
    size,
    uncompiled,
    weight_of,
)
from foresee.seeding import generator
from foresee.training import randomness

# Dropout layers with their names and rates, as they were when the model was wrapped.
Layers: TypeAlias = dict[nn.Module, tuple[str, float]]

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
# Axes at which torch takes the first one for channels, not for the batch.
_UNBATCHED: dict[Any, int] = {nn.Dropout1d: 2, nn.Dropout3d: 4}
# Where each function that drops units takes its probability. Masks of these cannot be fixed.
_FUNCTIONAL: dict[Any, int] = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
} | {
    getattr(module, name): 1
    for module in (functional, torch)
    for name in dir(module)
    if name.rstrip("_").rstrip("123d").endswith("dropout") and not name.startswith("_")
}
# What Hugging Face's configurations call the dropout of attention weights.
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")


@dataclass
class Masks:
    """What each draw keeps at each call site: a layer's name, then name:1 at its second call."""

    draws: int
    seed: int
    layers: Layers
    kept: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def at(self, site: str, layer: nn.Module, x: Tensor) -> Tensor:
        """Kept units [t ...]."""
        shape = tuple(x.shape[1:])
        if isinstance(layer, _CHANNELS):
            shape = (*shape[:1], *(1 for _ in shape[1:]))
        if site not in self.kept:
            generators = [generator(self.seed, "dropout", site, k) for k in range(self.draws)]
            keep = [rng.random(shape, np.float32) >= self.layers[layer][1] for rng in generators]
            self.kept[site] = torch.from_numpy(np.stack(keep)).to(x.device)
        if self.kept[site].shape[1:] != shape:
            raise InputError(
                f"dropout layer {site!r} met an activation {list(shape)} after "
                f"{list(self.kept[site].shape[1:])}: its mask would depend on the input; pad or "
                "resize all inputs to one shape"
            )
        return self.kept[site]

    def units(self, site: str, draw: int, device: torch.device) -> Tensor:
        """Numbers of the units that a draw keeps, found once: to count them makes a GPU wait."""
        if (site, draw) not in self.numbers:
            self.numbers[site, draw] = self.kept[site][draw].nonzero().flatten()
        return self.numbers[site, draw].to(device)

    def refuse_equal(self) -> None:
        """Refuse draws that keep the same units everywhere."""
        if all(bool((kept == kept[:1]).all()) for kept in self.kept.values()):
            rates = dict(self.layers.values())
            raise InputError(
                f"all {self.draws} draws keep the same units, so every score would be 0: choose a "
                f"dropout rate between 0 and 1 for {rates}, or more draws"
            )

    def drop(self, site: str, layer: nn.Module, x: Tensor, draws: slice, rows: int) -> Tensor:
        """Apply ``draws`` to x [rows ...], or to x [draws·rows ...] where they are folded in."""
        kept = self.at(site, layer, x)[draws, None].to(x.device)
        p, x = self.layers[layer][1], x.reshape(-1, rows, *x.shape[1:])
        if not isinstance(layer, _ALPHA) or p == 1:
            return (x * (kept.to(x.dtype) * gain(p))).flatten(0, 1)
        # Klambauer et al. (2017), as torch has it: dropped units go to −α and an affine map then
        # restores mean and variance.
        alpha = 1.7580993408473766
        a = ((alpha**2 * p + 1) * (1 - p)) ** -0.5
        shift = (kept.to(x.dtype) - 1) * (alpha * a) + alpha * a * p
        return (x * (kept.to(x.dtype) * a) + shift).flatten(0, 1)


def gain(p: float) -> float:
    """What kept units are multiplied by."""
    return 0.0 if p == 1 else 1 / (1 - p)


def site_of(name: str, calls: Counter[str]) -> str:
    """Count a call of a layer and name its site."""
    calls[name] += 1
    return name if calls[name] == 1 else f"{name}:{calls[name] - 1}"


def dropout_layers(model: nn.Module) -> Layers:
    """Find the dropout layers, or say why masks cannot be fixed."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            raise InputError(
                f"{name or 'model'} is an nn.MultiheadAttention with dropout {module.dropout} "
                "inside, whose masks cannot be fixed: set its .dropout = 0.0 and rely on "
                "nn.Dropout layers around it"
            )
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            raise InputError(
                f"{name or 'model'} is an nn.{type(module).__name__} with dropout "
                f"{module.dropout} between its layers, whose masks cannot be fixed: stack "
                "one-layer networks with nn.Dropout between them, or set its .dropout = 0.0"
            )
    dropouts = [(n, m) for n, m in model.named_modules() if isinstance(m, _DropoutNd)]
    layers: Layers = {module: (name, module.p) for name, module in dropouts if module.p > 0}
    for module, (name, _) in layers.items():
        if type(module).forward.__module__ != _DropoutNd.__module__:
            raise InputError(
                f"dropout layer {name!r} is a {type(module).__module__}.{type(module).__name__}, "
                "with a forward of its own, so its masks are unknown: put a dropout layer of "
                "torch.nn in its place (baal's unpatch_module does)"
            )
    if not layers:
        raise InputError(
            "model has no dropout layer with p > 0, so all draws would be equal: train it with "
            "nn.Dropout modules (functional dropout in forward cannot be fixed: use modules), or "
            "take an ensemble"
        )
    return layers


def refuse_functional(model: nn.Module, x: Batch) -> None:
    """Look for functional dropout in eval mode, then in code that runs in training only."""
    buffers, watch = [(buffer, buffer.clone()) for buffer in model.buffers()], _Watch()
    cuda = [device for device in [weight_of(model).device] if device.type == "cuda"]
    alone = randomness.acquire(blocking=False)  # else a training draws: it must not be set back
    try:
        with borrowed(model), watch, torch.random.fork_rng(cuda, enabled=alone):
            for module in model.modules():
                if isinstance(module, _DropoutNd):
                    vars(module)["forward"] = nn.Identity().forward
            with suppress(_FoundError):
                forward(model, x)
            for module in model.modules():
                ours = type(module).__module__.startswith("torch.") or isinstance(module, _NormBase)
                module.training = not ours
            with suppress(Exception):  # some models want labels in training; only the look is lost
                forward(model, x)
    finally:
        if alone:
            randomness.release()
    for buffer, value in buffers:
        if not torch.equal(buffer, value):  # an idle write would spoil the user's autograd graph
            buffer.copy_(value)
    if watch.found:
        configs = [getattr(module, "config", None) for module in model.modules()]
        setting = next((s for s in _ATTENTION for c in configs if getattr(c, s, 0)), None)
        remedy = (
            "replace it by an nn.Dropout module made in __init__ (for attention, apply one to its "
            "output and set dropout_p = 0)"
        )
        if setting:
            remedy = f"load the model with {setting}=0.0, its other dropout layers make the draws"
        raise InputError(
            f"the model calls {', '.join(sorted(watch.found))} in forward, whose masks cannot be "
            f"fixed: {remedy}"
        )


def whole_pass(model: nn.Module, masks: Masks, x: Batch, draw: int) -> Tensor:
    """Run one draw through a `borrowed` network, each dropout layer replaced by its mask [n c]."""
    calls: Counter[str] = Counter()
    n = size(x)

    def masked(layer: Any, name: str) -> Callable[[Tensor], Tensor]:
        def masked_forward(input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
            site = site_of(name, calls)
            if input.shape[:1] != (n,) or input.ndim == _UNBATCHED.get(type(layer)):
                raise InputError(
                    f"dropout layer {site!r} reads {list(input.shape)} for a batch of {n}: "
                    "its mask would depend on the place in the batch; make the batch its first "
                    "axis, with units behind it"
                )
            out = masks.drop(site, layer, input, slice(draw, draw + 1), n)
            return input.copy_(out) if layer.inplace else out  # some are called for that alone

        return masked_forward

    for layer, (name, _) in masks.layers.items():
        vars(layer)["forward"] = masked(layer, name)
    out = answers(model, x)
    masks.calls.update({} if masks.calls else calls)
    if calls != masks.calls:
        raise InputError(
            f"dropout layers were called {dict(calls)} times after {dict(masks.calls)}: masks "
            "would depend on the input; call each layer equally often for every input"
        )
    return out


@contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """Lend the model as `evaluating` does; each module's attributes come back as they were."""
    with evaluating(model), uncompiled():
        saved = [(module, dict(vars(module))) for module in model.modules()]
        fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it skips a transformer's dropout layers
        try:
            for module, _ in saved:
                module.training = False  # a model's own eval() may spare some
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
            for module, attributes in saved:
                vars(module).clear()
                vars(module).update(attributes)


class _Watch(TorchFunctionMode):
    """Notes functions that drop units; dropout layers do not call theirs while masks are set."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONAL:
            args_p = args[_FUNCTIONAL[func]] if len(args) > _FUNCTIONAL[func] else 0.0
            if kwargs.get("p", kwargs.get("dropout_p", args_p)) > 0:
                self.found.add(func.__name__)
                raise _FoundError
        return func(*args, **kwargs)


class _FoundError(Exception):
    """Stops a pass before it draws from the process's random numbers."""
