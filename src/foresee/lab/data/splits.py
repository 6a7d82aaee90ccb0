"""Which images an experiment uses for what, as the paper draws them, and the task they make."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.errors import InputError
from foresee.files import write
from foresee.lab.data.dataset import Images
from foresee.lab.experiment import Experiment
from foresee.seeding import generator
from foresee.types import Inputs, Task

PARTS = ("seed", "val", "pool", "test")
_CHUNK = 64 << 20  # bytes of images looked at at once
_CONTENT: Any = dict[str, str | int | list[int]]
_Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows of a data set are the seed, validation, pool and test sets; no row twice.

    Args:
        dataset: its name.
        size: how many images it has.
        seed, val, pool, test: int64 [n], rows from 0 to size - 1.

    >>> Split("toy", 4, *np.array([[3], [0], [2], [1]])).pool
    array([2])
    """

    dataset: str
    size: int
    seed: NDArray[np.int64]
    val: NDArray[np.int64]
    pool: NDArray[np.int64]
    test: NDArray[np.int64]

    def __post_init__(self) -> None:
        for part in PARTS:
            rows = getattr(self, part)
            if rows.dtype != np.int64 or rows.ndim != 1:
                raise InputError(f"{part} must be int64 [n], got {rows.dtype} {list(rows.shape)}")
        rows = np.concatenate([getattr(self, part) for part in PARTS])
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.size):
            raise InputError(
                f"rows must lie from 0 to {self.size - 1}, got {rows.min()} to {rows.max()}: the "
                f"split is of another data set than {self.dataset}"
            )
        if len(np.unique(rows)) < len(rows):
            raise InputError("a row is used twice: seed, val, pool and test must not overlap")

    def write(self, path: Path | str) -> None:
        """Write the rows to the file ``path`` as JSON, whole or not at all.

        >>> drawn = Split("toy", 4, *np.array([[3], [0], [2], [1]]))
        >>> drawn.write("split.json")
        >>> Split.read("split.json").seed
        array([3])
        """
        rows = {part: getattr(self, part).tolist() for part in PARTS}
        content = json.dumps({"dataset": self.dataset, "size": self.size, **rows})
        write(Path(path), content.encode())

    @classmethod
    def read(cls, path: Path | str) -> "Split":
        """Read the file that `write` wrote; a damaged one is an InputError."""
        if not Path(path).is_file():
            raise InputError(f"there is no split {path}: check the path, or write it first")
        try:
            content = msgspec.json.decode(Path(path).read_bytes(), type=_CONTENT)
            rows = {part: np.array(content[part], np.int64) for part in PARTS}
            return cls(content["dataset"], content["size"], **rows)
        except (KeyError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(
                f"{path} holds no split ({error!s}): it is damaged; write it again"
            ) from error


def split(images: Images, experiment: Experiment, seed: int) -> Split:
    """Draw an experiment's sets.

    Args:
        images: the data set of the experiment.
        experiment: says how many images each set has, and whether the seed set is shifted.
        seed: the same one gives every method the same sets.

    Returns:
        Rows of ``images``.

    Without shift all four are drawn from all images. With shift the seed set comes from the source:
    random rows of it where the data set knows its own, else the n_seed darkest images; the other
    three come from the target, which is all the rest. If the target is narrow, the validation and
    test sets come from its classes or domains, and the seed set and the pool from all images left.

    >>> from foresee.lab import data, paper
    >>> split(data.load("digits"), paper.experiment("digits", shift=True), seed=0).seed.shape
    (20,)
    """
    _check_match(images, experiment)
    rng = generator(seed, "split")
    n_seed, rest = experiment.n_seed, [experiment.n_val, experiment.n_pool, experiment.n_test]
    if min(n_seed, *rest) < 0:
        raise InputError(f"sizes must not be negative, got n_seed = {n_seed} and {rest}")
    everything = np.arange(len(images))
    if experiment.target:
        inside = in_target(experiment.target, images)
        wanted = experiment.n_val + experiment.n_test
        _check_enough(images, experiment, int(inside.sum()), wanted, " in the target")
        _check_enough(images, experiment, len(images), n_seed + sum(rest), "")
        return Split(images.name, len(images), *draw_narrow(inside, experiment, rng))
    if not experiment.shift:
        _check_enough(images, experiment, len(images), n_seed + sum(rest), "")
        first, target = np.split(rng.permutation(everything), [n_seed])
    elif images.source is not None:
        source = np.flatnonzero(images.source)
        _check_enough(images, experiment, len(source), n_seed, " in the source domain")
        first = rng.permutation(source)[:n_seed]
        target = rng.permutation(np.flatnonzero(~images.source))
        _check_enough(images, experiment, len(target), sum(rest), " in the target domain")
    else:
        _check_enough(images, experiment, len(images), n_seed + sum(rest), "")
        first = np.argsort(brightness(images.pixels), kind="stable")[:n_seed]
        target = rng.permutation(np.setdiff1d(everything, first))
    val, pool, test, _ = np.split(target, np.cumsum(rest))
    return Split(images.name, len(images), first, val, pool, test)


class _Labelled(Protocol):
    """What `Images` and data that people bring have in common."""

    @property
    def labels(self) -> _Rows: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def domains(self) -> NDArray[Any] | None: ...


def in_target(names: Sequence[str], data: _Labelled) -> NDArray[np.bool_]:
    """Which rows [n] are of the target's classes or, if no classes have these names, domains.

    >>> from foresee.lab import data
    >>> in_target(["3", "5", "8", "9"], data.load("digits"))[:6]
    array([False, False, False,  True, False,  True])
    """
    if set(names) <= set(data.classes):
        return np.isin(data.labels, [data.classes.index(name) for name in names])
    if data.domains is None or not set(names) <= set(data.domains.tolist()):
        raise InputError(
            f"target must name classes or domains of the data, got {', '.join(names)}: the classes "
            f"are {', '.join(data.classes[:12])}{', …' if len(data.classes) > 12 else ''}"
        )
    return np.isin(data.domains, names)


def draw_narrow(
    inside: NDArray[np.bool_], experiment: Experiment, rng: np.random.Generator
) -> tuple[_Rows, _Rows, _Rows, _Rows]:
    """Draw seed, validation, pool and test sets where only some rows are ``inside`` the target."""
    everything = rng.permutation(len(inside))
    n_val, n_test = experiment.n_val, experiment.n_test
    val, test, _ = np.split(everything[inside[everything]], [n_val, n_val + n_test])
    # Drawn anew: of the order above, what comes first is not in the target.
    rest = rng.permutation(np.setdiff1d(everything, np.concatenate([val, test])))
    seed, pool, _ = np.split(rest, np.cumsum([experiment.n_seed, experiment.n_pool]))
    return seed, val, pool, test


def pool_share(data: _Labelled, experiment: Experiment) -> float:
    """The target's expected share of the pool, before noise.

    >>> from foresee.lab import data, paper
    >>> round(pool_share(data.load("digits"), paper.experiment("digits", narrow=True)), 3)
    0.169
    """
    taken = experiment.n_val + experiment.n_test
    inside = in_target(experiment.target, data)
    return (int(inside.sum()) - taken) / (len(inside) - taken)


def mark(task: Task, data: _Labelled, split: Split, experiment: Experiment, seed: int) -> Task:
    """Scramble the pool's share of noise, and note which of the pool are that or in the target.

    Args:
        task: of these data, split so.
        data: what ``split`` was drawn from.
        split: tells which rows are the pool.
        experiment: says what the target is, and how much of the pool is noise.
        seed: decides which images are scrambled, and how.

    Returns:
        The task. A scrambled image has its pixels in another place, all channels together; it is
        not in the target any more, whatever its label.
    """
    if experiment.pool_noise:
        rng = generator(seed, "pool noise")
        n = len(split.pool)
        scrambled = np.zeros(n, np.bool_)
        scrambled[rng.permutation(n)[: round(experiment.pool_noise * n)]] = True
        pool = _scrambled(task.pool, np.flatnonzero(scrambled), rng)
        task = replace(task, pool=pool, scrambled=scrambled)
    if experiment.target:
        inside = in_target(experiment.target, data)[split.pool]
        if task.scrambled is not None:
            inside &= ~task.scrambled
        task = replace(task, in_target=inside)
    return task


def _scrambled(pool: Inputs, rows: _Rows, rng: np.random.Generator) -> Inputs:
    """Permute the pixels of some images [n channels height width], each in its own way."""
    shape = pool.shape
    flat = pool.reshape(*shape[:2], -1)
    flat = flat.clone() if isinstance(flat, Tensor) else flat.copy()
    for row in rows:
        flat[row] = flat[row][:, rng.permutation(flat.shape[2])]
    return flat.reshape(shape)


def task(images: Images, split: Split) -> Task:
    """Copy the sets into memory and hide the pool's labels behind an oracle.

    Args:
        images: the data set that ``split`` was drawn from.
        split: which rows are the seed, validation, pool and test sets.

    Returns:
        Inputs as uint8 tensors [n channels height width], labels as int64 [n]. All are copies:
        what is written to them reaches neither ``images`` nor another task.

    >>> from foresee.lab import data, paper
    >>> images = data.load("digits")
    >>> made = task(images, split(images, paper.experiment("digits", shift=True), seed=0))
    >>> made.seed.shape, made.oracle(np.array([0, 1])).shape
    (torch.Size([20, 1, 8, 8]), (2,))
    """
    if (split.dataset, split.size) != (images.name, len(images)):
        raise InputError(
            f"split is of {split.dataset} with {split.size} images, images are {images.name} with "
            f"{len(images)}: load the data set it was drawn from, or draw it again"
        )
    return Task(
        n_classes=len(images.classes),
        seed=_copy(images.pixels, split.seed),
        seed_labels=images.labels[split.seed],
        pool=_copy(images.pixels, split.pool),
        val=_copy(images.pixels, split.val),
        test=_copy(images.pixels, split.test),
        test_labels=images.labels[split.test],
        oracle=images.labels[split.pool].__getitem__,
    )


def brightness(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean value of each image's pixels, over all channels [n]."""
    sums = [
        pixels[rows].reshape(len(rows), -1).sum(1, dtype=np.int64)
        for rows in _chunks(pixels, np.arange(len(pixels)))
    ]
    return np.concatenate([np.empty(0, np.int64), *sums]) / np.prod(pixels.shape[1:])


def _copy(pixels: NDArray[np.uint8], rows: NDArray[np.int64]) -> Tensor:
    """Copy rows in the order of the file: a disk reads on much faster than it jumps."""
    out = np.empty((len(rows), *pixels.shape[1:]), np.uint8)
    for places in _chunks(pixels, np.argsort(rows)):
        out[places] = pixels[rows[places]]
    return torch.from_numpy(out)


def _chunks(pixels: NDArray[np.uint8], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    size = max(1, _CHUNK // max(1, int(np.prod(pixels.shape[1:]))))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _check_match(images: Images, experiment: Experiment) -> None:
    pairs = {
        "dataset": (experiment.dataset.lower(), images.name),
        "image_size": (experiment.image_size, images.pixels.shape[-1]),
        "classes": (experiment.classes, len(images.classes)),
    }
    for field, (expected, got) in pairs.items():
        if expected != got:
            raise InputError(
                f"the experiment has {field} {expected}, but the images have {got}: load the data "
                "set of the experiment"
            )


def _check_enough(images: Images, wanted: Experiment, there: int, needed: int, of: str) -> None:
    if needed > there:
        raise InputError(
            f"{images.name} has {there} images{of}, but {wanted.name} needs {needed} of them "
            f"(n_seed = {wanted.n_seed}, n_val = {wanted.n_val}, n_pool = {wanted.n_pool}, n_test ="
            f" {wanted.n_test}): ask for {needed - there} fewer"
        )
