"""From files of predictions to a file of picks, for models that live elsewhere.

A pool larger than memory is read in pieces, twice: once for the scores, and once for the few rows
that are still considered. A result is written whole or not at all.

A score takes the k best. A strategy looks at a batch as a whole, which it cannot do for a pool of
any size: it is shown a `Shortlist`.
"""

import csv
import glob
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, checks, predictions, scores
from foresee.errors import InputError
from foresee.predictions import Predictions
from foresee.seeding import generator
from foresee.shortlist import Shortlist, kinds_of, ties
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


# Scores by name, and whether they look at a target.
SCORES = {
    "mell": True,
    "mezl": True,
    "mebl": True,
    "eer": True,
    "bald": False,
    "entropy_mc": False,
    "entropy": False,
}


class Choice(NamedTuple):
    """A strategy for predictions alone, and the score by which a pool is cut to a shortlist."""

    strategy: Strategy
    score: Literal["mell", "mebl", "bald"]


STRATEGIES = {
    "greedy": Choice(GreedyConditioning(aleatoric=False), "mebl"),
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


def choice(name: str, argument: str = "--strategy") -> Choice:
    """Find a strategy by its name, in any case; those that need more than predictions are refused.

    >>> choice("Greedy").score
    'mebl'
    """
    if name.lower() in STRATEGIES:
        return STRATEGIES[name.lower()]
    known = ", ".join(STRATEGIES)
    if name.lower() in _MISSING:
        raise InputError(
            f"{argument} {name} needs {_MISSING[name.lower()]}, which predictions do not tell: "
            f"choose among {known}, or call it in Python"
        )
    raise InputError(f"{argument} must be one of {known}, got {name}")


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
        if None not in (pool.draws, target.draws) and pool.draws != target.draws:
            pools, targets = map(predictions.told_draws, (pool.draws or (), target.draws or ()))
            raise InputError(
                f"pool has the draws {pools} and target has {targets}: write the same draws to both"
            )


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
    scorer = Scorer(score, target, loss, scratch)
    start = 0
    for piece in pool.pieces(scorer.rows_at_once(pool.row_bytes)):
        stop = start + len(piece)
        found, positions = scorer(piece, start), np.arange(start, stop)
        keys, kinds = ties(seed, start, len(piece)), None
        if excluded is not None:
            left = ~np.isin(positions, excluded[slice(*np.searchsorted(excluded, (start, stop)))])
            piece, found, positions, keys = piece[left], found[left], positions[left], keys[left]
        if short.copies:
            keys, kinds = kinds_of(piece, seed)
        short.add(positions, found, keys, kinds)
        start = stop
        advance(start)


@dataclass(frozen=True)
class Scorer:
    """Scores pieces of a pool: a row's score is the same, to the bit, in whatever piece it is.

    Args:
        score: a name in `foresee.scores`.
        target: predictions [m t c], None for scores that look at none.
        loss: what errors cost, for eer.
        scratch: bytes of temporary memory.
    """

    score: str
    target: NDArray[Any] | None = None
    loss: Sequence[Sequence[float]] | None = None
    scratch: int = 256 << 20

    def __post_init__(self) -> None:
        if self.target is not None:
            checks.rows_sum_to_one("target", arrays.tensor(self.target))

    def rows_at_once(self, row_bytes: int) -> int:
        """How many rows to score in one piece."""
        # A score prepares its targets on every call: chunks at least as large repay that.
        targets = 0 if self.target is None else self.target.nbytes
        return max(1, max(min(CHUNK, self.scratch // 4), targets) // row_bytes)

    def __call__(self, piece: NDArray[Any], start: int) -> NDArray[Any]:
        """Scores [n] of predictions [n t c], for entropy [n c], the first being row ``start``."""
        if len(piece) == 0:
            return np.empty(0, np.float32)
        function = getattr(scores, self.score)
        function = function if self.loss is None else partial(scores.eer, loss=self.loss)
        targets = () if self.target is None else (arrays.tensor(self.target),)
        chunk = arrays.tensor(piece)
        try:
            return arrays.numpy(function(chunk, *targets, scratch=self.scratch))
        except InputError:
            # The score counts rows from the start of the chunk; people count from that of the pool.
            checks.rows_sum_to_one("pool", chunk, offset=start)
            raise


def shortlist_size(shortlist: int | None, k: int) -> int:
    """How many rows a strategy chooses k from, where nothing else is asked for."""
    if shortlist is not None and shortlist < k:
        raise InputError(f"shortlist must be at least k = {k}, got {shortlist}")
    return shortlist or max(SHORTLIST, 4 * k)


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
    return the_best(short, pool.take, target)


def the_best(
    short: Shortlist, take: Callable[[NDArray[np.int64]], NDArray[Any]], target: Any
) -> Picks:
    """All of a shortlist; ``take`` gives the predictions at positions."""
    found = short.sorted()
    promises = _promises(take, found.positions, target)
    return Picks(found.positions, found.scores, promises)


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
    short = halved(shortlist, k)
    score_all(pool, target, chosen.score, short, **options)
    return picked(short, pool.take, target, chosen, k, options.get("seed", 0))


def halved(shortlist: int, k: int) -> Shortlist:
    """A shortlist for k picks of a strategy: half the best, half by chance."""
    return Shortlist(shortlist - shortlist // 2, shortlist // 2, copies=k)


def picked(
    short: Shortlist,
    take: Callable[[NDArray[np.int64]], NDArray[Any]],
    target: NDArray[Any] | None,
    chosen: Choice,
    k: int,
    seed: int,
) -> Picks:
    """What a strategy picks of a shortlist; ``take`` gives the predictions at positions."""
    found = short.sorted()
    order = np.argsort(found.positions)  # not by score: what is equal is ordered by chance
    order = order[~found.copies[order]]
    view = View(_Given(), None, np.empty(0), take(found.positions[order]), target)
    picks = order[chosen.strategy(view, min(k, len(order)), generator(seed, "select"))]
    copies = np.flatnonzero(found.copies)[: k - len(picks)]
    picks = np.concatenate([picks, copies])
    positions = found.positions[picks]
    return Picks(positions, found.scores[picks], _promises(take, positions, target), len(copies))


class _Given:
    """A posterior whose inputs are its predictions."""

    def predict(self, inputs: Any) -> Any:
        return inputs

    def point(self, inputs: Any) -> Any:
        return inputs.mean(1)

    def embed(self, inputs: Any) -> Any:
        raise NotImplementedError("files of predictions hold no embeddings")


def _promises(
    take: Callable[[NDArray[np.int64]], NDArray[Any]],
    positions: NDArray[np.int64],
    target: NDArray[Any] | None,
) -> NDArray[np.float64]:
    if target is None:
        return np.empty(0)
    return scores.promises(take(positions[:PROMISED]), target)


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
    paths = [predictions.split(source)[0] for source in sources]
    inputs = [*paths, *(Path(file) for path in paths for file in glob.glob(str(path)))]
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise InputError(f"--out would overwrite the input {out}: choose another file")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise InputError(
            f"--out: cannot write in the folder {out.parent} ({error.strerror}): choose another"
        ) from error
