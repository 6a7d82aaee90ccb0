"""The page's end of the process that fits: asks it for the next batch when few are left."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from foresee.label.book import Book
from foresee.label.items import Spec
from foresee.learner.record import Batch, Id
from foresee.seeding import generator

_MOST = 200  # items of a batch, however many people label
_AGAIN = 5.0  # seconds before a process that ended is started again


@dataclass
class Known:
    """What the last fit found, for people to look at.

    Args:
        card: accuracy, its interval's ends, and from how many labels held out.
        batch: how many items the last batch had, and what their labels promise.
        promise: what all labels that remain promise.
        trained: labels that the model learned from.
        why: of an id, target ids and the fall of the loss expected at each.
        guess: of an id, the likeliest label.
        error: why there is no model.
    """

    card: list[float] | None = None
    batch: tuple[int, float] | None = None
    promise: float | None = None
    trained: int = 0
    why: dict[Id, list[tuple[Id, float]]] = field(default_factory=dict)
    guess: dict[Id, str] = field(default_factory=dict)
    error: str | None = None


def mixed(batch: Batch) -> Batch:
    """The same batch, with what is held out spread over it: or the accuracy is known late.

    >>> mixed(Batch((1, 2, 3, 4, 8, 9), (1, 1, 1, 1, None, None), held=(8, 9))).ids
    (1, 8, 2, 3, 9, 4)
    """
    due: dict[int, float] = {}
    for held in (False, True):
        part = [i for i, name in enumerate(batch.ids) if (name in batch.held) is held]
        due |= {i: (k + 0.5) / len(part) for k, i in enumerate(part)}
    order = sorted(due, key=due.__getitem__)
    ids, scores = (tuple(each[i] for i in order) for each in (batch.ids, batch.scores))
    return replace(batch, ids=ids, scores=scores)


class Fitter:
    """Keeps items out for labelling, by a process that fits and chooses.

    Args:
        book: what is labelled.
        patience: seconds that somebody waits for a choice before items come by chance.
        ahead: a batch is chosen when so few are left; by default half a batch.
        process: of `started`, where it was started before the book was there.
    """

    def __init__(
        self,
        book: Book,
        patience: float = 2.0,
        ahead: int | None = None,
        process: "subprocess.Popen[str] | None" = None,
    ) -> None:
        self.book, self.patience = book, patience
        spec = book.items.spec
        self.ahead = spec.batch // 2 if ahead is None else ahead
        self.known, self.busy = Known(), False
        self._rng = generator(spec.seed, len(book.desk.events), "fill")
        self._needed, self._done = threading.Event(), threading.Event()
        # When somebody began to wait: who opens the page has waited since it was started.
        self._since: float | None = None if process is None else time.monotonic()
        self._wanted, self._asked = spec.batch, (-1, -1)
        self._process = process
        self._told = 0  # events that the process knows
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        """Begin: the process starts while the page is still being opened."""
        self._needed.set()
        self._thread.start()

    def stop(self) -> None:
        """End the process, in the middle of a fit too."""
        self._done.set()
        self._needed.set()
        if self._process is not None:
            self._process.kill()
        if self._thread.is_alive():
            self._thread.join(10)
        self._end()

    def wake(self, wanted: int = 0) -> None:
        """Something was told or taken; somebody wants so many at once."""
        self._wanted = max(self._wanted, min(wanted, _MOST))
        if self.book.waiting() <= self.ahead:
            self._needed.set()

    def hungry(self) -> None:
        """Somebody has nothing to label: after a while items come by chance."""
        self._needed.set()
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= self.patience:
            self.book.fill(self._size(), self._rng)
            self._since = None

    def _size(self) -> int:
        return max(self.book.items.spec.batch, self._wanted)

    def _loop(self) -> None:
        while not self._done.is_set():
            self._needed.wait()
            self._needed.clear()
            state = self.book.desk.state
            asked = state.changes, state.batches
            # Where nothing is left to ask, ask again only when something has changed.
            if self._done.is_set() or self.book.waiting() > self.ahead or asked == self._asked:
                continue
            self.busy = True
            try:
                self._round()
                self._asked = asked
            except (OSError, ValueError) as error:  # it was killed, or could not be started
                self._end()
                if not self._done.wait(_AGAIN):
                    self.known.error = f"the fitting process ended ({error}): it is started again"
                    self._needed.set()
            self.busy = False

    def _round(self) -> None:
        """One request and its answer."""
        process = self._process = self._process or started(self.book.items.spec)
        desk = self.book.desk
        with desk.lock:
            events, labels = desk.events[self._told :], len(desk.state.given)
        self._told += len(events)
        found = answer(process, {"events": events, "size": self._size()})
        if "error" in found:
            self.known.error = found["error"]
            return
        fields: dict[str, Any] = found["batch"]
        fields |= {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
        chosen = mixed(Batch(**fields))
        self._learn(desk.hand_out(chosen), chosen, found)
        # Twice what was labelled meanwhile, so that nobody waits during the next fit.
        self._wanted = min(_MOST, 2 * (len(desk.state.given) - labels))
        self._since = None

    def _learn(self, out: Batch, chosen: Batch, found: dict[str, Any]) -> None:
        picked = [name for name in chosen.ids if name not in chosen.held]
        still = {*self.book.desk.state.out, *out.ids}
        why = dict(zip(picked, found["why"], strict=False))
        guess = dict(zip(picked, found["guess"], strict=False))
        old = self.known
        promised = None if chosen.promise is None else (len(picked), chosen.promise)
        self.known = Known(
            found["card"],
            promised or (old.batch if not picked else None),
            found["promise"],
            found["trained"],
            {k: v for k, v in (old.why | why).items() if k in still},
            {k: v for k, v in (old.guess | guess).items() if k in still},
        )

    def _end(self) -> None:
        process, self._process, self._told = self._process, None, 0
        if process is not None:
            end(process)


def started(spec: Spec, module: str = "foresee.label.work") -> "subprocess.Popen[str]":
    """The process that fits, which reads the data while others get ready."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    process = subprocess.Popen(
        # -P: what lies in the folder that this is started in is data, and no program.
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | threads,
        process_group=0,  # Ctrl-C is for who started it
    )
    _tell(process, asdict(spec))
    return process


def answer(process: "subprocess.Popen[str]", question: dict[str, Any]) -> dict[str, Any]:
    """What a process that was `started` answers."""
    _tell(process, question)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise OSError("no answer")
    found: dict[str, Any] = json.loads(line)
    return found


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a process and wait for it."""
    process.kill()
    with suppress(OSError), process:  # which closes its pipes; what was not read is lost
        pass


def _tell(process: "subprocess.Popen[str]", values: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(values) + "\n")
    process.stdin.flush()
