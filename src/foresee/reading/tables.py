"""Tables and archives of arrays: small ones are loaded, large ones are mapped.

What can be mapped as it lies is: a .npy file, an array that is stored in a .npz file as it is. All
else that is large (a CSV or Parquet file, a packed array) is written once, in pieces, into an array
on disk, which is mapped from then on.
"""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.reading import archives, fields, kept

_READER = 3  # raised where what is unpacked of the same file changes
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
        if wanted or answers:
            raise InputError(
                f"{path} holds one array without a name: leave {[*(wanted or ()), *answers][0]!r} "
                "out, or write several with numpy.savez"
            )
        return archives.array("path", path), {}
    if kind == ".npz":
        return _read_npz(path, wanted, answers, cache)
    reader = _READERS.get(kind)
    if reader is None:
        raise InputError(
            f"{path} must be a folder of images, or a .csv, .parquet, .npz or .npy file: convert it"
        )
    table = reader(path, wanted, set(answers))
    if not wanted and not answers:
        fields.check_names(path)
    inputs = [name for name in table.used if (name in wanted if wanted else name not in answers)]
    if table.size <= archives.LOADED or set(inputs) <= set(answers):  # which are loaded anyway
        found = table.columns()
        rows = _joined(path, {name: found[name] for name in inputs})
        if isinstance(rows, list) and inputs[0] not in answers:
            rows = [text for block in _texts(path, inputs[0], [rows]) for text in block]
        return rows, found
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
        return {name: archives.array("path", path, name) for name in archives.members(path)}
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
    used = reader(path, None, set()).used
    found = [name for name in used if name not in answers]
    if len(found) == len(used):
        fields.check_names(path)
    return found


