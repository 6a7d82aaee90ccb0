"""Ask for the labels that help most, tell them, and so on: on one's own data, by one's own ids."""

import json
import math
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from foresee import arrays, checks, scores, sources
from foresee.errors import InputError
from foresee.learner import cold, record
from foresee.learner.answers import check_classes, checked_ids, checked_labels
from foresee.learner.models import Fit, Frozen, fitting
from foresee.learner.pool import Named, subset
from foresee.learner.record import Answer, Batch, Event, Id, Label, State
from foresee.recipe import Recipe
from foresee.seeding import generator
from foresee.strategies import GreedyConditioning
from foresee.strategies.priced import Priced
from foresee.types import Inputs, Posterior, Strategy, View

# Points of the pool that a strategy chooses from, and of the target that it looks at.
CANDIDATES, TARGETS = 4000, 1000


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


class Learner:
    """Ask for labels and tell them: the model is fitted to what was told when it is next needed.

    Labels are texts, whole numbers, floats or booleans, all of one kind. The last answer to an id
    counts; ids may be told unasked, late and in part; `foresee.SKIP` takes a point out for good,
    `foresee.UNSURE` until nothing else is left. Until labels of two classes are told, batches
    are spread over the target by raw features.

    Args:
        model: a scikit-learn classifier or pipeline; a network, or a function that builds one (of
            ``classes`` and ``seed`` where it takes them), with a ``recipe``; a `Frozen` extractor
            with a head; or a function (inputs, labels, rng) -> Posterior, of labels 0 … c − 1.
        pool: what could be labelled: an array, a frame, a sparse matrix, a list of texts, a
            Dataset, what `foresee.read` returns, or the path of a file it can read.
        target: a sample of the data that the model will meet, of the same kind. Without it the
            pool is the target: then every point of the pool counts alike.
        ids: what each row of the pool is called, texts or whole numbers; by default the index of
            a frame, the paths of images, or the numbers of the rows.
        target_ids: likewise for ``target``, where labels are held out from it; by default
            "target/" and what it would be.
        seed: of everything random.
        strategy: (view, size, rng) -> positions; by default `GreedyConditioning`.
        classes: all labels there can be; by default those that were told.
        costs: the price of each label of the pool [n]: gain per price decides.
        holdout: the share of all points asked for that are drawn at random from the target, never
            trained on, and counted by `card`.
        recipe: how a network is trained.
        draws: of the posterior, where they can be chosen.
        candidates: a strategy chooses from so many points, drawn anew for each batch; None: all.
        targets: it looks at so many points of the target; None: all.
        device: where a network is trained.
        path: a file where all is kept as it happens, and taken up again if it is there.

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
        _check_options(seed, holdout, draws, candidates, targets)
        self._known = None if classes is None else check_classes(classes)
        self._frozen = model if isinstance(model, Frozen) else None
        self._fit: Fit = fitting(
            model.head if isinstance(model, Frozen) else model, recipe, draws, device
        )
        self._rows = Named.read("pool", pool, ids)
        self._goals = self._rows
        if target is not None:
            self._goals = Named.read("target", target, target_ids)
        self._prices = _prices(costs, strategy, len(self._rows))
        self._held = self._hold_out()
        self._features: dict[str, Any] = {}
        self._posterior: Posterior | None = None
        self._fitted_to: Any = None
        self._record = None if path is None else record.Record(Path(path), self._header())
        self._events: list[Event] = list(self._record.events) if self._record else []
        self._state = State()
        if self._record:
            try:
                self._take_up(self._record)
            except BaseException:
                self.close()
                raise

    def ask(self, size: int = 10) -> Batch:
        """Return points to label; the same ones again until something is told.

        Args:
            size: how many. Fewer come where fewer are left, none where all are labelled or out. Of
                another size than the last it is a batch of other points: what is out for labelling
                is not handed out again, unless `release` takes it back.

        Returns:
            Their ids, scores and promise; see `Batch`.
        """
        checks.count("size", size, 1 << 40, of="any pool")
        last = self._state.last
        if last is not None and not self._state.moved and last.size == size:
            return last
        held = self._next_held(size)
        picks, worth, promised = self._pick(size - len(held))
        ids = [self._rows.ids[i] for i in picks]
        if not ids + held:
            return Batch((), size=size)
        self._happen(
            kind="ask",
            size=int(size),
            ids=ids + held,
            scores=worth + [None] * len(held),
            promise=promised,
            held=held,
        )
        assert self._state.last is not None
        return self._state.last

    def tell(self, ids: Any, labels: Any) -> None:
        """Keep labels; when this returns they are safe, on the disk where there is a ``path``.

        Args:
            ids: of the pool, or held out from the target: a sequence, or one. They need not have
                been asked for.
            labels: one for each: a label, `foresee.SKIP` or `foresee.UNSURE`. The last answer to an
                id counts.

        Raises:
            InputError: something is wrong with one of them, and none is kept.
        """
        if isinstance(ids, str | int | np.integer):
            ids, labels = [ids], [labels]
        names = checked_ids("ids", ids)
        for name in names:
            if name not in self._rows.places and name not in self._state.held:
                raise InputError(f"ids: there is no {name!r} in the pool: use the ids of the batch")
        told = checked_labels(names, labels, self._known, self._state.labels)
        by_answer: dict[Any, list[Id]] = {answer: [] for answer in Answer}
        for name, label in told.items():
            if isinstance(label, Answer):
                by_answer[label].append(name)
        plain = {name: label for name, label in told.items() if not isinstance(label, Answer)}
        self._happen(
            kind="tell",
            ids=list(plain),
            labels=list(plain.values()),
            **{answer.value: some for answer, some in by_answer.items()},
        )

    def release(self, ids: Any = None) -> None:
        """Take back what is out for labelling, by default all: it may be handed out again.

        Labels that come for it nevertheless count as ever.
        """
        names = list(self._state.out) if ids is None else checked_ids("ids", ids)
        for name in names:
            if name not in self._state.out:
                raise InputError(f"ids: {name!r} is not out for labelling: leave it out")
        self._happen(kind="release", ids=names)

    def fit(self) -> "Learner":
        """Fit the model to the labels so far, if it is not; `ask` and `predict` do so by need."""
        places, labels = self._training_set()
        classes = self._classes(labels)
        key = json.dumps([places, labels, classes])
        if key == self._fitted_to:
            return self
        self._posterior, self._fitted_to = None, key
        if len(set(labels)) > 1:
            number = {label: i for i, label in enumerate(classes)}
            y = np.array([number[label] for label in labels], np.int64)
            x = arrays.rows("pool", self._inputs("pool"))[np.array(places)]
            rng = generator(self.seed, zlib.crc32(key.encode()), "fit")
            self._posterior = self._fit(arrays.rows("labelled", x), y, rng, len(classes))
        return self

    def predict(self, inputs: Inputs) -> Any:
        """The likeliest label of each input [n]; a series where a frame or a series came."""
        probs = self._point(inputs)
        found = np.array(self.classes_)[probs.argmax(1)]
        if hasattr(inputs, "iloc"):
            return sys.modules["pandas"].Series(found, index=inputs.index)
        return found

    def predict_proba(self, inputs: Inputs) -> Any:
        """Probabilities [n c], columns in the order of `classes_`; a frame where one came."""
        probs = self._point(inputs)
        if hasattr(inputs, "iloc"):
            frame = sys.modules["pandas"].DataFrame
            return frame(probs, index=inputs.index, columns=self.classes_)
        return probs

    def promise(self) -> float:
        """Fall of the Brier loss per target example expected from all labels that remain.

        It is estimated from as many ``candidates`` as a batch is chosen from.
        """
        posterior, free = self._fitted(), self._free()
        if not len(free):
            return 0.0
        rng = generator(self.seed, self._state.batches, "promise")
        some = subset(free, self.candidates, rng)
        draws = posterior.predict(self._part("pool", some)[:])
        goals = posterior.predict(self._part("target", self._some_targets(rng))[:])
        return scores.promise(draws, goals, times=len(free) / len(some))

    def card(self) -> Card:
        """Accuracy on the target with its 95 % interval, from labels held out alone.

        Picked labels are of the hard cases and of those trained on: they are never used for it.
        """
        state = self._state
        names = [name for name in state.labels if name in state.held]
        trained = len(state.labels) - len(names)
        if not names:
            return Card(math.nan, 0.0, 1.0, 0, trained)
        places = np.array([self._goals.places[name] for name in names])
        found = np.array(self.classes_)[self._point_of(self._part("target", places)[:]).argmax(1)]
        right = sum(a == state.labels[b] for a, b in zip(found.tolist(), names, strict=True))
        interval = binomtest(right, len(names)).proportion_ci(method="wilson")
        low, high = float(interval.low), float(interval.high)
        return Card(right / len(names), low, high, len(names), trained)

    @property
    def classes_(self) -> list[Label]:
        """The classes, in the order of the columns of `predict_proba`."""
        return self._classes(self._training_set()[1])

    @property
    def told(self) -> dict[Id, Label]:
        """Every label that counts, by id; those held out are among them."""
        return dict(self._state.labels)

    @property
    def out(self) -> list[Id]:
        """Ids that are out for labelling."""
        return list(self._state.out)

    def save(self, path: Path | str) -> None:
        """Write all that was asked and told to a file, for `load`; the pool is not in it."""
        if self._record is None or Path(path).absolute() != self._record.path.absolute():
            record.write(Path(path), self._header(), self._events)

    @classmethod
    def load(cls, path: Path | str, model: Any, pool: Any = None, **options: Any) -> "Learner":
        """Take up what `save` or ``path`` kept, and go on keeping it there.

        Args:
            path: of the file.
            model: as it was.
            pool: as it was, and ``target``, ``ids``, ``costs`` and ``strategy`` among the options
                likewise; what was read from files is read again, if they are left out.
            options: other arguments of `Learner`; seed, classes and holdout are known.
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
        return cls(model, path=path, **(kept | options))

    def close(self) -> None:
        """Let another process take up the file at ``path``."""
        if self._record is not None:
            self._record.close()

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
        state = self._state
        return (
            f"Learner({type(self.model).__name__}, pool of {len(self._rows)}: "
            f"{len(state.labels)} labels, {len(state.out)} out)"
        )

    def _happen(self, **event: Any) -> None:
        """First the disk, then the memory: what failed to be kept has not happened."""
        if self._record is not None:
            self._record.append(event)
        self._events.append(event)
        self._state.apply(event)

    def _take_up(self, found: record.Record) -> None:
        mine, theirs = self._header(), found.header
        for key in ("seed", "holdout", "classes", "rows", "look"):
            if mine[key] != theirs.get(key):
                raise InputError(
                    f"{found.path} was begun with {key} = {theirs.get(key)!r}, and this learner "
                    f"has {mine[key]!r}: pass the same again, or choose another path"
                )
        state = record.folded(found.path, found.events)
        for name in (*state.labels, *state.aside, *state.out):
            if name not in self._rows.places and name not in state.held:
                raise InputError(
                    f"{found.path} knows {name!r}, which is not in the pool: pass the pool and the "
                    "ids it was begun with"
                )
        self._state = state

    def _header(self) -> dict[str, Any]:
        numbered = isinstance(self._rows.ids, range)
        return {
            "seed": int(self.seed),
            "holdout": float(self.holdout),
            "classes": self._known,
            # Rows that have no other name than their number must stay where they are.
            "rows": len(self._rows) if numbered else None,
            "look": self._rows.look() if numbered else None,
            "pool": self._rows.origin,
            "target": self._goals.origin or True if self.target is not None else None,
        }

    def _training_set(self) -> tuple[list[int], list[Label]]:
        """Positions in the pool, ascending, and their labels."""
        state = self._state
        found = [
            (self._rows.places[name], label)
            for name, label in state.labels.items()
            if name not in state.held
        ]
        found.sort(key=lambda pair: pair[0])
        return [place for place, _ in found], [label for _, label in found]

    def _classes(self, labels: Iterable[Label]) -> list[Label]:
        return self._known if self._known is not None else sorted(set(labels))

    def _fitted(self) -> Posterior:
        self.fit()
        if self._posterior is None:
            raise InputError(
                "there is no model yet, as labels of two classes are needed: tell some first"
            )
        return self._posterior

    def _inputs(self, which: str) -> Any:
        """What the model reads of the pool or the target."""
        rows = self._rows if which == "pool" or self.target is None else self._goals
        if self._frozen is None:
            return rows.rows
        key = "pool" if rows is self._rows else "target"
        if key not in self._features:
            self._features[key] = self._frozen.features(rows.rows)
        return self._features[key]

    def _part(self, which: str, places: NDArray[np.int64]) -> Any:
        """Some rows, which are read when they are needed."""
        inputs = self._inputs(which)
        if isinstance(inputs, arrays.Rows):
            return arrays.Rows(inputs.data, inputs.index[places])
        return arrays.Rows(inputs, places)

    def _point(self, inputs: Inputs) -> NDArray[Any]:
        self._fitted()
        rows = Named.read("inputs", inputs, None).rows
        return self._point_of(self._frozen.features(rows) if self._frozen else rows)

    def _point_of(self, rows: Any) -> NDArray[Any]:
        probs = arrays.numpy(self._fitted().point(rows))
        if probs.ndim != 2 or probs.shape[1] != len(self.classes_):
            raise InputError(
                f"model gives {list(probs.shape)} probabilities, and there are "
                f"{len(self.classes_)} classes: pass all of them as classes, or let the function "
                "that builds the network take classes"
            )
        return probs

    def _hold_out(self) -> list[int]:
        """Positions in the target, in the order they are held out in; where the pool is the target
        these are set apart before any is picked, or they would be a sample of what is left."""
        n = len(self._goals)
        order = generator(self.seed, "holdout").permutation(n)
        if self.target is None:
            order = order[: math.ceil(self.holdout * n)]
        return order.tolist() if self.holdout else []

    def _next_held(self, size: int) -> list[Id]:
        """So many that their share of all points asked for is kept, whatever the sizes."""
        state = self._state
        due = math.floor(self.holdout * (state.asked + size)) - len(state.held)
        names = (self._goals.ids[place] for place in self._held)
        known = (state.held, state.labels, state.aside, state.out)
        fresh = (name for name in names if not any(name in some for some in known))
        return [name for name, _ in zip(fresh, range(max(0, due)), strict=False)]

    def _free(self) -> NDArray[np.int64]:
        """Positions in the pool that may be handed out; those unsure where nothing else is left."""
        state, places = self._state, self._rows.places
        free = np.ones(len(self._rows), bool)
        if self.target is None:
            free[self._held] = False
        for name in (*state.labels, *state.aside, *state.out):
            if name in places:
                free[places[name]] = False
        if not free.any():
            unsure = [name for name, answer in state.aside.items() if answer is Answer.UNSURE]
            free[[places[name] for name in unsure if name in places]] = True
        return np.flatnonzero(free)

    def _some_targets(self, rng: np.random.Generator) -> NDArray[np.int64]:
        return subset(np.arange(len(self._goals)), self.targets, rng)

    def _pick(self, size: int) -> tuple[NDArray[np.int64], list[float | None], float | None]:
        """Positions in the pool, the score of each, the promise of all."""
        free = self._free()
        size = min(size, len(free))
        if size < 1:
            return np.empty(0, np.int64), [], None
        rng = generator(self.seed, self._state.batches, "ask")
        fewest = None if self.candidates is None else max(self.candidates, 2 * size)
        some = subset(free, fewest, rng)
        pool, val = self._part("pool", some), self._part("target", self._some_targets(rng))
        self.fit()
        if self._posterior is None:
            return some[cold.spread(pool, val, size, rng)], [None] * size, None
        places, labels = self._training_set()
        self._point_of(pool[:1])
        number = {label: i for i, label in enumerate(self._classes(labels))}
        y = np.array([number[label] for label in labels])
        view = View(self._posterior, self._part("pool", np.array(places)), y, pool, val)
        strategy = self._choice(some)
        picks = checks.picks(type(strategy).__name__, strategy(view, size, rng), size, len(some))
        draws: Any = self._posterior.predict(pool[picks])
        goals: Any = self._posterior.predict(val[:])
        worth = arrays.numpy(scores.mebl(draws, goals)).tolist()
        return some[picks], worth, scores.promise(draws, goals)

    def _choice(self, some: NDArray[np.int64]) -> Strategy:
        if self._prices is not None:
            return Priced(self._prices[some])
        return self.strategy or GreedyConditioning()


def _prices(costs: Any, strategy: Any, n: int) -> NDArray[np.float64] | None:
    if costs is None:
        return None
    if strategy is not None:
        raise InputError(
            "costs are for the strategy by default, and strategy is given: leave one out, or let "
            "the strategy know the prices"
        )
    prices = np.asarray(arrays.numpy(costs, "costs"), np.float64)
    if prices.shape != (n,) or not (np.isfinite(prices).all() and (prices > 0).all()):
        raise InputError(f"costs must be positive, one for each of the {n} rows of the pool")
    return prices


def _check_options(seed: Any, holdout: Any, draws: Any, candidates: Any, targets: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number, at least 0, got {seed!r}")
    if isinstance(holdout, bool) or not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise InputError(f"holdout must be a share, 0 ≤ holdout < 1, got {holdout!r}: 0.1 is usual")
    checks.n_draws(draws)
    for name, size in (("candidates", candidates), ("targets", targets)):
        if size is not None:
            checks.count(name, size, 1 << 40, of="any set")
