"""foresee label-studio: a backend that orders a project's tasks by what their labels would tell."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from foresee.cli.console import FILE, FOLDER, note, stop
from foresee.cli.label import Model, Side
from foresee.errors import InputError

_TOKEN, _PASSWORD = "LABEL_STUDIO_API_KEY", "FORESEE_PASSWORD"


def label_studio(
    url: Annotated[str, typer.Option(metavar="URL", help="Of Label Studio.")],
    project: Annotated[
        int, typer.Option(metavar="N", min=1, help="The project: its number is in its address.")
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar=FILE,
            help=f"Your token of Label Studio, legacy or personal. [default: ${_TOKEN}]",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|FILE",
            help="A sample of the data that the model will meet: a folder of images, or a CSV of "
            "texts. [default: the tasks themselves]",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar=FOLDER, help="The backend's own folder. [default: label-studio-N, in this one]"
        ),
    ] = None,
    model: Model = None,
    size: Side = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=200, help="Tasks that are chosen as a whole.")
    ] = 10,
    ahead: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Tasks whose order is written to Label Studio."),
    ] = 50,
    host: Annotated[
        str, typer.Option(help=f"Another address opens it to others: needs ${_PASSWORD}.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: a free one.")] = 9090,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of everything random.")] = 0,
) -> None:
    """Order the tasks of a Label Studio project by what their labels would tell.

    A machine-learning backend: it learns from the project's annotations, writes pre-annotations,
    and gives each task a score by which Label Studio serves those first that help most. Connect
    the address that it prints in the project's settings. End it at any time; the same command goes
    on.
    """
    try:
        from foresee.label import serve
    except ImportError as error:
        stop(f"error: {error}: pip install 'foresee[label]'", code=2)
    from foresee.label import extract
    from foresee.label.studio.api import Studio
    from foresee.label.studio.backend import Backend, Options, check_target
    from foresee.label.studio.form import Form
    from foresee.label.studio.server import Door
    from foresee.label.studio.shelf import Shelf

    extract.check(model)
    side = size or extract.side(model)
    password = os.environ.pop(_PASSWORD, None)
    if not serve.is_loopback(host):
        if not password:
            stop(f"error: --host {host} opens the backend to others: set ${_PASSWORD}", code=2)
        note(f"whoever reaches {host} can try the password; the connection is not encrypted")
    studio = Studio(url, project, _token(token_file))
    form = Form.read(studio.project()["label_config"])
    options = Options(None if target is None else str(target), model, side, seed, batch, ahead)
    check_target(options.target, form)
    shelf = Shelf(state or Path(f"label-studio-{project}"), {"url": studio.url, "project": project})
    try:
        backend = Backend(studio, form, shelf, options, _log)
        listening = serve.listening(host, port)
        shown = f"[{host}]" if ":" in host else host
        at = listening.getsockname()[1]
        Console().print(Text(f"http://{shown}:{at}"), soft_wrap=True)
        Console(stderr=True).print(
            Text("connect this address as a model of the project; Ctrl-C ends", style="dim")
        )
        backend.start()
        try:
            serve.listen(Door(backend, shown, at, password).application(), listening)
        finally:
            backend.stop()
            listening.close()
    finally:
        shelf.close()


def _token(file: Path | None) -> str:
    """From a file or the environment: a command line can be read by others."""
    if file is None:
        found = os.environ.pop(_TOKEN, "")  # the fitting process need not have it
        if not found.strip():
            raise InputError(
                f"there is no token: set ${_TOKEN}, or pass --token-file; Label Studio shows it "
                "under Account & Settings"
            )
        return found.strip()
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file {file} cannot be read ({error}): check the path") from error


def _log(line: str) -> None:
    Console(stderr=True).print(Text(line), soft_wrap=True)
