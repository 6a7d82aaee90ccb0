"""The highest MELL scores without computing all of them: bounds that cost a small part.

With P_i [t c] the predictions for point i and p̄_i [c] their mean over draws, Q_j and q̄_j those for
target j, and rows A_ic [t] = P_ic / p̄_ic − 1 and B_jk [t] = Q_jk / q̄_jk − 1 of their classes
(see `tiled` for φ),

    MELL_i = Σ_c p̄_ic · term_ic,   term_ic = (1/m) Σ_jk q̄_jk φ(u),   u = A_ic·B_jk / t

With u² in place of φ(u) a term would need one t×t matrix for all targets, as MEBL does:

    χ²_ic = (1/m) Σ_jk q̄_jk u² = ‖A_ic F‖²,   F Fᵀ = Σ_jk q̄_jk B_jk B_jkᵀ / (m t²)

and that bounds the term:

    term_ic  ≤  min(log(1 + χ²_ic), κ(x_ic) χ²_ic)

The first bound is Jensen's inequality: Σ_k q̄_jk φ(u) is a divergence, which is at most
log(1 + its χ²), and a term is the mean of these over targets. The second holds as φ(u) ≤ κ(x) u²
for u ≥ −x, where κ(x) = φ(−x) / x² grows from ½ to 1. Two values of x_ic will do, and the lower is
taken:

    −min_t A_ict,  as u is a mean of A_ict over draws, weighted by Q_jtk
    ‖A_ic‖ max_jk ‖B_jk‖ / t,  by Cauchy and Schwarz

No term is negative. So the terms of likely classes alone are a lower bound of MELL, and with the
bounds of all the others it becomes an upper one: `_Targets.bracket`.
"""

from collections.abc import Callable
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

_UNLIKELY = 1e-3  # mean probability of classes that `bracket` leaves out
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
        checks.byte_count("chunk", self.chunk)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates [size], best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        with tiled.full_precision():
            targets = _Targets(val, _UNLIKELY)
        picks, scores = np.empty(0, np.int64), np.empty(0)
        start = 0
        for points in pool_draws(view, order, val, self.chunk):
            floor = scores[-1] if len(scores) == size else 0.0
            with tiled.full_precision():
                best = _top(points.to(val), targets, min(size, len(points)), floor)
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
    pool, val = checks.draws("pool", pool), checks.draws("val", val)
    checks.same_posterior(pool, val)
    points, targets = checked_draws("pool", pool), checked_draws("val", val)
    checks.count("k", k, len(points), of="the pool")
    dtype = torch.promote_types(points.dtype, targets.dtype)
    with tiled.full_precision():
        return _top(points.to(dtype), _Targets(targets.to(dtype), _UNLIKELY), k)


