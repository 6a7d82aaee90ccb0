"""TopK, Random, EER by retraining, and the laws that every strategy obeys."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from foresee import (
    Badge,
    Coreset,
    InputError,
    Random,
    RetrainingEER,
    TopK,
    bald,
    entropy,
    entropy_mc,
    mebl,
    mell,
    mezl,
)
from foresee.testing import (
    LinearPosterior,
    check_sampler,
    check_score,
    check_strategy,
    random_view,
)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "strategy",
    [
        Random(),
        TopK(mell),
        TopK(mell, candidates=40, targets=5),
        TopK(mezl),
        TopK(mebl),
        TopK(bald, targets=0),
        TopK(entropy_mc, targets=0),
        TopK(entropy, point=True),
        Coreset(),
        Badge(),
        RetrainingEER(GaussianNB()),
    ],
    ids=lambda s: type(s).__name__,
)
def test_laws(strategy):
    check_strategy(strategy)


def test_topk_takes_the_highest_scores():
    view = random_view(rng())
    picks = TopK(mell)(view, 6, rng())
    scores = mell(view.posterior.predict(view.pool), view.posterior.predict(view.val))
    assert picks.tolist() == np.argsort(-scores)[:6].tolist()


def test_topk_of_the_point_prediction():
    view = random_view(rng())
    expected = np.argsort(-entropy(view.posterior.point(view.pool)))[:6]
    assert TopK(entropy, point=True)(view, 6, rng()).tolist() == expected.tolist()


def test_topk_candidates_and_targets_are_drawn_anew():
    view = random_view(rng(), n=200)
    picks = [set(TopK(mell, candidates=20)(view, 10, rng(s)).tolist()) for s in range(20)]
    assert len(set.union(*picks)) > 60
    few = [tuple(TopK(mell, targets=1)(view, 10, rng(s)).tolist()) for s in range(5)]
    assert len({frozenset(f) for f in few}) > 1


def test_ties_fall_to_the_generator():
    view = random_view(rng(), n=30)
    flat = TopK(lambda pool, val: np.zeros(len(pool)))
    counts = np.bincount(np.concatenate([flat(view, 3, rng(s)) for s in range(300)]), minlength=30)
    assert counts.min() > 10  # expected 30 each
    many, order = random_view(rng(), n=500), rng().permutation(500)
    likely = many.posterior.predict(many.pool)[order, 0, 0] > 0.5
    picks = TopK(lambda pool, val: (pool[:, 0, 0] > 0.5) + 0.0)(many, 500, rng())
    assert picks.tolist() == [*order[likely], *order[~likely]]


class Watched:
    """A posterior that notes how many predictions were asked for at once."""

    def __init__(self, posterior):
        self.posterior, self.sizes = posterior, []

    def predict(self, inputs):
        self.sizes.append(len(inputs))
        return torch.from_numpy(self.posterior.predict(inputs))


def test_topk_streams_the_pool():
    view = random_view(rng(), n=1000)
    watched = Watched(view.posterior)
    row = 8 * 3 * 4  # draws, classes, bytes
    picks = TopK(mell, chunk=50 * row)(replace(view, posterior=watched), 20, rng())
    assert max(watched.sizes) == 50
    assert picks.tolist() == TopK(mell)(view, 20, rng()).tolist()


def test_chunks_are_no_smaller_than_the_targets():
    view = random_view(rng(), n=40, m=11)
    watched = Watched(view.posterior)
    TopK(mell, chunk=1)(replace(view, posterior=watched), 5, rng())
    assert watched.sizes == [11, 1, 11, 11, 11, 6]


@pytest.mark.parametrize(
    ("strategy", "size", "message"),
    [
        (Random(), 41, "size = 41 is more than the 40 points of the pool"),
        (TopK(mell, candidates=5), 6, "size = 6 is more than the 5 points of the candidates"),
        (TopK(mell), -1, "size must be at least 1, got -1"),
        (TopK(mell), 2.0, "size must be a whole number, got 2.0"),
    ],
)
def test_bad_size(strategy, size, message):
    with pytest.raises(InputError, match=message):
        strategy(random_view(rng()), size, rng())


def test_bad_settings():
    with pytest.raises(InputError, match="candidates must be None or at least 1, got 0"):
        TopK(mell, candidates=0)
    with pytest.raises(InputError, match="targets must be None or at least 0, got -2"):
        TopK(mell, targets=-2)
    for name in ("candidates", "targets", "chunk"):
        with pytest.raises(InputError, match=rf"{name} must be a whole number.*, got 30\.0"):
            TopK(mell, **{name: 30.0})
    with pytest.raises(InputError, match='loss must be "log" or "zero-one", got \'brier\''):
        RetrainingEER(GaussianNB(), loss="brier")
    with pytest.raises(InputError, match="with predict_proba, got int"):
        RetrainingEER(3)


@pytest.mark.parametrize("loss", ["log", "zero-one"])
def test_retraining_by_hand(loss):
    view = random_view(rng(1), n=8, m=6)
    model = LogisticRegression()
    expected = []
    for x in view.pool:
        total = 0.0
        probs = LogisticRegression().fit(view.labelled, view.labels).predict_proba(x[None])[0]
        for y, p in enumerate(probs):
            inputs, labels = np.vstack([view.labelled, x]), np.append(view.labels, y)
            q = LogisticRegression().fit(inputs, labels).predict_proba(view.val)
            risk = -(q * np.log(q)).sum(1) if loss == "log" else 1 - q.max(1)
            total += p * risk.mean()
        expected.append(total)
    picks = RetrainingEER(model, loss)(view, 8, rng())
    assert picks.tolist() == np.argsort(expected).tolist()
    assert not hasattr(model, "coef_")  # the caller's model is left alone


class Noting(GaussianNB):
    sizes: ClassVar[list[int]] = []

    def predict_proba(self, X):
        self.sizes.append(len(X))
        return super().predict_proba(X)


def test_retraining_draws_candidates_and_targets():
    view = random_view(rng(1), n=20, m=9)
    picks = RetrainingEER(Noting(), candidates=3, targets=4)(view, 2, rng())
    assert Noting.sizes == [3] + 9 * [4]  # three classes for each of three candidates
    assert set(picks.tolist()) < set(rng().permutation(20)[:3].tolist())
    with pytest.raises(InputError, match="targets must be None or at least 1, got 0"):
        RetrainingEER(GaussianNB(), targets=0)


class Diverged(GaussianNB):
    def predict_proba(self, X):
        return np.where(X[:, :1] > 1, np.nan, super().predict_proba(X))


def test_a_model_that_predicts_nan_is_named():
    with pytest.raises(InputError, match=r"model\.predict_proba must be finite, got nan: look for"):
        RetrainingEER(Diverged())(random_view(rng()), 2, rng())


# The laws must be able to fail.


def never_below(pool, val):
    return mell(pool, val) - 1


def depends_on_neighbours(pool, val):
    scores = mell(pool, val)
    return scores / scores.max()


def depends_on_first_draw(pool, val):
    return pool[:, 0, :] @ np.arange(pool.shape[2]) if isinstance(pool, np.ndarray) else None


def difference_of_entropies(pool, val):
    """In float32, what everybody writes first."""
    if not isinstance(pool, np.ndarray):
        return torch.from_numpy(difference_of_entropies(pool.numpy(), val.numpy()))
    joint = np.einsum("itc,jtd->ijcd", pool, val) / pool.dtype.type(pool.shape[1])

    def entropy_of(p):
        return -(p * np.log(p + pool.dtype.type(1e-30)))

    marginals = entropy_of(pool.mean(1)).sum(1) + entropy_of(val.mean(1)).sum(1).mean()
    return marginals - entropy_of(joint).sum((2, 3)).mean(1)


@pytest.mark.parametrize(
    ("score", "law"),
    [
        (never_below, "non-negative"),
        (depends_on_neighbours, "its own row only|chunk sizes"),
        (depends_on_first_draw, "order of draws"),
        (difference_of_entropies, "float32 agrees with float64"),
        (lambda pool, val: mell(pool, val)[:-1], "one score for each pool point"),
        (lambda pool, val: mell(pool, val).squeeze(), "one score for each pool point"),
    ],
)
def test_broken_scores_are_caught(score, law):
    with pytest.raises(AssertionError, match=law):
        check_score(score, nonnegative=score is not difference_of_entropies)


def twice_the_first(view, size, rng):
    return np.zeros(size, np.int64)


def unseeded(view, size, rng):
    return np.random.default_rng().permutation(len(view.pool))[:size]


def uses_the_global_generator(view, size, rng):
    return np.random.permutation(len(view.pool))[:size]  # noqa: NPY002


def peeks(view, size, rng):
    return np.argsort(view.pool_labels)[:size]


def scribbles(view, size, rng):
    picks = Random()(view, size, rng)
    view.pool[0] = 0
    return picks


@pytest.mark.parametrize(
    ("strategy", "law"),
    [
        (twice_the_first, "no pick twice"),
        (unseeded, "the same seed"),
        (uses_the_global_generator, "randomness comes from rng alone"),
        (peeks, "sees no label, but asked for view.pool_labels"),
        (scribbles, "view.pool is left as it was"),
        (lambda view, size, rng: [0], "int64"),
        (lambda view, size, rng: np.arange(size), "is an error"),
    ],
)
def test_broken_strategies_are_caught(strategy, law):
    with pytest.raises(AssertionError, match=law):
        check_strategy(strategy)


@dataclass(frozen=True)
class Squeezing(LinearPosterior):
    def predict(self, inputs):
        return super().predict(inputs).squeeze()


def test_a_sampler_that_drops_an_axis_is_caught():
    weights = rng().standard_normal((8, 2, 3))
    with pytest.raises(AssertionError, match=r"predict gives \[n t c\]: shape \(8, 3\)"):
        check_sampler(lambda: Squeezing(weights), rng(1).random((9, 2)))


def test_a_strategy_may_copy_its_view():
    check_strategy(lambda view, size, rng: Random()(deepcopy(view), size, rng))


def test_the_posterior_for_tests_shares_its_draws():
    view = random_view(rng())
    assert isinstance(view.posterior, LinearPosterior)
    whole = view.posterior.predict(view.pool)
    np.testing.assert_allclose(whole[3:5], view.posterior.predict(view.pool[3:5]), rtol=1e-6)
