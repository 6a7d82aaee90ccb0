"""What a person gets who chooses nothing, for every case that they bring."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import cold_start
from foresee import (
    Default,
    GreedyConditioning,
    InputError,
    MaxHerding,
    Random,
    TopK,
    default_strategy,
    entropy,
)
from foresee.strategies.default import ColdStart
from foresee.testing import check_strategy, random_view
from foresee.types import View


def view_of(n=60, t=30):
    return random_view(np.random.default_rng(0), n=n, t=t)


@dataclass
class Only:
    """A posterior with some of its methods."""

    whole: Any
    methods: tuple[str, ...]

    def __getattr__(self, name):
        if name in self.methods:
            return getattr(self.whole, name)
        raise AttributeError(name)


GREEDY = GreedyConditioning(None, 1000, aleatoric=False)


def only(view, *methods):
    return replace(view, posterior=Only(view.posterior, methods))


def test_many_draws_are_conditioned_on():
    assert default_strategy(view_of(), 5) == GREEDY
    assert default_strategy(only(view_of(t=20), "predict", "point"), 5) == GREEDY


@pytest.mark.parametrize(("size", "candidates"), [(1, 4000), (400, 4000), (2500, 25_000)])
def test_candidates_follow_the_batch(size, candidates):
    view = replace(view_of(), pool=np.zeros((30_000, 5)))
    assert default_strategy(view, size) == replace(GREEDY, candidates=candidates)


def test_few_draws_leave_it_to_embeddings_where_there_are_some():
    few = view_of(t=19)
    assert default_strategy(few, 5) == MaxHerding(None, 1000, "target")
    assert default_strategy(only(few, "point", "embed"), 5) == MaxHerding(None, 1000, "target")
    assert default_strategy(only(few, "predict", "point"), 5) == GREEDY
    assert default_strategy(only(few, "point"), 5) == TopK(entropy, point=True)


def test_few_draws_that_can_grow_are_many():
    @dataclass
    class Growing(Only):
        def at_least(self, draws):
            assert draws == 20
            return view_of(t=draws).posterior

    few = view_of(t=2)
    grows = replace(few, posterior=Growing(few.posterior, ("predict", "point", "embed")))
    assert isinstance(default_strategy(grows, 5), GreedyConditioning)


def test_without_a_target_the_pool_is_the_target():
    view, rng = view_of(), np.random.default_rng
    with_pool = replace(view, val=view.pool[:])
    expected = GREEDY(with_pool, 6, rng(1)).tolist()
    assert Default()(replace(view, val=None), 6, rng(1)).tolist() == expected
    assert Default()(view, 6, rng(1)).tolist() != expected


def test_it_is_a_strategy():
    check_strategy(Default())
    with pytest.raises(InputError, match="few_draws must be a whole number, at least 1, got 0"):
        Default(few_draws=0)
    with pytest.raises(InputError, match="size must be"):
        Default()(view_of(), 0, np.random.default_rng(0))


def test_without_a_label_the_target_is_covered():
    rng = np.random.default_rng(0)
    near, far = rng.normal(0, 1, (30, 2, 3)), rng.normal(50, 1, (30, 2, 3))
    view = View(None, None, np.empty(0), pool=np.concatenate([far, near]), val=near)
    assert default_strategy(view, 5) == ColdStart()
    assert (Default()(view, 5, rng) >= 30).all()
    with pytest.raises(InputError, match=r"view.val is None"):
        ColdStart()(replace(view, val=None), 5, rng)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_first_batch_of_digits_teaches_more_than_chance(narrow):
    ours, chance = (
        np.mean([cold_start.trial(narrow, strategy, 20, seed)[0] for seed in range(3)])
        for strategy in (ColdStart(), Random())
    )
    assert ours > chance + (0.4 if narrow else 0.08)
