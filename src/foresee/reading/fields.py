"""CSV files: their rows, and whether their fields are numbers, texts or codes."""

import csv
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from foresee.errors import InputError

# Bytes of a table that are read at once.
BLOCK = 2 << 20
_FIELD = 64  # bytes of a text in Python, beside its own
# Codes, among values between line ends: as numbers a postcode would lose its zeros, a long id its
# last digits.
_ZEROS, _LONG = re.compile(r"\s0[0-9]+\s"), re.compile(r"[\s+-]([0-9]{16,})(?=\s)")
_EXACT = 2**53  # below it a float holds all whole numbers
_QUOTED = re.compile(r'(^|[,;\t|\r\n])(?:"[^"]*")+')
_GAPS = {"", "na", "n/a", "#n/a", "null", "none", "?", "-"}  # in a column of numbers


@contextmanager
def csv_rows(path: Path) -> Iterator[Any]:
    """The rows of a CSV file in UTF-8.

    >>> Path("excel.csv").write_text('id;"a, b"\\n1;2\\n') > 0
    True
    >>> with csv_rows(Path("excel.csv")) as rows:
    ...     list(rows)
    [['id', 'a, b'], ['1', '2']]
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        yield csv.reader(file, delimiter=separator(file), strict=True)


def separator(file: TextIO) -> str:
    """What separates fields: a comma, or what a header without one has instead: ; tab or |."""
    begin = _QUOTED.sub(r"\1", file.read(1 << 16).lstrip("\r\n"))  # may hold line ends, too
    file.seek(0)
    bare = re.split(r"[\r\n]", begin, maxsplit=1)[0]
    return "," if "," in bare else max(",;\t|", key=bare.count)


def rows(path: Path) -> Iterator[list[str]]:
    """The header and all rows, each of as many fields."""
    fields = named = blank = 0
    try:
        with csv_rows(path) as reader:
            for row in reader:
                if not row:
                    blank = reader.line_num
                    continue
                if not fields:  # a spreadsheet writes empty columns behind the last
                    fields = len(row)
                    named = max((i for i, name in enumerate(row, 1) if name), default=0)
                elif blank and fields == 1:  # the rows below it would be numbered otherwise
                    raise InputError(
                        f'{path}, line {blank} is empty: write "" for an empty text, or '
                        "take the line out"
                    )
                if len(row) != fields:
                    raise InputError(
                        f"{path}, line {reader.line_num}: {fields} fields were expected, "
                        f"got {len(row)}: quote texts that hold {reader.dialect.delimiter!r}"
                    )
                if any(row[named:]):
                    raise InputError(
                        f"{path}, line {reader.line_num}: "
                        f"{next(filter(None, row[named:]))!r} is in a column without a name: "
                        "name it in the first line"
                    )
                yield row[:named]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as CSV in UTF-8 ({error}): save it so, or as .parquet"
        ) from error


def blocks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    """Rows, so many at a time that they take ``BLOCK`` bytes."""
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += sum(map(len, row)) + _FIELD * len(row)
        if size >= BLOCK:
            yield some
            some, size = [], 0
    if some:
        yield some


def check_names(path: Path) -> None:
    """Refuse a .csv file without names, whose first line is a row like those below it.

    It is one where each of its values is a number above numbers, or a text that its column has
    again. Numbers alone are names that count on (0, 1, 2 or 2019, 2020); where they are in another
    order that names may have, such as that of wavelengths, this warns.

    >>> Path("iris.csv").write_text("5.1,3.5,setosa\\n4.9,3.0,setosa\\n") > 0
    True
    >>> check_names(Path("iris.csv"))
    Traceback (most recent call last):
    ...
    foresee.errors.InputError: iris.csv must begin with the names of its columns, got 5.1, 3.5, ...
    """
    if path.suffix.lower() != ".csv":
        return
    below = rows(path)
    names, some = next(below), next(blocks(below), [])
    like = map(_is_like, names, zip(*some, strict=True))
    if not some or all(map(_is_text, names)) or not all(like):
        return
    told = (
        f"{path} must begin with the names of its columns, got {', '.join(names[:6])}"
        f"{', …' if len(names) > 6 else ''}, as in the rows below"
    )
    values = numbers(names)
    in_order = isinstance(values, np.ndarray) and any(
        list(each) in (sorted(each), sorted(each, reverse=True)) for each in (values, names)
    )
    if not in_order:
        raise InputError(f"{told}: add such a line, or name the columns to read if these are names")
    if values[0] % 1 or (np.diff(values) != 1).any():
        warnings.warn(f"{told}: add such a line, if these are no names", stacklevel=3)


def _is_like(name: str, column: Sequence[str]) -> bool:
    return name in column if _is_text(name) else not are_texts(column)


def _is_text(name: str) -> bool:
    return not name or are_texts([name])


def numbers(values: list[str]) -> Any:
    """Numbers where all of them are, and none is a code: 12_3 would be 123, too."""
    try:
        found = np.array(values, dtype=np.float64)
    except ValueError:
        return values
    text = "\n".join(["", *values, ""])
    large = (np.abs(found) >= _EXACT).any()
    is_long = large and any(float(digits) >= _EXACT for digits in _LONG.findall(text))
    return values if is_long or _ZEROS.search(text) or "_" in text else found


def stray(values: Iterable[Any]) -> str:
    """The first value of a column that is no number, and its row; "" where all are numbers.

    >>> stray(["1", "2.5", "1,5"])
    "'1,5' in row 2"
    """
    for row, value in enumerate(values):
        if not isinstance(value, str) or isinstance(numbers([value]), list):
            return f"{str(value)[:40]!r} in row {row}"
    return ""


def are_texts(values: Iterable[Any]) -> bool:
    """Whether these are texts to read: at least one, and not numbers but for gaps and commas.

    >>> are_texts(["1", "", "a"]), are_texts(["01234"]), are_texts(["1", "", "2,5"])
    (True, True, False)
    """
    return any(isinstance(value, str) and _is_word(value.strip().lower()) for value in values)


def _is_word(text: str) -> bool:
    return text not in _GAPS and isinstance(numbers([text.replace(",", "")]), list)
