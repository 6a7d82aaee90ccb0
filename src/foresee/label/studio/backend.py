"""Keeps the order of a project's tasks in step with its annotations, in a thread of its own."""

import hashlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from foresee.errors import InputError
from foresee.label.fitter import answer, end, started
from foresee.label.items import Spec
from foresee.label.studio.api import Studio
from foresee.label.studio.form import Form, Json
from foresee.label.studio.shelf import Ranking, Shelf
from foresee.learner.record import Answer

# Seconds without news before a fit begins, so that several labels are one fit; and at most so many.
_QUIET, _LATEST = 1.0, 5.0
_POLL = 30.0  # seconds after which Label Studio is asked whether there is news that was not sent
_AGAIN, _LONGEST = 5.0, 60.0  # seconds before what failed is tried again, twice as many each time
_PREFIX = "foresee-"
# Of a project, what changes when its tasks or annotations do.
_COUNTS = (
    "task_number",
    "total_annotations_number",
    "num_tasks_with_annotations",
    "skipped_annotations_number",
)

# What each task shows, and what its annotations say.
Tasks: TypeAlias = dict[int, tuple[str | None, str | Answer | None]]


@dataclass(frozen=True)
class Options:
    """How to rank.

    Args:
        target: a folder of images or a table of texts that the model will meet; None: the tasks.
        model: see `Spec`.
        size: likewise.
        seed: of everything random.
        batch: tasks that are chosen as a whole; the others follow by their own scores.
        ahead: tasks whose order and pre-annotations are written to Label Studio after each fit.
    """

    target: str | None = None
    model: str | None = None
    size: int = 32
    seed: int = 0
    batch: int = 10
    ahead: int = 50


