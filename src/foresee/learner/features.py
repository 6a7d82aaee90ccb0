"""Features of a frozen extractor: each computed when it is first asked for, and kept."""

import hashlib
from functools import partial
from pathlib import Path
from threading import Lock
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from foresee import arrays
from foresee.learner.models import Frozen
from foresee.learner.pool import brief
from foresee.reading import kept

_PART = 256  # rows that are read at once
_TRIED = 4  # that are computed again when a folder is opened


class Features(arrays.OnDisk):
    """Features [n d] of rows, read by position, in memory or in a folder.

    In a folder, each stands beside a digest of the row it was computed from: what belongs to
    another row is computed again. The files carry a digest of the extractor in their names; as a
    function may change in ways that no digest shows, some features are compared with fresh ones
    when they are opened, and all are dropped if they differ.

    Args:
        frozen: the extractor.
        rows: what it reads, n of them.
        folder: where they are kept; None: in memory.
        name: of these rows, among others in the folder.

    >>> found = Features(Frozen(lambda x: x + 1, None), np.zeros((9, 2)))
    >>> found[np.array([3, 4])]
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """

    def __init__(
        self, frozen: Frozen, rows: Any, folder: Path | None = None, name: str = "pool"
    ) -> None:
        self._frozen, self._rows, self._turn = frozen, rows, Lock()
        self._files: tuple[Path, Path] | None = None
        self.shape = n, d = len(rows), frozen.features(rows[:1]).shape[1]
        if folder is None:
            self._values: Any = np.zeros((n, d), np.float32)
            self._marks: Any = np.zeros(n, np.uint64)
            return
        stem = f"{name}-{n}x{d}-{digest(frozen.extractor)[:12]}"
        self._files = folder / f"{stem}.npy", folder / f"{stem}-marks.npy"
        self._open()
        done = np.flatnonzero(self._marks)[:: max(1, np.count_nonzero(self._marks) // _TRIED)]
        if not self._are_true(done[:_TRIED]):
            for file in self._files:
                file.unlink()
            self._open()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        found = np.arange(len(self))[key]
        some = np.unique(found)
        with self._turn:
            for start in range(0, len(some), _PART):
                self._compute(some[start : start + _PART])
        return np.array(self._values[found])

    def _open(self) -> None:
        """Map the files, which begin as zeros."""
        forms: Any = (self.shape, np.float32), (self.shape[:1], np.uint64)
        for file, (shape, kind) in zip(self._files or (), forms, strict=True):

            def fits(array: Any, form: Any = (shape, kind)) -> bool:
                return (array.shape, array.dtype) == form

            if not kept.is_ready(file, {}, fits):
                fill = partial(kept.fill_zeros, shape=shape, dtype=np.dtype(kind))
                kept.make(file, {}, 0, fill, fits)
        self._values, self._marks = map(kept.open_shared, self._files or ())

    def _compute(self, places: NDArray[np.int64]) -> None:
        """Compute what is not known of these rows."""
        if self._files is None:  # rows stay as they are while the process lives
            places = places[self._marks[places] == 0]
            if len(places):
                self._values[places] = self._frozen.features(self._rows[places])
                self._marks[places] = 1
            return
        part = arrays.rows("inputs", self._rows[places])
        sums = _sums(part)
        new = np.flatnonzero(self._marks[places] != sums)
        if len(new):
            found, where = self._frozen.features(part[new]), places[new].tolist()
            # Whatever happens to the machine, what is marked is there.
            kept.write_rows(self._files[0], self._values, where, found)
            kept.write_rows(self._files[1], self._marks, where, sums[new])

    def _are_true(self, places: NDArray[np.int64]) -> bool:
        """Whether the features of these rows are what the extractor makes of them now."""
        if not len(places):
            return True
        part = arrays.rows("inputs", self._rows[places])
        same = np.flatnonzero(self._marks[places] == _sums(part))
        if not len(same):
            return True
        fresh, known = self._frozen.features(part[same]), self._values[places[same]]
        # Sums of float32 depend on how many rows are computed at once.
        return bool(np.allclose(fresh, known, rtol=1e-2, atol=1e-3 * np.abs(fresh).max()))


def digest(extractor: Any) -> str:
    """Of what features depend on, as far as it can be seen: weights, or the code of a function.

    >>> digest(nn.Linear(2, 3)) == digest(nn.Linear(2, 3))
    False
    """
    found = hashlib.sha256()
    if isinstance(extractor, nn.Module):
        found.update(repr(extractor).encode())
        for name, value in extractor.state_dict().items():
            found.update(name.encode())
            found.update(brief(value) if hasattr(value, "numpy") else repr(value).encode())
        return found.hexdigest()
    function = extractor if hasattr(extractor, "__code__") else type(extractor)
    found.update(f"{function.__module__}.{function.__qualname__}".encode())
    if hasattr(function, "__code__"):
        found.update(_code(function.__code__))
    return found.hexdigest()


def _code(code: CodeType) -> bytes:
    """What a function does, the same in every process."""
    parts = [code.co_code, repr(code.co_names).encode()]
    for value in code.co_consts:
        plain = sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
        parts.append(_code(value) if isinstance(value, CodeType) else str(plain).encode())
    return b"".join(parts)


def _sums(rows: Any) -> NDArray[np.uint64]:
    """A digest of each row, none of them 0."""
    found = [int.from_bytes(brief(rows[i])[:8], "little") or 1 for i in range(len(rows))]
    return np.array(found, np.uint64)
