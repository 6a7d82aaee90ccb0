"""The report as a folder: a page, and beside it every table and picture by itself."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from foresee import files
from foresee.errors import InputError
from foresee.lab.report import page
from foresee.lab.report.figures import DRAWINGS
from foresee.lab.report.measures import rivals
from foresee.lab.report.palette import pens
from foresee.lab.report.records import csv_files
from foresee.lab.report.study import methods, studies
from foresee.lab.report.tables import tex_files
from foresee.lab.store import Trial


def write(
    trials: Sequence[Trial], out: Path, advance: Callable[[int, int], object] | None = None
) -> Path:
    """Write index.html, tables (.csv, .tex), pictures (.png) into ``out``; return the page's path.

    Every file is whole whenever it is read. ``advance`` hears how many steps are done, and of how
    many.
    """
    found, names = studies(trials), methods(trials)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, but {out} is a file: choose another name")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out: {out} could not be written ({error.strerror}): choose another folder"
        ) from error
    colours = pens(names)
    total = len(DRAWINGS) * len(found) + 1
    for done, (kind, study) in enumerate(product(DRAWINGS, found), start=1):
        if image := DRAWINGS[kind](study, colours):
            files.write(out / f"{kind}-{study.name}.png", image)
        if advance:
            advance(done, total)
    tallies = rivals(found)
    tables = {**csv_files(found, tallies), **tex_files(found, names, tallies)}
    for name, text in tables.items():
        files.write(out / name, text.encode())
    index = out / "index.html"
    files.write(index, page.html(found, colours, tallies).encode())
    if advance:
        advance(total, total)
    return index
