"""Pools larger than one machine: scored by shards on Ray, chosen from on the machine that asks.

A score is pointwise, and a shortlist of shortlists is the shortlist (`foresee.suggest.Shortlist`).
So every shard is scored where there is room and sends back its own shortlist, rows and all; these
are put together in whatever order they arrive. What is kept follows from the rows, their positions
and the seed alone: not from the shards, nor from who scored them, nor from how often. Ray runs
again what was lost with a worker or a node, and the result is the same.

A batch is chosen from the shortlist. One more pass over the pool then says what no batch of all of
it is worth more than (`foresee.strategies.ceiling`).

Needs the extra ``foresee[ray]``.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foresee import arrays, checks, predictions, suggest as steps
from foresee.errors import DrawsWarning, InputError
from foresee.predictions import Predictions
from foresee.strategies import GreedyConditioning
from foresee.strategies.ceiling import Tangent, tangent
from foresee.suggest import Scorer, Shortlist
from foresee.types import Posterior

# Rows of a shard, about: what is lost with a worker.
SHARD = 1 << 17
# Bytes of memory that workers of one machine share; results are small.
_WITHOUT_TARGET = ("bald", "entropy_mc", "entropy")
_STORE = 512 << 20
_READERS = 16  # threads that look at files
_PIECE = 1 << 13  # rows that are read at once where no target tells how large they are
_AHEAD = 2  # shards handed out for each worker


@dataclass(frozen=True)
class Suggestion:
    """Which rows to label, best first.

    Attributes:
        ids: their names [k]: of the column ``ids``, or else the row's number, after the name of
            its file where there are several.
        positions: their rows in all files, one after the other [k]; None for a Ray dataset.
        scores: of each by itself [k].
        promises: by how much the Brier loss on the target is expected to fall once this row and
            those above it are labelled, of the first 10 000; none without a target.
        rows: how many were scored.
        shortlist: how many the batch was chosen from.
        copies: how many, the last, are copies of rows above.
        worth: by how much the batch lowers the expected Brier loss where labels have the noise
            that `GreedyConditioning` assumes; None where no ceiling was asked for.
        ceiling: what no batch of k rows of the whole pool is worth more than.
        unknown: names to exclude that are not in the pool.
    """

    ids: list[str]
    positions: NDArray[np.int64] | None
    scores: NDArray[Any]
    promises: NDArray[np.float64]
    rows: int
    shortlist: int
    copies: int = 0
    worth: float | None = None
    ceiling: float | None = None
    unknown: list[str] = field(default_factory=list)


def suggest(
    dataset: Any,
    target: Any,
    k: int,
    *,
    score: str | None = None,
    strategy: str = "greedy",
    column: str | None = None,
    ids: str | None = None,
    exclude: Sequence[str] = (),
    posterior: Posterior | None = None,
    read: Callable[[Any], Any] | None = None,
    loss: Sequence[Sequence[float]] | None = None,
    shortlist: int | None = None,
    ceiling: bool = True,
    seed: int = 0,
    scratch: int = 256 << 20,
    address: str | None = None,
    workers: int | None = None,
    cpus: int = 1,
    gpus: float = 0,
    shard: int = SHARD,
    advance: Callable[[int], object] = lambda done: None,
) -> Suggestion:
    """Suggest which rows of a pool of any size to label next.

    Args:
        dataset: a Ray dataset; or Parquet files, as a path, a folder, a pattern or a list of
            those, at any address that fsspec reads and that every worker can reach.
        target: predictions [m t c]; with a posterior, inputs. None for scores that look at none.
        k: how many rows.
        score: takes the highest of this score, by its name in `foresee.scores`;
        strategy: else this chooses a batch from a shortlist: a name in `foresee.suggest`.
        column: of the predictions [t c] or inputs: lists, tensors, or rows packed by
            `foresee.predictions.to_arrow`; None where there is only one of those.
        ids: a column of names; a Ray dataset needs it, as its rows have no numbers.
        exclude: names of rows that are labelled already.
        posterior: travels to the workers, which predict there; ``column`` then holds inputs.
        read: what the posterior reads, from a pyarrow.RecordBatch; None: the column as an array.
        loss: costs [c a], for the score "eer".
        shortlist: rows that a strategy chooses from; None: 16 384, or 4 k.
        ceiling: pass over the pool once more for ``ceiling``, where a strategy has a target.
        seed: orders what is equal, and draws.
        scratch: bytes of temporary memory of each worker.
        address: of a Ray cluster, "auto" for one that runs here; None or "local": started here.
            Where the program is connected to Ray already, that is used.
        workers: shards scored at once; None: as many as there are CPUs.
        cpus: of each worker, which uses so many threads,
        gpus: and GPUs, or a share of one.
        shard: rows of a shard, about: whole row groups of a file.
        advance: hears how many rows are scored.

    Returns:
        A `Suggestion`: the highest scores are those of one machine that scores all rows in one
        loop, to the bit on machines of one kind; a batch is one that it would choose from the same
        shortlist.
    """
    if (loss is None) == (score == "eer"):
        raise InputError('loss and score="eer" belong together: pass both or none')
    checks.count("k", k, 1 << 40, of="any pool")
    checks.count("shard", shard, 1 << 40, of="any pool")
    chosen = steps.choice(strategy) if score is None else None
    size = steps.shortlist_size(shortlist, k)
    if chosen is None and shortlist is not None:
        raise InputError("shortlist is for a strategy: a score looks at all rows; drop one")
    name = chosen.score if chosen is not None else str(score)
    with connected(address) as ray:
        fresh = _able_to_travel(posterior)
        values = _target(target, posterior, name)
        scorer = Scorer(name, values, loss, scratch)
        scorer.check_target()
        # A first half that is all: a score keeps the k best.
        short = Shortlist(k, 0) if chosen is None else steps.halved(size, k)
        work = _Work(scorer, short, seed, column, ids, fresh, read, cpus)
        pool = _pool(dataset, work, exclude, shard, workers, gpus)
        passed, rows = set[str](), 0
        for part in pool.each(ray, _shortlisted, lambda: (short.least, short.last)):
            passed |= part.passed
            rows += part.seen
            if part.rows:
                short.add(**part.rows)
            advance(rows)
        unknown = _unknown(exclude, passed, ids)
        found = len(short.rows.get("positions", ()))
        checks.count("k", k, found, of="the pool that are not excluded")
        take = _taker(short)
        if chosen is None:
            picks = steps.the_best(short, take, values)
        else:
            picks = steps.picked(short, take, values, chosen, k, seed)
        considered = len(short.sorted().positions)
        worth = most = None
        if ceiling and chosen is not None and values is not None:
            touching = _tangent(take(picks.positions), values)
            parts = pool.each(ray, _steepest, lambda: (touching, k))
            largest = np.concatenate([part.rows["slopes"] for part in parts])
            worth = touching.worth
            most = touching.ceiling(torch.from_numpy(np.sort(largest)[-k:].copy()))
    return Suggestion(
        pool.names(short, picks.positions),
        picks.positions if isinstance(pool, _Files) else None,
        picks.scores,
        picks.promises,
        rows,
        considered,
        picks.copies,
        worth,
        most,
        unknown,
    )


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Connect to Ray, or start it on this machine, for a while; a connection that is there is used.

    Args:
        address: of a cluster; None or "local": started here, with so many
        cpus: None: all.
    """
    try:
        import ray
    except ImportError:
        raise InputError('this needs Ray: pip install "foresee[ray]"') from None
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray will do to tasks without a GPU: leave the environment as it is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        address, options["num_cpus"] = "local", cpus
        options |= {"include_dashboard": False, "object_store_memory": _STORE}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(
            f"no Ray answers at {address} ({said}): pass the address of a running cluster, as in "
            '"127.0.0.1:6379", or "local"'
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _Work:
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

    @property
    def rows_at_once(self) -> int:
        """How many rows to read and score in one piece."""
        target = self.scorer.target
        return _PIECE if target is None else self.scorer.rows_at_once(target[0].nbytes)

    def columns(self, schema: Any) -> list[str] | None:
        """The columns to read; None: all, as only ``read`` knows which it looks at."""
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


class _Piece(NamedTuple):
    """Rows of a shard: predictions [n t c], positions [n], keys [n], names [n]; the first's row."""

    rows: NDArray[Any]
    positions: NDArray[np.int64]
    keys: NDArray[np.float64]
    names: NDArray[Any] | None
    start: int


class _Part(NamedTuple):
    """What a shard sends back: columns of rows, names that were excluded, how many rows it had."""

    rows: dict[str, NDArray[Any]]
    passed: set[str]
    seen: int


def _shortlisted(work: _Work, pieces: Iterator[_Piece], least: float, last: float) -> _Part:
    """The shortlist of a shard, less what is known not to be on that of all."""
    short, passed, seen = replace(work.short, least=least, last=last, rows={}), set[str](), 0
    for piece in pieces:
        left = _left(work, piece)
        rows, keys, kinds = piece.rows[left], piece.keys[left], None
        if short.copies:
            keys, kinds = steps.kinds_of(rows, work.seed)
        along = {"rows": rows}
        if piece.names is not None:
            along["names"] = piece.names[left]
            passed |= set(piece.names[~left].tolist())
        found = work.scorer(piece.rows, piece.start)[left]
        short.add(piece.positions[left], found, keys, kinds, **along)
        seen += len(left)
    return _Part(short.rows, passed, seen)


def _steepest(work: _Work, pieces: Iterator[_Piece], touching: Tangent, k: int) -> _Part:
    """The k largest slopes of a shard."""
    largest, seen = np.empty(0), 0
    for piece in pieces:
        rows = piece.rows[_left(work, piece)]
        slopes = arrays.numpy(touching.slopes(arrays.tensor(rows)))
        largest = np.sort(np.concatenate([largest, slopes]))[-k:]
        seen += len(piece.rows)
    return _Part({"slopes": largest}, set(), seen)


def _left(work: _Work, piece: _Piece) -> NDArray[np.bool_]:
    """Which rows are not excluded."""
    return ~np.isin(piece.positions if piece.names is None else piece.names, work.exclude)


def _rows(work: _Work, batch: Any, source: Any) -> NDArray[Any]:
    """Predictions [n t c] for a pyarrow.RecordBatch."""
    if work.read is None:
        rows: Any = predictions.from_arrow("dataset", source, batch, work.field(batch.schema))
    else:
        rows = work.read(batch)
    if work.posterior is not None:
        rows = arrays.numpy(work.posterior.predict(rows), "posterior.predict(dataset)")
    target = work.scorer.target
    if work.scorer.score == "entropy":
        return checks.array("dataset", rows, "n c")
    rows = checks.draws("dataset", rows)
    if target is not None:
        checks.same_posterior(rows, target, name="target")
    return rows


def _names(batch: Any, column: str | None) -> NDArray[Any] | None:
    if column is None:
        return None
    if column not in batch.schema.names:
        raise InputError(
            f"dataset has no column {column!r} but {', '.join(batch.schema.names)}: pass ids="
        )
    return np.array(batch.column(column).to_pylist(), dtype=str)


class _Shard(NamedTuple):
    """Row groups of a file; ``start`` is the position of their first row in the whole pool."""

    path: str
    groups: list[int]
    start: int


@dataclass(frozen=True)
class _Files:
    """Parquet files, one after the other."""

    work: _Work
    system: Any
    about: Predictions
    shards: list[_Shard]
    workers: int | None
    gpus: float

    def each(
        self, ray: Any, function: Callable[..., _Part], extra: Callable[[], tuple[Any, ...]]
    ) -> Iterator[_Part]:
        """The parts of all shards, as they come; ``extra`` arguments are asked for each anew."""
        task = ray.remote(_on_shard).options(
            num_cpus=self.work.cpus, num_gpus=self.gpus, max_retries=-1, name="foresee shard"
        )
        work = ray.put(self.work)
        at_once = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        at_once = at_once if self.workers else _AHEAD * at_once
        shards, waiting = iter(self.shards), list[Any]()
        while True:
            for shard in islice(shards, at_once - len(waiting)):
                waiting.append(task.remote(function, work, self.system, shard, *extra()))
            if not waiting:
                return
            (done,), waiting = ray.wait(waiting)
            yield _result(ray, done)

    def names(self, short: Shortlist, positions: NDArray[np.int64]) -> list[str]:
        """The names of rows on a shortlist."""
        if self.work.ids is None:
            return [self.about.place(int(position)) for position in positions]
        return _distinct(short, positions)


def _on_shard(
    function: Callable[..., _Part], work: _Work, system: Any, shard: _Shard, *extra: Any
) -> _Part:
    """A worker's turn."""
    torch.set_num_threads(work.cpus)
    return function(work, _read(work, system, shard), *extra)


def _read(work: _Work, system: Any, shard: _Shard) -> Iterator[_Piece]:
    start = shard.start
    with _opened(system, shard.path) as file:
        columns = work.columns(file.schema_arrow)
        for batch in file.iter_batches(work.rows_at_once, row_groups=shard.groups, columns=columns):
            rows = _rows(work, batch, shard.path)
            positions = np.arange(start, start + len(rows))
            keys = steps.ties(work.seed, start, len(rows))
            yield _Piece(rows, positions, keys, _names(batch, work.ids), start)
            start += len(rows)


@contextmanager
def _opened(system: Any, path: str) -> Iterator[Any]:
    from pyarrow import parquet

    try:
        local = system.protocol == ("file", "local")
        opened = parquet.ParquetFile(path if local else system.open(path, "rb"), memory_map=local)
    except Exception as error:  # whatever a store, or a damaged file, does
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"dataset: {path} cannot be read ({said}): check the path, that every worker can reach "
            "it, and that it is Parquet"
        ) from error
    with opened:
        yield opened


