"""foresee status: how far the trials in a folder are."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from foresee.cli.console import FOLDER, leave_out, show


def status(
    folder: Annotated[Path, typer.Argument(metavar=FOLDER, help="The --out of foresee run.")],
) -> None:
    """Show how far the trials in a folder are."""
    from foresee.lab import store
    from foresee.lab.report import words
    from foresee.lab.report.light import light

    groups: dict[tuple[str, str], list[store.Trial]] = {}
    for trial in store.trials(folder, leave_out):
        groups.setdefault((trial.experiment.name, trial.method), []).append(trial)
    narrow = any(group[0].experiment.target for group in groups.values())
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = ["experiment", "method", "finished", "running", "rounds", "accuracy"]
    columns += ["in target"] * narrow + ["missing"]
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number > 1 else "left", overflow="fold")
    for (experiment, method), group in groups.items():
        rounds = [len(trial.rounds) for trial in group]
        total = sum(len(t.rounds) if t.finished else t.experiment.rounds + 1 for t in group)
        last = [trial.rounds[-1].accuracy for trial in group if trial.rounds]
        running = {trial.seed for trial in group if not trial.finished and store.busy(trial)}
        shares = (light(trial).shares for trial in group)
        inside = [share["in_target"] for share in shares if "in_target" in share]
        missing = [t.seed for t in group if not t.rounds and t.seed not in running]
        table.add_row(
            experiment,
            method,
            f"{sum(trial.finished for trial in group)}/{len(group)}",
            str(len(running)),
            f"{sum(rounds)}/{total}",
            f"{100 * sum(last) / len(last):.1f} %" if last else "",
            *[words.percent(sum(inside) / len(inside)) if inside else ""] * narrow,
            words.ranges(missing),
        )
    show(table)
