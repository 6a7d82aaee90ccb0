"""TypiClust: of every cluster that has no label yet, the largest first, its most typical point.

Hacohen et al. 2022, arXiv:2202.02794. Embeddings, scaled to length one, of the pool and of what is
labelled fall into |labelled| + size clusters (at most 500) by k-means: at least ``size`` of them
have no label. A point is the more typical the nearer its neighbours are,

    typicality(x) = 1 / mean of ‖x − x'‖ over the K nearest of its cluster,

with K = 20, or half of a smaller cluster. Where few points are labelled, typical ones teach most.

Clusters with the fewest labels come first, of these the largest. One of fewer than 5 points is an
outlier's, and waits until no other has a point left.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks, seeding
from foresee.strategies.candidates import (
    check_subsets,
    draw_candidates,
    labelled_embeddings,
    matrix,
)
from foresee.types import View

_SMALLEST = 5  # points of a cluster that counts
_LLOYD = 50  # clusters up to which all points move the centres at once, as in the paper
_BATCH = 5000
_TILE = 1 << 22  # distances computed at once


@dataclass(frozen=True)
class TypiClust:
    """Label the most typical point of each cluster that has no label yet.

    Needs neither draws nor target: it asks the posterior for embeddings [n d]. Clusters are found
    on the CPU, by scikit-learn's k-means, on batches of points where there are more than 50.

    Args:
        candidates: size of a random subset of the pool to cluster and to choose from; None: all.
        clusters: the most that are formed.
        neighbours: K, over which the distance is averaged.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> TypiClust()(view, 3, np.random.default_rng(0))
    array([ 7, 10, 14])
    """

    candidates: int | None = None
    clusters: int = 500
    neighbours: int = 20

    def __post_init__(self) -> None:
        check_subsets(self.candidates, None)
        for name in ("clusters", "neighbours"):
            checks.whole(name, getattr(self, name))

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        pool = arrays.Rows(view.pool, order)
        points = matrix("posterior.embed(pool)", view.posterior.embed, pool)
        known = labelled_embeddings(view, points).to(points)
        rows = torch.nn.functional.normalize(torch.cat([points, known]), dim=1)
        k = min(len(known) + size, self.clusters, len(rows))
        cluster = _clusters(rows, k, seeding.number(rng))
        n = len(points)
        turn = _turns(cluster[:n], np.bincount(cluster[n:], minlength=k))
        return order[_most_typical(rows[:n], cluster[:n], turn, size, self.neighbours)]


def _clusters(rows: Float[Tensor, "n d"], k: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each row."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    if k <= _LLOYD:
        means = KMeans(k, n_init=1, random_state=seed)
    else:
        means = MiniBatchKMeans(k, n_init=1, batch_size=_BATCH, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different points than clusters
        return means.fit_predict(arrays.numpy(rows)).astype(np.int64)


def _turns(cluster: NDArray[np.int64], labels: NDArray[np.int64]) -> list[int]:
    """The clusters that have points, in the order of their turn; ``labels`` are counted by it."""
    sizes = np.bincount(cluster, minlength=len(labels))
    # np.lexsort reads its last key first: few points last, then few labels first, large ones first.
    order = np.lexsort((-sizes, labels, sizes < _SMALLEST))
    return [int(k) for k in order if sizes[k]]


def _most_typical(
    points: Float[Tensor, "n d"],
    cluster: NDArray[np.int64],
    turns: list[int],
    size: int,
    neighbours: int,
) -> NDArray[np.int64]:
    """Positions [size]: turn by turn the most typical point that its cluster has left."""
    by_cluster = np.split(np.argsort(cluster, kind="stable"), np.bincount(cluster).cumsum()[:-1])
    left = {k: by_cluster[k] for k in turns}
    picks: list[int] = []
    while len(picks) < size:
        large = [k for k in turns if len(left[k]) >= _SMALLEST]
        for k in (large or [k for k in turns if len(left[k])])[: size - len(picks)]:
            best = _least_distance(points[torch.from_numpy(left[k])], neighbours)
            picks.append(int(left[k][best]))
            left[k] = np.delete(left[k], best)
    return np.array(picks, dtype=np.int64)


def _least_distance(points: Float[Tensor, "n d"], neighbours: int) -> int:
    """Which point has the nearest neighbours; among equals the first."""
    n, rows = len(points), points.double()  # near distances are small differences
    k = min(neighbours, n // 2)
    # By differences, not products: two that are each other's nearest must be equals to the bit.
    exact = "donot_use_mm_for_euclid_dist"
    totals = [
        # Among the k + 1 nearest is the point itself, at distance 0.
        torch.cdist(part, rows, compute_mode=exact).topk(k + 1, largest=False).values.sum(1)
        for part in rows.split(max(1, _TILE // n))
    ]
    return int(torch.cat(totals).argmin())
