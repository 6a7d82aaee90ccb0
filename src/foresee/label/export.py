"""What is labelled, in the forms that other tools read: the label of each id that counts."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from foresee import files, images
from foresee.errors import InputError
from foresee.label.book import Book
from foresee.label.items import Items, Spec

# Items that are labelled, as the page shows them, with their labels.
Labelled: TypeAlias = list[tuple[dict[str, Any], str]]


def export(spec: Spec, out: Path, kind: str, to: Path) -> int:
    """Write what is labelled; nothing that is there is written over.

    Args:
        spec: what was labelled.
        out: the CSV of the labels.
        kind: "imagefolder" (a sub-folder for each class, with copies of the images), "coco" (a JSON
            file of images, categories and one annotation each), "datasets" (a folder that Hugging
            Face ``load_dataset`` reads) or "label-studio" (a JSON file of tasks).
        to: the folder or the file, which must not be there.

    Returns:
        How many labels.
    """
    if kind not in _KINDS:
        raise InputError(f"--export must be one of {', '.join(_KINDS)}, got {kind!r}")
    if to.exists():
        raise InputError(f"--to {to} is there already: choose another name")
    if not out.exists():
        raise InputError(f"there are no labels in {out}: pass --out as they were made with")
    items = Items(spec)
    book = Book(items, out)
    try:
        told = dict(book.desk.state.labels)
    finally:
        book.close()
    if not told:
        raise InputError(f"there are no labels in {out} yet: label some first")
    shown = [(items.show(items.number(name)), str(label)) for name, label in told.items()]
    if kind in ("imagefolder", "coco") and shown[0][0]["kind"] != "image":
        raise InputError(f"--export {kind} is for images: take datasets or label-studio")
    _KINDS[kind](items, shown, to)
    return len(told)


def _imagefolder(items: Items, labelled: Labelled, to: Path) -> None:
    for shown, label in labelled:
        folder = to / _file_name(label)
        folder.mkdir(parents=True, exist_ok=True)
        # Images of one name in two folders need two names in one.
        shutil.copyfile(_path(items, shown["item"]), folder / _flat(shown["name"]))


def _coco(items: Items, labelled: Labelled, to: Path) -> None:
    classes = sorted({label for _, label in labelled})
    pictures, notes = [], []
    for i, (shown, label) in enumerate(labelled, start=1):
        with Image.open(_path(items, shown["item"]), formats=images.FORMATS) as image:
            width, height = image.size
        pictures.append({"id": i, "file_name": shown["name"], "width": width, "height": height})
        notes.append({"id": i, "image_id": i, "category_id": classes.index(label) + 1})
    kinds = [{"id": i, "name": name} for i, name in enumerate(classes, start=1)]
    _write(to, {"images": pictures, "categories": kinds, "annotations": notes})


def _datasets(items: Items, labelled: Labelled, to: Path) -> None:
    """A folder with metadata.jsonl beside the images, or texts and rows in data.jsonl."""
    to.mkdir(parents=True)
    rows, is_image = [], labelled[0][0]["kind"] == "image"
    for shown, label in labelled:
        row = {"id": shown["name"], "label": label}
        if is_image:
            name = _flat(shown["name"])
            shutil.copyfile(_path(items, shown["item"]), to / name)
            row = {"file_name": name, **row}
        else:
            row |= {"text": shown["text"]} if "text" in shown else dict(shown["fields"])
        rows.append(json.dumps(row, ensure_ascii=False))
    name = "metadata.jsonl" if is_image else "data.jsonl"
    files.write(to / name, ("\n".join(rows) + "\n").encode())


def _label_studio(items: Items, labelled: Labelled, to: Path) -> None:
    tasks = []
    for shown, label in labelled:
        image = shown["kind"] == "image"
        kind, value = ("image", shown["name"]) if image else ("text", shown.get("text"))
        data = {kind: value} if value is not None else dict(shown["fields"])
        result = {
            "from_name": "label",
            "to_name": kind,
            "type": "choices",
            "value": {"choices": [label]},
        }
        tasks.append({"data": {**data, "id": shown["name"]}, "annotations": [{"result": [result]}]})
    _write(to, tasks)


_KINDS: dict[str, Callable[[Items, Labelled, Path], None]] = {
    "imagefolder": _imagefolder,
    "coco": _coco,
    "datasets": _datasets,
    "label-studio": _label_studio,
}


def _path(items: Items, number: int) -> str:
    side, place, path = items.find(number)
    return images.inside(path, side.rows[place])


def _flat(name: str) -> str:
    return name.replace("/", "__")


def _file_name(label: str) -> str:
    """A label as the name of a folder, which leads nowhere else.

    >>> _file_name("cat/dog"), _file_name("..")
    ('cat_dog', '_..')
    """
    plain = "".join("_" if letter in '/\\:*?"<>|' else letter for letter in label)
    return f"_{plain}" if plain.startswith(".") else plain


def _write(to: Path, content: Any) -> None:
    os.makedirs(to.parent, exist_ok=True)
    files.write(to, json.dumps(content, ensure_ascii=False, indent=1).encode())
