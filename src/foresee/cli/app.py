"""The command line. Nothing heavy is imported before a command runs: help must be instant."""

import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foresee import __version__
from foresee.cli.console import notes, stop
from foresee.cli.data import data_app
from foresee.cli.demo import demo
from foresee.cli.doctor import doctor
from foresee.cli.init import init
from foresee.cli.label import label
from foresee.cli.label_studio import label_studio
from foresee.cli.report import report
from foresee.cli.run import run
from foresee.cli.status import status
from foresee.cli.suggest import suggest
from foresee.errors import InputError


class _OneLineErrors(TyperGroup):
    """Whatever the command, what went wrong is one red line and an exit code, a warning a note."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with notes():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            stop("interrupted", code=130)
        except BrokenPipeError:  # whoever reads our output has seen enough
            raise
        except (OSError, MemoryError, ValueError) as error:
            if isinstance(error, ValueError) and not isinstance(error, InputError):
                raise
            stop(f"error: {error}", code=2)


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; where its output cannot be written, that is one line too."""
    try:
        if sys.stdout is None:  # >&-
            raise OSError("stdout is closed: send it to a file, a pipe or /dev/null")
        app()
    except UnicodeEncodeError as error:
        letter = ascii(error.object[error.start])
        remedy = "set PYTHONIOENCODING=utf-8:surrogateescape"
        print(f"error: {letter} cannot be written in {error.encoding}: {remedy}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        with suppress(AttributeError, OSError):  # or Python tries once more at exit
            sys.stdout.close()
        sys.exit(2)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"foresee {__version__}")
        raise typer.Exit


@app.callback()
def foresee(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version)
    ] = False,
) -> None:
    """Which examples, if labelled, would most reduce my model's error on the data I care about?"""


for command in (suggest, label, label_studio, init, run, status, report, demo, doctor):
    app.command()(command)
app.add_typer(data_app, name="data")
