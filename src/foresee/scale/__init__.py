"""Pools larger than one machine: scored by shards on Ray, chosen from on the machine that asks.

A score is pointwise, and a shortlist of shortlists is the shortlist (`foresee.shortlist`).
So every shard is scored where there is room and sends back its own shortlist, rows and all; these
are put together in whatever order they arrive. What is kept follows from the rows, their positions
and the seed alone: not from the shards, nor from who scored them, nor from how often. Ray runs
again what was lost with a worker or a node, and the result is the same.

A batch is chosen from the shortlist. One more pass over the pool then says what no batch of all of
it is worth more than (`foresee.strategies.ceiling`).

Needs the extra ``foresee[ray]``.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foresee import arrays, checks, seeding, suggest as steps
from foresee.errors import DrawsWarning, InputError
from foresee.scale.cluster import check_room, connected
from foresee.scale.pools import Files, pool as opened
from foresee.scale.work import Part, Work, shortlisted, steepest
from foresee.shortlist import Shortlist
from foresee.strategies import GreedyConditioning
from foresee.strategies.ceiling import Tangent, tangent
from foresee.suggest import Scorer
from foresee.types import Posterior

__all__ = ["Suggestion", "suggest"]

# Rows of a shard, about: what is lost with a worker.
SHARD = 1 << 17


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
        ceiling: the most that any batch of k rows of the whole pool can be worth.
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
    strategy: str | None = None,
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
            those, at any address that fsspec reads and that every worker can reach; hidden files
            of a folder or a pattern are passed over.
        target: predictions [m t c]; with a posterior, inputs. None for scores that look at none.
        k: how many rows.
        score: a name in `foresee.scores`: the rows where it is highest are taken, no batch.
        strategy: a name in `foresee.suggest`: it chooses a batch from a shortlist; None: "greedy",
            unless a score is named.
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
        cpus: that each worker has, and as many threads.
        gpus: that each worker has, or a share of one.
        shard: about how many rows a worker scores at a time: whole row groups of a file.
        advance: hears how many rows are scored.

    Returns:
        A `Suggestion`: the highest scores are those of one machine that scores all rows in one
        loop, to the bit on machines of one kind; a batch is one that it would choose from the same
        shortlist. docs/scale.md has examples.
    """
    if (loss is None) == (score == "eer"):
        raise InputError('loss and score="eer" belong together: pass both or none')
    if score is not None and strategy is not None:
        raise InputError("strategy and score exclude each other: pass one of them")
    if score is not None and shortlist is not None:
        raise InputError("shortlist is for a strategy: a score looks at all rows; drop one")
    at_once = 1 if workers is None else workers
    for name, value in (("k", k), ("shard", shard), ("cpus", cpus), ("workers", at_once)):
        checks.count(name, value, 1 << 40, of="any pool")
    seeding.check_number(seed)
    if not gpus >= 0:
        raise InputError(f"gpus must be at least 0, got {gpus!r}")
    if isinstance(exclude, str):
        raise InputError(f"exclude must be a list of names, got {exclude!r}: pass [{exclude!r}]")
    chosen = steps.choice(strategy or "greedy", "strategy") if score is None else None
    called = chosen.score if chosen is not None else str(score)
    if called not in steps.SCORES:
        raise InputError(f"score must be one of {', '.join(steps.SCORES)}, got {called!r}")
    exclude = [str(name) for name in exclude]
    short = Shortlist(k, 0)
    if chosen is not None:
        short = steps.halved(steps.shortlist_size(shortlist, k), k)
    with connected(address) as ray:
        check_room(ray, cpus, gpus)
        travelling = _able_to_travel(posterior)
        values = _target(target, posterior, called)
        scorer = Scorer(called, values, loss, scratch)
        work = Work(scorer, replace(short), seed, column, ids, travelling, read, cpus)
        pool = opened(dataset, work, exclude, shard, workers, gpus)
        passed, rows = set[str](), 0
        for part in pool.each(ray, shortlisted, lambda: (short.least, short.last)):
            passed, rows = passed | part.passed, rows + part.seen
            if part.rows:
                _check_alike(part, short)
                short.add(**part.rows)
            advance(rows)
        unknown = _unknown(exclude, passed, ids)
        checks.count("k", k, len(short.rows.get("kinds", ())), of="the pool that are not excluded")
        take = _taker(short)
        if chosen is None:
            picks = steps.the_best(short, take, values)
        else:
            picks = steps.picked(short, take, values, chosen, k, seed)
        names = pool.names(ray, short, picks.positions)
        worth = most = None
        if ceiling and chosen is not None and values is not None:
            touching = _tangent(take(picks.positions), values)
            parts = pool.each(ray, steepest, lambda: (touching, k))
            slopes = np.concatenate([part.rows["slopes"] for part in parts])
            worth, most = touching.worth, touching.ceiling(torch.tensor(np.sort(slopes)[-k:]))
    return Suggestion(
        names,
        picks.positions if isinstance(pool, Files) else None,
        picks.scores,
        picks.promises,
        rows,
        len(short.sorted().positions),
        picks.copies,
        worth,
        most,
        unknown,
    )


def _able_to_travel(posterior: Posterior | None) -> Posterior | None:
    """A posterior without what it made of its model on the way, such as traces, if it can be so."""
    anything: Any = posterior
    return replace(anything) if is_dataclass(posterior) else posterior


def _target(target: Any, posterior: Posterior | None, score: str) -> NDArray[Any] | None:
    if not steps.SCORES[score]:
        return None
    if target is None:
        raise InputError(f"target is needed by {score}: pass a sample of the data you care about")
    values = target if posterior is None else posterior.predict(target)
    return arrays.numpy(checks.draws("target", values))


def _check_alike(part: Part, short: Shortlist) -> None:
    """Rows are put together: those of half precision would not sum to one among others."""
    met = [rows["rows"] for rows in (part.rows, short.rows) if rows]
    if len({(rows.shape[1:], rows.itemsize == 2) for rows in met}) > 1:
        forms = sorted(f"{list(rows.shape[1:])} of {rows.dtype}" for rows in met)
        raise InputError(
            f"dataset must hold rows of one shape, and of half precision all or none, got "
            f"{' and '.join(forms)}: write all of them alike"
        )


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
    met = {name.strip() for name in passed}
    unknown = [] if ids is None else [name for name in exclude if name.strip() not in met]
    if unknown and not passed:
        raise InputError(f"exclude: no row is called {unknown[0]!r}, nor as any of the others")
    return unknown
