"""foresee suggest: which inputs to label next, from predictions in files."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foresee.cli.console import FILE, LOSS_HELP, progress_bar, stop, to_stdout

ScoreName = StrEnum("ScoreName", ["mell", "mezl", "mebl", "eer", "bald", "entropy_mc", "entropy"])
# What each tells, and whether it looks at the target.
_SCORES = {
    "mell": ("expected reduction of the log loss, in nats", True),
    "mezl": ("expected reduction of the error rate", True),
    "mebl": ("expected reduction of the Brier loss", True),
    "eer": ("expected reduction of the loss given by --loss", True),
    "bald": ("information about the model, in nats", False),
    "entropy_mc": ("entropy of the mean prediction, in nats", False),
    "entropy": ("entropy of the prediction, in nats", False),
}


def suggest(
    pool: Annotated[str, typer.Option(metavar=FILE, help="Predictions for the pool.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many inputs to suggest.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Predictions for an unlabelled sample of the data you care about, by the same "
            "draws. Needed by mell, mezl, mebl and eer.",
        ),
    ] = None,
    score: Annotated[
        ScoreName,
        typer.Option(
            metavar="NAME",
            help="mell, mezl, mebl, eer: expected reduction of the log loss, error rate, Brier "
            "loss, or loss given by --loss, on the target. bald, entropy_mc, entropy: uncertainty "
            "about the input itself.",
        ),
    ] = ScoreName.mell,
    loss: Annotated[Path | None, typer.Option(metavar=FILE, help=LOSS_HELP)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar=FILE, help="Write the CSV here, not to stdout.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Orders equal scores.")] = 0,
    memory: Annotated[int, typer.Option(metavar="MIB", min=1, help="Scratch memory.")] = 256,
) -> None:
    """Suggest which inputs to label next, from predictions in files.

    A file holds probabilities [n t c]: n inputs, t posterior draws, c classes; for entropy [n c].
    A .npy file is read in pieces and may be larger than memory. A .npz file is loaded; if it holds
    several arrays, file.npz:name picks one.

    The result is a CSV with the columns index (the row in the pool file), score and rank.
    """
    meaning, needs_target = _SCORES[score]
    with progress_bar() as bar:
        task = bar.add_task("loading", total=None)
        from foresee import files, suggest as steps

        if (loss is None) == (score == ScoreName.eer):
            stop("error: --loss and --score eer belong together: pass both or none", code=2)
        if needs_target and target is None:
            stop(
                f"error: --target is needed by --score {score}, the {meaning.split(',')[0]} "
                "on the data you care about: pass predictions for an unlabelled sample of it, or "
                "use --score bald",
                code=2,
            )
        if out is not None:
            steps.check_out(out, [str(source) for source in (pool, target, loss) if source])
        if target is not None and not needs_target:
            bar.console.print(f"note: --score {score} does not look at --target", style="yellow")
            target = None
        rows = steps.read("--pool", pool)
        targets = None if target is None else steps.read("--target", target)
        steps.check(rows, targets, score, k)
        costs = None if loss is None else steps.read_loss(loss, rows.shape[2])
        bar.update(task, description="scoring", total=len(rows))
        start = time.perf_counter()
        values = steps.stream(
            rows, targets, score, memory << 20, lambda done: bar.update(task, completed=done), costs
        )
        seconds = time.perf_counter() - start
    picks = steps.rank(values, k, seed)
    csv = steps.to_csv(values, picks)
    if out is None:
        to_stdout(csv)
        return
    files.write(out, csv.encode())
    summary = f"{len(rows):,} inputs scored in {seconds:.1f} s; score: {meaning}; "
    Console().print(_table(csv, first=10))
    Console().print(Text(f"{summary}{k:,} picks in {out}"), soft_wrap=True)


def _table(csv: str, first: int) -> Table:
    header, *lines = csv.splitlines()
    shown = min(first, len(lines))
    table = Table(title=f"first {shown} of {len(lines):,} picks", box=box.SIMPLE_HEAD)
    for column in header.split(","):
        table.add_column(column, justify="right")
    for index, score, place in (line.split(",") for line in lines[:shown]):
        table.add_row(index, f"{float(score):#.4g}", place)
    return table
