"""What every command shares: progress, tables, notes, and errors in one red line."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

import typer
from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

FILE, FOLDER = "FILE", "FOLDER"
LOSS_HELP = "What errors cost: a CSV with a row for each class and a column for each action."
_WIDE = 100_000


def progress_bar() -> progress.Progress:
    """A bar with an ETA on stderr, gone when it is done; none where nobody looks."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("eta"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=sys.stderr is None or not sys.stderr.isatty(),
        transient=True,
        redirect_stdout=False,
    )


def width() -> int:
    """Characters in a line; a file or a pipe has no edge at which names would have to be cut."""
    return Console().width if sys.stdout and sys.stdout.isatty() else _WIDE


def show(table: Table) -> None:
    """Print a table, whole."""
    Console(width=width()).print(table)


def to_stdout(text: str) -> None:
    """Write text to stdout, or raise OSError once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Closed here, or Python would try once more at exit and print a second error.
        with suppress(OSError):
            sys.stdout.close()
        raise


def leave_out(problem: Exception) -> None:
    """Say what was left out, and why."""
    note(f"left out: {problem}")


def note(message: str) -> None:
    """Say something in one yellow line."""
    Console(stderr=True).print(Text(f"note: {message}", style="yellow"), soft_wrap=True)


def stop(message: str, code: int) -> NoReturn:
    """End the command with one red line."""
    # Text, not a string: rich would take the brackets of a shape for markup.
    lines = "\n".join(line.rstrip() for line in message.splitlines())
    Console(stderr=True).print(Text(lines, style="red"), soft_wrap=True)
    raise typer.Exit(code)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