def check_file(path: Path) -> None:
    """Refuse what is no file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: check the path")


class _Csv:
    """Columns of a CSV file: arrays where all of a column are numbers, lists of texts elsewhere."""

    def __init__(self, path: Path, wanted: Sequence[str] | None, answers: set[str]) -> None:
        self.path, self._answers, self.size = path, answers, path.stat().st_size
        header = next(fields.rows(self.path), [])
        # As pandas writes the index of a frame.
        index = [name for name in header[:1] if not name]
        self._header, self.used = header, _used(path, wanted, answers, header, index)

    def columns(self) -> Columns:
        """All of them, loaded."""
        found: Columns = {name: [] for name in self.used}
        for block in self._texts():
            for name in self.used:
                found[name] += block[name]
        return {
            name: v if name in self._answers else fields.numbers(v) for name, v in found.items()
        }

    def blocks(self) -> Iterator[Columns]:
        """All of them, some rows at a time; a first pass finds which are numbers."""
        numeric = {name for name in self.used if name not in self._answers}
        for block in self._texts() if numeric else ():
            numeric = {
                name for name in numeric if not isinstance(fields.numbers(block[name]), list)
            }
        for block in self._texts():
            yield {n: np.array(v, np.float64) if n in numeric else v for n, v in block.items()}

    def _texts(self) -> Iterator[dict[str, list[str]]]:
        rows = fields.rows(self.path)
        next(rows)
        for block in fields.blocks(rows):
            columns = dict(zip(self._header, zip(*block, strict=True), strict=True))
            yield {name: list(columns[name]) for name in self.used}


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

        rows = max(1, fields.BLOCK * self._file.metadata.num_rows // max(1, self.size))
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
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if types.is_fixed_size_list(kind) and not types.is_nested(kind.value_type):
            flat = values.flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(len(values), kind.list_size)
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            return values.to_numpy(zero_copy_only=False)
        found = values.to_pylist()
        try:  # lists of numbers, all of one length
            return np.array(found, np.float64) if lists else found
        except ValueError as error:
            raise InputError(
                f"{self.path}: {name} holds lists of several lengths, or of no numbers: pad them"
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
            rest: Iterator[Any] = chain([first], blocks)
            if not isinstance(first, np.ndarray):
                rest = _as_bytes(_texts(table.path, inputs[0], rest, inputs[0] in answers))
            kept.fill_array(part, rest)

        kept.make(file, stamp, table.size, fill)
    if answers:
        for block in type(table)(table.path, answers, set(answers)).blocks():
            for name in answers:
                found[name] += plain(block[name])
    mapped = kept.open_array(file)
    return Texts(mapped) if mapped.dtype == _BYTE else mapped, found


def _texts(
    path: Path, name: str, blocks: Iterable[Sequence[Any]], known: bool = False
) -> Iterator[Sequence[str]]:
    """A column of texts as it is; numbers with gaps or commas, if not ``known``, are refused."""
    gap = ""
    for block in blocks:
        other = next((value for value in block if not isinstance(value, str)), None)
        if other is not None:
            raise InputError(
                f"{path}: {name} holds neither texts nor numbers but {type(other).__name__}: name "
                "others in inputs, or convert it"
            )
        known = known or fields.are_texts(block)
        gap = gap or fields.stray(block)
        yield block
    if not known:
        raise InputError(
            f"{path}: {name} holds numbers, and {gap}: fill it, leave the row out, or write it as "
            "1000.5"
        )


def _as_bytes(blocks: Iterable[Sequence[str]]) -> Iterator[NDArray[Any]]:
    """Texts as `Texts` reads them."""
    ends, sizes = 0, [np.zeros(1, np.int64)]
    for block in blocks:
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
    # What an older reader made of the same file may differ.
    return {
        "bytes": found.st_size,
        "time": found.st_mtime_ns,
        "columns": list(columns),
        "reader": _READER,
    }


def plain(column: Any) -> list[Any]:
    """The values of a column as Python has them."""
    return list(column.tolist() if isinstance(column, np.ndarray) else column)


def _joined(path: Path, columns: Mapping[str, Any]) -> Any:
    """Texts or an array as they are, columns of numbers side by side [n d]."""
    if len(columns) == 1:
        only = next(iter(columns.values()))
        is_column = isinstance(only, np.ndarray) and only.ndim == 1
        return only[:, None] if is_column and path.suffix.lower() != ".npz" else only
    texts = [name for name, values in columns.items() if not isinstance(values, np.ndarray)]
    if texts or not columns:
        seen = [f"{name} ({seen})" for name in texts if (seen := fields.stray(columns[name]))]
        raise InputError(
            f"{path} must give one column of texts or some of numbers as inputs, got "
            f"{'texts in ' if texts else 'no column'}{', '.join(seen or texts)}: name the columns "
            "in inputs, write numbers as 1000.5, or pass a frame and a pipeline that encodes it, "
            "or fills what is missing"
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
    if not there or len(set(there)) < len(there):
        raise InputError(
            f"{path} must begin with the names of its columns, each once, got "
            f"{', '.join(there) or 'nothing'}: add such a line"
        )
    inputs = [name for name in there if name not in index] if wanted is None else wanted
    used = list(dict.fromkeys([*inputs, *sorted(answers)]))
    for name in used:
        if name not in there:
            raise InputError(
                f"{path} has no column {name!r} but {', '.join(there)}: name or rename one of these"
            )
    return used


def _read_npz(
    path: Path, wanted: Sequence[str] | None, answers: Sequence[str], cache: Path
) -> tuple[Any, Columns]:
    used = _used(path, wanted, set(answers), archives.members(path))
    inputs = [name for name in used if (name in wanted if wanted else name not in answers)]
    if wanted is None and len(inputs) > 1:  # one of them may be the labels, and no features
        raise InputError(
            f"{path} holds {', '.join(inputs)}: name the array that the model reads in inputs"
        )
    some = {name: _mapped(path, name, cache) for name in inputs}
    return _joined(path, some), {name: archives.array("path", path, name) for name in answers}


def _mapped(path: Path, name: str, cache: Path) -> NDArray[Any]:
    """An array of an archive, of any size: one that is large and packed is unpacked on disk."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
    if member.file_size <= archives.LOADED or member.compress_type != zipfile.ZIP_DEFLATED:
        return archives.array("path", path, name)
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
