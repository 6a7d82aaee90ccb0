"""From files of predictions to a file of picks, for models that live elsewhere.

A pool larger than memory is read by chunks; a result is written whole or not at all.
"""

import mmap
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, checks, scores
from foresee.errors import InputError
from foresee.seeding import generator

# Bytes of the pool scored between two reports of progress.
CHUNK = 16 << 20
# Bytes of an array that are loaded from an archive; one of its own file is mapped, of any size.
UNPACKED = 1 << 30


def read(argument: str, source: str) -> NDArray[Any]:
    """Map ``file.npy``, or load ``file.npz`` or ``file.npz:name``."""
    path, name = _split(source)
    _check_file(argument, path)
    if path.suffix not in (".npy", ".npz"):
        raise InputError(
            f"{argument} must be a .npy or .npz file, got {path}: write one with numpy.save"
        )
    try:
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r")
        return _from_archive(argument, path, name)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises ValueError, BadZipFile, MemoryError, ...
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{argument}: {path} cannot be read ({reason}): it is damaged or holds no plain array; "
            "write it again with numpy.save"
        ) from error


def read_loss(path: Path, classes: int) -> tuple[tuple[float, ...], ...]:
    """Read a loss matrix from a CSV without a header: a row for each class, its actions' costs."""
    _check_file("--loss", path)
    try:
        # Opened here: numpy would unpack a .gz of any size.
        with open(path, encoding="utf-8-sig") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file, which we refuse ourselves
            matrix = np.loadtxt(file, delimiter=",", ndmin=2, max_rows=classes + 1)
    except ValueError as error:
        raise InputError(
            f"--loss: {path} must hold numbers separated by commas, one row for each class "
            f"({error}): remove headers and names"
        ) from error
    if matrix.size == 0:
        raise InputError(f"--loss: {path} is empty: write a row of costs for each class")
    checks.loss_matrix(matrix, classes)
    return tuple(tuple(row) for row in matrix.tolist())


def check(pool: NDArray[Any], target: NDArray[Any] | None, score: str, k: int) -> None:
    """Check all that can be known before the values are read; only entropy takes a pool [n c]."""
    if score == "entropy":
        if pool.ndim == 3:
            raise InputError(
                f"pool must hold one prediction per input [n c] for --score entropy, got draws "
                f"{list(pool.shape)}: use --score entropy_mc"
            )
        checks.array("pool", pool, "n c")
    else:
        checks.draws("pool", pool)
    checks.count("k", k, len(pool), of="the pool")
    if target is not None:
        checks.draws("target", target)
        checks.same_posterior(pool, target, name="target")


def stream(
    pool: NDArray[Any],
    target: NDArray[Any] | None,
    score: str,
    scratch: int,
    advance: Callable[[int], object] = lambda done: None,
    loss: Sequence[Sequence[float]] | None = None,
) -> NDArray[Any]:
    """Score the pool by chunks; ``advance`` hears how many rows are done after each."""
    function = getattr(scores, score) if loss is None else partial(scores.eer, loss=loss)
    targets = () if target is None else (arrays.tensor(target),)
    for values in targets:
        checks.rows_sum_to_one("target", values)
    # A score prepares its targets on every call: chunks at least as large repay that.
    size = max([min(CHUNK, scratch // 4), *(t.nbytes for t in targets)])
    rows = max(1, size // pool[:1].nbytes)
    parts = []
    for start in range(0, len(pool), rows):
        chunk = arrays.tensor(pool[start : start + rows])
        _release_pages(pool)
        try:
            parts.append(arrays.numpy(function(chunk, *targets, scratch=scratch)))
        except InputError:
            # The score counts rows from the start of the chunk; people count from that of the file.
            checks.rows_sum_to_one("pool", chunk, offset=start)
            raise
        advance(start + len(chunk))
    return np.concatenate(parts)


def rank(values: NDArray[Any], k: int, seed: int) -> NDArray[np.int64]:
    """Return the positions of the k largest values, best first; ties fall to the seed."""
    order = generator(seed, "ties").permutation(len(values))
    return order[np.argsort(-values[order], kind="stable")[:k]]


def to_csv(values: NDArray[Any], picks: NDArray[np.int64]) -> str:
    """Write the picks as a table, one line each."""
    lines = (f"{i},{values[i]!s},{place}\n" for place, i in enumerate(picks, start=1))
    return "index,score,rank\n" + "".join(lines)


def check_out(out: Path, sources: Sequence[str]) -> None:
    """Fail before the work is done, not after it, where its result could not be written."""
    if out.is_dir():
        raise InputError(f"--out must be a file, but {out} is a folder: name a file in it")
    if not out.parent.is_dir():
        raise InputError(f"--out: there is no folder {out.parent}: create it, or choose another")
    if out.exists() and not out.is_file():
        raise InputError(f"--out: {out} is not a regular file: drop --out and redirect stdout")
    inputs = (_split(source)[0] for source in sources)
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise InputError(f"--out would overwrite the input {out}: choose another file")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise InputError(
            f"--out: cannot write in the folder {out.parent} ({error.strerror}): choose another"
        ) from error


def _split(source: str) -> tuple[Path, str | None]:
    path, colon, name = source.partition(".npz:")
    return (Path(f"{path}.npz"), name) if colon else (Path(source), None)


def _check_file(argument: str, path: Path) -> None:
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{argument} must be a file, but {path} is a folder: name a file in it")
    if path.exists():
        raise InputError(
            f"{argument}: {path} is not a regular file: write what it delivers into one first"
        )
    raise InputError(f"{argument}: there is no file {path}: check the path")


def _from_archive(argument: str, path: Path, name: str | None) -> NDArray[Any]:
    # Not numpy.load, which unpacks whatever the size.
    with zipfile.ZipFile(path) as archive:
        names = [file.removesuffix(".npy") for file in archive.namelist() if file.endswith(".npy")]
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            wanted = "one array" if name is None else f"an array {name!r}"
            raise InputError(
                f"{argument} must be {wanted}, but {path} holds {', '.join(names) or 'none'}: pick "
                f"one, as in {path}:{names[0] if names else 'name'}"
            )
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is packed in another way than numpy does")
        if member.file_size > UNPACKED:
            raise InputError(
                f"{argument}: {name} in {path} unpacks to {member.file_size:,} bytes, and no more "
                f"than {UNPACKED:,} are loaded: write it with numpy.save to a .npy file, which is "
                "read in pieces"
            )
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def _release_pages(pool: NDArray[Any]) -> None:
    """Give back what was read of a mapped file: it would count as ours until memory runs short."""
    pages: Any = pool.base
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
