"""The highest MELL scores without computing all of them: bounds that cost a small part.

MELL_i is a sum over classes c of p̄_ic · (1/m) Σ_jc' q̄_jc' φ(u) (see `tiled`). With u² in place of
φ(u) it would need one t×t matrix for all targets, as MEBL does:

    χ²_ic = (1/m) Σ_jc' q̄_jc' u² = ‖A_ic F‖² / t²,  F Fᵀ = (1/m) Σ_jc' q̄_jc' Bᵀ B

and it bounds the terms of class c:

    (1/m) Σ_jc' q̄_jc' φ(u)  ≤  min(log(1 + χ²_ic), κ(x_ic) χ²_ic)

The first by Jensen's inequality: the left side is a mean of divergences, none of which is above
log(1 + its χ²). The second as φ(u) ≤ κ(x) u² for u ≥ −x, where κ(x) = φ(−x) / x² grows from ½ to 1;
and u ≥ −x_ic both for x = 1 − min_t P_ic / p̄_ic, as 1 + u is a mean of P_ic / p̄_ic over weighted
draws, and for x = ‖A_ic‖ max ‖B_jc'‖ / t.

No term is negative. So the terms of likely classes alone are a lower bound, and adding the bounds
of the others makes it an upper one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.kernels.elementwise import TINY, phi
from foresee.strategies.candidates import (
    CHUNK,
    check_subsets,
    draw_candidates,
    draw_targets,
    draws,
    numpy,
    predict_in_chunks,
)
from foresee.types import View

_UNLIKELY = 1e-3  # classes that the second bound leaves out
_SLACK = 1 + 1e-4  # far more than the rounding of a score in float32
_BLOCK = 256  # points scored at once, at least
_ENTRIES = 1 << 20  # of A that are worked on at once


@dataclass(frozen=True)
class TopMell:
    """Label the points with the highest MELL: the picks of ``TopK(mell)``, often in less time.

    Bounds cost c t² for each point, scores m c² t: what is gained grows with targets and classes.
    ``candidates`` and ``targets`` draw random subsets, as in `TopK`, and the pool streams through
    in chunks of ``chunk`` bytes of predictions.
    """

    candidates: int | None = None
    targets: int | None = None
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the positions of the ``size`` best candidates, best first."""
        order = draw_candidates(view, size, self.candidates, rng)
        predict = view.posterior.predict
        val = draws("posterior.predict(val)", predict(draw_targets(view, self.targets, rng)))
        targets = _Targets(val, _UNLIKELY)
        picks, scores = np.empty(0, np.int64), np.empty(0)
        start = 0
        for chunk in predict_in_chunks(predict, view.pool, order, self.chunk):
            points = draws("posterior.predict(pool)", chunk)
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
    """The highest scores, best first, and the share of all points that were scored for them."""

    picks: NDArray[np.int64]
    scores: NDArray[Any]
    share: float


def mell_top_k(pool: Any, val: Any, k: int) -> Best:
    """The k highest of ``mell(pool, val)``; equal ones in the order of the pool."""
    points, targets = _checked(pool, val)
    checks.count("k", k, len(points), of="the pool")
    with tiled.full_precision():
        return _top(points, _Targets(targets, _UNLIKELY), k)


@dataclass(frozen=True)
class Pruned:
    """Lower bounds of MELL, and how much is missing at most: both [n]."""

    scores: NDArray[Any]
    error: NDArray[Any]


def pruned_mell(pool: Any, val: Any, *, below: float = 1e-4) -> Pruned:
    """MELL without the classes whose mean probability at a point, or a target, is ``below`` that.

    scores ≤ mell(pool, val) ≤ scores + error. The cost falls with the squared share of classes
    left: several times where there are hundreds.
    """
    points, targets = _checked(pool, val)
    if not 0 <= below < 1:
        raise InputError(f"below must be a probability from 0 to 1, got {below}")
    with tiled.full_precision():
        low, high = _Targets(targets, below).bracket(points)
    return Pruned(numpy(low), numpy(high - low))


def _checked(pool: Any, val: Any) -> tuple[Float[Tensor, "n t c"], Float[Tensor, "m t c"]]:
    points, targets = draws("pool", pool), draws("val", val)
    checks.same_posterior(pool, val)
    dtype = torch.promote_types(points.dtype, targets.dtype)
    return points.to(dtype), targets.to(dtype)


def _top(points: Float[Tensor, "n t c"], targets: "_Targets", k: int, floor: float = 0.0) -> Best:
    """The k highest scores, less some of those that are below ``floor``."""
    n = len(points)
    high = targets.bound(points)
    low = torch.zeros_like(high)
    scored = torch.zeros(n, dtype=torch.bool, device=high.device)

    def tighten(evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], unless: Tensor) -> Tensor:
        """Where it may matter, replace the bounds; return where."""
        done = unless.clone()
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
        tighten(targets.bracket, unless=scored)
    scored = tighten(targets.score, unless=scored)
    found = scored.nonzero()[:, 0].cpu().numpy()
    scores = numpy(low)[found]
    order = np.argsort(-scores, kind="stable")[:k]
    return Best(found[order], scores[order], len(found) / n)


