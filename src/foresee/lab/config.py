"""Experiments on one's own data from a TOML file: what is wrong with it, errors say with the line.

    name = "pets"                  names the results
    [data]                         path, and which columns or arrays mean what: see `Own`
    [sizes]                        of the sets and rounds: see `Experiment`
    [model]                        network or posterior, built in or file.py:function, and draws
    [recipe]                       of a network: see `Recipe`
    [run]                          settings, methods, seeds, and noise in the pool

Paths are relative to the file.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

import msgspec

from foresee.errors import InputError
from foresee.lab import methods, own, paper
from foresee.lab.experiment import Experiment, Network, Own, Setting, noisy
from foresee.recipe import Recipe

_MAY_BE_ZERO = ("size", "pool_noise")
_KINDS = {".npz": "npz", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class DataSection:
    """[data]: where the data are, and what their parts mean; inputs: by default all the others."""

    path: str
    inputs: tuple[str, ...] = ()
    labels: str = ""
    domain: str = ""
    source: tuple[str, ...] = ()
    target_classes: tuple[str, ...] = ()
    size: int = 0
    channels: int = 3


@dataclass(frozen=True)
class SizesSection:
    """[sizes]: rows of each set, labels a round, rounds (K), candidates (J) and targets (L)."""

    n_seed: int
    n_pool: int
    n_val: int
    n_test: int
    n_query: int
    rounds: int
    candidates: int | None = None
    targets: int = 100


@dataclass(frozen=True)
class ModelSection:
    """[model]: a network with dropout, or a posterior of another model; one of them."""

    network: str = ""
    posterior: str = ""
    draws: int = 100


@dataclass(frozen=True)
class RunSection:
    """[run]: one experiment for each setting, with these methods, and seeds from 0.

    ``pool_noise`` is the share of the pool that is scrambled; see `noisy`.
    """

    settings: tuple[str, ...] = ("noshift",)
    methods: tuple[str, ...] = ("default", "mell", "random")
    seeds: int = 3
    pool_noise: float = 0.0


_SECTIONS: dict[str, Any] = {
    "data": DataSection,
    "sizes": SizesSection,
    "model": ModelSection,
    "recipe": Recipe,
    "run": RunSection,
}


@dataclass(frozen=True)
class Configuration:
    """What a file asks for: experiments, methods by name, the number of seeds, where the data are.

    ``home`` is the folder of the file, from which its functions are loaded.
    """

    experiments: tuple[Experiment, ...]
    methods: tuple[str, ...]
    seeds: int
    data: Path
    home: Path


class Lines:
    """The text of a TOML file, to tell in which line a value is."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def of(self, *keys: str) -> int:
        """The line where a value begins, or that of its table, or 1.

        >>> Lines(Path("a.toml"), "[sizes]\\n# seed set\\nn_seed = 20\\n").of("sizes", "n_seed")
        3
        """
        lines, before = self.text.splitlines(keepends=True), 0
        for number in range(1, len(lines) + 1):
            try:
                found: Any = tomllib.loads("".join(lines[:number]))
            except tomllib.TOMLDecodeError:  # in the middle of a value
                continue
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                return before + 1
            before = number
        return self.of(*keys[:-1]) if len(keys) > 1 else 1

    def refuse(self, problem: object, *keys: str) -> NoReturn:
        """Say what is wrong with the value, and where it is."""
        raise InputError(f"{self.path}, line {self.of(*keys)}: {problem}") from None

    @contextmanager
    def at(self, *keys: str) -> Iterator[None]:
        """Add the line of a value to errors about it."""
        try:
            yield
        except InputError as error:
            self.refuse(error, *keys)


