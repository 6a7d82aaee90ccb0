"""A first experiment from a look at somebody's data: sizes that fit, a model that can read them."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foresee.errors import InputError
from foresee.lab import own, paper
from foresee.reading import fields, sources, tables

_SIDE = 32  # pixels of images
_LEAST = 4  # of those in arrays, as networks halve them twice
_PROSE = 20  # characters of a column's values from which on it is taken for texts to read
_USUAL = ("label", "labels", "class", "target", "y", "category", "species", "outcome")


@dataclass(frozen=True)
class _Found:
    """What was seen: the lines of [data], the kind of rows, the label of each; what is left out."""

    lines: tuple[str, ...]
    kind: str
    labels: Sequence[str]
    left: Sequence[str] = ()


def describe(path: Path, home: Path, labels: str | None = None) -> str:
    """Write a TOML file for `foresee run`.

    Args:
        path: a folder of images, or a .npz, .parquet or .csv file.
        home: the folder of the TOML file, to which its paths are relative.
        labels: the column or array of labels; None: a guess.

    >>> Path("r.csv").write_text("text,stars\\n" + "a fine film,5\\na dull film,1\\n" * 50) > 0
    True
    >>> print(describe(Path("r.csv"), Path("."), labels="stars").split("[sizes]")[0])
    # 100 rows of texts, 2 classes: 1 (50), 5 (50).
    name = "r"                       # names the results
    <BLANKLINE>
    [data]
    path = "r.csv"                   # from the folder of this file
    inputs = ["text"]                # what the model reads
    labels = "stars"
    # domain = "column"              # for the setting "shift": a column that tells domains apart,
    # source = ["one domain"]        # and those that the seed set comes from
    # target_classes = ["1"]         # for "narrow": the classes of the validation and test sets
    <BLANKLINE>
    <BLANKLINE>
    """
    if not path.exists():
        raise InputError(f"--data: there is nothing at {path}: check the path")
    if path.is_dir() and labels is not None:
        raise InputError(
            f"--labels names a column, and {path} is a folder, whose sub-folders are the labels: "
            "leave it out"
        )
    found = _folder(path) if path.is_dir() else _file(path, labels)
    counts = Counter(found.labels)
    if len(counts) < 2:
        raise InputError(f"--data: {path} has {len(counts)} class: an experiment needs at least 2")
    if len(found.labels) < 20:
        raise InputError(f"--data: {path} has {len(found.labels)} rows: an experiment needs 20")
    n = len(found.labels)
    if len(counts) > n // (10 if _are_amounts(counts) else 4):
        raise InputError(
            f"--data: {path} has {len(counts)} classes in {n} rows, too few of each for an "
            "experiment: name the labels with --labels, or sort what is a number into a few ranges"
        )
    some = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())[:8])
    more = ", …" if len(counts) > 8 else ""
    head = f"{n} rows of {found.kind}, {len(counts)} classes: {some}{more}."
    name = re.sub(r"[^\w-]+", "_", path.resolve().stem, flags=re.ASCII).strip("_-") or "data"
    name = f"my-{name}" if name.lower() in paper.datasets() else name
    where = Path(os.path.relpath(path, home)).as_posix()
    lines = [
        f"# {_plain(head)}",
        *([f"# Left out: {_plain(', '.join(found.left))}."] if found.left else []),
        _line("name", name, "names the results"),
        "",
        "[data]",
        _line("path", where, "from the folder of this file"),
        *found.lines,
        *_settings(found.kind == "images", min(counts)),
        "",
        "[sizes]",
        *_sizes(n, len(counts)),
        "",
        *_model(found.kind),
        "[run]",
        _line("settings", ["noshift"], 'or "shift", "narrow", each with what [data] says of it'),
        _line("methods", ["default", "mell", "random"], 'also "paper", "all" or file.py:function'),
        _line("seeds", 3, "trials of each method"),
    ]
    if found.kind == "images":
        noise = "that share of the pool is scrambled, as if it were useless"
        lines.append(_line("pool_noise", 0.2, noise, off=True))
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, comment: str = "", off: bool = False) -> str:
    """An entry of TOML; one that is ``off`` is a comment, for people to take its sign away."""
    if isinstance(value, list):
        text = f"[{', '.join(map(_quoted, value))}]"
    else:
        text = _quoted(value) if isinstance(value, str) else str(value)
    entry = f"{'# ' if off else ''}{key} = {text}"
    return f"{entry:32} # {comment}" if comment else entry


def _quoted(text: str) -> str:
    """A string of TOML: control characters and quotes are written by their numbers."""
    return '"' + _plain(text, '"\\') + '"'


def _plain(text: str, but: str = "") -> str:
    """Text without control characters, which a comment of TOML must not hold either."""
    return "".join(c if c.isprintable() and c not in but else f"\\U{ord(c):08X}" for c in text)


def _folder(path: Path) -> _Found:
    names = sources.image_names(path)
    if not names or any("/" not in name for name in names):
        raise InputError(
            f"--data: {path} must have a sub-folder of images for each class, got "
            f"{next((n for n in names if '/' not in n), 'no images')}: sort them so"
        )
    lines = (
        _line("size", _SIDE, "side of the square that images are squeezed to"),
        _line("channels", 3, "1 for grey"),
    )
    return _Found(lines, "images", [name.partition("/")[0] for name in names])


def _file(path: Path, labels: str | None) -> _Found:
    columns = tables.columns(path)
    if labels is None:
        fields.check_names(path)
        labels = _guess(path, columns)
    elif labels not in columns:
        there = ", ".join(columns)
        raise InputError(f"--labels: {path} has no {labels!r} but {there}: name one of these")
    known = sources.read(path, inputs=labels, labels=labels).labels or ()
    own.check_known(path, known, "label")
    values = [str(v) for v in known]
    others = [name for name in columns if name != labels]
    texts = [n for n in others if not _is_array(columns[n]) and fields.are_texts(columns[n])]
    numbers = [n for n in others if _is_array(columns[n]) and not _gap(columns[n])]
    numbers = [name for name in numbers if columns[name].shape[:1] == (len(values),)]
    numbers = [name for name in numbers if not _counts_rows(columns[name])] or numbers
    if path.suffix.lower() == ".npz" and numbers:
        numbers = [max(numbers, key=lambda name: np.asarray(columns[name]).ndim)]
    longest = sorted(texts, key=lambda name: -_length(columns[name]))[:1]
    prose = bool(longest) and _length(columns[longest[0]]) >= _PROSE
    inputs = longest if prose or not numbers else numbers
    left = [_left(name, columns[name]) for name in others if name not in inputs]
    if not inputs:
        raise InputError(
            f"--data: {path} has nothing but {len(values)} labels"
            f"{', beside ' if left else ''}{', '.join(left)}: add what a model can read, a row for "
            "each"
        )
    array = columns[inputs[0]]
    images = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim in (3, 4)
    if images and _side(array.shape[1:]) < _LEAST:
        raise InputError(
            f"--data: {inputs[0]} in {path} holds images {list(array.shape[1:])}, and networks "
            f"read square ones [h w], [h w 1], [h w 3] or [c h w] from {_LEAST} pixels a side on: "
            "crop or pad them and drop what is transparent, or write what are no images as floats"
        )
    kind = "images" if images else "texts" if inputs is longest else "numbers"
    lines = (_line("inputs", inputs, "what the model reads"), _line("labels", labels))
    return _Found(lines, kind, values, left)


def _side(shape: tuple[int, ...]) -> int:
    """Pixels of square images [h w], [c h w] or [h w c]; 0 where they are not square."""
    height, width = shape[:2] if shape[-1] in (1, 3) else shape[-2:]
    return height if height == width else 0


def _is_array(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "biuf"


def _left(name: str, column: Any) -> str:
    """The name of a column that no model reads, and of one of numbers but for some the first."""
    gap = _gap(column)
    return f"{_quoted(name)} ({gap})" if gap else _quoted(name)


def _gap(column: Any) -> str:
    """The first value of a column of numbers that is none, and its row; "" where there is none."""
    if not _is_array(column):
        return "" if fields.are_texts(column) else fields.stray(column)
    rows = np.argwhere(~(np.abs(column) <= np.finfo(np.float32).max))  # models read float32
    return f"{column[tuple(rows[0])]} in row {rows[0][0]}" if len(rows) and column.ndim else ""


def _are_amounts(labels: Iterable[str]) -> bool:
    """Whether they are numbers with fractions."""
    try:
        return any(not float(label).is_integer() for label in list(labels))
    except ValueError:
        return False


def _counts_rows(column: Any) -> bool:
    """Whether it is a number for each row: an id, and not what a model should read."""
    values = np.asarray(column)
    if values.ndim != 1 or not np.isfinite(values).all():
        return False
    return bool((values == np.round(values)).all()) and len(np.unique(values)) == len(values)


def _length(column: Sequence[Any]) -> float:
    """Characters of its texts; little counts what is no prose: not of words, or not of letters."""

    def length(text: str) -> float:
        words = " " in text or not text.isascii()
        return len(text) * (1 if words and 2 * sum(map(str.isalpha, text)) > len(text) else 0.01)

    return float(np.mean([length(str(value)) for value in column[:1000]]))


def _guess(path: Path, columns: Mapping[str, Any]) -> str:
    """The column of labels: the one of a usual name, or the only one of few different values."""
    found = [name for name in columns if name.lower() in _USUAL]
    if not found:
        flat = {name: np.asarray(values, dtype=object) for name, values in columns.items()}
        flat = {name: values for name, values in flat.items() if values.ndim == 1}
        found = [n for n, v in flat.items() if 2 <= len({*v.tolist()}) <= max(2, len(v) // 10)]
    if len(found) != 1:
        raise InputError(
            f"--labels: which of {', '.join(columns)} in {path} holds the labels is not clear: "
            "name it"
        )
    return found[0]


def _settings(images: bool, first: str) -> list[str]:
    if images:
        domain = ("folder", 'for the setting "shift": images lie as domain/class/image')
    else:
        domain = ("column", 'for the setting "shift": a column that tells domains apart,')
    target = 'for "narrow": the classes of the validation and test sets'
    return [
        _line("domain", *domain, off=True),
        _line("source", ["one domain"], "and those that the seed set comes from", off=True),
        _line("target_classes", [first], target, off=True),
    ]


def _sizes(n: int, classes: int) -> list[str]:
    """A fifth to test, a fifth to validate, the rest for the pool and a small seed set."""
    test = min(10_000, n // 5)
    val = min(5_000, n // 5)
    seed = min(max(10, 2 * classes), (n - test - val) // 4)
    pool = min(50_000, n - test - val - seed)
    query = max(1, min(pool // 16, max(10, seed // 2)))
    rounds = max(1, min(8, pool // query))
    return [
        _line("n_seed", seed, "labelled at the start"),
        _line("n_pool", pool, "to choose from"),
        _line("n_val", val, "the target: unlabelled"),
        _line("n_test", test),
        _line("n_query", query, "labels bought in a round"),
        _line("rounds", rounds, "K of the paper"),
        _line("candidates", pool, "J: of the pool, that mell looks at in a round"),
        _line("targets", min(100, val), "L: of n_val, that mell looks at"),
    ]


def _model(kind: str) -> list[str]:
    if kind == "images":
        return [
            "[model]",
            _line("network", "slim_cnn", "slim_cnn, small_cnn, vgg16, mlp, or file.py:build"),
            _line("draws", 100, "by MC dropout"),
            "",
            "[recipe]",
            _line("iterations", 2000),
            _line("batch", 64),
            _line("learning_rate", 0.01),
            _line("decay_every", 1500),
            "",
        ]
    name = "forest" if kind == "numbers" else "tfidf"
    others = 'forest, logistic, or file.py:fit; or network = "mlp" and a [recipe]'
    return [
        "[model]",
        _line("posterior", name, others if kind == "numbers" else "words, or file.py:fit"),
        _line("draws", 100 if kind == "numbers" else 50, "trees" if kind == "numbers" else "fits"),
        "",
    ]
