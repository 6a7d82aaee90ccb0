"""Lines of JSON on disk: appended and synced one by one, and checked when they are read.

Each ends in its "sum": the CRC-32 of its bytes before that field, continued from the sum of the
line above it. So a line that was changed, moved or brought from elsewhere is known. The first line
announces "checksums"; below one that does not, written before there were any, lines have none.
"""

import json
import os
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from foresee import files
from foresee.errors import InputError

CHECKSUMS = {"checksums": "crc32"}
_SUM = b', "sum": '
_decode = msgspec.json.Decoder().decode


class Lines(NamedTuple):
    """The whole lines of a file, and their size in bytes.

    ``sum`` is that of the last, None in a file without checksums. What follows a whole line and is
    none itself is ``torn``: its writing was cut short.
    """

    values: list[dict[str, Any]]
    size: int
    sum: int | None
    torn: bool


NONE = Lines([], 0, 0, False)


def content(path: Path, lines: int | None = None) -> bytes:
    """Read a file, or its first lines; nothing where there is none, as others may remove theirs."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is no file: move it away")
        with open(path, "rb") as file:
            return file.read() if lines is None else b"".join(islice(file, lines))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return b""
        raise InputError(f"{path} cannot be read ({error.strerror}): move it away") from error


def parse(path: Path, data: bytes) -> Lines:
    """Split what was read from a file into lines; damage that no crash makes is refused."""
    *ended, tail = data.split(b"\n")
    values: list[dict[str, Any]] = []
    size, total = 0, NONE.sum
    for number, line in enumerate(ended, start=1):
        found = _value(line)
        if not found and number == len(ended) and not tail:
            break
        if found and number == 1:
            total = 0 if found.keys() & {"sum", *CHECKSUMS} else None
        if found and total is not None:
            body = line.rpartition(_SUM)[0]
            total = zlib.crc32(body, total)
            if line != body + _seal(total):
                found = {}
            found.pop("sum", None)
        if not found:
            raise damage(path, number)
        values.append(found)
        size += len(line) + 1
    return Lines(values, size, total, size < len(data))


def damage(path: Path, line: int) -> InputError:
    """Say what is wrong with a line that was written whole once."""
    return InputError(
        f"{path} is damaged in line {line}, and not by a crash, which can only cut off the last "
        "line: restore it from a backup, or delete it and start again"
    )


def encode(values: dict[str, Any], above: int | None = 0) -> tuple[bytes, int | None]:
    """A line below one of sum ``above``, and its own sum; neither has one in an old file."""
    line = json.dumps(values).encode()
    if above is None:
        return line + b"\n", None
    body = line.removesuffix(b"}")
    total = zlib.crc32(body, above)
    return body + _seal(total) + b"\n", total


def append(path: Path, values: dict[str, Any], above: int | None) -> int | None:
    """Write one line below that of sum ``above``; when its own sum returns it is on the disk."""
    return append_all(path, [values], above)


def append_all(path: Path, several: Iterable[dict[str, Any]], above: int | None) -> int | None:
    """Write lines at once; when the sum of the last returns all are on the disk."""
    written, total = [], above
    for values in several:
        line, total = encode(values, total)
        written.append(line)
    files.append(path, b"".join(written))
    return total


def truncate(path: Path, size: int) -> None:
    """Cut off what follows the first ``size`` bytes."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _seal(total: int) -> bytes:
    return _SUM + b'"%08x"}' % total


def _value(line: bytes) -> dict[str, Any]:
    """The object in a line, an empty one where there is none."""
    for decode in (_decode, lambda text: json.loads(text.decode())):  # Python writes NaN, reads it
        with suppress(ValueError, RecursionError):
            found = decode(line)
            return found if isinstance(found, dict) else {}
    return {}
