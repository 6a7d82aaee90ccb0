"""BAIT: the labels after which the last layer is known best where it matters.

Ash et al. 2021, arXiv:2106.09675. The error of a fitted softmax layer on data with Fisher
information F is about tr(M⁻¹ F), M being the information in its labels. So choose the batch B that
makes it least:

    tr(M⁻¹ F),  M = λ I + Σ_{i ∈ labelled ∪ B} Eᵢᵀ Eᵢ,  F = mean_j Eⱼᵀ Eⱼ,

where Eᵢ [c c·d] holds the gradients √p_a (onehot(a) − p) ⊗ h, one row for each class a that the
label could be, p being the prediction and h the embedding: Eᵀ E = (diag p − p pᵀ) ⊗ h hᵀ. Greedily:
add the best label until there are twice as many as asked for, then drop the one that is missed
least until there are not. In the paper j runs over the pool and what is labelled; over the target,
ours, the layer becomes good there. (The authors' code gives the labelled set a weight of its own;
here a label is a label.)

W = M⁻¹ [c·d c·d] is kept, and s is the sign: + to add, − to drop. By Woodbury's identity label i
changes tr(W F) by −s Δᵢ, and then W:

    Nᵢ [c c] = I + s Eᵢ W Eᵢᵀ,  Hᵢ [c c] = Eᵢ W F W Eᵢᵀ,  Δᵢ = tr(Nᵢ⁻¹ Hᵢ)
    W ← W − s K Kᵀ,  K [c·d c] = W Eᵢᵀ L⁻ᵀ,  Nᵢ = L Lᵀ

Every other label is brought up to date by what it shares with that one, by the W before:

    X [c c] = E K,  Y [c c] = E W F K
    N ← N − X Xᵀ,  H ← H − s (X Yᵀ + Y Xᵀ) + X (KᵀFK) Xᵀ

for c²·d operations each, where N and H from W itself, a survey, take c²·d². N only falls. So with
R = N⁻¹ as it was some picks ago, and g = tr(R (N_then − N)) < 1,

    tr(R H) ≤ Δ ≤ tr(R H) / (1 − g):

for most labels these two show that they are not the best to add, and N need not be inverted anew.
The E are never formed: E Z = √p ⊙ (G − p·G) for any Z [c·d q], where G_a [q] = h Z_a, and Z_a [d q]
are the rows of Z for class a.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays, checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.kernels.elementwise import renormalised
from foresee.strategies.badge import last_layer
from foresee.strategies.candidates import (
    at_once,
    check_number,
    check_subsets,
    check_target,
    draw_candidates,
)
from foresee.types import View

_CHUNK = 1 << 20  # numbers worked on at once
_SPARE = 2  # labels chosen for each that is kept
_MARGIN = 1.001  # more than the rounding of Δ in float32
_FALL = 0.1  # once Δ falls to this share, a survey makes up for rounding
_MATRICES = 5  # of the last layer's size, squared, that are held at once, in float64
_BLOCKS = 8  # of c × c numbers that each candidate holds at once
_COARSE = 1e6  # squared length of embeddings, in ridges, up to which float32 is enough


@dataclass(frozen=True)
class Bait:
    """Label what the last layer must see to be sure about the pool, or about the target.

    Needs no draws: it asks the posterior for point predictions [n c] and for embeddings [n d].

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the points that F is averaged over; None: all.
        focus: whose error is to be small: that of the "pool" (the candidates, with what is
            labelled), as in the paper, or of the "target", the validation set.
        ridge: λ, what is known of each weight before any label; the paper's 1.
        axes: keep so many principal axes of the pool's embeddings, an approximation where c·d is
            large; None: all.
        memory: bytes that may be held beside the embeddings. If 40·(c·d)² + 32·n·c² is more, the
            strategy refuses; for embeddings longer than 1000·√λ, which need float64, with 64·n·c².

    Time: n·c²·d² to begin with, then 4·n·c²·d for each of the 2·size labels that are added.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> Bait()(view, 3, np.random.default_rng(0))
    array([34, 18, 13])
    """

    candidates: int | None = None
    targets: int | None = None
    focus: Literal["pool", "target"] = "pool"
    ridge: float = 1.0
    axes: int | None = None
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        checks.byte_count("memory", self.memory)
        if self.focus not in ("pool", "target"):
            raise InputError(f'focus must be "pool" or "target", got {self.focus!r}')
        check_number("ridge", self.ridge)
        checks.whole("axes", self.axes, optional=True)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order they were added."""
        order = draw_candidates(view, size, self.candidates, rng)
        points = _Layer(*last_layer(view.posterior, arrays.Rows(view.pool, order)))
        known = points.some(slice(0))
        if view.labelled is not None and len(view.labelled):
            known = _Layer(*last_layer(view.posterior, view.labelled, "labelled"))
        if self.focus == "target":
            check_target(view)
            goals = _Layer(*last_layer(view.posterior, view.val, "val"))
        else:
            goals = points.joined(known)
        if self.targets is not None:
            goals = goals.some(rng.permutation(len(goals.h))[: self.targets])
        axes = _principal(points.h, self.axes)
        longest = max(part.longest() for part in (points, goals, known))
        coarse = longest**2 <= _COARSE * self.ridge
        if not coarse:
            points, goals, known = (part.renormalised() for part in (points, goals, known))
        dtype = torch.float32 if coarse else torch.float64
        points, goals = (part.along(axes, dtype) for part in (points, goals))
        known = known.along(axes, torch.float64)  # its inverse magnifies rounding
        self._check_memory(points)
        with tiled.full_precision():
            F = goals.gram().div_(len(goals.h))
            M = known.gram().to(F) + self.ridge * torch.eye(len(F)).to(F)
            L, failed = torch.linalg.cholesky_ex(M)
            if failed:
                raise InputError(
                    f"ridge = {self.ridge:.3g} is lost beside embeddings as long as {longest:.3g}: "
                    "scale the embeddings down, or pass a larger ridge"
                )
            W = torch.cholesky_inverse(L)
            added = _greedy(points, W, F, min(_SPARE * size, len(order)), sign=1)
            spare = points.some(added).along(None, torch.float64)
            dropped = _greedy(spare, W, F, len(added) - size, sign=-1)
        return order[np.delete(added.cpu().numpy(), dropped.cpu().numpy())]

    def _check_memory(self, points: "_Layer") -> None:
        (n, c), d = points.p.shape, points.h.shape[1]
        needed = 8 * _MATRICES * (c * d) ** 2 + points.p.element_size() * _BLOCKS * n * c**2
        if needed > self.memory:
            raise InputError(
                f"BAIT holds matrices of c·d = {c} · {d} = {c * d} rows and {n} of {c} × {c}, "
                f"{needed / 2**30:.1f} GiB, more than memory = {self.memory / 2**30:.1f} GiB: "
                "pass axes=64, fewer candidates, or more memory"
            )


