"""Rounds on disk: one folder per experiment, one JSON-lines file per trial, one line per round.

A trial is one method with one seed. Its file starts with a header, the whole configuration; every
round is appended and synced, so what is finished survives a kill at any moment. A torn last line is
dropped. What a file's name, its header and the checksums of its lines do not agree on is refused.
Whoever writes a trial holds its lock; the lock dies with the process.

``plan.json`` beside them names the trials that were asked for, so that those without a file are
known too.
"""

import functools
import hashlib
import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec
from filelock import FileLock, Timeout

from foresee import files, lines
from foresee.errors import InputError
from foresee.lab.experiment import Experiment, Method, Round, Stage
from foresee.lab.values import changes, plain, typed

FORMAT = 1
PLAN = "plan.json"
_PATIENCE = 0.5  # seconds: `busy` holds a lock for an instant, a trial for as long as it runs
_NAME = re.compile(r"\w[\w+.-]*")
_CONFIGURATION = ("experiment", "method", "seed", "data")
_BEGIN = b'{"kind": "header", "format": '
_MISFITS = (KeyError, TypeError, ValueError, RecursionError)


class BusyError(Exception):
    """Another process is running this trial."""


class TornLineError(InputError):
    """The last line of a trial was not written to its end; the rounds above it are whole."""


@dataclass(frozen=True)
class Trial:
    """One learning curve as far as it is known."""

    experiment: Experiment
    method: str
    seed: int
    rounds: tuple[Round, ...]
    header: dict[str, Any]
    path: Path

    @property
    def finished(self) -> bool:
        """The last round picks nothing."""
        return bool(self.rounds) and not self.rounds[-1].picks


# What hears of each thing that cannot be read, so that the rest can.
Skip: TypeAlias = Callable[[InputError], object]


def refuse(problem: InputError) -> None:
    """Skip nothing but a torn line, whose round was not finished."""
    if not isinstance(problem, TornLineError):
        raise problem


