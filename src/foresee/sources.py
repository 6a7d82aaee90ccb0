"""Files people bring, as rows with ids: folders of images, tables of texts or numbers, arrays.

A folder of images and a .npy file are mapped, of any size; tables and archives are loaded.
"""

import csv
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import decoded, images
from foresee.errors import InputError

# Bytes of an array that are loaded from an archive; one of its own file is mapped, of any size.
UNPACKED = 1 << 30
# Names of files that are taken for images; what they are, their content must tell.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
# Where decoded images are kept, in the folder itself, unless told otherwise.
CACHE = ".foresee-cache"


@dataclass(frozen=True, eq=False)
class Source:
    """Rows that were read from somewhere.

    Args:
        inputs: bytes [n channels height width] of images, floats [n d], an array [n ...], or a list
            of n texts.
        ids: what each row is called, n different ones: paths in the folder, values of the column
            that was named, or else the numbers of the rows from 0.
        labels: of each row, where a column was named or images lie in a sub-folder a class.
        origin: arguments with which `read` would read the same again.
    """

    inputs: Any
    ids: list[Hashable]
    labels: list[Any] | None = None
    origin: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def read(
    path: Path | str,
    *,
    inputs: str | Sequence[str] | None = None,
    labels: str | None = None,
    ids: str | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    cache: Path | str | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Source:
    """Read a folder of images, or a .csv, .parquet, .npz or .npy file.

    Args:
        path: of the folder or the file.
        inputs: of a table, the column or the columns that a model reads, by default all but the two
            below: one of texts, or some of numbers. Of a .npz file, the array.
        labels: the column or the array of labels. Labels of a CSV file are texts as they stand.
        ids: the column or the array of ids.
        size: of images, (height, width) or the side of a square: what the network reads.
        channels: of images, 3 for colour and 1 for grey.
        cache: the folder for decoded images, by default ``.foresee-cache`` beside them.
        advance: hears how many images of all are decoded.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\n\\"dull, long\\",1\\n") > 0
    True
    >>> found = read("reviews.csv", labels="stars")
    >>> found.inputs, found.ids, found.labels
    (['fine', 'dull, long'], [0, 1], ['5', '1'])
    """
    path = Path(path)
    named = {"inputs": inputs, "labels": labels, "ids": ids}
    if not path.is_dir():
        found = _table(path, inputs, labels, ids)
    elif used := [name for name, value in named.items() if value is not None]:
        raise InputError(
            f"{used[0]} names a column, and {path} is a folder of images, whose ids are their "
            f"paths and whose labels are its sub-folders: leave {used[0]} out"
        )
    else:
        found = folder(path, size, channels, cache, advance)
    place = None if cache is None else str(Path(cache).absolute())
    how = {**named, "size": size, "channels": channels, "cache": place}
    origin = {"path": str(path.absolute()), **{k: v for k, v in how.items() if v is not None}}
    return replace(found, origin=origin)


def _table(
    path: Path, inputs: str | Sequence[str] | None, labels: str | None, ids: str | None
) -> Source:
    _check_file(path)
    if path.suffix == ".npy":
        return _numbered(path, array("path", path), None, None)
    reader = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{path} must be a folder of images, or a .csv, .parquet, .npz or .npy file: convert it"
        )
    wanted = [inputs] if isinstance(inputs, str) else inputs
    answers = {name for name in (labels, ids) if name is not None}
    found = reader(path, wanted, answers)
    some = {k: v for k, v in found.items() if (k in wanted if wanted else k not in answers)}
    answer, name = (None if key is None else found[key] for key in (labels, ids))
    return _numbered(path, _joined(path, some), answer, name)


