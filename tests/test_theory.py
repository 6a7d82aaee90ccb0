"""The claims of docs/theory.md, section by section in its order."""

import math
import re
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

import complexity
import draws
import sure
import theory
from foresee import bald, decompose, entropy_mc, mebl, mell, mezl
from foresee.kernels import reference
from foresee.lab import data
from foresee.lab.paper import experiment
from foresee.posteriors import linear
from foresee.posteriors.linear import LinearModel
from foresee.scores import promise
from foresee.strategies import BatchMell, GreedyConditioning
from foresee.strategies.drawspace import explained
from foresee.testing import random_draws
from foresee.types import View

pytestmark = pytest.mark.usefixtures("one_thread")
LOG2 = math.log(2)
DOCS = Path(__file__).parents[1] / "docs"

# --- parity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parity", [2, 3])
def test_no_score_of_single_points_sees_a_parity(parity):
    pool, val = theory.parity_world(10, parity)
    np.testing.assert_array_equal(mell(pool, val), 0)
    np.testing.assert_array_equal(mezl(pool, val), 0)
    np.testing.assert_allclose(mebl(pool, val), 0, atol=1e-15)
    for score in (bald, entropy_mc):  # each label tells one bit about the draw
        np.testing.assert_allclose(score(pool), LOG2, rtol=1e-14)


def test_two_steps_ahead_see_the_parity_of_two_labels():
    pool, val = theory.parity_world(10, 2)
    for score, gain in ((mell, LOG2), (mezl, 0.5), (mebl, 0.5)):
        gains = theory.look_ahead(score, pool, val, 2)
        assert len(gains) == 45
        np.testing.assert_allclose(gains.pop((0, 1)), gain)
        np.testing.assert_allclose(list(gains.values()), 0, atol=1e-15)


def test_two_steps_ahead_do_not_see_the_parity_of_three_labels():
    pool, val = theory.parity_world(10, 3)
    assert not any(theory.look_ahead(mell, pool, val, 2).values())
    gains = theory.look_ahead(mell, pool, val, 3)
    np.testing.assert_allclose(gains.pop((0, 1, 2)), LOG2)
    assert not any(gains.values())


@pytest.mark.parametrize("k", [2, 3, 4])
def test_k_queries_can_suffice_where_all_marginals_of_k_labels_are_uniform(k):
    pool, val = theory.parity_world(5, k)
    labels = np.concatenate([pool, val])
    for some in combinations(range(6), k):  # the target's label among them
        joint, _ = theory.together(labels, val, [some])
        np.testing.assert_array_equal(joint.mean(1), 0.5**k)
    for steps in range(1, k):
        assert not any(theory.look_ahead(mell, pool, val, steps).values())
    best = max((gain, batch) for batch, gain in theory.look_ahead(mell, pool, val, k).items())
    assert best == (pytest.approx(LOG2), tuple(range(k)))


def test_gains_of_batches_are_not_submodular():
    pool, val = theory.parity_world(4, 2)
    alone, beside = (mell(*theory.together(pool, val, [b]))[0] for b in ([1], [0, 1]))
    first = mell(pool, val)[0]
    assert alone == 0
    assert beside - first == pytest.approx(LOG2)  # more than alone: late labels can be worth more


def test_a_batch_as_one_label_is_equation_1_for_the_batch():
    pool, val = (random_draws(np.random.default_rng(i), n, 6, 3) for i, n in ((0, 3), (1, 4)))
    (got,) = mell(*theory.together(pool, val, [[0, 2]]))
    now = reference.log_risk(val.mean(1)).mean()
    after = 0.0
    for one in range(3):
        for other in range(3):
            likelihood = pool[0, :, one] * pool[2, :, other]
            given_both = np.einsum("t,mtc->mc", likelihood / likelihood.sum(), val)
            after += likelihood.mean() * reference.log_risk(given_both).mean()
    assert got == pytest.approx(now - after)


@dataclass(frozen=True)
class Table:
    """A posterior whose inputs are rows of its draws."""

    draws: NDArray[np.float64]

    def predict(self, rows):
        return self.draws[rows]

    def point(self, rows):
        raise NotImplementedError

    def embed(self, rows):
        raise NotImplementedError


