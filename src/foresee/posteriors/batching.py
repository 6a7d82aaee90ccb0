"""What every network posterior shares: inputs of any kind, in batches, to probabilities.

A network is run by one thread at a time: it is put into eval mode, hooked and masked, and some of
torch's switches are the process's. Each batch is a turn, so threads take turns often.
"""

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foresee import arrays, checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.networks import check_pixels
from foresee.training import stacked, unlabelled

# What a network returns [n c]; log-softmax counts as logits, softmax of it changes nothing.
Outputs: TypeAlias = Literal["logits", "probs"]
# Rows of inputs, or of each of the arguments that ``forward`` names.
Batch: TypeAlias = Tensor | dict[str, Tensor]

# Inputs that pass through a network at once, unless told otherwise.
BATCH = 256

_LABELS = {"label", "labels", "label_ids"}  # columns that are no inputs
# A DistributedSampler reads a share of the rows, too.
_SHUFFLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
_LOOKS = 16  # rows times passes in which a network must not differ from itself
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_EMPTY = "inputs are empty: pass at least one row"
_turn = threading.RLock()
_steady: WeakSet[nn.Module] = WeakSet()  # networks that were seen to repeat themselves
_apart: WeakSet[nn.Module] = WeakSet()  # and to take each row for itself


def map_batches(
    function: Callable[[Any], Tensor],
    inputs: Any,
    *models: nn.Module,
    batch: int = BATCH,
    lend: Callable[..., AbstractContextManager[None]] | None = None,
    coarse: bool = False,
) -> Tensor:
    """Apply ``function`` to batches of whatever `arrays.rows` or a DataLoader reads, in order.

    Batches arrive on the first model's device and, if they are floats, in its precision; rows of
    dicts become one tensor for each argument that a ``forward`` names. While ``function`` runs, the
    models are lent by `evaluating`, or ``lend``, and float32 is float32, or bfloat16 where
    ``coarse`` will do. When a GPU runs out of memory the batch is halved for all that follow.
    """
    autocast = torch.autocast(weight_of(models[0]).device.type, torch.bfloat16, enabled=coarse)

    def run(x: Batch) -> Tensor:
        with (lend or evaluating)(*models), tiled.full_precision(), autocast, _explained(x):
            for model in models:
                if size(x) >= _LOOKS and isinstance(x, Tensor):  # a few may well be dark
                    check_pixels(model, x)
                _refuse_unsteady(model, x)
            return function(x)

    if isinstance(inputs, DataLoader):
        return torch.cat([run(placed(part, *models)) for part in batches(inputs, *models)])
    checks.whole("batch", batch)
    rows, n = _rows(inputs)
    start, out, shrunk = 0, torch.empty(0), False
    while start < n:
        x = placed(_part(rows, start, batch, models), *models)
        try:
            part = run(x)
        except torch.cuda.OutOfMemoryError:
            if size(x) == 1:
                raise
            batch, shrunk = size(x) // 2, True
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
        if part.shape != (size(x), *out.shape[1:]):
            raise InputError(
                f"the model returned {list(part.shape)} for a batch of {size(x)} inputs, expected "
                f"{[size(x), *out.shape[1:]]}: let it return one row for each input, all of one "
                "form"
            )
        out[start : start + size(x)] = part
        start += size(x)
    return out


def batches(inputs: Any, *models: nn.Module) -> Iterator[Any]:
    """Read rows or a DataLoader in order; labels that come with the inputs are left out."""
    if not isinstance(inputs, DataLoader):
        rows, n = _rows(inputs)
        for start in range(0, n, BATCH):
            yield _part(rows, start, BATCH, models)
        return
    order: Any = inputs if inputs.batch_sampler is None else inputs.batch_sampler
    sampler = getattr(order, "sampler", None)
    if isinstance(sampler, _SHUFFLE):
        raise InputError(
            "inputs is a DataLoader that shuffles: rows of the result could not be told apart; "
            f"pass shuffle=False, and no sampler ({type(sampler).__name__})"
        )
    if getattr(order, "drop_last", False):
        raise InputError("inputs is a DataLoader that drops the last batch: pass drop_last=False")
    empty = True
    for values in inputs:
        empty = False
        _refuse_parts(values, models, batched=True)
        parts = isinstance(values, tuple | list) and not isinstance(values[0], str)
        yield values[0] if parts else values
    if empty:
        raise InputError(_EMPTY)


