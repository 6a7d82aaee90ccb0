"""The promise of a batch against exact conditioning in a linear Gaussian model."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from mpmath import mp

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


def test_where_a_quick_decomposition_fails_a_sure_one_is_taken(monkeypatch):
    def fails(*_, **__):  # as it does on some points of 300 classes by 1000 sure draws
        raise torch.linalg.LinAlgError("failed to converge")

    batch, val = some()
    expected = promise(batch, val)
    monkeypatch.setattr(torch.linalg, "svd", fails)
    assert promise(batch, val) == pytest.approx(expected, rel=1e-9)


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


def by_many_digits(batch, val, times):
    """tr S − tr S (I + times F)⁻¹ as it is written, where 400 digits leave nothing to cancel."""
    t, c = batch.shape[1:]
    with mp.workdps(400):
        information, gram = mp.zeros(t), mp.zeros(t)
        for point in batch:
            kept = np.sort(np.argsort(point.mean(0))[:-1])
            p = mp.matrix(point[:, kept].tolist())
            mean = [mp.fsum(p[:, k]) / t for k in range(c - 1)]
            a = mp.matrix(c - 1, t)
            for k in range(c - 1):
                for d in range(t):
                    a[k, d] = (p[d, k] - mean[k]) / mp.sqrt(t)
            noise = -(p.T * p) / t
            for k in range(c - 1):
                noise[k, k] += mean[k] * (1 + mp.mpf(scores._JITTER)) + mp.mpf(1e-12)
            information += a.T * mp.inverse(noise) * a
        for target in val:
            b = mp.matrix((target - target.mean(0)).T.tolist())
            gram += b.T * b / (t * len(val))
        left = mp.inverse(mp.eye(t) + mp.mpf(times) * information)
        product = gram * (mp.eye(t) - left)
        return float(mp.fsum(product[k, k] for k in range(t)))


@pytest.mark.parametrize("times", [1e-300, 1e-9, 1, 1e4, 1e10, 1e20, 1e300])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_any_number_of_times(times, n):
    batch, val = some(n, 4, t=5, c=3)
    assert promise(batch, val, times=times) == pytest.approx(
        by_many_digits(batch, val, times), rel=1e-5, abs=0
    )


def test_of_endless_repetition_is_what_the_batch_can_tell():
    batch, val = some(2, t=8, c=3)
    centred = (batch - batch.mean(1, keepdims=True)).transpose(0, 2, 1).reshape(-1, 8)
    targets = (val - val.mean(1, keepdims=True)).transpose(0, 2, 1).reshape(-1, 8)
    left = targets - targets @ np.linalg.pinv(centred, rcond=1e-9) @ centred
    limit = ((targets**2).sum() - (left**2).sum()) / 8 / len(val)
    grown = [promise(batch, val, times=times) for times in (1e6, 1e10, 1e16, 1e30, 1e300)]
    np.testing.assert_allclose(grown[1:], limit, rtol=1e-6)
    assert np.diff(grown).min() >= -1e-15
    assert limit < 0.99 * val.var(1).sum(1).mean()


def test_draws_that_agree_promise_nothing():
    batch, val = some(3)
    assert promise(np.repeat(batch[:, :1], 8, 1), val) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(">f8"),
        lambda x: x[::-1].copy()[::-1],
        lambda x: x[:, ::-1].copy()[:, ::-1],
        lambda x: x.astype(np.longdouble),
        lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
        lambda x: x.tolist(),
        lambda x: torch.tensor(x, requires_grad=True),
    ],
)
def test_takes_numbers_of_any_form(change):
    batch, val = some()
    with warnings.catch_warnings(action="error"):
        assert promise(change(batch), change(val)) == pytest.approx(promise(batch, val), rel=1e-12)


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


def test_memory_is_bounded_where_classes_are_many(monkeypatch):
    batch, val = some(23, 17, c=5)
    whole, grown, sizes = promise(batch, val), scores.promises(batch, val), []
    looks = scores._looks
    monkeypatch.setattr(scores, "_looks", lambda part: sizes.append(len(part)) or looks(part))
    monkeypatch.setattr(scores, "_NUMBERS", 100)
    assert promise(batch, val) == pytest.approx(whole, rel=1e-12)
    np.testing.assert_allclose(scores.promises(batch, val), grown, rtol=1e-12)
    assert sizes == [4, 4, 4, 4, 4, 3] * 2  # of 25 numbers each


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
