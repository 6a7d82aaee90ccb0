"""The exact linear model against joint Gaussians, Monte Carlo and the appendix's proposition."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal, norm

from foresee.errors import InputError
from foresee.posteriors.linear import LinearModel, bald, bound, mell


def random_model(rng, d=4, noise=0.3):
    square = rng.standard_normal((d, d))
    return LinearModel(rng.standard_normal(d), square @ square.T + 0.1 * np.eye(d), noise)


def joint(model, x):
    """Covariance of the labels at x, which have independent noise."""
    return x @ model.covariance @ x.T + model.noise * np.eye(len(x))


def test_condition_is_gaussian_conditioning_of_the_joint():
    rng = np.random.default_rng(0)
    for rows in (1, 3, 9):
        model, x, y = random_model(rng), rng.standard_normal((rows, 4)), rng.standard_normal(rows)
        cross = model.covariance @ x.T
        gain = cross @ np.linalg.inv(joint(model, x))
        posterior = model.condition(x, y)
        np.testing.assert_allclose(posterior.mean, model.mean + gain @ (y - x @ model.mean))
        np.testing.assert_allclose(
            posterior.covariance, model.covariance - gain @ cross.T, atol=1e-12
        )
        assert posterior.noise == model.noise


def test_one_by_one_is_all_at_once():
    rng = np.random.default_rng(1)
    model, x, y = random_model(rng), rng.standard_normal((7, 4)), rng.standard_normal(7)
    batch, step = model.condition(x, y), model
    for row, target in zip(x, y, strict=True):
        step = step.condition(row[None], [target])
    np.testing.assert_allclose(step.mean, batch.mean, rtol=1e-9)
    np.testing.assert_allclose(step.covariance, batch.covariance, rtol=1e-9)


def test_condition_survives_exact_data_and_a_wide_prior():
    rng = np.random.default_rng(2)
    truth, x = rng.standard_normal(5), rng.standard_normal((50, 5))
    prior = LinearModel(np.zeros(5), 1e8 * np.eye(5), noise=1e-8)
    posterior = prior.condition(x, x @ truth)
    np.testing.assert_allclose(posterior.mean, truth, atol=1e-6)
    # The prior hardly counts: ordinary least squares.
    expected = 1e-8 * np.linalg.inv(x.T @ x)
    np.testing.assert_allclose(posterior.covariance, expected, rtol=1e-6, atol=1e-15)


def test_draws_and_predictions_are_those_of_the_gaussian():
    rng = np.random.default_rng(3)
    model, t = random_model(rng), 200_000
    theta = model.draws(t, rng)
    assert theta.shape == (t, 4)
    variance = np.diag(model.covariance)
    assert (np.abs(theta.mean(0) - model.mean) < 4 * np.sqrt(variance / t)).all()
    error = np.sqrt((np.outer(variance, variance) + model.covariance**2) / t)
    assert (np.abs(np.cov(theta.T) - model.covariance) < 4 * error).all()
    x = rng.standard_normal((3, 4))
    labels = theta @ x.T + np.sqrt(model.noise) * rng.standard_normal((t, 3))
    mean, var = model.moments(x)
    assert (np.abs(labels.mean(0) - mean) < 4 * np.sqrt(var / t)).all()
    assert (np.abs(labels.var(0) - var) < 4 * var * np.sqrt(2 / t)).all()


def test_scores_are_mutual_informations_from_determinants():
    rng = np.random.default_rng(4)
    model, pool, val = random_model(rng), rng.standard_normal((6, 4)), rng.standard_normal((5, 4))

    def entropy(covariance):  # up to constants that cancel
        return np.linalg.slogdet(np.atleast_2d(covariance))[1] / 2

    expected = np.empty((6, 5))
    for i, x in enumerate(pool):
        cross = (model.covariance @ x)[:, None]
        whole = np.block([[model.covariance, cross], [cross.T, joint(model, x[None])]])
        information = entropy(model.covariance) + entropy(joint(model, x[None])) - entropy(whole)
        np.testing.assert_allclose(bald(model, pool)[i], information)
        for j, v in enumerate(val):
            alone = entropy(joint(model, x[None])) + entropy(joint(model, v[None]))
            expected[i, j] = alone - entropy(joint(model, np.stack([x, v])))
    np.testing.assert_allclose(mell(model, pool, val), expected.mean(1))
    for j in range(5):
        np.testing.assert_allclose(mell(model, pool, val[j : j + 1]), expected[:, j])


def test_scores_are_mutual_informations_by_monte_carlo():
    rng = np.random.default_rng(5)
    model, t = random_model(rng), 100_000
    xv = rng.standard_normal(4) + 0.5 * rng.standard_normal((2, 4))
    noise = np.sqrt(model.noise)
    theta = model.draws(t, rng)
    labels = theta @ xv.T + noise * rng.standard_normal((t, 2))
    mean, var = model.moments(xv)
    alone = norm.logpdf(labels, mean, np.sqrt(var))
    gain = norm.logpdf(labels[:, 0], theta @ xv[0], noise) - alone[:, 0]
    together = multivariate_normal.logpdf(labels, mean, joint(model, xv)) - alone.sum(1)
    for samples, closed in ((gain, bald(model, xv)[0]), (together, mell(model, xv[:1], xv[1:])[0])):
        error = samples.std() / np.sqrt(t)
        assert error < closed / 20  # the samples can tell
        assert abs(samples.mean() - closed) < 4 * error


def test_what_the_target_leaves_to_learn():
    """I(Y_x; θ) = I(Y_x; Y_v) + I(Y_x; θ | Y_v), and the target's value does not matter."""
    rng = np.random.default_rng(6)
    model, pool, val = random_model(rng), rng.standard_normal((8, 4)), rng.standard_normal((1, 4))
    for target in (-3.0, 0.0, 11.0):
        rest = bald(model.condition(val, [target]), pool)
        np.testing.assert_allclose(mell(model, pool, val) + rest, bald(model, pool))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.floats(-25, 8),
    st.floats(-4, 4),
    st.booleans(),
)
def test_mell_is_bounded_and_bald_is_above_it(seed, d, log_noise, log_scale, aligned):
    rng = np.random.default_rng(seed)
    model = random_model(rng, d, noise=10**log_noise)
    val = rng.standard_normal((3, d))
    pool = val[[0, 1, 2, 0]] if aligned else rng.standard_normal((4, d))
    pool = pool * 10**log_scale
    scores = mell(model, pool, val)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    assert (scores <= bound(model, val) * (1 + 1e-12)).all()
    assert (scores <= bald(model, pool) * (1 + 1e-12)).all()