@dataclass(frozen=True)
class _Blocks:
    """A Ray dataset; rows are told apart by their names, and ordered by a hash of these."""

    work: _Work
    dataset: Any
    workers: int | None
    gpus: float

    def each(
        self, ray: Any, function: Callable[..., _Part], extra: Callable[[], tuple[Any, ...]]
    ) -> Iterator[_Part]:
        """The parts of all blocks, as they come."""
        parts = self.dataset.map_batches(
            _on_block,
            batch_size=None,
            batch_format="pyarrow",
            fn_args=(function, ray.put(self.work), *extra()),
            num_cpus=self.work.cpus,
            num_gpus=self.gpus or None,
            concurrency=self.workers,
        )
        try:
            for batch in parts.iter_batches(batch_size=None, batch_format="numpy"):
                yield from batch["part"]
        except ray.exceptions.RayTaskError as error:
            raise _refused(error) or error from None

    def names(self, short: Shortlist, positions: NDArray[np.int64]) -> list[str]:
        """The names of rows on a shortlist."""
        return _distinct(short, positions)


def _on_block(table: Any, function: Callable[..., _Part], held: Any, *extra: Any) -> Any:
    import ray

    work: _Work = ray.get(held)
    torch.set_num_threads(work.cpus)

    def pieces() -> Iterator[_Piece]:
        from pandas.util import hash_array

        for batch in table.to_batches(work.rows_at_once):
            rows, names = _rows(work, batch, "a block"), _names(batch, work.ids)
            positions = hash_array(np.asarray(names, object), categorize=False).view(np.int64)
            keys = steps.spread(positions.view(np.uint64), work.seed)
            yield _Piece(rows, positions, keys, names, 0)

    part = np.empty(1, object)
    part[0] = function(work, pieces(), *extra)
    return {"part": part}


