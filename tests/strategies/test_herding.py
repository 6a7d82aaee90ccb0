"""Herding by changes alone against the plain loop over all pairs, in float64."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_ins import Table

import cover as measured
import sure
from foresee import InputError, MaxHerding, UncertaintyHerding, View, herd
from foresee.strategies import herding
from foresee.testing import check_strategy, random_draws, random_view


def rng(seed=0):
    return np.random.default_rng(seed)


def kernel(x, y, sigma):
    return np.exp(-((x[:, None] - y[None]) ** 2).sum(2) / sigma**2)


def plain(pool, cover, size, labelled, weights, sigma):
    """Picks of the plain loop, and the coverage after each."""
    k, covered = kernel(pool, cover, sigma), np.zeros(len(cover))
    if len(labelled):
        covered = kernel(labelled, cover, sigma).max(0)
    picks, coverage = [], []
    for _ in range(size):
        gains = (weights * (k - covered).clip(0)).sum(1)
        gains[picks] = -1
        picks.append(int(gains.argmax()))
        covered = np.maximum(covered, k[picks[-1]])
        coverage.append(weights @ covered)
    return picks, coverage


def clusters(n, d=5, seed=0):
    centres = 2 * rng(99).standard_normal((7, d))
    return centres[rng(seed).integers(7, size=n)] + rng(seed + 1).standard_normal((n, d))


@pytest.mark.parametrize("sigma", [0.3, 2.0, 30.0])
@pytest.mark.parametrize("labelled", [0, 1, 25])
@pytest.mark.parametrize("weighted", [False, True])
def test_picks_are_those_of_the_plain_loop(monkeypatch, sigma, labelled, weighted):
    monkeypatch.setattr(herding, "_TILE", 1 << 10)
    monkeypatch.setattr(herding, "_COLUMNS", 37)
    pool, cover, known = clusters(300), clusters(110, seed=5), clusters(labelled, seed=7)
    weights = rng(3).random(110) if weighted else np.ones(110)
    picks = herd(
        pool,
        cover,
        60,
        rng(),
        labelled=known if labelled else None,
        weights=weights if weighted else None,
        bandwidth=sigma,
    )
    expected, coverage = plain(pool, cover, 60, known, weights, sigma)
    assert len(set(picks.tolist())) == 60
    # Ever less is left: what differs at the end differs by rounding.
    assert picks[:25].tolist() == expected[:25]
    ours = [
        weights @ kernel(np.concatenate([known, pool[picks[:k]]]), cover, sigma).max(0)
        for k in (30, 45, 60)
    ]
    np.testing.assert_allclose(ours, [coverage[k - 1] for k in (30, 45, 60)], rtol=1e-6)


def test_gains_are_never_out_of_date_when_a_wide_kernel_lets_them_fall(monkeypatch):
    pool = clusters(400)
    fresh = herd(pool, pool, 100, rng(), bandwidth=50.0)
    monkeypatch.setattr(herding, "_FALL", 2.0)  # a survey before every pick
    assert herd(pool, pool, 100, rng(), bandwidth=50.0)[:60].tolist() == fresh[:60].tolist()


def test_a_pick_touches_those_points_only_that_it_covers_better(monkeypatch):
    seen, added = [], herding._added
    monkeypatch.setattr(herding, "_added", lambda p, c, *a: seen.append(len(c)) or added(p, c, *a))
    pool = clusters(400)
    herd(pool, pool, 40, rng(), labelled=clusters(50, seed=3), bandwidth=1.0)
    assert seen[0] == 400
    assert max(seen[1:]) < 200
    assert np.mean(seen[1:]) < 40


def test_a_pick_asks_for_no_length_and_for_no_free_memory(monkeypatch):
    asked = []

    def spied(plain):
        return lambda *args, **options: asked.append(plain) or plain(*args, **options)

    monkeypatch.setattr(torch.linalg, "vector_norm", spied(torch.linalg.vector_norm))
    monkeypatch.setattr(herding, "at_once", spied(herding.at_once))
    pool, counts = clusters(200), []
    for size in (1, 30):
        herd(pool, pool[:90], size, rng(), labelled=clusters(9, seed=3), bandwidth=1.0)
        counts.append(len(asked))
    assert counts[1] == 2 * counts[0] > 0


def test_bandwidth_is_the_smallest_distance_between_labelled_points_that_differ():
    known = clusters(30)
    known[7] = known[3]  # a copy
    apart = np.sqrt(((known[:, None] - known[None]) ** 2).sum(2))
    smallest = apart[apart > 0].min()
    cover = clusters(50, seed=2)
    centred = [torch.tensor(x - cover.mean(0)) for x in (cover, known)]
    assert herding._bandwidth(*centred) == pytest.approx(smallest, rel=1e-9)
    # Nothing labelled, or one point only: the root mean square distance between points to cover.
    between = ((cover[:, None] - cover[None]) ** 2).sum(2).mean() ** 0.5
    for few in (centred[1][:0], centred[1][:1], centred[1][[3, 7]]):
        assert herding._bandwidth(centred[0], few) == pytest.approx(between, rel=1e-9)
    # Labels all but equal: a bandwidth that float32 can tell from nothing.
    close = centred[1][:1] + torch.tensor([[0.0], [1e-3]])
    assert herding._bandwidth(centred[0], close) == pytest.approx(0.01 * between / 2**0.5)
    assert herding._bandwidth(torch.zeros(4, 3), torch.zeros(0, 3)) == 1


@pytest.mark.parametrize("kind", ["alike", "copies", "far"])
def test_where_nothing_is_left_to_cover_chance_decides(kind):
    pool = {
        "alike": np.ones((40, 3)),
        "copies": np.repeat(clusters(8), 5, axis=0),
        "far": 1e4 * clusters(40),
    }[kind]
    picks = [herd(pool, pool, 40, rng(s), bandwidth=0.5) for s in range(2)]
    for found in picks:
        assert sorted(found.tolist()) == list(range(40))
    assert picks[0].tolist() != picks[1].tolist()
    if kind == "copies":
        assert len(np.unique(pool[picks[0][:8]], axis=0)) == 8


def test_points_worth_nothing_are_not_covered():
    cover = np.eye(4)
    picks = herd(np.eye(4), cover, 2, rng(), weights=[0.0, 1.0, 0.0, 0.5])
    assert picks.tolist() == [1, 3]


@pytest.mark.parametrize("unit", [1e-310, 1e-60, 1e38, 1.7e308])
def test_weights_may_be_in_any_unit(unit):
    pool, weights = clusters(80), rng(1).random(80)
    expected = herd(pool, pool, 9, rng(), weights=weights).tolist()
    assert herd(pool, pool, 9, rng(), weights=unit * weights).tolist() == expected
    whole = (99 * weights).astype(int)
    expected = herd(pool, pool, 9, rng(), weights=1.0 * whole).tolist()
    for kind in ("i8", "u1", "u2", "u4", "u8", ">u4"):
        assert herd(pool, pool, 9, rng(), weights=whole.astype(kind)).tolist() == expected
    assert sorted(herd(pool, pool, 80, rng(), weights=0 * weights)) == list(range(80))


@pytest.mark.parametrize("apart", [1e2, 1e3, 1e5])
def test_a_kernel_far_narrower_than_the_features_spread(apart):
    centres, near = apart * rng(1).standard_normal((10, 4)), 0.4 * rng(2).standard_normal((200, 4))
    pool = centres[rng(3).integers(10, size=200)] + near
    picks = herd(pool, pool, 30, rng(), bandwidth=1.0)
    _, coverage = plain(pool, pool, 30, pool[:0], np.ones(200), 1.0)
    assert kernel(pool[picks], pool, 1.0).max(0).sum() == pytest.approx(coverage[-1], rel=1e-6)
    with pytest.raises(InputError, match=r"bandwidth = 1e-06 is lost beside features .* over"):
        herd(pool, pool, 30, rng(), bandwidth=1e-6)


def table(n=60, m=20, labelled=9, c=4, seed=0):
    total = n + m + labelled
    draws = random_draws(rng(seed), total, 6, c, spread=2)
    posterior = Table(draws, draws[:, 0], clusters(total, seed=seed))
    rows = np.arange(total)
    pool, val, known = np.split(rows, [n, n + m])
    return View(posterior, known, np.zeros(labelled, int), pool, val)


def unit(view, rows):
    x = view.posterior.embeddings[rows]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def likeness(both, m):
    """Importance, as the module's first lines have it, point by point."""
    apart = np.sqrt(((both[:, None] - both[None]) ** 2).sum(2))
    k = kernel(both, both, 0.7 * np.median(np.sort(apart, axis=1)[:, 10]))
    found = []
    for j in range(len(both)):
        target = [k[j, i] for i in range(m) if i != j]
        pool = [k[j, i] for i in range(m, len(both)) if i != j]
        mixed = (sum(target) + sum(pool)) / (len(target) + len(pool))
        found.append(np.mean(target) / mixed)
    return np.array(found)


