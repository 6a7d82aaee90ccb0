"""foresee report: tables, curves and a page about the trials in a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from foresee.cli.console import FOLDER, leave_out, progress_bar, show, width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foresee.lab.report.tables import Table

_EDGES, _GAP = 4, 3  # characters of a table around it, and between two of its columns


def report(
    folder: Annotated[Path, typer.Argument(metavar=FOLDER, help="The --out of foresee run.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar=FOLDER, help="Where the report goes.")
    ] = Path("report"),
) -> None:
    """Write tables, curves and a page about the trials in a folder, finished or not."""
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        from foresee.lab.report import folder as pages
        from foresee.lab.report.tables import auc_table

        found, left_out = pages.read(folder)
        for problem in left_out:
            leave_out(problem)
        bar.update(task, description="drawing")
        page = pages.write(
            found, out, left_out, lambda done, n: bar.update(task, completed=done, total=n)
        )
    areas = auc_table(found)
    Console().print(Text(areas.caption), soft_wrap=True)
    for part in _fitting(areas):
        show(_by_method(part))
    Console().print(Text(f"report: {page}"), soft_wrap=True)


def _fitting(values: "Table") -> "Iterator[Table]":
    """The same in as many tables as fit beside their methods, so that no number is cut in two."""
    space = width() - _EDGES - max(map(len, values.columns))
    some: list[tuple[str, ...]] = []
    for row in values.rows:
        if some and sum(_GAP + max(map(len, each)) for each in (*some, row)) > space:
            yield values._replace(rows=some)
            some = []
        some.append(row)
    yield values._replace(rows=some)


def _by_method(values: "Table") -> Printed:
    """Methods are many and experiments often few: a row for each method fits a terminal."""
    table = Printed(box=box.SIMPLE_HEAD)
    columns = list(zip(values.columns, *values.rows, strict=True))
    for number, name in enumerate(columns[0]):
        table.add_column(
            name if number else "", justify="right" if number else "left", overflow="fold"
        )
    for row in columns[1:]:
        table.add_row(*row)
    return table