def _pool(
    dataset: Any,
    work: _Work,
    exclude: Sequence[str],
    shard: int,
    workers: int | None,
    gpus: float,
) -> _Files | _Blocks:
    """The dataset, and the work with what is excluded from it."""
    if hasattr(dataset, "map_batches"):
        if work.ids is None:
            raise InputError(
                "ids must name a column of the Ray dataset, got None: its rows have no numbers to "
                "be told apart by"
            )
        return _Blocks(replace(work, exclude=np.array(exclude, str)), dataset, workers, gpus)
    system, paths = _paths(dataset)
    with ThreadPoolExecutor(_READERS) as threads:
        files = list(threads.map(lambda path: _groups(system, path, shard), paths))
    sizes = tuple(sum(rows for _, rows in groups) for groups in files)
    about = Predictions("dataset", tuple(paths), sizes, (sum(sizes),), np.dtype("f2"), None)
    shards, start = [], 0
    for path, groups in zip(paths, files, strict=True):
        for which, rows in groups:
            shards.append(_Shard(path, which, start))
            start += rows
    if work.ids is not None:
        return _Files(
            replace(work, exclude=np.array(exclude, str)), system, about, shards, workers, gpus
        )
    positions = {name: about.position(name) for name in exclude}
    if strange := [name for name, position in positions.items() if position < 0]:
        raise InputError(
            f"exclude: {strange[0]!r} is no row of the pool; name rows as the result does, such as "
            f"{about.place(0)}"
        )
    work = replace(work, exclude=np.array(sorted(positions.values()), np.int64))
    return _Files(work, system, about, shards, workers, gpus)


