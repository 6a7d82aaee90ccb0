"""The command line. Nothing heavy is imported before a command runs: help must be instant."""

import os
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from rich import box, progress
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foresee.experiment import Network
    from foresee.report.grids import Grid
    from foresee.runner import Job, Place


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


NetworkName = StrEnum("NetworkName", ["vgg16", "small_cnn", "slim_cnn", "mlp"])
ScoreName = StrEnum("ScoreName", ["mell", "mezl", "mebl", "eer", "bald", "entropy_mc", "entropy"])
_FILE, _FOLDER = "FILE", "FOLDER"
_WIDE = 200
_LOSS_HELP = "What errors cost: a CSV with a row for each class and a column for each action."


@app.command()
def suggest(
    pool: Annotated[str, typer.Option(metavar=_FILE, help="Predictions for the pool.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many inputs to suggest.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
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
    loss: Annotated[Path | None, typer.Option(metavar=_FILE, help=_LOSS_HELP)] = None,
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
        from foresee import files
        from foresee import suggest as steps

        if target is not None and score not in steps.NEEDS_TARGET:
            bar.console.print(f"note: --score {score} does not look at --target", style="yellow")
            target = None
        if (loss is None) == (score == ScoreName.eer):
            _stop("error: --loss and --score eer belong together: pass both or none", code=2)
        rows = steps.read("--pool", pool)
        targets = None if target is None else steps.read("--target", target)
        steps.check(rows, targets, score, k)
        costs = None if loss is None else steps.read_loss(loss, rows.shape[2])
        if out is not None:
            steps.check_out(out, [pool] if target is None else [pool, target])
        bar.update(task, description="scoring", total=len(rows))
        start = time.perf_counter()
        values = steps.stream(
            rows, targets, score, memory << 20, lambda done: bar.update(task, completed=done), costs
        )
        seconds = time.perf_counter() - start
    picks = steps.rank(values, k, seed)
    csv = steps.to_csv(values, picks)
    if out is None:
        _to_stdout(csv)
        return
    files.write(out, csv.encode())
    summary = f"{len(rows):,} inputs scored in {seconds:.1f} s; score: {steps.MEANING[score]}; "
    Console().print(_table(csv, first=10))
    Console().print(Text(f"{summary}{k:,} picks in {out}"), soft_wrap=True)


@app.command()
def run(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A data set, or `paper` for all the paper's.")
    ],
    shift: Annotated[
        bool | None,
        typer.Option(
            "--shift/--no-shift", help="Start from another domain, or not. [default: both]"
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas: methods, `paper` for its eight, `all`, or file.py:function.",
        ),
    ] = "paper,mebl",
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Trials of each method. [default: 10 × budget, at most 10]"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Trials at once.")] = 1,
    data: Annotated[
        Path | None, typer.Option(metavar=_FOLDER, help="Where the data sets are.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar=_FOLDER, help="Where rounds go; what is there is kept.")
    ] = Path("runs"),
    budget: Annotated[
        float, typer.Option(metavar="F", help="Scales training iterations and seeds.")
    ] = 1.0,
    network: Annotated[
        NetworkName | None, typer.Option(help="[default: that of the experiment]")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, …")] = "cpu",
    loss: Annotated[Path | None, typer.Option(metavar=_FILE, help=_LOSS_HELP)] = None,
    splits: Annotated[
        Path | None,
        typer.Option(metavar=_FOLDER, help="Take the splits that another run wrote there."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar=_FOLDER, help="Where decoded images go. [default: beside the data]"),
    ] = None,
) -> None:
    """Run active learning experiments; stop at any moment, run the same again to go on."""
    from foresee import paper, runner

    names = _methods(methods, with_loss=loss is not None)
    settings = (False, True) if shift is None else (shift,)
    known = paper.datasets()
    wanted = dataset.lower()
    chosen = known[: len(paper.EXPERIMENTS) // 2] if wanted == "paper" else (wanted,)
    if chosen[0] not in known:
        _stop(f"error: DATASET must be paper or one of {', '.join(known)}, got {dataset}", code=2)
    experiments = [
        paper.experiment(name, s, budget, cast("Network | None", network and network.value))
        for name in chosen
        for s in settings
    ]
    if loss is not None:
        from foresee.suggest import read_loss

        experiments = [replace(e, loss=read_loss(loss, e.classes)) for e in experiments]
        if "EER" not in names:
            _note("--loss changes what is reported, not what is picked: --methods eer minimises it")
    elif "EER" in names:
        _stop("error: --methods eer needs --loss: pass what errors cost as a CSV", code=2)
    for name in chosen:
        _prepare(name, data, cache)
    n_seeds = seeds or max(1, round(paper.SEEDS * min(1.0, budget)))
    place = runner.Place(out, data, _device(device), max(1, _cores() // jobs), splits, cache)
    _run(runner.plan(experiments, names, range(n_seeds)), place, jobs)
    Console(stderr=True).print(Text(f"next: foresee report {out} -o report"), soft_wrap=True)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar=_FOLDER, help="The --out of foresee run.")],
) -> None:
    """Show how far the trials in a folder are."""
    from foresee import store
    from foresee.report import words

    table = Table(box=box.SIMPLE_HEAD)
    columns = ("experiment", "method", "finished", "running", "rounds", "accuracy", "missing seeds")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number > 1 else "left")
    groups: dict[tuple[str, str], list[store.Trial]] = {}
    for trial in store.trials(folder, _leave_out):
        groups.setdefault((trial.experiment.name, trial.method), []).append(trial)
    for (experiment, method), group in groups.items():
        rounds = [len(trial.rounds) for trial in group]
        total = sum(len(t.rounds) if t.finished else t.experiment.rounds + 1 for t in group)
        last = [trial.rounds[-1].accuracy for trial in group if trial.rounds]
        running = {trial.seed for trial in group if not trial.finished and store.busy(trial)}
        missing = [t.seed for t in group if not t.rounds and t.seed not in running]
        table.add_row(
            experiment,
            method,
            f"{sum(trial.finished for trial in group)}/{len(group)}",
            str(len(running)),
            f"{sum(rounds)}/{total}",
            f"{100 * sum(last) / len(last):.1f} %" if last else "",
            words.ranges(missing),
        )
    _show(table)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar=_FOLDER, help="The --out of foresee run.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar=_FOLDER, help="Where the report goes.")
    ] = Path("report"),
) -> None:
    """Write tables, curves and a page about the trials in a folder, finished or not."""
    _report(folder, out)


