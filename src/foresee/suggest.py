"""From files of predictions to a file of picks, for models that live elsewhere.

A pool larger than memory is read in pieces, twice: once for the scores, and once for the few rows
that are still considered. A result is written whole or not at all.

A score takes the k best. A strategy looks at a batch as a whole, which it cannot do for a pool of
any size: it is shown a `Shortlist`.
"""

import csv
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foresee import arrays, checks, predictions, scores
from foresee.errors import InputError
from foresee.predictions import Predictions
from foresee.seeding import generator
from foresee.strategies import (
    BatchBALD,
    BatchMell,
    GreedyConditioning,
    MeblPlusPlus,
    PowerMell,
)
from foresee.types import Strategy, View

# Bytes of the pool scored between two reports of progress.
CHUNK = 16 << 20
# Rows of the largest pool that a strategy sees whole; of a larger one it sees so many.
SHORTLIST = 1 << 14
# Picks, from the first, whose promise is told.
PROMISED = 10_000


class Choice(NamedTuple):
    """A strategy for predictions alone, and the score by which a pool is cut to a shortlist."""

    strategy: Strategy
    score: Literal["mell", "mebl", "bald"]


STRATEGIES = {
    "greedy": Choice(GreedyConditioning(), "mebl"),
    "mebl++": Choice(MeblPlusPlus(), "mebl"),
    "powermell": Choice(PowerMell(), "mell"),
    "batchmell": Choice(BatchMell(), "mell"),
    "batchbald": Choice(BatchBALD(), "bald"),
}
# What others need, and predictions do not tell.
_MISSING = {
    "badge": "embeddings of the inputs",
    "coreset": "embeddings of the inputs",
    "retrainingeer": "the model itself, to fit it anew",
}


def choice(name: str) -> Choice:
    """Find a strategy by its name, in any case; those that need more than predictions are refused.

    >>> choice("Greedy").score
    'mebl'
    """
    if name.lower() in STRATEGIES:
        return STRATEGIES[name.lower()]
    known = ", ".join(STRATEGIES)
    if name.lower() in _MISSING:
        raise InputError(
            f"--strategy {name} needs {_MISSING[name.lower()]}, which predictions do not tell: "
            f"choose among {known}, or call it in Python"
        )
    raise InputError(f"--strategy must be one of {known}, got {name}")


def read_loss(path: Path, classes: int) -> tuple[tuple[float, ...], ...]:
    """Read a loss matrix from a CSV without a header: a row for each class, its actions' costs."""
    predictions.check_file("--loss", path)
    try:
        # Opened here: numpy would unpack a .gz of any size.
        with open(path, encoding="utf-8-sig") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file, which we refuse ourselves
            matrix = np.loadtxt(file, delimiter=",", ndmin=2, max_rows=classes + 1)
    except ValueError as error:
        raise InputError(
            f"--loss: {path} must hold numbers separated by commas, one row for each class "
            f"({error}): remove headers and names"
        ) from error
    if matrix.size == 0:
        raise InputError(f"--loss: {path} is empty: write a row of costs for each class")
    checks.loss_matrix(matrix, classes)
    return tuple(tuple(row) for row in matrix.tolist())


def check(pool: Predictions, target: Predictions | None, score: str, k: int) -> None:
    """Check all that can be known before the values are read; only entropy takes a pool [n c]."""
    if score == "entropy":
        if len(pool.shape) == 3:
            raise InputError(
                f"pool must hold one prediction per input [n c] for --score entropy, got draws "
                f"{list(pool.shape)}: use --score entropy_mc"
            )
        checks.array("pool", pool.form, "n c")
    else:
        checks.draws("pool", pool.form)
    checks.count("k", k, len(pool), of="the pool")
    if target is not None:
        checks.draws("target", target.form)
        checks.same_posterior(pool.form, target.form, name="target")
        if None not in (pool.classes, target.classes) and pool.classes != target.classes:
            raise InputError(
                f"pool has the classes {', '.join(pool.classes or ())} and target has "
                f"{', '.join(target.classes or ())}: write the columns of both in the same order"
            )


