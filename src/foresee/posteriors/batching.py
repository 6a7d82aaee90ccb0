"""What every network posterior shares: inputs of any kind, in batches, to probabilities."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foresee import checks
from foresee.errors import InputError

Outputs: TypeAlias = Literal["logits", "probs"]
"""What a network returns [n c]; log-softmax counts as logits, softmax of it changes nothing."""

BATCH = 256
"""Inputs that pass through a network at once, unless told otherwise."""


def map_batches(
    function: Callable[[Tensor], Tensor], inputs: Any, model: nn.Module, batch: int = BATCH
) -> Tensor:
    """Apply ``function`` to batches of a tensor, an array, a Dataset or a DataLoader, in order.

    Batches arrive on the model's device and, if they are floats, in its precision. When a GPU runs
    out of memory the batch is halved for all that follow.
    """
    like = weight_of(model)
    if isinstance(inputs, DataLoader):
        return torch.cat([function(_to(x, like)) for x in batches(inputs)])
    checks.count("batch", batch, 1 << 40, of="any set")
    n, start, out = _length(inputs), 0, torch.empty(0)
    shrunk = False
    while start < n:
        x = _to(_rows(inputs, start, start + batch), like)
        try:
            part = function(x)
        except torch.cuda.OutOfMemoryError:
            if len(x) == 1:
                raise
            batch, shrunk = len(x) // 2, True
            torch.cuda.empty_cache()
            continue
        if shrunk:  # said once, when the size that fits is found
            warnings.warn(
                f"the GPU ran out of memory: going on in batches of {batch}; pass batch={batch} "
                "to start so",
                stacklevel=3,
            )
            shrunk = False
        if start == 0:  # joining the parts at the end would hold them twice
            out = part.new_empty(n, *part.shape[1:])
        if part.shape != (len(x), *out.shape[1:]):
            raise InputError(
                f"the model returned {list(part.shape)} for a batch of {len(x)} inputs, expected "
                f"{[len(x), *out.shape[1:]]}: let it return one row for each input, all of one form"
            )
        out[start : start + len(x)] = part
        start += len(x)
    return out


def batches(inputs: Any, batch: int = BATCH) -> Iterator[Any]:
    """Read a Dataset or a DataLoader in order; labels that come with the inputs are left out."""
    if not isinstance(inputs, DataLoader):
        for start in range(0, _length(inputs), batch):
            yield _rows(inputs, start, start + batch)
        return
    order: Any = inputs if inputs.batch_sampler is None else inputs.batch_sampler
    sampler = getattr(order, "sampler", None)
    if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        raise InputError(
            "inputs is a DataLoader that shuffles: rows of the result could not be told apart; "
            "pass shuffle=False"
        )
    if getattr(order, "drop_last", False):
        raise InputError("inputs is a DataLoader that drops the last batch: pass drop_last=False")
    empty = True
    for values in inputs:
        empty = False
        yield values[0] if isinstance(values, tuple | list) else values
    if empty:
        raise InputError(_EMPTY)


def probabilities(outputs: Any, kind: Outputs, classes: int | None = None) -> Tensor:
    """Turn what a network returned [... c] into probabilities, or say why it cannot be."""
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not outputs.is_floating_point():
        what = f"{list(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"the model must return floats [n c], one row for each input, got {what}")
    c = outputs.shape[-1]
    if c < 2 or classes not in (None, c):
        expected = "at least 2" if classes is None else str(classes)
        raise InputError(
            f"the model returned {c} classes, expected {expected}: a binary model needs two "
            "outputs, not one"
        )
    if not bool(outputs.isfinite().all()):
        raise InputError("the model returned NaN or infinity: look for diverged or NaN weights")
    sums_to_one = bool(((outputs.sum(-1) - 1).abs() < 1e-3).all()) and bool(outputs.amin() >= 0)
    if kind == "probs":
        if not sums_to_one:
            raise InputError(
                'the model returned rows that are no probabilities: declare outputs="logits"'
            )
        return outputs
    if kind != "logits":
        raise InputError(f'outputs must be "logits" or "probs", got {kind!r}')
    if sums_to_one and outputs.numel() >= 8 * c:  # a few rows of logits could sum to one by chance
        raise InputError(
            'the model returned probabilities where logits were declared: pass outputs="probs"'
        )
    return outputs.softmax(-1)


def one_row_each(outputs: Any, n: int) -> Tensor:
    """Check that a network returned [n c] for n inputs."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"the model must return [n c], one row for each of {n} inputs, got {what}: wrap it in "
            "a module that returns its logits alone"
        )
    return outputs


def penultimate(model: nn.Module, x: Tensor) -> Tensor:
    """What enters the last nn.Linear that runs, flattened [n d], in eval mode.

    The model is given back as it was.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    >>> penultimate(model, torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """
    last: list[Tensor] = []

    def remember(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        last[:] = arguments[:1]

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(remember) for module in linears]
    try:
        with evaluating(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not last or len(last[0]) != len(x):
        raise InputError(
            "model has no penultimate representation: none of its nn.Linear layers runs on one row "
            "for each input; use a strategy that needs draws alone, not Coreset or BADGE"
        )
    return last[0].flatten(1).clone()  # a view would hold all that the layer's input was cut from


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients, then restore the mode of every single module."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def weight_of(model: nn.Module) -> Tensor:
    """Some tensor with the device and the precision of the model."""
    return next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))


_EMPTY = "inputs are empty: pass at least one row"


def _length(inputs: Any) -> int:
    if isinstance(inputs, IterableDataset):
        raise InputError(
            "inputs is an IterableDataset, which has no length: pass a DataLoader that reads it"
        )
    if len(inputs) == 0:
        raise InputError(_EMPTY)
    return len(inputs)


def _rows(inputs: Any, start: int, stop: int) -> Any:
    if not isinstance(inputs, Dataset):
        return inputs[start:stop]
    items = [inputs[i] for i in range(start, min(stop, len(inputs)))]  # type: ignore[arg-type]
    first = [item[0] if isinstance(item, tuple | list) else item for item in items]
    return torch.stack([torch.as_tensor(x) for x in first])


def _to(values: Any, like: Tensor) -> Tensor:
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(np.array(values, order="C"))  # a copy: torch may write
    if not isinstance(values, Tensor):
        raise InputError(
            f"inputs must be a tensor, an array, a Dataset or a DataLoader, got "
            f"{type(values).__name__}"
        )
    return values.to(like.device, like.dtype if values.is_floating_point() else values.dtype)
