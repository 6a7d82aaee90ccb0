"""What people answer: the learner's record, and beside it a plain CSV that anything can read.

Both are on the disk before anybody hears that an answer was kept. The record is what counts; the
CSV is written from it, and mended from it when the process was killed between the two.
"""

import csv
import io
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

from foresee import files
from foresee.errors import InputError
from foresee.label.items import Items
from foresee.learner import record
from foresee.learner.desk import Desk
from foresee.learner.record import UNSURE, Answer, Batch, Id, Told
from foresee.learner.written import Event

COLUMNS = ("id", "label", "time", "who")
# Seconds after which what is in the hands of somebody who is gone is for others.
LEASE = 600.0
LABEL = 100  # characters of a label
IMPORT = "import-"  # keys of what was taken over begin so

# What counts of everybody: label and time by (id, who), in the order of telling.
Rows: TypeAlias = dict[tuple[Id, str | None], tuple[str, float | None]]


class Book:
    """All questions and answers; threads may use it at once.

    Args:
        items: what there is to label.
        out: the CSV; the record is beside it, with ``.state`` behind its name.
        classes: those to begin with; others come by being told.
    """

    def __init__(self, items: Items, out: Path, classes: Sequence[str] = ()) -> None:
        self.items, self.out = items, out
        self.lock = RLock()
        state, spec = state_of(out), items.spec
        if out.exists() and not state.exists():
            raise InputError(
                f"{out} is there, and the record {state} that it comes from is not: choose another "
                f"--out, and pass --import {out} to take its labels over"
            )
        try:
            self.desk = Desk(items.pool, items.target, None, spec.seed, spec.holdout, state)
        except InputError as error:
            _check_known(items, out, state)
            raise InputError(f"{error} (--out)") from error
        # The CSV's size and time when it was left as the record says; None while it is not.
        self._left: tuple[int, ...] | None = None
        try:
            self._mend()
        except BaseException:
            self.close()
            raise
        # In the order in which they were told first, as the page has it: keys go by it.
        count, told = set(self.desk.state.labels.values()), record.history(self.desk.events)
        self._classes = dict.fromkeys([*classes, *(t.answer for t in told if t.answer in count)])
        self._seen: dict[str, float] = {}
        given = self.desk.state.given
        self._several = {name for name, answers in given.items() if len(answers) > 1}

    def tell(
        self, numbers: Sequence[int], answer: str | Answer, *, who: str, key: str | None
    ) -> None:
        """Keep one answer to some items; when this returns it is in both files.

        Args:
            numbers: of the items.
            answer: a label, or `foresee.SKIP` or `foresee.UNSURE`.
            who: whose it is.
            key: of the client's own: under the same key nothing is kept twice.
        """
        names, at = [self.items.id(number) for number in numbers], round(time.time(), 3)
        with self.lock:
            self._check()
            given = self.desk.state.given
            again = any(by == who for name in names for _, by in given.get(name, ()))
            more = {"who": who, "key": key, "at": at}
            if not self._keep([(names, [answer] * len(names), more)]):
                return  # a repeated request
            if again:
                self._rewrite()
            elif isinstance(answer, str):
                self._append({(name, who): (answer, at) for name in names})

    def take_over(self, told: Iterable[Told]) -> None:
        """Keep labels there are, of unknown times as of now."""
        now = time.time()
        with self.lock:
            self._check()
            key, several = f"{IMPORT}{len(self.desk.events)}", []
            for i, ((who, at), some) in enumerate(groupby(told, lambda each: (each.who, each.at))):
                labels = {each.id: each.answer for each in some}
                more = {"who": who, "key": f"{key}-{i}", "at": round(now if at is None else at, 3)}
                several.append((list(labels), list(labels.values()), more))
            if self._keep(several):
                self._rewrite()

    def _keep(self, several: Iterable[tuple[Sequence[Id], Any, Mapping[str, Any]]]) -> list[Event]:
        """Put answers in the record; what of it is new."""
        given, new = self.desk.state.given, self.desk.tell_all(several)
        for name, answer in chain.from_iterable(map(record.answers, new)):
            if len(given.get(name, ())) > 1:
                self._several.add(name)
            if isinstance(answer, str):
                self._classes.setdefault(answer)
        return new

    def untell(self, numbers: Sequence[int], *, who: str, key: str, tab: str) -> None:
        """Take back somebody's last answer to each item, in both files.

        What has no other answer is in the hands of the tab again.
        """
        names = [self.items.id(number) for number in numbers]
        with self.lock:
            self._check()
            if not self.desk.untell(names, who=who, key=key, at=round(time.time(), 3)):
                return
            self._rewrite()
            again = [name for name in names if name in self.desk.state.out]
            if again:
                self.desk.happen(kind="take", ids=again, who=tab)

    def hold(self, names: Sequence[Id]) -> None:
        """Let target items be held out, so that they can be told."""
        with self.desk.lock:
            ids, seen = tuple(names), self.desk.state.changes
            batch = Batch(ids, (None,) * len(ids), held=ids, size=len(ids), seen=seen)
            self.desk.hand_out(batch)

    def take(self, tab: str, size: int, who: str | None = None) -> list[Id]:
        """Ids that are in the hands of a tab, filled up when half of them are answered.

        What its person was not sure of twice is left to others.
        """
        with self.desk.lock:
            self._expire(tab)
            state = self.desk.state
            mine = [name for name, by in state.out.items() if by == tab]
            if len(mine) > size // 2:
                return mine[:size]
            unsure = (UNSURE, who)
            twice = {name for name in state.aside if state.given[name].count(unsure) > 1}
            return self.desk.take(tab, size, without=twice)

    def leave(self, tab: str) -> None:
        """What a tab had in its hands is for others."""
        self._seen.pop(tab, None)
        self.desk.leave(tab, None)

    def waiting(self) -> int:
        """How many items are out and in nobody's hands, without those that somebody set aside."""
        with self.desk.lock:
            out, aside = self.desk.state.out, self.desk.state.aside
            return sum(by is None and name not in aside for name, by in out.items())

    def fill(self, size: int, rng: Any) -> None:
        """Hand out items by chance: better than to let somebody wait."""
        with self.desk.lock:
            free = self.desk.free()
            some = rng.choice(free, min(size, len(free)), replace=False).tolist()
            ids = tuple(self.desk.pool.ids[i] for i in some)
            seen = self.desk.state.changes
            self.desk.hand_out(Batch(ids, (None,) * len(ids), size=len(ids), seen=seen))

    @property
    def classes(self) -> list[str]:
        """All that were named or told, in that order."""
        with self.lock:
            return [str(name) for name in self._classes]

    def counts(self) -> dict[str, int]:
        """Labels that count, by class."""
        with self.desk.lock:
            found = Counter(self.desk.state.labels.values())
        return {name: found[name] for name in self.classes}

    def disagreements(self) -> list[tuple[Id, dict[str, str]]]:
        """Items that people gave different labels, and who gave which."""
        with self.desk.lock:
            found = []
            for name in sorted(self._several, key=str):
                given = self.desk.state.given.get(name, ())
                said = {str(who or ""): answer for answer, who in given if isinstance(answer, str)}
                if len(set(said.values())) > 1:
                    found.append((name, said))
            return found

    def recent(self, who: str, size: int = 50) -> list[tuple[Id, str]]:
        """Somebody's last answers that count, the latest last."""
        found: dict[Id, str] = {}
        with self.lock:
            for event in reversed(self.desk.events):
                if event["kind"] == "tell" and event.get("who") == who:
                    for name, answer in record.answers(event):
                        given = self.desk.state.given.get(name, [])
                        if given and given[-1] == (answer, who):
                            text = answer.value if isinstance(answer, Answer) else answer
                            found.setdefault(name, str(text))
                if len(found) >= size:
                    break
        return list(found.items())[:size][::-1]

    def close(self) -> None:
        """Let another process take the record up."""
        if self.desk.record is not None:
            self.desk.record.close()

    def _expire(self, tab: str) -> None:
        now = time.monotonic()
        self._seen[tab] = now
        holders = {by for by in self.desk.state.out.values() if by is not None}
        for holder in holders | self._seen.keys():
            if now - self._seen.setdefault(holder, now) > LEASE:
                self.leave(holder)

    def _check(self) -> None:
        """Before anything is kept: the CSV lacks nothing, and nobody else changed it."""
        if self._stamp() != self._left:
            self._mend()

    def _stamp(self) -> tuple[int, ...]:
        if not self.out.exists():
            return ()
        found = self.out.stat()
        return found.st_size, found.st_mtime_ns

    def _mend(self) -> None:
        """Bring the CSV to what the record says; one that somebody else changed is refused."""
        want = text(folded(self.desk.events))
        found = self.out.read_bytes() if self.out.exists() else b""
        before = text(folded(self.desk.events[: _last(self.desk.events)]))
        # A kill leaves out what was told last, or a part of it.
        cut = want.startswith(found) and found.startswith(before)
        if found and not cut and found not in (before, want):
            raise InputError(
                f"{self.out} was changed, and is not what {state_of(self.out)} says: move it away "
                f"to go on without the changes, or choose another --out and pass --import "
                f"{self.out}"
            )
        if found != want:
            self._rewrite()
        self._left = self._stamp()

    def _append(self, rows: Rows) -> None:
        self._left = None
        files.append(self.out, _lines(rows))
        self._left = self._stamp()

    def _rewrite(self) -> None:
        self._left = None
        files.write(self.out, text(folded(self.desk.events)))
        self._left = self._stamp()