def size(x: Batch) -> int:
    """How many inputs a batch has."""
    return len(next(iter(x.values())) if isinstance(x, dict) else x)


def each(function: Callable[[Tensor], Any], x: Batch) -> Any:
    """Apply a function to the tensor of a batch, or to each of its tensors."""
    return {k: function(v) for k, v in x.items()} if isinstance(x, dict) else function(x)


def logits(outputs: Any) -> Any:
    """What a network returned, or the logits in it, as Hugging Face's models have them."""
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    return getattr(outputs, "logits", outputs)


def forward(model: nn.Module, x: Batch) -> Any:
    """Run a network on a copy of what it reads of a batch, as it may write to it."""
    dtype = weight_of(model).dtype  # in an ensemble, not that of all
    x = each(
        lambda v: v.to(dtype if v.is_floating_point() else v.dtype, copy=True),
        _named(x, model) if isinstance(x, dict) else x,
    )
    return logits(model(**x) if isinstance(x, dict) else model(x))


def probabilities(outputs: Any, kind: Outputs, classes: int | None = None) -> Tensor:
    """Turn what a network returned [... c] into probabilities, or say why it cannot be.

    They are float32 at least: a softmax in 16 bits moves the scores.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not outputs.is_floating_point():
        what = f"{list(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"the model must return floats [n c], one row for each input, got {what}")
    c = outputs.shape[-1]
    if c < 2 or classes not in (None, c):
        expected = "at least 2" if classes is None else str(classes)
        remedy = "a binary model needs two outputs, not one"
        if c > 1:
            remedy = "build it with one output for each class, or correct classes"
        raise InputError(f"the model returned {c} classes, expected {expected}: {remedy}")
    if not bool(outputs.isfinite().all()):
        raise InputError("the model returned NaN or infinity: look for diverged or NaN weights")
    error = max(1e-3, 2 * torch.finfo(outputs.dtype).eps)
    coarse, outputs = outputs.dtype.itemsize < 4, at_least_float32(outputs)
    sums = outputs.sum(-1)
    sums_to_one = bool(((sums - 1).abs() < error).all()) and bool(outputs.amin() >= 0)
    if kind == "probs":
        if not sums_to_one:
            raise InputError(
                'the model returned rows that are no probabilities: declare outputs="logits"'
            )
        return outputs / sums[..., None] if coarse else outputs
    if kind != "logits":
        raise InputError(f'outputs must be "logits" or "probs", got {kind!r}')
    if sums_to_one and outputs.numel() >= 8 * c:  # a few rows of logits could sum to one by chance
        raise InputError(
            "the model returned probabilities where logits were declared: let it return logits, or "
            'pass outputs="probs"'
        )
    return outputs.softmax(-1)


def at_least_float32(x: Tensor) -> Tensor:
    """Widen numbers of 16 bits."""
    return x.float() if x.dtype.itemsize < 4 else x


def one_row_each(outputs: Any, n: int) -> Tensor:
    """Check that a network returned [n c] for n inputs."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"the model must return [n c], one row for each of {n} inputs, got {what}: wrap it in "
            "a module that returns its logits alone"
        )
    return outputs


def answers(model: nn.Module, x: Batch) -> Tensor:
    """Run a network: [n c], one row for each of n inputs."""
    return one_row_each(forward(model, x), size(x))


def penultimate(model: nn.Module, x: Batch) -> Tensor:
    """What enters the last nn.Linear that runs, flattened [n d], in eval mode.

    The model is given back as it was.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    >>> penultimate(model, torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """
    _, last = last_linear(model, x)
    if last is None or len(last) != size(x):
        raise InputError(
            "model has no penultimate representation: none of its nn.Linear layers runs on one row "
            "for each input; use a strategy that needs draws alone, not Coreset or BADGE"
        )
    # A view would hold all that the layer's input was cut from.
    return at_least_float32(last).flatten(1).clone()