def trials(folder: Path, skip: Skip = refuse, only: str = "*") -> list[Trial]:
    """Read every trial in a folder, in the order of experiment, method and seed.

    Trials that are planned and have no round yet are among them. ``skip`` hears of each file that
    cannot be read, and the others are read on; by default it is an error. It hears of torn lines
    too, as `TornLineError`: their trials are read without them. ``only`` is a pattern of the
    experiments to read.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: pass the one given to foresee run --out")
    found: dict[Path, list[Trial]] = defaultdict(list)
    for path in sorted(folder.glob(f"{only}/*.jsonl")):
        try:
            if trial := read(path, skip):
                found[path.parent].append(trial)
        except InputError as problem:
            skip(problem)
    for path in sorted(folder.glob(f"{only}/{PLAN}")):
        try:
            found[path.parent] += _not_begun(path, found[path.parent])
        except InputError as problem:
            skip(problem)
    if not any(found.values()) and only == "*":
        raise InputError(
            f"there is no trial in {folder}: pass the folder given to foresee run --out, or wait "
            "until a first round is finished"
        )
    every = (trial for group in found.values() for trial in group)
    return sorted(every, key=lambda t: (t.experiment.name, t.method, t.seed))


def read(path: Path, skip: Skip = refuse) -> Trial | None:
    """Read one trial; None where there is not even a header. ``skip`` hears of a torn line."""
    found = lines.parse(path, lines.content(path))
    if found.torn:
        skip(
            TornLineError(
                f"the torn last line of {path} (line {len(found.values) + 1}), whose writing was "
                "cut short: foresee run does that round again"
            )
        )
    return _trial(path, found.values) if found.values else None


def keep_plan(
    folder: Path,
    experiment: Experiment,
    seeds: Mapping[str, Iterable[int]],
    skip: Skip = lambda problem: None,
) -> None:
    """Add trials, as seeds by method, to those that are planned for an experiment.

    ``skip`` hears of a plan that cannot be read; it is written anew.
    """
    for name in (experiment.name, *seeds):
        _check_name(name)
    path = folder / experiment.name / PLAN
    values = _values(experiment)
    with writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".plan.lock")):
            if _conflict(path, values):
                return  # each trial will say so, and what is planned here stays
            planned = _planned(path, experiment, skip)
            for method, wanted in seeds.items():
                planned[method] = tuple(sorted({*planned.get(method, ()), *wanted}))
            content = {"kind": "plan", "format": FORMAT, **lines.CHECKSUMS}
            line, _ = lines.encode({**content, "experiment": values, "seeds": planned})
            files.write(path, line)


@dataclass
class Recorder:
    """The open file of one trial, and what was ``done`` of it before; `recording` makes it."""

    path: Path
    done: tuple[Round, ...]
    _above: int | None

    def append(self, done: Round) -> None:
        """Write one round; when this returns it is on the disk."""
        values = {"kind": "round", **vars(done), "seconds": dict(done.seconds)}
        self._above = lines.append(self.path, values, self._above)


@contextmanager
def recording(
    folder: Path, experiment: Experiment, method: Method, seed: int, data: str = "", **machine: Any
) -> Iterator[Recorder]:
    """Open a trial for writing, with what was finished of it, or raise `BusyError`.

    ``data`` identifies the split; ``machine`` says where the trial runs: it is kept but may change.
    """
    path = trial_path(folder, experiment, method.name, seed)
    lock = FileLock(path.with_name(f".{path.stem}.lock"), timeout=_PATIENCE)
    with writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise BusyError(f"{path} is being written by another process") from None
    try:
        config = {**configuration(experiment, method, seed), "data": data}
        yield _resume(path, config, machine)
    except BaseException:
        _drop_if_empty(path)
        raise
    finally:
        lock.release()


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Say of a folder where nothing can be written what to do about it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"--out: cannot write in {folder} ({error.strerror}): make room or choose another "
            "folder; every finished round is safe"
        ) from error


def busy(trial: Trial) -> bool:
    """Tell whether a process is writing this trial now."""
    path = trial.path.with_name(f".{trial.path.stem}.lock")
    try:
        if path.exists():
            with FileLock(path, timeout=0):
                pass
    except Timeout:
        return True
    except OSError:  # a folder that is read-only now is written by nobody we can see
        pass
    return False


def trial_path(folder: Path, experiment: Experiment, method: str, seed: int) -> Path:
    """Where a trial is kept."""
    _check_name(experiment.name)
    _check_name(method)
    return folder / experiment.name / f"{method}-{seed}.jsonl"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"methods and experiments give their files a name, of letters, digits and _ + - ., but "
            f"one is called {name!r}: rename it"
        )


def configuration(experiment: Experiment, method: Method, seed: int) -> dict[str, Any]:
    """All that decides the outcome of a trial, as JSON values."""
    return {"experiment": _values(experiment), "method": plain(method), "seed": seed}


def _values(experiment: Experiment) -> dict[str, Any]:
    values = {**asdict(experiment), "loss": plain(experiment.loss)}
    # Headers have no entry for what an experiment does without.
    without = [name for name in ("own", "target", "pool_noise") if not values[name]]
    return {name: value for name, value in values.items() if name not in without}


@dataclass(frozen=True)
class _Plan:
    kind: Literal["plan"]
    format: Literal[1]
    experiment: Experiment
    seeds: dict[str, tuple[int, ...]]
    checksums: Literal["crc32"] = "crc32"


def _read_plan(path: Path) -> _Plan:
    values = lines.parse(path, lines.content(path)).values
    try:
        plan = typed(_Plan, _moved(values[0]) if values else {})
        for name in plan.seeds:
            _check_name(name)
        if plan.experiment.name != path.absolute().parent.name:
            raise InputError(f"it is of {plan.experiment.name!r}")
    except _MISFITS as error:
        raise InputError(
            f"{path} is no plan that this version of foresee can read ({error}): delete it, or "
            "run the same again; no round is lost, only the names of trials that have none"
        ) from error
    return plan


def _planned(path: Path, experiment: Experiment, skip: Skip) -> dict[str, tuple[int, ...]]:
    """The seeds by method of a plan for this very experiment, none where there is no such plan."""
    if not path.exists():
        return {}
    try:
        plan = _read_plan(path)
    except InputError as problem:
        skip(problem)
        return {}
    return plan.seeds if plan.experiment == experiment else {}


def _not_begun(path: Path, begun: Sequence[Trial]) -> list[Trial]:
    """The planned trials of an experiment that are not among those begun."""
    plan = _read_plan(path)
    if any(trial.experiment != plan.experiment for trial in begun):
        return []  # of a run that was refused, or given up before its first round
    there = {(trial.method, trial.seed) for trial in begun}
    return [
        Trial(plan.experiment, method, seed, (), {}, path.with_name(f"{method}-{seed}.jsonl"))
        for method, seeds in plan.seeds.items()
        for seed in seeds
        if (method, seed) not in there
    ]


def _resume(path: Path, config: dict[str, Any], machine: dict[str, Any]) -> Recorder:
    """Open a trial where it stopped; a header alone is no round to lose, and written anew."""
    data = lines.content(path)
    if not _is_ours(data):
        raise InputError(f"{path} is no trial, and would be overwritten: move it away")
    found = lines.parse(path, data) if data.count(b"\n") > 1 else lines.NONE
    digest = _digest(config)
    done: tuple[Round, ...] = ()
    if len(found.values) > 1:
        trial = _trial(path, found.values)
        old = _stated({key: trial.header[key] for key in config})
        if _digest(old) != digest:
            raise InputError(
                f"{path} was begun with another configuration, and rounds of two must not mix:\n"
                f"{_listed(old, config)}\nrun with the old values, choose another --out, or "
                "delete that file"
            )
        done = trial.rounds
    if problem := _conflict(path, config["experiment"]) or _unlike(path, config):
        raise InputError(problem)
    if done:
        lines.truncate(path, found.size)
        if done[-1].picks:
            os.utime(path)  # whoever watches sees that it is at work
        return Recorder(path, done, found.sum)
    lines.truncate(path, 0)
    place = {"machine": platform.machine(), "python": platform.python_version()}
    identity = {"kind": "header", "format": FORMAT, **config, "hash": digest}
    header = {**identity, "versions": _versions(), **place, **machine, **lines.CHECKSUMS}
    return Recorder(path, (), lines.append(path, header, 0))


@functools.cache
def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("foresee", "torch", "numpy")}


def _is_ours(data: bytes) -> bool:
    """Tell whether a file begins like a trial; a crash may have left less, or zeros."""
    begin = data[: len(_BEGIN)]
    return _BEGIN.startswith(begin.rstrip(b"\0"))


def _drop_if_empty(path: Path) -> None:
    """Leave no trace of a trial that failed before its first round: it was never comparable."""
    with suppress(OSError, InputError):
        data = lines.content(path)
        if _is_ours(data) and data.count(b"\n") < 2:
            path.unlink()


def _conflict(path: Path, experiment: dict[str, Any]) -> str:
    """Say which trial beside a path is of another experiment, or differs in the case of its name.

    No report could compare the one, and not every file system tells the other apart.
    """
    for other in path.parent.glob("*.jsonl"):
        if other.name != path.name and other.name.casefold() == path.name.casefold():
            return (
                f"{path} and {other.name} would be one file on some disks: rename the method, or "
                "choose another --out"
            )
    # Most are of the same, and there may be thousands.
    same = _BEGIN + f'{FORMAT}, "experiment": {json.dumps(experiment)}'.encode()
    for other, header in _beside(path, "*", unless=same):
        old = {"experiment": header["experiment"]}
        if what := _listed(old, {"experiment": experiment}):
            return (
                f"{other} is of another experiment, and no report may compare the two:\n"
                f"{what}\nrun with the old values, or choose another --out"
            )
    return ""


def _beside(
    path: Path, *patterns: str, unless: bytes = b"\n"
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Other trials that have a round, by name, and their headers, unless these begin like that."""
    found = {other for of in patterns for other in path.parent.glob(f"{of}.jsonl")}
    for other in sorted(found - {path}):
        with suppress(InputError):  # whoever reads all of them says what is wrong with it
            first, _, second = lines.content(other, 2).partition(b"\n")
            if second.endswith(b"\n") and not first.startswith(unless):
                for header in lines.parse(other, first + b"\n").values:
                    _header(other, header)
                    yield other, header


