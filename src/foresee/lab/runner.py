"""Many trials: in parallel, each resumed where it stopped, shared with whoever runs the same.

On the CPU trials run in processes of their own. On a GPU they run in one, side by side: each works
until it needs a training, and when all do, these are done together. Nothing else runs meanwhile, so
seconds are a trial's own; a training's are its share of those in which several were trained.
"""

import copy
import functools
import hashlib
import io
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foresee import files, networks
from foresee.errors import InputError
from foresee.lab import data, loop, methods, own, store
from foresee.lab.data import Images, Split
from foresee.lab.data.splits import PARTS, in_target
from foresee.lab.experiment import Experiment
from foresee.lab.methods import short_name
from foresee.lab.orphans import deaf_to_interrupts, die_with
from foresee.training import Request, Training, answer, fit_all
from foresee.types import Task

_PICTURES = 12  # of the first picks that are kept for the report
_SIDE = 48  # pixels, at least, of each of them
_GAP = 3  # white pixels between two of them
_WAIT = 2.0  # seconds between looks at trials that another process runs
_FIRST = 2  # trainings of first rounds that are kept for the other methods of their seeds
_THREADS = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA"))


@dataclass(frozen=True)
class Place:
    """Where trials read, write and compute.

    ``splits`` holds the split files of another run, ``cache`` the decoded images, ``home`` the
    files with functions that an experiment names.
    """

    out: Path
    data: Path | None = None
    device: str = "cpu"
    threads: int = 1
    splits: Path | None = None
    cache: Path | None = None
    home: Path | None = None


