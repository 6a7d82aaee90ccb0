"""foresee suggest: which inputs to label next, from predictions in files."""

import csv as tables
import io
import time
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foresee.cli.console import FILE, LOSS_HELP, cores, note, progress_bar, show, stop, to_stdout

if TYPE_CHECKING:
    from foresee.predictions import Predictions
    from foresee.suggest import Choice, Picks

ScoreName = StrEnum("ScoreName", ["mell", "mezl", "mebl", "eer", "bald", "entropy_mc", "entropy"])
# The strategy where neither it nor a score is named.
DEFAULT = "greedy"
_MEANINGS = {
    "mell": "expected reduction of the log loss, in nats",
    "mezl": "expected reduction of the error rate",
    "mebl": "expected reduction of the Brier loss",
    "eer": "expected reduction of the loss given by --loss",
    "bald": "information about the model, in nats",
    "entropy_mc": "entropy of the mean prediction, in nats",
    "entropy": "entropy of the prediction, in nats",
}


@dataclass(frozen=True)
class _Request:
    """How to choose, in words for messages: the option, its score, and what that means."""

    option: str
    score: str
    strategy: "Choice | None" = None

    @property
    def meaning(self) -> str:
        return _MEANINGS[self.score]


def suggest(
    pool: Annotated[
        str, typer.Option(metavar=FILE, help='Predictions for the pool; "pool-*.npy": many files.')
    ],
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many inputs to suggest.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Predictions for an unlabelled sample of the data you care about, by the same "
            "draws. Needed by all but batchbald, bald, entropy_mc and entropy.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Choose a batch as a whole: greedy, mebl++, powermell, batchmell, batchbald. "
            f"[default: {DEFAULT}]",
        ),
    ] = None,
    score: Annotated[
        ScoreName | None,
        typer.Option(
            metavar="NAME",
            help="Or take the highest scores. mell, mezl, mebl, eer: expected reduction of the log "
            "loss, error rate, Brier loss, or loss given by --loss, on the target. bald, "
            "entropy_mc, entropy: uncertainty about the input itself.",
        ),
    ] = None,
    loss: Annotated[Path | None, typer.Option(metavar=FILE, help=LOSS_HELP)] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar=FILE, help="A name for each row: a file, or a column of the pool."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar=FILE, help="Names of rows that are labelled already; may be repeated."
        ),
    ] = None,
    shortlist: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rows a strategy chooses from. [default: 16384, or 4 k]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar=FILE, help="Write the CSV here, not to stdout.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Orders what is equal.")] = 0,
    memory: Annotated[int, typer.Option(metavar="MIB", min=1, help="Scratch memory.")] = 256,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Score on a Ray cluster, or with workers started here: local. --pool is then "
            "Parquet at any fsspec address, --ids a column of it. On one machine the plain way is "
            "taken where that is faster.",
        ),
    ] = None,
    force_ray: Annotated[
        bool, typer.Option("--force-ray", help="With --ray: take it even then.")
    ] = False,
) -> None:
    """Suggest which inputs to label next, from predictions in files.

    A file holds probabilities [n t c]: n inputs, t posterior draws, c classes; for entropy [n c].
    .npy and .pt files are mapped and may be larger than memory, as are .csv and .parquet files with
    a column for every draw and class, named as 0:cat; a packed .npz file is loaded. file:name picks
    one of several arrays.

    The result is a CSV: index (the row in the pool), score (of the row by itself), rank, id, and
    promise: by how much the Brier loss on the target is expected to fall once this row and those
    above it are labelled.
    """
    with progress_bar() as bar:
        task = bar.add_task("loading", total=None)
        from foresee import checks, suggest as steps

        def advance(done: int) -> None:
            stage = "choosing" if done == len(rows) else "scoring"
            bar.update(task, completed=done, total=len(rows), description=stage)

        request = _request(strategy, score, loss, target)
        if force_ray and ray is None:
            stop("error: --force-ray goes with --ray: pass --ray local, or an address", code=2)
        if out is not None:
            inputs = (pool, target, loss, ids, *(exclude or []))
            steps.check_out(out, [str(source) for source in inputs if source])
        if target is not None and not steps.SCORES[request.score]:
            note(f"{request.option} does not look at --target")
            target = None
        start = time.perf_counter()
        if ray is not None and not _is_faster_plain(ray, force_ray, pool, target, request, k):
            csv, n = _on_ray(
                pool,
                target,
                k,
                request,
                loss,
                exclude or [],
                ids=ids,
                shortlist=shortlist,
                seed=seed,
                scratch=memory << 20,
                address=ray,
                advance=lambda n: bar.update(task, completed=n),
            )
            _finish(csv, n, request, k, out, time.perf_counter() - start)
            return
        rows, targets = _read(pool, target, request, k)
        costs = None if loss is None else steps.read_loss(loss, rows.shape[2])
        ids = _ids(pool, ids)
        passed = steps.excluded(rows, ids, exclude or [], note)
        checks.count("k", k, len(rows) - len(passed), of="the pool that are not excluded")
        how: dict[str, Any] = {"seed": seed, "scratch": memory << 20, "advance": advance}
        picks = _picks(rows, targets, request, k, shortlist, loss=costs, excluded=passed, **how)
        if picks.copies:
            note(
                f"only {k - picks.copies:,} rows differ in their predictions: the last "
                f"{picks.copies:,} picks are copies"
            )
        csv = steps.to_csv(picks, steps.named(rows, ids, picks.positions))
    _finish(csv, len(rows), request, k, out, time.perf_counter() - start)


