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
def cases(draw, most=9):
    seed = draw(st.integers(0, 2**32 - 1))
    n, m, t = (draw(st.integers(low, high)) for low, high in ((1, 60), (1, 9), (2, 12)))
    pool, val = pair(
        n, m, t, draw(st.integers(2, most)), draw(st.sampled_from([0.0, 0.03, 1.0, 30.0])), seed
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
    bound = bounds._Targets(torch.tensor(val), 0.0).bound(torch.tensor(pool)).numpy()
    assert (bound >= exact - 1e-15).all()


def bracket(pool, val, below):
    low, high = bounds._Targets(torch.tensor(val), below).bracket(torch.tensor(pool))
    return low.numpy(), high.numpy()


@given(case=cases(most=40), below=st.sampled_from([0.0, 1e-4, 1e-2, 0.2, 0.9]))
def test_brackets_hold(case, below):
    pool, val, _ = case
    exact = reference.expected_loss_reduction(pool, val, reference.log_risk)
    low, high = bracket(pool, val, below)
    assert (low <= exact + 1e-13).all()
    assert (exact <= high + 1e-13).all()
    if below == 0:
        np.testing.assert_allclose(low, exact, atol=1e-13)


@pytest.mark.parametrize(("t", "c"), [(7, 2), (100, 7)])
def test_bounds_hold_in_float32_where_they_are_exact(t, c):
    # Labels that the draw decides, one of which is the target: log(1 + χ²) is the divergence.
    pool = torch.eye(c)[torch.from_numpy(np.random.default_rng(0).integers(c, size=(60, t)))]
    for i in range(60):
        targets = bounds._Targets(pool[i : i + 1], 0.0)
        (score, _), (_, high) = targets.score(pool), targets.bracket(pool)
        assert targets.bound(pool)[i] == pytest.approx(float(score[i]), rel=2e-4)
        assert targets.bound(pool)[i] >= score[i]
        assert (high >= score).all()


def test_lower_bounds_by_hand():
    pool, val = pair(3, 2, 15, 6, spread=2.0)
    means = pool.mean(1), val.mean(1)
    below = 0.05
    expected = np.zeros(3)
    joint = reference.joint(pool, val)
    for i, j, c, d in np.ndindex(3, 2, 6, 6):
        apart = means[0][i, c] * means[1][j, d]
        # The rows are padded to some common number of classes, three at least: the likeliest.
        kept = min(k for k in (3, 4, 6) if k >= (means[0][i] >= below).sum())
        if c in np.argsort(-means[0][i])[:kept] and means[1][j, d] >= below:
            u = joint[i, j, c, d] / apart - 1
            expected[i] += apart * ((1 + u) * np.log1p(u) - u) / 2
    np.testing.assert_allclose(bracket(pool, val, below)[0], expected, rtol=1e-9)
    assert (expected < mell(pool, val)).all()


def test_bounds_are_tight_where_draws_hardly_disagree():
    pool, val = pair(2000, spread=0.03)
    bound = bounds._Targets(torch.tensor(val), 0.0).bound(torch.tensor(pool)).numpy()
    assert (bound / mell(pool, val)).max() < 1.2
    assert mell_top_k(pool, val, 10).share < 0.2


def test_many_classes_need_few_exact_scores():
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((1550, 20)), rng.standard_normal((20, 60))
    draws = weights + 0.3 * rng.standard_normal((30, 20, 60))
    logits = torch.tensor(np.einsum("nd,tdc->ntc", inputs, draws)).float()
    pool, val = logits.softmax(2).split([1500, 50])
    best = mell_top_k(pool, val, 20)
    assert best.picks.tolist() == ranked(mell(pool, val).numpy(), 20).tolist()
    assert best.share < 0.25
    low, high = bounds._Targets(val, 1e-4).bracket(pool)
    assert (high - low).max() < 0.02 * low.mean()


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
