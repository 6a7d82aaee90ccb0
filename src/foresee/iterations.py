"""One iteration of a training after another: a batch's rows, both passes, the update.

On a GPU one is recorded once and replayed: launching its kernels one by one takes longer than
running them.
"""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from foresee import bfloat16
from foresee.errors import InputError
from foresee.recipe import Recipe

_AHEAD = 256  # batches drawn at once: each transfer of their rows makes a GPU wait


def batches_of(
    points: int, batch: int, rng: np.random.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Rows of one batch after another, epoch after epoch.

    Batches that are short are left out: one of a single point would break BatchNorm.
    """
    size = int(min(batch, points))
    used = points - points % size
    epochs = -(-_AHEAD * size // used)
    while True:
        order = np.concatenate([rng.permutation(points)[:used] for _ in range(epochs)])
        yield from torch.from_numpy(order).to(device).split(size)


def learning_rate(recipe: Recipe, iteration: int) -> float:
    """Step size at an iteration, counted from 0: divided by 10 every so often, as in the paper.

    >>> [learning_rate(Recipe(decay_every=100), iteration) for iteration in (0, 99, 100)]
    [0.01, 0.01, 0.001]
    """
    return recipe.learning_rate * recipe.decay ** (iteration // recipe.decay_every)


def optimiser_of(
    parameters: Iterable[nn.Parameter], recipe: Recipe, rate: Tensor | None = None
) -> torch.optim.Optimizer:
    """The recipe's optimiser; on a GPU one that can be recorded, whose rate lies there."""
    options: dict[str, Any] = {
        "lr": recipe.learning_rate if rate is None else rate,
        "weight_decay": recipe.weight_decay,
        "fused": rate is not None,
    }
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **options)
    betas = (recipe.momentum, 0.999)
    return torch.optim.Adam(parameters, betas=betas, capturable=rate is not None, **options)


