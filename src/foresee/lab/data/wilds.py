"""The sets of the WILDS benchmark: a table of metadata and a folder of images."""

import csv
import hashlib
import math
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.lab.data.dataset import Images
from foresee.lab.data.get import find
from foresee.reading.decoded import Shape, decode, is_ready
from foresee.reading.images import READER
from foresee.reading.kept import open_array


@dataclass(frozen=True)
class Layout:
    """Where things are. ``image`` is a path with names of columns in it, or ``{row}`` from 0.

    ``domain`` is the column that tells source from target.
    """

    folder: str
    metadata: str
    image: str
    side: int
    label: str
    domain: str
    source: tuple[str, ...]
    target: tuple[str, ...]


LAYOUTS = {
    # The paper says "splits 0 to 4", which only the hospital can be: `split` holds 0 and 1 alone.
    "camelyon17": Layout(
        folder="camelyon17_v1.0",
        metadata="metadata.csv",
        image="patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
        side=96,
        label="tumor",
        domain="center",
        source=("0", "1"),
        target=("2", "3", "4"),
    ),
    "iwildcam": Layout(
        folder="iwildcam_v2.0",
        metadata="metadata.csv",
        image="train/{filename}",
        side=64,
        label="y",
        domain="split",
        source=("val", "test"),
        target=("id_val", "id_test", "train"),
    ),
    # The paper's target is all that is not train. Its 112 000 images are there only with seq, which
    # WILDS leaves out.
    "fmow": Layout(
        folder="fmow_v1.1",
        metadata="rgb_metadata.csv",
        image="images/rgb_img_{row}.png",
        side=96,
        label="category",
        domain="split",
        source=("train",),
        target=("val", "test", "seq"),
    ),
}


class _Table(NamedTuple):
    """The rows of a metadata file."""

    images: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    domains: NDArray[np.str_]
    md5: str


def load_wilds(
    name: str, root: Path | None, cache: Path | None, advance: Callable[[int, int], object]
) -> Images:
    """Read the metadata and map the decoded images, decoding them first if need be."""
    layout = LAYOUTS[name]
    folder = find(name, root, layout.folder, layout.metadata)
    table = _read(name, folder)
    file, shape, stamp = _cache(name, folder, cache, table)

    def where(row: int) -> str:
        # Where images are numbered by row, to delete one would rename all those below it.
        drop = "" if "{row}" in layout.image else ", or delete that row"
        return f"It is row {row} of {folder / layout.metadata}: unpack the archive again{drop}"

    if not is_ready(file, shape, stamp):
        decode(file, folder, table.images, shape, stamp, where, advance)
    source = np.isin(table.domains, layout.source)
    return Images(name, open_array(file), table.labels, table.classes, source, table.domains)


def wilds_bytes(name: str, root: Path | None, cache: Path | None) -> int:
    """How much disk `load_wilds` will fill: 0 where all is decoded."""
    layout = LAYOUTS[name]
    folder = find(name, root, layout.folder, layout.metadata)
    file, shape, stamp = _cache(name, folder, cache, _read(name, folder))
    return 0 if is_ready(file, shape, stamp) else math.prod(shape)


def _cache(
    name: str, folder: Path, cache: Path | None, table: _Table
) -> tuple[Path, Shape, dict[str, Any]]:
    side, rows = LAYOUTS[name].side, len(table.images)
    file = (cache or folder / "foresee-cache") / f"{name}-{side}.npy"
    stamp = {"rows": rows, "side": side, "metadata": table.md5, "reader": READER}
    return file, (rows, 3, side, side), stamp


def _read(name: str, folder: Path) -> _Table:
    layout = LAYOUTS[name]
    path = folder / layout.metadata
    in_path = {field for _, field, _, _ in string.Formatter().parse(layout.image) if field}
    columns = sorted(in_path - {"row"} | {layout.label, layout.domain})
    images, answers, domains = [], [], []
    for row, fields in enumerate(_columns(path, columns)):
        values = dict(zip(columns, fields, strict=True))
        domain, answer = values[layout.domain], values[layout.label]
        expected = (*layout.source, *layout.target)
        if domain not in expected:
            raise InputError(
                f"{path}, row {row}: {layout.domain} must be one of {', '.join(expected)}, got "
                f"{domain!r}: get the file again"
            )
        images.append(layout.image.format(row=row, **values))
        answers.append(answer)
        domains.append(domain)
    if not images:
        raise InputError(f"{path} lists no images: get it again")
    classes, number = _classes(name, folder, set(answers))
    for row, answer in enumerate(answers):
        if answer not in number:
            raise InputError(
                f"{path}, row {row}: {layout.label} must be one of {len(classes)} classes, got "
                f"{answer!r}: get the file again"
            )
    labels = np.array([number[answer] for answer in answers], np.int64)
    with open(path, "rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return _Table(images, labels, classes, np.array(domains), md5)


def _columns(path: Path, names: list[str]) -> Iterator[list[str]]:
    """Read some columns of a CSV file as text, row by row."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            missing = [name for name in names if name not in header]
            if missing:
                raise InputError(
                    f"{path} must have the columns {', '.join(names)}; {', '.join(missing)} is "
                    f"not among those found: {', '.join(header) or 'none'}; get the file again"
                )
            places = [header.index(name) for name in names]
            for number, row in enumerate(reader):
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, row {number}: {len(header)} fields were expected, got "
                        f"{len(row)}: the file was cut or changed, get it again"
                    )
                yield [row[place] for place in places]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV ({error}): get it again") from error


def _classes(name: str, folder: Path, answers: set[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the classes, and the number that stands for each label in the table."""
    if name == "camelyon17":
        return ("normal", "tumor"), {"0": 0, "1": 1}
    if name == "fmow":
        names = sorted(answers)  # alphabetical, as in the wilds package
        return tuple(names), {name: i for i, name in enumerate(names)}
    path = folder / "categories.csv"
    if not path.is_file():
        raise InputError(f"there is no {path}, which names the classes: unpack the archive again")
    species = {y: species for species, y in _columns(path, ["name", "y"]) if y != _UNUSED}
    try:
        order = sorted(species, key=int)
    except ValueError as error:
        raise InputError(f"{path}: y must be whole numbers ({error}): get it again") from error
    if [int(y) for y in order] != list(range(len(order))):
        raise InputError(f"{path}: y must count the classes from 0 without gaps: get it again")
    return tuple(species[y] for y in order), {y: int(y) for y in order}


_UNUSED = "99999"
