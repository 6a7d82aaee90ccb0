"""Herding: cover a set with labels, each point of it by the label that is most like it.

MaxHerding (Bae et al. 2024, arXiv:2407.12212) and Uncertainty Herding (Bae et al. 2025,
arXiv:2412.20644): with h the embedding, scaled to length one, and k(x, y) = exp(−‖x − y‖²/σ²),
choose B to maximise the coverage

    Σ_j u_j max_{b ∈ labelled ∪ B} k(h_j, h_b)

of points j that are worth u_j: one, or their uncertainty. Greedily: add the label that covers most
of what is uncovered, again and again; the coverage is submodular, so that is at least 1 − 1/e of
the best. In the papers j runs over the pool. Over the target, ours, the batch covers what the model
will meet, by whatever the pool has: that needs neither draws nor labels.

A target of few points is soon covered, and what else is like it is not seen. Over both, j runs over
target and pool, and counts as often as the target would have it: by its importance, the density
p_T(j) of the target there over that of both samples together, m of the target and n of the pool,

    w_j = p_T(j) / ((m p_T(j) + n p_P(j)) / (m + n)),

the balance heuristic (Veach & Guibas 1995). Densities are sums of the same kernel, narrower, over
the points of a sample but j itself. Where pool and target are alike all w_j are about one.

With c_j the coverage of j so far, max_b k(h_j, h_b), label i gains Σ_j u_j (k_ij − c_j)⁺. A pick
lifts c_j to c'_j for those points only that are more like it than like any label before, and the
gain of every label then falls by

    Σ_j u_j (k_ij clipped to [c_j, c'_j], less c_j)

over these points alone. The first gains take a pass over all pairs, a tile of them at a time; after
that a pick takes n times the points whose c_j it lifts, and these are ever fewer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks, seeding
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import (
    at_once,
    check_number,
    check_subsets,
    check_target,
    draw_candidates,
    draws_at,
    labelled_embeddings,
    matrix,
    point_predictions,
    pool_draws,
)
from foresee.strategies.kmeanspp import approach
from foresee.types import Array, View

Cover = Literal["pool", "target", "both"]

_TILE = 1 << 20  # kernel values computed at once (4 MiB), of at most so many points to cover
_COLUMNS = 1024
_TAKEN = -torch.inf  # in place of a gain; it stays so, whatever is taken away from it
_FALL = 0.05  # once gains fall to this share they are computed anew: differences have lost digits
# What is near: this share of the distance to the tenth neighbour, in a median of so many points.
_NEAR, _NEIGHBOURS, _LOOKS = 0.7, 10, 2048
# Bandwidths, in root mean square lengths, below which rounding to float32, or to float64, decides.
_NARROWEST, _LOST = 1e-2, 1e-6


def herd(
    pool: Array,
    cover: Array,
    size: int,
    rng: np.random.Generator,
    *,
    labelled: Array | None = None,
    weights: Array | None = None,
    bandwidth: float | None = None,
) -> NDArray[np.int64]:
    """Choose the points of a pool that cover another set best, greedily; no model is asked.

    Args:
        pool: embeddings, or any features [n d], of the points to choose from.
        cover: features [m d] of the points to cover: the target, or the pool itself.
        size: how many to choose.
        rng: decides between equals.
        labelled: features [l d] of points that cover already; None: nothing is labelled yet.
        weights: what it is worth to cover each point [m], none negative; None: 1.
        bandwidth: σ of the kernel. None: the smallest distance between two labelled points that
            differ, as in Bae et al. 2025; with fewer than two of them the root mean square distance
            between points to cover.

    Returns:
        Positions in the pool [size], in the order of the choice. Memory: the features and a tile.

    >>> x = np.repeat(np.eye(3), 4, axis=0)
    >>> sorted(herd(x, x[:8], 2, np.random.default_rng(0)) // 4)  # nothing of the third kind
    [np.int64(0), np.int64(1)]
    """
    seeding.check(rng)
    points, goals = _features("pool", pool), _features("cover", cover)
    known = points[:0] if labelled is None else _features("labelled", labelled)
    widths = [rows.shape[1] for rows in (points, goals, known)]
    if len(set(widths)) > 1:
        raise InputError(
            f"pool, cover and labelled must have the same features, got {widths} of them: embed "
            "all by one model"
        )
    checks.count("size", size, len(points), of="the pool")
    worth = _worth(weights, len(goals))
    order = rng.permutation(len(points))  # among equals the first wins
    return order[_herded(points[order], goals, size, known, worth, bandwidth)]


def _features(name: str, rows: Array) -> Float[Tensor, "n d"]:
    features = matrix(name, lambda x: x, rows)
    if not features.numel() and name != "labelled":
        raise InputError(f"{name} is empty, {list(features.shape)}: there is nothing to choose")
    return features


def _worth(weights: Array | None, m: int) -> Float[Tensor, "m"] | None:
    if weights is None:
        return None
    worth = arrays.tensor(weights, "weights").double()
    if worth.shape != (m,) or not bool((worth.isfinite() & (worth >= 0)).all()):
        raise InputError(
            f"weights must be one finite number, at least 0, for each of the {m} points of cover, "
            f"got shape {list(worth.shape)}: clip or replace the others"
        )
    # Densities may be smaller or larger than float32 can be; a power of two rounds none.
    _, exponent = math.frexp(float(worth.max()))
    return worth * 2.0 ** -max(exponent, -1000)


@dataclass(frozen=True)
class MaxHerding:
    """Cover the pool, or the target, with labels of points like it.

    Needs no draws and no labels: it asks the posterior for embeddings [n d], scaled to length one.
    Equal gains are ordered at random.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the points to cover; None: all. Time is n·m·d.
        cover: "pool", as in the paper, "target": the validation set, or "both": target and pool,
            each point by how likely it is of the target.
        bandwidth: σ of the kernel; the paper's 1. None: as in `herd`.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> MaxHerding(cover="target")(view, 3, np.random.default_rng(0))
    array([10, 39,  6])
    """

    candidates: int | None = None
    targets: int | None = None
    cover: Cover = "pool"
    bandwidth: float | None = 1.0

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        return _chosen(self, view, size, rng)


@dataclass(frozen=True)
class UncertaintyHerding:
    """Cover what the model doubts, in the pool or in the target, with labels of points like it.

    A point is worth u = 1 − (p₁ − p₂), p₁ and p₂ being the highest probabilities of the mean over
    draws (see `margin`). The paper calibrates a single network's prediction instead, by a
    temperature fitted to labels held out from training. A view has no such labels; the mean over
    draws is how a posterior doubts itself.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the points to cover; None: all. Time is n·m·d.
        cover: "pool", as in the paper, "target": the validation set, or "both": target and pool,
            each point by how likely it is of the target; ``targets`` is then the number of each.
        bandwidth: σ of the kernel. None, as in the paper: the smallest distance between two
            labelled points, which shrinks with more labels, until doubt alone decides. That was
            made for embeddings that stay as they are. A network trained on the labels moves those
            of a class together: on digits None was two points of accuracy below 1, and nine
            on a target of four classes.
        temperature: τ of probabilities ∝ p^(1/τ): above 1 where the model is too sure of itself.
        point: take the point prediction [n c] in place of the mean over draws.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> UncertaintyHerding()(view, 3, np.random.default_rng(0))
    array([ 1, 29,  5])
    """

    candidates: int | None = None
    targets: int | None = None
    cover: Cover = "pool"
    bandwidth: float | None = 1.0
    temperature: float = 1.0
    point: bool = False

    def __post_init__(self) -> None:
        _check(self)
        check_number("temperature", self.temperature)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        return _chosen(self, view, size, rng, self._doubts)

    def _doubts(
        self, view: View, name: Literal["pool", "val"], covered: NDArray[np.int64]
    ) -> Float[Tensor, "m"]:
        """u of the points at these positions of the pool or of the target."""
        if self.point:
            inputs = arrays.Rows(getattr(view, name), covered)
            parts = [point_predictions(name, view.posterior, inputs)]
        elif name == "val":
            parts = [draws_at(view, "val", covered).mean(1)]
        else:
            parts = [probs.mean(1) for probs in pool_draws(view, covered)]
        return torch.cat([_doubt(part, self.temperature) for part in parts])


def _doubt(probs: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n"]:
    """1 − (p₁ − p₂) of probabilities ∝ p^(1/τ)."""
    tempered = (probs / probs.amax(1, keepdim=True)) ** (1 / temperature)
    ordered = (tempered / tempered.sum(1, keepdim=True)).sort(1, descending=True).values
    return ordered[:, 1] + ordered[:, 1:].sum(1)


def _check(strategy: MaxHerding | UncertaintyHerding) -> None:
    check_subsets(strategy.candidates, strategy.targets)
    if strategy.cover not in ("pool", "target", "both"):
        raise InputError(f'cover must be "pool", "target" or "both", got {strategy.cover!r}')
    check_number("bandwidth", strategy.bandwidth, optional=True)


def nearest_hundredth(view: View) -> float:
    """How far from a point the nearest hundredth of the pool reaches, in a median of 1000 points.

    >>> from foresee.testing import random_view
    >>> round(nearest_hundredth(random_view(np.random.default_rng(0), n=40)), 2)
    0.55
    """
    places = np.linspace(0, len(view.pool) - 1, min(len(view.pool), 1000)).astype(np.int64)
    rows = _embedded(view, "pool", arrays.Rows(view.pool, places))
    with tiled.full_precision():
        squared = -_exponent(_Points(rows), _Points(rows))
    farthest = min(-(-len(rows) // 100) + 1, len(rows))  # and the point itself
    return float(squared.kthvalue(farthest).values.median()) ** 0.5


def _embedded(view: View, name: str, inputs: Any) -> Float[Tensor, "n d"]:
    rows = matrix(f"posterior.embed({name})", view.posterior.embed, inputs)
    return torch.nn.functional.normalize(rows, dim=1)


def _chosen(
    strategy: MaxHerding | UncertaintyHerding,
    view: View,
    size: int,
    rng: np.random.Generator,
    doubts: Callable[[View, Any, NDArray[np.int64]], Float[Tensor, "m"]] | None = None,
) -> NDArray[np.int64]:
    order = draw_candidates(view, size, strategy.candidates, rng)

    covered: dict[str, NDArray[np.int64]] = {}  # positions in each set that is covered
    if strategy.cover == "pool":
        covered["pool"] = rng.permutation(len(view.pool))[: strategy.targets]
        pool = _embedded(view, "pool", view.pool)
        goals, points = pool[covered["pool"]], pool[order]
    else:
        check_target(view)
        covered["val"] = rng.permutation(len(view.val))[: strategy.targets]
        goals = _embedded(view, "val", arrays.Rows(view.val, covered["val"]))
        points = _embedded(view, "pool", arrays.Rows(view.pool, order)).to(goals)
    if strategy.cover == "both":
        covered["pool"] = order[: strategy.targets]  # candidates are in random order
        goals = torch.cat([goals, points[: strategy.targets]])
    known = torch.nn.functional.normalize(labelled_embeddings(view, points), dim=1)
    worth = None
    if doubts is not None:
        worth = torch.cat([doubts(view, name, where).to(goals) for name, where in covered.items()])
    if strategy.cover == "both":
        likeness = importance(goals, len(covered["val"]))
        worth = likeness if worth is None else worth * likeness
    return order[_herded(points, goals, size, known, worth, strategy.bandwidth)]


def importance(both: Float[Tensor, "m+n d"], m: int) -> Float[Tensor, "m+n"]:
    """w of the points of a target, which are the first m, and of a pool; see above.

    The bandwidth of the densities is 0.7 of the median distance to the tenth neighbour: chosen on
    digits, where it suited the embeddings of an MLP, of a CNN and plain pixels. Points that have
    nothing near them in either count as one.
    """
    rows = (both - both.mean(0)).float()
    places = torch.arange(len(rows), device=rows.device)
    step = max(1, at_once(_TILE, rows) // len(rows))
    # Of each point: the sums of the kernel over the target, and over the pool.
    near = torch.zeros(2, len(rows), dtype=torch.float64, device=rows.device)
    with tiled.full_precision():
        rows /= _distance(rows, places[:: max(1, len(rows) // _LOOKS)].split(step))
        points = _Points(rows)
        for part in places.split(step):
            kernel = _exponent(points[part], points).exp_()
            kernel.diagonal(int(part[0])).zero_()  # a point says nothing of the density at itself
            near[0, part] = kernel[:, :m].sum(1, dtype=torch.float64)
            near[1, part] = kernel[:, m:].sum(1, dtype=torch.float64)
    of_target = torch.where(places < m, m - 1, m)  # points of the target but j itself
    ratio = near[0] / of_target / (near.sum(0) / (len(rows) - 1))  # p_T over that of both
    return ratio.nan_to_num(nan=1.0).to(both)


def _distance(rows: Float[Tensor, "n d"], looks: Sequence[Tensor]) -> float:
    """What is near (`_NEAR`) among rows around zero; not less than rounding can tell."""
    tenth = min(_NEIGHBOURS + 1, len(rows))  # with the point itself
    points = _Points(rows)
    squared = [(-_exponent(points[part], points)).kthvalue(tenth).values for part in looks]
    spread = float(rows.double().square().sum(1).mean().sqrt())
    return max(_NEAR * float(torch.cat(squared).median()) ** 0.5, _NARROWEST * spread) or 1.0


def _herded(
    points: Float[Tensor, "n d"],
    cover: Float[Tensor, "m d"],
    size: int,
    labelled: Float[Tensor, "l d"],
    worth: Float[Tensor, "m"] | None,
    bandwidth: float | None,
) -> NDArray[np.int64]:
    """Greedy positions in the points, of equals the first; see `herd`."""
    check_number("bandwidth", bandwidth, optional=True)
    mean = cover.mean(0)  # around which ‖x‖² + ‖y‖² − 2 xy cancels least
    points, cover, labelled = (rows.to(mean) - mean for rows in (points, cover, labelled))
    with tiled.full_precision():
        if bandwidth is None:
            sigma, kind = _bandwidth(cover, labelled), torch.float32
        else:
            sigma, kind = bandwidth, _precise_enough(cover, bandwidth)
        points, cover, labelled = (rows.div_(sigma).to(kind) for rows in (points, cover, labelled))
        far = cover.new_full((len(cover),), torch.inf)  # squared, from the nearest labelled point
        goals, known = _Points(cover), _Points(labelled)
        approach(far, len(labelled), lambda i, j: -_exponent(goals[i], known[j]))
        worth = torch.ones_like(far) if worth is None else worth.to(far)
        return _greedy(_Points(points), goals, far.neg_().exp_(), worth, size)


def _bandwidth(cover: Float[Tensor, "m d"], labelled: Float[Tensor, "l d"]) -> float:
    """σ where none is given; both sets are centred on the mean of the cover."""
    spread = float(cover.double().square().sum(1).mean().sqrt())
    nearest, known = torch.inf, _Points(labelled.double())
    for start in range(0, len(known), _COLUMNS):
        squared = -_exponent(known[start : start + _COLUMNS], known)
        differ = squared > (_NARROWEST * spread) ** 2 * 1e-6
        nearest = min(nearest, float(squared[differ].min())) if bool(differ.any()) else nearest
    sigma = 2**0.5 * spread if nearest == torch.inf else nearest**0.5
    return max(sigma, _NARROWEST * spread) or 1.0  # all points to cover are the same


def _precise_enough(cover: Float[Tensor, "m d"], sigma: float) -> torch.dtype:
    """The type in which distances of σ between points around zero are more than rounding."""
    spread = float(torch.linalg.vector_norm(cover, dim=1).double().square().mean().sqrt())
    if sigma < _LOST * spread:
        raise InputError(
            f"bandwidth = {sigma:.3g} is lost beside features that spread over {spread:.3g}: pass "
            "a larger one, or scale the features down"
        )
    return torch.float64 if sigma < _NARROWEST * spread else torch.float32


class _Points:
    """Rows and their squared lengths, which are computed once."""

    def __init__(self, rows: Float[Tensor, "n d"], squares: Float[Tensor, "n"] | None = None):
        self.rows = rows
        self.squares = (
            torch.linalg.vector_norm(rows, dim=1).square_() if squares is None else squares
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> "_Points":
        return _Points(self.rows[which], self.squares[which])


def _exponent(x: _Points, y: _Points) -> Float[Tensor, "i j"]:
    """−‖x_i − y_j‖², what the kernel is the exponential of where rows are divided by σ."""
    products = torch.addmm(y.squares, x.rows, y.rows.T, beta=-1, alpha=2)
    return products.sub_(x.squares[:, None]).clamp_(max=0)


def _greedy(
    points: _Points,
    cover: _Points,
    covered: Float[Tensor, "m"],
    worth: Float[Tensor, "m"],
    size: int,
) -> NDArray[np.int64]:
    """Picks by the plan above; ``covered`` is c, and is overwritten."""
    picks = list[Tensor]()
    gains = best_when_new = torch.full((1,), torch.nan)
    tile = at_once(_TILE, covered)
    for _ in range(size):
        if not picks or bool(gains.max() < _FALL * best_when_new):
            # No kernel is above 1, so to lift all c_j to 1 adds Σ_j u_j (k_ij − c_j)⁺.
            gains = _added(points, cover, covered, torch.ones_like(covered), worth, tile)
            gains.index_fill_(0, torch.cat([*picks, covered[:0].long()]), _TAKEN)
            best_when_new = gains.max()
        pick = gains.argmax(0, keepdim=True)
        picks.append(pick)
        like_pick = _exponent(points[pick], cover)[0].exp_()  # [m]
        lifted = (like_pick > covered).nonzero()[:, 0]
        gains -= _added(
            points, cover[lifted], covered[lifted], like_pick[lifted], worth[lifted], tile
        )
        covered[lifted] = like_pick[lifted]
        gains.index_fill_(0, pick, _TAKEN)
    return torch.cat(picks).cpu().numpy()


def _added(
    points: _Points,
    cover: _Points,
    low: Float[Tensor, "m"],
    high: Float[Tensor, "m"],
    worth: Float[Tensor, "m"],
    tile: int,
) -> Float[Tensor, "n"]:
    """Σ_j u_j (k_ij clipped to [low_j, high_j], less low_j), in float64; ``tile`` pairs at once."""
    added = torch.zeros(len(points), dtype=torch.float64, device=low.device)
    columns = max(1, min(len(cover), _COLUMNS))
    rows = max(1, tile // columns)
    for j in range(0, len(cover), columns):
        block = slice(j, j + columns)
        goals, c, lifted, u = cover[block], low[block], high[block], worth[block]
        for i in range(0, len(points), rows):
            kernel = _exponent(points[i : i + rows], goals).exp_()
            added[i : i + rows] += kernel.clamp_(c, lifted).sub_(c) @ u
    return added