@pytest.mark.parametrize("tile", [1, 500, 1 << 20])
def test_importance_is_the_density_of_the_target_over_that_of_both(monkeypatch, tile):
    monkeypatch.setattr(herding, "_TILE", tile)
    both = np.concatenate([clusters(40, seed=5), clusters(81)])
    ours = herding.importance(torch.tensor(both), 40).numpy()
    np.testing.assert_allclose(ours, likeness(both, 40), rtol=1e-4)


def test_importance_is_one_where_samples_are_alike_and_none_where_no_target_is():
    both = rng().standard_normal((900, 3))
    assert herding.importance(torch.tensor(both), 300).mean() == pytest.approx(1, abs=0.05)
    both[600:] += 50
    near, far = herding.importance(torch.tensor(both), 300).split([600, 300])
    assert near.mean() == pytest.approx(900 / 600, rel=0.05)
    assert far.max() < 1e-9
    for few in (torch.ones(5, 2), torch.eye(3) * 1e6):
        assert herding.importance(few, 1)[0] == 1
    copies = torch.tensor(rng().standard_normal((9, 3))).repeat(30, 1)  # ten at no distance
    assert (herding.importance(copies, 90) - 1).abs().max() < 0.1


def doubt(probs, temperature=1.0):
    tempered = probs ** (1 / temperature)
    tempered /= tempered.sum(1, keepdims=True)
    ordered = np.sort(tempered, axis=1)
    return 1 - (ordered[:, -1] - ordered[:, -2])


