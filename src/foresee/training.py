"""One training recipe: a fresh network, labelled data and a recipe make a fitted network."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from foresee import arrays, seeding
from foresee.errors import InputError
from foresee.networks import Standardise
from foresee.recipe import Recipe
from foresee.types import Inputs

_HEALTH = 2000  # training points on which health is measured, at most
_WORTH_RECORDING = 50  # iterations: to record takes as long as some ten of them
_AHEAD = 256  # batches drawn at once: each transfer of their rows makes a GPU wait
_LOOK_EVERY = 100  # iterations between looks at the loss: each look makes a GPU wait

# Held by who seeds torch's random numbers: they are the process's, so trainings take turns.
randomness = threading.RLock()


@dataclass(frozen=True)
class Training:
    """A fitted network and its health."""

    # In eval mode, on the device where it was trained.
    model: nn.Module
    # Mean cross-entropy on (at most 2000 of) its training set, in nats.
    loss: float
    # Share of the same points whose largest logit is the label's.
    accuracy: float
    # Spent on the iterations alone.
    seconds: float


def learning_rate(recipe: Recipe, iteration: int) -> float:
    """Step size at an iteration, counted from 0: divided by 10 every so often, as in the paper.

    >>> [learning_rate(Recipe(decay_every=100), iteration) for iteration in (0, 99, 100)]
    [0.01, 0.01, 0.001]
    """
    return recipe.learning_rate * recipe.decay ** (iteration // recipe.decay_every)


def fit(
    model: nn.Module,
    inputs: Inputs,
    labels: Any,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    device: str | torch.device | None = None,
    advance: Callable[[int], None] | None = None,
) -> Training:
    """Train ``model`` in place and return it with its health.

    Every batch has the same size; the points that an epoch leaves over sit it out. All randomness,
    dropout included, comes from ``rng``: the same one gives the same bits. Trainings in several
    threads wait for each other, as torch's random numbers are the process's.

    Args:
        model: a fresh network that maps inputs [n ...] to logits [n c]. It is left in eval mode.
        inputs: floats [l ...], or bytes if the model begins with `networks.Standardise`. They stay
            where they are and travel batch by batch: put a set that fits on the GPU there first.
        labels: whole numbers [l] from 0 to c − 1.
        recipe: how to train.
        rng: orders the data and seeds torch.
        device: where to train and leave the model; by default where it is.
        advance: called with the number of iterations done, after each.

    >>> from foresee.networks import mlp
    >>> x, y = np.eye(4, dtype=np.float32)[[0, 1] * 8], np.array([0, 1] * 8)
    >>> fitted = fit(mlp(4, 2, (16,)), x, y, Recipe(50, batch=8), np.random.default_rng(0))
    >>> fitted.accuracy
    1.0
    """
    seeding.check(rng)
    model.to(device)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        raise InputError("model has no parameters: there is nothing to train")
    x, y = _checked(inputs, labels, any(isinstance(m, Standardise) for m in model.modules()))
    optimiser = optimiser_of(model, recipe)
    batches = _batches(len(y), recipe.batch, rng, x.device)

    seed = int(rng.integers(2**63))
    with seeded(like.device, seed):
        _check_classes(model, x[:1].to(like, copy=True), y)
        start = time.perf_counter()
        model.train()
        gradients = _gradients(model, x, y, recipe, like, seed)
        for iteration in range(recipe.iterations):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, iteration)
            loss = gradients(next(batches))
            optimiser.step()
            if iteration % _LOOK_EVERY == 0 or iteration == recipe.iterations - 1:
                _check_loss(loss.item(), iteration, recipe)
            if advance is not None:
                advance(iteration + 1)
        seconds = time.perf_counter() - start

        model.eval()
        rows = torch.from_numpy(rng.permutation(len(y))[:_HEALTH]).to(x.device)
        with torch.no_grad():
            outputs = torch.cat([model(x[part].to(like)) for part in rows.split(recipe.batch)])
            known = y[rows].to(like.device)
            health = cross_entropy(outputs, known).item()
            accuracy = (outputs.argmax(1) == known).double().mean().item()
    _check_loss(health, recipe.iterations - 1, recipe)
    return Training(model, health, accuracy, seconds)


def _gradients(
    model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, like: Tensor, seed: int
) -> Callable[[Tensor], Tensor]:
    """A function that puts the gradients of a batch's mean loss into the model and returns it.

    On a GPU the kernels of one batch are recorded once and replayed: launching them one by one
    takes a small network several times longer than running them.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]

    def compute(inputs: Tensor, labels: Tensor) -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast(
            like.device.type,
            torch.bfloat16,
            enabled=recipe.precision == "bfloat16",
            cache_enabled=False,  # a recording would keep the weights of its first batch
        ):
            outputs = model(inputs)
        loss = cross_entropy(outputs.to(like.dtype), labels)
        loss.backward()
        return loss

    if like.device.type != "cuda" or recipe.iterations < _WORTH_RECORDING:
        return lambda rows: compute(x[rows].to(like), y[rows].to(like.device))

    size = min(recipe.batch, len(y))
    inputs, labels = x[:size].to(like, copy=True), y[:size].to(like.device, copy=True)
    before = [buffer.clone() for buffer in model.buffers()]
    side = torch.cuda.Stream(like.device)
    side.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(side):  # libraries set themselves up at first use, which cannot be kept
        for _ in range(3):
            compute(inputs, labels)
    torch.cuda.current_stream(like.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may allocate
        loss = compute(inputs, labels)
    for buffer, value in zip(model.buffers(), before, strict=True):  # BatchNorm saw the rehearsal
        buffer.copy_(value)
    torch.cuda.manual_seed(seed)

    def replay(rows: Tensor) -> Tensor:
        inputs.copy_(x[rows])
        labels.copy_(y[rows])
        graph.replay()
        return loss

    return replay


def _checked(inputs: Inputs, labels: Any, takes_bytes: bool) -> tuple[Tensor, Tensor]:
    x = stacked(unlabelled(arrays.rows("inputs", inputs)[:]))
    floats = x.is_floating_point() or (takes_bytes and x.dtype is torch.uint8)
    if x.ndim < 2 or not floats:
        raise InputError(
            f"inputs must be rows of floats [l ...], got {x.dtype} {list(x.shape)}: scale images "
            "of bytes by 1 / 255, or begin the model with networks.Standardise"
        )
    y = class_numbers(labels, x)
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise InputError("inputs hold NaN or infinity: clean or impute them")
    return x, y


def unlabelled(rows: Any) -> Any:
    """What a network reads of a list or a Dataset: without the labels of pairs, dicts as columns.

    >>> unlabelled([({"a": 1}, "label"), ({"a": 2}, "label")])
    {'a': [1, 2]}
    """
    if isinstance(rows, Dataset):
        rows = [rows[i] for i in range(len(rows))]  # type: ignore[arg-type]
    if not (isinstance(rows, list) and rows):
        return rows
    readable = (np.ndarray, Tensor, Mapping)  # other first items are numbers of a row
    pairs = [isinstance(row, tuple | list) and isinstance(row[0], readable) for row in rows]
    items = [row[0] if pair else row for row, pair in zip(rows, pairs, strict=True)]
    if isinstance(items[0], Mapping):
        return {key: [item[key] for item in items] for key in items[0]}
    return items


def stacked(rows: Any) -> Tensor:
    """Rows, or a list of them, as one tensor."""
    if isinstance(rows, Mapping):
        raise InputError(
            f"inputs have columns {list(rows)}, and only one tensor can be trained on: pass that, "
            "or train the network yourself and wrap it by mc_dropout or ensemble"
        )
    if not isinstance(rows, list):
        return arrays.tensor(rows, "inputs")
    try:
        return torch.stack([arrays.tensor(row, "inputs") for row in rows])
    except RuntimeError as error:
        raise InputError(f"inputs must be of one shape ({error}): pad or resize them") from error


def class_numbers(labels: Any, x: Tensor) -> Tensor:
    """Check labels [l] of inputs x [l ...] and put them beside these."""
    kind = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if not str(kind.dtype).removeprefix("torch.").startswith(("int", "uint")):
        raise InputError(
            f"labels must be whole numbers from 0, got {kind.dtype}: number the classes, as "
            "numpy.unique(labels, return_inverse=True) does"
        )
    y = arrays.tensor(kind, "labels").to(x.device, torch.long, copy=True)  # a copy: torch may write
    if y.shape != x.shape[:1]:
        raise InputError(
            f"labels must have shape [l] = [{len(x)}], one for each input, got {list(y.shape)}"
        )
    if len(y) == 0:
        raise InputError("inputs are empty: pass at least one labelled point")
    if int(y.min()) < 0:
        raise InputError(f"labels must be whole numbers from 0, got {int(y.min())}")
    return y


def _check_classes(model: nn.Module, x: Tensor, labels: Tensor) -> None:
    model.eval()  # or one look at the data would move BatchNorm's statistics
    with torch.no_grad():
        outputs = model(x)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1:
        what = f"{list(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"model must return logits [n c], for one input it returned {what}")
    largest = int(labels.max())
    if largest >= outputs.shape[1]:
        raise InputError(
            f"labels go up to {largest}, but model has {outputs.shape[1]} outputs, for the classes "
            f"0 to {outputs.shape[1] - 1}: build it with classes={largest + 1}"
        )


def _check_loss(loss: float, iteration: int, recipe: Recipe) -> None:
    if not math.isfinite(loss):
        raise InputError(
            f"training diverged, its loss is {loss} at iteration {iteration}: lower learning_rate, "
            f"it is {recipe.learning_rate}"
        )


def optimiser_of(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimiser that a recipe asks for."""
    on_gpu = all(parameter.is_cuda for parameter in model.parameters())
    if recipe.optimiser == "adam":
        return torch.optim.Adam(
            model.parameters(),
            recipe.learning_rate,
            betas=(recipe.momentum, 0.999),
            weight_decay=recipe.weight_decay,
            fused=on_gpu,
        )
    return torch.optim.SGD(
        model.parameters(),
        recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=on_gpu,
    )


def _batches(
    points: int, batch: int, rng: np.random.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Rows of one batch after another, epoch after epoch.

    Batches that are short are left out: one of a single point would break BatchNorm.
    """
    size = min(batch, points)
    used = points - points % size
    epochs = -(-_AHEAD * size // used)
    while True:
        order = np.concatenate([rng.permutation(points)[:used] for _ in range(epochs)])
        yield from torch.from_numpy(order).to(device).split(size)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch on the CPU and on ``device``, have cuDNN repeat itself, then restore it all."""
    with randomness, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        deterministic = torch.backends.cudnn.deterministic
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = deterministic