data_app = typer.Typer(no_args_is_help=True, help="Data sets: what is known, and how to get it.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """Name the data sets that foresee run knows."""
    from foresee import paper

    Console().print("\n".join(paper.datasets()))


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set.")],
    folder: Annotated[
        Path, typer.Option("--data", metavar=_FOLDER, help="Where it should be.")
    ] = Path("data"),
) -> None:
    """Download a data set with torchvision or wilds, or say which files to put where."""
    from foresee import data

    if name.lower() == "digits":
        Console().print("digits comes with scikit-learn: there is nothing to get")
        return
    data.download(name, folder)
    Console().print(Text(f"{name} is in {folder}"), soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar=_FOLDER, help="Where rounds and report go.")] = Path(
        "demo-output"
    ),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Trials at once. [default: one a core]")
    ] = None,
) -> None:
    """Compare nine methods on scikit-learn's digits, with and without shift, 3 seeds each."""
    from foresee import paper, runner

    workers = jobs or _cores()
    experiments = [paper.experiment("digits", shift) for shift in (False, True)]
    place = runner.Place(out / "runs", threads=max(1, _cores() // workers))
    _run(runner.plan(experiments, _methods("paper,mebl"), range(3)), place, workers)
    _report(out / "runs", out / "report")


def _methods(names: str, with_loss: bool = False) -> list[str]:
    from foresee import paper

    known = {name.lower(): name for name in paper.STRATEGIES}
    groups = {
        "all": [name for name in paper.STRATEGIES if name != "EER" or with_loss],
        "paper": list(paper.PAPER_METHODS),
    }
    chosen: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        lower = name.lower()
        if ":" in name:
            paper.own(name)
            chosen.append(name)
        elif lower in known or lower in groups:
            chosen += groups.get(lower) or [known[lower]]
        else:
            _stop(
                f"error: --methods knows {', '.join(known)}, paper (its eight), all, and "
                f"file.py:function, got {name}",
                code=2,
            )
    if not chosen:
        _stop("error: --methods is empty: name at least one, such as mell", code=2)
    return list(dict.fromkeys(chosen))


def _prepare(dataset: str, folder: Path | None, cache: Path | None) -> None:
    """Find out before any training whether a data set can be read; decode its images once."""
    from foresee import data

    if folder is None and dataset != "digits":
        _stop(
            f"error: --data is needed for {dataset}: pass the folder that holds it, or see foresee "
            f"data get {dataset}",
            code=2,
        )
    with _progress() as bar:
        task = bar.add_task(f"reading {dataset}", total=None)
        if needed := data.decoding_bytes(dataset, folder, cache=cache):
            bar.console.print(f"{dataset}: decoding images into {needed / 2**30:.1f} GiB, once")
        data.load(
            dataset,
            folder,
            cache=cache,
            advance=lambda done, n: bar.update(task, completed=done, total=n),
        )


def _by_method(values: "Grid") -> Table:
    """Methods are many and experiments often few: a row for each method fits a terminal."""
    table = Table(title=values.caption, box=box.SIMPLE_HEAD)
    columns = list(zip(values.columns, *values.rows, strict=True))
    for number, name in enumerate(columns[0]):
        table.add_column(name if number else "", justify="right" if number else "left")
    for row in columns[1:]:
        table.add_row(*row)
    return table


def _show(table: Table) -> None:
    # A file or a pipe has no edge at which names would have to be cut.
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def _run(jobs: "Sequence[Job]", place: "Place", workers: int) -> None:
    from foresee import live, runner

    console = Console(stderr=True)
    runner.keep_plan(jobs, place.out, lambda problem: _note(f"written anew: {problem}"))
    board = live.Board(jobs, place.out, workers)
    failed: dict[str, int] = {}
    screen = Live(
        get_renderable=lambda: board, console=console, refresh_per_second=2, transient=True
    )
    with screen if console.is_terminal else nullcontext():
        for outcome in runner.run_all(jobs, place, workers):
            name = f"{outcome.job.experiment.name} {outcome.job.method} seed {outcome.job.seed}"
            if outcome.state == "failed":
                if outcome.message not in failed:  # what fails one often fails all: said once
                    text = Text(f"{name} failed: {outcome.message}", style="red")
                    console.print(text, soft_wrap=True)
                failed[outcome.message] = failed.get(outcome.message, 0) + 1
            elif not console.is_terminal:
                accuracy = live.standing(outcome.job, place.out).accuracy
                console.print(f"{name} finished, accuracy {100 * (accuracy or 0):.1f} %")
    if failed:
        number = sum(failed.values())
        others = "; the others are kept" if number < len(jobs) else ""
        _stop(f"{number} of {len(jobs)} trials failed{others}", code=1)


def _report(folder: Path, out: Path) -> None:
    with _progress() as bar:
        task = bar.add_task("reading", total=None)
        from foresee import report as pages
        from foresee import store

        trials = store.trials(folder, _leave_out)
        bar.update(task, description="drawing")
        page = pages.write(trials, out, lambda done, n: bar.update(task, completed=done, total=n))
    _show(_by_method(pages.auc_table(trials)))
    Console().print(Text(f"report: {page}"), soft_wrap=True)


def _device(name: str) -> str:
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        _stop(f"error: --device {name}, but torch sees no GPU: use --device cpu", code=2)
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if name not in ("cpu", "cuda", *gpus):
        here = ", ".join(["cpu", *gpus])
        _stop(f"error: --device must be cpu, cuda or cuda:N (here {here}), got {name}", code=2)
    return name


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def _leave_out(problem: Exception) -> None:
    _note(f"left out: {problem}")


def _note(message: str) -> None:
    Console(stderr=True).print(Text(f"note: {message}", style="yellow"), soft_wrap=True)


def _stop(message: str, code: int) -> NoReturn:
    # Text, not a string: rich would take the brackets of a shape for markup.
    lines = "\n".join(line.rstrip() for line in message.splitlines())
    Console(stderr=True).print(Text(lines, style="red"), soft_wrap=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