class Scored(NamedTuple):
    """Some rows of the pool: their positions [k], their scores [k], and which are copies [k]."""

    positions: NDArray[np.int64]
    scores: NDArray[Any]
    copies: NDArray[np.bool_]


@dataclass
class Shortlist:
    """The rows with the highest scores of all that pass by, and some others by chance.

    Equal scores are ordered by chance: by ``keys``, numbers that are drawn for the rows.

    Args:
        best: how many of the highest scores are kept.
        others: how many of the rest are kept, drawn uniformly.
        copies: None keeps copies as any other row. A number counts rows whose predictions are the
            same in float16 as one, the first, and keeps so many copies as long as there are no
            more rows than that which differ.

    Whatever the size of the pieces that are added, the same rows are kept:

    >>> short = Shortlist(best=1, others=0)
    >>> for start in (0, 2):
    ...     values = np.array([0.1, 0.3, 0.2, 0.0])[start : start + 2]
    ...     short.add(np.arange(start, start + 2), values, np.zeros(2))
    >>> short.sorted().positions, short.sorted().scores
    (array([1]), array([0.3]))
    """

    best: int
    others: int
    copies: int | None = None

    def __post_init__(self) -> None:
        self._positions = np.empty(0, np.int64)
        self._scores: NDArray[Any] = np.empty(0, np.float32)
        self._keys = np.empty(0)
        self._prints = np.empty(0, np.uint64)
        self._least, self._last = -np.inf, np.inf  # a row below both is not kept

    def add(
        self,
        positions: NDArray[np.int64],
        values: NDArray[Any],
        keys: NDArray[np.float64],
        rows: NDArray[Any] | None = None,
    ) -> None:
        """Consider the rows [n …] at positions that rise from call to call."""
        some = (values >= self._least) | (keys < self._last)
        prints = _prints(rows[some]) if rows is not None else np.zeros(some.sum(), np.uint64)
        self._positions = np.concatenate([self._positions, positions[some]])
        self._scores = np.concatenate([self._scores, values[some]])
        self._keys = np.concatenate([self._keys, keys[some]])
        self._prints = np.concatenate([self._prints, prints])
        distinct, copies = self._distinct()
        order = distinct[np.lexsort((self._keys[distinct], -self._scores[distinct]))]
        rest = order[self.best :]
        rest = rest[np.argsort(self._keys[rest], kind="stable")[: self.others]]
        if len(order) >= self.best + self.others:
            self._least = self._scores[order[self.best - 1]]
            self._last = self._keys[rest[-1]] if len(rest) else -np.inf
        keep = np.sort(np.concatenate([order[: self.best], rest, copies]))
        self._positions, self._scores = self._positions[keep], self._scores[keep]
        self._keys, self._prints = self._keys[keep], self._prints[keep]

    def sorted(self) -> Scored:
        """What is kept, the highest score first and copies last."""
        is_copy = np.ones(len(self._positions), bool)
        is_copy[self._distinct()[0]] = False
        order = np.lexsort((self._keys, -self._scores, is_copy))
        return Scored(self._positions[order], self._scores[order], is_copy[order])

    def _distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which rows are the first of their kind, and which copies may be needed."""
        everything = np.arange(len(self._positions))
        if self.copies is None:
            return everything, everything[:0]
        distinct = np.sort(np.unique(self._prints, return_index=True)[1])
        if len(distinct) >= self.copies:
            return distinct, everything[:0]
        copies = np.setdiff1d(everything, distinct)
        order = np.lexsort((self._keys[copies], -self._scores[copies]))
        return distinct, copies[order[: self.copies]]


def score_all(
    pool: Predictions,
    target: NDArray[Any] | None,
    score: str,
    short: Shortlist,
    *,
    seed: int = 0,
    scratch: int = 256 << 20,
    loss: Sequence[Sequence[float]] | None = None,
    excluded: NDArray[np.int64] | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> None:
    """Score the pool in pieces and keep what belongs on the shortlist.

    Args:
        pool: predictions [n t c], for entropy [n c].
        target: predictions [m t c], None for scores that look at none.
        score: a name in `foresee.scores`.
        short: what is kept.
        seed: orders equal scores, and draws.
        scratch: bytes of temporary memory.
        loss: what errors cost, for eer.
        excluded: positions, sorted, that are passed over.
        advance: hears how many rows are done after each piece.
    """
    function = getattr(scores, score) if loss is None else partial(scores.eer, loss=loss)
    targets = () if target is None else (arrays.tensor(target),)
    for values in targets:
        checks.rows_sum_to_one("target", values)
    # A score prepares its targets on every call: chunks at least as large repay that.
    size = max([min(CHUNK, scratch // 4), *(t.nbytes for t in targets)])
    rng, start = generator(seed, "ties"), 0
    for piece in pool.pieces(max(1, size // pool.row_bytes)):
        chunk = arrays.tensor(piece)
        try:
            found = arrays.numpy(function(chunk, *targets, scratch=scratch))
        except InputError:
            # The score counts rows from the start of the chunk; people count from that of the pool.
            checks.rows_sum_to_one("pool", chunk, offset=start)
            raise
        positions, keys = np.arange(start, start + len(piece)), rng.random(len(piece))
        start += len(piece)
        if excluded is not None:
            left = ~np.isin(positions, _between(excluded, positions[0], start))
            piece, found, positions, keys = piece[left], found[left], positions[left], keys[left]
        short.add(positions, found, keys, None if short.copies is None else piece)
        advance(start)


class Picks(NamedTuple):
    """The rows to label [k], in order, with scores [k] and promises [k] or fewer; how many copy."""

    positions: NDArray[np.int64]
    scores: NDArray[Any]
    promises: NDArray[np.float64]
    copies: int = 0


def best_by_score(
    pool: Predictions, target: NDArray[Any] | None, score: str, k: int, **options: Any
) -> Picks:
    """The k highest scores; equal ones in an order that the seed decides.

    ``options`` are those of `score_all`.
    """
    short = Shortlist(k, 0)
    score_all(pool, target, score, short, **options)
    found = short.sorted()
    return Picks(found.positions, found.scores, _promises(pool, found.positions, target))


def best_by_strategy(
    pool: Predictions,
    target: NDArray[Any] | None,
    chosen: Choice,
    k: int,
    shortlist: int = SHORTLIST,
    **options: Any,
) -> Picks:
    """k rows that a strategy picks from a shortlist: half of it the best by score, half by chance.

    Rows whose predictions are the same count as one; copies are picked where there is nothing else.
    ``options`` are those of `score_all`.
    """
    short = Shortlist(shortlist - shortlist // 2, shortlist // 2, copies=k)
    score_all(pool, target, chosen.score, short, **options)
    found = short.sorted()
    order = np.argsort(found.positions)  # not by score: what is equal is ordered by chance
    order = order[~found.copies[order]]
    rows = pool.take(found.positions[order])
    view = View(_Given(), None, np.empty(0), rows, target)
    rng = generator(options.get("seed", 0), "select")
    picks = order[chosen.strategy(view, min(k, len(order)), rng)]
    copies = np.flatnonzero(found.copies)[: k - len(picks)]
    picks = np.concatenate([picks, copies])
    positions = found.positions[picks]
    return Picks(positions, found.scores[picks], _promises(pool, positions, target), len(copies))


class _Given:
    """A posterior whose inputs are its predictions."""

    def predict(self, inputs: Any) -> Any:
        return inputs

    def point(self, inputs: Any) -> Any:
        return inputs.mean(1)

    def embed(self, inputs: Any) -> Any:
        raise NotImplementedError("files of predictions hold no embeddings")


def _promises(
    pool: Predictions, positions: NDArray[np.int64], target: NDArray[Any] | None
) -> NDArray[np.float64]:
    if target is None:
        return np.empty(0)
    return scores.promises(pool.take(positions[:PROMISED]), target)


def _prints(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for every row, the same for rows that are the same in float16."""
    halves = arrays.numpy(arrays.tensor(rows).to(torch.float16).flatten(1))
    rng, total = generator(0, "prints"), np.zeros(len(rows), np.uint64)
    for column in halves.view(np.uint16).T:
        total += column * rng.integers(2**64, dtype=np.uint64)
    return total


