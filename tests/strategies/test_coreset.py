"""Lazy k-centre against the plain greedy loop."""

import numpy as np
import pytest
import torch
from stand_ins import Identity

from foresee.errors import InputError
from foresee.strategies import coreset, kmeanspp
from foresee.strategies.coreset import Coreset
from foresee.testing import check_strategy
from foresee.types import View


def choose(strategy, pool, labelled=None, size=10, seed=0):
    labelled = pool[:0] if labelled is None else labelled
    view = View(Identity(), labelled, np.zeros(len(labelled), dtype=np.int64), pool, pool[:0])
    picks = strategy(view, size, np.random.default_rng(seed))
    assert picks.dtype == np.int64
    assert len(set(picks.tolist())) == len(picks) == size
    return picks


def distances(x, y):
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return np.sqrt(((x[:, None] - y[None]) ** 2).sum(2))


def covering(pool, labelled, picks):
    """The distance to the nearest centre of the farthest point."""
    centres = np.concatenate([labelled, pool[list(picks)]])
    return distances(pool, centres).min(1).max()


def naive(pool, labelled, size):
    """Picks of the plain loop, and how far each was from the centres before it."""
    far = distances(pool, labelled).min(1)
    picks, radii = [], []
    for _ in range(size):
        picks.append(int(far.argmax()))
        radii.append(far[picks[-1]])
        far = np.minimum(far, distances(pool, pool[picks[-1:]])[:, 0])
        far[picks] = -1
    return picks, radii


def data(kind, n, seed=0, d=6):
    rng = np.random.default_rng(seed)
    if kind == "normal":
        x = rng.standard_normal((n, d))
    elif kind == "clusters":
        x = rng.standard_normal((5, d))[rng.integers(5, size=n)] * 4
        x += rng.standard_normal((n, d)) * rng.gamma(1, 1, (n, 1))
    elif kind == "offset":
        x = 1000 + rng.standard_normal((n, d))
    elif kind == "copies":
        x = rng.standard_normal((n // 4, d))[rng.integers(n // 4, size=n)]
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "clusters", "offset"])
@pytest.mark.parametrize("block", [1, 8, 256])
def test_picks_are_those_of_the_plain_loop(monkeypatch, kind, block):
    monkeypatch.setattr(coreset, "BLOCK", block)
    x = data(kind, n=700)
    pool, labelled = x[20:], x[:20]
    assert choose(Coreset(), pool, labelled, size=120).tolist() == naive(pool, labelled, 120)[0]


@pytest.mark.parametrize(
    ("away", "places"), [(1e6, [350]), (1e12, [350]), (1e4, range(9, 500)), (1e6, range(9, 500))]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_points_far_away_take_no_digits_from_the_others(away, places, dtype):
    x = data("normal", n=700).astype(dtype)
    x[places, 0] += away
    x[0, 0] -= away
    for size in (1, 60):
        picks = choose(Coreset(), x[20:], x[:20], size=size)
        assert picks.tolist() == naive(x[20:], x[:20], size)[0]
    alone = choose(Coreset(), x, size=60)
    assert alone[1:].tolist() == naive(x, x[alone[:1]], 59)[0]


@pytest.mark.parametrize("kind", ["normal", "clusters", "offset", "copies"])
def test_where_float32_suffices_nothing_is_done_twice(monkeypatch, kind):
    calls, k_centre = [], coreset._k_centre
    monkeypatch.setattr(coreset, "_k_centre", lambda *args: calls.append(1) or k_centre(*args))
    x = data(kind, n=2000, d=2)
    choose(Coreset(), x, size=300)
    choose(Coreset(), x[20:], x[:20], size=300)
    choose(Coreset(), x[:1], size=1)
    choose(Coreset(), np.ones_like(x), size=9)
    assert len(calls) == 4


@pytest.mark.parametrize("seed", range(3))
def test_every_pick_is_the_farthest_when_there_are_copies_and_no_labels(seed):
    pool = data("copies", n=800, seed=seed)
    picks = choose(Coreset(), pool, size=300, seed=seed)
    # With copies the order is not unique, but after the same first pick all radii are.
    distinct = len(np.unique(pool, axis=0))
    assert distinct < 200
    _, radii = naive(pool, pool[picks[:1]], 299)
    taken = [covering(pool, pool[picks[:1]], picks[1:k]) for k in range(1, 300, 13)]
    np.testing.assert_allclose(taken, np.maximum(radii[::13], 0), atol=1e-5)
    assert len(np.unique(pool[picks[:distinct]], axis=0)) == distinct


def test_without_labels_the_first_pick_is_uniform_and_ties_are_random():
    pool = np.eye(5, dtype=np.float32)
    counts = np.zeros((5, 5))
    for seed in range(1000):
        counts[tuple(choose(Coreset(), pool, size=2, seed=seed))] += 1
    assert counts.trace() == 0
    expected = 1000 / 20
    # 19 degrees of freedom: 43.8 is passed once in a thousand.
    off_diagonal = counts[~np.eye(5, dtype=bool)]
    assert ((off_diagonal - expected) ** 2 / expected).sum() < 43.8


def test_same_generator_same_picks_for_arrays_and_tensors():
    x = data("normal", n=300)
    x.flags.writeable = False
    picks = choose(Coreset(), x, size=100)
    for same in (np.asfortranarray(x), x.astype(np.float64), torch.tensor(x, requires_grad=True)):
        assert choose(Coreset(), same, size=100).tolist() == picks.tolist()
    assert choose(Coreset(), torch.tensor(x).bfloat16(), size=100)[0] == picks[0]
    assert choose(Coreset(), x, size=100, seed=1).tolist() != picks.tolist()


def test_memory_stays_bounded_and_products_precise(monkeypatch):
    squared, sizes, precisions = coreset._squared, [], []

    def spy(x, y):
        sizes.append(len(x) * len(y))
        precisions.append(torch.get_float32_matmul_precision())
        return squared(x, y)

    monkeypatch.setattr(coreset, "_squared", spy)
    monkeypatch.setattr(kmeanspp, "_TILE", 1 << 12)
    monkeypatch.setattr(kmeanspp, "_COLUMNS", 32)
    monkeypatch.setattr(coreset, "BLOCK", 64)
    x = data("normal", n=1000)
    torch.set_float32_matmul_precision("medium")
    try:
        picks = choose(Coreset(), x[300:], x[:300], size=60)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert picks.tolist() == naive(x[300:], x[:300], 60)[0]
    assert max(sizes) <= 1 << 12
    assert set(precisions) == {"highest"}


def test_laws_of_a_strategy():
    check_strategy(Coreset())


def test_wrong_arguments_are_named():
    pool = data("normal", n=20)
    with pytest.raises(InputError, match="size = 21 is more than the 20 points of the pool"):
        choose(Coreset(), pool, size=21)
    broken = pool.copy()
    broken[3, 2] = np.nan
    with pytest.raises(InputError, match=r"embed\(pool\) must be a finite matrix"):
        choose(Coreset(), broken)
    with pytest.raises(InputError, match=r"embed\(labelled\) must be a finite matrix"):
        choose(Coreset(), pool, broken)
    with pytest.raises(InputError, match=r"finite matrix.*flatten"):
        choose(Coreset(), pool[:, :, None])
