"""Where questions go out and answers come in, by id: it keeps them, and knows of no model."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from threading import RLock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.learner import record
from foresee.learner.answers import check_order, checked_ids, checked_labels
from foresee.learner.pool import Named
from foresee.learner.record import Answer, Batch, Id, State
from foresee.learner.written import Event, Label, looks
from foresee.seeding import generator


@dataclass(frozen=True)
class Now:
    """What was told at one moment, which stays as it is while others go on telling.

    Args:
        places: positions in the pool that are trained on, ascending; none that is held out.
        labels: theirs.
        classes: those that are known, or that are among the labels.
        batches: how many were handed out.
        changes: how many there were.
    """

    places: list[int]
    labels: list[Label]
    classes: list[Label]
    batches: int
    changes: int


class Desk:
    """The pool, the target (None: the pool is it), and all that was asked and told of them.

    ``holdout`` is the share of what is asked for that is drawn from the target at random. Threads
    may use it at once.
    """

    def __init__(
        self,
        pool: Named,
        target: Named | None,
        classes: list[Label] | None,
        seed: int,
        holdout: float,
        path: Path | None,
    ) -> None:
        self.pool, self.own, self.target = pool, target is not None, target or pool
        self.known, self.seed, self.holdout = classes, seed, holdout
        if self.own and holdout:
            for name in self.target.ids:
                if name in pool.places:
                    raise InputError(
                        f"target_ids: {name!r} is in the pool too, and what is held out must not "
                        "be trained on: take it out of the pool, or give it another name"
                    )
        # Positions in the target, in the order in which they are held out. Where the pool is the
        # target these are set apart before any is picked, or they would be a sample of the rest.
        m = len(self.target) if holdout else 0
        share = m if self.own else math.ceil(holdout * m)
        self._apart = generator(seed, "holdout").permutation(m)[:share]
        self.lock = RLock()
        self.state, self.events = State(), list[Event]()
        self.record = None if path is None else record.Record(path, self.header(), classes)
        if self.record is not None:
            try:
                self._take_up(self.record)
            except BaseException:
                self.record.close()
                raise

    def happen(self, **event: Any) -> None:
        """First the disk, then the memory: what failed to be kept has not happened."""
        self._happen([event])

    def _happen(self, events: Sequence[Event]) -> None:
        with self.lock:
            if self.record is not None:
                self.record.append(events)
            for event in events:
                self.state.apply(event)
                self.events.append(event)

    def hand_out(self, batch: Batch) -> Batch:
        """Let a batch be out, without what was answered or handed out since it was chosen."""
        with self.lock:
            state = self.state
            gone = {*state.labels, *state.out}
            gone |= {
                name
                for name, answer in state.aside.items()
                if answer is Answer.SKIP or state.changes != batch.seen
            }
            for name in batch.ids:
                if name not in (self.target if name in batch.held else self.pool).places:
                    raise InputError(f"batch: there is no {name!r} in the pool: take its own")
            if len(set(batch.ids)) < len(batch.ids) or len(batch.scores) != len(batch.ids):
                raise InputError("batch must have each id once, with a score or None: take its own")
            left = [i for i, name in enumerate(batch.ids) if name not in gone]
            if not left:
                return Batch((), size=batch.size)
            held = [name for name in batch.held if name not in gone]
            self.happen(
                kind="ask",
                size=batch.size,
                ids=[batch.ids[i] for i in left],
                scores=[batch.scores[i] for i in left],
                promise=batch.promise,
                held=held,
                seen=batch.seen,
            )
            return cast(Batch, state.last)

    def take(self, who: str, size: int, without: Container[Id] = ()) -> list[Id]:
        """Put so many of what is out into somebody's hands; what is there already comes first."""
        _check_name(who)
        with self.lock:
            out = self.state.out
            mine = [name for name, by in out.items() if by == who][:size]
            free = [name for name, by in out.items() if by is None and name not in without]
            more = free[: size - len(mine)]
            if more:
                self.happen(kind="take", ids=more, who=who)
            return mine + more

    def leave(self, who: str, ids: Any) -> None:
        """Take out of somebody's hands what is in them, all of it where ids is None."""
        _check_name(who)
        with self.lock:
            mine = [name for name, by in self.state.out.items() if by == who]
            names = mine if ids is None else checked_ids("ids", ids)
            for name in names:
                if name not in mine:
                    raise InputError(f"ids: {name!r} is not in the hands of {who!r}: leave it out")
            if names:
                self.happen(kind="take", ids=names, who=None)

    def tell(self, ids: Any, labels: Any, **more: Any) -> None:
        """Keep answers, all or none; see `Learner.tell`."""
        self.tell_all([(ids, labels, more)])

    def tell_all(self, several: Iterable[tuple[Any, Any, Mapping[str, Any]]]) -> list[Event]:
        """Keep what `tell` would be told one after the other, all or none; what of it is new."""
        with self.lock:
            found = [self._told(*each) for each in several]
            if new := [event for event in found if event is not None]:
                self._happen(new)
            return new

    def _told(self, ids: Any, labels: Any, more: Mapping[str, Any]) -> Event | None:
        """The event of a telling, checked; None where there is nothing to keep."""
        if isinstance(ids, str | int | np.integer):
            ids, labels = [ids], [labels]
        names = checked_ids("ids", ids)
        check_order("labels", labels, ids, names)
        for name in names:
            if name not in self.pool.places and name not in self.state.held:
                raise InputError(f"ids: there is no {name!r} in the pool: use the ids of the batch")
        told = checked_labels(names, labels, self.known, self.state.labels)
        plain = {name: label for name, label in told.items() if not isinstance(label, Answer)}
        aside = {
            answer.value: [name for name, label in told.items() if label is answer]
            for answer in Answer
        }
        event = {"kind": "tell", "ids": list(plain), "labels": list(plain.values()), **aside}
        event |= _given(more)
        return event if told and self._is_new(event) else None

    def untell(self, ids: Any, **more: Any) -> bool:
        """Take back the last answer to each, see `Learner.untell`; whether that is new."""
        names = checked_ids("ids", [ids] if isinstance(ids, str | int | np.integer) else ids)
        with self.lock:
            event = {"kind": "untell", "ids": list(dict.fromkeys(names))} | _given(more)
            if not names or not self._is_new(event):
                return False
            for name in event["ids"]:
                if name not in self.state.given:
                    raise InputError(f"ids: nothing was told of {name!r}: leave it out")
                by = self.state.given[name][-1][1]
                if more.get("who") not in (None, by):
                    raise InputError(
                        f"ids: the last answer to {name!r} is not by {more['who']!r} but by {by!r}:"
                        " leave it out, or tell another"
                    )
            self.happen(**event)
            return True

    def release(self, ids: Any) -> None:
        """Take back what is out, all of it where ids is None."""
        with self.lock:
            names = list(self.state.out) if ids is None else checked_ids("ids", ids)
            for name in names:
                if name not in self.state.out:
                    raise InputError(f"ids: {name!r} is not out for labelling: leave it out")
            if names:
                self.happen(kind="release", ids=names)

    def follow(self, events: Sequence[Event]) -> None:
        """Let happen what happened at another desk."""
        if not isinstance(events, Sequence):
            raise InputError(f"events must be a list of events, got {type(events).__name__}")
        with self.lock:
            for event in events:
                try:
                    for name in event.get("ids", ()):
                        if name not in self.pool.places and name not in self.target.places:
                            raise ValueError(f"there is no {name!r} in the pool")
                    self.happen(**event)
                except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                    raise InputError(
                        f"events: {event!r} cannot have happened here ({error}): pass those of a "
                        "learner with the same pool, from the first that is not known here"
                    ) from error

    def now(self) -> Now:
        """What there is to learn from, as it stands."""
        with self.lock:
            told, held = self.state.labels, self.state.held
            places = {self.pool.places[name]: told[name] for name in told if name not in held}
            labels = [places[place] for place in sorted(places)]
            classes = self.known if self.known is not None else _in_order(labels)
            return Now(sorted(places), labels, classes, self.state.batches, self.state.changes)

    def next_held(self, size: int) -> list[Id]:
        """Ids to hold out of ``size``: so many that their share of all is kept."""
        with self.lock:
            state = self.state
            due = max(0, math.floor(self.holdout * (state.asked + size)) - state.drawn)
            known = state.labels.keys() | state.aside.keys() | state.out.keys()
            names = (self.target.ids[int(place)] for place in self._apart)
            new: Iterable[Id] = (name for name in names if name not in known)
            if not self.own:
                new = list(new)
                due = size if len(known) + len(new) == len(self.pool) else due  # no other is left
            unsure = (
                name
                for name, answer in state.aside.items()
                if self.own and answer is Answer.UNSURE
                if name in state.held and name not in state.out
            )
            return list(islice(chain(new, unsure), due))

    def free(self) -> NDArray[np.int64]:
        """Positions in the pool that may be handed out; those unsure where nothing else is left."""
        free = np.ones(len(self.pool), bool)
        if not self.own:
            free[self._apart] = False
        with self.lock:
            state, places = self.state, self.pool.places
            for name in (*state.labels, *state.aside, *state.out):
                if name in places:
                    free[places[name]] = False
            if not free.any():
                for name, answer in state.aside.items():
                    if answer is Answer.UNSURE and name in places and name not in state.out:
                        free[places[name]] = True
        return np.flatnonzero(free)

    def _is_new(self, event: Event) -> bool:
        """Whether an event has not happened under its key."""
        key = event.get("key")
        if key not in self.state.keys:
            return True
        if record.content(self.state.keys[key]) != record.content(event):
            raise InputError(f"key: {key!r} was used for something else: make another")
        return False

    def header(self) -> dict[str, Any]:
        """What must be the same when it is taken up again, and where it comes from."""
        numbered = self.pool.numbered
        held = self.holdout > 0 and self.target.numbered
        return {
            "seed": int(self.seed),
            "holdout": float(self.holdout),
            "classes": None if self.known is None else looks(self.known),
            # Rows that have no other name than their number must stay where they are.
            "rows": len(self.pool) if numbered else None,
            "look": self.pool.look() if numbered else None,
            "target_rows": len(self.target) if held else None,
            "target_look": self.target.look() if held else None,
            "pool": self.pool.origin,
            "target": (self.target.origin or True) if self.own else None,
        }

    def _take_up(self, found: record.Record) -> None:
        mine = self.header()
        theirs = mine | found.header
        rows = self.pool.rows
        framed = isinstance(rows, arrays.Rows) and hasattr(rows.data, "iloc")
        if framed and theirs["rows"] is None and "target_rows" not in found.header:
            # Versions before kept the rows of no frame, and of no target.
            theirs |= {"rows": mine["rows"], "look": mine["look"]}
        for key in ("seed", "holdout", "classes", "rows", "look", "target_rows", "target_look"):
            if mine[key] != theirs[key]:
                raise InputError(
                    f"{found.path} was begun with {_begun(key, theirs[key], mine[key])}: pass the "
                    "same again, or choose another path"
                )
        self.events, self.state = record.folded(found.path, found.lines, self.known)
        held = self.state.held
        for name in (*self.state.labels, *self.state.aside, *self.state.out, *held):
            if name not in (self.target if name in held else self.pool).places:
                raise InputError(
                    f"{found.path} knows {name!r}, which is not in the pool: pass the pool and the "
                    "ids it was begun with"
                )