def _check_known(items: Items, out: Path, state: Path) -> None:
    """Say it in the page's own options, where a record is of other items than these."""
    header, lines = record.read(state)
    _, found = record.folded(state, lines)
    for name in (*found.given, *found.out):
        side, where = items.pool, f"the pool {items.spec.pool}"
        if items.target is not None and name in found.held:
            side, where = items.target, f"--target {items.spec.target}"
        if name not in side.places:
            its = "its" if header.get("target") else "no"
            raise InputError(
                f"{state} knows {name!r}, which is not in {where}: choose another --out for other "
                "items; to go on with its own, put back what was taken away, or pass the pool (and "
                f"--ids of a table) that it was begun with, and {its} --target; to go on without "
                f"it, choose another --out and pass --import {out}"
            )


def _last(events: Sequence[Event]) -> int:
    """Where begins what was told last: one event, or those of one import."""
    told = [i for i, event in enumerate(events) if event["kind"] in ("tell", "untell")]
    while len(told) > 1 and _import(events[told[-2]]) == _import(events[told[-1]]) != "":
        told.pop()
    return told[-1] if told else 0


def _import(event: Event) -> str:
    """Which import an event is of, if of any."""
    key = str(event.get("key", ""))
    return key.rpartition("-")[0] if key.startswith(IMPORT) else ""


