"""Tables and archives of arrays: small ones are loaded, large ones are mapped.

What can be mapped as it lies is: a .npy file, an array that is stored in a .npz file as it is. All
else that is large (a CSV or Parquet file, a packed array) is written once, in pieces, into an array
on disk, which is mapped from then on.
"""

import csv
import hashlib
import json
import shutil
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, kept
from foresee.errors import InputError

# Bytes of a table or of an array in an archive that are loaded; what is larger is mapped.
LOADED = 64 << 20
# Bytes of a packed array that are loaded where nothing may be written.
UNPACKED = 1 << 30
_BLOCK = 2 << 20  # bytes of a table that are read at once
_FIELD = 64  # bytes of a text in Python, beside its own
_BYTE = np.dtype("S1")  # of texts: no column of numbers is of this type

# Columns by name: arrays of numbers, lists of texts.
Columns: TypeAlias = dict[str, Any]


class Texts(arrays.OnDisk):
    """Texts in a file, read when they are asked for: one by its position, several as a list.

    The file is an array of bytes: all texts in UTF-8, where each begins and the last ends, and how
    many they are.
    """

    def __init__(self, content: NDArray[Any]) -> None:
        self._bytes = content
        n = int(self._bytes[-8:].view("<i8")[0])
        self._ends = self._bytes[-8 * (n + 2) : -8].view("<i8")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, key: Any) -> Any:
        found = np.arange(len(self))[key]
        if found.ndim == 0:
            return self._text(int(found))
        return [self._text(position) for position in found.tolist()]

    def _text(self, position: int) -> str:
        start, stop = self._ends[position : position + 2].tolist()
        return self._bytes[start:stop].tobytes().decode()


def read(
    path: Path, wanted: Sequence[str] | None, answers: Sequence[str], cache: Path
) -> tuple[Any, Columns]:
    """Read inputs, and the columns of answers, from a .csv, .parquet, .npz or .npy file.

    Args:
        path: of the file.
        wanted: columns that are inputs; None: all but the answers and the index of a frame.
        answers: columns that are ids or labels, which are loaded.
        cache: the folder where large files are unpacked.

    Returns:
        An array [n ...], a list of n texts, or `Texts`; and the answers by name.
    """
    check_file(path)
    kind = path.suffix.lower()
    if kind == ".npy":
        return array("path", path), {}
    if kind == ".npz":
        return _read_npz(path, wanted, answers, cache)
    reader = _READERS.get(kind)
    if reader is None:
        raise InputError(
            f"{path} must be a folder of images, or a .csv, .parquet, .npz or .npy file: convert it"
        )
    table = reader(path, wanted, set(answers))
    inputs = [name for name in table.used if (name in wanted if wanted else name not in answers)]
    if table.size <= LOADED:
        found = table.columns()
        return _joined(path, {name: found[name] for name in inputs}), found
    return _unpacked(table, inputs, answers, cache)


def columns(path: Path) -> Columns:
    """All columns of a .csv or .parquet file but a frame's index, or arrays of a .npz file, loaded.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\n") > 0
    True
    >>> columns(Path("reviews.csv"))
    {'text': ['fine'], 'stars': array([5.])}
    """
    check_file(path)
    if path.suffix.lower() == ".npz":
        return {name: array("path", path, name) for name in _members(path)}
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} must be a .csv, .parquet or .npz file: convert it")
    return reader(path, None, set()).columns()


def names(path: Path, answers: Container[str | None]) -> list[str] | None:
    """The columns of a .csv or .parquet file that are inputs where none are named; of others None.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\n") > 0
    True
    >>> names(Path("reviews.csv"), {"stars"})
    ['text']
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None or not path.is_file():
        return None
    return [name for name in reader(path, None, set()).used if name not in answers]


def array(argument: str, path: Path, name: str | None = None) -> NDArray[Any]:
    """A .npy file, mapped, or an array of a .npz file by its name, or the only one.

    Of an archive it is loaded where it is small or packed, and else mapped.
    """
    check_file(path)
    try:
        if path.suffix.lower() == ".npy":
            return kept.open_array(path)
        return _from_archive(argument, path, name)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises ValueError, BadZipFile, MemoryError, ...
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{argument}: {path} cannot be read ({reason}): it is damaged or holds no plain array; "
            "write it again with numpy.save"
        ) from error


def check_file(path: Path) -> None:
    """Refuse what is no file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: check the path")


