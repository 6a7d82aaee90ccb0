"""Configurations and rounds as JSON values: to them, back from them, and how two differ."""

import functools
import reprlib
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args

import msgspec

from foresee.errors import InputError

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Turn dataclasses, functions and tuples into JSON values that tell them apart.

    >>> plain(functools.partial(round, ndigits=2))
    {'type': 'partial', 'of': 'builtins.round', 'args': [], 'ndigits': 2}
    """
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        kind = type(value)
        # A file of one's own is a module that nobody can import, named after its content.
        home = "" if kind.__module__ in sys.modules else f"{kind.__module__}."
        return {"type": f"{home}{kind.__name__}", **parts}
    if isinstance(value, functools.partial):
        parts = {"args": plain(value.args), **plain(value.keywords)}
        return {"type": "partial", "of": plain(value.func), **parts}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if callable(value) and "<" not in getattr(value, "__qualname__", "<"):  # <lambda>, <locals>
        return f"{value.__module__}.{value.__qualname__}"
    raise InputError(
        f"a method holds {value!r}, which has no lasting description: use dataclasses, functions "
        "with a name and plain values"
    )


def typed(kind: type[T], value: Any) -> T:
    """Turn a JSON object into a dataclass; what does not fit raises, as does an unknown field.

    >>> from foresee.recipe import Recipe
    >>> typed(Recipe, {"iterations": "many"})
    Traceback (most recent call last):
    msgspec.ValidationError: Expected `int`, got `str` - at `$.iterations`
    """
    found = msgspec.convert(value, kind)
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    for name, part in value.items():
        if name not in known:
            raise TypeError(f"unknown field {reprlib.repr(name)}")
        for inner in (known[name], *get_args(known[name])):  # X, or X | None
            if is_dataclass(inner) and part is not None:
                typed(cast(type[Any], inner), part)
    return found


def changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """One line for each value in which two configurations differ, ``old`` the one on disk.

    >>> list(changes({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    ['  a.b: 1 on disk, 3 asked for']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from changes(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"  {name}: {_difference(old, new)}"


def _difference(old: Any, new: Any) -> str:
    """Two values, or of two matrices of one shape the first cell that differs."""
    what, asked = _matrix_size(old) or repr(old), _matrix_size(new) or repr(new)
    if what != asked:
        return f"{what} on disk, {asked} asked for"
    row, column, old, new = next(
        (i, j, *pair)
        for i, rows in enumerate(zip(old, new, strict=True))
        for j, pair in enumerate(zip(*rows, strict=True))
        if pair[0] != pair[1]
    )
    return (
        f"the matrix differs, first in row {row}, column {column}: {old!r} on disk, {new!r} asked "
        "for"
    )


def _matrix_size(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        return f"a matrix of {len(value)} × {len(value[0])}"
    return ""
