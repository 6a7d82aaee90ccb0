"""Image files decoded once into one array on disk."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresee import kept
from foresee.errors import InputError
from foresee.images import inside, read

# Images decoded between two reports of progress.
BLOCK = 1024
# Bytes that they take, at most.
_BLOCK_BYTES = 64 << 20
_NAMED = 5  # broken files named at once
# Images, channels, height, width.
Shape: TypeAlias = tuple[int, int, int, int]


def is_ready(file: Path, shape: Shape, stamp: Mapping[str, Any]) -> bool:
    """Whether the array is complete and was made from what the stamp tells."""
    return kept.is_ready(file, stamp, _fits(shape))


def _fits(shape: Shape) -> Callable[[NDArray[Any]], bool]:
    return lambda pixels: pixels.shape == shape and pixels.dtype == np.uint8


def decode(
    file: Path,
    folder: Path,
    names: Sequence[str],
    shape: Shape,
    stamp: Mapping[str, Any],
    where: Callable[[int], str],
    advance: Callable[[int, int], object],
) -> None:
    """Decode images in ``folder`` to bytes of this shape in ``file``, unless another just has.

    Images of another size are squeezed to it, see `foresee.images.read`. ``where`` tells of a row
    where it comes from and what to do; ``advance`` hears how many of all are done.
    """
    kept.make(
        file,
        stamp,
        math.prod(shape),
        lambda part: kept.fill_array(
            part, _decoded(_paths(folder, names, where), shape, where, advance)
        ),
        _fits(shape),
    )


def _decoded(
    paths: Sequence[str],
    shape: Shape,
    where: Callable[[int], str],
    advance: Callable[[int, int], object],
) -> Iterator[NDArray[np.uint8]]:
    """Images, some at a time."""
    block = max(1, min(BLOCK, _BLOCK_BYTES // math.prod(shape[1:])))

    def image(row: int) -> NDArray[np.uint8] | str:
        try:
            return read(paths[row], shape[2:], shape[1])
        except InputError as error:
            return f"{error}. {where(row)}"

    with ThreadPoolExecutor() as threads:
        for start in range(0, len(paths), block):
            rows = range(start, min(start + block, len(paths)))
            yield _whole(threads.map(image, rows))
            advance(rows.stop, len(paths))


def _whole(images: Iterable[NDArray[np.uint8] | str]) -> NDArray[np.uint8]:
    """All images [n channels height width], unless some are broken."""
    found = list(images)
    if broken := [each for each in found if isinstance(each, str)]:
        more = [f"and {len(broken) - _NAMED} more"] if len(broken) > _NAMED else []
        raise InputError("\n".join(broken[:_NAMED] + more))
    return np.stack([each for each in found if not isinstance(each, str)])


def _paths(folder: Path, names: Sequence[str], where: Callable[[int], str]) -> list[str]:
    """Find all images before the first is decoded, for that takes long."""
    paths = []
    for row, name in enumerate(names):
        try:
            paths.append(inside(folder, name))
        except InputError as error:
            raise InputError(f"{error}. {where(row)}") from error
    missing = [row for row, path in enumerate(paths) if not os.path.isfile(path)]
    if missing:
        first = missing[0]
        raise InputError(
            f"{len(missing)} of {len(paths)} images are missing, the first is {paths[first]}. "
            f"{where(first)}"
        )
    return paths
