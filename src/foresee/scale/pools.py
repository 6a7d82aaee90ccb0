"""Pools in shards: Parquet files, or a Ray dataset; Ray runs again what is lost."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import has_magic
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.predictions import Places
from foresee.scale import cluster
from foresee.scale.work import Part, Piece, Work, names_of, namesakes, rows_of
from foresee.shortlist import Shortlist, spread, ties

_READERS = 16  # threads that look at files
_AHEAD = 2  # shards handed out for each worker


class _Shard(NamedTuple):
    """Row groups of a file; ``start`` is the position of their first row in the whole pool."""

    path: str
    groups: list[int]
    start: int


@dataclass(frozen=True)
class Files:
    """Parquet files, one after the other."""

    work: Work
    system: Any
    rows: Places
    shards: list[_Shard]
    workers: int | None
    gpus: float

    def each(
        self, ray: Any, function: Callable[..., Part], extra: Callable[[], tuple[Any, ...]]
    ) -> Iterator[Part]:
        """The parts of all shards, as they come; ``extra`` arguments are asked for each anew."""
        task = ray.remote(_on_shard).options(
            num_cpus=self.work.cpus,
            num_gpus=self.gpus,
            max_retries=cluster.RETRIES,
            name="foresee shard",
        )
        work = cluster.sent(ray, self.work)
        shards, waiting = iter(self.shards), list[Any]()
        while True:
            cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))  # a cluster may grow
            at_once = self.workers or _AHEAD * cpus
            for shard in islice(shards, max(0, at_once - len(waiting))):
                waiting.append(task.remote(function, work, self.system, shard, *extra()))
            if not waiting:
                return
            (done,), waiting = ray.wait(waiting)
            yield _accepted(cluster.outcome(ray, done, "a shard of the dataset"))

    def names(self, ray: Any, short: Shortlist, positions: NDArray[np.int64]) -> list[str]:
        """The names of rows on a shortlist."""
        if self.work.ids is None:
            return [self.rows.place(int(position)) for position in positions]
        return _distinct(self, ray, short, positions)


def _on_shard(
    function: Callable[..., Part], work: Work, system: Any, shard: _Shard, *extra: Any
) -> Part | InputError:
    return _attempt(function, work, _read(work, system, shard), *extra)


def _read(work: Work, system: Any, shard: _Shard) -> Iterator[Piece]:
    start = shard.start
    with _opened(system, shard.path) as file:
        columns = work.columns(file.schema_arrow)
        at_once = work.rows_at_once(_row_bytes(file.metadata, shard.groups, columns))
        for batch in file.iter_batches(at_once, row_groups=shard.groups, columns=columns):
            rows = rows_of(work, batch, shard.path)
            positions = np.arange(start, start + len(rows))
            keys = ties(work.seed, start, len(rows))
            yield Piece(rows, positions, keys, names_of(work, batch, shard.path), start)
            start += len(rows)


def _row_bytes(metadata: Any, groups: Sequence[int], columns: Sequence[str] | None) -> int:
    """What a row of these columns, or of all, takes in memory, about."""
    about = [metadata.row_group(group) for group in groups]
    parts = [group.column(place) for group in about for place in range(group.num_columns)]
    read = [p for p in parts if columns is None or p.path_in_schema.partition(".")[0] in columns]
    rows = sum(group.num_rows for group in about)
    return sum(part.total_uncompressed_size for part in read) // max(1, rows)


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
class Blocks:
    """A Ray dataset; rows are told apart by their names, and ordered by a hash of these."""

    work: Work
    dataset: Any
    workers: int | None
    gpus: float

    def each(
        self, ray: Any, function: Callable[..., Part], extra: Callable[[], tuple[Any, ...]]
    ) -> Iterator[Part]:
        """The parts of all blocks, as they come."""
        whole, ids = self.dataset, self.work.ids
        dataset = whole.select_columns([ids]) if self.work.wanted else whole
        parts = dataset.map_batches(
            _on_block,
            batch_size=None,
            batch_format="pyarrow",
            fn_args=(function, cluster.sent(ray, self.work), *extra()),
            num_cpus=self.work.cpus,
            num_gpus=self.gpus or None,
            concurrency=self.workers,
        )
        for batch in parts.iter_batches(batch_size=None, batch_format="numpy"):
            yield from map(_accepted, batch["part"])

    def names(self, ray: Any, short: Shortlist, positions: NDArray[np.int64]) -> list[str]:
        """The names of rows on a shortlist."""
        return _distinct(self, ray, short, positions)


def _on_block(table: Any, function: Callable[..., Part], held: Any, *extra: Any) -> Any:
    import ray

    part = np.empty(1, object)
    try:
        work: Work = ray.get(held)
    except ray.exceptions.RaySystemError as error:  # which Ray would try again without end
        part[0] = cluster.unreadable(error)
        return {"part": part}

    def pieces() -> Iterator[Piece]:
        from pandas.util import hash_array

        columns = work.columns(table.schema) or table.column_names
        size = sum(table[name].nbytes for name in columns if name in table.column_names)
        for batch in table.to_batches(work.rows_at_once(size // max(1, len(table)))):
            rows, names = rows_of(work, batch, "a block"), names_of(work, batch, "a block")
            positions = hash_array(np.asarray(names, object), categorize=False).view(np.int64)
            keys = spread(positions.view(np.uint64), work.seed)
            yield Piece(rows, positions, keys, names, 0)

    part[0] = _attempt(function, work, pieces(), *extra)
    return {"part": part}


def pool(
    dataset: Any,
    work: Work,
    exclude: Sequence[str],
    shard: int,
    workers: int | None,
    gpus: float,
) -> Files | Blocks:
    """The dataset, and the work with what is excluded from it."""
    if hasattr(dataset, "map_batches"):
        if work.ids is None:
            raise InputError(
                "ids must name a column of the Ray dataset, got None: its rows have no numbers to "
                "be told apart by"
            )
        return Blocks(replace(work, exclude=_stripped(exclude)), dataset, workers, gpus)
    system, paths = _paths(dataset)
    with ThreadPoolExecutor(_READERS) as threads:
        files = list(threads.map(lambda path: _groups(system, path, shard), paths))
    sizes = [sum(rows for _, rows in groups) for groups in files]
    rows = Places.of("dataset", paths, sizes)
    shards = []
    for path, groups, start in zip(paths, files, rows.starts.tolist(), strict=False):
        for which, size in groups:
            shards.append(_Shard(path, which, start))
            start += size
    if work.ids is not None:
        work = replace(work, exclude=_stripped(exclude))
        return Files(work, system, rows, shards, workers, gpus)
    positions = [rows.position(name) for name in exclude]
    if -1 in positions:
        raise InputError(
            f"exclude: {exclude[positions.index(-1)]!r} is no row of the pool; name rows as the "
            f"result does, such as {rows.place(0)}"
        )
    work = replace(work, exclude=np.array(positions, np.int64))
    return Files(work, system, rows, shards, workers, gpus)


def _stripped(names: Sequence[str]) -> NDArray[Any]:
    return np.array([name.strip() for name in names], str)


def _paths(dataset: Any) -> tuple[Any, list[str]]:
    """The file system and the files, in the order of their names."""
    from fsspec.core import url_to_fs

    system: Any = None
    found = list[str]()
    sources = [dataset] if isinstance(dataset, str | os.PathLike) else list(dataset)
    if not all(isinstance(source, str | os.PathLike) for source in sources):
        raise InputError(
            "dataset must be a Ray dataset or paths of Parquet files, got "
            f"{type(dataset).__name__}: write what is in memory by foresee.predictions.to_arrow, "
            "or score it without Ray"
        )
    for source in sources:
        try:
            there, path = url_to_fs(os.fspath(source))
            if there.isdir(path):
                some = [name for name in there.find(path) if name.endswith(".parquet")]
            elif has_magic(path) and not there.exists(path):
                some = there.glob(path)
            else:
                some = [path]
        except Exception as error:  # of a protocol, or of whatever answers
            raise InputError(f"dataset: {source} cannot be reached ({error})") from error
        # What is hidden, as a file that is still being written, is read only if it is named so.
        hidden = f"/{path}".count("/.")
        some = [name for name in some if f"/{name}".count("/.") <= hidden]
        if not some:
            raise InputError(f"dataset: no .parquet file at {source}: check the path")
        if system is not None and system != there:
            raise InputError(f"dataset: {source} is at another place than the rest: copy it there")
        system, found = there, [*found, *sorted(some)]
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


def _distinct(
    pool: Files | Blocks, ray: Any, short: Shortlist, positions: NDArray[np.int64]
) -> list[str]:
    """The names of rows on a shortlist, which no other row of the pool may have."""
    of = dict(zip(short.rows["positions"].tolist(), short.rows["names"].tolist(), strict=True))
    names = [of[position] for position in positions.tolist()]
    work = replace(pool.work, wanted=frozenset(names), posterior=None)
    parts = replace(pool, work=work, gpus=0).each(ray, namesakes, tuple)
    met = Counter(name for part in parts for name in part.rows["names"].tolist())
    for name, rows in met.most_common(1):
        if rows > 1:
            raise InputError(f"ids: {name!r} is the name of {rows} rows: give each row its own")
    return names


def _attempt(function: Callable[..., Part], work: Work, *arguments: Any) -> Part | InputError:
    """A worker's turn; what it refuses comes back as it is, not in Ray's words."""
    torch.set_num_threads(work.cpus)
    try:
        return function(work, *arguments)
    except InputError as error:
        return error


def _accepted(part: Part | InputError) -> Part:
    if isinstance(part, InputError):
        raise part
    return part
