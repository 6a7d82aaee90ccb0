"""The report as a folder: a page, and beside it every table and picture by itself."""

from collections.abc import Callable, Sequence
from pathlib import Path

from foresee import files
from foresee.checks import InputError
from foresee.report import page
from foresee.report.figures import png
from foresee.report.grids import tex_files
from foresee.report.measures import rivals
from foresee.report.palette import pens
from foresee.report.records import csv_files
from foresee.report.study import methods, studies
from foresee.store import Trial


def write(
    trials: Sequence[Trial], out: Path, advance: Callable[[int, int], object] | None = None
) -> Path:
    """Write index.html, tables (.csv, .tex) and curves (.png) into ``out``; return the page's path.

    Every file is whole whenever it is read. ``advance`` hears how many files are done, and of how
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
    pictures = {f"curves-{study.name}.png": study for study in found}
    total = len(pictures) + 1
    for done, (name, study) in enumerate(pictures.items(), start=1):
        files.write(out / name, png(study, colours))
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
