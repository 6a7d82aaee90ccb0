"""Where questions go out and answers come in, by id: it keeps them, and knows of no model."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.learner import record
from foresee.learner.answers import checked_ids, checked_labels
from foresee.learner.pool import Named
from foresee.learner.record import Answer, Event, Id, Label, State
from foresee.seeding import generator


class Desk:
    """The pool, the target (None: the pool is it), and all that was asked and told of them.

    ``holdout`` is the share of what is asked for that is drawn from the target at random.
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
        self.state, self.events = State(), list[Event]()
        self.record = None if path is None else record.Record(path, self.header())
        if self.record is not None:
            try:
                self._take_up(self.record)
            except BaseException:
                self.record.close()
                raise

    def happen(self, **event: Any) -> None:
        """First the disk, then the memory: what failed to be kept has not happened."""
        if self.record is not None:
            self.record.append(event)
        self.events.append(event)
        self.state.apply(event)

    def tell(self, ids: Any, labels: Any) -> None:
        """Keep answers, all or none; see `Learner.tell`."""
        if isinstance(ids, str | int | np.integer):
            ids, labels = [ids], [labels]
        names = checked_ids("ids", ids)
        for name in names:
            if name not in self.pool.places and name not in self.state.held:
                raise InputError(f"ids: there is no {name!r} in the pool: use the ids of the batch")
        told = checked_labels(names, labels, self.known, self.state.labels)
        plain = {name: label for name, label in told.items() if not isinstance(label, Answer)}
        aside = {
            answer.value: [name for name, label in told.items() if label is answer]
            for answer in Answer
        }
        if told:
            self.happen(kind="tell", ids=list(plain), labels=list(plain.values()), **aside)

    def release(self, ids: Any) -> None:
        """Take back what is out, all of it where ids is None."""
        names = list(self.state.out) if ids is None else checked_ids("ids", ids)
        for name in names:
            if name not in self.state.out:
                raise InputError(f"ids: {name!r} is not out for labelling: leave it out")
        if names:
            self.happen(kind="release", ids=names)

    def training_set(self) -> tuple[list[int], list[Label]]:
        """Positions in the pool, ascending, and their labels; none that is held out."""
        labels, held = self.state.labels, self.state.held
        found = {self.pool.places[name]: labels[name] for name in labels if name not in held}
        return sorted(found), [found[place] for place in sorted(found)]

    def classes(self) -> list[Label]:
        """Those that are known, or that were told of what is trained on."""
        return self.known if self.known is not None else sorted(set(self.training_set()[1]))

    def next_held(self, size: int) -> list[Id]:
        """Ids to hold out of ``size``: so many that their share of all is kept."""
        state = self.state
        due = max(0, math.floor(self.holdout * (state.asked + size)) - len(state.held))
        known = state.held | state.labels.keys() | state.aside.keys() | state.out.keys()
        names = (self.target.ids[int(place)] for place in self._apart)
        return list(islice((name for name in names if name not in known), due))

    def free(self) -> NDArray[np.int64]:
        """Positions in the pool that may be handed out; those unsure where nothing else is left."""
        state, places = self.state, self.pool.places
        free = np.ones(len(self.pool), bool)
        if not self.own:
            free[self._apart] = False
        for name in (*state.labels, *state.aside, *state.out):
            if name in places:
                free[places[name]] = False
        if not free.any():
            unsure = [name for name, answer in state.aside.items() if answer is Answer.UNSURE]
            free[[places[name] for name in unsure if name in places]] = True
        return np.flatnonzero(free)

    def header(self) -> dict[str, Any]:
        """What must be the same when it is taken up again, and where it comes from."""
        numbered = isinstance(self.pool.ids, range)
        return {
            "seed": int(self.seed),
            "holdout": float(self.holdout),
            "classes": self.known,
            # Rows that have no other name than their number must stay where they are.
            "rows": len(self.pool) if numbered else None,
            "look": self.pool.look() if numbered else None,
            "pool": self.pool.origin,
            "target": (self.target.origin or True) if self.own else None,
        }

    def _take_up(self, found: record.Record) -> None:
        mine, theirs = self.header(), found.header
        for key in ("seed", "holdout", "classes", "rows", "look"):
            if mine[key] != theirs.get(key):
                raise InputError(
                    f"{found.path} was begun with {key} = {theirs.get(key)!r}, and this learner "
                    f"has {mine[key]!r}: pass the same again, or choose another path"
                )
        self.state, self.events = record.folded(found.path, found.events), list(found.events)
        held = self.state.held
        for name in (*self.state.labels, *self.state.aside, *self.state.out, *held):
            if name not in (self.target if name in held else self.pool).places:
                raise InputError(
                    f"{found.path} knows {name!r}, which is not in the pool: pass the pool and the "
                    "ids it was begun with"
                )