class Backend:
    """Ranks the tasks of a project, again whenever something changed.

    Args:
        studio: the project.
        form: its labelling interface.
        shelf: the backend's folder.
        options: how to rank.
        log: hears in one line what happened.
    """

    def __init__(
        self,
        studio: Studio,
        form: Form,
        shelf: Shelf,
        options: Options,
        log: Callable[[str], None],
    ) -> None:
        self.studio, self.form, self.shelf = studio, form, shelf
        self.options, self._log = options, log
        self.error = ""
        self._tasks: Tasks = {}
        self._showed = False  # since this process began
        self._counts: tuple[Any, ...] = ()
        self._worker: subprocess.Popen[str] | None = None
        self._pool: tuple[str, dict[int, str]] = ("", {})
        # News: tasks that changed; whether anything may have; whether to fit in any case.
        self._lock = threading.Lock()
        self._changed, self._all, self._forced = set[int](), True, False
        self._news, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self.ranking = self._keep(shelf.ranking())

    @property
    def version(self) -> str:
        """The model version of the predictions."""
        return f"{_PREFIX}{self.ranking.number}"

    def start(self) -> None:
        """Begin: all tasks are read, and ranked where something changed since the last time."""
        self._news.set()
        self._thread.start()

    def stop(self) -> None:
        """End, in the middle of a fit too."""
        self._done.set()
        self._news.set()
        if self._worker is not None:
            self._worker.kill()
        if self._thread.is_alive():
            self._thread.join(10)
        self._end_worker()

    def hear(self, tasks: Iterable[int] | None = None, force: bool = False) -> None:
        """Something may have changed: these tasks, or anything.

        Args:
            tasks: their numbers; None: all may have.
            force: fit even if nothing has.
        """
        with self._lock:
            self._changed.update(tasks or ())
            self._all |= tasks is None
            self._forced |= force
        self._news.set()

    def predictions(self, tasks: Iterable[int]) -> list[Json | None]:
        """What is predicted of tasks by their numbers: a pre-annotation, and a place in the queue.

        The score is 0 for the task to label first and almost 1 for the last: Label Studio's
        uncertainty sampling serves the lowest first. Of what is not in the queue it is None.
        """
        with self._lock:
            ranking, places, form = self.ranking, self._places, self.form
        found = list[Json | None]()
        for place in map(places.get, tasks):
            if place is None:
                found.append(None)
                continue
            _, label, share = ranking.queue[place]
            score = round(place / len(places), 6)
            version = f"{_PREFIX}{ranking.number}"
            each = {"result": form.result(label, share), "score": score, "model_version": version}
            found.append(each)
        return found

    def _loop(self) -> None:
        pause = _AGAIN
        while not self._done.is_set():
            polled = not self._news.wait(_POLL)
            if not polled:
                self._wait_for_quiet()
            with self._lock:
                changed, everything, forced = self._changed, self._all, self._forced
                self._changed, self._all, self._forced = set(), False, False
            try:
                if not self._done.is_set():
                    self._round(changed, everything, forced, polled)
                self.error, pause = "", _AGAIN
            except Exception as error:  # whatever happens in Label Studio, it is tried again
                if not self._done.is_set():
                    self._failed(error)
                    self.hear(None, force=forced)
                    self._done.wait(pause)
                    pause = min(2 * pause, _LONGEST)

    def _wait_for_quiet(self) -> None:
        end = time.monotonic() + _LATEST
        while self._news.is_set() and time.monotonic() < end and not self._done.is_set():
            self._news.clear()
            self._news.wait(_QUIET)
        self._news.clear()

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, InputError | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        if reason != self.error:  # once is enough
            self._log(reason)
        self.error = reason

    def _round(
        self, changed: set[int], everything: bool, forced: bool, polled: bool = False
    ) -> None:
        """Read what changed, rank if something did, and see that Label Studio shows it."""
        project = self.studio.project()
        form = Form.read(project["label_config"])
        counts = tuple(project.get(name) for name in _COUNTS)
        missed = polled and counts != self._counts
        if everything or missed or form != self.form:
            self._tasks = {task["id"]: _read(form, task) for task in self.studio.tasks()}
            self._counts, changed = counts, set()
        for number in changed:
            self._counts = ()  # others may have changed unheard: the next poll reads all
            task = self.studio.task(number)
            self._tasks.pop(number, None)
            if task is not None:
                self._tasks[number] = _read(form, task)
        with self._lock:
            self.form = form
        seen = _digest(form, self._tasks, self.options)
        if forced or seen != self.ranking.seen:
            self._rank(form, seen)
        self._show(project.get("model_version") or "")

    def _rank(self, form: Form, seen: str) -> None:
        start = time.monotonic()
        names = self._ready(form)
        numbers = {name: task for task, name in names.items()}
        answers = {names[task]: self._tasks[task][1] for task in names}
        told = {name: label for name, label in answers.items() if isinstance(label, str)}
        skip = [name for name, answer in answers.items() if isinstance(answer, Answer)]
        found: dict[str, Any] = {"queue": [], "promise": None}
        if len(told) + len(skip) < len(names):
            found = self._ask({"told": told, "skip": skip, "size": self.options.batch})
        queue = [(numbers[name], label, share) for name, label, share in found["queue"]]
        number = self.ranking.number + 1
        ranking = self._keep(Ranking(number, seen, len(told), found["promise"], queue))
        promise = "" if ranking.promise is None else f", which promise {ranking.promise:.3f}"
        left = len(self._tasks) - len(names)
        self._log(
            f"{self.version}: {len(told)} labels, {len(queue)} tasks in order{promise}"
            + (f", {left} that cannot be read" if left else "")
            + f" ({time.monotonic() - start:.1f} s)"
        )

    def _ready(self, form: Form) -> dict[int, str]:
        """Bring what tasks show to the disk, and a process that reads it; what each is called."""
        shown = {task: source for task, (source, _) in self._tasks.items() if source is not None}
        if form.kind == "Image":
            path, names = self.shelf.images(shown, self.studio.fetch)
        else:
            path, names = self.shelf.texts(shown)
        if not names:
            raise InputError(
                f"no task of project {self.studio.number} has {form.kind.lower()}s in "
                f"{form.field!r} that can be read: upload them to Label Studio itself"
            )
        key = hashlib.sha256(json.dumps([form.kind, sorted(shown.items())]).encode()).hexdigest()
        if self._pool != (key, names) or self._worker is None:
            self._end_worker()
            o = self.options
            spec = Spec(str(path), o.target, (form.field,), None, o.size, o.model, o.seed, 0.0)
            if form.kind == "Image":
                spec = replace(spec, inputs=None)
            self._worker = started(spec, "foresee.label.studio.rank")
            self._pool = key, names
        return names

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._worker
        assert process is not None
        try:
            found = answer(process, question)
        except (OSError, ValueError):
            self._end_worker()
            raise OSError("the fitting process ended: it is started again") from None
        if "error" in found:
            raise InputError(found["error"])
        return found

    def _show(self, current: str) -> None:
        """Write the first of the queue to Label Studio, and let the project order by them."""
        ranking = self.ranking
        if not ranking.queue or (ranking.shown and current == self.version):
            return
        if self._showed and _is_ours(current) and current != self.version and ranking.shown:
            raise InputError(
                f"another backend orders project {self.studio.number} too: end one of them"
            )
        versions = self.studio.versions()
        if not ranking.shown or self.version not in versions:
            taken = [int(name[len(_PREFIX) :]) for name in versions if _is_ours(name)]
            # What was cut off in the middle is written anew, under a number of its own.
            number = max([ranking.number, *(each + 1 for each in taken)])
            ranking = self._keep(replace(ranking, number=number, shown=False))
            tasks = [task for task, *_ in ranking.queue[: self.options.ahead]]
            found = zip(tasks, self.predictions(tasks), strict=True)
            self.studio.predict([{"task": task, **each} for task, each in found if each])
        self.studio.show(self.version)
        for name in versions:
            if _is_ours(name) and name != self.version:
                self.studio.forget(name)
        self._keep(replace(ranking, shown=True))
        self._showed = True

    def _keep(self, ranking: Ranking) -> Ranking:
        """On the disk before anybody hears of it: a number is used once."""
        self.shelf.keep(ranking)
        places = {task: place for place, (task, *_) in enumerate(ranking.queue)}
        with self._lock:
            self.ranking, self._places = ranking, places
        return ranking

    def _end_worker(self) -> None:
        process, self._worker = self._worker, None
        if process is not None:
            end(process)


def _read(form: Form, task: Json) -> tuple[str | None, str | Answer | None]:
    return form.source(task["data"]), form.answer(task.get("annotations") or ())


def _digest(form: Form, tasks: Tasks, options: Options) -> str:
    """Of all that an order follows from."""
    plain = {task: (source, str(answer)) for task, (source, answer) in sorted(tasks.items())}
    how = [options.target, options.model, options.size, options.seed, options.batch]
    parts = [form.classes, form.kind, form.field, plain, how]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_ours(version: str) -> bool:
    return version.startswith(_PREFIX) and version[len(_PREFIX) :].isdecimal()


def check_target(target: str | None, form: Form) -> None:
    """Refuse a target that is not of the kind of the tasks."""
    if target is None:
        return
    path = Path(target)
    if not path.exists() or path.is_dir() != (form.kind == "Image"):
        what = "a folder of images" if form.kind == "Image" else "a table of texts"
        raise InputError(f"--target must be {what}, as the tasks are, got {target}: check the path")
