"""Arrays that are made once and kept on disk: each is there whole, or not at all."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.files import write

_REMEDY = "pass another folder as cache, with foresee run as --cache"


def is_ready(
    file: Path,
    stamp: Mapping[str, Any],
    fits: Callable[[NDArray[Any]], bool] = lambda array: True,
) -> bool:
    """Whether the array is complete, was made from what the stamp tells, and is of the form."""
    try:
        same = file.is_file() and json.loads(_stamp(file).read_text()) == stamp
        return same and fits(open_array(file))
    except Exception:  # whatever it is, it can be made again
        return False


def make(
    file: Path,
    stamp: Mapping[str, Any],
    needed: int,
    fill: Callable[[Path], None],
    fits: Callable[[NDArray[Any]], bool] = lambda array: True,
) -> None:
    """Let the array be written, unless it is there or another process just has.

    Args:
        file: where it will be, as .npy.
        stamp: what it is made from, as JSON has it.
        needed: bytes of disk that it will take.
        fill: writes the array to the path that it is given.
        fits: whether an array that is there has the form it should have.
    """
    _check_links(file)
    # No token in the name: what a killed process left is written over, not piled up.
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if is_ready(file, stamp, fits):
                return
            _check_room(file, needed)
            try:
                fill(part)
                with open(part, "rb+") as out:
                    os.fsync(out.fileno())
                # An old stamp must never stand beside new rows, wherever the process is killed.
                _stamp(file).unlink(missing_ok=True)
                os.replace(part, file)
            finally:
                part.unlink(missing_ok=True)
            write(_stamp(file), json.dumps(stamp).encode())
    except OSError as error:
        raise InputError(
            f"cache: {file.name} cannot be written to {file.parent} ({error.strerror or error}): "
            f"{_REMEDY}"
        ) from error


def open_array(file: Path, offset: int = 0) -> NDArray[Any]:
    """Map the array in a .npy file, copy-on-write: torch shares only memory that may be written.

    What is written stays in this process and never reaches the file. Where memory could not hold
    all of it, it is mapped to be read alone. ``offset`` tells where in the file the array begins.
    """
    with open(file, "rb") as data:
        data.seek(offset)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(data)
        if version not in readers:
            raise ValueError(f"it is of version {version}")
        shape, fortran, dtype = readers[version](data)
        begin = data.tell()
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never read")
    if 0 in shape:  # nothing can be mapped
        return np.empty(shape, dtype)
    order: Any = "F" if fortran else "C"
    try:
        return np.memmap(file, dtype, "c", begin, shape, order)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return np.memmap(file, dtype, "r", begin, shape, order)


def fill_array(path: Path, parts: Iterable[NDArray[Any]]) -> None:
    """Write parts [k ...] of an array, one after the other, as one .npy file.

    >>> fill_array(Path("rows.npy"), (np.full((2, 3), i) for i in range(4)))
    >>> np.load("rows.npy").shape
    (8, 3)
    """
    first: NDArray[Any] | None = None
    n = 0
    with open(path, "wb") as out:
        for part in parts:
            if first is None:
                first = part[:0].copy()
                _write_header(out, first, 0)
            if part.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"rows must be of one form, got {list(part.shape[1:])} after "
                    f"{list(first.shape[1:])} from row {n} on: make them alike"
                )
            out.write(np.ascontiguousarray(part, first.dtype).data)
            n += len(part)
        if first is None:
            raise InputError("there are no rows: check the file")
        out.seek(0)
        _write_header(out, first, n)


def fill_zeros(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write an array of zeros, which take no room on the disk until they are written over."""
    like = np.empty((0, *shape[1:]), dtype)
    with open(path, "wb") as out:
        _write_header(out, like, shape[0])
        out.truncate(out.tell() + shape[0] * math.prod(shape[1:]) * dtype.itemsize)


def write_rows(file: Path, array: Any, places: Iterable[int], rows: Iterable[Any]) -> None:
    """Write rows of an array that `open_shared` maps; when this returns they are on the disk."""
    try:
        # Not through the mapping: a full disk would end the process there.
        with open(file, "rb+") as out:
            for place, row in zip(places, rows, strict=True):
                content = np.ascontiguousarray(row, array.dtype).tobytes()
                out.seek(array.offset + place * len(content))
                out.write(content)  # all of it: os.pwrite stops where the disk is full
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise InputError(
            f"cache: {file} cannot be written ({error.strerror}): make room, or {_REMEDY}"
        ) from error


def open_shared(file: Path) -> Any:
    """Map an array to be read; what any process writes into the file is seen."""
    return np.lib.format.open_memmap(file, mode="r")


def _write_header(out: Any, like: NDArray[Any], n: int) -> None:
    # NumPy leaves room for the first axis to grow, so that the header keeps its length.
    descr = np.lib.format.dtype_to_descr(like.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (n, *like.shape[1:])}
    np.lib.format.write_array_header_1_0(out, header)


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
            f"cache: {file} needs {needed / 1e9:.1f} GB of disk and {free / 1e9:.1f} GB are free: "
            f"make room or {_REMEDY}"
        )


def _stamp(file: Path) -> Path:
    return file.with_suffix(".json")