def batches(strategy, points, parity, size, trials):
    """What a strategy picks of a parity world, with one seed after the other."""
    pool, val = theory.parity_world(points, parity)
    rows = np.arange(points)
    view = View(Table(np.concatenate([pool, val])), rows[:0], rows[:0], rows, np.array([points]))
    return [set(strategy(view, size, np.random.default_rng(seed))) for seed in range(trials)]


def test_looking_two_steps_ahead_is_a_strategy():
    ahead = BatchMell(lookahead=2, shortlist=None)
    assert batches(ahead, points=8, parity=2, size=2, trials=5) == [{0, 1}] * 5
    by_chance = batches(ahead, points=8, parity=3, size=2, trials=5)
    assert by_chance != [by_chance[0]] * 5


def test_greedy_finds_the_pair_when_chance_gives_it_the_first():
    assert theory.chance_of_both(100, 10) == pytest.approx((0.0091, 0.1727), abs=1e-4)
    single, greedy = theory.chance_of_both(6, 3)
    assert (single, greedy) == pytest.approx((0.2, 0.6))
    found = [{0, 1} <= picks for picks in batches(BatchMell(), 6, 2, size=3, trials=30)]
    assert abs(np.mean(found) - greedy) < 4 * math.sqrt(greedy * (1 - greedy) / 30)


def test_second_moments_do_not_see_a_parity():
    pool, val = theory.parity_world(6, 2)
    pair = mebl(*theory.together(pool, val, [[0, 1]]))
    assert pair == pytest.approx(0.5)  # the whole Brier loss
    assert promise(pool, val) < 1e-9
    single, _ = theory.chance_of_both(6, 3)
    found = [{0, 1} <= picks for picks in batches(GreedyConditioning(), 6, 2, size=3, trials=30)]
    assert abs(np.mean(found) - single) < 4 * math.sqrt(single * (1 - single) / 30)


def test_a_hundred_draws_of_a_hundred_points_show_the_pair():
    found = theory.sampled_pairs()
    assert found["pair"] > 0.65
    assert found["best other"] < 0.15
    # What is worth nothing scores 1/(2t) on average, for certain labels of two classes.
    noise = [
        mell(*theory.sampled_parity_world(100, 2, 100, np.random.default_rng(seed))).mean()
        for seed in range(10)
    ]
    np.testing.assert_allclose(np.mean(noise), 1 / 200, rtol=0.15)


# --- MEZL -------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.floats(0.1, 3.0))
def test_mezl_is_zero_exactly_where_no_label_changes_the_prediction(seed, classes, spread):
    rng = np.random.default_rng(seed)
    pool, val = (random_draws(rng, n, 7, classes, spread, seed) for n in (6, 1))
    joint = reference.joint(pool, val)[:, 0]  # [n c c']
    kept = joint[:, :, val.mean(1).argmax()]
    changes = (joint.max(2) - kept > 1e-12).any(1)
    np.testing.assert_array_equal(mezl(pool, val) > 1e-12, changes)
    assert (mezl(pool, val)[~changes] == 0).all()
    assert (mell(pool, val) > 0).all()


def test_labels_that_change_no_prediction_alone_do_so_together():
    pool, val = theory.votes_world(3)
    np.testing.assert_array_equal(mezl(pool, val), 0)
    assert (mell(pool, val) > 0.01).all()
    assert (mebl(pool, val) > 0.01).all()
    gains = theory.votes_gains(7)
    np.testing.assert_array_equal(gains["zero-one"][:2], 0)
    assert gains["zero-one"][2] == pytest.approx(1 / 15)
    assert (np.diff(gains["zero-one"][1:]) > 0).all()
    assert (np.diff(gains["log"], prepend=0) > 0.02).all()