def _finish(csv: str, n: int, request: _Request, k: int, out: Path | None, seconds: float) -> None:
    from foresee import files

    if out is None:
        to_stdout(csv)
        return
    files.write(out, csv.encode())
    summary = f"{n:,} inputs scored in {seconds:.1f} s; score: {request.meaning}; "
    show(_table(csv, first=10))
    Console().print(Text(f"{summary}{k:,} picks in {out}"), soft_wrap=True)


def _is_faster_plain(
    ray: str, force: bool, pool: str, target: str | None, request: _Request, k: int
) -> bool:
    """Whether one machine is faster without Ray, which is then said."""
    if force or "://" in pool or not _is_local(pool):
        return False
    from foresee.scale import cluster
    from foresee.suggest import Scorer

    rows, targets = _read(pool, target, request, k)
    if request.score == "eer" or (ray != "local" and cluster.machines(ray) > 1):
        return False
    plain, with_ray = cluster.seconds(rows, Scorer(request.score, targets), cores())
    if with_ray < plain:
        return False
    note(
        f"this machine takes about {plain:.3g} s for {len(rows):,} rows, and {with_ray:.3g} s with "
        "Ray: going on without it; --force-ray takes it"
    )
    return True


def _on_ray(
    pool: str,
    target: str | None,
    k: int,
    request: _Request,
    loss: Path | None,
    exclude: list[str],
    **how: Any,
) -> tuple[str, int]:
    """The CSV of the picks, and how many rows were scored; ``how`` is for `scale.suggest`."""
    from foresee import predictions, scale, suggest as steps

    path, _, column = pool.rpartition(".parquet:")
    targets = None if target is None else predictions.read("--target", target).all()
    by_score = request.strategy is None
    names = (name.strip() for file in exclude for name in predictions.names("--exclude", file))
    costs = None
    if loss is not None and targets is not None:
        costs = steps.read_loss(loss, targets.shape[2])
    with warnings.catch_warnings(action="ignore"):  # most are for those who write Ray
        warnings.simplefilter("default", UserWarning)
        found = scale.suggest(
            f"{path}.parquet" if path else pool,
            targets,
            k,
            score=request.score if by_score else None,
            strategy=None if by_score else request.option.rpartition(" ")[2],
            column=column if path else None,
            exclude=[name for name in names if name],
            loss=costs,
            **how,
        )
    if found.unknown:
        note(f"--exclude: {len(found.unknown)} are not in the pool: {found.unknown[0]}, …")
    if found.copies:
        note(f"the last {found.copies:,} picks are copies: no more rows differ")
    if found.ceiling is not None and found.worth is not None:
        note(
            f"this batch is worth {found.worth:.4g} to the target, and no {k:,} of these "
            f"{found.rows:,} rows are worth more than {found.ceiling:.4g}"
        )
    assert found.positions is not None
    picks = steps.Picks(found.positions, found.scores, found.promises, found.copies)
    return steps.to_csv(picks, found.ids), found.rows


def _request(
    strategy: str | None, score: ScoreName | None, loss: Path | None, target: str | None
) -> _Request:
    from foresee import suggest as steps

    if strategy is not None and score is not None:
        stop("error: --strategy and --score exclude each other: pass one of them", code=2)
    if score is not None:
        request = _Request(f"--score {score}", score.value)
    else:
        name = strategy or DEFAULT
        chosen = steps.choice(name)
        request = _Request(f"--strategy {name}", chosen.score, chosen)
    if (loss is None) == (score == ScoreName.eer):
        stop("error: --loss and --score eer belong together: pass both or none", code=2)
    if steps.SCORES[request.score] and target is None:
        stop(
            f"error: --target is needed by {request.option}, the {request.meaning.split(',')[0]} "
            "on the data you care about: pass predictions for an unlabelled sample of it, or "
            "use --strategy batchbald or --score bald",
            code=2,
        )
    return request


def _is_local(pool: str) -> bool:
    from foresee import predictions

    return predictions.split(predictions.expand("--pool", pool)[0])[0].is_file()


def _read(pool: str, target: str | None, request: _Request, k: int) -> tuple["Predictions", Any]:
    from foresee import predictions, suggest as steps

    rows = predictions.read("--pool", pool)
    targets = None if target is None else predictions.read("--target", target)
    steps.check(rows, targets, request.score, k)
    return rows, None if targets is None else targets.all()


def _ids(pool: str, ids: str | None) -> str | None:
    """The file of the ids, or the column of the pool that --ids names."""
    from foresee import predictions

    if ids is not None and predictions.has_column(pool, ids):
        return f"{predictions.split(pool)[0]}:{ids}"
    return ids


def _picks(
    rows: "Predictions", targets: Any, request: _Request, k: int, shortlist: int | None, **how: Any
) -> "Picks":
    from foresee import suggest as steps

    if request.strategy is None:
        if shortlist is not None:
            stop("error: --shortlist is for a strategy: --score looks at all rows", code=2)
        return steps.best_by_score(rows, targets, request.score, k, **how)
    size = steps.shortlist_size(shortlist, k)
    return steps.best_by_strategy(rows, targets, request.strategy, k, size, **how)


def _table(csv: str, first: int) -> Table:
    header, *lines = tables.reader(io.StringIO(csv, newline=""))
    shown = min(first, len(lines))
    table = Table(title=f"first {shown} of {len(lines):,} picks", box=box.SIMPLE_HEAD)
    for column in header:
        table.add_column(column, justify="right", overflow="fold")
    for index, score, place, name, promise in lines[:shown]:
        told = f"{float(promise):#.4g}" if promise else ""
        table.add_row(index, f"{float(score):#.4g}", place, Text(name), told)
    return table
