"""Rounds on disk: one folder per experiment, one JSON-lines file per trial, one line per round.

A trial is one method with one seed. Its file starts with a header, the whole configuration; every
round is appended and synced, so what is finished survives a kill at any moment. A torn last line is
dropped. Whoever writes a trial holds its lock; the lock dies with the process.

``plan.json`` beside them names the trials that were asked for, so that those without a file are
known too.
"""

import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from foresee import files
from foresee.errors import InputError
from foresee.lab.experiment import Experiment, Method, Round
from foresee.recipe import Recipe

FORMAT = 1
PLAN = "plan.json"
_PATIENCE = 0.5  # seconds: `busy` holds a lock for an instant, a trial for as long as it runs


class BusyError(Exception):
    """Another process is running this trial."""


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

    @property
    def picture(self) -> Path | None:
        """The images that the first round picked, where they were kept."""
        path = self.path.with_suffix(".png")
        return path if path.exists() else None


def _refuse(problem: InputError) -> None:
    raise problem


def trials(
    folder: Path, skip: Callable[[InputError], object] = _refuse, only: str = "*"
) -> list[Trial]:
    """Read every trial in a folder, in the order of experiment, method and seed.

    Trials that are planned and have no round yet are among them. ``skip`` hears of each file that
    cannot be read, and the others are read on; by default it is an error. ``only`` is a pattern of
    the experiments to read.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: pass the one given to foresee run --out")
    found: list[Trial] = []
    for path in sorted(folder.glob(f"{only}/*.jsonl")):
        try:
            trial = read(path)
        except InputError as problem:
            skip(problem)
        else:
            found += [trial] if trial else []
    for path in sorted(folder.glob(f"{only}/{PLAN}")):
        begun = [trial for trial in found if trial.path.parent == path.parent]
        try:
            found += _not_begun(path, begun)
        except InputError as problem:
            skip(problem)
    if not found and only == "*":
        raise InputError(
            f"there is no trial in {folder}: pass the folder given to foresee run --out, or wait "
            "until a first round is finished"
        )
    return sorted(found, key=lambda t: (t.experiment.name, t.method, t.seed))


def read(path: Path) -> Trial | None:
    """Read one trial; None where a crash left not even a header."""
    lines, _ = _whole_lines(path)
    if not lines:
        return None
    header, rounds = lines[0], _rounds(path, lines)
    with _understood(path, header):
        method, seed = header["method"]["name"], header["seed"]
        return Trial(_to_experiment(header), method, seed, rounds, header, path)


def keep_plan(
    folder: Path,
    experiment: Experiment,
    seeds: Mapping[str, Iterable[int]],
    skip: Callable[[InputError], object] = lambda problem: None,
) -> None:
    """Add trials, as seeds by method, to those that are planned for an experiment.

    ``skip`` hears of a plan that cannot be read; it is written anew.
    """
    path = folder / experiment.name / PLAN
    values = _experiment_values(experiment)
    with writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".plan.lock")):
            if _stranger(path, values):
                return  # each trial will say so, and what is planned here stays
            planned = _planned(path, experiment, skip)
            for method, wanted in seeds.items():
                planned[method] = sorted({*planned.get(method, ()), *wanted})
            content = {"kind": "plan", "format": FORMAT, "experiment": values, "seeds": planned}
            files.write(path, json.dumps(content).encode() + b"\n")


class Recorder:
    """The open file of one trial; `recording` makes it."""

    def __init__(self, path: Path, done: tuple[Round, ...]) -> None:
        self.path = path
        self.done = done

    def append(self, done: Round) -> None:
        """Write one round; when this returns it is on the disk."""
        _append(self.path, {"kind": "round", **asdict(done), "seconds": dict(done.seconds)})


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
        yield Recorder(path, _resume(path, config, machine))
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
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that is read-only now is written by nobody we can see
        return False


def trial_path(folder: Path, experiment: Experiment, method: str, seed: int) -> Path:
    """Where a trial is kept."""
    return folder / experiment.name / f"{method}-{seed}.jsonl"


def configuration(experiment: Experiment, method: Method, seed: int) -> dict[str, Any]:
    """All that decides the outcome of a trial, as JSON values."""
    values = _experiment_values(experiment)
    return {"experiment": values, "method": _plain(method), "seed": seed}


def _experiment_values(experiment: Experiment) -> dict[str, Any]:
    return {**asdict(experiment), "loss": _plain(experiment.loss)}


def _to_experiment(header: dict[str, Any]) -> Experiment:
    values = dict(header["experiment"])
    values["recipe"] = Recipe(**values["recipe"])
    if values["loss"] is not None:
        values["loss"] = tuple(map(tuple, values["loss"]))
    return Experiment(**values)


class _Plan(NamedTuple):
    experiment: Experiment
    seeds: dict[str, list[int]]


def _read_plan(path: Path) -> _Plan:
    try:
        content = json.loads(path.read_bytes())
        seeds = {str(method): [int(seed) for seed in s] for method, s in content["seeds"].items()}
        return _Plan(_to_experiment(content), seeds)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is no plan that this version of foresee can read ({error!r}): delete it, or "
            "run the same again; no round is lost, only the names of trials that have none"
        ) from error


def _planned(
    path: Path, experiment: Experiment, skip: Callable[[InputError], object]
) -> dict[str, list[int]]:
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


def _resume(path: Path, config: dict[str, Any], machine: dict[str, Any]) -> tuple[Round, ...]:
    lines, size = _whole_lines(path) if path.exists() else ([], 0)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    if lines and lines[0].get("hash") != digest:
        if len(lines) > 1:
            raise InputError(
                f"{path} was begun with another configuration, and rounds of two must not mix:\n"
                f"{_changes(lines[0], config)}\nrun with the old values, choose another --out, or "
                "delete that file"
            )
        lines, size = [], 0  # a header alone is no round to lose
    if problem := _stranger(path, config["experiment"]):
        raise InputError(problem)
    done = _rounds(path, lines)
    _truncate(path, size)
    if not lines:
        packages = {name: version(name) for name in ("foresee", "torch", "numpy")}
        place = {"machine": platform.machine(), "python": platform.python_version()}
        identity = {"kind": "header", "format": FORMAT, **config, "hash": digest}
        _append(path, {**identity, "versions": packages, **place, **machine})
    elif done and done[-1].picks:
        os.utime(path)  # whoever watches sees that it is at work
    return done


def _drop_if_empty(path: Path) -> None:
    """Leave no trace of a trial that failed before its first round: it was never comparable."""
    with suppress(OSError, InputError):
        if len(_whole_lines(path)[0]) < 2:
            path.unlink()


def _stranger(path: Path, experiment: dict[str, Any]) -> str:
    """Name what is of another experiment beside a path: no report could compare the two."""
    for other in sorted(path.parent.glob("*.jsonl")):
        with open(other, "rb") as file:
            first, second = file.readline(), file.readline()
        try:
            old = json.loads(first)["experiment"]
        except (ValueError, KeyError, TypeError):  # not ours
            continue
        changes = _changes({"experiment": old}, {"experiment": experiment})
        if second and changes:  # a header alone is nothing to compare with
            return (
                f"{other} is of another experiment, and no report may compare the two:\n{changes}\n"
                "run with the old values, or choose another --out"
            )
    return ""


def _whole_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Every line that was written to its end, and the size of them all in bytes."""
    data = path.read_bytes()
    lines: list[dict[str, Any]] = []
    size = 0
    for line in data.splitlines(keepends=True):
        try:
            whole = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            whole = None
        if not isinstance(whole, dict):
            break
        lines.append(whole)
        size += len(line)
    if 0 <= data.find(b"\n", size) < len(data) - 1:  # a crash tears the last line only
        raise _damage(path, len(lines) + 1)
    return lines, size


