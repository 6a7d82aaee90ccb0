"""The report as a folder: a page, and beside it every table and picture by itself."""

import hashlib
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
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

# What a report wrote, as sha256sum has it: the next one there removes that, and nothing else.
RECORD = ".report.sha256"
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

    Every file is whole whenever it is read. What an earlier report wrote there and this one does
    not is removed at the end, unless somebody has changed it since.

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
    contents = dict[str, bytes]()
    for done, (study, pictures) in enumerate(zip(found, drawn, strict=True), start=1):
        contents |= {f"{kind}-{study.name}.png": image for kind, image in pictures.items()}
        if advance:
            advance(done, len(found))
    for name, text in texts.items():
        contents[name] = text.encode(errors="replace")  # half a character has no bytes
    before, now = _recorded(out), {(_digest(some), name) for name, some in contents.items()}
    _record(out, before | now)  # for the next, if this one is killed
    for name, content in contents.items():
        files.write(out / name, content)
    for digest, name in before:
        with suppress(OSError, ValueError):  # it is gone, or no file
            if name not in contents and _digest((out / name).read_bytes()) == digest:
                (out / name).unlink()
    _record(out, now)
    return out / "index.html"


def _recorded(out: Path) -> set[tuple[str, str]]:
    """Digests and names of what earlier reports wrote, if one has said so."""
    try:
        lines = (out / RECORD).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return set()
    found = {(line[:64], line[66:]) for line in lines}
    return {(digest, name) for digest, name in found if Path(name).name == name}


def _record(out: Path, written: Set[tuple[str, str]]) -> None:
    lines = [f"{digest}  {name}\n" for digest, name in sorted(written)]
    files.write(out / RECORD, "".join(lines).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the store will say so
        return 0


def _jobs(worth: int) -> int:
    return max(1, min(cpu_count(), worth))
