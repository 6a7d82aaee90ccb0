"""Files people bring, as rows with ids: folders of images, tables of texts or numbers, arrays."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from foresee.errors import InputError
from foresee.reading import decoded, images, kept, tables

# Names of files that are taken for images; what they are, their content must tell.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
# Where decoded images are kept, in the folder itself or beside the file, unless told otherwise.
CACHE = ".foresee-cache"
# Images that nothing here reads: named, for photos must not be passed over without a word.
_UNREAD = (".heic", ".heif", ".avif", ".jxl", ".jp2")


@dataclass(frozen=True, eq=False)
class Source:
    """Rows that were read from somewhere.

    Args:
        inputs: bytes [n channels height width] of images, floats [n d], an array [n ...], or n
            texts: a list, or of a large file `tables.Texts`, which reads those it is asked for.
        ids: what each row is called, n different ones: paths in the folder, values of the column
            that was named, or else the numbers of the rows from 0.
        labels: of each row, where a column was named or images lie in a sub-folder a class; None
            where the column is empty.
        origin: arguments with which `read` would read the same again.
    """

    inputs: Any
    ids: Sequence[Hashable]
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
    lazy: bool = False,
) -> Source:
    """Read a folder of images, or a .csv, .parquet, .npz or .npy file.

    Args:
        path: of the folder or the file.
        inputs: the columns of a table that a model reads: one of texts, or some of numbers, in the
            order that you name. By default all in the order of the file, but for ids, labels and
            the index of a frame. In a .npz file, the name of the array.
        labels: the column or the array of labels. Labels of a CSV file are texts as they stand.
        ids: the column or the array of ids.
        size: of images, (height, width) or the side of a square: what the network reads.
        channels: of images, 3 for colour and 1 for grey.
        cache: the folder for decoded images, and for what is in a large table or packed archive;
            by default ``.foresee-cache`` in the folder, or beside the file.
        advance: called with the number of images decoded and of all.
        lazy: decode each image when it is first asked for; a broken one is then black.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\n\\"dull, long\\",1\\n") > 0
    True
    >>> found = read("reviews.csv", labels="stars")
    >>> found.inputs, found.ids, found.labels
    (['fine', 'dull, long'], range(0, 2), ['5', '1'])
    """
    path = Path(path)
    named = {"inputs": inputs, "labels": labels, "ids": ids}
    if not path.is_dir():
        if path.is_file() and (lazy or size is not None or channels != 3):
            raise InputError(
                f"size, channels and lazy are for a folder of images, and {path} is a file: leave "
                "them out"
            )
        found = _table(path, inputs, labels, ids, Path(cache or path.parent / CACHE))
    elif used := [name for name, value in named.items() if value is not None]:
        raise InputError(
            f"{used[0]} names a column, and {path} is a folder of images, whose ids are their "
            f"paths and whose labels are its sub-folders: leave {used[0]} out"
        )
    else:
        found = folder(path, size, channels, cache, advance, lazy)
    place = None if cache is None else str(Path(cache).absolute())
    shape = None if size is None else found.inputs.shape[2:]
    how = {**named, "size": shape, "channels": channels, "cache": place, "lazy": lazy or None}
    origin = {"path": str(path.absolute()), **{k: v for k, v in how.items() if v is not None}}
    return replace(found, origin=origin)


def _table(
    path: Path,
    inputs: str | Sequence[str] | None,
    labels: str | None,
    ids: str | None,
    cache: Path,
) -> Source:
    wanted = [inputs] if isinstance(inputs, str) else inputs
    answers = sorted({name for name in (labels, ids) if name is not None})
    rows, found = tables.read(path, wanted, answers, cache)
    n = 0 if isinstance(rows, np.ndarray) and rows.ndim == 0 else len(rows)
    if n == 0:
        raise InputError(f"{path} holds no rows: check the file")
    for what, named in (("ids", ids), ("labels", labels)):
        if named is not None and getattr(found[named], "ndim", 1) != 1:
            shape = list(found[named].shape)
            how = ".ravel() of it" if shape[1:] == [1] else ".argmax(1) of one-hot rows"
            raise InputError(
                f"{path}: {what} must be one for each row, got {named!r} {shape}: name another"
                f"{f', or write the {how}' if what == 'labels' else ''}"
            )
    answer, name = (None if key is None else tables.plain(found[key]) for key in (labels, ids))
    if answer is not None:
        answer = [None if label == "" else label for label in answer]
    names: Sequence[Hashable] = range(n) if name is None else name
    for what, values in (("ids", names), ("labels", answer)):
        if values is not None and len(values) != n:
            raise InputError(
                f"{path} holds {n} rows of inputs and {len(values)} {what}: one for each row is "
                "needed"
            )
    if name is not None and len(set(names)) < n:
        twice = next(each for each, times in Counter(names).items() if times > 1)
        raise InputError(f"{path}: the id {twice!r} is there twice: give each row its own")
    return Source(rows, names, answer)


def folder(
    path: Path | str,
    size: int | tuple[int, int] | None,
    channels: int = 3,
    cache: Path | str | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
    lazy: bool = False,
) -> Source:
    """Read a folder of images: decoded once, at the network's size, and mapped from then on.

    Files count as images by their names (``SUFFIXES``) and are read by `images.read`; those of a
    camera that it cannot read, as .heic, count as broken. Others, and what is hidden, are passed
    over. Images are squeezed to the size. The decoded ones are used again while names, sizes and
    times of all files are the same.

    Args:
        path: a folder, with images in it, or a sub-folder for each class, as deep as you like.
        size: (height, width) or the side of a square.
        channels: 3 for colour, 1 for grey.
        cache: a folder for the decoded images; by default ``.foresee-cache`` in ``path``.
        advance: hears how many of all are decoded.
        lazy: decode an image when it is first asked for, instead of all now. A broken one, or a
            link out of the folder or to a folder, is then black, and not named before: see
            `decoded.Pictures`.

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
    try:
        height, width = map(index, size if isinstance(size, Iterable) else (size, size))
        fits = min(height, width) > 0 and channels in (1, 3)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"size must be one or two positive whole numbers and channels 1 or 3, got {size!r} and "
            f"{channels!r}: pass what the model reads"
        )
    files = sorted(_image_files(root, lazy))
    if not files:
        raise InputError(f"{root} holds no images ({', '.join(SUFFIXES)}): check the path")
    names = [name for name, _, _ in files]
    digest = hashlib.sha256(json.dumps([images.READER, files]).encode()).hexdigest()
    shape = (len(files), channels, height, width)
    stamp = {"shape": list(shape), "files": digest}
    file = Path(cache or root / CACHE) / f"{_stem(root)}-{channels}x{height}x{width}.npy"
    nested = all("/" in name for name in names)
    labels: list[Any] | None = [name.partition("/")[0] for name in names] if nested else None
    if lazy:
        # A name for each state of the folder: whoever has an older one open writes there.
        some = file.with_name(f"{file.stem}-{digest[:12]}.npy")
        pictures = decoded.Pictures(some, root, names, shape, stamp)
        return Source(pictures, list[Hashable](names), labels)
    if not decoded.is_ready(file, shape, stamp):
        where = "Or take it out of the folder"
        decoded.decode(file, root, names, shape, stamp, lambda row: where, advance)
    return Source(kept.open_array(file), list[Hashable](names), labels)


