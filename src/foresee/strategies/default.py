"""What a person gets who chooses nothing: a strategy for every batch, by what there is to see.

It was chosen on digits alone (docs/methods.md has the tables), and is the same for all data.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays
from foresee.errors import InputError
from foresee.scores import entropy
from foresee.strategies.candidates import check_request, check_target
from foresee.strategies.greedy import GreedyConditioning
from foresee.strategies.herding import MaxHerding, herd
from foresee.strategies.topk import TopK
from foresee.types import Strategy, View, more_draws

# Points that a batch is chosen from, at least, and targets that it sees.
CANDIDATES, TARGETS = 4000, 1000

_WITH_DRAWS = GreedyConditioning(targets=TARGETS, aleatoric=False)
_WITH_EMBEDDINGS = MaxHerding(targets=TARGETS, cover="target")
_WITH_POINTS = TopK(entropy, point=True)


def default_strategy(view: View, size: int) -> Strategy:
    """Choose how to choose a batch.

    Args:
        view: what there is to see; without ``val`` the pool itself is the target, without
            ``posterior`` there is no label yet.
        size: of the batch, from one point to thousands.

    Returns:
        With 20 draws or more, or a posterior that can make them, `GreedyConditioning`, which makes
        draws and noise follow the batch, among 4000 points of the pool or ten for each pick, and
        1000 targets. With fewer draws or none, and embeddings, `MaxHerding`, which covers the
        target. With few draws alone, `GreedyConditioning` still; with the model's own predictions
        alone, the highest entropies. Without any label `ColdStart`, which covers the target by raw
        features.

    >>> from foresee.testing import random_view
    >>> default_strategy(random_view(np.random.default_rng(0), n=40, t=50), 3)
    GreedyConditioning(candidates=None, targets=1000, classes=16, noise=None, draws=None, \
aleatoric=False)
    >>> default_strategy(random_view(np.random.default_rng(0), n=40, t=5), 3)
    MaxHerding(candidates=None, targets=1000, cover='target', bandwidth=1.0)
    """
    return Default().choice(view, size)


def _shape(posterior: Any, method: str, view: View) -> tuple[int, ...]:
    """The shape of what a posterior answers for one point; zeros where it does not."""
    try:
        return tuple(getattr(posterior, method)(view.pool[:1]).shape)
    except (AttributeError, InputError, NotImplementedError):
        return 0, 0


@dataclass(frozen=True)
class ColdStart:
    """Cover the target by raw features, as no label tells anything yet; see `herd`.

    Needs inputs that are numbers of one shape; the `Learner` reads others too.

    >>> x = np.repeat(np.eye(3), 4, axis=0)
    >>> view = View(None, None, np.empty(0), pool=x, val=x)
    >>> sorted(x[ColdStart()(view, 3, np.random.default_rng(0))].argmax(1).tolist())
    [0, 1, 2]
    """

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        check_request(view, size, rng)
        check_target(view)
        order = rng.permutation(len(view.pool))[: max(CANDIDATES, size)]
        some = rng.permutation(len(view.val))[:TARGETS]
        points, goals = (
            _raw(name, x) for name, x in (("pool", view.pool[order]), ("val", view.val[some]))
        )
        return order[herd(points, goals, size, rng)]


def _raw(name: str, inputs: Any) -> Any:
    return arrays.tensor(inputs, name).flatten(1).float()


@dataclass(frozen=True)
class Default:
    """The strategy that `default_strategy` chooses for each batch, by these values.

    `foresee run` keeps them with its rounds, so that those of another default never mix with them.

    Args:
        few_draws: below so many, draws tell less about a batch than embeddings do.
        candidates: points of the pool that a batch is chosen from, at least,
        candidates_each: and for each of its points.
        with_draws: what is taken where there are draws enough, or no embeddings,
        with_embeddings: where draws are few,
        with_points: and where there are the model's own predictions alone.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40, t=50)
    >>> Default()(view, 3, np.random.default_rng(0))
    array([38, 18, 17])
    """

    few_draws: int = 20
    candidates: int = CANDIDATES
    candidates_each: int = 10
    with_draws: GreedyConditioning = _WITH_DRAWS
    with_embeddings: MaxHerding = _WITH_EMBEDDINGS
    with_points: TopK = _WITH_POINTS

    def __post_init__(self) -> None:
        for name in ("few_draws", "candidates", "candidates_each"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {value!r}")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        check_request(view, size, rng)
        if view.val is None:
            view = replace(view, val=view.pool)
        return self.choice(view, size)(view, size, rng)

    def choice(self, view: View, size: int) -> Strategy:
        """Choose how to choose a batch; see `default_strategy`."""
        posterior: Any = view.posterior
        if posterior is None:
            return ColdStart()
        draws = _shape(more_draws(posterior, self.few_draws), "predict", view)[1]
        enough = max(self.candidates, self.candidates_each * size)
        candidates = enough if enough < len(view.pool) else None
        if draws < self.few_draws and _shape(posterior, "embed", view)[1]:
            return replace(self.with_embeddings, candidates=candidates)
        return replace(self.with_draws, candidates=candidates) if draws else self.with_points
