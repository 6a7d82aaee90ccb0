"""What a worker does with a shard: from rows in Arrow to the few that are sent back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, checks, predictions
from foresee.errors import InputError
from foresee.shortlist import Shortlist, kinds_of
from foresee.strategies.ceiling import Tangent
from foresee.suggest import Scorer
from foresee.types import Posterior

_PIECE = 1 << 13  # rows that are read at once, at most, where no target tells how large they get


@dataclass(frozen=True)
class Work:
    """What every worker needs; it travels once."""

    scorer: Scorer
    short: Shortlist
    seed: int
    column: str | None
    ids: str | None
    posterior: Posterior | None
    read: Callable[[Any], Any] | None
    cpus: int
    exclude: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    wanted: frozenset[str] = frozenset()  # names; where some are looked for, rows are not read

    def rows_at_once(self, row_bytes: int) -> int:
        """How many rows to read and score in one piece, where to read one takes so many bytes."""
        target = self.scorer.target
        if target is None:
            return min(_PIECE, self.scorer.rows_at_once(max(1, row_bytes)))
        return self.scorer.rows_at_once(max(row_bytes, target[0].nbytes))

    def columns(self, schema: Any) -> list[str] | None:
        """The columns to read; None: all, as only ``read`` knows which it looks at."""
        if self.wanted:
            return [str(self.ids)]
        if self.read is not None:
            return None
        return [self.field(schema), *([self.ids] if self.ids else [])]

    def field(self, schema: Any) -> str:
        """The column of the predictions or inputs."""
        if self.column is not None:
            if self.column not in schema.names:
                raise InputError(
                    f"dataset has no column {self.column!r} but {', '.join(schema.names)}: pass "
                    "column="
                )
            return self.column
        held = [f.name for f in schema if predictions.holds_rows(f)]
        if len(held) != 1:
            raise InputError(
                f"dataset must have one column of lists, tensors or packed rows, got "
                f"{', '.join(held) or 'none'} of {', '.join(schema.names)}: pass column=, or write "
                "it with foresee.predictions.to_arrow"
            )
        return held[0]


class Piece(NamedTuple):
    """Rows of a shard: predictions [n t c], positions [n], keys [n], names [n]; the first's row."""

    rows: NDArray[Any]
    positions: NDArray[np.int64]
    keys: NDArray[np.float64]
    names: NDArray[Any] | None
    start: int


class Part(NamedTuple):
    """What a shard sends back: columns of rows, names that were excluded, how many rows it had."""

    rows: dict[str, NDArray[Any]]
    passed: set[str]
    seen: int


def shortlisted(work: Work, pieces: Iterator[Piece], least: float, last: float) -> Part:
    """The shortlist of a shard, less what is known not to be on that of all."""
    short, passed, seen = replace(work.short, least=least, last=last, rows={}), set[str](), 0
    for piece in pieces:
        left = _left(work, piece)
        rows, keys, kinds = piece.rows[left], piece.keys[left], None
        if short.copies:
            keys, kinds = kinds_of(rows, work.seed)
        along = {"rows": rows}
        if piece.names is not None:
            along["names"] = piece.names[left]
            passed |= set(piece.names[~left].tolist())
        found = _scored(work, piece)[left]
        short.add(piece.positions[left], found, keys, kinds, **along)
        seen += len(left)
    return Part(short.rows, passed, seen)


def _scored(work: Work, piece: Piece) -> NDArray[Any]:
    try:
        return work.scorer(piece.rows, piece.start)
    except InputError:
        names = [] if piece.names is None else piece.names.tolist()
        for name, row in zip(names, piece.rows, strict=False):
            checks.rows_sum_to_one(f"dataset row {name!r}", arrays.tensor(row))
        raise


def steepest(work: Work, pieces: Iterator[Piece], touching: Tangent, k: int) -> Part:
    """The k largest slopes of a shard."""
    largest, seen = np.empty(0), 0
    for piece in pieces:
        rows = piece.rows[_left(work, piece)]
        slopes = arrays.numpy(touching.slopes(arrays.tensor(rows)))
        largest = np.sort(np.concatenate([largest, slopes]))[-k:]
        seen += len(piece.rows)
    return Part({"slopes": largest}, set(), seen)


def namesakes(work: Work, pieces: Iterator[Piece]) -> Part:
    """The names of a shard that are wanted, each as often as it is there."""
    parts: Iterator[Any] = (piece.names for piece in pieces)
    found = [name for names in parts for name in names.tolist() if name in work.wanted]
    return Part({"names": np.array(found, str)}, set(), 0)


def _left(work: Work, piece: Piece) -> NDArray[np.bool_]:
    """Which rows are not excluded."""
    if len(work.exclude) == 0:
        return np.ones(len(piece.rows), bool)
    called = piece.positions if piece.names is None else np.char.strip(piece.names)
    return ~np.isin(called, work.exclude)


def rows_of(work: Work, batch: Any, source: Any) -> NDArray[Any]:
    """Predictions [n t c] for a pyarrow.RecordBatch."""
    if work.wanted:
        return np.empty((batch.num_rows, 0))
    if work.read is None:
        rows: Any = predictions.from_arrow("dataset", source, batch, work.field(batch.schema))
    else:
        rows = work.read(batch)
    if work.posterior is not None:
        rows = arrays.numpy(work.posterior.predict(rows), "posterior.predict(dataset)")
    target = work.scorer.target
    is_point = work.scorer.score == "entropy"
    rows = checks.array("dataset", rows, "n c") if is_point else checks.draws("dataset", rows)
    if len(rows) != batch.num_rows:
        raise InputError(
            f"dataset: read and posterior.predict must give a row for each of {batch.num_rows} "
            f"rows, got {len(rows)}: leave rows out of the dataset, or name them in exclude"
        )
    if target is not None:
        checks.same_posterior(rows, target, name="target")
    return rows


def names_of(work: Work, batch: Any, source: Any) -> NDArray[Any] | None:
    """The names of the rows of a pyarrow.RecordBatch [n]."""
    if work.ids is None:
        return None
    if work.ids not in batch.schema.names:
        raise InputError(
            f"dataset has no column {work.ids!r} but {', '.join(batch.schema.names)}: pass ids="
        )
    if batch.column(work.ids).null_count:
        raise InputError(f"ids: {source} has rows without {work.ids}: give each row its own")
    return np.array(predictions.texts("dataset", source, batch, work.ids), dtype=str)