def last_linear(model: nn.Module, x: Batch) -> tuple[str, Tensor | None]:
    """Name of the last nn.Linear that runs, and what it reads; nothing where there is none."""
    last: dict[str, Any] = {"name": "", "read": None}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: last.update(
                name=name, read=args[0] if args else kwargs["input"]
            ),
            with_kwargs=True,
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with evaluating(model), uncompiled():
            forward(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    return last["name"], last["read"]


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Wait for one's turn, run in eval mode without gradients, restore every module's mode."""
    with _turn:
        modes = [(module, module.training) for model in models for module in model.modules()]
        try:
            for model in models:
                model.eval()
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled parts as they were written, as their code does not look at hooks and masks."""
    compiler = "torch._dynamo" in sys.modules  # to import it takes seconds
    return torch.compiler.set_stance("force_eager") if compiler else nullcontext()


def bare(model: nn.Module) -> nn.Module:
    """The network in wrappers that change no number: compiled, or spread over several GPUs."""
    inner: Any = model
    if not isinstance(inner, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module, got {type(inner).__name__}: pass the trained "
            "network itself"
        )
    while isinstance(inner, nn.DataParallel) or hasattr(inner, "_orig_mod"):
        inner = inner.module if isinstance(inner, nn.DataParallel) else inner._orig_mod
    return cast(nn.Module, inner)


def weight_of(model: nn.Module) -> Tensor:
    """Some tensor with the device and the precision of the model."""
    return next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))


