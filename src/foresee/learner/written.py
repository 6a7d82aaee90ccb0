"""Labels as JSON has them: what a record holds for each, and which label that stands for.

Texts, numbers, booleans and None stand for themselves. Tuples, frozensets, bytes, dates and times
are written by kind, such as {"tuple": [1, "a"]}, and come back as they were. Any other label is
written as its position among the classes, which whoever takes the record up must bring again; of
those the record holds only how they look.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from typing import Any, TypeAlias

from foresee.errors import InputError

# Any hashable value; people index with them, so a checker of types must not mind.
Label: TypeAlias = Any
Event: TypeAlias = dict[str, Any]

# Kinds that JSON has; numpy has arrays of each.
PLAIN = (str, int, float, bool)

_GROUPS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "frozenset": frozenset}
_TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    date: (date.isoformat, date.fromisoformat),
    datetime: (datetime.isoformat, datetime.fromisoformat),
}
_READERS = {kind.__name__: back for kind, (_, back) in _TEXTS.items()}


def written(label: Label, classes: Sequence[Label] | None = None) -> Any:
    """What stands for a label, which is one of the classes where these are known.

    >>> written((1, b"a"))
    {'tuple': [1, {'bytes': '61'}]}
    >>> written(1j, classes=[0j, 1j])
    {'class': 1}
    """
    try:
        return _encoded(label, _refuse)
    except _StrangeError:
        if classes is not None:
            return {"class": classes.index(label)}
    raise InputError(
        f"labels: {label!r} cannot be written to a file by what it is: pass all labels there can "
        "be as classes=[...], now and whenever the file is taken up again"
    )


def read(value: Any, classes: Sequence[Label] | None = None) -> Label:
    """The label that something written stands for.

    >>> read({"tuple": [1, {"bytes": "61"}]})
    (1, b'a')
    """
    if value is None or type(value) in PLAIN:
        return value
    ((kind, content),) = dict(value).items()
    if kind == "class":
        return dict(enumerate(classes or ()))[content]
    if kind in _GROUPS:
        return _GROUPS[kind](map(read, content))
    return _READERS[kind](content)


def looks(classes: Sequence[Label]) -> list[Any]:
    """What a record holds of classes: another list, or another order, looks otherwise.

    >>> looks(["a", (1, 2j)])
    ['a', {'tuple': [1, {'repr': '2j'}]}]
    """
    found = [_encoded(label, _look) for label in classes]
    for place, look in enumerate(found):
        if look in found[:place]:
            raise InputError(
                f"classes: {classes[place]!r} looks like another, and in a file they could not be "
                "told apart: let each have a repr of its own, or take texts"
            )
    return found


def seen(path: Any, found: Sequence[Any]) -> list[Label]:
    """The classes of which a record holds how they look."""
    try:
        return [read(look) for look in found]
    except KeyError:
        raise InputError(
            f"classes: {path} holds only how they look: pass them again, as they were"
        ) from None


def event_written(event: Event, classes: Sequence[Label] | None) -> Event:
    """An event as a line holds it."""
    if event["kind"] != "tell":
        return event
    return {**event, "labels": [written(label, classes) for label in event["labels"]]}


def event_read(event: Event, classes: Sequence[Label] | None) -> Event:
    """The event that a line holds."""
    if event["kind"] != "tell":
        return event
    return {**event, "labels": [read(value, classes) for value in event["labels"]]}


class _StrangeError(Exception):
    """A label is of no kind that can be written."""


def _encoded(label: Label, other: Callable[[Label], Any]) -> Any:
    kind = type(label)
    if label is None or kind in PLAIN:
        return label
    if kind in (tuple, frozenset):
        parts = [_encoded(part, other) for part in label]
        # The order within a set is another in each process.
        return {kind.__name__: parts if kind is tuple else sorted(parts, key=json.dumps)}
    if kind in _TEXTS and not (kind is datetime and _is_local(label)):
        return {kind.__name__: _TEXTS[kind][0](label)}
    return other(label)


def _is_local(time: datetime) -> bool:
    """Whether a time belongs to a zone with rules, which no offset tells."""
    return bool(time.fold) or type(time.tzinfo) not in (type(None), timezone)


def _refuse(label: Label) -> Any:
    raise _StrangeError


def _look(label: Label) -> Any:
    if re.search(r" at 0x[0-9a-fA-F]+", repr(label)):
        raise InputError(
            f"classes: {label!r} looks otherwise in every process, and could not be known again: "
            "give it a repr of its own, or take texts"
        )
    return {"repr": repr(label)}
