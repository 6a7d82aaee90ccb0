"""What labels tell of each other by their second moments, with the draws as coordinates.

The Brier score sees a label as a vector of zeros and one, and the best linear predictor of some
labels from others needs no more than their means and covariances. With P_i [t c] the predictions
for point i and p̄_i [c] their mean over draws (Q_j and q̄_j those for target j) these are the ones of

    y_i = p̄_i + √p̄_i ⊙ (E_i z + noise)                    z [t] has mean 0 and covariance I
    E_i [c t] = (P_i − p̄_i)ᵀ / √(t p̄_i)                    label i, as far as the draws explain it
    F Fᵀ [t t] = Σ_j (Q_j − q̄_j)(Q_j − q̄_j)ᵀ / (t m)       the labels to predict

A batch of labels that are known is felt through W alone:

    W [t t], at first I                                   covariance of z given the batch
    M_i [c c] = (1 + ε) I − E_i (I − W) E_iᵀ               covariance of label i given the batch
    score_i = tr(M_i⁻¹ E_i W F Fᵀ W E_iᵀ)                  by how much label i lowers tr(FᵀWF)
    W ← W − K Kᵀ,  K [t c] = W E_iᵀ L⁻ᵀ,  M_i = L Lᵀ       once label i is in the batch

tr(FᵀWF) is the expected Brier loss on the targets, less what no label can change. With W = I and
ε = 0 the score is MEBL. (The true M_i has a zero in direction √p̄, but E_i never meets it.)

Scores usually fall as the batch grows, yet a label may gain by another that tells apart what it
mixes: old scores are no upper bounds. But W and M_i only fall. So while W goes from W₀ to W₁,

    √score_i(W) ≤ √score_i(W₁) + √(λ · tr(M_i(W₁)⁻¹ (M_i(W₀) − M_i(W₁)))),  λ = λ_max(Fᵀ(W₀ − W₁)F),

as W = W₁ + D with 0 ⪯ D ⪯ W₀ − W₁ and ‖Fᵀ D Eᵀ M^-½‖ ≤ ‖Fᵀ D^½‖ ‖D^½ Eᵀ M^-½‖.

The code writes E, F, W, M and K as here, for n labels at once where there is an axis n.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from foresee.kernels import tiled

X = TypeVar("X")

# In place of a score: below all of them.
TAKEN = -1.0

_MANY = 1 / 8  # of the labels: to renew all costs less than to score these exactly a few times
_MARGIN = 1.001  # more than the rounding of a score in float32
_CHUNK = 1 << 19  # entries of E that are worked on at once: they stay in the cache


def explained(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n c t"]:
    """E = (P − p̄)ᵀ / √(t p̄)."""
    deviations, mean = tiled.relative(probs)  # P/p̄ − 1 [n t c], p̄ [n c]
    scale = (mean / probs.shape[1]).sqrt()
    return (deviations * scale[:, None]).transpose(1, 2).contiguous()


def target_root(val: Float[Tensor, "m t c"]) -> Float[Tensor, "t t"]:
    """F, in float64: columns along the principal axes of the targets, the last the largest."""
    m, t, c = val.shape
    gram = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    for part in val.split(max(1, _CHUNK // (t * c))):
        deviations = (part - part.mean(1, keepdim=True)).transpose(1, 2).reshape(-1, t)
        gram += deviations.T @ deviations
    return tiled.root(gram / (t * m))


@dataclass
class Survey:
    """All scores, and each M, given a batch that leaves the covariance W.

    ``most`` bounds the scores since the survey before.
    """

    W: Float[Tensor, "t t"]
    scores: Float[Tensor, "n"]
    M: Float[Tensor, "n c c"]
    most: Float[Tensor, "n"]


class Labels:
    """Labels that can be asked for, in the order that decides between equals; ``noise`` is ε."""

    def __init__(
        self,
        E: Float[Tensor, "n c t"],
        F: Float[Tensor, "t t"],
        noise: float,
        executor: Executor | None = None,
    ) -> None:
        self.E, self.F, self.noise, self.executor = E, F, noise, executor
        self.M_at_first = (1 + noise) * torch.eye(E.shape[1], dtype=E.dtype, device=E.device)

    def shared_by(self, executor: Executor) -> "Labels":
        """The same, to be worked on by these threads."""
        return Labels(self.E, self.F, self.noise, executor)

    def nothing_known(self) -> Float[Tensor, "t t"]:
        """W before the first label."""
        return torch.eye(len(self.F)).to(self.F)

    def some(self, which: Tensor | slice) -> "Labels":
        """Those at these positions."""
        return Labels(self.E[which], self.F, self.noise, self.executor)

    def map(self, work: Callable[[slice], X]) -> list[X]:
        """Work on slices of all of them, of few enough to stay in the cache."""
        n, c, t = self.E.shape
        size = max(1, _CHUNK // (c * t))
        parts = [slice(start, start + size) for start in range(0, n, size)]
        return list(self.executor.map(work, parts) if self.executor else map(work, parts))

    def factors(self, W: Float[Tensor, "t t"]) -> Float[Tensor, "t 2*t"]:
        """W F and a square root of I − W, side by side: all that `given` needs to know of W."""
        return torch.cat([W @ self.F, tiled.root(self.nothing_known() - W)], 1).to(self.E)

    def given(
        self, factors: Float[Tensor, "t 2*t"]
    ) -> tuple[Float[Tensor, "n c t"], Float[Tensor, "n c c"]]:
        """E W F and M, given a batch."""
        n, c, t = self.E.shape
        both = (self.E.view(-1, t) @ factors).view(n, c, 2 * t)
        EWF, learnt = both[..., :t], both[..., t:]  # learnt learntᵀ = E (I − W) Eᵀ
        return EWF, self.M_at_first - learnt @ learnt.mT

    def gain(self, which: int, W: Float[Tensor, "t t"]) -> Float[Tensor, "t c"]:
        """K: label ``which`` lowers W by K Kᵀ. In float64."""
        E = self.E[which].double()  # [c t]
        M = self.M_at_first.double() - E @ E.T + E @ W @ E.T  # [c c]
        return torch.linalg.solve_triangular(torch.linalg.cholesky(M), E @ W, upper=False).T

    def survey(self, W: Float[Tensor, "t t"], before: Survey | None = None) -> Survey:
        """Score all labels."""
        n, c, _ = self.E.shape
        survey = Survey(W, *(self.E.new_zeros(n, *shape) for shape in ((), (c, c), ())))
        factors = self.factors(W)
        largest = 0.0  # λ
        if before:
            fall = self.F.T @ (before.W - W) @ self.F  # [t t]
            largest = float(torch.linalg.eigvalsh(fall)[-1].clamp_min(0))

        def score(part: slice) -> None:
            EWF, M = self.some(part).given(factors)  # [k c t], [k c c]
            inverse = torch.linalg.inv(M)  # [k c c]
            scores = _scores(inverse, EWF)  # [k]
            survey.scores[part], survey.M[part] = scores, M
            if before:
                shared = (inverse * (before.M[part] - M)).sum((1, 2)).clamp_min_(0)  # [k]
                survey.most[part] = (scores.sqrt() + (largest * shared).sqrt()) ** 2 * _MARGIN

        self.map(score)
        return survey


class Followed:
    """Scores of some labels while the batch grows.

    In units in which M was I at the start,

        M = I − G,  score = tr(M⁻¹ H),  H = E W F Fᵀ W Eᵀ,

    and as G ⪰ 0 grows from zero, tr(H) ≤ score ≤ tr(H) / (1 − ‖G‖): few labels need more than
    these bounds, ``least`` and ``most``. When many do, the units are renewed.
    """

    def __init__(self, labels: Labels, factors: Float[Tensor, "t 2*t"]) -> None:
        self.E = labels.E
        self.EWF, M = labels.given(factors)
        self.taken: list[int] = []
        self._renew(M)

    def _renew(self, M: Float[Tensor, "n c c"]) -> None:
        L = torch.linalg.cholesky(M)  # [n c c]
        units = torch.linalg.solve_triangular(L, torch.eye(M.shape[1]).to(M), upper=False)  # L⁻¹
        self.E, self.EWF = units @ self.E, units @ self.EWF  # [n c t] both
        self.G = torch.zeros_like(M)
        self._bound()

    def add(self, K: Float[Tensor, "t c"], KF: Float[Tensor, "c t"]) -> None:
        """Lower W by K Kᵀ; ``KF`` is KᵀF."""
        n, c, t = self.E.shape
        EK = self.E.view(-1, t) @ K  # [n·c c]
        self.EWF.view(-1, t).addmm_(EK, KF, alpha=-1)  # E (W − K Kᵀ) F
        EK = EK.view(n, c, -1)
        self.G.baddbmm_(EK, EK.mT)
        self._bound()

    def _bound(self) -> None:
        self.least = torch.linalg.vector_norm(self.EWF.flatten(1), dim=1).square_()  # tr(H) [n]
        room = 1 - torch.linalg.vector_norm(self.G.flatten(1), dim=1)  # [n]
        self.most = torch.where(room > 0, _MARGIN * self.least / room, torch.inf)  # [n]
        self.least[self.taken] = self.most[self.taken] = TAKEN

    def best(self) -> tuple[int, float]:
        """Position and score of the best label; it is taken."""
        which, scores = self.scores_from(self.least.max())
        first = int(scores.argmax())  # of equals
        self.taken.append(int(which[first]))
        return self.taken[-1], float(scores[first])

    def scores_from(self, bound: float | Tensor) -> tuple[Tensor, Float[Tensor, "k"]]:
        """Positions of all labels whose score may reach this bound [k], and their scores [k]."""
        which = (self.most >= bound).nonzero()[:, 0]
        if len(which) > len(self.E) * _MANY:
            self._renew(torch.eye(self.G.shape[1]).to(self.G) - self.G)
            which = (self.most >= bound).nonzero()[:, 0]
        return which, self.scores(which)

    def scores(self, which: Tensor) -> Float[Tensor, "k"]:
        """Return the scores of the labels at these positions [k]."""
        M = torch.eye(self.G.shape[1]).to(self.G) - self.G[which]  # [k c c]
        return _scores(torch.linalg.inv(M), self.EWF[which])


def _scores(inverse: Float[Tensor, "k c c"], EWF: Float[Tensor, "k c t"]) -> Float[Tensor, "k"]:
    """tr(M⁻¹ (E W F)(E W F)ᵀ)."""
    return (inverse * (EWF @ EWF.mT)).sum((1, 2)).clamp_min_(0)
