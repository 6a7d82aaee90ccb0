"""Ids and labels as people bring them, checked."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from foresee import arrays
from foresee.errors import InputError
from foresee.learner.record import Answer, Id
from foresee.learner.written import Label


def checked_ids(name: str, values: Any) -> list[Id]:
    """Ids as texts and whole numbers.

    >>> checked_ids("ids", np.array([3, 4]))
    [3, 4]
    """
    found = _plain(name, values)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InputError(
                f"{name} must be texts or whole numbers, got {value!r}: write others as texts"
            )
    return found


def check_order(name: str, values: Any, ids: Any, names: Sequence[Id]) -> None:
    """Refuse a series whose own index has the same ids in another order.

    Args:
        name: of the argument.
        values: what came for it.
        ids: as they came, which it may have been a column beside.
        names: the ids.
    """
    if not hasattr(values, "iloc") or hasattr(ids, "iloc"):
        return
    index, own = list(values.index), list(names)
    if index != own and set(index) == set(own):
        raise InputError(
            f"{name} is a series whose index has the ids in another order, {index[:3]} beside "
            f"{own[:3]}: pass {name}.loc[list(ids)], or {name}.values if their order is meant"
        )


def checked_labels(
    ids: Sequence[Id],
    labels: Any,
    classes: Sequence[Label] | None,
    before: Mapping[Id, Label],
) -> dict[Id, Label | Answer]:
    """Labels by id: among the classes where these are known, else of the kind of those before.

    >>> checked_labels(["a", "b"], ["cat", "dog"], None, {})
    {'a': 'cat', 'b': 'dog'}
    """
    found = _plain("labels", labels)
    if len(found) != len(ids):
        raise InputError(f"labels must be one for each of the {len(ids)} ids, got {len(found)}")
    own = None if classes is None else {label: label for label in classes}
    others = list(islice(before.values(), 1))
    told: dict[Id, Any] = {}
    for name, label in zip(ids, found, strict=True):
        if not isinstance(label, Answer):
            _check_label("labels", label)
            if own is not None and label not in own:
                raise InputError(
                    f"labels: {name!r} has {label!r}, which is none of the classes {list(own)}:"
                    " correct it, or name it among the classes"
                )
            if own is None and label is None:
                raise InputError(
                    f"labels: {name!r} has None: leave out what is not labelled, tell foresee.SKIP "
                    "or foresee.UNSURE, or name None among the classes"
                )
            # 1, 1.0 and True are equal, and would be one class.
            like = own[label] if own else (others or [label])[0]
            if type(label) is not type(like):
                raise InputError(
                    f"labels must be of one kind: {name!r} has {label!r}, and there is {like!r}: "
                    "write all alike, or pass those that there can be as classes=[...]"
                )
            others = [like]
        if name in told and told[name] != label:
            raise InputError(
                f"labels: {name!r} has both {told[name]!r} and {label!r}: tell one of them"
            )
        told[name] = label
    return told


def check_classes(classes: Any) -> list[Label]:
    """Classes, at least two, no two of them equal."""
    found = _plain("classes", classes)
    for label in found:
        _check_label("classes", label)
    if len(set(found)) < max(2, len(found)) or any(isinstance(c, Answer) for c in found):
        raise InputError(
            f"classes must be at least 2, each once (1, 1.0 and True are one), got {found}: name "
            "all of them"
        )
    return found


def _check_label(name: str, label: Any) -> None:
    """Any hashable value but those that are not even equal to themselves."""
    try:
        hash(label)
    except TypeError:
        raise InputError(
            f"{name} must be hashable, got {label!r}: pass tuples in place of lists and rows"
        ) from None
    if not _is_itself(label):
        raise InputError(
            f"{name}: {label!r} is no label: leave out what is not labelled, or tell foresee.SKIP "
            "or foresee.UNSURE"
        )


def _is_itself(label: Any) -> bool:
    if type(label) in (tuple, frozenset):  # which look for the same object first
        return all(map(_is_itself, label))
    try:
        return bool(label == label) and not (isinstance(label, float) and math.isinf(label))
    except (TypeError, ValueError):  # pandas.NA is neither
        return False


def _plain(name: str, values: Any) -> list[Any]:
    """A list of Python's own values, of whatever sequence."""
    unordered = isinstance(values, str | bytes | Mapping | set | frozenset)
    if unordered or not hasattr(values, "__iter__"):
        raise InputError(f"{name} must be a sequence, got {values!r}: pass a list")
    if hasattr(values, "columns"):
        kind = type(values).__name__
        raise InputError(f"{name} must be a sequence, got {kind}: pass one column of it")
    found = values.tolist() if hasattr(values, "tolist") and not _is_time(values) else list(values)
    if not isinstance(found, list):
        raise InputError(f"{name} must be a sequence, got {values!r}: pass a list")
    return list(map(_own, found))


def _own(value: Any) -> Any:
    """What numpy and torch hold, as Python does; their arrays are lists, which are no labels."""
    if type(value) is tuple and any(map(arrays.is_tensor, value)):
        return tuple(map(_own, value))
    foreign = isinstance(value, np.generic | np.ndarray) or arrays.is_tensor(value)
    return value.tolist() if foreign and not _is_time(value) else value


def _is_time(values: Any) -> bool:
    """Whether numpy would make numbers of these."""
    return getattr(getattr(values, "dtype", None), "kind", "") in ("M", "m")