def _principal(h: Float[Tensor, "n d"], axes: int | None) -> Float[Tensor, "d k"] | None:
    """The axes along which embeddings are longest; None: all that there are."""
    if axes is None or axes >= h.shape[1]:
        return None
    rows = h.double()
    return torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -axes:]


class _Layer:
    """Points as a softmax layer sees them: E by its factors p and h."""

    def __init__(self, p: Float[Tensor, "n c"], h: Float[Tensor, "n d"]) -> None:
        self.p, self.h = p.to(h), h
        self.likeliest = self.p.argmax(1)[:, None, None]

    def some(self, positions: Int[Tensor, "k"] | NDArray[np.int64] | slice) -> "_Layer":
        """Those at these positions."""
        return _Layer(self.p[positions], self.h[positions])

    def joined(self, other: "_Layer") -> "_Layer":
        """These and those of another."""
        return _Layer(torch.cat([self.p, other.p]), torch.cat([self.h, other.h]))

    def longest(self) -> float:
        """The length of the longest embedding."""
        return float(torch.linalg.vector_norm(self.h, dim=1).max()) if len(self.h) else 0.0

    def renormalised(self) -> "_Layer":
        """The same in float64, where rows sum to one again: no information is negative."""
        return _Layer(renormalised(self.p), self.h.double())

    def along(self, axes: Float[Tensor, "d k"] | None, dtype: torch.dtype) -> "_Layer":
        """The same with embeddings along some axes only."""
        h = self.h if axes is None else self.h.to(axes) @ axes
        return _Layer(self.p.to(dtype), h.to(dtype))

    def parts(self) -> list["_Layer"]:
        """Few enough points at a time that c·d numbers for each are no burden."""
        rows = max(1, at_once(_CHUNK, self.h) // (self.p.shape[1] * self.h.shape[1]))
        return [self.some(slice(i, i + rows)) for i in range(0, len(self.h), rows)]

    def times(self, Z: Float[Tensor, "k q"]) -> Float[Tensor, "n c q"]:
        """E Z, where Z has a row for each of the c·d weights."""
        n, c = self.p.shape
        by_feature = Z.to(self.h).view(c, -1, Z.shape[1]).transpose(0, 1).flatten(1)  # [d c·q]
        return self._scored((self.h @ by_feature).view(n, c, -1))

    def between(self, Q: Float[Tensor, "k k"]) -> Float[Tensor, "n c c"]:
        """E Q Eᵀ of each point, for a symmetric Q."""
        (n, c), d = self.p.shape, self.h.shape[1]
        Q = Q.to(self.h)
        hQh = self.p.new_empty(n, c, c)  # h Q_ab hᵀ, Q_ab [d d] being the block of classes a and b
        start = 0
        for part in self.parts():
            rows = slice(start, start + len(part.h))
            for a in range(c):
                hQ = (part.h @ Q[a * d : (a + 1) * d]).view(-1, c, d)
                hQh[rows, a] = (hQ @ part.h[:, :, None])[:, :, 0]
            start = rows.stop
        return self._scored(self._scored(hQh).mT)  # from the left, then from the right

    def _scored(self, G: Float[Tensor, "n c q"]) -> Float[Tensor, "n c q"]:
        """√p ⊙ (G − p·G), by differences from the likeliest class, which keep their digits."""
        G = G - G.gather(1, self.likeliest.expand(-1, 1, G.shape[2]))
        p = self.p[:, :, None]
        return p.sqrt() * (G - (p * G).sum(1, keepdim=True))

    def gram(self) -> Float[Tensor, "k k"]:
        """Σ Eᵀ E = Σ (diag p − p pᵀ) ⊗ h hᵀ, in float64."""
        c, d = self.p.shape[1], self.h.shape[1]
        total = torch.zeros(c * d, c * d, dtype=torch.float64, device=self.h.device)
        for part in self.parts():
            for a in range(c):
                row = -part.p * part.p[:, a : a + 1]  # row a of diag p − p pᵀ [n c]
                row[:, a] = part.p[:, a] * (1 - part.p[:, a])
                row_h = (row[:, :, None] * part.h[:, None]).flatten(1)  # [n c·d]
                total[a * d : (a + 1) * d] += part.h.T @ row_h
        return total

    def dense(self, which: Int[Tensor, "1"]) -> Float[Tensor, "c k"]:
        """E of one point, in float64."""
        p, h = self.p[which][0].double(), self.h[which][0].double()
        A = torch.diag(p.sqrt()) - p[:, None] * p.sqrt()  # [c c], a column for each label
        return (A.T[:, :, None] * h).flatten(1)


def _greedy(
    points: _Layer, W: Float[Tensor, "k k"], F: Float[Tensor, "k k"], size: int, sign: int
) -> Int[Tensor, "s"]:
    """Add the labels that lower tr(W F) most, or drop those that raise it least. Overwrites W."""
    picks = [torch.zeros(0, dtype=torch.int64, device=W.device)]
    identity = torch.eye(points.p.shape[1]).to(points.p)
    N = H = R = best_then = torch.empty(0)
    fresh = False
    for _ in range(size):
        if not fresh:  # survey
            N = identity + sign * points.between(W)
            H = points.between(W @ F @ W)
            R = torch.linalg.inv_ex(N).inverse
        # What is added lowers tr(W F) by Δ: the most. What is dropped raises it by Δ: the least.
        gains = sign * _changes(N, H, R, torch.cat(picks), all_of_them=sign < 0 or N.is_cuda)
        best, pick = gains.index_fill_(0, torch.cat(picks), -torch.inf).max(0, keepdim=True)
        picks.append(pick)
        best_then = best_then if fresh else best
        fresh = bool(best.abs() >= _FALL * best_then.abs())
        K, WFK, KFK = _change(points.dense(pick), W, F, sign)
        W.addmm_(K, K.T, alpha=-sign)
        X, Y = points.times(torch.cat([K, WFK], 1)).split(len(KFK), 2)  # [n c c] both
        N -= X @ X.mT
        half = X @ (Y - X @ (sign / 2 * KFK).to(X)).mT  # X Yᵀ − s X (KᵀFK) Xᵀ / 2
        H -= sign * (half + half.mT)
    return torch.cat(picks)


def _changes(
    N: Float[Tensor, "n c c"],
    H: Float[Tensor, "n c c"],
    R: Float[Tensor, "n c c"],
    taken: Int[Tensor, "s"],
    all_of_them: bool,
) -> Float[Tensor, "n"]:
    """Δ of all labels, or of those that may be the best to add, and less for others; renews R."""
    changes = (R * H).sum((1, 2))
    which: Tensor | slice = slice(None)
    if not all_of_them:
        room = 1 - N.shape[1] + (R * N).sum((1, 2))  # 1 − g
        best = changes.index_fill(0, taken, 0).max()
        which = ((room <= 0) | (_MARGIN * changes >= best * room.clamp_max(1))).nonzero()[:, 0]
    R[which] = torch.linalg.inv_ex(N[which]).inverse
    changes[which] = (R[which] * H[which]).sum((1, 2))
    return changes


def _change(
    E: Float[Tensor, "c k"], W: Float[Tensor, "k k"], F: Float[Tensor, "k k"], sign: int
) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"], Float[Tensor, "c c"]]:
    """K, W F K and Kᵀ F K of a label that is added or dropped."""
    EW = E @ W
    N = torch.eye(len(E)).to(E) + sign * EW @ E.T
    L = torch.linalg.cholesky_ex(N).L  # N always has one: _ex does not wait to make sure
    K = torch.linalg.solve_triangular(L, EW, upper=False).T
    FK = F @ K
    return K, W @ FK, K.T @ FK
