"""Image files decoded once into one array on disk, which is there whole or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.files import write

BLOCK = 1024
"""Images decoded between two reports of progress."""
_REMEDY = "pass another folder as cache, with foresee run as --cache"


def is_ready(file: Path, stamp: Mapping[str, Any]) -> bool:
    """Whether the array is complete and was made from what the stamp tells."""
    try:
        return json.loads(_stamp(file).read_text()) == stamp and len(open_array(file)) > 0
    except (OSError, ValueError):
        return False


def size_of(n: int, side: int) -> int:
    """Bytes of n square colour images."""
    return n * 3 * side * side


def decode(
    file: Path,
    paths: Sequence[str],
    side: int,
    stamp: Mapping[str, Any],
    where: Callable[[int], str],
    advance: Callable[[int, int], object],
) -> None:
    """Decode the images to RGB [n 3 side side] in ``file``, unless another process just has.

    Images of another size are squeezed to the square by Pillow's bilinear filter, which averages
    over all pixels when it shrinks. ``where`` tells of a row where it comes from and what to do.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not is_ready(file, stamp):
                _check_room(file, size_of(len(paths), side))
                _decode(file, paths, side, where, advance)
                write(_stamp(file), json.dumps(stamp).encode())
    except OSError as error:
        raise InputError(
            f"cache: decoded images cannot be written to {file.parent} ({error.strerror or error}):"
            f" {_REMEDY}"
        ) from error


def open_array(file: Path) -> NDArray[np.uint8]:
    """Map the array, copy-on-write: torch shares only memory that may be written."""
    return np.lib.format.open_memmap(file, mode="c")


def _decode(
    file: Path,
    paths: Sequence[str],
    side: int,
    where: Callable[[int], str],
    advance: Callable[[int, int], object],
) -> None:
    _check_all_there(paths, where)
    # No token in the name: what a killed process left is written over, not piled up.
    part = file.with_suffix(".part")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, side, side)}

    def image(row: int) -> NDArray[np.uint8]:
        try:
            return _read(paths[row], side)
        except MemoryError:
            raise
        except Exception as error:  # a damaged image raises OSError, SyntaxError, ValueError, ...
            raise InputError(f"{paths[row]} cannot be decoded ({error}), {where(row)}") from error

    try:
        with open(part, "wb") as out, ThreadPoolExecutor() as threads:
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(paths), BLOCK):
                rows = range(start, min(start + BLOCK, len(paths)))
                out.write(np.stack(list(threads.map(image, rows))).data)
                advance(rows.stop, len(paths))
            out.flush()
            os.fsync(out.fileno())
        # An old stamp must never stand beside new pixels, wherever the process is killed.
        _stamp(file).unlink(missing_ok=True)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _read(path: str, side: int) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _check_all_there(paths: Sequence[str], where: Callable[[int], str]) -> None:
    missing = [row for row, path in enumerate(paths) if not os.path.isfile(path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(paths)} images are missing; the first is {paths[missing[0]]}, "
            f"{where(missing[0])}"
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