def test_mezl_is_blind_on_networks_and_mell_is_not():
    pairs = []
    for labels in (20, 400):
        pool, val = theory.digits_draws("10 digits", labels, 0)
        assert (mezl(pool, val) > 0).all()  # some label would change some prediction
        pairs.append(theory.blindness(mezl, pool, val[:12]).pairs)
        assert theory.blindness(mell, pool, val[:3]) == (0, 0)
    assert 0.4 < pairs[0] < 0.7 < pairs[1]


def test_few_targets_decide_mezl_and_fewer_the_better_the_model_is():
    early, late = (theory.digits_draws("10 digits", labels, 0) for labels in (20, 400))
    halves = [theory.deciders(mezl, pool[:50], val[:40]) for pool, val in (early, late)]
    assert halves[1] < halves[0] < theory.deciders(mell, early[0][:50], early[1][:40]) / 1.5


def test_whole_scores_of_mezl_can_vanish_in_an_easy_binary_task():
    points = []
    for seed in (1, 2):  # networks differ much
        pool, val = theory.digits_draws("4 or 9", 100, seed)
        points.append(float((mezl(pool, val) == 0).double().mean()))
        assert (mell(pool, val) > 0).all()
        assert theory.blindness(mezl, pool, val[:5]).pairs > 0.8
    assert max(points) > 0.2


# --- information ------------------------------------------------------------------------------


def test_relevant_and_irrelevant_information_add_up_on_a_network():
    pool, val, _ = theory.shifted_draws(0)
    pool, val = (draws.double().numpy() for draws in (pool[:40], val[:15]))
    parts = decompose(pool, val)
    irrelevant = reference.irrelevant_information(pool, val)
    np.testing.assert_allclose(parts.relevant + irrelevant, parts.epistemic, rtol=1e-6)
    assert (parts.relevant > 0).all()
    assert (parts.relevant < parts.epistemic).all()


def test_bald_spends_more_information_and_mell_more_of_it_on_the_target():
    pool, val, narrow = theory.shifted_draws(0)
    shares = {}
    for name, target in (("all", val), ("narrow", narrow)):
        found = theory.spending(pool, target)
        for other in ("BALD", "Random"):
            assert found["MELL"][0] > found[other][0]
            assert found["BALD"][1] > found["MELL"][1]
        shares[name] = {k: r / (r + i) for k, (r, i) in found.items()}
        assert shares[name]["MELL"] > shares[name]["BALD"]
        assert shares[name]["MELL"] < 0.2
        assert shares[name]["BALD"] < 1.15 * shares[name]["Random"]  # more, but not better
    gap = {name: found["MELL"] / found["BALD"] for name, found in shares.items()}
    assert gap["narrow"] > gap["all"] > 1.1


def test_what_is_irrelevant_to_each_target_can_be_relevant_to_all():
    pool, val = theory.parity_world(2, 2)
    targets = np.concatenate([val, pool[1:]])  # Y₁ XOR Y₂, and Y₂
    parts = decompose(pool[:1], targets)
    np.testing.assert_array_equal(parts.relevant, 0)
    np.testing.assert_allclose(parts.irrelevant, LOG2)
    both, label = theory.together(targets, pool[:1], [[0, 1]])
    np.testing.assert_allclose(mell(label, both), LOG2)


def test_thirty_targets_share_nearly_all_that_a_label_tells():
    pool, val, _ = theory.shifted_draws(0)
    some = pool[:20]
    rng = np.random.default_rng(0)
    one, thirty = (theory.shared_with_targets(some, val, n, rng) for n in (1, 30))
    exact = float(mell(some, val).sum() / bald(some).sum())
    assert one == pytest.approx(exact, abs=0.03)
    assert one < 0.15
    assert thirty > 0.85


# --- the linear model -------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(-6, 6), st.floats(-3, 3))
def test_mell_is_below_the_mean_bald_of_the_targets_which_is_below_c(seed, d, noise, scale):
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((d, d))
    model = LinearModel(np.zeros(d), square @ square.T + 0.01 * np.eye(d), 10**noise)
    val = rng.standard_normal((3, d))
    pool = 10**scale * np.concatenate([rng.standard_normal((3, d)), val])
    # I(Y_x; Y_v) as what Y_v leaves of I(Y_x; θ): no formula with correlations.
    left = [linear.bald(model.condition(v[None], [0.0]), pool) for v in val]
    information = linear.bald(model, pool) - np.mean(left, 0)
    ceiling, c = theory.ceiling(model, val), linear.bound(model, val)
    assert (information <= ceiling + 1e-9).all()
    assert ceiling <= c * (1 + 1e-12)
    assert (linear.mell(model, pool, val) <= ceiling * (1 + 1e-12)).all()


