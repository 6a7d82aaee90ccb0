"""Rejection from old distances against the exact k-means++ law of explicit gradients."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from stand_ins import Table

from foresee.errors import InputError
from foresee.strategies import badge, kmeanspp
from foresee.strategies.badge import Badge, RelevantBadge
from foresee.testing import check_strategy, random_draws
from foresee.types import View


def choose(probs, embeddings, size, rng):
    positions = np.arange(len(probs))
    view = View(
        Table(None, probs, embeddings), positions[:0], positions[:0], positions, positions[:0]
    )
    picks = Badge()(view, size, rng)
    assert picks.dtype == np.int64
    assert len(set(picks.tolist())) == len(picks) == size
    return picks


def data(n, c=3, d=4, seed=0):
    rng = np.random.default_rng(seed)
    embeddings = 1 + rng.standard_normal((n, d))
    probs = rng.dirichlet(np.ones(c), size=n)
    return probs.astype(np.float32), embeddings.astype(np.float32)


def squared_distances(probs, embeddings):
    """Between explicit gradients, in float64."""
    probs = probs.astype(np.float64)
    r = probs - np.eye(probs.shape[1])[probs.argmax(1)]
    g = np.einsum("nc,nd->ncd", r, embeddings.astype(np.float64)).reshape(len(probs), -1)
    return ((g[:, None] - g[None]) ** 2).sum(2)


def law(squared, size, stale=False):
    """Probability of every sequence of picks; ``stale``: if D² stood still after the first pick."""
    n = len(squared)
    probability = {}
    for picks in itertools.permutations(range(n), size):
        chance = 1 / n
        for k in range(1, size):
            weights = squared[list(picks[: 1 if stale else k])].min(0)
            weights[list(picks[:k])] = 0
            chance *= weights[picks[k]] / weights.sum()
        probability[picks] = chance
    assert sum(probability.values()) == pytest.approx(1)
    return probability


def p_value(counts, probability):
    total = sum(counts.values())
    observed = np.array([counts.get(picks, 0) for picks in probability])
    expected = total * np.array(list(probability.values()))
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert observed[~keep].sum() == 0
    return stats.chisquare(observed[keep], expected[keep]).pvalue


@pytest.mark.parametrize("proposals", [2, 64])
def test_picks_follow_the_law_of_k_means_plus_plus(monkeypatch, proposals):
    monkeypatch.setattr(kmeanspp, "PROPOSALS", proposals)
    probs, embeddings = data(5)
    probs[0] = [0, 1, 0]  # certain, so its gradient is zero, and the origin is no centre
    probs[4], embeddings[4] = probs[3], embeddings[3] * 1.05  # seldom picked together
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(2000):
        picks = tuple(choose(probs, embeddings, 3, rng).tolist())
        counts[picks] = counts.get(picks, 0) + 1
    squared = squared_distances(probs, embeddings)
    assert p_value(counts, law(squared, 3)) > 1e-3
    assert p_value(counts, law(squared, 3, stale=True)) < 1e-9  # the test can tell them apart


def test_laws_of_a_strategy():
    check_strategy(Badge())


def test_distances_by_factors_equal_explicit_ones():
    probs, embeddings = data(50, c=7, d=20)
    gradients = badge._Gradients(torch.tensor(probs), torch.tensor(embeddings))
    everything = slice(None)
    computed = gradients.squared(everything, everything).numpy()
    explicit = squared_distances(probs, embeddings)
    np.testing.assert_allclose(computed, explicit, rtol=1e-4, atol=1e-5 * explicit.max())


def test_a_long_batch_is_as_spread_out_as_one_drawn_point_by_point():
    # Many rounds of proposals on many points: the mean log D² left at the end must agree.
    probs, embeddings = data(400, d=2)
    squared = squared_distances(probs, embeddings)

    def left(picks):
        nearest = squared[picks].min(0)
        return np.log(nearest.sum())

    def plain(rng):
        picks = [int(rng.integers(400))]
        for _ in range(199):
            weights = squared[picks].min(0)
            weights[picks] = 0
            picks.append(int(rng.choice(400, p=weights / weights.sum())))
        return picks

    ours = [left(choose(probs, embeddings, 200, np.random.default_rng(s))) for s in range(40)]
    theirs = [left(plain(np.random.default_rng(100 + s))) for s in range(40)]
    assert stats.ttest_ind(ours, theirs).pvalue > 1e-3
    assert np.mean(theirs) < left(np.arange(200)) - 10 * np.std(theirs)


def test_copies_are_picked_only_when_nothing_else_is_left():
    probs, embeddings = data(5, c=10, d=2000)
    copies = np.repeat(np.arange(5), 30)
    gradients = badge._Gradients(torch.tensor(probs[copies]), torch.tensor(embeddings[copies]))
    same = copies[:, None] == copies
    assert gradients.squared(slice(None), slice(None)).numpy()[same].max() == 0
    for seed in range(5):
        picks = choose(probs[copies], embeddings[copies], 150, np.random.default_rng(seed))
        assert set(copies[picks[:5]]) == set(range(5))


def test_rounding_never_makes_a_pick_eligible_again(monkeypatch):
    monkeypatch.setattr(badge, "RESOLUTION", -0.01)  # as if equal points came out far apart
    choose(*data(100), 100, np.random.default_rng(0))


def test_points_without_gradient_are_picked_uniformly():
    probs = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 1, 2]]
    embeddings = data(6)[1]
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1000):
        picks = tuple(choose(probs, embeddings, 2, rng).tolist())
        counts[picks] = counts.get(picks, 0) + 1
    assert p_value(counts, dict.fromkeys(itertools.permutations(range(6), 2), 1 / 30)) > 1e-3


def test_same_generator_same_picks_for_arrays_and_tensors():
    probs, embeddings = data(500)
    embeddings.flags.writeable = False
    picks = choose(probs, embeddings, 300, np.random.default_rng(5)).tolist()
    tensors = torch.tensor(probs), torch.tensor(embeddings, requires_grad=True)
    assert choose(*tensors, 300, np.random.default_rng(5)).tolist() == picks
    assert choose(probs, embeddings, 300, np.random.default_rng(6)).tolist() != picks


def test_products_are_precise_whatever_the_caller_chose(monkeypatch):
    squared, precisions = badge._Gradients.squared, []

    def spy(*args):
        precisions.append(torch.get_float32_matmul_precision())
        return squared(*args)

    monkeypatch.setattr(badge._Gradients, "squared", spy)
    torch.set_float32_matmul_precision("medium")
    try:
        choose(*data(30), 20, np.random.default_rng(0))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(precisions) == {"highest"}


def information(joint):
    """I(X; Y) of joint probabilities [x y], in nats, term by term."""
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    some = joint > 0
    return (joint[some] * np.log(joint[some] / independent[some])).sum()


def relevant_share(pool, val):
    """mean_j I(Y_i; Y_j) / I(Y_i; θ) by the definitions, in float64."""
    t = pool.shape[1]
    told = [information(p / t) for p in pool]
    relevant = [np.mean([information(p.T @ q / t) for q in val]) for p in pool]
    return np.array(relevant) / np.array(told)


def relevant_view(n=6, m=4, t=5, c=3, d=4):
    probs, embeddings = data(n + m, c, d)
    rng = np.random.default_rng(1)
    draws = random_draws(rng, n + m, t, c, spread=2)
    positions = np.arange(n + m)
    view = View(Table(draws, probs, embeddings), None, None, positions[:n], positions[n:])
    return view, relevant_share(draws[:n], draws[n:])


@pytest.mark.parametrize("power", [0, 1, 4])
def test_gradients_are_scaled_by_the_share_that_is_relevant(monkeypatch, power):
    view, share = relevant_view()
    seen = []

    def spy(vectors, size, rng):
        seen.append(vectors.squared(slice(None), slice(None)).numpy())
        return np.arange(size)

    monkeypatch.setattr(badge, "kmeanspp", spy)
    order = RelevantBadge(power=power)(view, 6, np.random.default_rng(0))
    # Gradients are stretched as their embeddings are.
    embeddings = view.posterior.embeddings[:6] * (share ** (power / 2))[:, None]
    expected = squared_distances(view.posterior.probs[:6], embeddings)[np.ix_(order, order)]
    np.testing.assert_allclose(seen[0], expected, rtol=1e-4, atol=1e-5 * expected.max())
    assert share.max() > 1.2 * share.min()


def test_what_tells_nothing_about_the_target_is_picked_last():
    view, _ = relevant_view(n=30)
    draws = view.posterior.draws
    draws[:10] = draws[:10].mean(1, keepdims=True)  # draws that agree: BALD and MELL are 0
    for seed in range(5):
        picks = RelevantBadge()(view, 30, np.random.default_rng(seed))
        assert (picks[:21] < 10).sum() == 1  # all ten are one point, the origin


def test_draws_that_all_agree_leave_the_choice_to_chance():
    view, _ = relevant_view(n=30)
    view.posterior.draws[:] = view.posterior.draws.mean(1, keepdims=True)
    picks = [RelevantBadge()(view, 5, np.random.default_rng(seed)).tolist() for seed in range(2)]
    assert picks[0] != picks[1]


def test_relevance_of_rounded_scores_is_a_share():
    relevant, told = torch.tensor([0.0, 0.0, 0.3, 1.1]), torch.tensor([0.0, 0.5, 0.6, 1.0])
    assert badge._relevant_share(relevant, told).tolist() == [0, 0, 0.5, 1]


def test_relevant_badge_obeys_the_laws():
    check_strategy(RelevantBadge())
    with pytest.raises(InputError, match="power must be at least 0 and finite, got -1"):
        RelevantBadge(power=-1)


def test_wrong_arguments_are_named():
    probs, embeddings = data(20)
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="size = 21 is more than the 20 points of the pool"):
        choose(probs, embeddings, 21, rng)
    with pytest.raises(InputError, match=r"point\(pool\).* look like logits"):
        choose(np.log(probs) + 3, embeddings, 5, rng)
    with pytest.raises(InputError, match=r"embed\(pool\) must be a finite matrix"):
        choose(probs, embeddings * np.inf, 5, rng)
