"""What is labelled, in the forms that other tools read: the label of each id that counts."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from foresee import files
from foresee.errors import InputError
from foresee.label.book import Book
from foresee.label.items import Items, Spec, flat
from foresee.reading import images

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
    shown = [
        (items.show(items.number(name)) | {"name": str(name)}, str(label))
        for name, label in told.items()
    ]
    if kind in ("imagefolder", "coco") and shown[0][0]["kind"] != "image":
        raise InputError(f"--export {kind} is for images: take datasets or label-studio")
    part = to.with_name(f".{to.name}.part")
    _remove(part)
    try:
        _KINDS[kind](items, shown, part)
        part.rename(to)
    finally:
        _remove(part)
    return len(told)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _imagefolder(items: Items, labelled: Labelled, to: Path) -> None:
    folders: dict[str, str] = {}
    for _, label in labelled:
        if folders.setdefault(_file_name(label), label) != label:
            raise InputError(
                f"--export imagefolder: the labels {label!r} and {folders[_file_name(label)]!r} "
                "would be one folder: take datasets or coco"
            )
    for shown, label in labelled:
        _copy(items, shown, to / _file_name(label))


def _coco(items: Items, labelled: Labelled, to: Path) -> None:
    classes = sorted({label for _, label in labelled})
    pictures, notes = [], []
    for i, (shown, label) in enumerate(labelled, start=1):
        width, height = _size(items, shown)
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
            row = {"file_name": _copy(items, shown, to), **row}
        else:
            row |= _content(items, shown)
        rows.append(json.dumps(row, ensure_ascii=False))
    name = "metadata.jsonl" if is_image else "data.jsonl"
    files.write(to / name, ("\n".join(rows) + "\n").encode(errors="backslashreplace"))


def _label_studio(items: Items, labelled: Labelled, to: Path) -> None:
    tasks: list[dict[str, Any]] = []
    for shown, label in labelled:
        image = shown["kind"] == "image"
        data: dict[str, Any] = {"image": shown["name"]} if image else _content(items, shown)
        result = {
            "from_name": "label",
            "to_name": "image" if image else "text",
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


def _path(items: Items, shown: dict[str, Any]) -> str:
    side, place, root = items.find(shown["item"])
    path = images.inside(root, side.rows[place])
    if not os.path.isfile(path):
        raise InputError(f"{shown['name']} has a label and is no file: skip it on the page")
    return path


def _copy(items: Items, shown: dict[str, Any], folder: Path) -> str:
    """Copy an image; its name there: those of one name in two folders need two names in one."""
    name = flat(shown["name"])
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / name).exists():
        raise InputError(f"two images would be called {name} in {folder}: rename one")
    shutil.copyfile(_path(items, shown), folder / name)
    return name


def _content(items: Items, shown: dict[str, Any]) -> dict[str, Any]:
    found = items.content(shown["item"])
    if both := found.keys() & {"id", "label"}:
        raise InputError(
            f"the pool has a column {min(both)}, as the export has: name the columns of the model "
            "by --inputs"
        )
    return found


def _size(items: Items, shown: dict[str, Any]) -> tuple[int, int]:
    path = _path(items, shown)
    try:
        with Image.open(path, formats=images.FORMATS) as image:
            return image.size
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(
            f"{shown['name']} has a label and cannot be read as an image: skip it on the page"
        ) from error


def _file_name(label: str) -> str:
    """A label as the name of a folder, which leads nowhere else.

    >>> _file_name("cat/dog"), _file_name("..")
    ('cat_dog', '_..')
    """
    plain = "".join("_" if letter in '/\\:*?"<>|' else letter for letter in label)
    return f"_{plain}" if plain.startswith(".") else plain


def _write(to: Path, content: Any) -> None:
    os.makedirs(to.parent, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, indent=1)
    files.write(to, text.encode(errors="backslashreplace"))  # which JSON reads back