def test_the_mean_bald_of_the_targets_is_reached_and_c_is_far_above_when_noise_is_small():
    model = LinearModel(np.zeros(1), np.eye(1), noise=0.01)
    val = np.ones((1, 1))
    far = linear.mell(model, 1e6 * val, val)[0]
    assert far == pytest.approx(theory.ceiling(model, val), rel=1e-6)
    assert far == pytest.approx(np.log(101) / 2)
    assert linear.bound(model, val) == pytest.approx(50)


def test_bald_orders_by_the_norm_and_grows_without_end_while_mell_levels_off():
    model, pool, val = theory.example()
    norm = np.einsum("nd,de,ne->n", pool, model.covariance, pool)
    np.testing.assert_array_equal(np.argsort(linear.bald(model, pool)), np.argsort(norm))
    ray = np.geomspace(1e-2, 1e8, 41)[:, None] * pool[:1]
    scores = linear.bald(model, ray), linear.mell(model, ray, val)
    for score in scores:  # MELL too prefers the longer of two inputs that point the same way
        assert (np.diff(score[:24]) > 0).all()
    assert scores[0][-1] - scores[0][-5] == pytest.approx(np.log(10), rel=1e-6)  # each decade
    assert scores[1][-1] - scores[1][-5] < 1e-9


def test_bald_picks_far_inputs_and_mell_those_along_the_targets():
    model, pool, val = theory.example()
    direction = theory._rotation(np.pi / 6)[0]
    lengths = np.linalg.norm(pool, axis=1)
    cosines = np.abs(pool @ direction) / lengths
    by_bald = np.argsort(-linear.bald(model, pool))[:20]
    by_mell = np.argsort(-linear.mell(model, pool, val))[:20]
    assert set(by_bald) == set(np.argsort(-lengths)[:20])
    assert cosines[by_mell].mean() > 0.95 > 0.75 > cosines[by_bald].mean()
    assert lengths[by_mell].mean() < 0.8 * lengths[by_bald].mean()


def test_half_the_squared_correlation_is_mell_to_second_order_as_sigma_shrinks():
    model, pool, val = theory.example()
    factors = np.geomspace(1e-5, 1e-3, 5)
    small = [theory.shrunk(model, f) for f in factors]
    values = [linear.mell(s, pool, val).mean() for s in small]
    errors = [theory.approximation_error(s, pool, val) for s in small]
    assert theory.slope(factors, values) == pytest.approx(2, abs=0.03)
    assert theory.slope(factors, errors) == pytest.approx(4, abs=0.06)
    relative = np.array(errors) / values
    assert theory.slope(factors, relative) == pytest.approx(2, abs=0.04)


def test_where_the_approximation_holds_mell_follows_the_norm_as_bald_does():
    model, pool, val = theory.example()
    small = theory.shrunk(model, 1e-6)
    for score in (
        linear.bald(small, np.concatenate([pool, 2 * pool])),
        linear.mell(small, np.concatenate([pool, 2 * pool]), val),
    ):
        once, twice = np.split(score, 2)
        np.testing.assert_allclose(twice / once, 4, rtol=1e-3)


def test_the_longest_of_a_gaussian_pool_grows_like_the_logarithm_of_its_size():
    rng = np.random.default_rng(0)
    for n in (100, 10_000):
        longest = [(rng.standard_normal((n, 2)) ** 2).sum(1).max() for _ in range(200)]
        harmonic = (1 / np.arange(1, n + 1)).sum()  # squared lengths are exponential, mean 2
        error = 4 * np.std(longest) / math.sqrt(200)
        assert abs(np.mean(longest) - 2 * harmonic) < error
    best = [math.log1p(2 * (math.log(n) + 0.5772)) / 2 for n in (100, 1_000_000)]
    assert best[1] - best[0] == pytest.approx(0.48, abs=0.01)  # for a pool 10 000 times as large


