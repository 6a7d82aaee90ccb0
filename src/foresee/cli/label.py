"""foresee label: a page on this machine that asks for the labels that help most."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from foresee.cli.console import FILE, FOLDER, note, stop

if TYPE_CHECKING:
    from foresee.label.imports import Taken
    from foresee.label.items import Spec

_WHERE = "FOLDER|FILE"


Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A folder with a transformers or timm image model, torchvision:NAME, or your own "
        "as file.py:build; else one that suits.",
    ),
]
Side = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=4,
        help="The side of images for the model. [default: 32, or 224 with features of --model]",
    ),
]


def label(
    pool: Annotated[
        Path,
        typer.Argument(
            metavar=_WHERE, help="A folder of images, or a CSV of texts or rows of numbers."
        ),
    ],
    classes: Annotated[
        str, typer.Option(metavar="A,B,…", help="The labels there are; the page can add others.")
    ] = "",
    target: Annotated[
        Path | None,
        typer.Option(
            metavar=_WHERE,
            help="A sample of the data that the model will meet. [default: the pool itself]",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar=FILE, help="Where labels go: id, label, time, who; taken up again."),
    ] = Path("labels.csv"),
    import_from: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar=_WHERE,
            help="Labels there are: a CSV of id and label, or a folder with a sub-folder a class.",
        ),
    ] = None,
    model: Model = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns of a table that a model reads.")
    ] = None,
    ids: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of ids.")] = None,
    size: Side = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=200, help="Items that are chosen at once.")
    ] = 10,
    holdout: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0, max=0.9, help="Of all questions, to measure accuracy."
        ),
    ] = 0.1,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Write what is labelled as imagefolder, coco, datasets or label-studio, and end.",
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar=FOLDER, help="Where --export writes.")] = None,
    host: Annotated[
        str, typer.Option(help="Another address opens the page to others: needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: a free one.")] = 0,
    token: Annotated[
        str | None, typer.Option(help="The secret in the page's address. [default: a new one]")
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The address that people open, if a proxy has another."),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open it.")] = False,
    ahead: Annotated[int | None, typer.Option(hidden=True)] = None,
    patience: Annotated[float, typer.Option(hidden=True)] = 2.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of everything random.")] = 0,
) -> None:
    """Label images, texts or rows on a page, those first that help most.

    The page asks for what should cut the model's error on the target most, and shows how good the
    model is, and what more labels promise. Every label is on the disk before the next item comes:
    end it at any time; the same command goes on.
    """
    try:
        from foresee.label import serve
    except ImportError as error:
        stop(f"error: {error}: pip install 'foresee[label]'", code=2)
    from foresee.label import extract
    from foresee.label.items import Spec

    extract.check(model)
    columns = None if inputs is None else tuple(_split(inputs))
    sample, side = None if target is None else str(target), size or extract.side(model)
    spec = Spec(str(pool), sample, columns, ids, side, model, seed, holdout, batch)
    if (export is None) != (to is None):
        stop("error: --export and --to belong together: pass both or none", code=2)
    if export is not None and to is not None:
        return _export(spec, out, export, to)
    serve.check(host, token, origin)
    if not serve.is_loopback(host):
        note(
            f"whoever reaches {host} and has the token can see all of {pool} and label it; the "
            "connection is not encrypted"
        )
    door = host, port, token, origin
    serving = serve.Serving(
        spec, out, _split(classes), import_from, *door, patience=patience, ahead=ahead
    )
    with serving as page:
        if page.taken is not None:
            note(_said(page.taken, import_from))
        Console().print(Text(page.url), soft_wrap=True)
        Console(stderr=True).print(Text(f"labels go to {out}; Ctrl-C ends", style="dim"))
        page.run(browse=not no_browser)
    return None


def _said(taken: "Taken", path: Path | None) -> str:
    words = [f"{taken.labels} labels from {path} are taken over"]
    if taken.held:
        words.append(
            f"the accuracy counts {taken.held} of them, of target items: that is right if these "
            "were drawn by chance"
        )
    if taken.passed:
        words.append(f"{taken.passed} images there are in no sub-folder of a class")
    return "; ".join(words)


def _export(spec: "Spec", out: Path, kind: str, to: Path) -> None:
    from foresee.label.export import export

    written = export(spec, out, kind, to)
    Console().print(Text(f"{written} labels in {to}"), soft_wrap=True)


def _split(names: str) -> list[str]:
    return [" ".join(name.split()) for name in names.split(",") if name.strip()]