@pytest.mark.parametrize("cover", ["pool", "target", "both"])
@pytest.mark.parametrize("temperature", [None, 1.0, 3.0])
@pytest.mark.parametrize("point", [False, True])
def test_strategies_cover_what_they_say(cover, temperature, point):
    view = table()
    sets = {"pool": view.pool, "target": view.val, "both": np.append(view.val, view.pool)}
    goals = sets[cover]
    known = unit(view, view.labelled)
    if temperature is None:
        strategy, weights, sigma = MaxHerding(cover=cover), np.ones(len(goals)), 1.0
    else:
        strategy = UncertaintyHerding(
            cover=cover, bandwidth=None, temperature=temperature, point=point
        )
        probs = view.posterior.draws[goals].mean(1)
        probs = view.posterior.probs[goals] if point else probs
        weights = doubt(probs, temperature)
        apart = np.sqrt(((known[:, None] - known[None]) ** 2).sum(2))
        sigma = apart[apart > 0].min()
    pool, goals = unit(view, view.pool), unit(view, goals)
    if cover == "both":
        weights = weights * likeness(goals, len(view.val))
    _, coverage = plain(pool, goals, 10, known, weights, sigma)
    picks = strategy(view, 10, rng())
    # Two points that are each other's nearest cover as much: not the picks are unique, this is.
    ours = [
        weights @ kernel(np.concatenate([known, pool[picks[: k + 1]]]), goals, sigma).max(0)
        for k in range(10)
    ]
    np.testing.assert_allclose(ours, coverage, rtol=1e-6)


def test_the_first_batch_needs_neither_labels_nor_draws():
    view = replace(table(), labelled=None, labels=None)
    view.posterior.draws = view.posterior.probs = None
    picks = MaxHerding(cover="target")(view, 5, rng())
    pool, goals = unit(view, view.pool), unit(view, view.val)
    assert picks.tolist() == plain(pool, goals, 5, pool[:0], np.ones(20), 1.0)[0]


def test_subsets_are_drawn_anew():
    view = table(n=200)
    strategy = UncertaintyHerding(candidates=20, targets=15)
    picks = [set(strategy(view, 10, rng(s)).tolist()) for s in range(20)]
    assert len(set.union(*picks)) > 60