def _begun(key: str, then: Any, now: Any) -> str:
    """What another learner had there, and what this one has; how rows look is but a number."""
    side = "target" if key.startswith("target") else "pool"
    if key.endswith("look"):
        return f"other rows in the {side}, or in another order, than this learner has"
    if key.endswith("rows"):
        had, has = (f"{n} numbered rows" if n else "rows with ids" for n in (then, now))
        return f"a {side} of {had}, and this learner has one of {has}"
    return f"{key} = {then!r}, and this learner has {now!r}"


def _in_order(labels: Sequence[Label]) -> list[Label]:
    """Each once: sorted, or where Python cannot sort them as they come."""
    found: list[Any] = list(dict.fromkeys(labels))
    try:
        return sorted(found)
    except TypeError:
        return found


def _check_name(who: Any) -> None:
    if not isinstance(who, str) or not who:
        raise InputError(f"who must be a text, the name of somebody, got {who!r}")


def _given(more: Mapping[str, Any]) -> Event:
    """Who told, when and under which key, as far as it is known; checked."""
    for name, kinds, what in (
        ("who", (str,), "a text"),
        ("key", (str,), "a text"),
        ("at", (int, float), "seconds since 1970"),
    ):
        value = more.get(name)
        wrong = isinstance(value, bool) or not isinstance(value, kinds)
        if value is not None and (wrong or (name == "at" and not math.isfinite(value))):
            raise InputError(f"{name} must be {what}, got {value!r}")
    return {name: value for name, value in more.items() if value is not None}
