"""Bounds of MELL, and the exact top k that they allow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from foresee import InputError, TopK, TopMell, mell, mell_top_k
from foresee.kernels import reference
from foresee.strategies import bounds
from foresee.testing import check_strategy, random_draws, random_view
from foresee.types import View

pytestmark = pytest.mark.usefixtures("one_thread")


def pair(n=200, m=12, t=20, c=4, spread=1.0, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    draws = (random_draws(rng, size, t, c, spread, seed) for size in (n, m))
    return [x.astype(dtype) for x in draws]


def ranked(scores, k):
    return np.argsort(-scores, kind="stable")[:k]


@st.composite
def cases(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    n, m, t = (draw(st.integers(low, high)) for low, high in ((1, 60), (1, 9), (2, 12)))
    pool, val = pair(
        n, m, t, draw(st.integers(2, 9)), draw(st.sampled_from([0.0, 0.03, 1.0, 30.0])), seed
    )
    if draw(st.booleans()):  # ties: the same points again, elsewhere
        pool = pool[np.random.default_rng(seed).integers(n, size=n)]
    if draw(st.booleans()):
        pool = np.eye(pool.shape[2])[pool.argmax(2)]  # labels that are certain given the draw
    return pool, val, draw(st.integers(1, n))


@given(case=cases(), block=st.sampled_from([1, 4, 256]))
def test_the_same_picks_as_from_all_scores(case, block):
    pool, val, k = case
    old, bounds._BLOCK = bounds._BLOCK, block
    try:
        best = mell_top_k(pool, val, k)
    finally:
        bounds._BLOCK = old
    scores = mell(pool, val)
    expected = ranked(scores, k)
    np.testing.assert_allclose(best.scores, scores[expected], rtol=1e-12, atol=1e-16)
    # Scores that differ by rounding alone may change places; equal ones keep the pool's order.
    differ = best.picks != expected
    np.testing.assert_allclose(
        scores[best.picks[differ]], scores[expected[differ]], rtol=1e-12, atol=1e-16
    )
    assert 0 < best.share <= 1


def test_copies_are_in_the_order_of_the_pool():
    pool, val = pair(10, 5, spread=3.0)
    copies = np.tile(pool, (30, 1, 1))
    best = mell_top_k(copies, val, 45)
    expected = [i + 10 * k for i in ranked(mell(pool, val), 2) for k in range(30)][:45]
    assert best.picks.tolist() == expected


@given(case=cases())
def test_bounds_hold(case):
    pool, val, _ = case
    exact = reference.expected_loss_reduction(pool, val, reference.log_risk)
    bound = bounds._Targets(torch.tensor(val)).bound(torch.tensor(pool)).numpy()
    assert (bound >= exact - 1e-15).all()


@pytest.mark.parametrize(("t", "c"), [(7, 2), (100, 7)])
def test_bounds_hold_in_float32_where_they_are_exact(t, c):
    # Labels that the draw decides, one of which is the target: log(1 + χ²) is the divergence.
    pool = torch.eye(c)[torch.from_numpy(np.random.default_rng(0).integers(c, size=(60, t)))]
    for i in range(60):
        score, bound = mell(pool, pool[i : i + 1]), bounds._Targets(pool[i : i + 1]).bound(pool)
        assert bound[i] == pytest.approx(float(score[i]), rel=2e-4)
        assert (bound >= score).all()


def test_bounds_are_tight_where_draws_hardly_disagree():
    pool, val = pair(2000, spread=0.03)
    bound = bounds._Targets(torch.tensor(val)).bound(torch.tensor(pool)).numpy()
    assert (bound / mell(pool, val)).max() < 1.2
    assert mell_top_k(pool, val, 10).share < 0.2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_topmell_is_topk_of_mell(dtype):
    for seed in range(3):
        view = random_view(np.random.default_rng(seed), n=500, c=5)
        both = [TopMell(), TopK(mell)]
        picks = [s(view, 40, np.random.default_rng(seed)).tolist() for s in both]
        assert picks[0] == picks[1]


@dataclass
class Watched:
    """A posterior that holds its answers and notes how many it gave at once."""

    probs: Any
    largest: int = 0

    def predict(self, inputs):
        self.largest = max(self.largest, len(inputs))
        return self.probs[inputs]


def test_topmell_streams_the_pool():
    pool, val = pair(1000, dtype=np.float32)
    rows = np.arange(1012)
    posterior = Watched(np.concatenate([pool, val]))
    view = View(posterior, rows[:0], rows[:0], rows[:1000], rows[1000:])
    picks = TopMell(chunk=64 * pool[0].nbytes)(view, 50, np.random.default_rng(0))
    assert posterior.largest == 64
    assert picks.tolist() == TopK(mell)(view, 50, np.random.default_rng(0)).tolist()


def test_laws_of_a_strategy():
    check_strategy(TopMell())
    check_strategy(TopMell(candidates=40, targets=5))


def test_wrong_arguments_are_named():
    pool, val = pair(5)
    with pytest.raises(InputError, match="k = 6 is more than the 5 points of the pool"):
        mell_top_k(pool, val, 6)
    with pytest.raises(InputError, match="must share draws t"):
        mell_top_k(pool, val[:, :5], 2)
    with pytest.raises(InputError, match="pool is a Tensor and val is a ndarray"):
        mell_top_k(torch.tensor(pool), val, 2)