def _top(points: Float[Tensor, "n t c"], targets: "_Targets", k: int, floor: float = 0.0) -> Best:
    """The k highest scores, less some of those that are below ``floor``.

    Points are scored by falling upper bound, block by block, until no bound reaches the k-th
    highest lower one, which a score is too. Where classes are many, tighter bounds are computed
    first, in the same way.
    """
    n = len(points)
    high = targets.bound(points)  # [n], as are all below
    low = torch.zeros_like(high)

    def tighten(evaluate: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Replace the bounds of all points that may be among the k; return which those are."""
        done = torch.zeros(n, dtype=torch.bool, device=high.device)
        step = max(k, _BLOCK)
        while True:
            least = max(floor, float(low.topk(k).values[-1]))
            rest = torch.where(done, -1.0, high)
            block = rest.topk(min(step, n)).indices
            block = block[rest[block] >= least]
            if not len(block):
                return done
            low[block], high[block] = evaluate(points[block])
            done[block] = True
            step = max(_BLOCK, k // 8)

    if targets.pruning_pays(points):
        tighten(targets.bracket)
    scored = arrays.numpy(tighten(targets.score).nonzero()[:, 0])
    scores = arrays.numpy(low)[scored]
    order = np.argsort(-scores, kind="stable")[:k]
    return Best(scored[order], scores[order], len(scored) / n)


class _Targets:
    """What bounds and scores need of the validation set.

    Attributes:
        likely: the classes of each target with a mean probability of at least ``below``; where it
            has none of those, its likeliest [m c].
        longest: max ‖B_jk‖ / √t.
        root, unlikely_root: F of all classes of targets, and of those that are not likely [t t].
    """

    def __init__(self, val: Float[Tensor, "m t c"], below: float) -> None:
        self.val, self.below = val, below
        rows, mean, length = _deviations(val)  # [m c t], [m c], [m c]
        self.longest = length.max()
        self.likely = mean >= mean.amax(1, keepdim=True).clamp_max(below)
        weighted = rows * mean.sqrt()[..., None]  # √q̄ B [m c t]
        self.root = _root(weighted.flatten(0, 1), len(val))
        self.unlikely_root = _root(weighted[~self.likely], len(val))

    def bound(self, points: Float[Tensor, "n t c"]) -> Float[Tensor, "n"]:
        """At least MELL."""
        parts = points.split(max(1, _ENTRIES // points[0].numel()))
        return torch.cat([self._class_bounds(part).sum(1) for part in parts]) * _SLACK

    def score(
        self, points: Float[Tensor, "n t c"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """MELL itself, as both bounds."""
        scores = tiled.log_loss_reduction(points, self.val)
        return scores, scores

    def pruning_pays(self, points: Float[Tensor, "n t c"]) -> bool:
        """Whether few classes are likely, of points times of targets: so much `bracket` costs."""
        shares = [x.float().mean() for x in (points[:1000].mean(1) >= self.below, self.likely)]
        return bool(shares[0] * shares[1] < 0.2)

    def bracket(
        self, points: Float[Tensor, "n t c"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Bounds from below and from above, by the likely classes of points and targets.

        Points with like numbers of likely classes go together: these are rounded up to 3, 4, 6, 8,
        12, 16, ….
        """
        c = points.shape[2]
        levels = sorted({min(c, k << s) for k in (3, 4) for s in range(c.bit_length())})
        counts = (points.mean(1) >= self.below).sum(1)  # [n]
        level_of = torch.bucketize(counts, torch.tensor(levels, device=counts.device))  # [n]
        low, high = points.new_empty(2, len(points))
        for level, keep in enumerate(levels):
            which = (level_of == level).nonzero()[:, 0]
            for part in which.split(max(1, _ENTRIES // points[0].numel())) if len(which) else ():
                low[part], high[part] = self._bracket(points[part], keep)
        return low, high

    def _bracket(self, points: Float[Tensor, "n t c"], keep: int) -> tuple[Tensor, Tensor]:
        """`bracket` by the ``keep`` likeliest classes of each point."""
        _, t, _ = points.shape
        rows, mean, _ = _deviations(points)  # [n c t], [n c]
        mean, kept = mean.topk(keep)  # [n keep] both
        classes = points.gather(2, kept[:, None].expand(-1, t, -1))  # [n t keep]
        # MELL is a sum over pairs of a point's class and a target's. So the likely classes of all
        # targets may be shared out to made-up targets, of ``keep`` classes each.
        likely = self.val.transpose(1, 2)[self.likely]  # [k t]
        groups = torch.nn.functional.pad(likely, (0, 0, 0, -len(likely) % keep))
        groups = groups.view(-1, keep, t).transpose(1, 2).contiguous()  # [k/keep t keep]
        reduction = tiled.log_loss_reduction(classes, groups, binary=False)  # mean over groups
        low = reduction * (len(groups) / len(self.val))  # [n]
        # Missing: the point's unlikely classes with all of the targets', p̄ · term at most,
        missing = self._class_bounds(points).scatter(1, kept, 0).sum(1)  # [n]
        # and its likely classes with the targets' unlikely ones, p̄ · χ² at most.
        rows = rows.gather(1, kept[..., None].expand(-1, -1, t))  # [n keep t]
        missing += (mean * (rows @ self.unlikely_root).square().sum(2)).sum(1)
        return low, (low + missing) * _SLACK

    def _class_bounds(self, points: Float[Tensor, "n t c"]) -> Float[Tensor, "n c"]:
        """p̄ · min(log(1 + χ²), κ(x) χ²): at least p̄ · term, for every class."""
        rows, mean, length = _deviations(points)  # [n c t], [n c], [n c]
        chi2 = (rows @ self.root).square().sum(2)  # [n c]
        x = torch.minimum(-rows.amin(2), length * self.longest).clamp(1e-3, 1)  # u ≥ −x [n c]
        kappa = phi(-x) / x.square()  # [n c]
        return mean * torch.minimum(chi2.log1p(), kappa * chi2)


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
