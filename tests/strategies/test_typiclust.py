"""TypiClust against its rule, followed step by step in float64."""

import numpy as np
import pytest
import torch
from stand_ins import Identity

from foresee import InputError, TypiClust, View
from foresee.strategies import typiclust
from foresee.testing import check_strategy


def rng(seed=0):
    return np.random.default_rng(seed)


def choose(strategy, pool, labelled=None, size=5, seed=0):
    labels = None if labelled is None else np.zeros(len(labelled), int)
    picks = strategy(View(Identity(), labelled, labels, pool, None), size, rng(seed))
    assert picks.dtype == np.int64
    assert len(set(picks.tolist())) == len(picks) == size
    return picks


def blobs(sizes, seed=0, spread=0.05):
    """Points around corners of a cube, and which: so many at each."""
    which = np.repeat(np.arange(len(sizes)), sizes)
    x = np.eye(len(sizes))[which] + spread * rng(seed).standard_normal((len(which), len(sizes)))
    return x, which


def plain(points, cluster, labels, size, neighbours):
    """The rule, point by point."""
    left = {k: np.flatnonzero(cluster == k).tolist() for k in range(len(labels))}
    start = {k: len(rows) for k, rows in left.items()}
    turns = sorted(left, key=lambda k: (start[k] < 5, labels[k], -start[k]))
    picks = []
    while len(picks) < size:
        turn = [k for k in turns if len(left[k]) >= 5] or [k for k in turns if left[k]]
        for k in turn[: size - len(picks)]:
            near = min(neighbours, len(left[k]) // 2)
            typical = []
            for i in left[k]:
                apart = [np.linalg.norm(points[i] - points[j]) for j in left[k] if j != i]
                typical.append(-np.mean(sorted(apart)[:near]) if near else 0)
            picks.append(left[k].pop(int(np.argmax(typical))))
    return picks


@pytest.mark.parametrize("neighbours", [1, 3, 20])
@pytest.mark.parametrize("size", [1, 4, 11, 70])
def test_picks_are_those_of_the_rule(monkeypatch, size, neighbours):
    monkeypatch.setattr(typiclust, "_TILE", 50)
    points = rng().standard_normal((70, 3))
    cluster = rng(1).integers(9, size=70) ** 2 // 8  # of uneven sizes
    labels = rng(2).integers(3, size=9)
    turns = typiclust._turns(cluster, labels)
    picks = typiclust._most_typical(torch.tensor(points), cluster, turns, size, neighbours)
    assert picks.tolist() == plain(points, cluster, labels, size, neighbours)


def test_each_cluster_without_a_label_gives_one_point_the_largest_first():
    pool, which = blobs([30, 20, 10, 40])
    assert which[choose(TypiClust(), pool, size=4)].tolist() == [3, 0, 1, 2]
    # Three clusters for one label and two picks: two blobs are one, and the label's comes last.
    known = np.eye(4)[[3]]
    picks = which[choose(TypiClust(), pool, known, size=3)]
    assert 3 not in picks.tolist()


def test_outliers_wait():
    x, which = blobs([30, 20, 1, 2])
    assert set(which[choose(TypiClust(), x, size=4)][:2].tolist()) == {0, 1}
    assert sorted(choose(TypiClust(), x, size=53).tolist()) == list(range(53))


def test_typical_points_lie_in_the_middle():
    pool = np.array([1.0, 0.0]) + rng().standard_normal((200, 2)) * [0, 0.2]
    pick = choose(TypiClust(), pool, size=1)[0]
    assert abs(pool[pick, 1]) < 0.2


def test_clusters_are_no_more_than_the_most(monkeypatch):
    seen, clusters = [], typiclust._clusters
    monkeypatch.setattr(typiclust, "_clusters", lambda x, k, s: seen.append(k) or clusters(x, k, s))
    pool, labelled = rng().standard_normal((90, 4)), rng(1).standard_normal((30, 4))
    choose(TypiClust(), pool, labelled, size=20)
    choose(TypiClust(clusters=7), pool, labelled, size=20)
    choose(TypiClust(), pool, labelled, size=90)  # by batches
    choose(TypiClust(candidates=25), pool, labelled, size=25)
    assert seen == [50, 7, 120, 55]


def test_points_that_are_all_alike():
    assert len(choose(TypiClust(), np.ones((30, 3)), size=12)) == 12


def test_laws_of_a_strategy():
    check_strategy(TypiClust())


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match="clusters must be at least 1, got 0"):
        TypiClust(clusters=0)
    with pytest.raises(InputError, match="neighbours must be at least 1, got 0"):
        TypiClust(neighbours=0)
    broken = np.full((9, 2), np.nan)
    with pytest.raises(InputError, match=r"embed\(pool\) must be a finite matrix"):
        choose(TypiClust(), broken)
    with pytest.raises(InputError, match=r"embed\(labelled\) must be a finite matrix"):
        choose(TypiClust(), np.ones((9, 2)), broken)
