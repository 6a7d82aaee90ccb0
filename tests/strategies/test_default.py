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
    Random,
    TopK,
    UncertaintyHerding,
    default_strategy,
    entropy,
)
from foresee.strategies.default import ColdStart
from foresee.strategies.herding import nearest_hundredth
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


HERDING = UncertaintyHerding(50_000, 5000, "both")
GREEDY = GreedyConditioning(4000, 1000, aleatoric=False)


def only(view, *methods):
    return replace(view, posterior=Only(view.posterior, methods))


@pytest.mark.parametrize("t", [2, 30])
def test_what_it_takes_follows_from_what_there_is(t):
    view = view_of(t=t)
    assert default_strategy(view, 5) == HERDING
    assert default_strategy(only(view, "point", "embed"), 5) == replace(HERDING, point=True)
    assert default_strategy(only(view, "predict", "point"), 5) == GREEDY
    assert default_strategy(only(view, "point"), 5) == TopK(entropy, point=True)


@dataclass
class Listing(Only):
    """A posterior that answers by nested lists."""

    def __getattr__(self, name):
        return lambda x: super(Listing, self).__getattr__(name)(x).tolist()


def test_answers_may_be_lists():
    view = view_of()
    listing = replace(view, posterior=Listing(view.posterior, ("predict", "point", "embed")))
    assert default_strategy(listing, 5) == HERDING
    picks = [Default()(v, 5, np.random.default_rng(0)).tolist() for v in (view, listing)]
    assert picks[0] == picks[1]


@dataclass
class Failing(Only):
    """A posterior with a method that is there and fails."""

    def embed(self, inputs):
        return self.whole.no_such_layer


def test_answers_that_fail_are_no_answers_that_are_missing():
    view = view_of()
    with pytest.raises(AttributeError, match="no_such_layer"):
        default_strategy(replace(view, posterior=Failing(view.posterior, ("predict",))), 5)
    for method in ("predict", "embed"):
        broken = Only(view.posterior, ("predict", "embed", "point"))
        setattr(broken, method, lambda x: np.zeros(len(x)))
        with pytest.raises(InputError, match=rf"posterior\.{method}\(\w+\) must"):
            Default()(replace(view, posterior=broken), 5, np.random.default_rng(0))


@pytest.mark.parametrize(("size", "candidates"), [(400, 4000), (401, 4010), (2500, 25_000)])
def test_candidates_follow_the_batch(size, candidates):
    view = replace(view_of(), pool=np.zeros((30_000, 5)))
    found = default_strategy(only(view, "predict"), size)
    assert found == replace(GREEDY, candidates=candidates)
    assert default_strategy(view, size) == HERDING
    assert default_strategy(view, 5001) == replace(HERDING, candidates=50_010)
    every = Default(with_embeddings=replace(HERDING, candidates=None))
    assert every.choice(view, size) == every.with_embeddings


@dataclass
class Embedding(Only):
    """A posterior with other embeddings, of the first feature."""

    function: Any = None

    def embed(self, inputs):
        return self.function(np.asarray(inputs)[:, 0])


def embedding(view, function):
    return replace(view, posterior=Embedding(view.posterior, ("predict", "point"), function))


@pytest.mark.parametrize(("width", "expected"), [(4096, HERDING), (4097, GREEDY)])
def test_embeddings_that_are_too_wide_are_left_to_draws(width, expected):
    view = embedding(view_of(), lambda x: np.ones((len(x), width)))
    assert default_strategy(view, 5) == expected


@pytest.mark.parametrize(("others", "expected"), [(10, HERDING), (9, GREEDY)])
def test_embeddings_without_neighbours_are_left_to_draws(others, expected):
    view = replace(view_of(), pool=np.arange(3000.0)[:, None].repeat(5, 1))
    near = np.arange(3000) * 1000 // 3000 // (1 + others)  # groups among the thousand it looks at
    view = embedding(view, lambda x: np.eye(1000)[near[x.astype(int)]])
    assert default_strategy(view, 5) == expected
    assert nearest_hundredth(view) == pytest.approx(0 if others == 10 else 2**0.5, abs=1e-3)
    narrow = Default(with_embeddings=replace(HERDING, bandwidth=None))
    assert narrow.choice(view, 5) == narrow.with_embeddings


def test_without_a_target_the_pool_is_the_target():
    view, rng = view_of(), np.random.default_rng
    with_pool = replace(view, val=view.pool[:])
    expected = HERDING(with_pool, 6, rng(1)).tolist()
    assert Default()(replace(view, val=None), 6, rng(1)).tolist() == expected
    assert Default()(view, 6, rng(1)).tolist() != expected


def test_it_is_a_strategy():
    check_strategy(Default())
    for name in ("widest", "candidates_each"):
        with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
            Default(**{name: 0})
        with pytest.raises(InputError, match=f"{name} must be a whole number, got True"):
            Default(**{name: True})
    with pytest.raises(InputError, match="size must be"):
        Default()(view_of(), 0, np.random.default_rng(0))


def test_without_a_label_the_target_is_covered():
    rng = np.random.default_rng(0)
    near, far = rng.normal(0, 1, (30, 2, 3)), rng.normal(50, 1, (30, 2, 3))
    view = View(None, None, np.empty(0), pool=np.concatenate([far, near]), val=near)
    assert default_strategy(view, 5) == ColdStart()
    assert (Default()(view, 5, rng) >= 30).all()
    numbers = View(None, None, np.empty(0), pool=np.arange(60.0), val=np.arange(30.0))
    assert (ColdStart()(numbers, 5, rng) < 35).all()
    with pytest.raises(InputError, match=r"view.val is None"):
        ColdStart()(replace(view, val=None), 5, rng)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_first_batch_of_digits_teaches_more_than_chance(narrow):
    ours, chance = (
        np.mean([cold_start.trial(narrow, strategy, 20, seed)[0] for seed in range(3)])
        for strategy in (ColdStart(), Random())
    )
    assert ours > chance + (0.4 if narrow else 0.08)