@pytest.mark.parametrize("cover", ["pool", "target", "both"])
@pytest.mark.parametrize("kind", [MaxHerding, UncertaintyHerding])
def test_laws_of_a_strategy(kind, cover):
    check_strategy(kind(cover=cover))


def test_products_are_precise_whatever_the_caller_chose(monkeypatch):
    exponent, precisions = herding._exponent, set()

    def spy(*args):
        precisions.add(torch.get_float32_matmul_precision())
        return exponent(*args)

    monkeypatch.setattr(herding, "_exponent", spy)
    torch.set_float32_matmul_precision("medium")
    try:
        MaxHerding()(random_view(rng()), 5, rng())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert precisions == {"highest"}


def test_wrong_arguments_are_named():
    x = clusters(20)
    with pytest.raises(InputError, match='cover must be "pool", "target" or "both", got \'val\''):
        MaxHerding(cover="val")
    for sigma in (0, -1, np.nan, np.inf, "1"):
        with pytest.raises(InputError, match="bandwidth must be None or positive and finite"):
            UncertaintyHerding(bandwidth=sigma)
        with pytest.raises(InputError, match="bandwidth must be None or positive and finite"):
            herd(x, x, 3, rng(), bandwidth=sigma)
    with pytest.raises(InputError, match="temperature must be positive and finite, got 0"):
        UncertaintyHerding(temperature=0)
    with pytest.raises(InputError, match="size = 21 is more than the 20 points of the pool"):
        herd(x, x, 21, rng())
    with pytest.raises(InputError, match="pool must be a finite matrix"):
        herd(x * np.nan, x, 2, rng())
    with pytest.raises(InputError, match="cover is empty"):
        herd(x, x[:0], 2, rng())
    with pytest.raises(InputError, match=r"the same features, got \[5, 4, 5\] of them"):
        herd(x, x[:, :4], 2, rng())
    for weights in (-np.ones(20), np.full(20, np.nan), np.ones(19), np.ones((20, 1))):
        with pytest.raises(InputError, match="weights must be one finite number, at least 0"):
            herd(x, x, 2, rng(), weights=weights)
    view = table()
    view.posterior.embeddings = np.full((89, 5), np.inf)
    for cover, name in (("pool", "pool"), ("target", "val")):
        with pytest.raises(InputError, match=rf"embed\({name}\) must be a finite matrix"):
            MaxHerding(cover=cover)(view, 2, rng())
    with pytest.raises(InputError, match=r"view\.val is None, and this method needs a target"):
        MaxHerding(cover="target")(replace(table(), val=None), 2, rng())
    view = table()
    view.posterior.draws = np.log(view.posterior.draws)
    with pytest.raises(InputError, match=r"predict\(val\) holds log-probabilities"):
        UncertaintyHerding(cover="target")(view, 2, rng())


def test_the_guide_to_methods_shows_what_covering_brings():
    guide = (Path(__file__).parents[2] / "docs" / "methods.md").read_text().replace("−", "-")
    for method in measured.METHODS[1:]:
        rows = [row for row in measured.read() if row.method == method]
        cells = " | ".join(f"{row.less_badge:+.2f} ± {row.error:.2f}" for row in rows)
        assert f"| {method} | {cells} |" in guide
        worst = min(row.less_badge for row in rows)
        assert (worst > 0) == (method in ("UHerding", "Default"))


def test_the_guide_to_methods_shows_what_the_default_brings_in_larger_batches():
    guide = (Path(__file__).parents[2] / "docs" / "methods.md").read_text().replace("−", "-")
    names = {"Default": "Default", "not aleatoric": "GreedySure"}
    for dropout, (method, name) in product(sure.DROPOUTS, names.items()):
        rows = [r for r in sure.read() if (r.dropout, r.method) == (dropout, method)]
        of = {s: [r.less_badge for r in rows if r.setting == s] for s in sure.SETTINGS}
        cells = (" / ".join(f"{gap:+.1f}" for gap in gaps) for gaps in of.values())
        assert f"| {name}, dropout {dropout:g} | {' | '.join(cells)} |" in guide
        assert min(gap for gaps in of.values() for gap in gaps) > 0


def test_a_trial_of_what_covering_brings_begins_with_the_same_network():
    first = [measured.trial("narrow", method, 0)[0] for method in ("BADGE", "Default")]
    assert first[0] == first[1]
