"""What every network posterior shares: inputs of any kind, in batches, to probabilities."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from foresee import checks
from foresee.checks import InputError

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
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    if isinstance(inputs, DataLoader):
        return torch.cat([function(_to(x, like)) for x in _from_loader(inputs)])
    checks.count("batch", batch, 1 << 40, of="any set")
    if len(inputs) == 0:
        raise InputError("inputs are empty: pass at least one row")
    parts, start = [], 0
    while start < len(inputs):
        x = _to(_rows(inputs, start, start + batch), like)
        try:
            parts.append(function(x))
        except torch.cuda.OutOfMemoryError:
            if len(x) == 1:
                raise
            batch = len(x) // 2
            torch.cuda.empty_cache()
            warnings.warn(
                f"the GPU ran out of memory: going on in batches of {batch}; pass batch={batch} "
                "to start so",
                stacklevel=3,
            )
            continue
        start += len(x)
    return torch.cat(parts)


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


def _from_loader(loader: DataLoader[Any]) -> Iterator[Any]:
    if isinstance(loader.sampler, RandomSampler):
        raise InputError(
            "inputs is a DataLoader that shuffles: rows of the result could not be told apart; "
            "pass shuffle=False"
        )
    if loader.drop_last:
        raise InputError("inputs is a DataLoader that drops the last batch: pass drop_last=False")
    for batch in loader:
        yield batch[0] if isinstance(batch, tuple | list) else batch


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