class _Csv:
    """Columns of a CSV file: arrays where all of a column are numbers, lists of texts elsewhere."""

    def __init__(self, path: Path, wanted: Sequence[str] | None, answers: set[str]) -> None:
        self.path, self._answers, self.size = path, answers, path.stat().st_size
        header = next(self._rows(), [])
        if len(set(header)) < len(header) or not header:
            raise InputError(
                f"{path} must begin with the names of its columns, each once, got "
                f"{', '.join(header) or 'nothing'}: add such a line"
            )
        self._header, self.used = header, _used(path, wanted, answers, header)

    def columns(self) -> Columns:
        """All of them, loaded."""
        found: Columns = {name: [] for name in self.used}
        for block in self._texts():
            for name in self.used:
                found[name] += block[name]
        return {name: v if name in self._answers else _numbers(v) for name, v in found.items()}

    def blocks(self) -> Iterator[Columns]:
        """All of them, some rows at a time; a first pass finds which are numbers."""
        numeric = {name for name in self.used if name not in self._answers}
        for block in self._texts() if numeric else ():
            numeric = {name for name in numeric if not isinstance(_numbers(block[name]), list)}
        for block in self._texts():
            yield {name: _numbers(v) if name in numeric else v for name, v in block.items()}

    def _texts(self) -> Iterator[dict[str, list[str]]]:
        places, rows = [self._header.index(name) for name in self.used], self._rows()
        next(rows)
        for some in _blocks(rows):
            columns = list(zip(*some, strict=True))
            yield {self._header[place]: list(columns[place]) for place in places}

    def _rows(self) -> Iterator[list[str]]:
        """The header and all rows, each of as many fields."""
        fields = 0
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                for row in filter(None, reader):
                    fields = fields or len(row)
                    if len(row) != fields:
                        raise InputError(
                            f"{self.path}, line {reader.line_num}: {fields} fields were expected, "
                            f"got {len(row)}: quote texts that hold commas"
                        )
                    yield row
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path} cannot be read as CSV in UTF-8 ({error}): save it so, or as .parquet"
            ) from error


def _blocks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    """Rows, so many at a time that they take ``_BLOCK`` bytes."""
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += sum(map(len, row)) + _FIELD * len(row)
        if size >= _BLOCK:
            yield some
            some, size = [], 0
    if some:
        yield some