def _refuse_unsteady(model: nn.Module, x: Batch) -> None:
    """Refuse a network whose answer for a row is another at every call, or beside other rows."""
    if model in _apart or (model in _steady and size(x) == 1):
        return
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise InputError(
                f"{name or 'model'} is a BatchNorm without running statistics: predictions would "
                "depend on the batch; train it with track_running_stats=True, or use GroupNorm"
            )
    few = each(lambda v: v[:_LOOKS], x)  # and few passes, unless there is hardly a row to look at
    passes = 1 if model in _steady else max(2, _LOOKS // size(few))
    first, *rest = (forward(model, few) for _ in range(passes))
    if not all(_agree(first, y, 0.0) for y in rest):  # some GPU kernels add in any order
        raise InputError(
            "the model is random in eval mode, so its draws would be others at every call: let "
            "self.training switch what is random in forward"
        )
    _steady.add(model)
    if size(x) == 1:
        return
    last = max(1, size(few) // 8)
    alone = forward(model, each(lambda v: v[-last:], few))
    whole = isinstance(first, Tensor) and first.ndim > 0
    weight = weight_of(model)
    half = weight.dtype.itemsize == 2 or torch.is_autocast_enabled(weight.device.type)
    # Batches of other sizes round otherwise; what mixes rows is far worse.
    if whole and not _agree(first[-last:], alone, 0.1 if half else 0.02):
        raise InputError(
            "the model's answer for a row depends on the rows beside it, so draws would depend on "
            "the batch: look for batch_first=True left out of a recurrent or attention layer, or "
            "for a mean or a softmax over the first axis"
        )
    columns = few.values() if isinstance(few, dict) else [few]
    if not all(bool((v == v[:1]).all()) for v in columns):  # equal rows say nothing of each other
        _apart.add(model)


def _agree(x: Any, y: Any, least: float) -> bool:
    """Whether two answers are close; those of unlike forms are refused later."""
    if not (isinstance(x, Tensor) and x.is_floating_point() and x.numel() and x.shape == y.shape):
        return True
    error = max(least, torch.finfo(x.dtype).eps ** 0.5)
    scale = error * float(x.abs().nan_to_num().amax())
    return torch.allclose(x, y, error, scale, equal_nan=True)


@contextmanager
def _explained(x: Batch) -> Iterator[None]:
    """Say what to do where a network cannot read whole numbers."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(x, dict) or x.is_floating_point() or "type" not in str(error):
            raise
        raise InputError(
            f"the model cannot read inputs of {x.dtype} ({str(error).splitlines()[0]}): pass "
            "floats; scale images of bytes by 1 / 255, or begin the model with "
            "networks.Standardise"
        ) from error


def _rows(inputs: Any) -> tuple[Any, int]:
    if isinstance(inputs, IterableDataset):
        raise InputError(
            "inputs is an IterableDataset, which has no length: pass a DataLoader that reads it"
        )
    rows = arrays.rows("inputs", inputs)
    if len(rows) == 0:
        raise InputError(_EMPTY)
    return rows, len(rows)


def _part(rows: Any, start: int, batch: int, models: tuple[nn.Module, ...]) -> Any:
    part = rows[start : start + batch]
    if isinstance(part, Dataset):
        data, part = part, [part[i] for i in range(len(part))]  # type: ignore[arg-type]
        if start == 0 and not _alike(data[0], part[0]):
            raise InputError(
                "inputs is a Dataset whose first row is another at every read, and so would its "
                "draws be: leave out random transforms, which are for training"
            )
    if isinstance(part, list) and part:
        _refuse_parts(part[0], models)
    part = unlabelled(part)
    dense = isinstance(part, list) and isinstance(part[0], np.ndarray | Tensor)
    return stacked(part) if dense else part


def _alike(row: Any, other: Any) -> bool:
    """Whether what a network reads of two rows is the same, as far as that can be told."""
    if isinstance(row, Mapping):
        return all(_alike(row[key], other[key]) for key in row)
    if isinstance(row, tuple | list) and row:
        return _alike(row[0], other[0])
    if not isinstance(row, np.ndarray | Tensor) or arrays.numpy(row).dtype.kind not in "biuf":
        return True
    return np.array_equal(arrays.numpy(row), arrays.numpy(other), equal_nan=True)


def _refuse_parts(row: Any, models: tuple[nn.Module, ...], *, batched: bool = False) -> None:
    """Refuse inputs of several parts, such as tokens and their mask: only the first is read."""
    if not isinstance(row, tuple | list) or not isinstance(row[0], np.ndarray | Tensor):
        return
    more = [list(part.shape[batched:]) for part in row[1:] if getattr(part, "ndim", 0) > batched]
    for model in models if more else ():
        takes = inspect.signature(model.forward).parameters.values()
        names = [p.name for p in takes if p.kind in POSITIONAL and not isinstance(p.default, bool)]
        if len(names) > 1:
            raise InputError(
                f"rows of inputs have parts beyond the first, of shape {more}, which would not be "
                f"read, and the model's forward takes {names}: let rows be dicts of these names, "
                "or the first part alone"
            )


def placed(part: Any, *models: nn.Module) -> Batch:
    """A batch of its own memory, as forward may write to it, where the models can read it."""
    weights = [weight_of(model) for model in models]
    finest = max((weight.dtype for weight in weights), key=lambda dtype: dtype.itemsize)

    def place(values: Any) -> Tensor:
        x = stacked(values)
        dtype = finest if x.is_floating_point() else x.dtype
        return x.to(weights[0].device, dtype, copy=True)

    if isinstance(part, Mapping):
        named = {key: v for model in models for key, v in _named(part, model).items()}
        return {name: place(column) for name, column in named.items()}
    return place(part)


def _named(columns: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The columns that are arguments of forward; all of them, if it names none and takes any."""
    model = bare(model)
    takes, known = inspect.signature(model.forward).parameters, _arguments(model)
    inputs = {name: column for name, column in columns.items() if name not in _LABELS}
    named = {name: column for name, column in inputs.items() if name in known}
    if not named and any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return inputs
    if not named:
        raise InputError(
            f"inputs have the columns {list(columns)}, but the model's forward takes "
            f"{list(takes)}: rename the columns after its arguments"
        )
    return named


def _arguments(model: nn.Module, *, wrapped: bool = False) -> set[str]:
    """Names that forward takes, or hands on by ``**`` to a network in it that shares some."""
    takes = inspect.signature(model.forward).parameters.values()
    own = {p.name for p in takes if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    known = set(own)
    if any(p.kind is p.VAR_KEYWORD for p in takes):
        for part in model.children():
            inner = _arguments(part, wrapped=True)
            if not own.isdisjoint(inner) or (wrapped and not own):  # what names none hands on all
                known |= inner
    return known