def folder(
    path: Path | str,
    size: int | tuple[int, int] | None,
    channels: int = 3,
    cache: Path | str | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Source:
    """Read a folder of images: decoded once, at the network's size, and mapped from then on.

    Files count as images by their names (``SUFFIXES``) and are read by `images.read`; others, and
    what is hidden, are passed over. Images are squeezed to the size. The decoded ones are used
    again while names, sizes and times of all files are the same.

    Args:
        path: a folder, with images in it, or a sub-folder for each class, as deep as you like.
        size: (height, width) or the side of a square.
        channels: 3 for colour, 1 for grey.
        cache: a folder for the decoded images; by default ``.foresee-cache`` in ``path``.
        advance: hears how many of all are decoded.

    Returns:
        Bytes [n channels height width]; ids are paths in the folder, in sorted order, with "/";
        labels are the names of the sub-folders, None where some image lies in none.

    >>> from PIL import Image
    >>> for name in ("cat", "dog"):
    ...     Path("pets", name).mkdir(parents=True)
    ...     Image.new("RGB", (9, 7), "red").save(f"pets/{name}/1.png")
    >>> pets = folder("pets", size=4)
    >>> pets.inputs.shape, pets.ids, pets.labels
    ((2, 3, 4, 4), ['cat/1.png', 'dog/1.png'], ['cat', 'dog'])
    """
    root = Path(path)
    if size is None:
        raise InputError(
            f"{root} is a folder of images: pass size, the height and the width that the model "
            "reads, or the side of a square, as in foresee.read(folder, size=64)"
        )
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1 or channels not in (1, 3):
        raise InputError(
            f"size must be positive and channels 1 or 3, got {size} and {channels}: pass what the "
            "model reads"
        )
    files = sorted(_image_files(root))
    if not files:
        raise InputError(f"{root} holds no images ({', '.join(SUFFIXES)}): check the path")
    names = [name for name, _, _ in files]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    shape = (len(files), channels, height, width)
    stamp = {"shape": list(shape), "files": digest}
    file = Path(cache or root / CACHE) / f"{_stem(root)}-{channels}x{height}x{width}.npy"
    if not decoded.is_ready(file, shape, stamp):
        where = "Replace it, or take it out of the folder"
        decoded.decode(file, root, names, shape, stamp, lambda row: where, advance)
    nested = all("/" in name for name in names)
    labels: list[Any] | None = [name.partition("/")[0] for name in names] if nested else None
    return Source(decoded.open_array(file), list[Hashable](names), labels)


def columns(path: Path) -> dict[str, Any]:
    """All columns of a .csv or .parquet file, or arrays of a .npz file, by name.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\n") > 0
    True
    >>> columns(Path("reviews.csv"))
    {'text': ['fine'], 'stars': array([5.])}
    """
    _check_file(path)
    if path.suffix.lower() == ".npz":
        return _npz(path, _members(path), set())
    reader = {".csv": _csv, ".parquet": _parquet}.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} must be a .csv, .parquet or .npz file: convert it")
    return reader(path, None, set())


def image_names(path: Path) -> list[str]:
    """Paths in a folder of the images that `folder` reads, sorted; none is decoded."""
    return sorted(name for name, *_ in _image_files(path))


def array(argument: str, path: Path, name: str | None = None) -> NDArray[Any]:
    """Map a .npy file, or load an array of a .npz file by its name, or the only one."""
    _check_file(path)
    try:
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="c")  # torch shares what may be written
        return _from_archive(argument, path, name)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises ValueError, BadZipFile, MemoryError, ...
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{argument}: {path} cannot be read ({reason}): it is damaged or holds no plain array; "
            "write it again with numpy.save"
        ) from error


def _image_files(root: Path) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of the images in a folder; a link out of it is refused."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read ({error.strerror}): mend its rights")

    for place, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if os.path.islink(os.path.join(place, name)):
                raise InputError(
                    f"{os.path.join(place, name)} is a link to a folder: put the files themselves "
                    "there"
                )
        for name in names:
            if name.startswith(".") or not name.lower().endswith(SUFFIXES):
                continue
            inner = os.path.relpath(os.path.join(place, name), root).replace(os.sep, "/")
            try:
                found = os.stat(images.inside(root, inner))
            except OSError as error:
                raise InputError(
                    f"{os.path.join(place, name)} cannot be read ({error.strerror}): replace it, "
                    "or take it out of the folder"
                ) from error
            yield inner, found.st_size, found.st_mtime_ns


def _stem(root: Path) -> str:
    """What a cache for several folders tells them apart by."""
    real = os.path.realpath(root)
    return f"{os.path.basename(real)}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"


def _numbered(path: Path, inputs: Any, labels: Any, ids: Any) -> Source:
    if len(inputs) == 0:
        raise InputError(f"{path} holds no rows: check the file")
    names = list[Hashable](range(len(inputs)) if ids is None else _values(ids))
    answers = None if labels is None else _values(labels)
    for what, values in (("ids", names), ("labels", answers)):
        if values is not None and len(values) != len(inputs):
            raise InputError(
                f"{path} holds {len(inputs)} rows of inputs and {len(values)} {what}: one for each "
                "row is needed"
            )
    seen = set[Hashable]()
    for name in names:
        if name in seen:
            raise InputError(f"{path}: the id {name!r} is there twice: give each row its own")
        seen.add(name)
    return Source(inputs, names, answers)


