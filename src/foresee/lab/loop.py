"""The active learning loop: train from scratch, test, choose, buy the labels, again. No I/O."""

import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks
from foresee.arrays import Rows
from foresee.errors import DrawsWarning, InputError
from foresee.lab.experiment import Experiment, Method, Round, Stage
from foresee.scores import promise
from foresee.seeding import generator
from foresee.training import Request, Training, answer, fit_all
from foresee.types import Array, Inputs, Posterior, Task, View, more_draws

_SAMPLE = 200  # points of the pool and of the validation set that promises are measured on
_PART = 4096  # points of the pool that a model sees at once
_BINS = 15  # of confidence, as usual for the expected calibration error


def run(
    experiment: Experiment, method: Method, seed: int, task: Task, done: Sequence[Round] = ()
) -> Iterator[Round]:
    """Yield one round after another; ``done`` are those known from before, which are not repeated.

    All randomness comes from (seed, round, purpose), whatever the method: paired trials share their
    splits, initialisations, data orders and subsets, and a resumed trial ends like a whole one. The
    last round only trains and tests: after ``experiment.rounds`` batches, or when the pool is dry.

    A strategy that breaks its contract, or a method that changes the task's data in place, is an
    `InputError` before the round is yielded.
    """
    trial = steps(experiment, method, seed, task, done)
    found = next(trial, None)
    while found is not None:
        if isinstance(found, Request):
            (outcome,) = fit_all([found])
            found = answer(trial, outcome)
        else:
            yield found
            found = next(trial, None)


def steps(
    experiment: Experiment, method: Method, seed: int, task: Task, done: Sequence[Round] = ()
) -> Generator[Request | Round, Any, None]:
    """Do as `run`, but leave the trainings to who drives this: yield what to train, be sent it."""
    if done and not done[-1].picks:
        return
    bought = np.array([i for r in done for i in r.picks], np.int64)
    answers = np.array([y for r in done for y in r.labels], np.int64)
    before = _checksums(task)

    for number in range(len(done), experiment.rounds + 1):
        # A round's own copies: what a method does to them ends with it, as if it were resumed.
        labelled = _join(task.seed, task.pool[bought])
        labels = np.concatenate([task.seed_labels, answers])
        left = np.delete(np.arange(len(task.pool)), bought)
        watch = _Stopwatch()
        rng = generator(seed, number, "train")
        posterior = yield from _sampled(method.sampler, labelled, labels, rng, watch)
        watch.move("train", "sample", getattr(posterior, "seconds", 0.0))
        with watch("test"):
            point = _probabilities(method.name, posterior.point(task.test), task)
            measured = measure(point, task.test_labels, experiment.loss)

        picks = np.empty(0, np.int64)
        promised: tuple[float | None, float | None] = (None, None)
        draws, exhausted = None, False
        size = min(experiment.n_query, len(left)) if number < experiment.rounds else 0
        if size > 0:
            timed = _TimedPosterior(posterior, watch)
            view = View(timed, labelled, labels, Rows(task.pool, left.copy()), task.val)
            with watch("select"), _draws_warnings() as warned:
                chosen: Any = method.strategy(view, size, generator(seed, number, "select"))
                chosen = list(chosen) if isinstance(chosen, Iterator) else chosen
            picks = left[checks.picks(method.name, chosen, size, len(left))]
            draws, exhausted = max(timed.asked, default=None), bool(warned)
            with watch("promise"):
                rng = generator(seed, number, "promise")
                promised = _promises(posterior, task, picks, left, rng)
        for part, value in _checksums(task).items():
            if value != before[part]:
                raise InputError(
                    f"method {method.name} changed the task's {part} in place, which other trials "
                    "see too: let it work on a copy"
                )
        new_labels = task.oracle(picks)
        training = getattr(posterior, "training", None)
        yield Round(
            number=number,
            n_labelled=len(labels),
            picks=tuple(picks.tolist()),
            labels=tuple(new_labels.tolist()),
            seconds=tuple(watch.seconds.items()),
            train_loss=training and training.loss,
            train_accuracy=training and training.accuracy,
            promise=promised[0],
            promise_pool=promised[1],
            restarted=getattr(posterior, "restarted", False),
            stuck=getattr(training, "stuck", False),
            draws=draws,
            exhausted=exhausted,
            in_target=_share(task.in_target, picks),
            scrambled=_share(task.scrambled, picks),
            **measured,
        )
        if size == 0:
            return
        bought = np.concatenate([bought, picks])
        answers = np.concatenate([answers, new_labels])


def _probabilities(method: str, point: Any, task: Task) -> Array:
    """Check what a model predicts for the test set: any numbers have a largest, and a mean."""
    name = f"point(test) of method {method}"
    found: Array = checks.array(name, point, "n c")
    if tuple(found.shape) != (len(task.test_labels), task.n_classes):
        raise InputError(
            f"{name} must have shape [n c] = {[len(task.test_labels), task.n_classes]}, got "
            f"{list(found.shape)}: return the probabilities of all classes for each input"
        )
    checks.rows_sum_to_one(name, arrays.tensor(found))
    return found


