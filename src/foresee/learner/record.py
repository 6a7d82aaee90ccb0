"""What was asked and what was told: folded from events, which are lines on disk.

An event is on the disk before it counts, so a kill between any two lines loses nothing that was
told. The events, by their ``kind``:

    ask      a batch: ``size`` as it was asked for, ``ids``, ``scores``, ``promise``, ``held``, and
             of how many changes it knew (``seen``)
    take     ``ids`` that are out are in the hands of ``who``, or of nobody
    tell     ``ids`` and their ``labels``; ids to ``skip``; ids of which somebody is ``unsure``;
             where it was told: ``who`` and when (``at``), and the caller's own ``key``
    untell   ``ids`` whose last answer is taken back
    release  ``ids`` that were out for labelling and go back into the pool
"""

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from foresee import files, lines
from foresee.errors import InputError
from foresee.learner.written import Event, Label, event_read, event_written

# A text or a whole number; people index with them, so a checker of types must not mind.
Id: TypeAlias = Any

FORMAT = 3
_READABLE = (2, FORMAT)  # in 2, labels are texts, numbers or booleans
_BEGIN = b'{"kind": "learner", "format": '
_BATCH = ("size", "ids", "scores", "promise", "held", "seen")


class Answer(Enum):
    """An answer that is no label."""

    # It cannot be labelled, and is never asked again.
    SKIP = "skip"
    # Somebody else may know: it is asked again when nothing else is left.
    UNSURE = "unsure"


SKIP, UNSURE = Answer.SKIP, Answer.UNSURE