# --- cost -------------------------------------------------------------------------------------


def operations(work):
    """Multiplications and additions of matrix products."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("sizes", [(320, 20, 16, 5), (320, 40, 32, 5), (160, 20, 16, 10)])
def test_operations_of_the_scores(sizes):
    n, m, t, c = sizes  # rows of products are padded to 16: here there is no need
    rng = np.random.default_rng(0)
    pool, val = (random_draws(rng, rows, t, c).astype(np.float32) for rows in (n, m))
    for score in (mell, mezl):
        assert operations(lambda score=score: score(pool, val)) == 2 * n * m * t * c**2
    assert operations(lambda: mebl(pool, val)) == 2 * (n + m) * c * t**2
    assert t < m * c / 2
    assert 2 * (n + m) * c * t**2 < 2 * n * m * t * c**2
    assert operations(lambda: bald(pool)) == 0  # no product at all


def test_two_classes_take_one_product_for_four_in_mell():
    rng = np.random.default_rng(0)
    pool, val = (random_draws(rng, rows, 16, 2).astype(np.float32) for rows in (320, 20))
    assert operations(lambda: mell(pool, val)) == 2 * 320 * 20 * 16


@pytest.mark.parametrize("subject", complexity.SUBJECTS[3:], ids=lambda s: s.name)
def test_operations_of_the_strategies(subject):
    base = complexity.Sizes(n=2000, picks=200, d=64, c=10)
    for change in ({}, {"n": 8000}, {"picks": 800}, {"d": 256}, {"c": 40}):
        sizes = replace(base, **change)
        ratio = operations(subject.prepare(sizes)) / (2 * subject.operations(sizes))
        assert 0.5 < ratio < 2.5


def test_many_classes_make_mell_dearer_than_badge():
    badge, mell_ = (
        {s.name: s.operations for s in complexity.SUBJECTS}[k] for k in ("BADGE", "MELL")
    )
    ratios = {}
    for name in ("cifar10", "iwildcam"):
        e = experiment(name, shift=False)
        sizes = complexity.Sizes(n=e.candidates, m=e.targets, t=e.draws, c=e.classes)
        batch = complexity.Sizes(n=e.n_pool, picks=e.n_query, d=4096, c=e.classes)
        ratios[name] = badge(batch) / mell_(sizes)
    assert ratios["cifar10"] == pytest.approx(16, abs=1)
    assert 1 / ratios["iwildcam"] == pytest.approx(8, abs=0.5)


def test_the_fitted_exponent_is_the_power():
    sizes = [2.0**k for k in range(6)]
    assert theory.slope(sizes, [7 * s**1.5 for s in sizes]) == pytest.approx(1.5)


# --- batches and stopping ----------------------------------------------------------------------


def test_the_error_of_sampled_label_vectors_falls_with_the_root_of_their_number():
    errors = theory.monte_carlo_errors((8, 128), repeats=10, points=20, targets=10)
    assert 2.5 < errors[8] / errors[128] < 6.5  # √16 = 4; the ratio of two means of ten runs
    assert errors[8] < 0.35


def test_a_greedy_batch_promises_more_than_the_best_points_and_they_less_than_chance():
    shares = theory.promises((1, 10, 20, 40, 80))
    assert shares["Greedy"][0] == pytest.approx(shares["MEBL"][0], rel=1e-3)
    assert shares["Greedy"][1] > 0.9 * shares["MEBL"][2]
    assert shares["MEBL"][3] == pytest.approx(shares["Random"][3], abs=0.02)
    assert shares["Greedy"][4] > shares["Random"][4] > shares["MEBL"][4]


# --- draws and batches: noise or redundancy -----------------------------------------------------


@pytest.mark.parametrize("c", [2, 3, 5])
def test_a_worthless_label_scores_one_over_2t_per_degree_of_freedom(c):
    rng = np.random.default_rng(c)
    pool, val = (np.eye(c)[rng.integers(c, size=(60, 200))] for _ in range(2))  # independent
    np.testing.assert_allclose(mell(pool, val).mean(), (c - 1) ** 2 / (2 * 200), rtol=0.08)
    np.testing.assert_allclose(theory.degrees_of_freedom(pool, val), (c - 1) ** 2, rtol=0.01)


def test_degrees_of_freedom_of_independent_labels_are_products_and_follow_bald():
    """Each label depends on its own coordinate of θ, the target's on another one."""
    rng = np.random.default_rng(0)
    sides, widths = 40, np.linspace(0.2, 1.9, 30)[:, None]
    chance = 0.5 + widths * (rng.random((30, sides)) - 0.5) / 2  # [n sides]
    ours = np.stack([chance, 1 - chance], 2)  # [n sides c]
    pool, val = np.repeat(ours[:-1], sides, 1), np.tile(ours[-1:], (1, sides, 1))  # all pairs
    np.testing.assert_allclose(mell(pool, val), 0, atol=1e-15)
    spread = ours.var(1) / ours.mean(1)  # [n c]
    expected = spread[:-1].sum(1) * spread[-1].sum()
    np.testing.assert_allclose(theory.degrees_of_freedom(pool, val), expected)
    # Hence what few draws make of scores that are 0 is BALD, which knows no target.
    found = np.mean([mell(*theory.some_draws(pool, val, 50, rng)) for _ in range(100)], 0)
    np.testing.assert_allclose(found.mean(), expected.mean() / 100, rtol=0.15)
    for scores in (expected, found):
        assert np.corrcoef(scores, bald(pool))[0, 1] > 0.9