def read(
    path: Path,
    cache: Path | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Configuration:
    """Read a file and the data that it names, and check that they fit each other.

    Args:
        path: of the TOML file.
        cache: where decoded images go; by default beside them.
        advance: hears how many images of all are decoded.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}: write one with foresee init {path} --data PATH")
    try:
        text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:  # it names the line itself
        raise InputError(f"{path} is no TOML file: {error}") from None
    lines = Lines(path, text)
    name, sections = _sections(lines, content)
    given, run = sections["data"], sections["run"]
    _check_model(lines, sections["model"], path.parent)
    settings = _settings(lines, run, given)
    chosen = _methods(lines, run.methods, path.parent)
    place = path.parent / given.path
    mine = _own(lines, given, sections["model"], place)
    with lines.at("data", "path"):
        data = own.read(name, mine, given.size, place, cache, advance)
    _check_data(lines, given, data, sections["model"])
    whole = _whole(name, data, mine, sections)
    try:
        whole = noisy(whole, run.pool_noise)
    except InputError as error:  # which begins with the name of the value
        lines.refuse(f"run.{error}", "run", "pool_noise")
    experiments = tuple(_experiment(lines, whole, setting, data) for setting in settings)
    with lines.at("model"):
        own.sampler(whole, own.shape(data), partial(own.load, path.parent))
    return Configuration(experiments, chosen, run.seeds, place, path.parent)


def _own(lines: Lines, given: DataSection, model: ModelSection, place: Path) -> Own:
    same = ("inputs", "labels", "domain", "source", "channels")
    return Own(
        kind=_kind(lines, given, place),
        digest="",
        **{key: getattr(given, key) for key in same},
        posterior=model.posterior or "dropout",
    )


def _whole(name: str, data: own.Data, mine: Own, sections: Mapping[str, Any]) -> Experiment:
    """The experiment of no setting yet."""
    sizes, model = sections["sizes"], sections["model"]
    images = data.kind == "images"
    return Experiment(
        dataset=name,
        shift=False,
        image_size=data.inputs.shape[2] if images else 0,
        classes=len(data.classes),
        **vars(sizes) | {"candidates": min(sizes.candidates or sizes.n_pool, sizes.n_pool)},
        draws=model.draws,
        network=model.network or model.posterior,
        recipe=sections["recipe"],
        target=sections["data"].target_classes,
        own=replace(mine, digest=data.digest, channels=data.inputs.shape[1] if images else 0),
    )


def _sections(lines: Lines, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _check_keys(lines, content, ("name", *_SECTIONS))
    name = content.get("name")
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        lines.refuse(f"name must be a word of letters, digits, - and _, got {name!r}", "name")
    if name.lower() in paper.datasets():
        lines.refuse(f"name {name!r} is that of a data set foresee knows: choose another", "name")
    found = {}
    for section, kind in _SECTIONS.items():
        values = content.get(section, {})
        if not isinstance(values, dict):
            lines.refuse(f"{section} must be a table, [{section}], got {values!r}", section)
        found[section] = _section(lines, section, kind, values)
    return name, found


def _section(lines: Lines, section: str, kind: Any, values: Mapping[str, Any]) -> Any:
    """The values of a table as a dataclass, each of its type."""
    parts = {part.name: part for part in fields(kind)}
    _check_keys(lines, values, tuple(parts), section)
    given = {}
    for key, value in values.items():
        one = isinstance(value, str) and parts[key].type == tuple[str, ...]
        try:
            given[key] = msgspec.convert([value] if one else value, cast(Any, parts[key].type))
        except (TypeError, ValueError) as error:
            lines.refuse(f"{section}.{key}: {error}", section, key)
        if isinstance(value, int) and value < (0 if key in _MAY_BE_ZERO else 1):
            lines.refuse(f"{section}.{key} must be positive, got {value}", section, key)
    for key, part in parts.items():
        if key not in given and part.default is MISSING:
            lines.refuse(f"{section}.{key} is missing: add it under [{section}]", section)
    try:
        return kind(**given)
    except InputError as error:  # of a recipe, which begins with the name of the value
        lines.refuse(f"{section}.{error}", section, str(error).split()[0])


def _check_keys(
    lines: Lines, values: Mapping[str, Any], known: tuple[str, ...], section: str = ""
) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            where = f"[{section}]" if section else "the file"
            lines.refuse(f"{where} has no key {key!r}: {hint}", *filter(None, (section, key)))


def _check_model(lines: Lines, model: ModelSection, home: Path) -> None:
    if bool(model.network) == bool(model.posterior):
        lines.refuse("[model] needs network or posterior, one of them", "model")
    for key, known in (("network", get_args(Network)), ("posterior", own.BUILT_IN)):
        name = getattr(model, key)
        if name and ":" not in name and name not in known:
            options = ", ".join(known)
            lines.refuse(
                f"model.{key} must be one of {options}, or file.py:function, got {name!r}",
                "model",
                key,
            )
        if ":" in name:
            with lines.at("model", key):
                own.load(home, name)
    if model.draws < 2:
        lines.refuse(
            "model.draws must be at least 2: one draw has no uncertainty", "model", "draws"
        )


def _settings(lines: Lines, run: RunSection, data: DataSection) -> tuple[str, ...]:
    needed = {"shift": ("domain", "source"), "narrow": ("target_classes",)}
    if not run.settings or len(set(run.settings)) < len(run.settings):
        lines.refuse("run.settings must name each setting once", "run", "settings")
    for setting in run.settings:
        if setting not in get_args(Setting):
            options = ", ".join(get_args(Setting))
            lines.refuse(f"run.settings knows {options}, got {setting!r}", "run", "settings")
        for key in needed.get(setting, ()):
            if not getattr(data, key):
                lines.refuse(f"setting {setting!r} needs data.{key}: add it", "run", "settings")
    return run.settings


def _methods(lines: Lines, names: tuple[str, ...], home: Path) -> tuple[str, ...]:
    """Names of methods as `plan` takes them; files are found from the folder of the TOML file."""
    with lines.at("run", "methods"):
        found = [str(home / name) if ":" in name else name for name in names]
        return tuple(methods.named(found, "run.methods"))


def _kind(lines: Lines, data: DataSection, place: Path) -> str:
    kind = "folder" if place.is_dir() else _KINDS.get(place.suffix.lower(), "")
    if not place.exists():
        lines.refuse(f"there is nothing at {place}: correct data.path", "data", "path")
    if not kind:
        known = ", ".join(_KINDS)
        lines.refuse(
            f"data.path must be a folder of images or a {known} file, got {place}", "data", "path"
        )
    if kind == "folder" and not data.size:
        lines.refuse("data.size, the side of the images, is missing: add size = 32", "data")
    if kind != "folder" and not data.labels:
        lines.refuse("data.labels, the column or array of labels, is missing: add it", "data")
    if data.labels and data.labels in data.inputs:
        lines.refuse(
            f"data.inputs has {data.labels!r}, the labels, which no model may read: leave it out",
            "data",
            "inputs",
        )
    for key in ("inputs", "labels") if kind == "folder" else ("size",):
        if getattr(data, key):
            whose = "a table" if kind == "folder" else "a folder of images"
            lines.refuse(f"data.{key} is for {whose}: leave it out", "data", key)
    if kind == "folder" and data.domain not in ("", "folder"):
        lines.refuse(
            'data.domain of a folder must be "folder", for domain/class/image, got '
            f"{data.domain!r}",
            "data",
            "domain",
        )
    if kind != "folder" and data.domain and not data.inputs:
        lines.refuse("data.inputs must be named where there is a domain: add it", "data", "domain")
    return kind


def _check_data(lines: Lines, given: DataSection, data: own.Data, model: ModelSection) -> None:
    domains = [] if data.domains is None else sorted(set(data.domains.tolist()))
    for key, known in (("source", domains), ("target_classes", list(data.classes))):
        for value in getattr(given, key):
            if value not in known:
                some = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
                lines.refuse(f"data.{key} has {value!r}, but there are {some}", "data", key)
    if data.kind == "images" and given.channels not in (3, data.inputs.shape[1]):
        lines.refuse(
            f"data.channels is of a folder of images, and {data.name} has images of "
            f"{data.inputs.shape[1]} channels: leave it out",
            "data",
            "channels",
        )
    wrong = {"texts": ("forest", "logistic"), "numbers": ("tfidf",), "images": ("tfidf",)}
    if model.posterior in wrong[data.kind]:
        lines.refuse(f"posterior {model.posterior} cannot read {data.kind}", "model", "posterior")
    if model.network and data.kind == "texts":
        lines.refuse('a network reads no texts: use posterior = "tfidf"', "model", "network")


def _experiment(lines: Lines, whole: Experiment, setting: str, data: own.Data) -> Experiment:
    """The experiment of a setting; what other settings need is not in it."""
    assert whole.own is not None
    experiment = replace(
        whole,
        shift=setting == "shift",
        own=replace(whole.own, source=whole.own.source if setting == "shift" else ()),
        target=whole.target if setting == "narrow" else (),
    )
    try:
        own.split(data, experiment, seed=0)
    except own.TooFewError as error:
        largest = max(error.sizes, key=lambda size: getattr(whole, size))
        lines.refuse(f"{setting}: {error}", "sizes", largest)
    return experiment
