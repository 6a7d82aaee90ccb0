"""Ids and labels as people write them: plain values that JSON holds, each of one kind."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foresee.errors import InputError
from foresee.learner.record import Answer, Id, Label


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


def checked_labels(
    ids: Sequence[Id],
    labels: Any,
    classes: Sequence[Label] | None,
    before: Mapping[Id, Label],
) -> dict[Id, Label | Answer]:
    """Labels by id, of the kind of those before, among the classes where these are known.

    >>> checked_labels(["a", "b"], ["cat", "dog"], None, {})
    {'a': 'cat', 'b': 'dog'}
    """
    found = _plain("labels", labels)
    if len(found) != len(ids):
        raise InputError(f"labels must be one for each of the {len(ids)} ids, got {len(found)}")
    kind = type(next(iter(classes or before.values()), None))
    told: dict[Id, Any] = {}
    for name, label in zip(ids, found, strict=True):
        if not isinstance(label, Answer):
            _check_label(label)
            kind = type(label) if kind is type(None) else kind
            if type(label) is not kind:  # 1, 1.0 and True would be one class
                raise InputError(
                    f"labels must be of one kind: {name!r} has {label!r}, and others are "
                    f"{kind.__name__}: write all alike"
                )
            if classes is not None and label not in classes:
                raise InputError(
                    f"labels: {name!r} has {label!r}, which is none of the classes {list(classes)}:"
                    " correct it, or name it among the classes"
                )
        if name in told and told[name] != label:
            raise InputError(
                f"labels: {name!r} has both {told[name]!r} and {label!r}: tell one of them"
            )
        told[name] = label
    return told


def check_classes(classes: Any) -> list[Label]:
    """Classes, at least two, each once, of one kind."""
    found = _plain("classes", classes)
    checked_labels(range(len(found)), found, None, {})
    if len(set(found)) < max(2, len(found)) or any(isinstance(c, Answer) for c in found):
        raise InputError(f"classes must be at least 2, each once, got {found}: name all of them")
    return found


def _check_label(label: Any) -> None:
    if label is None or (isinstance(label, float) and not math.isfinite(label)):
        raise InputError(
            f"labels: {label} is no label: leave out what is not labelled, or tell foresee.SKIP or "
            "foresee.UNSURE"
        )
    if type(label) not in (str, int, float, bool):
        raise InputError(
            f"labels must be texts, whole numbers, floats or booleans, got {label!r}: name the "
            "classes so"
        )


def _plain(name: str, values: Any) -> list[Any]:
    """A list of Python's own values, of whatever sequence."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise InputError(f"{name} must be a sequence, got {values!r}: pass a list")
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(found, list):
        raise InputError(f"{name} must be a sequence, got {values!r}: pass a list")
    return [value.item() if isinstance(value, np.generic) else value for value in found]