@dataclass(frozen=True)
class Job:
    """One trial to run."""

    experiment: Experiment
    method: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How a job ended; "busy" means that another process has it."""

    job: Job
    state: Literal["finished", "busy", "failed"]
    message: str = ""


def plan(
    experiments: Sequence[Experiment], methods: Sequence[str], seeds: Iterable[int]
) -> list[Job]:
    """List every trial, seed by seed: whatever is finished early compares all methods.

    ``methods`` are keys of `METHODS`, or ``file.py:function``; no two may share the name of their
    files, in any case.

    >>> from foresee.lab.paper import experiment
    >>> [(j.method, j.seed) for j in plan([experiment("digits", shift=True)], ["MELL"], range(2))]
    [('MELL', 0), ('MELL', 1)]
    """
    names: dict[str, str] = {}
    for method in methods:
        other = names.setdefault(short_name(method).casefold(), method)
        if other != method:
            raise InputError(
                f"methods {other} and {method} would be kept in the same files, as names are the "
                "same in upper and lower case: rename one function"
            )
    return [Job(e, m, seed) for seed in seeds for e in experiments for m in methods]


def keep_plan(
    jobs: Sequence[Job], out: Path, skip: Callable[[InputError], object] = lambda problem: None
) -> None:
    """Write down what is to be run, so that whoever looks knows what is missing.

    ``skip`` hears of an older plan that cannot be read.
    """
    seeds: dict[Experiment, dict[str, set[int]]] = {}
    for job in jobs:
        by_method = seeds.setdefault(job.experiment, {})
        by_method.setdefault(short_name(job.method), set()).add(job.seed)
    for experiment, by_method in seeds.items():
        store.keep_plan(out, experiment, by_method, skip)


def run_all(
    jobs: Sequence[Job], place: Place, workers: int = 1, ray: str | None = None
) -> Iterator[Outcome]:
    """Run ``workers`` jobs at a time and yield each as it ends, in any order.

    They run in processes of their own, on a GPU side by side in this one. With the address of a
    Ray cluster, or "local", each is a task there, so many for each of its machines or, of GPUs,
    for each GPU; its machines must see the same folders. What becomes of a trial does not depend
    on how many there are, but for rounding where it has fewer threads then. A job that fails stops
    no other. Jobs that another process has are waited for, and taken over if it dies; what is
    finished is left as it is.

    >>> import tempfile
    >>> from foresee.lab.paper import experiment
    >>> jobs = plan([experiment("digits", shift=True, budget=0.01)], ["Random"], [0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [outcome.state for outcome in run_all(jobs, Place(Path(folder)))]
    ['finished']
    """
    left = list(jobs)
    workers = workers if ray else min(workers, len(left))
    while left:
        busy = []
        for outcome in _on_ray(left, place, workers, ray) if ray else _pass(left, place, workers):
            if outcome.state == "busy":
                busy.append(outcome.job)
            else:
                yield outcome
        if len(busy) == len(left):
            time.sleep(_WAIT)
        left = busy


def _pass(jobs: Sequence[Job], place: Place, workers: int) -> Iterator[Outcome]:
    if workers == 1 or place.device.startswith("cuda"):
        yield from _side_by_side(jobs, place, workers)
        return
    from joblib.externals.loky import FIRST_COMPLETED, get_reusable_executor, wait
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    executor = get_reusable_executor(
        workers,
        timeout=None,
        initializer=die_with,
        initargs=(os.getpid(),),
        env=dict.fromkeys(_THREADS, str(place.threads)),
    )
    try:
        # No more than loky takes at once: ended early, it would trip over those that wait.
        queue = iter(jobs)
        with deaf_to_interrupts():  # the first submission starts the workers
            begun = {executor.submit(run_trial, job, place) for job in islice(queue, 2 * workers)}
        while begun:
            done, begun = wait(begun, return_when=FIRST_COMPLETED)
            begun |= {executor.submit(run_trial, job, place) for job in islice(queue, len(done))}
            yield from (future.result() for future in done)
    except TerminatedWorkerError as error:
        raise InputError(
            "a worker was killed, most likely for want of memory; every finished round is safe: run"
            f" the same again with fewer --jobs, they were {workers}"
        ) from error
    finally:  # also on Ctrl-C, which must not leave workers behind
        executor.shutdown(wait=False, kill_workers=True)


def _on_ray(jobs: Sequence[Job], place: Place, share: int, address: str) -> Iterator[Outcome]:
    """Run jobs as Ray tasks; one whose worker is lost is run again, from where it stopped."""
    from foresee.scale import cluster

    folder = os.getcwd()  # where the files are that methods name
    paths: dict[str, Any] = {
        name: path.absolute() for name, path in vars(place).items() if isinstance(path, Path)
    }
    place = replace(place, **paths)
    with cluster.connected(address) as ray:
        on_gpu = place.device.startswith("cuda")
        task = ray.remote(_away).options(
            num_cpus=place.threads,
            num_gpus=1 / share if on_gpu else 0,
            max_retries=cluster.RETRIES,
            name="foresee trial",
        )
        # A task sees its own GPU alone, whatever number that has.
        place = replace(place, device="cuda") if on_gpu else place
        waiting = {task.remote(job, place, folder): job for job in jobs}
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            job = waiting.pop(done)
            try:
                yield cluster.outcome(ray, done, "the trial")
            except InputError as error:
                yield Outcome(job, "failed", str(error))


def _away(job: Job, place: Place, folder: str) -> Outcome:
    os.chdir(folder)
    return run_trial(job, place)


def run_trial(job: Job, place: Place) -> Outcome:
    """Run one trial to its end, from where it stopped."""
    (outcome,) = _side_by_side([job], place, 1)
    return outcome


def _side_by_side(jobs: Sequence[Job], place: Place, width: int) -> Iterator[Outcome]:
    """Run ``width`` jobs at a time in this process, and yield each as it ends.

    All that train wait for each other and are then trained together, by `fit_all`.
    """
    queue = deque(jobs)
    waiting: list[tuple[_Trial, _Wanted]] = []
    begun: list[_Trial] = []
    try:
        while queue or waiting:
            outcomes = _trained([wanted for _, wanted in waiting])
            turns = [
                (trial, functools.partial(answer, trial, outcome))
                for (trial, _), outcome in zip(waiting, outcomes, strict=True)
            ]
            waiting = []
            while turns or (queue and len(waiting) < width):
                if not turns:
                    trial = _trial(queue.popleft(), place)
                    turns = [(trial, functools.partial(next, trial))]
                    begun.append(trial)
                trial, go_on = turns.pop(0)
                try:
                    waiting.append((trial, go_on()))
                except StopIteration as end:
                    begun.remove(trial)
                    yield end.value
    finally:  # also on Ctrl-C: whoever comes next must find no lock
        for trial in begun:
            trial.close()


@dataclass(frozen=True, eq=False)
class _Wanted:
    """A training that a trial waits for; ``shared`` if others may want the one of this ``key``."""

    request: Request
    key: Hashable
    shared: bool


_Trial = Generator[_Wanted, Training, Outcome]
_first_rounds: dict[Hashable, Training] = {}


def _trained(wanted: Sequence[_Wanted]) -> list[Training | Exception]:
    """Train what is wanted; what several want, or one wanted before, only once."""
    requests = {one.key: one.request for one in wanted if one.key not in _first_rounds}
    new = dict(zip(requests, fit_all(list(requests.values())), strict=True))
    outcomes = [new[one.key] if one.key in new else _first_rounds[one.key] for one in wanted]
    for place, one in enumerate(wanted):
        outcome = outcomes[place]
        if one.shared and isinstance(outcome, Training):
            _first_rounds[one.key] = outcome
            # What a trial does to its network must not reach the others.
            outcomes[place] = replace(outcome, model=copy.deepcopy(outcome.model))
    while len(_first_rounds) > _FIRST:
        del _first_rounds[next(iter(_first_rounds))]
    return outcomes


def _trial(job: Job, place: Place) -> _Trial:
    """Run a trial; who drives it does its trainings."""
    torch.set_num_threads(place.threads)
    device = torch.device(place.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    task = None
    try:
        task, digest, pixels = _prepared(job.experiment, job.seed, place)
        # Not its number: trials may move from one GPU to another.
        if job.experiment.own is None:
            mean, std = pixels
            method = methods.method(job.method, job.experiment, mean, std, device.type)
        else:
            load = functools.partial(own.load, place.home or Path())
            sampler = own.sampler(job.experiment, pixels, load, device.type)
            method = methods.drawn_by(job.method, job.experiment, sampler)
        chip = torch.cuda.get_device_name(place.device) if device.type == "cuda" else place.device
        machine: dict[str, Any] = {"device": chip, "threads": place.threads}
        marks = {"in_target": task.in_target, "scrambled": task.scrambled}
        if pool := {name: int(rows.sum()) for name, rows in marks.items() if rows is not None}:
            machine["pool"] = pool
        with store.recording(
            place.out, job.experiment, method, job.seed, digest, **machine
        ) as recorder:
            first = not recorder.done
            steps = loop.steps(job.experiment, method, job.seed, task, recorder.done)
            found = next(steps, None)
            while found is not None:
                if isinstance(found, Request):
                    # The first round of a seed is the same for all methods.
                    shared = first and found.key is not None
                    key = (found.key, job.experiment, digest, place) if shared else object()
                    found = steps.send((yield _Wanted(found, key, shared)))
                    continue
                first = False
                if found.number == 0:
                    _keep_pictures(recorder.path.with_suffix(".png"), task.pool, found.picks)
                recorder.append(found)
                found = next(steps, None)
        return Outcome(job, "finished")
    except store.BusyError:
        return Outcome(job, "busy")
    except (Exception, SystemExit) as error:  # whatever it is, the others are worth running
        _mend(task, job, place)
        return Outcome(job, "failed", _why(error, *_their_files(job, place)))


def _mend(task: Task | None, job: Job, place: Place) -> None:
    """Undo what a method may have done to the data, which trials beside it and after it see too."""
    _prepared.cache_clear()
    if task is not None:
        fresh, *_ = _prepared(job.experiment, job.seed, place)
        for part in PARTS:
            rows, as_they_were = getattr(task, part), getattr(fresh, part)
            if isinstance(rows, Tensor):
                rows.set_(as_they_were)
            else:
                np.copyto(rows, as_they_were)


def _their_files(job: Job, place: Place) -> list[str]:
    """The files whose functions a job calls: of its method, and of the model that it names."""
    own, home = job.experiment.own, place.home or Path()
    models = [] if own is None else [str(home / n) for n in (job.experiment.network, own.posterior)]
    return [file for name in (job.method, *models) if (file := name.rpartition(":")[0])]


def _why(error: BaseException, *files: str) -> str:
    """One line for what the user can mend, where in their own file; a traceback for a bug."""
    said = str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    real = {os.path.realpath(file): file for file in files}
    theirs = [f for f in frames if os.path.realpath(f.filename) in real]
    if theirs:
        file = real[os.path.realpath(theirs[-1].filename)]
        return f"{type(error).__name__}: {' '.join(said.split())} ({file}:{theirs[-1].lineno})"
    if isinstance(error, torch.OutOfMemoryError):
        return f"{said}; every finished round is safe: run the same again with fewer --jobs"
    if isinstance(error, InputError | OSError | MemoryError | RuntimeError):  # torch's is the last
        return said
    return "".join(traceback.format_exception(error)).rstrip()


@functools.lru_cache(maxsize=1)
def read(dataset: str, root: Path | None, cache: Path | None) -> tuple[Images, Any]:
    """Read a data set and the statistics of its pixels; the last one is kept for the trials."""
    images = data.load(dataset, root, cache=cache)
    return images, networks.statistics(images.pixels)


@functools.lru_cache(maxsize=1)
def read_own(experiment: Experiment, path: Path, cache: Path | None) -> own.Data:
    """Read one's own data; the last are kept for the trials."""
    assert experiment.own is not None
    return own.read(experiment.dataset, experiment.own, experiment.image_size, path, cache)


@functools.lru_cache(maxsize=1)
def _prepared(experiment: Experiment, seed: int, place: Place) -> tuple[Task, str, Any]:
    """The task on its device, a digest of its split, and what a sampler must know of the data."""
    images: Any
    if experiment.own is None:
        images, pixels = read(experiment.dataset.lower(), place.data, place.cache)
        draw: Any = data.split
    else:
        assert place.data is not None
        images = read_own(experiment, place.data, place.cache)
        pixels, draw = own.shape(images), own.split
    name = f"{experiment.name}/split-{seed}.json"
    if place.splits is None:
        split = draw(images, experiment, seed)
    else:
        split = _read_split(place.splits / name, images, experiment)
    _keep_split(place.out / name, split)
    if experiment.own is not None:
        task = own.task(images, split, experiment, place.device)
        return data.mark(task, images, split, experiment, seed), _digest(split), pixels
    task = data.mark(data.task(images, split), images, split, experiment, seed)
    moved = {part: getattr(task, part).to(place.device) for part in PARTS}
    return replace(task, **moved), _digest(split), pixels


def _read_split(path: Path, images: Images | own.Data, experiment: Experiment) -> Split:
    split = Split.read(path)
    expected = [images.name, len(images), *(getattr(experiment, f"n_{part}") for part in PARTS)]
    got = [split.dataset, split.size, *(len(getattr(split, part)) for part in PARTS)]
    names = ["dataset", "size", *(f"n_{part}" for part in PARTS)]
    for what, ours, theirs in zip(names, expected, got, strict=True):
        if ours != theirs:
            raise InputError(
                f"--splits: {path} has {what} {theirs}, but {experiment.name} has {ours}: pass the "
                "--out of a run of the same experiment"
            )
    if not _is_where_wanted(split, images, experiment):
        raise InputError(
            f"--splits: {path} was drawn for another target or source than {experiment.name} has: "
            "pass the --out of a run of the same experiment"
        )
    return split


def _is_where_wanted(split: Split, images: Images | own.Data, experiment: Experiment) -> bool:
    """Whether validation and test sets are of the target, and the seed set alone of the source."""
    if experiment.setting == "narrow":
        judged = np.concatenate([split.val, split.test])
        return bool(in_target(experiment.target, images)[judged].all())
    if experiment.setting == "noshift":
        return True
    source = images.source if isinstance(images, Images) else own.in_source(images, experiment)
    others = np.concatenate([split.val, split.pool, split.test])
    return source is None or bool(source[split.seed].all() and not source[others].any())


def _keep_split(path: Path, split: Split) -> None:
    """Write the split beside its trials; all of a seed share one, or nothing would be paired."""
    with store.writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        split.write(path)
    elif _digest(Split.read(path)) != _digest(split):
        raise InputError(
            f"{path} holds another split, and trials of one seed must share theirs: choose another "
            "--out, or pass --splits as before"
        )


def _digest(split: Split) -> str:
    rows = b"".join(getattr(split, part).tobytes() for part in PARTS)
    return hashlib.sha256(rows).hexdigest()


def _keep_pictures(path: Path, pool: Any, picks: Sequence[int]) -> None:
    """Write the first picks side by side, enlarged without smoothing where they are tiny."""
    from PIL import Image

    if not isinstance(pool, Tensor) or pool.ndim != 4 or pool.shape[1] not in (1, 3):
        return  # these are no pictures
    some = pool[list(picks[:_PICTURES])].cpu().permute(0, 2, 3, 1).numpy()
    if len(some) == 0:
        return
    scale = -(-_SIDE // some.shape[1])
    large = some.repeat(scale, 1).repeat(scale, 2)
    spaced = np.pad(large, ((0, 0), (0, 0), (0, _GAP), (0, 0)), constant_values=255)
    strip = np.concatenate(list(spaced), axis=1)[:, :-_GAP]
    content = io.BytesIO()
    Image.fromarray(strip.squeeze(-1) if strip.shape[-1] == 1 else strip).save(content, "png")
    files.write(path, content.getvalue())