class _Parquet:
    """Columns of a Parquet file: arrays of numbers, lists of all else."""

    def __init__(self, path: Path, wanted: Sequence[str] | None, answers: set[str]) -> None:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            raise InputError(
                f"{path} is a Parquet file, which pyarrow reads: pip install pyarrow, or write a "
                ".csv or .npz file"
            ) from None
        self.path, self._errors = path, (ArrowException, OSError)
        try:
            self._file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
            about = self._file.schema_arrow.pandas_metadata or {}
        except (*self._errors, ValueError) as error:
            raise self._refused(error) from error
        names, index = self._file.schema_arrow.names, about.get("index_columns", ())
        self.used = _used(path, wanted, answers, names, index)
        self.size = self._size()

    def columns(self) -> Columns:
        """All of them, loaded."""
        try:
            return self._columns(self._file.read(columns=self.used))
        except MemoryError:
            raise
        except self._errors as error:
            raise self._refused(error) from error

    def blocks(self) -> Iterator[Columns]:
        """All of them, some rows at a time."""
        from pyarrow import Table

        rows = max(1, _BLOCK * self._file.metadata.num_rows // max(1, self.size))
        for batch in self._batches(rows):
            yield self._columns(Table.from_batches([batch]))

    def _batches(self, rows: int) -> Iterator[Any]:
        try:
            yield from self._file.iter_batches(rows, columns=self.used, use_threads=False)
        except MemoryError:  # which Arrow's is too
            raise
        except self._errors as error:
            raise self._refused(error) from error

    def _size(self) -> int:
        """Bytes in memory, judged by the first rows: equal values take no room in the file."""
        about = self._file.metadata
        first = next(self._batches(64), None)
        each = first.nbytes / len(first) if first is not None and len(first) else 0
        groups = (about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        return max(sum(groups), int(each * about.num_rows))

    def _columns(self, table: Any) -> Columns:
        return {name: self._column(table, name) for name in self.used}

    def _column(self, table: Any, name: str) -> Any:
        from pyarrow import types

        kind, values = table.schema.field(name).type, table[name].combine_chunks()
        if values.null_count:
            raise InputError(f"{self.path}: {name} has {values.null_count} empty values: fill them")
        if types.is_fixed_size_list(kind):
            flat = values.flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(len(values), kind.list_size)
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            return values.to_numpy(zero_copy_only=False)
        found = values.to_pylist()
        try:  # lists of numbers, all of one length
            return np.array(found, np.float64) if types.is_list(kind) else found
        except ValueError as error:
            raise InputError(
                f"{self.path}: {name} holds lists of several lengths: pad them"
            ) from error

    def _refused(self, error: Exception) -> InputError:
        return InputError(f"{self.path} cannot be read as Parquet ({error}): write it again")


_READERS: dict[str, type[_Csv | _Parquet]] = {".csv": _Csv, ".parquet": _Parquet}


def _unpacked(
    table: _Csv | _Parquet, inputs: Sequence[str], answers: Sequence[str], cache: Path
) -> tuple[Any, Columns]:
    """Inputs of a large table, mapped, and its answers, loaded."""
    found: Columns = {name: [] for name in answers}
    file, stamp = _place(table.path, cache, inputs), _stamp(table.path, inputs)
    if not kept.is_ready(file, stamp):

        def fill(part: Path) -> None:
            blocks = (
                _joined(table.path, {name: block[name] for name in inputs})
                for block in table.blocks()
            )
            first: Any = next(blocks, None)
            if first is None:
                raise InputError(f"{table.path} holds no rows: check the file")
            rest = chain([first], blocks)
            kept.fill_array(part, rest if isinstance(first, np.ndarray) else _as_bytes(table, rest))

        kept.make(file, stamp, table.size, fill)
    if answers:
        for block in type(table)(table.path, answers, set(answers)).blocks():
            for name in answers:
                found[name] += _plain(block[name])
    mapped = kept.open_array(file)
    return Texts(mapped) if mapped.dtype == _BYTE else mapped, found


def _as_bytes(table: _Csv | _Parquet, blocks: Iterator[Sequence[Any]]) -> Iterator[NDArray[Any]]:
    """Texts as `Texts` reads them."""
    ends, sizes = 0, [np.zeros(1, np.int64)]
    for block in blocks:
        if not all(isinstance(text, str) for text in block):
            raise InputError(
                f"{table.path}: a column is neither of texts nor of numbers: name others in inputs"
            )
        parts = [text.encode() for text in block]
        sizes.append(ends + np.cumsum([len(part) for part in parts], dtype=np.int64))
        ends = int(sizes[-1][-1]) if parts else ends
        yield np.frombuffer(b"".join(parts), _BYTE)
    found = np.concatenate(sizes)
    yield np.append(found, len(found) - 1).astype("<i8").view(_BYTE)


def _place(path: Path, cache: Path, columns: Sequence[str]) -> Path:
    """Where the columns of a file are unpacked: a name for each file and choice of columns."""
    what = json.dumps([str(path.resolve()), list(columns)])
    return cache / f"{path.stem}-{hashlib.sha256(what.encode()).hexdigest()[:12]}.npy"


def _stamp(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    found = path.stat()
    return {"bytes": found.st_size, "time": found.st_mtime_ns, "columns": list(columns)}


def _plain(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column)


def _joined(path: Path, columns: Mapping[str, Any]) -> Any:
    """Texts or an array as they are, columns of numbers side by side [n d]."""
    if len(columns) == 1:
        only = next(iter(columns.values()))
        is_column = isinstance(only, np.ndarray) and only.ndim == 1
        return only[:, None] if is_column and path.suffix.lower() != ".npz" else only
    texts = [name for name, values in columns.items() if not isinstance(values, np.ndarray)]
    if texts or not columns:
        found = f"{', '.join(texts)} of texts" if texts else "none"
        raise InputError(
            f"{path} must give one column of texts or some of numbers as inputs, among "
            f"{', '.join(columns)} is {found}: name the columns in inputs, or pass a frame and a "
            "pipeline that encodes it, or fills what is missing"
        )
    flat = (v.reshape(len(v), -1) if v.ndim > 2 else v for v in columns.values())
    return np.column_stack(list(flat))


def _used(
    path: Path,
    wanted: Sequence[str] | None,
    answers: set[str],
    there: Sequence[str],
    index: Sequence[Any] = (),
) -> list[str]:
    """The columns to read: those wanted, or all but a frame's index, and the answers."""
    inputs = [name for name in there if name not in index] if wanted is None else wanted
    used = list(dict.fromkeys([*inputs, *sorted(answers)]))
    for name in used:
        if name not in there:
            raise InputError(
                f"{path} has no column {name!r} but {', '.join(there)}: name or rename one of these"
            )
    return used


def _numbers(values: list[str]) -> Any:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        return values


def _read_npz(
    path: Path, wanted: Sequence[str] | None, answers: Sequence[str], cache: Path
) -> tuple[Any, Columns]:
    used = _used(path, wanted, set(answers), _members(path))
    inputs = [name for name in used if (name in wanted if wanted else name not in answers)]
    if wanted is None and len(inputs) > 1:  # one of them may be the labels, and no features
        raise InputError(
            f"{path} holds {', '.join(inputs)}: name the array that the model reads in inputs"
        )
    some = {name: _mapped(path, name, cache) for name in inputs}
    return _joined(path, some), {name: array("path", path, name) for name in answers}


def _mapped(path: Path, name: str, cache: Path) -> NDArray[Any]:
    """An array of an archive, of any size: one that is large and packed is unpacked on disk."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
    if member.file_size <= LOADED or member.compress_type != zipfile.ZIP_DEFLATED:
        return array("path", path, name)
    file, stamp = _place(path, cache, [name]), _stamp(path, [name])

    def fill(part: Path) -> None:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(member) as packed,
            open(part, "wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
        kept.open_array(part)

    if not kept.is_ready(file, stamp):
        try:
            kept.make(file, stamp, member.file_size, fill)
        except (zipfile.BadZipFile, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} cannot be read ({error}): it is damaged or holds no plain array; write it "
                "again with numpy.savez"
            ) from error
    return kept.open_array(file)


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
        if member.compress_type == zipfile.ZIP_STORED and member.file_size > LOADED:
            return _stored(path, member)
        if member.file_size > UNPACKED:
            raise InputError(
                f"{argument}: {name} in {path} unpacks to {member.file_size:,} bytes, and no more "
                f"than {UNPACKED:,} are loaded: write it with numpy.save to a .npy file, which is "
                "read in pieces"
            )
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def _stored(path: Path, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Map an array that is not packed: behind the member's own header, whose length varies."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        head = file.read(30)
        names = sum(int.from_bytes(head[i : i + 2], "little") for i in (26, 28))
        begin = member.header_offset + len(head) + names
    found: Any = kept.open_array(path, begin)
    if found.offset + found.nbytes != begin + member.file_size:
        raise ValueError("its length is another than the archive says")
    return found