def test_the_bias_of_mell_is_known_and_can_be_taken_away():
    errors = theory.finite_bias((50, 200), repeats=20)
    for size in (0, 1):
        plain, known = errors["as it is"][size], errors["k / 2t"][size]
        assert plain == pytest.approx(known, rel=0.25)
        for name in ("less k / 2t", "jackknife"):
            assert abs(errors[name][size]) < 0.35 * plain
    assert 3 < errors["as it is"][0] / errors["as it is"][1] < 5.5  # 200 / 50


def finite_world(points):
    """A posterior of 1000 parameters, points and 20 targets."""
    return [
        random_draws(np.random.default_rng(i), n, 1000, 4, spread=2.0)
        for i, n in enumerate((points, 20))
    ]


def luck(pool, val, draws, estimate="as it is", repeats=10):
    """Mean of `theory.luck` of the best 10 by so many draws."""
    truth = np.asarray(mell(pool, val))
    samples = (
        theory.some_draws(pool, val, draws, np.random.default_rng(r)) for r in range(repeats)
    )
    found = [theory.luck(theory.ESTIMATES[estimate](*s), truth, 10) for s in samples]
    return theory.Luck(*np.mean(found, 0))


def test_the_winners_curse_shrinks_with_the_draws_and_grows_with_the_pool():
    pool, val = finite_world(400)
    few, more, many = (luck(pool, val, draws) for draws in (25, 100, 400))
    for found in (few, more, many):
        assert found.claimed > 1 >= found.true
    assert few.claimed - few.true > 2 * (more.claimed - more.true)
    assert more.claimed - more.true > 1.5 * (many.claimed - many.true)
    assert few.true < more.true < many.true
    assert many.true > 0.95
    # Without its bias, what is left of the claim is the luck of the best of many.
    curse = [
        np.subtract(*luck(pool[:points], val, 100, "jackknife", repeats=20)) for points in (20, 400)
    ]
    assert 0 < curse[0] < curse[1]


def test_taking_the_bias_away_mends_the_claims_and_not_the_picks():
    pool, val = finite_world(400)
    plain = luck(pool, val, 50)
    for name in ("less k / 2t", "jackknife"):
        mended = luck(pool, val, 50, name)
        assert abs(mended.claimed - mended.true) < 0.6 * (plain.claimed - plain.true)
        assert mended.true < plain.true + 0.02