def image_names(path: Path, lazy: bool = False) -> list[str]:
    """Paths in a folder of the images that `folder` reads, sorted; none is decoded."""
    return sorted(name for name, *_ in _image_files(path, lazy))


def _image_files(root: Path, lazy: bool) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of the images in a folder.

    Links out of it and links to folders, which are never followed, are refused; or if ``lazy`` each
    is one image, which is broken.
    """

    def refused(path: str, error: OSError, remedy: str) -> InputError:
        return InputError(f"{path} cannot be read ({error.strerror}): {remedy}")

    places = [""]
    while places:
        place = places.pop()
        try:
            found = list(os.scandir(os.path.join(root, place)))
        except OSError as error:
            raise refused(error.filename, error, "mend its rights") from error
        for entry in found:
            if entry.name.startswith("."):
                continue
            inner = f"{place}/{entry.name}" if place else entry.name
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if is_folder and not entry.is_symlink():
                places.append(inner)
            elif is_folder and lazy:
                yield inner, 0, 0
            elif is_folder:
                raise InputError(
                    f"{entry.path} is a link to a folder: put the files themselves there"
                )
            elif entry.name.lower().endswith(SUFFIXES + _UNREAD):
                try:
                    linked = entry.is_symlink()
                    size = os.stat(images.inside(root, inner)) if linked else entry.stat()
                except (InputError, OSError) as error:
                    if lazy:
                        yield inner, 0, 0
                        continue
                    if isinstance(error, InputError):
                        raise
                    remedy = "replace it, or take it out of the folder"
                    raise refused(entry.path, error, remedy) from error
                yield inner, size.st_size, size.st_mtime_ns


def _stem(root: Path) -> str:
    """What a cache for several folders tells them apart by."""
    real = os.path.realpath(root)
    return f"{os.path.basename(real)}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"