@contextmanager
def _draws_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Gather warnings of draws that a batch can use up, which a round records; pass on all others.

    A terminal would fill with them.
    """
    found: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DrawsWarning)
        yield found
    for warning in heard:
        if issubclass(warning.category, DrawsWarning):
            found.append(warning)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _share(of: NDArray[np.bool_] | None, picks: NDArray[np.int64]) -> float | None:
    """What share of the picks is marked; None where nothing is, or nothing was picked."""
    return None if of is None or len(picks) == 0 else round(float(of[picks].mean()), 12)


def _sampled(
    sampler: Any, labelled: Inputs, labels: Array, rng: np.random.Generator, watch: "_Stopwatch"
) -> Generator[Request, Training, Any]:
    """Let a sampler work; its trainings are others' to do, and take the seconds that they say."""
    if not hasattr(sampler, "steps"):
        with watch("train"):
            return sampler(labelled, labels, rng)
    with watch("train"):
        work = sampler.steps(labelled, labels, rng)
        request = next(work)
    while True:
        training = yield request
        watch.add("train", training.seconds)
        with watch("train"):
            try:
                request = work.send(training)
            except StopIteration as end:
                return end.value


def _checksums(task: Task) -> dict[str, int]:
    """Tell whether data changed that methods are shown; of all else they are given copies."""
    return {part: _checksum(getattr(task, part)) for part in ("pool", "val", "test")}


def _checksum(values: Inputs) -> int:
    if isinstance(values, Tensor):
        values = values.detach().contiguous().view(torch.uint8).cpu().numpy()
    plain = np.ascontiguousarray(values)
    return zlib.crc32(plain.data if plain.dtype.kind in "biufc" else plain.tobytes())


def _promises(
    posterior: Posterior,
    task: Task,
    picks: NDArray[np.int64],
    left: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """What the picks promise, and what the whole rest of the pool does, both from samples."""
    some = left[rng.permutation(len(left))[:_SAMPLE]]
    val = posterior.predict(task.val[rng.permutation(len(task.val))[:_SAMPLE]])
    of_picks = promise(posterior.predict(task.pool[picks]), val)
    of_pool = promise(posterior.predict(task.pool[some]), val, times=len(left) / len(some))
    return round(of_picks, 12), round(of_pool, 12)


def measure(
    probs: Array, labels: NDArray[np.int64], loss: Sequence[Sequence[float]] | None = None
) -> dict[str, Any]:
    """Accuracy, log loss, Brier loss, calibration error, and cost where a loss matrix is given.

    >>> measure(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))["brier"]
    0.37
    """
    p = probs.double().cpu().numpy() if isinstance(probs, Tensor) else np.asarray(probs, np.float64)
    rows = np.arange(len(labels))
    right = p.argmax(1) == labels
    # A probability that rounds to zero must not make the mean infinite: the least of float32.
    log_loss = -np.log(np.maximum(p[rows, labels], np.finfo(np.float32).tiny)).mean()
    brier = ((p**2).sum(1) - 2 * p[rows, labels] + 1).mean()
    values = {
        "accuracy": right.mean(),
        "log_loss": log_loss,
        "brier": brier,
        "calibration_error": calibration_error(p.max(1), right),
    }
    if loss is not None:
        matrix = np.array(loss)
        values["cost"] = matrix[labels, (p @ matrix).argmin(1)].mean()
    return {name: round(float(value), 12) for name, value in values.items()}


def calibration_error(confidence: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """Mean distance of confidence and accuracy over bins of equal width, weighed by their size.

    >>> float(calibration_error(np.array([0.9, 0.9]), np.array([True, False])).round(3))
    0.4
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, confidence - right, _BINS)
    return np.abs(gaps).sum() / len(right)


@dataclass
class _Stopwatch:
    """Seconds of each stage; a stage inside another stops the outer one."""

    seconds: dict[Stage, float] = field(default_factory=dict)
    _stage: Stage | None = None
    _since: float = 0.0

    @contextmanager
    def __call__(self, stage: Stage) -> Iterator[None]:
        outer = self._stage
        self._switch(stage)
        try:
            yield
        finally:
            self._switch(outer)

    def add(self, stage: Stage, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def move(self, one: Stage, other: Stage, seconds: float) -> None:
        if seconds:
            self.add(one, -seconds)
            self.add(other, seconds)

    def _switch(self, stage: Stage | None) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._stage is not None:
            self.add(self._stage, now - self._since)
        self._stage, self._since = stage, now


@dataclass(frozen=True)
class _TimedPosterior:
    posterior: Posterior
    watch: _Stopwatch
    asked: set[int] = field(default_factory=set)  # of how many draws predictions were asked for

    def predict(self, inputs: Inputs) -> Array:
        with self.watch("sample"):
            probs = _in_parts(self.posterior.predict, inputs)
        self.asked.add(probs.shape[1])
        return probs

    def at_least(self, draws: int) -> "_TimedPosterior":
        return replace(self, posterior=more_draws(self.posterior, draws))

    def point(self, inputs: Inputs) -> Array:
        with self.watch("sample"):
            return _in_parts(self.posterior.point, inputs)

    def embed(self, inputs: Inputs) -> Array:
        with self.watch("sample"):
            return _in_parts(self.posterior.embed, inputs)


def _in_parts(predict: Callable[[Inputs], Array], inputs: Inputs) -> Array:
    """Show a pool to a model in plain arrays, which any model reads, and never as a whole."""
    if not isinstance(inputs, Rows):
        return predict(inputs)
    starts = range(0, len(inputs), _PART)
    return _join(*(predict(inputs[i : i + _PART]) for i in starts))


def _join(*parts: Inputs) -> Inputs:
    return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)