class _Targets:
    """What bounds and scores need of the validation set."""

    def __init__(self, val: Float[Tensor, "m t c"], below: float) -> None:
        self.val, self.below = val, below
        rows, mean, length = _deviations(val)
        self.longest = length.max()
        self.likely = mean >= mean.amax(1, keepdim=True).clamp_max(below)  # one of each, at least
        weighted = rows * mean.sqrt()[..., None]
        self.root = _root(weighted.flatten(0, 1), len(val))
        self.unlikely_root = _root(weighted[~self.likely], len(val))

    def bound(self, points: Float[Tensor, "n t c"]) -> Float[Tensor, "n"]:
        """At least MELL."""
        return torch.cat([self._terms(part).sum(1) for part in _parts(points)]) * _SLACK

    def score(
        self, points: Float[Tensor, "n t c"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """MELL itself, as both bounds."""
        scores = tiled.log_loss_reduction(points.contiguous(), self.val)
        return scores, scores

    def pruning_pays(self, points: Float[Tensor, "n t c"]) -> bool:
        """Whether there are few likely classes."""
        shares = [x.float().mean() for x in (points[:1000].mean(1) >= self.below, self.likely)]
        return bool(shares[0] * shares[1] < 0.2)

    def bracket(
        self, points: Float[Tensor, "n t c"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Bounds from below and from above, by the likely classes of points and targets."""
        c = points.shape[2]
        if c == 2:  # the kernel takes two classes for the two of one label
            return self.score(points)
        levels = sorted({min(c, k << s) for k in (3, 4) for s in range(c.bit_length())})
        counts = (points.mean(1) >= self.below).sum(1)
        level = torch.bucketize(counts, torch.tensor(levels, device=counts.device))
        low, high = points.new_empty(2, len(points))
        for place, keep in enumerate(levels):
            which = (level == place).nonzero()[:, 0]
            for part in which.split(max(1, _ENTRIES // points[0].numel())) if len(which) else ():
                low[part], high[part] = self._bracket(points[part], keep)
        return low, high

    def _bracket(self, points: Float[Tensor, "n t c"], keep: int) -> tuple[Tensor, Tensor]:
        rows, mean, _ = _deviations(points)
        mean, kept = mean.topk(keep)
        classes = points.gather(2, kept[:, None].expand(-1, points.shape[1], -1))
        # Every term is a class of a point with one of a target: those may be regrouped at will.
        likely = self.val.transpose(1, 2)[self.likely]
        groups = torch.nn.functional.pad(likely, (0, 0, 0, -len(likely) % keep))
        groups = groups.view(-1, keep, likely.shape[1]).transpose(1, 2).contiguous()
        low = tiled.log_loss_reduction(classes, groups) * (len(groups) / len(self.val))
        rows = rows.gather(1, kept[..., None].expand(-1, -1, rows.shape[2]))
        missing = self._terms(points).scatter(1, kept, 0).sum(1)
        missing += (mean * (rows @ self.unlikely_root).square().sum(2)).sum(1)
        return low, (low + missing) * _SLACK

    def _terms(self, points: Float[Tensor, "n t c"]) -> Float[Tensor, "n c"]:
        """Bounds of the terms of every class."""
        rows, mean, length = _deviations(points)
        square = (rows @ self.root).square().sum(2)
        lowest = torch.minimum(-rows.amin(2), length * self.longest).clamp(1e-3, 1)
        factor = phi(-lowest) / lowest.square()
        return mean * torch.minimum(square.log1p(), factor * square)


def _deviations(
    probs: Float[Tensor, "n t c"],
) -> tuple[Float[Tensor, "n c t"], Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """A = P/p̄ − 1, p̄ and ‖A‖/√t."""
    mean = probs.mean(1)
    scale = torch.where(mean > TINY, 1 / mean.clamp_min(TINY), 0)
    rows = ((probs - mean[:, None]) * scale[:, None]).transpose(1, 2)
    return rows, mean, rows.square().mean(2).sqrt()


def _root(rows: Float[Tensor, "r t"], m: int) -> Float[Tensor, "t t"]:
    """F / t, where F Fᵀ is the sum of squares of the rows, divided by m."""
    t = rows.shape[1]
    gram = torch.zeros(t, t, dtype=torch.float64, device=rows.device)
    for part in rows.split(max(1, _ENTRIES // t)):
        gram += part.double().T @ part.double()
    values, vectors = torch.linalg.eigh(gram / m)
    return (vectors * values.clamp_min(0).sqrt() / t).to(rows)


def _parts(points: Float[Tensor, "n t c"]) -> tuple[Tensor, ...]:
    return points.split(max(1, _ENTRIES // points[0].numel()))