def _paths(dataset: Any) -> tuple[Any, list[str]]:
    """The file system and the files, in the order of their names."""
    from fsspec.core import url_to_fs

    system, found = None, list[str]()
    for source in [dataset] if isinstance(dataset, str | os.PathLike) else list(dataset):
        try:
            system, path = url_to_fs(os.fspath(source))
            if system.isdir(path):
                some = [name for name in system.find(path) if name.endswith(".parquet")]
            else:
                some = system.glob(path) if "*" in path or "?" in path else [path]
        except Exception as error:  # of a protocol, or of whatever answers
            raise InputError(f"dataset: {source} cannot be reached ({error})") from error
        if not some:
            raise InputError(f"dataset: no .parquet file at {source}: check the path")
        found += sorted(some)
    if not found:
        raise InputError("dataset is empty: pass a path of Parquet files")
    return system, found


def _groups(system: Any, path: str, shard: int) -> list[tuple[list[int], int]]:
    """Row groups of a file, put together to shards, and how many rows each has."""
    with _opened(system, path) as file:
        rows = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    found, which, size = [], list[int](), 0
    for group, more in enumerate(rows):
        if which and size + more > shard:
            found.append((which, size))
            which, size = [], 0
        which, size = [*which, group], size + more
    return [*found, (which, size)] if which else found


