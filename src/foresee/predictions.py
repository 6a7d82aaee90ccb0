"""Files of predictions, read in pieces: one file or many, of arrays or of tables.

    .npy, .pt    an array [n t c], mapped, of any size; file.pt:name picks a tensor of a dict
    .npz         an array, mapped if it is not packed; file.npz:name picks one of several
    .csv         a column for every draw and class, named draw:class, as in 0:cat,0:dog,1:cat,1:dog
    .parquet     the same columns, or one that holds lists [t c], or bytes as `to_arrow` packs them:
                 file.parquet:name picks it

A pattern such as ``pool-*.npy`` stands for all files that match it, in the order of their names.
"""

import glob
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.reading import archives, fields

_NAMED = re.compile(r"(.+\.(?i:npz|pt|csv|parquet)):([^/]+)")
_COLUMN = re.compile(r" *(\d+):(.+)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One file: shape and kind of what it holds, the classes and draws that it names, its pieces.

    ``pieces(rows)`` gives all of it, at most so many rows at a time.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[int], Iterator[NDArray[Any]]]
    classes: tuple[str, ...] | None = None
    draws: tuple[int, ...] | None = None
    mapped: Any = None


class Places(NamedTuple):
    """What rows are called: by their number, after the name of their file if there are several."""

    files: list[str]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, argument: str, paths: Sequence[str], sizes: Sequence[int]) -> "Places":
        """Of files of these sizes, called by as much of their paths as tells them apart."""
        for parts in range(1, max(path.count("/") for path in paths) + 2):
            files = ["/".join(path.split("/")[-parts:]) for path in paths]
            if len(set(files)) == len(files):
                return cls(files, np.cumsum([0, *sizes]))
        raise InputError(f"{argument} names a file twice: pass each once")

    def place(self, position: int) -> str:
        """The name of a row."""
        which = int(np.searchsorted(self.starts, position, side="right")) - 1
        row = str(position - self.starts[which])
        return f"{self.files[which]}:{row}" if len(self.files) > 1 else row

    def position(self, place: str) -> int:
        """The row that `place` calls so, or -1 where it calls none so."""
        file, _, row = place.rpartition(":")
        known = file in self.files if len(self.files) > 1 else not file
        if not known or not row.isdecimal():
            return -1
        which = self.files.index(file) if file else 0
        position = int(self.starts[which]) + int(row)
        is_row = position < self.starts[which + 1] and self.place(position) == place  # not 007
        return position if is_row else -1


