"""The rounds of trials as small as they get: a folder of them as one archive, and back to the byte.

What was picked is most of it, and xz sees but digits there. So it lies beside the lines, as ranks
among what was left of the pool before each round, byte by byte from the highest; the labels of the
picks follow from a table for each split.

    python results/packed.py results/digits/runs.tar.xz FOLDER    the rounds, for foresee report
"""

import io
import json
import re
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FULL = re.compile(rb'"picks": \[(.*?)\], "labels": \[(.*?)\]')
_THIN = re.compile(rb'"picks": (\d+)')
_BYTES = 4  # of a number


def pack(folder: Path, archive: Path) -> None:
    """Write all trials of a folder; the same rounds give the same bytes."""
    trials = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/*.jsonl"))}
    tables: dict[str, NDArray[np.int64]] = {}
    thin = {name: _thinned(content, tables) for name, content in trials.items()}
    parts = {name: content for name, (content, _) in thin.items()}
    parts |= {f"labels/{split}": _spread(labels) for split, labels in tables.items()}
    parts["picks"] = b"".join(_spread(ranks) for _, ranks in thin.values())
    for name, content in _restored(parts).items():
        if content != trials[name]:
            raise ValueError(f"{name} would not come back as it is: pack it some other way")
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def unpack(archive: Path, folder: Path) -> None:
    """Write what `pack` was given into a folder, over what is there of it."""
    parts = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            safe = tarfile.data_filter(entry, str(folder))
            parts[safe.name] = tar.extractfile(safe).read()  # type: ignore[union-attr]
    for name, content in _restored(parts).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _restored(parts: Mapping[str, bytes]) -> dict[str, bytes]:
    """The trials of what an archive holds, by name."""
    tables = {
        name.removeprefix("labels/"): _gathered(part)
        for name, part in parts.items()
        if name.startswith("labels/")
    }
    trials, ranks = {}, parts["picks"]
    for name in (name for name in parts if name.endswith(".jsonl")):
        size = _BYTES * sum(int(count) for count in _THIN.findall(parts[name]))
        trials[name] = _whole(parts[name], _gathered(ranks[:size]), tables)
        ranks = ranks[size:]
    return trials


def _thinned(
    content: bytes, tables: dict[str, NDArray[np.int64]]
) -> tuple[bytes, NDArray[np.int64]]:
    """A trial with the number of its picks alone, and their ranks; its labels go to the tables."""
    left, labels = _pool(content, tables)
    ranks = [left[:0]]

    def thin(match: re.Match[bytes]) -> bytes:
        nonlocal left
        picks, labels[picks] = (np.array(json.loads(b"[%b]" % m), np.int64) for m in match.groups())
        ranks.append(np.searchsorted(left, picks))
        left = np.delete(left, ranks[-1])
        return b'"picks": %d' % len(picks)

    return _FULL.sub(thin, content), np.concatenate(ranks)


def _whole(
    content: bytes, ranks: NDArray[np.int64], tables: Mapping[str, NDArray[np.int64]]
) -> bytes:
    """A trial as it was."""
    left, labels = _pool(content, dict(tables))

    def fill(match: re.Match[bytes]) -> bytes:
        nonlocal left, ranks
        count = int(match[1])
        picks, left = left[ranks[:count]], np.delete(left, ranks[:count])
        ranks = ranks[count:]
        told = json.dumps(picks.tolist()), json.dumps(labels[picks].tolist())
        return f'"picks": {told[0]}, "labels": {told[1]}'.encode()

    return _THIN.sub(fill, content)


def _pool(
    content: bytes, tables: dict[str, NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All positions of a trial's pool, and the table of their labels."""
    header: dict[str, Any] = json.loads(content.partition(b"\n")[0])
    size = header["experiment"]["n_pool"]
    return np.arange(size), tables.setdefault(header["data"], np.zeros(size, np.int64))


def _spread(numbers: NDArray[np.int64]) -> bytes:
    return numbers.astype(f">u{_BYTES}").view(np.uint8).reshape(-1, _BYTES).T.tobytes()


def _gathered(spread: bytes) -> NDArray[np.int64]:
    planes = np.frombuffer(spread, np.uint8).reshape(_BYTES, -1)
    return planes.T.copy().view(f">u{_BYTES}")[:, 0].astype(np.int64)


if __name__ == "__main__":
    unpack(*map(Path, sys.argv[1:]))
