"""foresee demo: methods compared on a data set that is always there."""

from pathlib import Path
from typing import Annotated

import typer

from foresee.cli.console import FOLDER, cores
from foresee.cli.report import report
from foresee.cli.run import run_jobs


def demo(
    out: Annotated[Path, typer.Option(metavar=FOLDER, help="Where rounds and report go.")] = Path(
        "demo-output"
    ),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Trials at once. [default: one a core]")
    ] = None,
) -> None:
    """Compare five methods on scikit-learn's digits, where only 3, 5, 8 and 9 count; 5 seeds."""
    from foresee.lab import methods, paper, runner

    workers = jobs or cores()
    experiment = paper.experiment("digits", narrow=True)
    place = runner.Place(out / "runs", threads=max(1, cores() // workers))
    names = methods.named(["default", "badge", "mell", "bald", "random"], "--methods")
    run_jobs(runner.plan([experiment], names, range(5)), place, workers)
    report(out / "runs", out / "report")
