"""Ask for the labels that help most, tell them, and so on: on one's own data, by one's own ids."""

import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from foresee import arrays, checks, scores
from foresee.errors import InputError
from foresee.learner import cold, record
from foresee.learner.answers import check_classes, check_order, checked_ids
from foresee.learner.desk import Desk, Now
from foresee.learner.features import Features
from foresee.learner.models import Frozen, fitting
from foresee.learner.options import check_numbers, check_strategy, check_width, prices_of
from foresee.learner.pool import Named, distinct, like, opened, subset
from foresee.learner.record import Batch, Id, Told
from foresee.learner.why import gains
from foresee.learner.written import PLAIN, Event, Label, seen
from foresee.posteriors import point
from foresee.reading import sources
from foresee.recipe import Recipe
from foresee.seeding import generator
from foresee.strategies import Default
from foresee.strategies.priced import Priced
from foresee.types import Inputs, Posterior, Strategy, View

# Points of the pool that a strategy chooses from, and of the target that it looks at.
CANDIDATES, TARGETS = 4000, 1000
_PART = 1024  # rows that a model is given at once


@dataclass(frozen=True)
class Card:
    """How good the model is, from labels that were drawn at random and never trained on.

    ``low`` and ``high`` are Wilson's 95 % interval of the accuracy on the target; ``n`` is how many
    labels it comes from, ``trained`` from how many the model learned.
    """

    accuracy: float
    low: float
    high: float
    n: int
    trained: int


class Fitted(NamedTuple):
    """A model, the key of what it was fitted to, and its classes."""

    key: str
    posterior: Posterior | None
    classes: list[Label]