def _values(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column)


def _joined(path: Path, columns: Mapping[str, Any]) -> Any:
    """One column as it is, several of numbers side by side [n d]."""
    if len(columns) == 1:
        return next(iter(columns.values()))
    texts = [name for name, values in columns.items() if not isinstance(values, np.ndarray)]
    if texts or not columns:
        found = f"{', '.join(texts)} of texts" if texts else "none"
        raise InputError(
            f"{path} must give one column of texts or some of numbers as inputs, among "
            f"{', '.join(columns)} is {found}: name the columns in inputs, or pass a frame and a "
            "pipeline that encodes it"
        )
    return np.column_stack([values.reshape(len(values), -1) for values in columns.values()])


def _used(
    path: Path, wanted: Sequence[str] | None, answers: set[str], there: Sequence[str]
) -> list[str]:
    """The columns to read: those wanted, or all, and the answers."""
    used = there if wanted is None else [*wanted, *sorted(answers)]
    for name in (*used, *answers):
        if name not in there:
            raise InputError(f"{path} has no column {name!r} but {', '.join(there)}: name another")
    return list(dict.fromkeys(used))


def _csv(path: Path, wanted: Sequence[str] | None, answers: set[str]) -> dict[str, Any]:
    """Columns of a CSV file: arrays where all of a column are numbers, lists of texts elsewhere."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if len(set(header)) < len(header) or not header:
                raise InputError(
                    f"{path} must begin with the names of its columns, each once, got "
                    f"{', '.join(header) or 'nothing'}: add such a line"
                )
            used = _used(path, wanted, answers, header)
            columns: list[list[str]] = [[] for _ in header]
            for row in reader:
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(header)} fields were expected, got "
                        f"{len(row)}: quote texts that hold commas"
                    )
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV in UTF-8 ({error}): save it so") from error
    named = dict(zip(header, columns, strict=True))
    return {name: named[name] if name in answers else _numbers(named[name]) for name in used}


def _numbers(values: list[str]) -> Any:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        return values


def _parquet(path: Path, wanted: Sequence[str] | None, answers: set[str]) -> dict[str, Any]:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise InputError(
            f"{path} is a Parquet file, which pyarrow reads: pip install pyarrow, or write a .csv "
            "or .npz file"
        ) from None
    try:
        used = _used(path, wanted, answers, parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=used)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}): write it again") from error

    def column(name: str) -> Any:
        kind = table.schema.field(name).type
        values = table[name].combine_chunks()
        if values.null_count:
            raise InputError(f"{path}: {name} has {values.null_count} empty values: fill them")
        if types.is_fixed_size_list(kind):
            flat = values.flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(len(values), kind.list_size)
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            return values.to_numpy(zero_copy_only=False)
        found = values.to_pylist()
        try:  # lists of numbers, all of one length
            return np.array(found, np.float64) if types.is_list(kind) else found
        except ValueError as error:
            raise InputError(f"{path}: {name} holds lists of several lengths: pad them") from error

    return {name: column(name) for name in table.column_names}


def _npz(path: Path, wanted: Sequence[str] | None, answers: set[str]) -> dict[str, Any]:
    used = _used(path, wanted, answers, _members(path))
    if wanted is None and len(others := [name for name in used if name not in answers]) > 1:
        raise InputError(  # one of them may be the labels, which must not be read as features
            f"{path} holds {', '.join(others)}: name the array that the model reads in inputs"
        )
    return {name: array("path", path, name) for name in used}


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}): write it with numpy.savez") from error


def _from_archive(argument: str, path: Path, name: str | None) -> NDArray[Any]:
    # Not numpy.load, which unpacks whatever the size.
    with zipfile.ZipFile(path) as archive:
        names = [file.removesuffix(".npy") for file in archive.namelist() if file.endswith(".npy")]
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            wanted = "one array" if name is None else f"an array {name!r}"
            raise InputError(
                f"{argument} must be {wanted}, but {path} holds {', '.join(names) or 'none'}: pick "
                f"one, as in {path}:{names[0] if names else 'name'}"
            )
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is packed in another way than numpy does")
        if member.file_size > UNPACKED:
            raise InputError(
                f"{argument}: {name} in {path} unpacks to {member.file_size:,} bytes, and no more "
                f"than {UNPACKED:,} are loaded: write it with numpy.save to a .npy file, which is "
                "read in pieces"
            )
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no file {path}: check the path")