def test_the_highest_scores_are_redundant_without_any_noise():
    """Every parameter is a draw; each of 30 points is there five times."""
    pool, val = (p[:, :400] for p in finite_world(30))
    copies = np.repeat(pool, 5, 0)
    top = theory.best(mell(copies, val), 10)
    assert len(set(top // 5)) == 2
    assert len(set(theory.best(mell(pool, val), 10))) == 10
    alone = mebl(copies[top], val).sum()
    together = promise(copies[top], val)
    greedy = theory.greedy((torch.from_numpy(copies), torch.from_numpy(val)), 10)
    assert len(set(greedy // 5)) > 5
    assert promise(copies[greedy], val) > 1.1 * together
    assert alone > 1.5 * together


def check_noise_and_redundancy(found):
    """What holds on digits and on MNIST, by three sets of 100 draws."""
    assert 0.8 < found["true, as it is"] < found["claimed, as it is"]  # noise boasts,
    for name in ("less k / 2t", "jackknife"):
        assert found[f"claimed, {name}"] < found["claimed, as it is"]
        assert found[f"true, {name}"] < found["true, as it is"] + 0.05  # but hardly misleads;
    assert found["alone"] > 1.5 * found["MELL, no noise"]  # redundancy is what costs:
    assert found["MELL, no noise"] < found["MELL"] + 0.1  # without noise it is no better,
    assert found["Greedy"] > found["MELL, no noise"]  # with as few draws a joint choice is


@pytest.mark.parametrize("setting", theory.SETTINGS)
def test_redundancy_and_not_noise_spoils_the_best_of_digits(setting):
    draws = theory.network_draws(setting, 0, 1000)
    check_noise_and_redundancy(theory.noise_and_redundancy(*draws, 10, many=300, sets=3))


def test_few_draws_take_what_is_scrambled_for_what_the_target_needs():
    found = theory.scrambled_picks((100, 600))
    share, noise, target = np.array([found[100], found[600]]).T
    assert share[0] > 0.3  # above the fifth that chance would buy
    assert share[1] < 0.1
    # What is scrambled is worth less, and claims more too much: its draws disagree more.
    assert (noise < target).all()
    assert noise[0] - noise[1] > 1.2 * (target[0] - target[1])


SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the data folder is not beside the repository")
def test_redundancy_and_not_noise_spoils_the_best_of_mnist():
    pool, val = theory.network_draws("no shift", 0, 1000, "mnist", str(SHARED / "mnist"))
    check_noise_and_redundancy(theory.noise_and_redundancy(pool[:800], val, 80, many=300, sets=3))


# --- how many draws a batch needs ----------------------------------------------------------------


def test_t_draws_span_t_less_one_directions_of_which_a_label_takes_c_less_one():
    E = explained(torch.from_numpy(random_draws(np.random.default_rng(0), 30, 20, 4)))
    ranks = [int(torch.linalg.matrix_rank(E[:size].reshape(-1, 20))) for size in (1, 2, 30)]
    assert ranks == [3, 6, 19]


@pytest.mark.parametrize(
    ("size", "classes", "draws", "noise"),
    [(10, 10, 300, 0.03), (40, 10, 360, 0.1), (100, 10, 900, 0.1), (2500, 10, 1000, 2.25)],
)
def test_the_rule(size, classes, draws, noise):
    greedy = GreedyConditioning()
    assert greedy.directions(size, classes) == size * (classes - 1)
    assert greedy.enough_draws(size, classes) == draws
    assert greedy.enough_noise(size, draws, classes) == pytest.approx(noise)


def test_the_rule_keeps_some_noise():
    assert GreedyConditioning().enough_noise(1, 1000, 2) == 1e-3


def auc(setting, batch, method, drawn="", noise=""):
    wanted = (setting, batch, method, str(drawn), str(noise))
    (found,) = (row.auc for row in draws.read() if row[:5] == wanted)
    return found


def test_what_the_grid_on_digits_says():
    for setting in ("no shift", "shift"):
        for batch in (10, 40, 100):
            ours = {t: auc(setting, batch, "Greedy", t, 0.1) for t in (300, 1000)}
            assert abs(ours[1000] - ours[300]) < 0.8  # enough is enough
            assert auc(setting, batch, "Greedy") > auc(setting, batch, "BADGE")
            # Ten times the draws do nothing for the highest scores, a joint choice does.
            noise = auc(setting, batch, "MELL", 1000) - auc(setting, batch, "MELL", 100)
            redundancy = ours[1000] - auc(setting, batch, "MELL", 1000)
            assert noise < 0.6
            assert redundancy > 5
    for batch in (10, 40, 100):
        ours = [auc("unseen", batch, "Greedy", t, 0.1) for t in (100, 300, 1000)]
        assert ours[0] + 2 < ours[1] < ours[2] + 0.1
        assert auc("narrow", batch, "Greedy") > auc("narrow", batch, "BADGE") + 7
        assert (
            auc("narrow", batch, "Greedy", 300, 0.1) > auc("narrow", batch, "Greedy", 100, 0.1) + 1
        )
    for batch in (40, 100):
        assert (
            auc("narrow", batch, "Greedy", 1000, 0.1) > auc("narrow", batch, "Greedy", 300, 0.1) + 1
        )
    few = [auc("narrow", 10, "Greedy", t) for t in (5, 10, 20)]
    assert few[0] < few[1] < few[2] - 5 < auc("narrow", 10, "Greedy") - 14


@pytest.mark.parametrize(("drawn", "there"), [(None, 100), (30, 30), (300, 300)])
def test_the_grid_uses_as_few_draws_as_it_says(drawn, there):
    choice = draws.Choice("Greedy", drawn)
    assert draws.experiment("shift", (40, 2), choice).draws == there
    assert choice.strategy().enough_draws(40, 10) == (drawn or 360)


def test_a_seed_set_that_has_not_seen_the_target():
    images = data.load("digits")
    split = data.split(images, experiment("digits", narrow=True), 0)
    inside = np.isin(images.labels, [3, 5, 8, 9])
    assert inside[split.seed].any()
    unseen = draws.without_target(split, inside)
    assert not inside[unseen.seed].any()
    assert inside[unseen.pool].sum() == inside[split.pool].sum() + inside[split.seed].sum()


# --- draws that agree too much -------------------------------------------------------------------


def less_badge(dropout, setting, batch, method):
    wanted = (dropout, setting, batch, method)
    (found,) = (row for row in sure.read() if row[:4] == wanted)
    return found.less_badge, found.explained


def test_what_surer_draws_do_to_both_accounts_of_noise():
    cases = [(s, b) for s in sure.SETTINGS for b in (10, 40, 100)]
    gains = []
    for case in cases:
        (own, share), (other, _) = (
            less_badge(0.5, *case, method) for method in ("aleatoric", "not aleatoric")
        )
        assert 0.3 < share < 0.7
        assert min(own, other) > 1
        gains.append(round(other - own, 1))
    assert (min(gains), max(gains)) == (0.0, 2.2)
    for setting, batch in cases:
        (own, share), (other, _) = (
            less_badge(0.02, setting, batch, method) for method in ("aleatoric", "not aleatoric")
        )
        assert share < 0.03
        if setting == "narrow":
            assert 6.9 < other < 19
        else:
            assert -8.1 < own < -2.2
            assert 0.9 < other < 4
        assert other > own + 3


def test_less_dropout_makes_surer_draws():
    told = [sure.trial(p, "no shift", (10, 1), "BADGE", 0)[1] for p in sure.DROPOUTS]
    assert told[1] < 0.05 < 0.1 < told[0]


# --- the document -----------------------------------------------------------------------------


def test_figures_are_drawn_small_and_shown(tmp_path):
    for name in ("linear", "draws"):
        theory.save(theory.FIGURES[name](), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size < 80_000
    shown = set(re.findall(r"\(theory/(\w+)\.png\)", (DOCS / "theory.md").read_text("utf-8")))
    assert shown == {*theory.FIGURES, "complexity"}
    sizes = {name: (DOCS / "theory" / f"{name}.png").stat().st_size for name in shown}
    assert max(sizes.values()) < 80_000
