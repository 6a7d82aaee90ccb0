"""What every command shares: progress, tables, notes, and errors in one red line."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NoReturn

import typer
from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

FILE, FOLDER = "FILE", "FOLDER"
LOSS_HELP = "What errors cost: a CSV with a row for each class and a column for each action."
_WIDE = 100_000


@cache
def on_stderr() -> Console:
    """The one console there: it puts lines above a bar that moves."""
    return Console(stderr=True)


def progress_bar() -> progress.Progress:
    """A bar with an ETA on stderr, gone when it is done; none where nobody looks."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("eta"),
        progress.TimeRemainingColumn(),
        console=on_stderr(),
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
    on_stderr().print(Text(f"note: {message}", style="yellow"), soft_wrap=True)


@contextmanager
def notes() -> Iterator[None]:
    """Meanwhile warnings for users are notes, each told once; others are for those who program."""
    told = set[str]()

    def tell(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
        said = " ".join(str(message).split())
        if not issubclass(category, UserWarning):
            usual(message, category, *where, **how)
        elif said not in told:
            told.add(said)
            note(said)

    on_stderr.cache_clear()  # a process may run several commands, as tests do
    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, tell
        yield


def stop(message: str, code: int) -> NoReturn:
    """End the command with one red line."""
    # Text, not a string: rich would take the brackets of a shape for markup.
    lines = "\n".join(line.rstrip() for line in message.splitlines())
    on_stderr().print(Text(lines, style="red"), soft_wrap=True)
    raise typer.Exit(code)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