def _rounds(path: Path, lines: Sequence[dict[str, Any]]) -> tuple[Round, ...]:
    """The rounds below a header, from the first on and without a gap."""
    with _understood(path, lines[0] if lines else {}):
        rounds = tuple(map(_to_round, lines[1:]))
    for number, found in enumerate(rounds):
        if found.number != number or (number and not rounds[number - 1].picks):
            raise _damage(path, number + 2)
    return rounds


def _damage(path: Path, line: int) -> InputError:
    return InputError(
        f"{path} is damaged in line {line}, and more than a crash tears: restore it from a backup, "
        "or delete it to run this trial again"
    )


@contextmanager
def _understood(path: Path, header: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is no trial that this version of foresee can read ({error!r}, its format is "
            f"{header.get('format')}, ours is {FORMAT}): move it away"
        ) from error


def _append(path: Path, values: dict[str, Any]) -> None:
    line = json.dumps(values, allow_nan=True).encode() + b"\n"
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):  # what stays is a torn line, and dropped when it is read
            _truncate(path, size)
        raise InputError(
            f"{path} could not be written ({error.strerror}): make room and run the same command "
            "again; every finished round is safe"
        ) from error


def _truncate(path: Path, size: int) -> None:
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _to_round(line: dict[str, Any]) -> Round:
    values = {key: value for key, value in line.items() if key != "kind"}
    for name in ("picks", "labels"):
        values[name] = tuple(values[name])
    values["seconds"] = tuple(values["seconds"].items())
    return Round(**values)


def _plain(value: Any) -> Any:
    """Turn dataclasses, functions and tuples into JSON values that tell them apart."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **parts}
    if isinstance(value, functools.partial):
        parts = {"args": _plain(value.args), **_plain(value.keywords)}
        return {"type": "partial", "of": _plain(value.func), **parts}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if callable(value) and "<" not in getattr(value, "__qualname__", "<"):  # <lambda>, <locals>
        return f"{value.__module__}.{value.__qualname__}"
    raise InputError(
        f"a method holds {value!r}, which has no lasting description: use dataclasses, functions "
        "with a name and plain values"
    )


def _changes(header: dict[str, Any], config: dict[str, Any]) -> str:
    """One line for each value of a configuration that a header has otherwise."""
    old = {key: header.get(key) for key in config}
    return "\n".join(_differences(old, json.loads(json.dumps(config))))


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"  {name}: {_difference(old, new)}"


def _difference(old: Any, new: Any) -> str:
    """Two values, or of two matrices of one shape the first cell that differs."""
    what, asked = _matrix_size(old) or repr(old), _matrix_size(new) or repr(new)
    if what != asked:
        return f"{what} on disk, {asked} asked for"
    row, column, old, new = next(
        (i, j, *pair)
        for i, rows in enumerate(zip(old, new, strict=True))
        for j, pair in enumerate(zip(*rows, strict=True))
        if pair[0] != pair[1]
    )
    return (
        f"the matrix differs, first in row {row}, column {column}: {old!r} on disk, {new!r} asked "
        "for"
    )


def _matrix_size(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        return f"a matrix of {len(value)} × {len(value[0])}"
    return ""