def _able_to_travel(posterior: Posterior | None) -> Posterior | None:
    """A posterior without what it made of its model on the way, such as traces, if it can be so."""
    anything: Any = posterior
    return replace(anything) if is_dataclass(posterior) else posterior


def _target(target: Any, posterior: Posterior | None, score: str) -> NDArray[Any] | None:
    if score in _WITHOUT_TARGET:
        return None
    if target is None:
        raise InputError(f"target is needed by {score}: pass a sample of the data you care about")
    values = target if posterior is None else posterior.predict(target)
    return arrays.numpy(checks.draws("target", values))


def _taker(short: Shortlist) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
    order = np.argsort(short.rows["positions"])
    positions, rows = short.rows["positions"][order], short.rows["rows"][order]
    return lambda wanted: rows[np.searchsorted(positions, wanted)]


def _tangent(batch: NDArray[Any], target: NDArray[Any]) -> Tangent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DrawsWarning)  # the strategy has warned
        noise = GreedyConditioning().enough_noise(len(batch), *batch.shape[1:])
    return tangent(arrays.tensor(batch), arrays.tensor(target), noise)


def _unknown(exclude: Sequence[str], passed: set[str], ids: str | None) -> list[str]:
    """Names that were not met; where none was, they are of something else."""
    unknown = [] if ids is None else [name for name in exclude if name not in passed]
    if unknown and not passed:
        raise InputError(f"exclude: no row is called {unknown[0]!r}, nor as any of the others")
    return unknown


def _distinct(short: Shortlist, positions: NDArray[np.int64]) -> list[str]:
    """Names of rows; those of a shortlist must differ."""
    all_of_them, counts = np.unique(short.rows["names"], return_counts=True)
    if counts.max() > 1:
        raise InputError(f"ids: {all_of_them[counts.argmax()]!r} is the name of two rows")
    of = dict(zip(short.rows["positions"].tolist(), short.rows["names"].tolist(), strict=True))
    return [of[position] for position in positions.tolist()]


def _result(ray: Any, done: Any) -> _Part:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise _refused(error) or error from None


def _refused(error: BaseException | None) -> InputError | None:
    """What a worker refused, of what Ray says about it."""
    while error is not None:
        if type(error) is InputError:
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None
