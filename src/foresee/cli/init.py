"""foresee init: a first experiment on one's own data, to be read and changed."""

from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from foresee.cli.console import FILE, progress_bar, stop, to_stdout


def init(
    file: Annotated[Path, typer.Argument(metavar=FILE, help="The file to write: experiment.toml.")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="A folder with a sub-folder of images for each class, or a .npz, .parquet or .csv "
            "file with labels.",
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column or array of labels. [default: a guess]"),
    ] = None,
) -> None:
    """Write a commented experiment on your own data, from a look at them; foresee run takes it."""
    if file.suffix != ".toml":
        stop(f"error: FILE must end in .toml, got {file}: name it experiment.toml", code=2)
    if file.exists():
        stop(f"error: {file} is there already: delete it, or choose another name", code=2)
    if not file.parent.is_dir():
        stop(f"error: there is no folder {file.parent}: create it, or choose another", code=2)
    with progress_bar() as bar:
        bar.add_task(f"looking at {data}", total=None)
        from foresee import files
        from foresee.lab import look

        text = look.describe(data, file.parent, labels)
        files.write(file, text.encode())
    seen = "".join(
        f"{line[2:]}\n" for line in takewhile(lambda line: line[:1] == "#", text.splitlines())
    )
    to_stdout(f"{seen}{file} is written: read it, then foresee run {quote(str(file))}\n")
