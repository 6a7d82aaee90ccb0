"""Image files decoded once into one array on disk, which is there whole or not at all."""

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.files import write
from foresee.images import inside, read

# Images decoded between two reports of progress.
BLOCK = 1024
# Bytes that they take, at most.
_BLOCK_BYTES = 64 << 20
_NAMED = 5  # broken files named at once
_REMEDY = "pass another folder as cache, with foresee run as --cache"
# Images, channels, height, width.
Shape: TypeAlias = tuple[int, int, int, int]


def is_ready(file: Path, shape: Shape, stamp: Mapping[str, Any]) -> bool:
    """Whether the array is complete and was made from what the stamp tells."""
    try:
        if not (file.is_file() and json.loads(_stamp(file).read_text()) == stamp):
            return False
        pixels = open_array(file)
    except Exception:  # whatever it is, it can be made again
        return False
    return pixels.shape == shape and pixels.dtype == np.uint8


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
    _check_links(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not is_ready(file, shape, stamp):
                _check_room(file, math.prod(shape))
                _decode(file, _paths(folder, names, where), shape, where, advance)
                write(_stamp(file), json.dumps(stamp).encode())
    except OSError as error:
        raise InputError(
            f"cache: decoded images cannot be written to {file.parent} ({error.strerror or error}):"
            f" {_REMEDY}"
        ) from error


def open_array(file: Path) -> NDArray[np.uint8]:
    """Map the array, copy-on-write: torch shares only memory that may be written.

    What is written stays in this process and never reaches the file.
    """
    return np.lib.format.open_memmap(file, mode="c")


def _decode(
    file: Path,
    paths: Sequence[str],
    shape: Shape,
    where: Callable[[int], str],
    advance: Callable[[int, int], object],
) -> None:
    # No token in the name: what a killed process left is written over, not piled up.
    part = file.with_suffix(".part")
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    block = max(1, min(BLOCK, _BLOCK_BYTES // math.prod(shape[1:])))

    def image(row: int) -> NDArray[np.uint8] | str:
        try:
            return read(paths[row], shape[2:], shape[1])
        except InputError as error:
            return f"{error}. {where(row)}"

    try:
        with open(part, "wb") as out, ThreadPoolExecutor() as threads:
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(paths), block):
                rows = range(start, min(start + block, len(paths)))
                images = list(threads.map(image, rows))
                if broken := [found for found in images if isinstance(found, str)]:
                    more = [f"and {len(broken) - _NAMED} more"] if len(broken) > _NAMED else []
                    raise InputError("\n".join(broken[:_NAMED] + more))
                out.write(np.stack(images).data)
                advance(rows.stop, len(paths))
            out.flush()
            os.fsync(out.fileno())
        # An old stamp must never stand beside new pixels, wherever the process is killed.
        _stamp(file).unlink(missing_ok=True)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


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


def _check_links(file: Path) -> None:
    """A folder from strangers may hold a link where we are about to write, to anywhere."""
    for suffix in (".npy", ".part", ".json", ".lock"):
        if file.with_suffix(suffix).is_symlink():
            raise InputError(
                f"cache: {file.with_suffix(suffix)} is a link, and is not written through: delete "
                f"it, or {_REMEDY}"
            )


def _check_room(file: Path, needed: int) -> None:
    free = shutil.disk_usage(file.parent).free
    if free < needed:
        raise InputError(
            f"cache: decoding into {file} needs {needed / 1e9:.1f} GB of disk and "
            f"{free / 1e9:.1f} GB are free: make room or {_REMEDY}"
        )


def _stamp(file: Path) -> Path:
    return file.with_suffix(".json")
