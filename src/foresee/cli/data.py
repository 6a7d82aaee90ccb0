"""foresee data: the data sets that are known, and how to get one."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from foresee.cli.console import FOLDER

data_app = typer.Typer(no_args_is_help=True, help="Data sets: what is known, and how to get it.")


@data_app.command("list")
def data_list() -> None:
    """Name the data sets that foresee run knows."""
    from foresee.lab import paper

    Console().print("\n".join(paper.datasets()))


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set.")],
    folder: Annotated[
        Path, typer.Option("--data", metavar=FOLDER, help="Where it should be.")
    ] = Path("data"),
) -> None:
    """Download a data set with torchvision or wilds, or say which files to put where."""
    from foresee.lab import data

    if name.lower() == "digits":
        Console().print(data.instructions(name, folder))
        return
    data.download(name, folder)
    Console().print(Text(f"{name} is in {folder}"), soft_wrap=True)
