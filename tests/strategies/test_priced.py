"""Gain per price, against the equations taken literally in float64."""

import numpy as np
import pytest
import torch

from foresee import GreedyConditioning, InputError
from foresee.strategies.priced import Priced
from foresee.testing import random_view


def literal(probs, val, costs, size, noise):
    """Every W and M anew for every point, as `drawspace` writes them."""
    t = probs.shape[1]
    mean = probs.mean(1)
    E = ((probs - mean[:, None]) / np.sqrt(t * mean)[:, None]).transpose(0, 2, 1)
    b = (val - val.mean(1, keepdims=True)) / np.sqrt(t * len(val))
    FF = np.einsum("jsc,jtc->st", b, b)
    told = (E**2).sum((1, 2)) / (probs.shape[2] - 1)
    N = noise * (told**2).sum() / told.sum() * np.eye(probs.shape[2])
    W, picks = np.eye(t), []
    for _ in range(size):
        gains = []
        for i, e in enumerate(E):
            M = N + e @ W @ e.T
            gain = np.trace(np.linalg.solve(M, e @ W @ FF @ W @ e.T))
            gains.append(-1 if i in picks else gain / costs[i])
        pick = int(np.argmax(gains))
        e = E[pick]
        M = N + e @ W @ e.T
        W = W - W @ e.T @ np.linalg.solve(M, e @ W)
        picks.append(pick)
    return picks


@pytest.mark.parametrize("c", [2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_picks_are_those_of_the_equations(seed, c):
    rng = np.random.default_rng(seed)
    view = random_view(rng, n=50, c=c)
    costs = rng.uniform(0.2, 5, 50)
    picks = Priced(costs, noise=1e-3)(view, 8, np.random.default_rng(0))
    probs = np.asarray(view.posterior.predict(view.pool), np.float64)
    val = np.asarray(view.posterior.predict(view.val), np.float64)
    assert picks.tolist() == literal(probs, val, costs, 8, 1e-3)


@pytest.mark.parametrize("options", [{}, {"classes": 2}, {"noise": 0.01}])
def test_equal_prices_change_nothing(options):
    view = random_view(np.random.default_rng(0), n=60, c=6)
    rule = GreedyConditioning(aleatoric=False, **options)
    for cost in (1.0, 7.0):
        picks = Priced(np.full(60, cost), **options)(view, 12, np.random.default_rng(1))
        np.testing.assert_array_equal(picks, rule(view, 12, np.random.default_rng(1)))


def test_bad_prices():
    view = random_view(np.random.default_rng(0), n=10)
    for costs in (np.zeros(10), np.full(10, np.nan), np.ones((2, 5)), -np.ones(10)):
        with pytest.raises(InputError, match="costs must be positive and finite"):
            Priced(costs)
    with pytest.raises(InputError, match="costs must be real numbers"):
        Priced(["free"] * 10)
    with pytest.raises(InputError, match="one for each of the 10 points of the pool, got 9"):
        Priced(torch.ones(9))(view, 2, np.random.default_rng(0))