def state_of(out: Path) -> Path:
    """The record beside a CSV.

    >>> state_of(Path("labels.csv")).name
    'labels.csv.state'
    """
    return out.with_name(f"{out.name}.state")


def folded(events: Iterable[Event]) -> Rows:
    """Everybody's last label of each id, as far as it was not taken back."""
    rows: Rows = {}
    for told in record.history(events):
        if not told.undone:
            rows.pop((told.id, told.who), None)
            if not isinstance(told.answer, Answer):
                rows[told.id, told.who] = str(told.answer), told.at
    return rows


def plain(text: str, most: int = LABEL) -> str:
    """A text in one line, as people would write it; empty if it is too long or cannot be seen.

    >>> plain(" cafe\\u0301  au lait"), plain("a\\x1bb")
    ('café au lait', '')
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    seen = text.replace("\u200c", "").replace("\u200d", "")  # Persian and emoji need them
    return text if seen and seen.isprintable() and len(text) <= most else ""


def text(rows: Rows) -> bytes:
    """The whole CSV.

    >>> text({("a.png", "ann"): ("cat", 0.0)})
    b'id,label,time,who\\na.png,cat,1970-01-01T00:00:00.000Z,ann\\n'
    """
    return ",".join(COLUMNS).encode() + b"\n" + _lines(rows)


def _lines(rows: Rows) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for (name, who), (label, at) in rows.items():
        writer.writerow([name, label, "" if at is None else _iso(at), who or ""])
    return out.getvalue().encode(errors="surrogateescape")  # names of files may be any bytes


def _iso(at: float) -> str:
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")
