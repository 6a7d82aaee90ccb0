"""Labels that there are already, in a table or in a sub-folder for each class."""

import csv
import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from foresee.errors import InputError
from foresee.label.book import IMPORT, LABEL, Book, plain
from foresee.label.items import Items, flat
from foresee.learner import record
from foresee.learner.record import Id, Told
from foresee.reading import fields, sources

_NOBODY = "import"
_SEEN = f"1 to {LABEL} characters that can be seen"


class Taken(NamedTuple):
    """How many labels there are, of how many target items, and images that have none."""

    labels: int
    held: int = 0
    passed: int = 0


def take_over(book: Book, path: Path, classes: Collection[str] = ()) -> Taken:
    """Tell a book the labels there are; what was taken over before is not told twice.

    Labels of target items are held out: the accuracy is counted from them, and no model learns
    from them.

    Args:
        book: of the page.
        path: a CSV with the columns id and label, and who and time where they are there; or a
            folder with a sub-folder for each class, with images of the names that they have in the
            pool or the target (``a/b.png`` may be ``a__b.png``, as an export has it). In the folder
            of the pool or of the target itself, each image of a sub-folder is of that class.
        classes: where there are some, images in sub-folders of other names have no label.
    """
    passed = 0
    if path.is_dir():
        told, passed = _of_folder(book.items, path, classes)
    else:
        told = _of_table(book.items, path)
    before = {
        (name, event["who"]): label
        for event in book.desk.events
        if event["kind"] == "tell" and event.get("key", "").startswith(IMPORT)
        for name, label in record.answers(event)
    }
    apart = [each.id for each in told if each.id not in book.items.pool.places]
    book.hold(list(dict.fromkeys(apart)))
    book.take_over(each for each in told if before.get((each.id, each.who)) != each.answer)
    return Taken(len(told), len(apart), passed)


def _of_table(items: Items, path: Path) -> list[Told]:
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file, delimiter=fields.separator(file))
            columns = reader.fieldnames or ["nothing"]
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, csv.Error) as error:
        raise InputError(f"--import {path} cannot be read ({error}): check the file") from error
    if not rows or not {"id", "label"} <= set(columns):
        raise InputError(
            f"--import {path} must have the columns id and label, and a row, got {len(rows)} rows "
            f"of {', '.join(columns)}"
        )
    told: dict[tuple[Id, str], Told] = {}
    names = {str(name): name for name in items.pool.ids if not isinstance(name, str)}
    for line, row in rows:
        if any(row.get(None, ())):
            raise InputError(
                f"--import {path}, line {line} has more values than there are columns: put quotes "
                "around a value that holds the separator"
            )
        given, answer = row["id"] or "", plain(row["label"] or "")
        name = given if given in items else names.get(given, given)
        if name not in items or not answer:
            raise InputError(
                f"--import {path}, line {line}: {given!r} is not in the pool or the target, or has "
                f"no label of {_SEEN}: take the line out"
            )
        who = row.get("who") or _NOBODY
        at = _time(row.get("time") or "", f"--import {path}, line {line}")
        first = told.setdefault((name, who), Told(name, answer, who, at)).answer
        if first != answer:
            raise InputError(
                f"--import {path}, line {line}: {given!r} has both {first!r} and {answer!r} by the "
                "same person: take one out, or name people in a column who"
            )
    return list(told.values())


def _time(text: str, where: str) -> float | None:
    """Seconds since 1970, None where nothing is said."""
    if not text:
        return None
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.timestamp()
    raise InputError(
        f"{where}: the time {text!r} must be as 2026-05-04T10:11:12Z: write it so, or call the "
        "column otherwise"
    )


def _of_folder(items: Items, path: Path, classes: Collection[str]) -> tuple[list[Told], int]:
    """Labels, and how many images are in no sub-folder that counts."""
    if not Path(items.spec.pool).is_dir():
        raise InputError(f"--import {path} is a folder, and the pool has no images: pass a CSV")
    told: dict[Id, str] = {}
    passed, own = 0, _own(items, path)
    known = _names(items) if own is None else None
    for name in sources.image_names(path, lazy=True):
        called, inner, rest = name.partition("/")
        label = plain(called)
        if not inner or (classes and label not in classes):
            passed += 1
            continue
        if not label:
            raise InputError(
                f"--import {path}: the sub-folder {called!r} must have a name of {_SEEN}: rename it"
            )
        found = f"{own}{name}" if known is None else known.get(rest)
        if found is None or found not in items:
            raise InputError(
                f"--import {path}: {name} is in neither the pool nor the target, or under a name "
                "that several there have: put it there too, or take it out"
            )
        if told.setdefault(found, label) != label:
            raise InputError(
                f"--import {path}: {found} is in the sub-folders {told[found]} and {label}: take "
                "it out of one"
            )
    if not told:
        raise InputError(
            f"--import {path} has no images in sub-folders"
            f"{' named by --classes' if classes else ''}: a sub-folder for each class is needed"
        )
    return [Told(name, label, _NOBODY) for name, label in told.items()], passed


def _own(items: Items, path: Path) -> str | None:
    """What ids of images in a folder begin with, if it is that of the pool or of the target."""
    for side, begin in ((items.spec.pool, ""), (items.spec.target, "target/")):
        if side is not None and os.path.realpath(side) == os.path.realpath(path):
            return begin
    return None


def _names(items: Items) -> dict[str, Id | None]:
    """Ids by what an image may be called elsewhere; None where that is not one id."""
    ids = [*items.pool.ids, *(items.target.ids if items.target else ())]
    number = Counter(flat(name) for name in ids)
    found = {flat(name): name if number[flat(name)] == 1 else None for name in ids}
    return found | {name: name for name in ids if "/" in name or number[name] == 1}
