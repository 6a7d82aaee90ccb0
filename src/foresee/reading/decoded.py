"""Image files decoded once into one array on disk, all of them or as they are asked for."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.reading import kept
from foresee.reading.images import inside, read

# Images decoded between two reports of progress.
BLOCK = 1024
# Bytes that they take, at most.
_BLOCK_BYTES = 64 << 20
_NAMED = 5  # broken files named at once
_NEW, _DONE, _BROKEN = 0, 1, 2
# Images, channels, height, width.
Shape: TypeAlias = tuple[int, int, int, int]


def is_ready(file: Path, shape: Shape, stamp: Mapping[str, Any]) -> bool:
    """Whether the array is complete and was made from what the stamp tells."""
    return kept.is_ready(file, stamp, _fits(shape))


def _fits(shape: tuple[int, ...]) -> Callable[[NDArray[Any]], bool]:
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

    Images of another size are squeezed to it, see `foresee.reading.images.read`. ``where`` tells of
    a row where it comes from and what to do; ``advance`` hears how many of all are done.
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


class Pictures(arrays.OnDisk):
    """Images in a folder, each decoded when it is first asked for and on disk from then on.

    Threads and processes may read them at once. A file that is no image, or a broken one, is black
    and in `broken`.

    Args:
        file: the array on disk, of which only what was decoded takes room.
        folder: with the images.
        names: paths in the folder.
        shape: of the array.
        stamp: of what it is made.
    """

    def __init__(
        self, file: Path, folder: Path, names: Sequence[str], shape: Shape, stamp: Mapping[str, Any]
    ) -> None:
        self._folder, self._names, self.shape = folder, names, shape
        self._files = file, file.with_name(f"{file.stem}-marks.npy")
        forms: tuple[tuple[int, ...], ...] = shape, shape[:1]
        for place, form in zip(self._files, forms, strict=True):
            if not kept.is_ready(place, stamp, _fits(form)):
                kept.make(place, stamp, 0, partial(self._blank, form), _fits(form))
        self._pixels, self._marks = map(kept.open_shared, self._files)
        self._turn = Lock()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, key: Any) -> NDArray[np.uint8]:
        found = np.arange(len(self))[key]
        some = np.unique(found)
        with self._turn:
            some = some[self._marks[some] == _NEW]
            block = max(1, min(BLOCK, _BLOCK_BYTES // math.prod(self.shape[1:])))
            for start in range(0, len(some), block):
                self._decode(some[start : start + block])
        return np.array(self._pixels[found])

    @property
    def broken(self) -> list[str]:
        """Names of the files, among those decoded so far, that cannot be read."""
        return [self._names[i] for i in np.flatnonzero(self._marks == _BROKEN).tolist()]

    def _blank(self, form: tuple[int, ...], part: Path) -> None:
        # Where only the pixels were deleted, marks would take zeros for images.
        self._files[1].unlink(missing_ok=True)
        kept.fill_zeros(part, form, np.dtype(np.uint8))

    def _decode(self, places: NDArray[np.int64]) -> None:
        def image(place: int) -> NDArray[np.uint8] | None:
            try:
                path = inside(self._folder, self._names[place])
                return read(path, self.shape[2:], self.shape[1])
            except InputError:
                return None

        with ThreadPoolExecutor() as threads:
            images = list(threads.map(image, places.tolist()))
        black = np.zeros(self.shape[1:], np.uint8)
        pixels = [black if each is None else each for each in images]
        marks = [_BROKEN if each is None else _DONE for each in images]
        # Whatever happens to the machine, what is marked is there.
        kept.write_rows(self._files[0], self._pixels, places.tolist(), pixels)
        kept.write_rows(self._files[1], self._marks, places.tolist(), marks)


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
