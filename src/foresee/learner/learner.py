"""Ask for the labels that help most, tell them, and so on: on one's own data, by one's own ids."""

import json
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from foresee import arrays, checks, scores, sources
from foresee.errors import InputError
from foresee.learner import cold, record
from foresee.learner.answers import check_classes
from foresee.learner.desk import Desk
from foresee.learner.models import Fit, Frozen, fitting
from foresee.learner.pool import Named, distinct, subset
from foresee.learner.record import Batch, Id, Label
from foresee.posteriors import point
from foresee.recipe import Recipe
from foresee.seeding import generator
from foresee.strategies import GreedyConditioning
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
        self._frozen = model if isinstance(model, Frozen) else None
        self._fit: Fit = fitting(
            model.head if isinstance(model, Frozen) else model, recipe, draws, device
        )
        self._features: dict[str, Any] = {}
        self._posterior: Posterior | None = None
        self._fitted_to: Any = None
        rows = Named.read("pool", pool, ids)
        self._prices = _prices(costs, strategy, len(rows))
        self._desk = Desk(
            rows,
            None if target is None else Named.read("target", target, target_ids),
            None if classes is None else check_classes(classes),
            seed,
            holdout,
            None if path is None else Path(path),
        )

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
        state = self._desk.state
        if state.last is not None and not state.moved and state.last.size == size:
            return state.last
        held = self._desk.next_held(size)
        picks, worth, promised = self._pick(size - len(held))
        ids = [self._desk.pool.ids[i] for i in picks]
        if ids or held:
            self._desk.happen(
                kind="ask",
                size=int(size),
                ids=ids + held,
                scores=worth + [None] * len(held),
                promise=promised,
                held=held,
            )
        return state.last if state.last and (ids or held) else Batch((), size=size)

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
        self._desk.tell(ids, labels)

    def release(self, ids: Any = None) -> None:
        """Take back what is out for labelling, by default all: it may be handed out again.

        Labels that come for it nevertheless count as ever.
        """
        self._desk.release(ids)

    def fit(self) -> "Learner":
        """Fit the model to the labels so far, if it is not; `ask` and `predict` do so by need."""
        places, labels = self._desk.training_set()
        key = json.dumps([places, labels, self.classes_])
        if key != self._fitted_to:
            self._posterior = None
            if len(set(labels)) > 1:
                rows = arrays.rows("labelled", self._part("pool", np.array(places))[:])
                rng = generator(self.seed, zlib.crc32(key.encode()), "fit")
                self._posterior = self._fit(rows, self._numbers(labels), rng, len(self.classes_))
            self._fitted_to = key
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
        posterior, free = self._fitted(), self._desk.free()
        if not len(free):
            return 0.0
        rng = generator(self.seed, self._desk.state.batches, "promise")
        some = subset(free, self.candidates, rng)
        draws = _draws(posterior, self._part("pool", some))
        goals = _draws(posterior, self._part("target", self._some_targets(rng)))
        return scores.promise(draws, goals, times=len(free) / len(some))

    def card(self) -> Card:
        """Accuracy on the target with its 95 % interval, from labels held out alone.

        Picked labels are of the hard cases and of those trained on: they are never used for it.
        """
        state = self._desk.state
        names = [name for name in state.labels if name in state.held]
        trained = len(state.labels) - len(names)
        if not names:
            return Card(math.nan, 0.0, 1.0, 0, trained)
        places = np.array([self._desk.target.places[name] for name in names])
        found = np.array(self.classes_)[self._point_of(self._part("target", places)).argmax(1)]
        right = sum(a == state.labels[b] for a, b in zip(found.tolist(), names, strict=True))
        interval = binomtest(right, len(names)).proportion_ci(method="wilson")
        low, high = float(interval.low), float(interval.high)
        return Card(right / len(names), low, high, len(names), trained)

    @property
    def classes_(self) -> list[Label]:
        """The classes, in the order of the columns of `predict_proba`."""
        return self._desk.classes()

    @property
    def told(self) -> dict[Id, Label]:
        """Every label that counts, by id; those held out are among them."""
        return dict(self._desk.state.labels)

    @property
    def out(self) -> list[Id]:
        """Ids that are out for labelling."""
        return list(self._desk.state.out)

    def save(self, path: Path | str) -> None:
        """Write all that was asked and told to a file, for `load`; the pool is not in it."""
        own = self._desk.record
        if own is None or Path(path).absolute() != own.path.absolute():
            record.write(Path(path), self._desk.header(), self._desk.events)

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

    def _fitted(self) -> Posterior:
        self.fit()
        if self._posterior is None:
            raise InputError(
                "there is no model yet, as labels of two classes are needed: tell some first"
            )
        return self._posterior

    def _inputs(self, which: str) -> Any:
        """What the model reads of the pool or the target."""
        if not self._desk.own:
            which = "pool"
        rows = getattr(self._desk, which).rows
        if self._frozen is None:
            return rows
        if which not in self._features:
            self._features[which] = self._frozen.features(rows)
        return self._features[which]

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
        point = self._fitted().point
        probs = np.concatenate([arrays.numpy(point(part)) for part in _parts(rows)])
        if probs.ndim != 2 or probs.shape[1] != len(self.classes_):
            raise InputError(
                f"model gives {list(probs.shape)} probabilities, and there are "
                f"{len(self.classes_)} classes: pass all of them as classes, or let the function "
                "that builds the network take classes"
            )
        return probs

    def _some_targets(self, rng: np.random.Generator) -> NDArray[np.int64]:
        return subset(np.arange(len(self._desk.target)), self.targets, rng)

    def _numbers(self, labels: Sequence[Label]) -> NDArray[np.int64]:
        number = {label: i for i, label in enumerate(self.classes_)}
        return np.array([number[label] for label in labels], np.int64)

    def _pick(self, size: int) -> tuple[NDArray[np.int64], list[float | None], float | None]:
        """Positions in the pool, the score of each, the promise of all."""
        free = self._desk.free()
        size = min(size, len(free))
        if size < 1:
            return np.empty(0, np.int64), [], None
        rng = generator(self.seed, self._desk.state.batches, "ask")
        enough = None if self.candidates is None else max(self.candidates, 2 * size)
        some = subset(free, enough, rng)
        pool, val = self._part("pool", some), self._part("target", self._some_targets(rng))
        self.fit()
        if self._posterior is None:
            return some[self._cold(pool, val, size, rng)], [None] * size, None
        self._point_of(pool[:1])
        places, labels = self._desk.training_set()
        labelled = self._part("pool", np.array(places))
        view = View(self._posterior, labelled, self._numbers(labels), pool, val)
        picks = self._choose(view, some, size, rng)
        if len(distinct(pool[picks])) < size <= len(kinds := distinct(pool)):
            # Equal rows have one label, whatever a noisy model believes of the second.
            one_each = replace(view, pool=self._part("pool", some[kinds]))
            picks = kinds[self._choose(one_each, some[kinds], size, rng)]
        draws, goals = _draws(self._posterior, pool[picks]), _draws(self._posterior, val)
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
        strategy = self.strategy or GreedyConditioning()
        if self._prices is not None:
            strategy = Priced(self._prices[some])
        return checks.picks(type(strategy).__name__, strategy(view, size, rng), size, len(some))


def _parts(rows: Any) -> Iterator[Any]:
    """All rows, some at a time, each part of the kind that the rows are of."""
    rows = arrays.rows("inputs", rows)
    for start in range(0, len(rows), _PART):
        yield rows[start : start + _PART]


def _draws(posterior: Posterior, rows: Any) -> Any:
    """Probabilities of every draw [n t c] for rows that are read some at a time."""
    found: list[Any] = [posterior.predict(part) for part in _parts(rows)]
    return torch.cat(found) if isinstance(found[0], Tensor) else np.concatenate(found)


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
