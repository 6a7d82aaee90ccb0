"""Rows and what each is called, whatever people bring."""

import hashlib
import os
import reprlib
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.learner.answers import checked_ids
from foresee.learner.record import Id
from foresee.reading import sources, tables


@dataclass(frozen=True)
class Named:
    """Rows and what each is called; ``origin`` tells how they were read from a file."""

    rows: Any
    ids: Sequence[Id]
    places: Mapping[Id, int]
    origin: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, name: str, inputs: Any, ids: Any) -> "Named":
        """Whatever people bring, checked."""
        rows, found = opened(name, inputs)
        n = len(rows)
        own: Any = range(n) if found is None else found.ids
        if hasattr(inputs, "iloc") and inputs.index.is_unique:
            own = inputs.index
        if ids is not None:
            _check_index(name, inputs, ids)
            own = ids
        # A range, or the index of a frame that was given none.
        numbered = [getattr(own, each, None) for each in ("start", "stop", "step")] == [0, n, 1]
        names: Sequence[Id]
        if name == "target" and ids is None:  # the pool has such names too
            names = _Targets(n) if numbered else [f"target/{each}" for each in own]
        else:
            names = range(n) if numbered else checked_ids("ids", own)
        if len(names) != n:
            raise InputError(
                f"ids must be one for each of the {n} rows of {name}, got {len(names)}"
            )
        places: Mapping[Id, int] = (
            _Counted(names) if numbered else dict(zip(names, range(n), strict=True))
        )
        if len(places) < n:
            twice = next(each for i, each in enumerate(names) if places[each] != i)
            raise InputError(f"ids: {twice!r} is there twice: give each row of {name} its own")
        return cls(rows, names, places, found.origin if found else None)

    @property
    def numbered(self) -> bool:
        """Whether rows have no other name than their number."""
        return isinstance(self.places, _Counted)

    def look(self) -> int:
        """A number that tells other rows from these, most likely."""
        some = np.linspace(0, len(self) - 1, 8).astype(int)
        return zlib.crc32(b"".join(brief(self.rows[i]) for i in some.tolist()))


def opened(name: str, inputs: Any) -> tuple[Any, sources.Source | None]:
    """Rows, at least one, and the source that they came in or were read from."""
    if isinstance(inputs, str | Path):
        if not os.path.exists(inputs):
            raise InputError(
                f"{name}: there is no file {reprlib.repr(str(inputs))}: check the path, or pass "
                "texts as a list"
            )
        inputs = sources.read(inputs)
    found = inputs if isinstance(inputs, sources.Source) else None
    rows = arrays.rows(name, inputs if found is None else found.inputs)
    if len(rows) == 0:
        raise InputError(f"{name} is empty: pass at least one row")
    texts = rows.data if isinstance(rows, arrays.Rows) else None
    if isinstance(texts, list) and isinstance(texts[0], str):
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(
                    f"{name}[{i}] must be a text, as {name}[0] is, got {text!r}: leave it out, or "
                    'write ""'
                )
    return rows, found


def _check_index(name: str, inputs: Any, ids: Any) -> None:
    """Refuse ids that are a series whose index has the rows of a frame in another order."""
    if not (hasattr(inputs, "iloc") and hasattr(ids, "iloc")):
        return
    index, rows = list(ids.index), list(inputs.index)
    if index != rows and set(index) == set(rows):
        raise InputError(
            f"ids are a series whose index has the rows of {name} in another order, {index[:3]} "
            f"beside {rows[:3]}: pass ids.loc[{name}.index], or ids.values if their order is meant"
        )


def like(name: str, inputs: Any, pool: Any) -> Any:
    """Inputs with the pool's columns in their order, where both name them, in files or frames."""
    own = _columns(inputs)
    named = _columns(pool) if own else None
    if not own or not named or own == named:
        return inputs
    if isinstance(inputs, str | Path):
        several = len(named) > 1 and all(isinstance(each, str) for each in named)
        return sources.read(inputs, inputs=named) if several else inputs
    if isinstance(inputs, sources.Source):
        if len(named) > 1 and set(own) == set(named):
            raise InputError(
                f"{name} has the columns of pool in another order, {', '.join(own)}: read it with "
                f"inputs={named}"
            )
        return inputs
    return inputs[named] if set(named) <= set(own) else inputs


def _columns(inputs: Any) -> list[Any] | None:
    """The columns that are read of a table; None of all else."""
    if hasattr(inputs, "iloc") or arrays.is_polars(inputs):
        return list(getattr(inputs, "columns", ()))
    if isinstance(inputs, str | Path):
        return tables.names(Path(inputs), ()) if os.path.exists(inputs) else None
    origin = inputs.origin if isinstance(inputs, sources.Source) else None
    if origin is None:
        return None
    named = origin.get("inputs")
    if named is not None:
        return [named] if isinstance(named, str) else list(named)
    return tables.names(Path(origin["path"]), {origin.get("labels"), origin.get("ids")})


class _Targets(Sequence[str]):
    """The ids "target/0", "target/1", … of n rows, which need not be held."""

    def __init__(self, n: int) -> None:
        self._range = range(n)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, place: Any) -> Any:
        return f"target/{self._range[place]}"


class _Counted(Mapping[Hashable, int]):
    """The positions of rows that are called by their position."""

    def __init__(self, names: Sequence[Hashable]) -> None:
        self._names = names

    def __getitem__(self, key: Hashable) -> int:
        place = int(key[7:]) if isinstance(key, str) and key[7:].isdecimal() else key
        if type(place) is int and 0 <= place < len(self) and self._names[place] == key:
            return place
        raise KeyError(key)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def brief(row: Any) -> bytes:
    """A digest of a row: equal rows have equal ones, others most likely not.

    >>> brief(np.zeros(3)) == brief(np.zeros(3)), brief("a") == brief("b")
    (True, False)
    """
    try:
        return _digest(row)
    except RecursionError:  # it holds itself
        return hashlib.sha256(repr(row).encode()).digest()


def _digest(row: Any) -> bytes:
    row = row.toarray() if hasattr(row, "toarray") else row
    row = row.to_dict() if hasattr(row, "to_dict") else row  # of a frame
    if isinstance(row, Mapping):
        row = tuple(part for pair in row.items() for part in pair)
    if isinstance(row, tuple | list):
        content = b"".join(map(_digest, row))
    elif isinstance(row, set | frozenset):
        content = b"".join(sorted(map(_digest, row)))
    elif isinstance(row, np.ndarray) or hasattr(row, "numpy"):
        array = arrays.numpy(row)
        if array.dtype.hasobject:  # whose bytes are addresses
            return _digest(array.tolist())
        content = array.tobytes()
    else:
        shown = repr(row)
        if " at 0x" in shown and not isinstance(row, str | bytes):  # it says where, not what
            with suppress(TypeError):  # pickle cannot say either
                return _digest(row.__reduce_ex__(2)[1:])
        content = shown.encode()
    return hashlib.sha256(content).digest()


def distinct(rows: Any) -> NDArray[np.int64]:
    """Positions of rows, without those that are copies of one before."""
    rows, first = arrays.rows("rows", rows), dict[bytes, int]()
    for place in range(len(rows)):
        first.setdefault(brief(rows[place]), place)
    return np.array(list(first.values()), np.int64)


def subset(
    places: NDArray[np.int64], size: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """A random subset, in order."""
    if size is None or size >= len(places):
        return places
    return np.sort(rng.choice(places, size, replace=False))