def _between(values: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    first, last = np.searchsorted(values, [start, stop])
    return values[first:last]


def excluded(
    pool: Predictions, ids: str | None, exclude: Sequence[str], skip: Callable[[str], object]
) -> NDArray[np.int64]:
    """Positions of the rows that are labelled already, sorted; checks that each row has an id.

    Args:
        pool: what they are rows of.
        ids: a file with a name for each row; None: rows are called as `Predictions.place` has it.
        exclude: files of the names to leave out.
        skip: hears of names that are not in the pool.
    """
    names = {name.strip() for source in exclude for name in predictions.names("--exclude", source)}
    names.discard("")
    found = dict[int, str]()
    if ids is None:
        found = {pool.position(name): name for name in names}
        found.pop(-1, None)
    else:
        n = 0
        for n, name in enumerate(predictions.names("--ids", ids), start=1):
            if name.strip() in names:
                found[n - 1] = name.strip()
        if n != len(pool):
            raise InputError(
                f"--ids: {ids} has {n:,} names and the pool has {len(pool):,} rows: give each row "
                "its own"
            )
    if unknown := sorted(names.difference(found.values())):
        some = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
        said = f"--exclude: {len(unknown)} of {len(names)} are not in the pool: {some}"
        if ids is None or not found:
            first = pool.place(0) if ids is None else next(predictions.names("--ids", ids))
            raise InputError(
                f"{said}; name rows as the column id of the result does, such as {first}"
            )
        skip(said)
    return np.array(sorted(found), np.int64)


def named(pool: Predictions, ids: str | None, positions: NDArray[np.int64]) -> list[str]:
    """The names of the rows at these positions; one that is given to two rows is an error."""
    if ids is None:
        return [pool.place(int(position)) for position in positions]
    wanted = {int(position): "" for position in positions}
    for position, name in enumerate(predictions.names("--ids", ids)):
        if position in wanted:
            wanted[position] = name
    rows = {name: position for position, name in wanted.items()}
    for position, name in enumerate(predictions.names("--ids", ids)):
        if rows.get(name, position) != position:
            raise InputError(
                f"--ids: {name!r} is the name of row {min(position, rows[name])} and of row "
                f"{max(position, rows[name])}: give each row its own"
            )
    return [wanted[int(position)] for position in positions]


def to_csv(picks: Picks, ids: Iterable[str]) -> str:
    """Write the picks as a table, one line each."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["index", "score", "rank", "id", "promise"])
    promises = [f"{value:.6g}" for value in picks.promises]
    promises += [""] * (len(picks.positions) - len(promises))
    columns = zip(picks.positions, picks.scores, ids, promises, strict=True)
    for rank, (position, score, name, promise) in enumerate(columns, start=1):
        table.writerow([position, str(score), rank, name, promise])
    return text.getvalue()


def check_out(out: Path, sources: Sequence[str]) -> None:
    """Fail before the work is done, not after it, where its result could not be written."""
    if out.is_dir():
        raise InputError(f"--out must be a file, but {out} is a folder: name a file in it")
    if not out.parent.is_dir():
        raise InputError(f"--out: there is no folder {out.parent}: create it, or choose another")
    if out.exists() and not out.is_file():
        raise InputError(f"--out: {out} is not a regular file: drop --out and redirect stdout")
    inputs = [predictions.split(source)[0] for source in sources]
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise InputError(f"--out would overwrite the input {out}: choose another file")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise InputError(
            f"--out: cannot write in the folder {out.parent} ({error.strerror}): choose another"
        ) from error
