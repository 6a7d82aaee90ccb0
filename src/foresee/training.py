"""One training recipe: a fresh network, labelled data and a recipe make a fitted network."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from foresee.errors import InputError
from foresee.networks import Standardise
from foresee.recipe import Recipe
from foresee.types import Array

_HEALTH = 2000  # training points on which health is measured, at most
_WORTH_RECORDING = 50  # iterations: to record takes as long as some ten of them
_AHEAD = 256  # batches drawn at once: each transfer of their rows makes a GPU wait
_LOOK_EVERY = 100  # iterations between looks at the loss: each look makes a GPU wait


@dataclass(frozen=True)
class Training:
    """A fitted network and its health: loss and accuracy on (at most 2000 of) its training set."""

    model: nn.Module
    loss: float
    accuracy: float
    seconds: float


def learning_rate(recipe: Recipe, iteration: int) -> float:
    """Step size at an iteration, counted from 0: divided by 10 every so often, as in the paper."""
    return recipe.learning_rate * recipe.decay ** (iteration // recipe.decay_every)


def fit(
    model: nn.Module,
    inputs: Array,
    labels: Any,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    device: str | torch.device | None = None,
    schedule: Callable[[int], float] | None = None,
    advance: Callable[[int], None] | None = None,
) -> Training:
    """Train ``model``, which returns logits, in place on inputs [l ...] and labels [l].

    Pass a fresh network. It is trained on ``device`` (by default where it is), left there, and left
    in eval mode. Inputs stay where they are and travel batch by batch: put a set that fits on the
    GPU there first. Every batch has the same size; the points that an epoch leaves over sit it out.
    All randomness, dropout included, comes from ``rng``: the same one gives the same bits.
    ``schedule`` replaces `learning_rate`; ``advance`` is called with the number of iterations done.
    """
    model.to(device)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        raise InputError("model has no parameters: there is nothing to train")
    x, y = _checked(inputs, labels, any(isinstance(m, Standardise) for m in model.modules()))
    optimiser = _optimiser(model, recipe)
    rates = schedule or (lambda iteration: learning_rate(recipe, iteration))
    batches = _batches(len(y), recipe.batch, rng, x.device)

    seed = int(rng.integers(2**63))
    with _seeded(like.device, seed):
        _check_classes(model, x[:1].to(like), y)
        start = time.perf_counter()
        model.train()
        gradients = _gradients(model, x, y, recipe, like, seed)
        for iteration in range(recipe.iterations):
            for group in optimiser.param_groups:
                group["lr"] = rates(iteration)
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
    with torch.cuda.graph(graph):
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


def _checked(inputs: Array, labels: Any, takes_bytes: bool) -> tuple[Tensor, Tensor]:
    if isinstance(inputs, np.ndarray):
        # A copy only where torch could not share the memory: read-only or reversed arrays.
        inputs = torch.from_numpy(np.require(inputs, requirements=["C", "W"]))
    floats = isinstance(inputs, Tensor) and (
        inputs.is_floating_point() or (takes_bytes and inputs.dtype is torch.uint8)
    )
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or not floats:
        what = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, Tensor) else inputs
        raise InputError(
            f"inputs must be an array or a tensor of floats [l ...], got {what}: scale images of "
            "bytes by 1 / 255, or begin the model with networks.Standardise"
        )
    if isinstance(labels, Tensor):
        whole = not (
            labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool
        )
    else:
        labels = np.array(labels)  # a copy: torch may write
        whole = labels.dtype.kind in "iu"
    if not whole:
        raise InputError(
            f"labels must be whole numbers from 0, got {labels.dtype}: number the classes, as "
            "numpy.unique(labels, return_inverse=True) does"
        )
    labels = torch.as_tensor(labels).long().to(inputs.device)
    if list(labels.shape) != [len(inputs)]:
        raise InputError(
            f"labels must have shape [l] = [{len(inputs)}], one for each input, got "
            f"{list(labels.shape)}"
        )
    if len(labels) == 0:
        raise InputError("inputs are empty: pass at least one labelled point")
    if int(labels.min()) < 0:
        raise InputError(f"labels must be whole numbers from 0, got {int(labels.min())}")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise InputError("inputs hold NaN or infinity: clean or impute them")
    return inputs, labels


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


def _optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
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
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch on the CPU and on ``device``, have cuDNN repeat itself, then restore it all."""
    deterministic = torch.backends.cudnn.deterministic
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = deterministic
