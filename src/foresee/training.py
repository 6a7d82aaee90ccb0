"""One training recipe: a fresh network, labelled data and a recipe make a fitted network.

On a GPU one iteration (the batch's rows, both passes, the update) is recorded once and replayed:
launching its kernels one by one takes longer than running them. Networks that are trained side by
side have a recording, a stream and random numbers each, and share nothing: the bits of one do not
depend on whether it has neighbours.
"""

import math
import threading
import time
import warnings
from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from foresee import arrays, bfloat16, seeding
from foresee.errors import InputError
from foresee.networks import Standardise
from foresee.recipe import Recipe
from foresee.types import Inputs

_HEALTH = 2000  # training points on which health is measured, at most
_LEARNT = 0.05  # of what the frequencies of the classes leave to learn: less is a plateau
_AHEAD = 256  # batches drawn at once: each transfer of their rows makes a GPU wait
_LOOK_EVERY = 100  # iterations between looks at the loss: each look makes a GPU wait

T = TypeVar("T")

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
    # All that it took; of the time in which others were trained beside it, an equal share.
    seconds: float
    # It knows no more than how frequent the classes are: it never left its plateau.
    stuck: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """A training that is wanted; `fit` says what its parts are.

    Those of equal ``key`` on the same data are the same training, bit for bit; None is like no
    other.
    """

    model: nn.Module
    inputs: Inputs
    labels: Any
    recipe: Recipe
    rng: np.random.Generator
    advance: Callable[[int], None] | None = None
    key: Hashable = None


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
        inputs: floats [l ...], or bytes if the model begins with `networks.Standardise`. A GPU
            keeps all of them while it trains.
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
    model.to(device)
    (outcome,) = fit_all([Request(model, inputs, labels, recipe, rng, advance)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def fit_all(requests: Sequence[Request]) -> list[Training | Exception]:
    """Train several networks: those on a GPU side by side, each as `fit` would alone, bit for bit.

    A GPU is idle for most of a small network's step, and several fill it. Networks and recipes may
    differ.

    Args:
        requests: what to train.

    Returns:
        for each request its training, or the error that ended it, which ends no other.

    >>> from foresee.networks import mlp
    >>> x, y = np.eye(4, dtype=np.float32)[[0, 1] * 8], np.array([0, 1] * 8)
    >>> both = [Request(mlp(4, 2), x, y, Recipe(9), np.random.default_rng(i)) for i in (0, 1)]
    >>> [type(outcome).__name__ for outcome in fit_all(both)]
    ['Training', 'Training']
    """
    outcomes: dict[int, Training | Exception] = {}
    on_gpu = [any(p.is_cuda for p in request.model.parameters()) for request in requests]
    together = [i for i, there in enumerate(on_gpu) if there]
    with randomness:
        # A CPU has nothing to gain from turns, and one state of random numbers.
        for group in (together, *([i] for i, there in enumerate(on_gpu) if not there)):
            outcomes |= _in_turns({i: _train(requests[i]) for i in group})
    return [outcomes[i] for i in range(len(requests))]


def alone(steps: Generator[Request, Training, T]) -> T:
    """Do each training that something asks for when it does, and return its result.

    >>> from foresee.networks import mlp
    >>> def accuracy():
    ...     x, y, rng = np.eye(4, dtype=np.float32), np.arange(4), np.random.default_rng(0)
    ...     training = yield Request(mlp(4, 4), x, y, Recipe(50), rng)
    ...     return training.accuracy
    >>> alone(accuracy())
    1.0
    """
    try:
        request = next(steps)
        while True:
            (outcome,) = fit_all([request])
            request = answer(steps, outcome)
    except StopIteration as end:
        result: T = end.value
        return result


def answer(steps: Generator[T, Training, Any], outcome: Training | Exception) -> T:
    """Give what asked for a training what came of it, and return what it asks for next."""
    if isinstance(outcome, Exception):
        return steps.throw(outcome)
    return steps.send(outcome)


def _in_turns(trainings: dict[int, Generator[None, None, Training]]) -> dict[int, Any]:
    """Let each do one step after the other until all have ended, and share the time out."""
    outcomes: dict[int, Training | Exception] = {}
    seconds = dict.fromkeys(trainings, 0.0)
    left = dict(trainings)
    try:
        while left:
            start = time.perf_counter()
            for i, training in left.items():
                try:
                    next(training)
                except StopIteration as end:
                    outcomes[i] = end.value
                except Exception as error:  # whatever it is, the others are worth training
                    outcomes[i] = error
            share = (time.perf_counter() - start) / len(left)
            for i in left:
                seconds[i] += share
            left = {i: training for i, training in left.items() if i not in outcomes}
    finally:
        for training in trainings.values():
            training.close()
    return {
        i: outcome if isinstance(outcome, Exception) else replace(outcome, seconds=seconds[i])
        for i, outcome in outcomes.items()
    }


def _train(request: Request) -> Generator[None, None, Training]:
    """Train step by step."""
    model, recipe, rng = request.model, request.recipe, request.rng
    seeding.check(rng)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        raise InputError("model has no parameters: there is nothing to train")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("model has no weights that require a gradient: unfreeze some")
    takes_bytes = any(isinstance(m, Standardise) for m in model.modules())
    x, y = (part.to(like.device) for part in _checked(request.inputs, request.labels, takes_bytes))
    batches = _batches(len(y), recipe.batch, rng, like.device)
    model.zero_grad()  # an optimiser moves whatever has a gradient, frozen weights too
    seed = int(rng.integers(2**63))
    with seeded(like.device, seed):
        _check_classes(model, x[:1].to(like, copy=True), y)
        model.train()
        if like.is_cuda:
            steps = _recorded(model, x, y, recipe, like, batches, seed)
            next(steps)
        else:
            yield from _iterations(_stepped(model, x, y, recipe, like, batches), request)
    if like.is_cuda:  # others have their turns meanwhile, and torch's own random numbers
        with closing(steps):
            yield from _iterations(steps, request)
    with seeded(like.device, seed):
        return _health(model, x, y, like, request)


def _iterations(steps: Iterator[Callable[[], float]], request: Request) -> Iterator[None]:
    """Do all the steps and look at their losses now and then."""
    recipe = request.recipe
    for iteration in range(recipe.iterations):
        loss = next(steps)
        if iteration % _LOOK_EVERY == 0 or iteration == recipe.iterations - 1:
            _check_loss(loss(), iteration, recipe)
        if request.advance is not None:
            request.advance(iteration + 1)
            request.model.train()  # whoever looks at a network sets it to eval
        yield


@torch.no_grad()
def _health(model: nn.Module, x: Tensor, y: Tensor, like: Tensor, request: Request) -> Training:
    recipe = request.recipe
    model.eval()
    rows = torch.from_numpy(request.rng.permutation(len(y))[:_HEALTH]).to(x.device)
    outputs = torch.cat([model(x[part].to(like)) for part in rows.split(int(recipe.batch))])
    known = y[rows]
    loss = cross_entropy(outputs, known).item()
    _check_loss(loss, recipe.iterations - 1, recipe)
    accuracy = (outputs.argmax(1) == known).double().mean().item()
    return Training(model, loss, accuracy, 0.0, _stuck(loss, accuracy, known))


def _stuck(loss: float, accuracy: float, labels: Tensor) -> bool:
    """Tell whether a network knows next to nothing but how frequent the classes are.

    Who knows just that has as loss the entropy of the frequencies, log c where they are equal, and
    is right about the largest class. Neither measure alone will do: a network that errs with
    confidence has learnt, and one of a rare class learns it without a better accuracy.
    """
    shares = labels.bincount().double() / len(labels)
    entropy, largest = float(torch.special.entr(shares).sum()), float(shares.max())
    return (
        largest < 1
        and loss > (1 - _LEARNT) * entropy
        and accuracy < largest + _LEARNT * (1 - largest)
    )


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
        with coarse, _norms("cannot train on one point: label more, raise batch, or use GroupNorm"):
            outputs = forward(inputs)
        loss = cross_entropy(outputs.to(like.dtype), labels)
        loss.backward()
        return loss.detach()

    return compute


@contextmanager
def _norms(remedy: str) -> Iterator[None]:
    """Say of a BatchNorm that met a single point what to do about it."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(f"model has a BatchNorm, which {remedy}") from error


def _stepped(
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


def _recorded(
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
    kind = labels if isinstance(labels, Tensor) else arrays.numpy(labels, "labels")
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
    without = "has no running statistics: train it with track_running_stats=True, or use GroupNorm"
    with torch.no_grad(), _norms(without):
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


def _batches(
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
