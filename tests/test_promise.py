"""The promise of a batch against exact conditioning in a linear Gaussian model."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from foresee import InputError, mebl, promise, scores
from foresee.testing import random_draws

pytestmark = pytest.mark.usefixtures("one_thread")


def some(n=6, m=9, t=8, c=3, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    return random_draws(rng, n, t, c, spread), random_draws(rng, m, t, c, spread)


def by_the_whole_covariance(batch, val):
    """Fall of the variance of the target labels, from the joint covariance of all labels."""
    t = batch.shape[1]

    def covariance(one, other):
        a, b = (
            np.moveaxis(x - x.mean(1, keepdims=True), 1, 2).reshape(-1, t) for x in (one, other)
        )
        return a @ b.T / t

    own = covariance(batch, batch)
    c = batch.shape[2]
    for i, probs in enumerate(batch):  # the diagonal blocks hold the noise of the labels as well
        mean = probs.mean(0)
        own[i * c : (i + 1) * c, i * c : (i + 1) * c] = np.diag(mean) - np.outer(mean, mean)
    cross = covariance(val, batch)
    return np.trace(cross @ np.linalg.pinv(own, rcond=1e-10) @ cross.T) / len(val)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 4), st.floats(0.2, 3.0))
@example(254427, 1, 2, 1.0)  # the last class is all but certain
def test_is_the_best_linear_prediction_of_the_targets(seed, n, c, spread):
    batch, val = some(n, c=c, seed=seed, spread=spread)
    expected = by_the_whole_covariance(batch, val)
    assert promise(batch, val) == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_of_a_single_point_is_mebl():
    batch, val = some(20)
    single = [promise(batch[i : i + 1], val) for i in range(20)]
    np.testing.assert_allclose(single, mebl(batch, val), rtol=1e-4)


def test_more_labels_never_promise_less_nor_more_than_there_is():
    batch, val = some(30)
    grown = [promise(batch[:k], val) for k in range(1, 31)]
    assert np.diff(grown).min() >= 0
    assert grown[-1] < val.var(1).sum(1).mean()


def test_a_certain_label_promises_nothing_twice_and_an_uncertain_one_a_little():
    batch, val = some(1)
    certain = np.eye(3)[batch.argmax(2)]
    twice = promise(np.concatenate([certain, certain]), val)
    assert twice == pytest.approx(promise(certain, val), rel=1e-4)
    assert promise(np.concatenate([batch, batch]), val) > 1.01 * promise(batch, val)


def test_times_counts_points_so_often():
    batch, val = some(4)
    three = np.concatenate([batch] * 3)
    assert promise(batch, val, times=3) == pytest.approx(promise(three, val), rel=1e-9)


def test_takes_tensors_and_refuses_other_draws():
    batch, val = some()
    tensors = promise(torch.from_numpy(batch), torch.from_numpy(val))
    assert tensors == pytest.approx(promise(batch, val), rel=1e-12)
    with pytest.raises(InputError, match="val"):
        promise(batch, val[:, :5])
    for name, args in (("batch", (7 * batch, val)), ("val", (batch, 7 * val))):
        with pytest.raises(InputError, match=f"{name} holds values .* softmax"):
            promise(*args)
    for times in (0, -1, np.nan, np.inf):
        with pytest.raises(InputError, match=f"times must be positive and finite, got {times}"):
            promise(batch, val, times=times)


def test_parts_add_up(monkeypatch):
    batch, val = some(23, 17)
    whole = promise(batch, val)
    monkeypatch.setattr(scores, "_PROMISED", 5)
    assert promise(batch, val) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("kind", ["float16", "float32", "certain"])
def test_rounded_draws_do_no_harm(kind, spread):
    batch, val = some(20, 15, c=5, spread=spread)
    if kind == "certain":
        exact, rounded = np.eye(5)[batch.argmax(2)], np.eye(5)[batch.argmax(2)] * (1 + 5e-6)
    else:
        exact, rounded = batch, batch.astype(kind)
    expected = promise(exact, val)
    found = promise(rounded, val.astype(rounded.dtype))
    assert found == pytest.approx(expected, rel=2e-3 if kind == "float16" else 1e-4)
