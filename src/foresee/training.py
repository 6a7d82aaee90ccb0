"""One training recipe: a fresh network, labelled data and a recipe make a fitted network.

Networks that are trained side by side on a GPU have a recording, a stream and random numbers each,
and share nothing: the bits of one do not depend on whether it has neighbours.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from foresee import arrays, seeding
from foresee.errors import InputError
from foresee.iterations import batches_of, norms, recorded, stepped
from foresee.networks import Standardise, check_pixels
from foresee.recipe import Recipe
from foresee.types import Inputs

_HEALTH = 2000  # training points on which health is measured, at most
_LEARNT = 0.05  # of what the frequencies of the classes leave to learn: less is a plateau
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
    check_pixels(model, x)
    batches = batches_of(len(y), recipe.batch, rng, like.device)
    model.zero_grad()  # an optimiser moves whatever has a gradient, frozen weights too
    seed = int(rng.integers(2**63))
    with seeded(like.device, seed):
        _check_classes(model, x[:1].to(like, copy=True), y)
        model.train()
        if like.is_cuda:
            steps = recorded(model, x, y, recipe, like, batches, seed)
            next(steps)
        else:
            yield from _iterations(stepped(model, x, y, recipe, like, batches), request)
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
            if not request.model.training:  # whoever looks at a network sets it to eval
                request.model.train()
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


def _checked(inputs: Inputs, labels: Any, takes_bytes: bool) -> tuple[Tensor, Tensor]:
    x = stacked(unlabelled(arrays.rows("inputs", inputs)[:]))
    floats = x.is_floating_point() or (takes_bytes and x.dtype is torch.uint8)
    if x.ndim < 2 or not floats:
        remedy = "scale images of bytes by 1 / 255, or begin the model with networks.Standardise"
        raise InputError(
            f"inputs must be rows of floats [l ...], got {x.dtype} {list(x.shape)}: "
            f"{'reshape them to [l 1]' if floats else remedy}"
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
    dtype = getattr(kind.dtype, "name", str(kind.dtype))  # of any byte order
    if not dtype.removeprefix("torch.").startswith(("int", "uint")):
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
    with torch.no_grad(), norms(without):
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
