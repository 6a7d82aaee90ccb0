"""The highest MELL scores without computing all of them: bounds that cost a small part.

With P_i [t c] the predictions for point i and p̄_i [c] their mean over draws, Q_j and q̄_j those for
target j, and rows A_ic [t] = P_ic / p̄_ic − 1 and B_jk [t] = Q_jk / q̄_jk − 1 of their classes
(see `tiled` for φ),

    MELL_i = Σ_c p̄_ic · term_ic,   term_ic = (1/m) Σ_jk q̄_jk φ(u),   u = A_ic·B_jk / t

With u² in place of φ(u) a term would need one t×t matrix for all targets, as MEBL does:

    χ²_ic = (1/m) Σ_jk q̄_jk u² = ‖A_ic F‖²,   F Fᵀ = Σ_jk q̄_jk B_jk B_jkᵀ / (m t²)

and that bounds the term:

    term_ic  ≤  min(log(1 + χ²_ic), κ(x_ic) χ²_ic)

The first by Jensen's inequality: the left side is a mean of divergences, none of which is above
log(1 + its χ²). The second as φ(u) ≤ κ(x) u² for u ≥ −x, where κ(x) = φ(−x) / x² grows from ½ to 1;
and u ≥ −x_ic both for x = −min_t A_ict, as u is a mean of A_ic over weighted draws, and for
x = ‖A_ic‖ max ‖B_jk‖ / t.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks
from foresee.kernels import tiled
from foresee.kernels.elementwise import phi
from foresee.strategies.candidates import (
    CHUNK,
    check_subsets,
    checked_draws,
    draw_candidates,
    pool_draws,
    target_draws,
)
from foresee.types import Array, View

_SLACK = 1 + 1e-4  # far more than the rounding of a score in float32
_BLOCK = 256  # points scored at once, at least
_ENTRIES = 1 << 20  # of A that are worked on at once


@dataclass(frozen=True)
class TopMell:
    """Label the points with the highest MELL: the picks of ``TopK(mell)``, often in less time.

    Bounds cost c t² for each point, scores m c² t: what is gained grows with targets and classes.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all.
        chunk: bytes of predictions that are held at once, beside those for the targets.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> TopMell()(view, 3, np.random.default_rng(0))
    array([24, 11, 10])
    """

    candidates: int | None = None
    targets: int | None = None
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates [size], best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        with tiled.full_precision():
            targets = _Targets(val)
        picks, scores = np.empty(0, np.int64), np.empty(0)
        start = 0
        for points in pool_draws(view, order, val, self.chunk):
            floor = scores[-1] if len(scores) == size else 0.0
            with tiled.full_precision():
                best = _top(points, targets, min(size, len(points)), floor)
            picks = np.append(picks, start + best.picks)
            scores = np.append(scores, best.scores)
            # Stable: of equals the first wins, and the order is random.
            keep = np.argsort(-scores, kind="stable")[:size]
            picks, scores, start = picks[keep], scores[keep], start + len(points)
        return order[picks]


@dataclass(frozen=True)
class Best:
    """The k highest scores: positions [k], best first, scores [k], and the share of points scored.

    All the others were known by their bounds to be lower.
    """

    picks: NDArray[np.int64]
    scores: NDArray[Any]
    share: float


def mell_top_k(pool: Array, val: Array, k: int) -> Best:
    """The k highest of ``mell(pool, val)``; equal ones in the order of the pool.

    Args:
        pool: draws of the pool [n t c].
        val: the same draws of the validation set [m t c].
        k: how many, from 1 to n.

    >>> from foresee.testing import random_draws
    >>> rng = np.random.default_rng(0)
    >>> pool, val = random_draws(rng, 500, t=20, c=3), random_draws(rng, 50, t=20, c=3)
    >>> mell_top_k(pool, val, 3).picks
    array([129, 410, 103])
    """
    points, targets = checked_draws("pool", pool), checked_draws("val", val)
    checks.same_posterior(pool, val)
    checks.count("k", k, len(points), of="the pool")
    dtype = torch.promote_types(points.dtype, targets.dtype)
    with tiled.full_precision():
        return _top(points.to(dtype), _Targets(targets.to(dtype)), k)


def _top(points: Float[Tensor, "n t c"], targets: "_Targets", k: int, floor: float = 0.0) -> Best:
    """The k highest scores, less some of those that are below ``floor``.

    Points are scored by falling upper bound, block by block, until no bound reaches the k-th
    highest score.
    """
    n = len(points)
    high = targets.bound(points)  # [n], the bounds of points not scored yet
    scores = torch.full_like(high, -1.0)  # [n]
    step = max(k, _BLOCK)
    while True:
        least = max(floor, float(scores.topk(k).values[-1]))
        block = high.topk(min(step, n)).indices
        block = block[high[block] >= least]
        if not len(block):
            break
        scores[block] = tiled.log_loss_reduction(points[block], targets.val)
        high[block] = -torch.inf
        step = max(_BLOCK, k // 8)
    found = arrays.numpy((scores >= 0).nonzero()[:, 0])
    best = arrays.numpy(scores)[found]
    order = np.argsort(-best, kind="stable")[:k]
    return Best(found[order], best[order], len(found) / n)


class _Targets:
    """What bounds need of the validation set: max ‖B_jk‖ / √t, and F [t t]."""

    def __init__(self, val: Float[Tensor, "m t c"]) -> None:
        self.val = val
        rows, mean, length = _deviations(val)  # [m c t], [m c], [m c]
        self.longest = length.max()
        self.root = _root((rows * mean.sqrt()[..., None]).flatten(0, 1), len(val))

    def bound(self, points: Float[Tensor, "n t c"]) -> Float[Tensor, "n"]:
        """At least MELL: Σ_c p̄ · min(log(1 + χ²), κ(x) χ²)."""
        parts = []
        for part in points.split(max(1, _ENTRIES // points[0].numel())):
            rows, mean, length = _deviations(part)  # [n c t], [n c], [n c]
            chi2 = (rows @ self.root).square().sum(2)  # [n c]
            x = torch.minimum(-rows.amin(2), length * self.longest).clamp(1e-3, 1)  # [n c]
            kappa = phi(-x) / x.square()  # [n c]
            parts.append((mean * torch.minimum(chi2.log1p(), kappa * chi2)).sum(1))
        return torch.cat(parts) * _SLACK


def _deviations(
    probs: Float[Tensor, "n t c"],
) -> tuple[Float[Tensor, "n c t"], Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """A = P/p̄ − 1, p̄ and ‖A‖/√t."""
    relative, mean = tiled.relative(probs)
    rows = relative.transpose(1, 2)
    return rows, mean, rows.square().mean(2).sqrt()


def _root(rows: Float[Tensor, "r t"], m: int) -> Float[Tensor, "t t"]:
    """F, where F Fᵀ is the sum over rows b of b bᵀ / (m t²)."""
    t = rows.shape[1]
    gram = torch.zeros(t, t, dtype=torch.float64, device=rows.device)
    for part in rows.split(max(1, _ENTRIES // t)):
        gram += part.double().T @ part.double()
    return (tiled.root(gram / m) / t).to(rows)