def _passes(
    model: nn.Module, recipe: Recipe, like: Tensor, weights: dict[str, Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that puts the gradients of a batch's mean loss beside the weights and returns it.

    ``weights`` stand in for the model's own of their names.
    """
    leaves = [weights.get(name, p) for name, p in model.named_parameters() if p.requires_grad]
    forward = partial(bfloat16.forward, model, weights) if weights else model

    @torch.enable_grad()
    def compute(inputs: Tensor, labels: Tensor) -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        coarse = torch.autocast(
            like.device.type,
            torch.bfloat16,
            enabled=recipe.precision == "bfloat16",
            cache_enabled=False,  # a recording would keep the weights of its first batch
        )
        with coarse, norms():
            outputs = forward(inputs)
        loss = cross_entropy(outputs.to(like.dtype), labels)
        loss.backward()
        return loss.detach()

    return compute


@contextmanager
def norms(
    remedy: str = "cannot train on one point: label more, raise batch, or use GroupNorm",
) -> Iterator[None]:
    """Say of a BatchNorm that met a single point what to do about it."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(f"model has a BatchNorm, which {remedy}") from error


def stepped(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    like: Tensor,
    batches: Iterator[Tensor],
) -> Iterator[Callable[[], float]]:
    """Do one iteration after another and yield what reads its loss."""
    optimiser = optimiser_of(model.parameters(), recipe)
    compute = _passes(model, recipe, like, {})
    for iteration in range(recipe.iterations):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, iteration)
        rows = next(batches)
        loss = compute(x[rows].to(like), y[rows])
        optimiser.step()
        yield loss.item


def recorded(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    like: Tensor,
    batches: Iterator[Tensor],
    seed: int,
) -> Generator[Callable[[], float], None, None]:
    """Record an iteration on a GPU and yield; then replay it and yield what reads its loss.

    All that an iteration reads lies on the GPU: the data, the rows of the next batches and how many
    of them are done, the learning rate, and the state of random numbers of its own.
    """
    stream, own = torch.cuda.Stream(like.device), torch.Generator(like.device)
    rate = torch.zeros((), device=like.device)
    rows = torch.zeros(_AHEAD, min(recipe.batch, len(y)), dtype=torch.long, device=like.device)
    done = torch.zeros(1, dtype=torch.long, device=like.device)
    turned = bfloat16.channels_last(model) if recipe.precision == "bfloat16" else []
    weights = _Weights(model, recipe, rate)
    compute = _passes(model, recipe, like, weights.coarse)

    def step() -> Tensor:
        batch = rows.index_select(0, done).flatten()
        done.add_(1)
        loss = compute(x.index_select(0, batch).to(like), y.index_select(0, batch))
        weights.update()
        return loss

    def read() -> float:
        with torch.cuda.stream(stream):
            return loss.item()

    try:
        graph, loss = _capture(step, model, own, stream)
        weights.reset()
        own.manual_seed(seed)
        stream.wait_stream(torch.cuda.current_stream(like.device))
        yield read
        for iteration in range(recipe.iterations):
            with torch.cuda.stream(stream):
                if iteration % recipe.decay_every == 0:
                    rate.fill_(learning_rate(recipe, iteration))
                if iteration % _AHEAD == 0:
                    number = min(_AHEAD, recipe.iterations - iteration)
                    rows[:number] = torch.stack([next(batches) for _ in range(number)])
                    done.zero_()
                graph.replay()
            yield read
    finally:
        stream.synchronize()  # what it still writes to must not be given to others
        for parameter in model.parameters():
            parameter.grad = None
        for parameter in turned:
            parameter.data = parameter.data.contiguous()


@contextmanager
def _unlooked() -> Iterator[None]:
    """Refuse what makes a GPU wait for who looks at its numbers: it cannot be recorded."""
    usual = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise InputError(
            f"model looks at numbers while it runs ({error}), and its steps cannot be recorded on "
            'a GPU: leave .item(), .cpu() and print out of forward, or pass device="cpu"'
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(usual)


class _Weights:
    """The weights of a network on a GPU and their updates.

    In bfloat16 its linear and convolutional layers run on ``coarse`` copies. Autocast would make
    the same ones, but one by one at each use, and cast each gradient back.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, rate: Tensor) -> None:
        self.coarse = bfloat16.copies(model) if recipe.precision == "bfloat16" else {}
        self._fine: list[Tensor] = [model.get_parameter(name) for name in self.coarse]
        self._kernels = bfloat16.kernels(rate.device) if recipe.optimiser == "sgd" else None
        self._rates = (rate, recipe.momentum, recipe.weight_decay)
        self._velocities = [torch.zeros_like(weight) for weight in self._fine if self._kernels]
        known = {id(weight) for weight in self._fine if self._kernels}
        others = [p for p in model.parameters() if id(p) not in known]
        self._optimiser = optimiser_of(others, recipe, rate) if others else None
        if not self._kernels:
            for weight in self._fine:
                weight.grad = torch.zeros_like(weight)

    def update(self) -> None:
        """Update the weights by the gradients of the passes."""
        coarse: list[Any] = list(self.coarse.values())
        fine: list[Any] = self._fine
        used = [i for i, weight in enumerate(coarse) if weight.grad is not None]
        if self._kernels:
            for i in used:
                own = (fine[i], self._velocities[i], coarse[i].grad, coarse[i])
                self._kernels.sgd(*own, *self._rates)
        elif used:
            torch._foreach_copy_([fine[i].grad for i in used], [coarse[i].grad for i in used])
        if self._optimiser:
            self._optimiser.step()
        if not self._kernels:
            self._copy()

    def reset(self) -> None:
        """Forget all updates, after the weights were given their old values."""
        states = self._optimiser.state.values() if self._optimiser else []
        kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        for value in (*kept, *self._velocities):
            value.zero_()
        self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        if self.coarse:
            torch._foreach_copy_(list(self.coarse.values()), self._fine)


def _capture(
    step: Callable[[], Tensor], model: nn.Module, own: torch.Generator, stream: torch.cuda.Stream
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Record a step that draws from ``own``, and leave the model as it was."""
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    drawn_from = torch.cuda.default_generators[stream.device.index]
    usual = drawn_from.graphsafe_get_state()
    drawn_from.graphsafe_set_state(own)
    try:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            step()  # libraries set themselves up at first use
            with _unlooked():
                step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            loss = step()
    finally:
        drawn_from.graphsafe_set_state(usual)
        stream.synchronize()
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
    return graph, loss
