"""No batch is worth more than its ceiling: against all batches of small pools, by definition."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from foresee import promise
from foresee.strategies import GreedyConditioning
from foresee.strategies.ceiling import _looks, tangent
from foresee.testing import random_draws
from foresee.types import View


def worth(batch, val, noise):
    """By the covariance of labels, class by class, without W: its noise is ε of each variance."""
    t = batch.shape[1]
    centred = [(p - p.mean(0)).T / np.sqrt(t) for p in (*batch, *val)]  # [c t] each
    k, c = len(batch), batch.shape[2]
    looks = np.concatenate([a[:-1] for a in centred[:k]])  # [k(c−1) t]
    goals = np.concatenate(centred[k:])
    total = looks @ looks.T
    for i, p in enumerate(batch):
        mean = p.mean(0)[:-1]
        own = slice(i * (c - 1), (i + 1) * (c - 1))
        total[own, own] = (np.diag(mean) - np.outer(mean, mean)) * (1 + noise)
    shared = looks @ goals.T
    return np.trace(shared.T @ np.linalg.solve(total, shared)) / len(val)


def draws(seed, n, t=6, c=3, certain=False):
    found = random_draws(np.random.default_rng(seed), n, t=t, c=c).astype(np.float64)
    return np.eye(c)[found.argmax(2)] * 0.9 + 0.1 / c if certain else found


def ceiling(pool, val, batch, noise):
    found = tangent(*(torch.tensor(x) for x in (pool[batch], val)), noise)
    largest = found.slopes(torch.tensor(pool)).topk(len(batch)).values
    return found, found.ceiling(largest)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.floats(1e-3, 1.0), st.booleans())
def test_no_batch_of_the_pool_is_worth_more(seed, k, noise, certain):
    pool, val = draws(seed, 9, certain=certain), draws(seed + 1, 4)
    for batch in (list(range(k)), list(np.argsort(-pool.var(1).sum(1))[:k])):
        found, most = ceiling(pool, val, batch, noise)
        assert found.worth == pytest.approx(worth(pool[batch], val, noise), rel=1e-9)
        every = [worth(pool[list(some)], val, noise) for some in combinations(range(9), k)]
        assert max(every) <= most * (1 + 1e-9)


def test_slopes_are_derivatives():
    """A point that counts a little raises the worth by that share of its slope."""
    pool, val, noise, little = torch.tensor(draws(0, 5)), draws(1, 4), 0.1, 1e-6
    found, S = tangent(pool[:2], torch.tensor(val), noise), gram(val)
    X = torch.eye(6, dtype=torch.float64)
    for i, count in ((0, 1), (1, 1), (3, little)):
        (L,) = _looks(pool[i : i + 1], noise)
        X += count * L.T @ L
    raised = float(S.trace() - (S * torch.linalg.inv(X)).sum())
    slope = float(found.slopes(pool[3:4]))
    assert raised - found.worth == pytest.approx(little * slope, rel=1e-4)


def gram(val):
    centred = np.concatenate([(q - q.mean(0)).T for q in val])
    return torch.tensor(centred.T @ centred / (val.shape[1] * len(val)))


def test_the_greedy_batch_is_close_to_it():
    pool, val = draws(0, 2000, t=50, c=4), draws(1, 50, t=50, c=4)
    strategy = GreedyConditioning()
    picks = strategy(View(Given(), None, [], pool, val), 10, np.random.default_rng(0))
    found, most = ceiling(pool, val, picks, strategy.enough_noise(10, 50, 4))
    assert 0.85 * most < found.worth <= most
    assert found.worth <= promise(pool[picks], val)  # whose labels have no error


class Given:
    def predict(self, inputs):
        return inputs


def test_a_ceiling_is_no_more_than_there_is_to_know():
    pool, val = draws(0, 50), draws(1, 4)
    found, most = ceiling(pool, val, [0], 1e-3)
    assert found.ceiling(torch.full((1,), 1e9)) == found.most
    assert torch.equal(found.slopes(torch.tensor(pool[:0])), torch.zeros(0).double())
    assert most <= found.most == pytest.approx(float(gram(val).trace()))
