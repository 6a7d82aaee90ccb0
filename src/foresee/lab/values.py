"""Configurations and rounds as JSON values: to them, back from them, and how two differ."""

import functools
import reprlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, NoReturn, cast, get_args, get_origin

from foresee.errors import InputError

_LEAVES: dict[Any, set[type]] = {bool: {bool}, int: {int}, float: {float, int}, str: {str}}


def plain(value: Any) -> Any:
    """Turn dataclasses, functions and tuples into JSON values that tell them apart.

    >>> plain(functools.partial(round, ndigits=2))
    {'type': 'partial', 'of': 'builtins.round', 'args': [], 'ndigits': 2}
    """
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **parts}
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


@functools.cache
def typed(kind: Any) -> Callable[[Any], Any]:
    """Make the function that turns a JSON value into a type, and raises where it does not fit.

    A dataclass is an object of its fields, a tuple an array, a tuple of pairs an object.

    >>> typed(tuple[float, ...])([1, 2.5])
    (1.0, 2.5)
    >>> typed(int | None)("1")
    Traceback (most recent call last):
    TypeError: int expected, got '1'
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if is_dataclass(kind):
        return _of_fields(kind)
    if origin is Literal:
        options = {(type(option), option) for option in args}
        names = " or ".join(map(repr, args))
        return lambda value: value if (type(value), value) in options else _misfit(names, value)
    if origin is UnionType:  # of something and None: there is no other
        something = typed(args[0])
        return lambda value: None if value is None else something(value)
    if origin is dict:
        return _of_pairs(dict, *args)
    if origin is tuple and get_origin(args[0]) is tuple and get_args(args[0])[-1] is not Ellipsis:
        return _of_pairs(tuple, *get_args(args[0]))
    if origin is tuple:
        return _of_parts(args[0])
    leaves = _LEAVES[kind]
    return lambda value: kind(value) if type(value) in leaves else _misfit(kind, value)


def _of_fields(kind: Any) -> Callable[[Any], Any]:
    readers = {field.name: typed(cast(Hashable, field.type)) for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is MISSING]

    def read(value: Any) -> Any:
        found = {}
        for name, part in _items(value):
            if name not in readers:
                raise TypeError(f"unknown field {reprlib.repr(name)}")
            try:
                found[name] = readers[name](part)
            except (ArithmeticError, TypeError, ValueError) as error:
                raise TypeError(f"{name}: {error}") from None
        for name in needed:
            if name not in found:
                raise TypeError(f"{name}: missing")
        return kind(**found)

    return read


def _of_pairs(whole: Any, key_kind: Any, part_kind: Any) -> Callable[[Any], Any]:
    key, part = typed(key_kind), typed(part_kind)
    return lambda value: whole((key(k), part(v)) for k, v in _items(value))


def _of_parts(kind: Any) -> Callable[[Any], Any]:
    part = typed(kind)

    def read(value: Any) -> Any:
        if type(value) is not list:
            _misfit("array", value)
        if kind is int and {int}.issuperset(map(type, value)):  # picks are many: all at once
            return tuple(value)
        return tuple(map(part, value))

    return read


def _items(value: Any) -> Any:
    return value.items() if type(value) is dict else _misfit("object", value)


def _misfit(kind: Any, value: Any) -> NoReturn:
    name = kind.__name__ if isinstance(kind, type) else kind
    raise TypeError(f"{name} expected, got {reprlib.repr(value)}")


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
