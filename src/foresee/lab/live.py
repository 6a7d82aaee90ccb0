"""What running trials look like in a terminal. The store is all it looks at."""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from foresee.errors import InputError
from foresee.lab import store
from foresee.lab.methods import short_name
from foresee.lab.runner import Job


class Standing(NamedTuple):
    """How far a trial is; ``promise`` is the fall of the Brier loss expected of its last picks."""

    rounds: int
    total: int
    accuracy: float | None
    promise: float | None
    finished: bool
    changed: float

    @property
    def left(self) -> int:
        """Rounds that are still to come, the last included."""
        return 0 if self.finished else self.total - self.rounds


class Board:
    """A bar over all rounds of all jobs and a line for each trial at work, drawn when asked for."""

    def __init__(self, jobs: Sequence[Job], out: Path, workers: int) -> None:
        self._jobs = list(jobs)
        self._out = out
        self._workers = workers
        self._start = time.monotonic()
        self._first = self.standings()
        self._total = sum(job.experiment.rounds + 1 for job in jobs)
        self._before = self._total - sum(s.left for s in self._first.values())
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} rounds"),
            TimeElapsedColumn(),
            TextColumn("eta {task.fields[eta]}"),
        )
        self._task = self._bar.add_task("all trials", total=self._total, eta="-:--:--")

    def standings(self) -> dict[Job, Standing]:
        """How far every job is."""
        return {job: standing(job, self._out) for job in self._jobs}

    def __rich__(self) -> RenderableType:
        standings = self.standings()
        done = self._total - sum(s.left for s in standings.values())
        seconds = (time.monotonic() - self._start) / max(1, done - self._before)
        eta = clock(seconds * (self._total - done)) if done > self._before else "-:--:--"
        self._bar.update(self._task, completed=done, eta=eta)
        # A trial writes its header when it starts: the last that changed are those at work. Not the
        # time tells who changed: that of a disk may be another, and clocks are set back.
        at_work = [
            (job, s)
            for job, s in standings.items()
            if not s.finished and s.changed != self._first[job].changed
        ]
        at_work.sort(key=lambda pair: -pair[1].changed)
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for job, s in sorted(at_work[: self._workers], key=lambda pair: str(pair[0])):
            accuracy = "" if s.accuracy is None else f"accuracy {100 * s.accuracy:.1f} %"
            eta = clock(seconds * self._workers * s.left) if done > self._before else "-:--:--"
            table.add_row(
                f"  {job.experiment.name}",
                job.method,
                f"seed {job.seed}",
                f"round {s.rounds}/{s.total - 1}",
                accuracy,
                "" if s.promise is None else f"promise {s.promise:.2g}",
                Text(f"eta {eta}", style="dim"),
            )
        return Group(self._bar, table)


def standing(job: Job, out: Path) -> Standing:
    """Read how far a trial is; files that did not change are not read again."""
    path = store.trial_path(out, job.experiment, short_name(job.method), job.seed)
    try:
        status = path.stat()
    except OSError:
        return Standing(0, job.experiment.rounds + 1, None, None, False, 0.0)
    rounds, accuracy, promise, finished = _read(path, status.st_size, status.st_mtime_ns)
    total = job.experiment.rounds + 1
    return Standing(rounds, total, accuracy, promise, finished, status.st_mtime)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, size: int, changed: int) -> tuple[int, float | None, float | None, bool]:
    try:
        trial = store.read(path)
    except InputError:  # whoever runs the trial says what is wrong with it
        trial = None
    if trial is None or not trial.rounds:
        return 0, None, None, False
    last = trial.rounds[-1]
    return len(trial.rounds), last.accuracy, last.promise, trial.finished


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
