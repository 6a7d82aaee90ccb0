"""What a person gets who chooses nothing: a strategy for every batch, by what there is to see.

It was chosen on digits alone (docs/methods.md has the tables), and is the same for all data.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee import arrays, checks
from foresee.errors import InputError
from foresee.scores import entropy
from foresee.strategies.candidates import check_request, check_target
from foresee.strategies.greedy import GreedyConditioning
from foresee.strategies.herding import UncertaintyHerding, herd, nearest_hundredth
from foresee.strategies.topk import TopK
from foresee.types import Strategy, View

_WITH_EMBEDDINGS = UncertaintyHerding(candidates=50_000, targets=5000, cover="both")
_WITH_DRAWS = GreedyConditioning(candidates=4000, targets=1000, aleatoric=False)
_WITH_POINTS = TopK(entropy, point=True)
_COLD_POINTS, _COLD_TARGETS = 4000, 1000  # that a first batch sees, no more


def default_strategy(view: View, size: int) -> Strategy:
    """Choose how to choose a batch.

    Args:
        view: what there is to see; without ``posterior`` there is no label yet. What is chosen
            needs ``val``, for which `Default` puts the pool where there is none.
        size: of the batch, from one point to thousands.

    Returns:
        With embeddings, `UncertaintyHerding`: it covers what the mean over draws doubts (the model
        itself, if there are no draws) in the target and in what of the pool is like it, 5000 points
        of each, by 50 000 points of the pool. With draws alone, `GreedyConditioning`, among 4000
        points and for 1000 targets; also if embeddings have more than 4096 features, or if the
        nearest hundredth of the pool is farther from a point than the kernel is wide, so that a
        label says little of others. With the model's own predictions alone, the highest entropies.
        Without any label `ColdStart`, which covers the target by raw features. Where candidates
        are limited, there are ten for each pick at least.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> default_strategy(view, 3)
    UncertaintyHerding(candidates=50000, targets=5000, cover='both', bandwidth=1.0, \
temperature=1.0, point=False)
    """
    return Default().choice(view, size)


def _shape(posterior: Any, method: str, view: View) -> tuple[int, ...]:
    """The shape of what a posterior answers for one point; empty where it does not."""
    try:
        answer = getattr(posterior, method)(view.pool[:1])
    except (InputError, NotImplementedError):
        return ()
    except AttributeError as error:
        if error.name not in (method, None):  # it is there, and fails
            raise
        return ()
    return arrays.numpy(answer, f"posterior.{method}(pool)").shape


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
        order = rng.permutation(len(view.pool))[: max(_COLD_POINTS, size)]
        some = rng.permutation(len(view.val))[:_COLD_TARGETS]
        points, goals = (
            arrays.tensor(inputs, name)[..., None].flatten(1).float()
            for name, inputs in (("pool", view.pool[order]), ("val", view.val[some]))
        )
        return order[herd(points, goals, size, rng)]


@dataclass(frozen=True)
class Default:
    """The strategy that `default_strategy` chooses for each batch, by these values.

    `foresee run` keeps them with its rounds, so that those of another default never mix with them.

    Args:
        with_embeddings: what is taken where there are embeddings with neighbours among them.
        with_draws: what is taken else, where there are draws.
        with_points: what is taken where there are the model's own predictions alone.
        widest: embeddings of more features than that are not used.
        candidates_each: candidates for each pick, at least.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> Default()(view, 3, np.random.default_rng(0))
    array([10, 29, 39])
    """

    with_embeddings: UncertaintyHerding = _WITH_EMBEDDINGS
    with_draws: GreedyConditioning = _WITH_DRAWS
    with_points: TopK = _WITH_POINTS
    widest: int = 4096
    candidates_each: int = 10

    def __post_init__(self) -> None:
        for name in ("widest", "candidates_each"):
            checks.whole(name, getattr(self, name))

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
        draws = _shape(posterior, "predict", view)
        chosen: UncertaintyHerding | GreedyConditioning
        if self._has_neighbours(view):
            chosen = replace(self.with_embeddings, point=self.with_embeddings.point or not draws)
        elif draws:
            chosen = self.with_draws
        else:
            return self.with_points
        if chosen.candidates is None:
            return chosen
        return replace(chosen, candidates=max(chosen.candidates, self.candidates_each * size))

    def _has_neighbours(self, view: View) -> bool:
        """Whether a label covers others: counts of words, say, are all far from each other."""
        shape = _shape(view.posterior, "embed", view)
        if not shape or not 0 < shape[-1] <= self.widest:
            return False
        bandwidth = self.with_embeddings.bandwidth
        return bandwidth is None or nearest_hundredth(view) <= bandwidth
