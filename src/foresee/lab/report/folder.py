"""The report as a folder: a page, and beside it every table and picture by itself."""

from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import NamedTuple

from joblib import Parallel, cpu_count, delayed

from foresee import files
from foresee.errors import InputError
from foresee.lab.report import figures, light, page
from foresee.lab.report.palette import pens
from foresee.lab.report.records import csv_files
from foresee.lab.report.rivals import rivals
from foresee.lab.report.study import Study, methods, studies
from foresee.lab.report.tables import tex_files

_SHARE = 32 << 20  # bytes of trials, and studies to draw, that a process of its own is worth
_STUDIES = 4


class Reading(NamedTuple):
    """What a store holds, and what had to be left out of it."""

    studies: list[Study]
    left_out: list[InputError]


def read(folder: Path) -> Reading:
    """Read every trial in a store, experiment by experiment; a large one in several processes."""
    sizes = {part.name: sum(map(_size, part.glob("*.jsonl"))) for part in folder.glob("*/")}
    jobs = _jobs(sum(sizes.values()) // _SHARE)
    largest_first = sorted(sizes, key=lambda name: -sizes[name])
    parts = map(escape, largest_first) if jobs > 1 else ["*"]
    tasks = (delayed(light.read)(folder, part) for part in parts)
    read_parts = Parallel(n_jobs=jobs, batch_size=1)(tasks)
    left_out = [problem for _, problems in read_parts for problem in problems]
    trials = [trial for found, _ in read_parts for trial in found]
    return Reading(studies(trials, left_out.append), left_out)


def write(
    found: Sequence[Study],
    out: Path,
    left_out: Sequence[Exception] = (),
    advance: Callable[[int, int], object] | None = None,
) -> Path:
    """Write index.html, tables (.csv, .tex) and pictures (.png) into a folder.

    Every file is whole whenever it is read.

    Args:
        found: what the report is about, from `read` or `studies`.
        out: the folder; it is made where there is none.
        left_out: what the page shall name as left out, and why.
        advance: hears how many steps are done, and of how many.

    Returns:
        The path of the page.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, but {out} is a file: choose another name")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out: {out} could not be written ({error.strerror}): choose another folder"
        ) from error
    names = methods(trial for study in found for trial in study.all)
    colours = pens(names)
    drawn = Parallel(n_jobs=_jobs(len(found) // _STUDIES), return_as="generator")(
        delayed(figures.draw)(figures.drawings(study, colours)) for study in found
    )
    tallies = rivals(found)
    texts = {**csv_files(found, tallies), **tex_files(found, names, tallies)}
    texts["index.html"] = page.html(found, colours, tallies, left_out)
    for done, (study, pictures) in enumerate(zip(found, drawn, strict=True), start=1):
        for kind, image in pictures.items():
            files.write(out / f"{kind}-{study.name}.png", image)
        if advance:
            advance(done, len(found))
    for name, text in texts.items():
        files.write(out / name, text.encode(errors="replace"))  # half a character has no bytes
    return out / "index.html"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the store will say so
        return 0


def _jobs(worth: int) -> int:
    return max(1, min(cpu_count(), worth))