class Learner:
    """`ask` for points to label, `tell` their labels; the model is fitted when it is next needed.

    Labels are any hashable values, of one kind unless ``classes`` are given; equal ones are one
    class. The last answer to an id counts; ids may be told unasked, late and in part. The answer
    `foresee.SKIP` takes a point out for good, `foresee.UNSURE` until nothing else is left. Until
    labels of two classes are told, batches are spread over the target by raw features. Several
    threads may use a learner at once: telling does not wait for a fit.

    Args:
        model: a scikit-learn classifier or pipeline; a network, or a function that builds one (of
            ``classes`` and ``seed`` if it takes them), with a ``recipe``; a `Frozen` extractor
            with a head; or a function (inputs, labels, rng) -> Posterior, of labels 0 … c − 1.
        pool: what could be labelled: an array, a frame, a sparse matrix, a list of texts, a
            Dataset, what `foresee.read` returns, or the path of a file it can read.
        target: a sample of the data that the model will meet, of the same kind. Without it the
            pool is the target: then every point of the pool counts alike.
        ids: what each row of the pool is called, texts or whole numbers; by default the index of
            a frame, the paths of images, or the numbers of the rows.
        target_ids: likewise for ``target``, for points that are held out from it; by default
            "target/" followed by what ``ids`` would be.
        seed: everything random follows from it.
        strategy: (view, size, rng) -> positions; by default `foresee.Default`.
        classes: all labels there can be; by default those that were told, sorted where they can
            be, otherwise in the order of the pool.
        costs: the price of each label of the pool [n]: points are chosen by gain per price.
        holdout: the share of all points asked for that are drawn at random from the target, never
            trained on, and counted by `card`.
        recipe: how a network is trained.
        draws: how many the posterior has, where that can be chosen.
        candidates: how many points of the pool, drawn anew for each batch, a strategy chooses
            from; None: all.
        targets: how many points of the target it looks at; None: all.
        device: where a network is trained.
        path: a file where all is kept as it happens, and taken up again if it is there. Labels
            other than texts, numbers, booleans, bytes, dates and times, or tuples and frozensets of
            these, are kept by their position in ``classes``, which must then be given.

    >>> from sklearn.linear_model import LogisticRegression
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> learner = Learner(LogisticRegression(), x)
    >>> batch = learner.ask(5)
    >>> learner.tell(batch.ids, ["left" if x[i, 0] < 0 else "right" for i in batch.ids])
    >>> learner.predict([[-3.0, 0.0], [3.0, 0.0]])
    array(['left', 'right'], dtype='<U5')
    """

    def __init__(
        self,
        model: Any,
        pool: Any,
        target: Any = None,
        *,
        ids: Any = None,
        target_ids: Any = None,
        seed: int = 0,
        strategy: Strategy | None = None,
        classes: Sequence[Label] | None = None,
        costs: Any = None,
        holdout: float = 0.0,
        recipe: Recipe | None = None,
        draws: int = 100,
        candidates: int | None = CANDIDATES,
        targets: int | None = TARGETS,
        device: Any = None,
        path: Path | str | None = None,
    ) -> None:
        self.model, self.pool, self.target, self.ids = model, pool, target, ids
        self.target_ids, self.seed, self.strategy = target_ids, seed, strategy
        self.classes, self.costs, self.holdout, self.recipe = classes, costs, holdout, recipe
        self.draws, self.candidates, self.targets = draws, candidates, targets
        self.device, self.path = device, path
        check_numbers(seed, holdout, draws, candidates, targets)
        check_strategy(strategy)
        self._frozen = model if isinstance(model, Frozen) else None
        head = model if self._frozen is None else self._frozen.head
        self._fit = fitting(head, recipe, draws, device)
        self._features: dict[str, Any] = {}
        # One thread fits and chooses at a time; others go on telling and taking meanwhile.
        self._turn = RLock()
        self._last = Fitted("", None, [])
        rows = Named.read("pool", pool, ids)
        goals = None
        if target is not None:
            goals = Named.read("target", like("target", target, pool), target_ids)
            if hasattr(model, "fit"):
                check_width(rows.rows, goals.rows)
        check_order("costs", costs, ids, rows.ids)
        self._prices = prices_of(costs, strategy, len(rows))
        known = None if classes is None else check_classes(classes)
        place = None if path is None else Path(path)
        self._desk = Desk(rows, goals, known, seed, holdout, place)

    def ask(self, size: int = 10) -> Batch:
        """Return points to label; the same ones again until something is told.

        Args:
            size: how many. Fewer come where fewer are left, none where all are labelled or out for
                labelling. With another size than last time the batch is of other points: what is
                out is not handed out again, unless `release` takes it back.

        Returns:
            Their ids, scores and promise; see `Batch`.
        """
        with self._turn:
            checks.count("size", size, 1 << 40, of="any pool")
            with self._desk.lock:
                state = self._desk.state
                if state.last is not None and not state.moved and state.last.size == size:
                    return state.last
            return self.hand_out(self.propose(size))

    def propose(self, size: int = 10) -> Batch:
        """Return what `ask` would hand out, without handing it out.

        So another process can fit and choose: there a learner follows the `events` of this one and
        proposes; `hand_out` takes the proposal here.
        """
        checks.count("size", size, 1 << 40, of="any pool")
        with self._turn, _explained(self.model):
            with self._desk.lock:
                now, free = self._desk.now(), self._desk.free()
                held = self._desk.next_held(size)
            picks, worth, promised = self._pick(now, free, size - len(held))
            return Batch(
                (*(self._desk.pool.ids[i] for i in picks), *held),
                (*worth, *[None] * len(held)),
                promised,
                tuple(held),
                int(size),
                now.changes,
            )

    def hand_out(self, batch: Batch) -> Batch:
        """Hand out what was proposed, less what was answered since.

        Args:
            batch: of `propose`, here or in a process that follows this one.

        Returns:
            What is out; points that were answered or handed out meanwhile are not in it.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"batch must be what propose returned, got {type(batch).__name__}")
        return self._desk.hand_out(batch)

    def take(self, who: str, size: int = 1) -> list[Id]:
        """Give somebody points that are out for labelling and in nobody else's hands.

        Args:
            who: a name; the same points come again until they are answered or left.
            size: how many; fewer come where fewer are out and in nobody's hands.

        Returns:
            Ids, the most urgent first.

        >>> learner = Learner(lambda x, y, rng: None, np.eye(9))
        >>> ids = learner.ask(4).ids
        >>> learner.take("ann", 2) + learner.take("bob", 2) == list(ids)
        True
        """
        checks.count("size", size, 1 << 40, of="any pool")
        return self._desk.take(who, size)

    def leave(self, who: str, ids: Any = None) -> None:
        """Take points out of somebody's hands, by default all, for others to `take`."""
        self._desk.leave(who, ids)

    def tell(
        self,
        ids: Any,
        labels: Any,
        *,
        who: str | None = None,
        at: float | None = None,
        key: str | None = None,
    ) -> None:
        """Keep labels; when this returns they are safe, on the disk where there is a ``path``.

        Args:
            ids: of the pool, or held out from the target: a sequence, or one. They need not have
                been asked for.
            labels: one for each: a label, `foresee.SKIP` or `foresee.UNSURE`. The last answer to an
                id counts.
            who: whose they are, for `history`.
            at: when, in seconds since 1970, likewise.
            key: of your own, a new one for each call. A call that is repeated with the same key,
                as nobody knows whether it arrived, changes nothing.

        Raises:
            InputError: something is wrong with one of them, and none is kept.
        """
        self._desk.tell(ids, labels, who=who, at=at, key=key)

    def untell(
        self,
        ids: Any,
        *,
        who: str | None = None,
        at: float | None = None,
        key: str | None = None,
    ) -> None:
        """Take back the last answer to each id: the one before it counts again.

        A point without another answer is out for labelling again, in the hands of whoever gave it.

        Args:
            ids: a sequence, or one.
            who: refuses ids whose last answer is somebody else's.
            at: when.
            key: as in `tell`.
        """
        self._desk.untell(ids, who=who, at=at, key=key)

    def release(self, ids: Any = None) -> None:
        """Take back points that are out for labelling, by default all: `ask` may return them again.

        A label that comes for them nevertheless counts.
        """
        self._desk.release(ids)

    def fit(self) -> "Learner":
        """Fit the model to the labels so far, unless it is; `ask` and `predict` do so anyway."""
        self._fitted_to(self._desk.now())
        return self

    def predict(self, inputs: Inputs) -> Any:
        """The likeliest label of each input [n]; a series where a frame or a series came."""
        fitted = self._fitted()
        found = _array(fitted.classes)[self._point(fitted, inputs).argmax(1)]
        own = found.dtype == object  # what a frame would otherwise guess the kind of
        if hasattr(inputs, "iloc"):
            series = sys.modules["pandas"].Series
            return series(found, inputs.index, object if own else None)
        if arrays.is_polars(inputs):
            polars = sys.modules["polars"]
            return polars.Series(found.tolist(), dtype=polars.Object if own else None)
        return found

    def predict_proba(self, inputs: Inputs) -> Any:
        """Probabilities [n c], columns in the order of `classes_`; a frame where one came."""
        fitted = self._fitted()
        probs = self._point(fitted, inputs)
        if hasattr(inputs, "iloc"):
            pandas, names = sys.modules["pandas"], _array(fitted.classes)
            kind = object if names.dtype == object else None
            columns = pandas.Index(names, dtype=kind, tupleize_cols=False)
            return pandas.DataFrame(probs, index=inputs.index, columns=columns)
        if arrays.is_polars(inputs):
            return sys.modules["polars"].DataFrame(probs, [str(each) for each in fitted.classes])
        return probs

    def proba_of(self, ids: Any) -> NDArray[Any]:
        """Probabilities of points of the pool [n c], as `predict_proba` has them.

        Args:
            ids: of the pool: a sequence of n. They are read where they lie, and features of a
                `Frozen` extractor that are known are not computed again.
        """
        places, fitted = self._places(checked_ids("ids", ids)), self._fitted()
        if not len(places):
            return np.empty((0, len(fitted.classes)))
        return self._point_of(fitted, self._part("pool", places))

    def promise(self) -> float:
        """Fall of the Brier loss per target example expected from all labels that remain.

        It is estimated from as many ``candidates`` as a batch is chosen from.
        """
        posterior, free = self._fitted().posterior, self._desk.free()
        if not len(free):
            return 0.0
        rng = generator(self.seed, self._desk.state.batches, "promise")
        some = subset(free, self.candidates, rng)
        with _explained(self.model):
            draws = _draws(posterior, self._part("pool", some))
            goals = _draws(posterior, self._part("target", self._some_targets(rng)))
        return scores.promise(draws, goals, times=len(free) / len(some))

    def worth(self, ids: Any) -> NDArray[np.float64]:
        """Fall of the Brier loss per target example expected from each label alone [n].

        Args:
            ids: of the pool: a sequence of n.

        >>> from sklearn.linear_model import LogisticRegression
        >>> learner = Learner(LogisticRegression(), np.array([[-2.0], [-1.0], [0.1], [1.0], [2.0]]))
        >>> learner.tell([0, 4], ["left", "right"])
        >>> learner.worth([1, 2, 3]).argmax()
        np.int64(1)
        """
        places = self._places(checked_ids("ids", ids))
        posterior: Any = self._fitted().posterior
        some = self._some_targets(generator(self.seed, "why"))
        rows = self._part("pool", places)
        with _explained(self.model):
            goals = _draws(posterior, self._part("target", some))
            found = [scores.mebl(posterior.predict(part), goals) for part in _parts(rows)]
        return np.concatenate([np.empty(0), *(arrays.numpy(part) for part in found)])

    def why(self, ids: Any, size: int = 5) -> dict[Id, list[tuple[Id, float]]]:
        """The target points that a label would tell most about.

        Args:
            ids: of the pool: a sequence, or one.
            size: how many target points for each.

        Returns:
            For each id the ids of target points, among as many ``targets`` as a strategy looks at,
            and the fall of the Brier loss expected at each, the largest first. The mean of all
            would be the score of the label.
        """
        checks.count("size", size, 1 << 40, of="any target")
        names = checked_ids("ids", [ids] if isinstance(ids, str | int | np.integer) else ids)
        places, target = self._places(names), self._desk.target
        posterior = self._fitted().posterior
        if not names:
            return {}
        some = self._some_targets(generator(self.seed, "why"))
        with _explained(self.model):
            draws = arrays.numpy(_draws(posterior, self._part("pool", places)), "draws")
            goals = arrays.numpy(_draws(posterior, self._part("target", some)), "draws")
        found = {}
        for name, point_draws in zip(names, draws, strict=True):
            worth = gains(point_draws.astype(np.float64), goals)
            best = np.argsort(-worth, kind="stable")[: size + 1].tolist()
            told = [(target.ids[int(some[i])], float(worth[i])) for i in best]
            found[name] = [each for each in told if each[0] != name][:size]
        return found

    def card(self) -> Card:
        """Accuracy on the target with its 95 % interval, from labels held out alone.

        Labels of picked points never count for it: these are hard cases, and were trained on.
        """
        with self._desk.lock:
            state = self._desk.state
            truth = {name: label for name, label in state.labels.items() if name in state.held}
            trained = len(state.labels) - len(truth)
        if not truth:
            return Card(math.nan, 0.0, 1.0, 0, trained)
        places = np.array([self._desk.target.places[name] for name in truth])
        fitted = self._fitted()
        probs = self._point_of(fitted, self._part("target", places))
        found = [fitted.classes[best] for best in probs.argmax(1)]
        right = sum(a == b for a, b in zip(found, truth.values(), strict=True))
        interval = binomtest(right, len(truth)).proportion_ci(method="wilson")
        low, high = float(interval.low), float(interval.high)
        return Card(right / len(truth), low, high, len(truth), trained)

    def events(self, since: int = 0) -> list[Event]:
        """All that happened, from event number ``since`` on.

        Plain values, as JSON has them, but for labels, which are your own.
        """
        with self._desk.lock:
            return self._desk.events[since:]

    def follow(self, events: Sequence[Event]) -> None:
        """Repeat what happened to another learner of the same pool: its `events`, in order.

        A learner that follows keeps no file of its own.
        """
        if self._desk.record is not None:
            raise InputError("a learner with a path cannot follow another: leave path out")
        self._desk.follow(events)

    def history(self) -> list[Told]:
        """Every answer that was ever told, in order: id, answer, who, at, and whether undone."""
        return record.history(self.events())

    @property
    def classes_(self) -> list[Label]:
        """The classes, in the order of the columns of `predict_proba`."""
        return self._desk.now().classes

    @property
    def told(self) -> dict[Id, Label]:
        """Every label that counts, by id; those held out are among them."""
        with self._desk.lock:
            return dict(self._desk.state.labels)

    @property
    def out(self) -> list[Id]:
        """Ids that are out for labelling."""
        with self._desk.lock:
            return list(self._desk.state.out)

    def save(self, path: Path | str) -> None:
        """Write all that was asked and told to a file, for `load`; the pool is not in it."""
        own = self._desk.record
        if own is None or Path(path).absolute() != own.path.absolute():
            record.write(Path(path), self._desk.header(), self.events(), self._desk.known)

    @classmethod
    def load(cls, path: Path | str, model: Any, pool: Any = None, **options: Any) -> "Learner":
        """Go on from a file that `save` or ``path`` wrote, and go on writing it.

        Args:
            path: of the file.
            model: as it was.
            pool: as it was. What was read from files may be left out: it is read again.
            options: other arguments of `Learner`: ``target``, ``ids``, ``costs``, ``strategy`` as
                they were. The file knows seed, holdout and classes: pass only classes that no
                file can hold.
        """
        header, _ = record.read(Path(path))
        for name, given in (("pool", pool), ("target", options.pop("target", None))):
            origin = header[name]
            if given is None and isinstance(origin, dict):
                given = sources.read(**origin)
            elif given is None and (origin or name == "pool"):
                raise InputError(f"{name} is not kept in {path}: pass it as it was")
            options[name] = given
        kept = {name: header[name] for name in ("seed", "classes", "holdout")}
        if kept["classes"] is not None and "classes" not in options:
            kept["classes"] = seen(path, kept["classes"])
        return cls(model, path=path, **(kept | options))

    def close(self) -> None:
        """Let another process take up the file at ``path``."""
        if self._desk.record is not None:
            self._desk.record.close()

    def __enter__(self) -> "Learner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments, but for ``path``: as scikit-learn's estimators have it."""
        names = Learner.__init__.__annotations__.keys() - {"return", "path"}
        return {name: getattr(self, name) for name in sorted(names)}

    def __sklearn_clone__(self) -> "Learner":
        from sklearn.base import clone

        model = self.model
        if hasattr(model, "get_params"):
            model = clone(model)
        return Learner(**(self.get_params() | {"model": model}))

    def __repr__(self) -> str:
        state = self._desk.state
        return (
            f"Learner({type(self.model).__name__}, pool of {len(self._desk.pool)}: "
            f"{len(state.labels)} labels, {len(state.out)} out)"
        )

    def _fitted_to(self, now: Now) -> Fitted:
        """The model of what was told then; None where labels are of fewer than two classes."""
        numbers, names = _numbers(now.labels, now.classes), now.classes
        if not all(type(name) in PLAIN for name in names):
            names = list(range(len(names)))
        key = json.dumps([now.places, [names[number] for number in numbers], names])
        with self._turn, _explained(self.model):
            posterior = self._last.posterior if key == self._last.key else None
            if key != self._last.key and len(set(now.labels)) > 1:
                rows = arrays.rows("labelled", self._part("pool", np.array(now.places))[:])
                rng = generator(self.seed, zlib.crc32(key.encode()), "fit")
                posterior = self._fit(rows, numbers, rng, len(now.classes))
            self._last = Fitted(key, posterior, now.classes)
            return self._last

    def _fitted(self) -> Fitted:
        fitted = self._fitted_to(self._desk.now())
        if fitted.posterior is None:
            raise InputError(
                "there is no model yet, as labels of two classes are needed: tell some first"
            )
        return fitted

    def _inputs(self, which: str) -> Any:
        """What the model reads of the pool or the target."""
        if not self._desk.own:
            which = "pool"
        rows = getattr(self._desk, which).rows
        if self._frozen is None:
            return rows
        with self._turn:
            if which not in self._features:
                folder = self._frozen.cache
                if folder is None and self.path is not None:
                    folder = Path(f"{self.path}.features")
                place = None if folder is None else Path(folder)
                self._features[which] = Features(self._frozen, rows, place, which)
            return self._features[which]

    def _part(self, which: str, places: NDArray[np.int64]) -> Any:
        """Some rows, which are read when they are needed."""
        inputs = self._inputs(which)
        if isinstance(inputs, arrays.Rows):
            return arrays.Rows(inputs.data, inputs.index[places])
        return arrays.Rows(inputs, places)

    def _point(self, fitted: Fitted, inputs: Inputs) -> NDArray[Any]:
        return self._point_of(
            fitted,
            opened("inputs", like("inputs", inputs, self.pool))[0],
            self._frozen.features if self._frozen else None,
        )

    def _point_of(
        self, fitted: Fitted, rows: Any, before: Callable[[Any], Any] | None = None
    ) -> NDArray[Any]:
        """Probabilities of rows [n c], or of what ``before`` makes of them."""
        posterior: Any = fitted.posterior
        rows = arrays.rows("inputs", rows)
        parts = (before(part) if before else part for part in _parts(rows))
        with _explained(self.model):
            probs = np.concatenate([arrays.numpy(posterior.point(part)) for part in parts])
        if len(probs) != len(rows):  # a vectoriser of texts counts the columns of a frame
            raise InputError(
                f"model gives {len(probs)} rows of probabilities for {len(rows)} inputs: pass "
                "texts as a list or one column of a frame"
            )
        if probs.ndim != 2 or probs.shape[1] != len(fitted.classes):
            raise InputError(
                f"model gives {list(probs.shape)} probabilities, and there are "
                f"{len(fitted.classes)} classes: pass all of them as classes, or let the function "
                "that builds the network take classes"
            )
        return probs

    def _places(self, names: Sequence[Id]) -> NDArray[np.int64]:
        """Positions in the pool."""
        places = self._desk.pool.places
        if unknown := [name for name in names if name not in places]:
            raise InputError(f"ids: there is no {unknown[0]!r} in the pool: use the ids of a batch")
        return np.array([places[name] for name in names], np.int64)

    def _some_targets(self, rng: np.random.Generator) -> NDArray[np.int64]:
        return subset(np.arange(len(self._desk.target)), self.targets, rng)

    def _pick(
        self, now: Now, free: NDArray[np.int64], size: int
    ) -> tuple[NDArray[np.int64], list[float | None], float | None]:
        """Positions in the pool, the score of each, the promise of all."""
        size = min(size, len(free))
        if size < 1:
            return np.empty(0, np.int64), [], None
        rng = generator(self.seed, now.batches, "ask")
        enough = None if self.candidates is None else max(self.candidates, 2 * size)
        some = subset(free, enough, rng)
        pool, val = self._part("pool", some), self._part("target", self._some_targets(rng))
        fitted = self._fitted_to(now)
        posterior = fitted.posterior
        if posterior is None:
            return some[self._cold(pool, val, size, rng)], [None] * size, None
        self._point_of(fitted, pool[:1])
        labelled = self._part("pool", np.array(now.places))
        view = View(posterior, labelled, _numbers(now.labels, now.classes), pool, val)
        picks = self._choose(view, some, size, rng)
        if len(distinct(pool[picks])) < size <= len(kinds := distinct(pool)):
            # Equal rows have one label, whatever a noisy model believes of the second.
            one_each = replace(view, pool=self._part("pool", some[kinds]))
            picks = kinds[self._choose(one_each, some[kinds], size, rng)]
        draws, goals = _draws(posterior, pool[picks]), _draws(posterior, val)
        worth = arrays.numpy(scores.mebl(draws, goals)).tolist()
        return some[picks], worth, scores.promise(draws, goals)

    def _cold(self, pool: Any, val: Any, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Spread over what a network that came as it is makes of them, or over raw features."""
        if isinstance(self.model, nn.Module):
            with suppress(InputError):  # it has no embedding, or reads other rows
                embed = point(self.model).embed
                pool, val = arrays.numpy(embed(pool)), arrays.numpy(embed(val))
        return cold.spread(pool, val, size, rng)

    def _choose(
        self, view: View, some: NDArray[np.int64], size: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Positions in the view's pool, which are ``some`` of the whole."""
        strategy = self.strategy or Default()
        if self._prices is not None:
            strategy = Priced(self._prices[some])
        return checks.picks(type(strategy).__name__, strategy(view, size, rng), size, len(some))


@contextmanager
def _explained(model: Any) -> Iterator[None]:
    """Say whose refusal it is, where a model refuses rows: scikit-learn's do so by a ValueError."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, InputError) or not hasattr(model, "fit"):
            raise
        reason = str(error).splitlines()[0].rstrip(".:")
        raise InputError(
            f"model {type(model).__name__} cannot read the rows ({reason}): mend them, or pass a "
            "pipeline that does, such as make_pipeline(SimpleImputer(), model)"
        ) from error


def _parts(rows: Any) -> Iterator[Any]:
    """All rows, some at a time, each part of the kind that the rows are of."""
    rows = arrays.rows("inputs", rows)
    for start in range(0, len(rows), _PART):
        yield rows[start : start + _PART]


def _draws(posterior: Any, rows: Any) -> Any:
    """Probabilities of every draw [n t c] for rows that are read some at a time."""
    found: list[Any] = [posterior.predict(part) for part in _parts(rows)]
    return torch.cat(found) if isinstance(found[0], Tensor) else np.concatenate(found)


def _numbers(labels: Sequence[Label], classes: Sequence[Label]) -> NDArray[np.int64]:
    """The position of each label among the classes."""
    number = {label: i for i, label in enumerate(classes)}
    return np.array([number[label] for label in labels], np.int64)


def _array(classes: Sequence[Label]) -> NDArray[Any]:
    """Classes [c] as numpy has them, or as they are where it would make others of them."""
    if len({type(label) for label in classes}) == 1 and type(classes[0]) in PLAIN:
        found = np.array(classes)
        same = zip(found.tolist(), classes, strict=True)
        if all(mine == own and type(mine) is type(own) for mine, own in same):
            return found
    return np.fromiter(classes, object, len(classes))