@dataclass(frozen=True)
class Predictions:
    """Predictions [n t c] or [n c] in files, one after the other.

    Args:
        argument: what the caller calls them.
        files: each as ``path`` or ``path:name``.
        sizes: how many rows each has.
        shape: of all rows together.
        dtype: that holds the numbers of all files.
        classes: their names, where files tell them.
        draws: their numbers, likewise.

    >>> np.save("a.npy", np.full((3, 2, 2), 0.5))
    >>> pool = read("--pool", "a*.npy")
    >>> pool.shape, pool.take(np.array([2, 0])).shape, [len(piece) for piece in pool.pieces(2)]
    ((3, 2, 2), (2, 2, 2), [2, 1])
    """

    argument: str
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    classes: tuple[str, ...] | None
    draws: tuple[int, ...] | None = None
    _only: Part | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def form(self) -> NDArray[Any]:
        """An array of the same shape and kind, without the numbers and their memory."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def pieces(self, rows: int) -> Iterator[NDArray[Any]]:
        """All predictions, at most so many rows at a time and never of two files."""
        for source in self.files:
            part = self._part(source)
            with _reading(self.argument, source):
                for piece in part.pieces(rows):
                    yield piece
                    _release_pages(part.mapped)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The rows at these positions [k], in their order; of mapped files only these are read."""
        found = np.empty((len(positions), *self.shape[1:]), self.dtype)
        starts = self._places.starts
        for source, first, last in zip(self.files, starts, starts[1:], strict=False):
            wanted = np.flatnonzero((positions >= first) & (positions < last))
            if not len(wanted):
                continue
            part, local = self._part(source), positions[wanted] - first
            with _reading(self.argument, source):
                if part.mapped is not None:
                    # A row brings its neighbours along, up to 64 KiB on Linux: few at a time.
                    for some in np.array_split(np.arange(len(local)), len(local) // 256 + 1):
                        found[wanted[some]] = arrays.numpy(part.mapped[local[some]])
                        _release_pages(part.mapped)
                    continue
                start = 0
                for piece in part.pieces(1 << 14):
                    here = (local >= start) & (local < start + len(piece))
                    found[wanted[here]] = piece[local[here] - start]
                    start += len(piece)
        return found

    def all(self) -> NDArray[Any]:
        """All of them, in memory."""
        return self.take(np.arange(len(self)))

    def place(self, position: int) -> str:
        """Where a row is: its number, after the name of its file where there are several."""
        return self._places.place(position)

    def position(self, place: str) -> int:
        """The row that `place` calls so, or -1 where it calls none so."""
        return self._places.position(place)

    @cached_property
    def _places(self) -> Places:
        paths = [split(source)[0].as_posix() for source in self.files]
        return Places.of(self.argument, paths, self.sizes)

    def _part(self, source: str) -> Part:
        return self._only or _open(self.argument, source)


def read(argument: str, source: str) -> Predictions:
    """Look at a file or at all files of a pattern; only archives are loaded.

    Args:
        argument: what the caller calls it, for messages.
        source: ``file``, ``file:name`` or a pattern of either.
    """
    files = expand(argument, source)
    first = _open(argument, files[0])
    sizes, dtype = [first.shape[0] if first.shape else 0], first.dtype
    for other in files[1:]:
        part = _open(argument, other)
        if _form(part) != _form(first):
            raise InputError(
                f"{argument}: all files must have the same draws, classes and kind of numbers, but "
                f"{files[0]} is {_told(first)} and {other} is {_told(part)}: write them alike"
            )
        sizes.append(part.shape[0])
        dtype = np.result_type(dtype, part.dtype)
    shape = (sum(sizes), *first.shape[1:]) if first.shape else ()
    only = first if len(files) == 1 else None
    about = argument, tuple(files), tuple(sizes), shape, dtype
    return Predictions(*about, first.classes, first.draws, only)


def expand(argument: str, source: str) -> list[str]:
    """The files that a pattern stands for, each as ``path`` or ``path:name``; a file is itself."""
    path, name = split(source)
    if path.exists() or not glob.has_magic(str(path)):
        return [source]
    found = sorted(file for file in glob.glob(str(path)) if Path(file).is_file())
    if not found:
        raise InputError(f"{argument}: no file matches {path}: check the pattern")
    return [f"{file}:{name}" if name else file for file in found]


def split(source: str) -> tuple[Path, str | None]:
    """``file:name`` in two, where a file of its kind can hold what a name picks.

    >>> split("draws.npz:pool")[1], split("draws.npy")[1]
    ('pool', None)
    """
    named = None if Path(source).exists() else _NAMED.fullmatch(source)
    return (Path(named[1]), named[2]) if named else (Path(source), None)


def names(argument: str, source: str) -> Iterator[str]:
    """Names in files, one after the other: read as they are asked for, never all at once.

    A .txt file has one in every line, a .npy file is an array of texts or whole numbers, and a .csv
    or .parquet file has a column of them, called ``id`` or as in ``file.csv:column``.

    >>> Path("ids.txt").write_text("a\\nb\\n") > 0
    True
    >>> list(names("--ids", "ids.txt"))
    ['a', 'b']
    """
    for file in expand(argument, source):
        path, column = split(file)
        check_file(argument, path)
        reader = _NAMES.get(path.suffix.lower())
        if reader is None:
            raise InputError(
                f"{argument} must be a {', '.join(_NAMES)} file, got {path}: write one name a line "
                "to a .txt file"
            )
        with _reading(argument, file):
            yield from reader(argument, path, column or "id")


def has_column(source: str, name: str) -> bool:
    """Whether a table, the first of a pattern, has a column of this name."""
    path, _ = split(expand("", source)[0])
    if path.suffix.lower() == ".csv" and path.is_file():
        with fields.csv_rows(path) as table:
            return name in next(table, [])
    if path.suffix.lower() == ".parquet" and path.is_file():
        return name in _parquet_file("", path).schema_arrow.names
    return False


def check_file(argument: str, path: Path) -> None:
    """Check that there is such a file, and that it is one."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{argument} must be a file, but {path} is a folder: name a file in it")
    if path.exists():
        raise InputError(
            f"{argument}: {path} is not a regular file: write what it delivers into one first"
        )
    raise InputError(f"{argument}: there is no file {path}: check the path")


def told_draws(draws: Sequence[int]) -> str:
    """Numbers of draws in words, of many the first and the last.

    >>> told_draws((0, 1)), told_draws((0, 2, 3, 9))
    ('0, 1', '0, 2, …, 9')
    """
    some = [*draws[:2], "…", draws[-1]] if len(draws) > 3 else draws
    return ", ".join(map(str, some))


def _form(part: Part) -> tuple[Any, ...]:
    return part.shape[1:], part.classes, part.draws, part.dtype.kind


def _told(part: Part) -> str:
    classes = f" of {', '.join(part.classes)}" if part.classes else ""
    draws = f", draws {told_draws(part.draws)}" if part.draws else ""
    return f"{part.dtype} {list(part.shape)}{classes}{draws}"


def _open(argument: str, source: str) -> Part:
    path, name = split(source)
    check_file(argument, path)
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise InputError(
            f"{argument} must be a {', '.join(_OPENERS)} file, got {path}: write a .npy file with "
            "numpy.save"
        )
    with _reading(argument, source):
        return opener(argument, path, name)


@contextmanager
def _reading(argument: str, source: str) -> Iterator[None]:
    try:
        yield
    except (InputError, GeneratorExit):
        raise
    except Exception as error:  # a damaged file raises ValueError, BadZipFile, MemoryError, ...
        path, reason = split(source)[0], (str(error) or type(error).__name__).splitlines()[0]
        how = _WRITERS.get(path.suffix.lower(), "in UTF-8")
        raise InputError(
            f"{argument}: {path} cannot be read ({reason}): it is damaged or of another kind; "
            f"write it again {how}"
        ) from error


def _array_part(array: Any, mapped: bool) -> Part:
    """A NumPy array or a tensor."""

    def pieces(rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, len(array), rows):
            yield arrays.numpy(array[start : start + rows])

    kind = arrays.numpy(array[:0]).dtype if array.ndim else arrays.numpy(array).dtype
    return Part(tuple(array.shape), kind, pieces, mapped=array if mapped else None)


def _numpy(argument: str, path: Path, name: str | None) -> Part:
    found = archives.array(argument, path, name)
    return _array_part(found, mapped=isinstance(found, np.memmap))


def _pt(argument: str, path: Path, name: str | None) -> Part:
    from torch import Tensor, load

    content = load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, Tensor):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
        content = tensors[_chosen(argument, path, "tensor", name, list(tensors))]
    return _array_part(content.detach(), mapped=True)


def _chosen(argument: str, path: Path, kind: str, name: str | None, held: Sequence[str]) -> str:
    if name is None and len(held) == 1:
        return held[0]
    if name not in held:
        article = "an" if kind[0] in "aeiou" else "a"
        wanted = f"one {kind}" if name is None else f"{article} {kind} {name!r}"
        raise InputError(
            f"{argument} must be {wanted}, but {path} holds {', '.join(held) or 'none'}: pick one, "
            f"as in {path}:{held[0] if held else 'name'}"
        )
    return str(name)


def _csv(argument: str, path: Path, name: str | None) -> Part:
    with fields.csv_rows(path) as table:
        header: list[str] = next(table, [])
        columns, classes, draws = _columns(argument, path, header)
        n = sum(1 for row in table if row)

    def pieces(rows: int) -> Iterator[NDArray[Any]]:
        with fields.csv_rows(path) as table:
            next(table)
            lines = ((table.line_num, row) for row in table if row)
            while block := list(islice(lines, rows)):
                values = [_floats(argument, path, line, row, header) for line, row in block]
                yield np.array(values)[:, columns].reshape(len(block), *columns.shape)

    return Part((n, *columns.shape), np.dtype(np.float64), pieces, classes, draws)


def _floats(argument: str, path: Path, line: int, row: list[str], header: list[str]) -> Any:
    _check_fields(argument, path, line, row, header)
    values = []
    for field, column in zip(row, header, strict=True):
        try:
            values.append(float(field) if _COLUMN.fullmatch(column) else 0.0)
        except ValueError:
            raise InputError(
                f"{argument}: {path}, line {line}: {column} must be a probability, got {field!r}"
            ) from None
    return values


def _check_fields(
    argument: str, path: Path, line: int, row: Sequence[str], header: Sequence[str]
) -> None:
    if len(row) != len(header):
        raise InputError(
            f"{argument}: {path}, line {line} has {len(row)} fields, and the first line has "
            f"{len(header)}: give every line as many"
        )


def _columns(
    argument: str, path: Path, header: Sequence[str]
) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[int, ...]]:
    """Where the columns ``draw:class`` are [t c], or [c] for one draw; the classes, the draws."""
    found = [_COLUMN.fullmatch(column) for column in header]
    where = {(int(m[1]), m[2]): place for place, m in enumerate(found) if m}
    classes = tuple(dict.fromkeys(name for _, name in where))
    draws = sorted({draw for draw, _ in where})
    if not where or len(where) != len(draws) * len(classes) or len(where) < sum(map(bool, found)):
        raise InputError(
            f"{argument}: {path} must have a column for every draw and class, each once, named "
            "draw:class, as in 0:cat,0:dog,1:cat,1:dog; got "
            f"{', '.join(header[:6]) or 'an empty file'}{', …' if len(header) > 6 else ''}"
        )
    places = np.array([[where[draw, name] for name in classes] for draw in draws])
    return (places if len(draws) > 1 else places[0]), classes, tuple(draws)


def _parquet_file(argument: str, path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{argument}: {path} needs pyarrow to be read: pip install pyarrow, or write a .npy"
        ) from None
    return parquet.ParquetFile(path, memory_map=True)


def _parquet(argument: str, path: Path, name: str | None) -> Part:
    file = _parquet_file(argument, path)
    header, n = file.schema_arrow.names, file.metadata.num_rows
    fields = [f.name for f in file.schema_arrow if holds_rows(f)]
    if name is None and not fields:
        places, classes, draws = _columns(argument, path, header)
        wanted = [header[place] for place in places.flat]

        def pieces(rows: int) -> Iterator[NDArray[Any]]:
            for batch in file.iter_batches(rows, columns=wanted):
                values = [batch.column(c).to_numpy(zero_copy_only=False) for c in wanted]
                yield np.stack(values, 1).reshape(len(batch), *places.shape)

        first = next(pieces(1), np.empty(0))
        return Part((n, *places.shape), first.dtype, pieces, classes, draws)
    column = _chosen(argument, path, "column of lists", name, fields)

    def nested(rows: int) -> Iterator[NDArray[Any]]:
        for batch in file.iter_batches(rows, columns=[column]):
            yield from_arrow(argument, path, batch, column)

    first = next(nested(1), np.empty((0, 0, 0)))
    return Part((n, *first.shape[1:]), first.dtype, nested)


def to_arrow(**columns: Any) -> Any:
    """Make a table whose arrays of rows are packed as bytes, which Parquet reads fastest.

    Args:
        columns: by their names. Arrays [n …] of two axes or more are packed, such as predictions
            [n t c], for which float16 is precise enough; others are as pyarrow reads them.

    Returns:
        A pyarrow.Table; ``pyarrow.parquet.write_table`` writes it. The metadata of a packed field
        tell the shape of a row and the kind of its numbers.
    """
    import pyarrow

    fields, found = [], []
    for name, values in columns.items():
        about = None
        if getattr(values, "ndim", 1) > 1:
            rows = np.ascontiguousarray(arrays.numpy(values, name))
            kind = pyarrow.binary(rows.itemsize * int(np.prod(rows.shape[1:])))
            packed = pyarrow.py_buffer(rows)
            values = pyarrow.Array.from_buffers(kind, len(rows), [None, packed])
            about = {"shape": ",".join(map(str, rows.shape[1:])), "dtype": rows.dtype.str}
        found.append(pyarrow.array(values))
        fields.append(pyarrow.field(name, found[-1].type, metadata=about))
    return pyarrow.table(found, schema=pyarrow.schema(fields))


def holds_rows(field: Any) -> bool:
    """Whether a field of pyarrow holds lists, tensors, or what `to_arrow` packs."""
    return "list" in str(field.type) or hasattr(field.type, "shape") or _is_packed(field)


def _is_packed(field: Any) -> bool:
    return str(field.type).startswith("fixed_size_binary") and b"shape" in (field.metadata or {})


def from_arrow(argument: str, source: Any, batch: Any, name: str) -> NDArray[Any]:
    """A column of lists, of lists of lists, of tensors or of packed rows as an array [n …]."""
    field, values = batch.schema.field(name), batch.column(name)
    if hasattr(field.type, "shape"):  # a tensor, of pyarrow or of Ray
        whole = getattr(values, "to_numpy_ndarray", None)
        return np.asarray(whole() if whole else values.to_numpy(zero_copy_only=False))
    if not _is_packed(field):
        return _unnested(argument, source, values)
    if values.null_count:
        raise InputError(f"{argument}: {source} has rows without {name}: leave them out")
    shape = [int(size) for size in field.metadata[b"shape"].decode().split(",") if size]
    kind = np.dtype(field.metadata[b"dtype"].decode())
    if kind.itemsize * int(np.prod(shape)) != field.type.byte_width:
        raise InputError(
            f"{argument}: {source} says that {name} has rows {shape} of {kind}, but each has "
            f"{field.type.byte_width} bytes: write it again with foresee.predictions.to_arrow"
        )
    start = values.offset * field.type.byte_width
    flat = np.frombuffer(values.buffers()[1], np.uint8)[start:][
        : len(values) * field.type.byte_width
    ]
    return flat.view(kind).reshape(len(values), *shape)


def texts(argument: str, source: Any, batch: Any, name: str) -> list[str]:
    """A column of a pyarrow.RecordBatch as texts, which bytes are in UTF-8."""
    values = batch.column(name).to_pylist()
    if None in values:
        raise InputError(f"{argument}: {source} has rows without {name}: give each its own")
    try:
        return [v.decode() if isinstance(v, bytes) else str(v) for v in values]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{argument}: {source} must hold texts in {name}, got bytes that are not UTF-8, "
            f"{error.object[:16]!r}: write their .hex() there"
        ) from None


def _unnested(argument: str, path: Any, values: Any) -> NDArray[Any]:
    """A column of lists of lists of numbers as an array [n t c]."""
    shape, n = [len(values)], len(values)
    while "list" in str(values.type):
        inner = values.flatten()
        lengths = {len(entry) for entry in values}
        if len(lengths) > 1 or values.null_count:
            raise InputError(
                f"{argument}: {path} must hold lists of one length, got {sorted(lengths)}"
            )
        shape.append(len(inner) // max(1, n))
        values, n = inner, len(inner)
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _release_pages(mapped: Any) -> None:
    """Give back what was read of a mapped file: it would count as ours until memory runs short."""
    pages: Any = getattr(mapped, "base", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _text_names(argument: str, path: Path, column: str) -> Iterator[str]:
    with open(path, encoding="utf-8-sig") as file:
        yield from (line.rstrip("\n") for line in file)


def _csv_names(argument: str, path: Path, column: str) -> Iterator[str]:
    with fields.csv_rows(path) as table:
        header: list[str] = next(table, [])
        if column not in header:
            raise _no_column(argument, path, column, header)
        place = header.index(column)
        for row in table:
            if row:
                _check_fields(argument, path, table.line_num, row, header)
                yield row[place]


def _npy_names(argument: str, path: Path, column: str) -> Iterator[str]:
    found = np.lib.format.open_memmap(path, mode="r")
    if found.ndim != 1 or found.dtype.kind not in "iuU":
        raise InputError(
            f"{argument}: {path} must hold texts or whole numbers [n], got {found.dtype} "
            f"{list(found.shape)}"
        )
    for start in range(0, len(found), 1 << 16):
        yield from map(str, found[start : start + (1 << 16)].tolist())


def _parquet_names(argument: str, path: Path, column: str) -> Iterator[str]:
    file = _parquet_file(argument, path)
    if column not in file.schema_arrow.names:
        raise _no_column(argument, path, column, file.schema_arrow.names)
    for batch in file.iter_batches(1 << 16, columns=[column]):
        yield from texts(argument, path, batch, column)


def _no_column(argument: str, path: Path, column: str, header: Sequence[str]) -> InputError:
    there = ", ".join(header[:6]) + (", …" if len(header) > 6 else "")
    return InputError(
        f"{argument}: {path} has no column {column!r} but {there or 'none'}: name one, as in "
        f"{path}:{header[0] if header else 'column'}"
    )


_WRITERS = {
    ".npy": "with numpy.save",
    ".pt": "with torch.save, as a tensor",
    ".parquet": "with pyarrow",
}
_OPENERS = {".npy": _numpy, ".npz": _numpy, ".pt": _pt, ".csv": _csv, ".parquet": _parquet}
_NAMES = {".txt": _text_names, ".csv": _csv_names, ".npy": _npy_names, ".parquet": _parquet_names}