@dataclass(frozen=True)
class Batch:
    """Points to label, the most urgent first; those held out for the score card come last.

    Args:
        ids: of all points.
        scores: by how much the Brier loss, a mean over the target, is expected to fall by each
            label alone; None before a model was fitted, and for what is held out.
        promise: the same of all labels together, or None.
        held: those of the ids that are held out: drawn at random from the target, never trained on.
        size: how many were asked for; there are fewer where the pool is exhausted.
        seen: how many changes (labels told, taken back, points released) it was chosen after.
    """

    ids: tuple[Id, ...]
    scores: tuple[float | None, ...] = ()
    promise: float | None = None
    held: tuple[Id, ...] = ()
    size: int = 0
    seen: int = field(default=0, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def frame(self) -> Any:
        """A pandas frame: a row for each id, the columns ``score`` and ``held``."""
        try:
            import pandas
        except ImportError as error:
            raise InputError(
                "frame needs pandas, which is not installed: pip install pandas, or read .ids, "
                ".scores and .held"
            ) from error

        held = set(self.held)
        columns = {
            "score": [float("nan") if score is None else score for score in self.scores],
            "held": [name in held for name in self.ids],
        }
        return pandas.DataFrame(columns, index=pandas.Index(list(self.ids), name="id"))


@dataclass(frozen=True)
class Told:
    """An answer: of ``id``, by ``who`` and when (``at``) if that was told; ``undone`` or not."""

    id: Id
    answer: Label | Answer
    who: str | None = None
    at: float | None = None
    undone: bool = False


@dataclass
class State:
    """All that follows from the events so far."""

    labels: dict[Id, Label] = field(default_factory=dict)
    # Told to be skipped, or unsure.
    aside: dict[Id, Answer] = field(default_factory=dict)
    # Asked for and not answered, in order, and in whose hands.
    out: dict[Id, str | None] = field(default_factory=dict)
    held: set[Id] = field(default_factory=set)
    batches: int = 0
    # Points in all batches.
    asked: int = 0
    # Those of them that were held out: twice, what was released in between.
    drawn: int = 0
    last: Batch | None = None
    # Labels told or taken back and points released, in lines.
    changes: int = 0
    # All answers to an id that were not taken back, the last of which counts, and by whom.
    given: dict[Id, list[tuple[Label | Answer, str | None]]] = field(default_factory=dict)
    # What was told under which of the caller's keys.
    keys: dict[str, Event] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether something was told or released since the last batch was chosen."""
        return self.last is None or self.last.seen != self.changes

    def apply(self, event: Event) -> None:
        """Let an event have happened."""
        kind, ids, who = event["kind"], event.get("ids", ()), event.get("who")
        if kind == "ask":
            values: dict[str, Any] = {name: event[name] for name in _BATCH}
            lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
            self.last = Batch(**values | lists)
            self.held.update(self.last.held)
            self.out.update(dict.fromkeys(ids))
            self.batches, self.asked = self.batches + 1, self.asked + len(ids)
            self.drawn += len(self.last.held)
            return
        if kind == "take":
            self.out.update({name: who for name in ids if name in self.out})
            return
        if kind == "tell":
            for name, answer in answers(event):
                self.given.setdefault(name, []).append((answer, who))
                self._count(name)
        elif kind == "untell":
            for name in ids:
                _, by = self.given[name].pop()
                self._count(name)
                if name not in self.given:
                    self.out[name] = by  # whoever takes an answer back still has the question
        elif kind == "release":
            for name in ids:
                self.out.pop(name, None)
        else:
            raise ValueError(f"an event of kind {kind!r}")
        self.changes += 1
        if "key" in event:
            self.keys[event["key"]] = event

    def _count(self, name: Id) -> None:
        """The last answer counts."""
        for known in (self.labels, self.aside, self.out):
            known.pop(name, None)
        if not self.given[name]:
            del self.given[name]
            return
        answer, _ = self.given[name][-1]
        if isinstance(answer, Answer):
            self.aside[name] = answer
        else:
            self.labels[name] = answer


def answers(event: Event) -> Iterator[tuple[Id, Label | Answer]]:
    """What an event tells of each id."""
    yield from zip(event["ids"], event["labels"], strict=True)
    for answer in Answer:
        yield from ((name, answer) for name in event[answer.value])


def content(event: Event) -> tuple[Any, ...]:
    """What must be the same under the same key."""
    names = ("ids", "labels", *(answer.value for answer in Answer))
    return (event["kind"], *(tuple(event.get(name, ())) for name in names))


def history(events: Iterable[Event]) -> list[Told]:
    """All answers, in the order in which they were told; those taken back are marked."""
    found: list[Told] = []
    places: dict[Id, list[int]] = {}
    for event in events:
        if event["kind"] == "tell":
            for name, answer in answers(event):
                places.setdefault(name, []).append(len(found))
                found.append(Told(name, answer, event.get("who"), event.get("at")))
        elif event["kind"] == "untell":
            for name in event["ids"]:
                last = places[name].pop()
                found[last] = replace(found[last], undone=True)
    return found


class Record:
    """The file of a learner, open for writing: no other process may open it until `close`."""

    def __init__(self, path: Path, header: dict[str, Any], classes: Sequence[Label] | None) -> None:
        self.path, self._classes = path, classes
        self._who = path.with_name(f".{path.name}.who")
        self._lock = FileLock(
            path.with_name(f".{path.name}.lock"), timeout=0, thread_local=False
        )  # what one thread holds, all threads of the process hold
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise InputError(
                f"{path} is in use by {self._user()}: close that learner first, or choose another "
                "path"
            ) from None
        except OSError as error:
            raise InputError(
                f"path: cannot write in {path.parent} ({error.strerror}): choose another folder"
            ) from error
        try:
            files.write(self._who, f"process {os.getpid()} on {platform.node()}".encode())
            self._open(header)
        except BaseException:
            self.close()
            raise

    def _open(self, header: dict[str, Any]) -> None:
        data = lines.content(self.path)
        found = _parse(self.path, data)
        self.header, self.lines = header, found.values[1:]
        if found.values:
            self.header = found.values[0]
            lines.truncate(self.path, found.size)
            self._sum = found.sum
            return
        lines.truncate(self.path, 0)
        self._sum = lines.append(self.path, identity(header), 0)
        with suppress(OSError):  # or a power cut may forget the name of the new file
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def append(self, events: Sequence[Event]) -> None:
        """Write events; when this returns they are on the disk."""
        if not self._lock.is_locked:
            raise InputError(f"{self.path} was closed: make the learner anew to go on")
        some = [event_written(event, self._classes) for event in events]
        self._sum = lines.append_all(self.path, some, self._sum)

    def close(self) -> None:
        """Let others write."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._who.unlink(missing_ok=True)
            self._lock.release()

    def _user(self) -> str:
        try:
            return self._who.read_text().replace(f"process {os.getpid()} ", "this process ")
        except OSError:
            return "another process"


def identity(header: dict[str, Any]) -> dict[str, Any]:
    """The first line of a record."""
    first = {"kind": "learner", "format": FORMAT, "foresee": version("foresee")}
    return {**first, **header, **lines.CHECKSUMS}


def read(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """The header and the other lines of a record that nobody need hold open."""
    found = _parse(path, lines.content(path))
    if not found.values:
        raise InputError(f"there is no learner in {path}: check the path")
    return found.values[0], found.values[1:]


def write(
    path: Path,
    header: dict[str, Any],
    events: Sequence[Event],
    classes: Sequence[Label] | None = None,
) -> None:
    """Write a whole record at once, in place of what a learner wrote there before."""
    content, above = [], lines.NONE.sum
    for values in (identity(header), *(event_written(event, classes) for event in events)):
        line, above = lines.encode(values, above)
        content.append(line)
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=0):
            _parse(path, lines.content(path))
            files.write(path, b"".join(content))
    except Timeout:
        raise InputError(f"{path} is in use by another learner: choose another path") from None
    except OSError as error:
        raise InputError(
            f"path: cannot write in {path.parent} ({error.strerror}): choose another folder"
        ) from error


def folded(
    path: Path, held: Sequence[Event], classes: Sequence[Label] | None = None
) -> tuple[list[Event], State]:
    """The events that lines hold, and the state after them."""
    events, state = list[Event](), State()
    for line, values in enumerate(held, start=2):
        try:
            events.append(event_read(values, classes))
            state.apply(events[-1])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is no record that this version of foresee can read (line {line}: {error})"
                ": move it away, or use the version that wrote it"
            ) from error
    return events, state


def _parse(path: Path, data: bytes) -> lines.Lines:
    if not _BEGIN.startswith(data[: len(_BEGIN)].rstrip(b"\0")):
        raise InputError(f"{path} is no record of a learner: choose another path")
    found = lines.parse(path, data)
    if found.values and found.values[0]["format"] not in _READABLE:
        raise InputError(
            f"{path} has format {json.dumps(found.values[0]['format'])}, and this version of "
            f"foresee reads {FORMAT}: use the version that wrote it"
        )
    return found
