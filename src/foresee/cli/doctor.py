"""foresee doctor: what is installed, what it runs on, and the commands that add what is missing."""

import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foresee import __version__
from foresee.cli.console import cores, progress_bar, show, stop, to_stdout


@dataclass(frozen=True)
class Package:
    """A package that is asked for; ``version`` None: not there; ``fits`` what is asked for."""

    name: str
    asked: str
    version: str | None
    fits: bool


@dataclass(frozen=True)
class Extra:
    """An optional part, its packages, and the ``command`` that adds what is missing of it."""

    packages: tuple[Package, ...]
    command: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it; ``fused``: float32 scores run in kernels cut to it."""

    name: str
    gib: float
    capability: str
    fused: bool


@dataclass(frozen=True)
class Devices:
    """What can compute; ``cuda`` is the version that torch was built for."""

    cores: int
    threads: int
    cuda: str | None
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A place where something is kept."""

    purpose: str
    path: str
    writable: bool


@dataclass(frozen=True)
class Facts:
    """All that doctor finds; ``broken`` says what foresee cannot work without, and the remedy."""

    foresee: str
    python: str
    platform: str
    required: tuple[Package, ...]
    extras: dict[str, Extra]
    triton: str | None
    devices: Devices | None
    folders: tuple[Folder, ...]
    broken: list[str] = field(default_factory=list)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show versions, devices and extras, and the commands that add what is missing.

    Ends with 1 if something is broken that foresee cannot work without.
    """
    with progress_bar() as bar:
        bar.add_task("looking", total=None)
        facts = examine()
    if as_json:
        to_stdout(json.dumps(asdict(facts), indent=2) + "\n")
    else:
        _print(facts)
    if facts.broken:
        stop("\n".join(f"broken: {problem}" for problem in facts.broken), code=1)


def examine() -> Facts:
    """Look at this installation; of all packages only torch is imported, for its devices."""
    required, extras, broken = _packages()
    folders = tuple(_folders())
    if not any(folder.writable for folder in folders if folder.purpose == _COMPILED):
        broken.append(
            "no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one that can"
        )
    devices = None
    try:
        devices = _devices()
    except Exception as error:  # whatever a broken build does
        broken.append(f"foresee.kernels does not load ({error}): install anew what that names")
    where = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Facts(
        __version__,
        platform.python_version(),
        where,
        required,
        extras,
        _version("triton"),
        devices,
        folders,
        broken,
    )


def _packages() -> tuple[tuple[Package, ...], dict[str, Extra], list[str]]:
    """What is required, the extras, and what is broken of the former."""
    try:
        about = metadata.metadata("foresee")
    except metadata.PackageNotFoundError:
        return (), {}, ["foresee is not installed but only found: pip install . in its folder"]
    asked = [Requirement(line) for line in about.get_all("Requires-Dist") or ()]
    required = _those_of("", asked)
    broken = [  # quoted, as shells read brackets and >
        f'{p.name} {p.version or "is missing"}: pip install "{p.name}{p.asked}"'
        for p in required
        if not p.fits
    ]
    extras = {}
    for extra in about.get_all("Provides-Extra") or ():
        packages = _those_of(extra, asked)
        whole = all(p.fits for p in packages)
        command = None if whole else f'pip install "foresee[{extra}]"'
        extras[extra] = Extra(packages, command)
    return required, extras, broken


def _those_of(extra: str, asked: list[Requirement]) -> tuple[Package, ...]:
    """The packages that an extra adds, or with no name those that are always required."""
    found: dict[str, Package] = {}
    for one in asked:
        always = one.marker is None or one.marker.evaluate({"extra": ""})
        if always if extra else not always:
            continue
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        if one.name == "foresee":  # one extra that includes others
            found |= {p.name: p for other in one.extras for p in _those_of(other, asked)}
            continue
        version = _version(one.name)
        fits = version is not None and one.specifier.contains(version, prereleases=True)
        found[one.name] = Package(one.name, str(one.specifier), version, fits)
    return tuple(found.values())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Devices:
    with warnings.catch_warnings(record=True) as caught:  # torch warns of drivers that do not fit
        warnings.simplefilter("always")
        import torch

        from foresee.kernels import tiled

        gpus = []
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            about = torch.cuda.get_device_properties(number)
            gpus.append(
                Gpu(
                    about.name,
                    round(about.total_memory / 2**30, 1),
                    f"{about.major}.{about.minor}",
                    tiled.fused_on(torch.device("cuda", number)) is not None,
                )
            )
    notes = tuple(str(warning.message).strip() for warning in caught)
    return Devices(cores(), torch.get_num_threads(), torch.version.cuda, tuple(gpus), notes)


_COMPILED = "compiled kernels"


def _folders() -> Iterator[Folder]:
    """Where things are kept; of the first purpose numba takes the first that can be written."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(f"~/{caches}"))
    package = Path(__file__).parents[1] / "kernels" / "__pycache__"
    for path in [*([Path(told)] if told else []), package, home / "numba"]:
        folder = _folder(_COMPILED, path)
        yield folder
        if folder.writable:
            break
    yield _folder("temporary files", Path(tempfile.gettempdir()))
    yield _folder("here: runs, reports", Path.cwd())


def _folder(purpose: str, path: Path) -> Folder:
    """A folder that is not there can be made if the nearest above it can be written."""
    there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return Folder(purpose, str(path), there.is_dir() and os.access(there, os.W_OK | os.X_OK))


def _print(facts: Facts) -> None:
    first = Text(f"foresee {facts.foresee}, Python {facts.python}, {facts.platform}")
    Console().print(first, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, there, missing in _rows(facts):
        # Text, not strings: rich would take foresee[label] for markup.
        about = Text(there)
        if missing:
            about.append(f"\n{missing}", style="yellow")
        table.add_row(name, about)
    show(table)


def _rows(facts: Facts) -> Iterator[tuple[str, str, str]]:
    yield "required", ", ".join(map(_words, facts.required)), ""
    for name, extra in facts.extras.items():
        yield f"extra {name}", ", ".join(map(_words, extra.packages)), extra.command or ""
    if facts.devices is not None:
        yield from _device_rows(facts.devices, facts.triton)
    for folder in facts.folders:
        yield folder.purpose, folder.path, "" if folder.writable else "this cannot be written"


def _device_rows(devices: Devices, triton: str | None) -> Iterator[tuple[str, str, str]]:
    yield "cpu", f"cores: {devices.cores}, threads of torch: {devices.threads}", ""
    for number, gpu in enumerate(devices.gpus):
        about = f"{gpu.name}, {gpu.gib} GiB, compute capability {gpu.capability}"
        if gpu.fused:
            yield f"cuda:{number}", f"{about}, fused kernels by triton {triton}", ""
        else:
            missing = "they need capability 9.0" if triton else "pip install triton"
            yield f"cuda:{number}", about, f"no fused kernels: {missing}"
    if not devices.gpus:
        built = f"for CUDA {devices.cuda}" if devices.cuda else "without CUDA"
        yield "cuda", f"no GPU that torch sees; it is built {built}", ""
    for note in devices.notes:
        yield "note", note, ""


def _words(package: Package) -> str:
    if package.version is None:
        return f"{package.name} missing"
    return f"{package.name} {package.version}{'' if package.fits else f' (not {package.asked})'}"
