"""The command line. Nothing heavy is imported before a command runs: help must be instant."""

import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup


class _OneLineErrors(TyperGroup):
    """Whatever the command, what went wrong is one red line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _stop("interrupted", code=130)
        except BrokenPipeError:  # whoever reads our output has seen enough
            raise
        except (OSError, MemoryError, ValueError) as error:
            from foresee.checks import InputError

            if isinstance(error, ValueError) and not isinstance(error, InputError):
                raise
            _stop(f"error: {error}", code=2)


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    app()


@app.callback()
def foresee() -> None:
    """Which examples, if labelled, would most reduce my model's error on the data I care about?"""


ScoreName = StrEnum("ScoreName", ["mell", "mezl", "mebl", "bald", "entropy_mc", "entropy"])
_FILE = "FILE"


@app.command()
def suggest(
    pool: Annotated[str, typer.Option(metavar=_FILE, help="Predictions for the pool.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many inputs to suggest.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
            help="Predictions for an unlabelled sample of the data you care about, by the same "
            "draws. Needed by mell, mezl and mebl.",
        ),
    ] = None,
    score: Annotated[
        ScoreName,
        typer.Option(
            metavar="NAME",
            help="mell, mezl, mebl: expected reduction of the log loss, error rate, Brier loss on "
            "the target. bald, entropy_mc, entropy: uncertainty about the input itself.",
        ),
    ] = ScoreName.mell,
    out: Annotated[
        Path | None, typer.Option(metavar=_FILE, help="Write the CSV here, not to stdout.")
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
    with _progress() as bar:
        task = bar.add_task("loading", total=None)
        from foresee import suggest as steps

        if target is not None and score not in steps.NEEDS_TARGET:
            bar.console.print(f"note: --score {score} does not look at --target", style="yellow")
            target = None
        rows = steps.read("--pool", pool)
        targets = None if target is None else steps.read("--target", target)
        steps.check(rows, targets, score, k)
        if out is not None:
            steps.check_out(out, [pool] if target is None else [pool, target])
        bar.update(task, description="scoring", total=len(rows))
        start = time.perf_counter()
        values = steps.stream(
            rows, targets, score, memory << 20, lambda done: bar.update(task, completed=done)
        )
        seconds = time.perf_counter() - start
    picks = steps.rank(values, k, seed)
    csv = steps.to_csv(values, picks)
    if out is None:
        _to_stdout(csv)
        return
    steps.write(out, csv)
    summary = f"{len(rows):,} inputs scored in {seconds:.1f} s; score: {steps.MEANING[score]}; "
    Console().print(_table(csv, first=10))
    Console().print(Text(f"{summary}{k:,} picks in {out}"), soft_wrap=True)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the picture of the curves goes.")
    ] = Path("demo-output"),
) -> None:
    """Compare MELL, BALD and Random on scikit-learn's digits, with and without shift."""
    with _progress() as bar:
        task = bar.add_task("loading", total=None)
        from foresee import demo as steps

        out.mkdir(parents=True, exist_ok=True)
        bar.update(task, description="learning curves", total=steps.n_trials())
        trials = steps.run(lambda: bar.advance(task))
    steps.plot(trials, out / "curves.png")
    table = Table(title=f"area under the accuracy curve, {steps.SEEDS} seeds", box=box.SIMPLE_HEAD)
    for column in ("", *steps.METHODS):
        table.add_column(column, justify="right" if column else "left")
    for shift, row in ((False, "no shift"), (True, "dark seed set (shift)")):
        table.add_row(row, *(steps.summary(trials, name, shift) for name in steps.METHODS))
    Console().print(table)
    Console().print(Text(f"learning curves: {out / 'curves.png'}"), soft_wrap=True)


def _progress() -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("eta"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
        redirect_stdout=False,
    )


def _table(csv: str, first: int) -> Table:
    header, *lines = csv.splitlines()
    shown = min(first, len(lines))
    table = Table(title=f"first {shown} of {len(lines):,} picks", box=box.SIMPLE_HEAD)
    for column in header.split(","):
        table.add_column(column, justify="right")
    for index, score, place in (line.split(",") for line in lines[:shown]):
        table.add_row(index, f"{float(score):#.4g}", place)
    return table


def _to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Closed here, or Python would try once more at exit and print a second error.
        with suppress(OSError):
            sys.stdout.close()
        raise


def _stop(message: str, code: int) -> NoReturn:
    # Text, not a string: rich would take the brackets of a shape for markup.
    Console(stderr=True).print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