def alike(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the trials of a name, and what all trials on one's own data must have in common.

    Where they run is not among it.
    """

    def anywhere(part: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in part.items() if key != "device"}

    text = json.dumps(_stated(dict(header))["method"])
    method = json.loads(text, object_hook=anywhere)
    own, sampler = header.get("experiment", {}).get("own"), method.get("sampler")
    model = sampler.get("like", sampler) if own and isinstance(sampler, dict) else None
    return {"model": model, "method": method}


def _unlike(path: Path, config: dict[str, Any]) -> str:
    """Say which trial beside a path, of its seed, method or data, could not be compared with it."""
    name, seed = config["method"]["name"], config["seed"]
    some = ("*",) if config["experiment"].get("own") else (f"*-{seed}", f"{name}-*")
    for other, header in _beside(path, *some):
        if header["seed"] == seed and header["data"] != config["data"]:
            return (
                f"{other} has other sets than this trial would have, and trials of one seed must "
                "share theirs: pass --splits as before, or choose another --out"
            )
        kind = "method" if header["method"]["name"] == name else "model"
        old, new = ({kind: alike(each)[kind]} for each in (header, config))
        if what := _listed(old, new):
            return (
                f"{other} is of another {kind}, and no report may mix the two:\n{what}\nrun with "
                "the old values, or choose another --out"
            )
    return ""


def _listed(old: dict[str, Any], new: dict[str, Any]) -> str:
    return "\n".join(changes(old, json.loads(json.dumps(new))))


@dataclass(frozen=True)
class _Header:
    kind: Literal["header"]
    format: Literal[1]
    experiment: Experiment
    method: dict[str, Any]
    seed: int
    data: str
    hash: str
    versions: dict[str, str]
    machine: str
    python: str
    device: str = ""
    threads: int = 0
    pool: dict[str, int] | None = None
    checksums: Literal["crc32"] = "crc32"


_HEADER = tuple(part.name for part in fields(_Header))


def _trial(path: Path, values: list[dict[str, Any]]) -> Trial:
    """A trial from the values of its lines, each checked."""
    header = _header(path, values[0])
    rounds: list[Round] = []
    for line, value in enumerate(values[1:], start=2):
        kind = value.pop("kind", "")
        try:
            found = _round(value)
        except _MISFITS as error:
            raise _unreadable(path, line, error) from error
        if (
            (kind, found.number) != ("round", line - 2)
            or len(found.picks) != len(found.labels)
            or (rounds and not rounds[-1].picks)
        ):
            raise lines.damage(path, line)
        rounds.append(found)
    name = header.method["name"]
    return Trial(header.experiment, name, header.seed, tuple(rounds), values[0], path)


class _Spent(TypedDict):
    seconds: dict[Stage, float]  # of a round, which has them as pairs


def _round(values: dict[str, Any]) -> Round:
    spent = msgspec.convert(values, _Spent)
    return typed(Round, {**values, "seconds": tuple(spent["seconds"].items())})


def _header(path: Path, values: dict[str, Any]) -> _Header:
    """The first line of a trial, in agreement with itself and with where it is."""
    try:
        known = {key: values[key] for key in _HEADER if key in values}
        header = typed(_Header, _moved(known))
        method = msgspec.convert(header.method["name"], str)
        digest = _digest({key: values[key] for key in _CONFIGURATION})
    except _MISFITS as error:
        raise _unreadable(path, 1, error) from error
    if digest != header.hash:
        raise lines.damage(path, 1)
    name = f"{method}-{header.seed}.jsonl"
    if (path.absolute().parent.name, path.name) != (header.experiment.name, name):
        whose = f"{header.experiment.name}/{name}"
        raise InputError(
            f"{path} holds the trial {whose!r}: give it its own name back, or delete it"
        )
    return header


def _moved(values: dict[str, Any]) -> dict[str, Any]:
    """Read the target of older experiments, which only one's own data had, and named itself."""
    match values.get("experiment"):
        case {"own": {"target_classes": target, **own}, **others}:
            return {**values, "experiment": {**others, "own": own, "target": target}}
    return values


def _stated(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the values of its strategy that older headers left unsaid."""
    method = config["method"]
    strategy = method.get("strategy")
    if isinstance(strategy, dict) and strategy.get("type") == "GreedyConditioning":
        strategy = {"aleatoric": True, **strategy}  # the one account of noise at first
    return {**config, "method": {**method, "strategy": strategy}}


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _unreadable(path: Path, line: int, error: Exception) -> InputError:
    return InputError(
        f"{path} is no trial that this version of foresee can read (line {line}: {error}): move it "
        "away"
    )