def test_the_bound_is_the_proposition_s_and_is_reached_in_its_limit():
    rng = np.random.default_rng(7)
    model, val = random_model(rng, noise=100.0), 0.1 * rng.standard_normal((6, 4))
    quadratic = np.mean([v @ model.covariance @ v for v in val])
    np.testing.assert_allclose(bound(model, val), quadratic / 200)
    far = 1e6 * val[:1]  # log(1 + z) is nearly z, and the label of far tells θᵀv
    ratio = mell(model, far, val[:1])[0] / bound(model, val[:1])
    assert 0.99 < ratio < 1


def test_bald_follows_the_norm_and_mell_does_not():
    rng = np.random.default_rng(8)
    model, val, x = random_model(rng), rng.standard_normal((5, 4)), rng.standard_normal(4)
    scales = 10.0 ** np.arange(0, 13)
    pool = scales[:, None] * x
    information = bald(model, pool)
    assert (np.diff(information) > 0).all()
    np.testing.assert_allclose(np.diff(information)[-8:], np.log(10), rtol=1e-3)
    variance = np.einsum("md,de,me->m", val, model.covariance, val) + model.noise
    squared = (val @ model.covariance @ x) ** 2 / (x @ model.covariance @ x) / variance
    limit = -np.log(1 - squared).mean() / 2
    np.testing.assert_allclose(mell(model, pool, val)[-6:], limit, rtol=1e-6)
    # A long input that has nothing to do with the targets is BALD's first choice, not MELL's.
    plain, target = LinearModel(np.zeros(2), np.eye(2), 1.0), np.array([[1.0, 0.0]])
    pair = np.array([[1.0, 0.0], [0.0, 50.0]])
    assert bald(plain, pair).argmax() == 1
    assert mell(plain, pair, target).argmax() == 0


def test_errors():
    eye = np.eye(2)
    model = LinearModel(np.zeros(2), eye, 1.0)
    with pytest.raises(InputError, match=r"must be \[d d\]"):
        LinearModel(np.zeros(3), eye, 1.0)
    with pytest.raises(InputError, match="noise must be a variance above 0"):
        LinearModel(np.zeros(2), eye, 0.0)
    with pytest.raises(InputError, match="symmetric"):
        LinearModel(np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]]), 1.0)
    with pytest.raises(InputError, match="positive definite"):
        LinearModel(np.zeros(2), np.diag([1.0, -1.0]), 1.0)
    with pytest.raises(InputError, match=r"inputs must have shape \[n 2\], got \[3, 4\]"):
        bald(model, np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"targets must be finite, of shape \[3\], got \[3, 1\]"):
        model.condition(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(InputError, match="targets must be finite"):
        model.condition(np.zeros((3, 2)), [0, np.nan, 0])
    with pytest.raises(InputError, match="inputs hold NaN"):
        mell(model, np.zeros((3, 2)), np.full((3, 2), np.nan))
    for mean, covariance in (([0, np.inf], eye), ([0, 0], eye * np.nan)):
        with pytest.raises(InputError, match="mean and covariance must be finite"):
            LinearModel(mean, covariance, 1.0)
    with pytest.raises(InputError, match=r"rng must be a numpy\.random\.Generator, got 0"):
        model.draws(3, 0)


def test_inputs_may_be_tensors_or_sparse():
    model, x = LinearModel(np.zeros(2), np.eye(2), 1.0), np.arange(6.0).reshape(3, 2)
    for same in (torch.tensor(x, requires_grad=True), sparse.csr_matrix(x)):
        np.testing.assert_array_equal(bald(model, same), bald(model, x))
