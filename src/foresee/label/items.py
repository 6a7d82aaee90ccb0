"""What there is to label, by number: clients never name a file."""

import io
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np
from PIL import Image

from foresee.errors import InputError
from foresee.learner.pool import Named
from foresee.learner.record import Id
from foresee.reading import images, sources, tables

_TEXT, _FIELDS = 20_000, 200  # characters of a text and values of a row that are shown
_SMALL = 256  # pixels of the side below which an image is sent without loss
DECODERS = 2  # images at once: each may need the memory of the largest
_TURN = BoundedSemaphore(DECODERS)


@dataclass(frozen=True)
class Spec:
    """What to label and how, as plain values that another process can be told.

    Args:
        pool: a folder of images, or a .csv, .parquet, .npz or .npy file.
        target: likewise, a sample of what the model will meet; None: the pool is it.
        inputs: columns of a table that a model reads.
        ids: the column of ids.
        size: the side that images are squeezed to for the model.
        model: None for a model that suits the data, a folder of a transformers or timm image model,
            torchvision:NAME, or file.py:build.
        seed: of everything random.
        holdout: the share of questions that measure accuracy.
        batch: how many items are chosen at once.
    """

    pool: str
    target: str | None = None
    inputs: tuple[str, ...] | None = None
    ids: str | None = None
    size: int = 32
    model: str | None = None
    seed: int = 0
    holdout: float = 0.1
    batch: int = 10

    def read(self, path: str, names_only: bool = False) -> sources.Source:
        """Rows of the pool or the target; of images the names alone, if these are enough."""
        folder = Path(path).is_dir()
        place = path if folder else Path(path).parent
        cache = None if os.access(place, os.W_OK) else sources.CACHE
        if not folder:
            return sources.read(path, inputs=self.columns(path), ids=self.ids, cache=cache)
        if self.inputs or self.ids:
            raise InputError(f"--inputs and --ids are columns, and {path} is a folder of images")
        if not names_only:
            return sources.read(path, size=self.size, lazy=True, cache=cache)
        names = sources.image_names(Path(path), lazy=True)
        if not names:
            raise InputError(
                f"{path} holds no images ({', '.join(sources.SUFFIXES)}): check the path"
            )
        return sources.Source(names, names)

    def columns(self, path: str) -> list[str] | None:
        """Columns that a model reads, where a table names them: of the target those of the pool."""
        if self.inputs:
            return list(self.inputs)
        own, pool = (tables.names(Path(table), {self.ids}) for table in (path, self.pool))
        return pool if own and pool and len(pool) > 1 else own


class Items:
    """The pool, and the target behind it, as people see them.

    Args:
        spec: what to label.

    >>> _ = Path("two.csv").write_text("text\\ngood\\nbad\\n")
    >>> items = Items(Spec("two.csv"))
    >>> items.show(1)
    {'item': 1, 'name': '1', 'kind': 'text', 'text': 'bad'}
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.pool = Named.read("pool", spec.read(spec.pool, names_only=True), None)
        self.target = None
        if spec.target is not None:
            self.target = Named.read("target", spec.read(spec.target, names_only=True), None)
        paths = [path for path in (spec.pool, spec.target) if path]
        self._columns = {path: spec.columns(path) for path in paths}
        self._folders = {path for path in paths if Path(path).is_dir()}  # and if they vanish, too
        # Numbers mean the same items in all processes that know the same files, and in no other.
        sides = [side for side in (self.pool, self.target) if side]
        every = [self._look(side, path) for side, path in zip(sides, paths, strict=True)]
        self.edition = f"{zlib.crc32(repr(every).encode()):08x}"
        kind, other = (self.show(number)["kind"] for number in (0, len(self) - 1))
        if kind != other:
            raise InputError(
                f"--target {spec.target} is of {other}s, and the pool {spec.pool} of {kind}s: pass "
                f"one of {kind}s"
            )

    def __len__(self) -> int:
        return len(self.pool) + (len(self.target) if self.target else 0)

    def _look(self, side: Named, path: str) -> list[Any]:
        """What tells a side from another, most likely: images of the same names, too."""
        found = [len(side) if side.numbered else list(side.ids), side.look()]
        for place in np.linspace(0, len(side) - 1, 8).astype(int) if path in self._folders else ():
            with suppress(OSError):
                file = os.stat(Path(path, side.rows[place]))
                found += [file.st_size, file.st_mtime_ns]
        return [os.path.realpath(path), *found]

    def __contains__(self, name: Id) -> bool:
        return name in self.pool.places or (self.target is not None and name in self.target.places)

    def number(self, name: Id) -> int:
        """The number of an id."""
        if name in self.pool.places:
            return self.pool.places[name]
        assert self.target is not None
        return len(self.pool) + self.target.places[name]

    def id(self, number: int) -> Id:
        """The id of a number."""
        side, place, _ = self.find(number)
        return side.ids[place]

    def show(self, number: int) -> dict[str, Any]:
        """What the page shows of an item, as JSON has it."""
        side, place, path = self.find(number)
        # A file's name may be bytes that are no text.
        name = str(side.ids[place]).encode(errors="backslashreplace").decode()
        shown: dict[str, Any] = {"item": number, "name": name}
        if path in self._folders:
            return shown | {"kind": "image", "src": f"/image/{self.edition}/{number}"}
        if isinstance(side.rows[place], str):
            return shown | {"kind": "text", "text": side.rows[place][:_TEXT]}
        # All digits, as shortly as numpy has it: a date or an amount differs in its last ones.
        values = np.asarray(side.rows[place]).ravel()
        fields = zip(self.content(number), values, strict=True)
        found = [[name, str(value).removesuffix(".0")] for name, value in fields]
        return shown | {"kind": "row", "fields": found[:_FIELDS]}

    def content(self, number: int) -> dict[str, Any]:
        """The whole of a text, as ``text``, or of a row, by the names of its columns."""
        side, place, path = self.find(number)
        row = side.rows[place]
        if isinstance(row, str):
            return {"text": row}
        values = np.asarray(row).ravel().tolist()
        names = self._columns[path] or []
        if len(names) != len(values):  # of an array, or of lists
            names = [str(i) for i in range(len(values))]
        return dict(zip(names, values, strict=True))

    def picture(self, number: int, side: int) -> tuple[bytes, str]:
        """An image as a browser reads it, and its type; no file goes out as it lies on the disk.

        Raises:
            InputError: it is broken, too large, no image, or a link out of the folder.
        """
        rows, place, path = self.find(number)
        if path not in self._folders:
            raise InputError(f"item {number} is no image")
        with _TURN:
            pixels = images.read(images.inside(path, rows.rows[place]))
            image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
            image.thumbnail((side, side), Image.Resampling.BILINEAR)
        content = io.BytesIO()
        if max(image.size) <= _SMALL:
            image.save(content, "PNG")
            return content.getvalue(), "image/png"
        image.save(content, "JPEG", quality=88)
        return content.getvalue(), "image/jpeg"

    def find(self, number: int) -> tuple[Named, int, str]:
        """Where an item is: its side, its place there, and the path that side was read from."""
        if not 0 <= number < len(self):
            raise InputError(f"there is no item {number}: reload the page")
        if number < len(self.pool):
            return self.pool, number, self.spec.pool
        assert self.target is not None
        assert self.spec.target is not None
        return self.target, number - len(self.pool), self.spec.target


def flat(name: str) -> str:
    """A path as the name of one file.

    >>> flat("2024/may/1.png")
    '2024__may__1.png'
    """
    return name.replace("/", "__")
