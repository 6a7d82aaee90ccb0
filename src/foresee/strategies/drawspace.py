"""What labels tell of each other by their second moments, with the draws as coordinates.

The Brier score sees a label as a vector of zeros and one, and the best linear predictor of some
labels from others needs no more than their means and covariances. With P_i [t c] the predictions
for point i and p̄_i [c] their mean over draws (Q_j and q̄_j those for target j) these are the ones of

    y_i = p̄_i + √p̄_i ⊙ (E_i z + noise)                    z [t] has mean 0 and covariance I
    E_i [c t] = (P_i − p̄_i)ᵀ / √(t p̄_i)                    label i, as far as the draws explain it
    S [t t] = Σ_j (Q_j − q̄_j)(Q_j − q̄_j)ᵀ / (t m)         the labels to predict

A batch of labels that are known is felt through W alone:

    W [t t], at first I                                   covariance of z given the batch
    M_i [k k] = (1 + ε) I − E_i (I − W) E_iᵀ               covariance of label i given the batch
    H_i [k k] = E_i W S W E_iᵀ                            what label i shares with the targets
    score_i = tr(M_i⁻¹ H_i)                               by how much label i lowers tr(S W)
    W ← W − K Kᵀ,  K [t k] = W E_iᵀ L⁻ᵀ,  M_i = L Lᵀ       once label i is in the batch

tr(S W) is the expected Brier loss on the targets, less what no label can change. With W = I and
ε = 0 the score is MEBL.

Probabilities sum to one, so √p̄ᵀE_i = 0: a label of c classes has k = c − 1 directions. (The true
M_i is zero in the direction of √p̄, which E_i never meets.) A reflection that takes √p̄ to the first
axis leaves scores as they are and the first row of E_i zero, so that row is left out:

    E_j ← E_j − E_0 √p̄_j / (1 + √p̄_0),  j = 1 … k         E_i [k t] of the code

The other labels follow by what they share with the new one, X = E K and Y = E W S K [k k]:

    M ← M − X Xᵀ,  H ← H − X Yᵀ − Y Xᵀ + X (KᵀSK) Xᵀ

for k²·t operations each, where M and H from W itself, a survey, take k·t².

M only falls. So with R = M⁻¹ as it was some picks ago, and g = tr(R (M_then − M)) < 1,

    tr(R H) ≤ score ≤ tr(R H) / (1 − g):

few labels need more than these two to know that they are not the best.

Scores usually fall as the batch grows, yet a label may gain by another that tells apart what it
mixes: old scores are no upper bounds. But W falls as well. So while W goes from W₀ to W₁,

    √score_i(W) ≤ √score_i(W₁) + √(λ · tr(M_i(W₁)⁻¹ (M_i(W₀) − M_i(W₁)))),  λ = λ_max(S (W₀ − W₁)),

as W = W₁ + D with 0 ⪯ D ⪯ W₀ − W₁ and ‖S^½ D Eᵀ M^-½‖ ≤ ‖S^½ D^½‖ ‖D^½ Eᵀ M^-½‖.

The code writes E, S, W, M, H, K and R as here, for n labels at once where there is an axis n.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foresee.kernels.elementwise import TINY
from foresee.strategies.candidates import at_once

X = TypeVar("X")

# In place of a score: below all of them.
TAKEN = -1.0

_MARGIN = 1.001  # more than the rounding of a score in float32
_SAME = 1.00001  # what one label may score by two products
_AXES = 256  # of the draws, whose products with all later ones are computed at once
_CHUNK = 1 << 19  # entries of E that are worked on at once: they stay in the cache


def explained(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n c t"]:
    """E = (P − p̄)ᵀ / √(t p̄)."""
    n, t, c = probs.shape
    E = probs.new_empty(n, c, t)
    for part in _parts(n, t * c, probs):
        E[part] = _explained(probs[part])[0]
    return E


def reflected(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n k t"]:
    """E without the row that a reflection leaves zero; each point has a reflection of its own."""
    n, t, c = probs.shape
    E = probs.new_empty(n, c - 1, t)
    for part in _parts(n, t * c, probs):
        whole, root = _explained(probs[part])
        share = root[:, 1:] / (1 + root[:, :1])
        torch.addcmul(whole[:, 1:], share, whole[:, :1], value=-1, out=E[part])
    return E


def _explained(
    probs: Float[Tensor, "l t c"],
) -> tuple[Float[Tensor, "l c t"], Float[Tensor, "l c 1"]]:
    """E and √p̄."""
    deviations, mean = _centred(probs)
    scale = torch.where(mean > TINY, (probs.shape[1] * mean).rsqrt(), 0)
    return deviations.mul_(scale), mean.sqrt()


def target_gram(val: Float[Tensor, "m t c"]) -> Float[Tensor, "t t"]:
    """S, in float64."""
    m, t, c = val.shape
    S = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    for part in _parts(m, t * c, val):
        deviations = _centred(val[part])[0].view(-1, t)
        for axis in range(0, t, _AXES):  # the other half is the same
            some = slice(axis, axis + _AXES)
            S[some, axis:] += deviations[:, some].T @ deviations[:, axis:]
    return (S.triu() + S.triu(1).T) / (t * m)


def _centred(
    probs: Float[Tensor, "k t c"],
) -> tuple[Float[Tensor, "k c t"], Float[Tensor, "k c 1"]]:
    """(P − p̄)ᵀ and p̄."""
    rows = probs.mT.contiguous()
    mean = rows.mean(2, keepdim=True)
    return rows.sub_(mean), mean


def _parts(n: int, entries: int, like: Tensor) -> list[slice]:
    """Slices of n labels with so many entries each, as many as are worked on at once."""
    size = max(1, at_once(_CHUNK, like) // entries)
    return [slice(start, start + size) for start in range(0, n, size)]


class Change(NamedTuple):
    """What a label changes once it is in the batch: K, W S K by the W before, and KᵀSK."""

    K: Float[Tensor, "t k"]
    WSK: Float[Tensor, "t k"]
    KSK: Float[Tensor, "k k"]


class Labels:
    """Labels that can be asked for, in the order that decides between equals; ``noise`` is ε."""

    def __init__(
        self,
        E: Float[Tensor, "n k t"],
        S: Float[Tensor, "t t"],
        noise: float,
        executor: Executor | None = None,
    ) -> None:
        self.E, self.S, self.noise, self.executor = E, S, noise, executor
        self.M_at_first = (1 + noise) * torch.eye(E.shape[1], dtype=E.dtype, device=E.device)

    def map(self, work: Callable[[slice], X], n: int) -> list[X]:
        """Work on slices of n labels, each of few enough to stay in the cache."""
        parts = _parts(n, self.E[0].numel(), self.E)
        return list(self.executor.map(work, parts) if self.executor else map(work, parts))

    def change(
        self, which: Int[Tensor, "1"], W: Float[Tensor, "t t"], since: Sequence[Change] = ()
    ) -> Change:
        """What this label changes, with these changes since W. In float64."""
        E = self.E[which][0].double()  # [k t]
        B = torch.cat([W[:, :0], *(change.K for change in since)], 1)  # now W is W − B Bᵀ
        EW = E @ W - (E @ B) @ B.T  # [k t]
        M = self.M_at_first.double() - E @ E.T + EW @ E.T  # [k k]
        L = torch.linalg.cholesky_ex(M).L  # which M always has, and without a look if so
        K = torch.linalg.solve_triangular(L, EW, upper=False).T  # [t k]
        SK = self.S @ K  # [t k]
        return Change(K, W @ SK - B @ (B.T @ SK), K.T @ SK)

    def survey(
        self, W: Float[Tensor, "t t"] | None = None, taken: Bool[Tensor, "n"] | None = None
    ) -> "Survey":
        """All labels, given a batch that leaves W and has taken some; None: given nothing."""
        n, unknown = len(self.E), torch.eye(len(self.S)).to(self.S)
        if W is None or taken is None:
            W, taken = unknown, torch.zeros(n, dtype=torch.bool, device=self.E.device)
            H, M = self._between(self.S), self.M_at_first.expand(n, -1, -1).clone()
        else:
            H, M = self._between(W @ self.S @ W), self.M_at_first - self._between(unknown - W)
        R = torch.cat(self.map(lambda part: _inverse(M[part]), n))
        return Survey(self.E, H, M, R, W, taken.clone())

    def _between(self, A: Float[Tensor, "t t"]) -> Float[Tensor, "n k k"]:
        """E A Eᵀ."""
        k, t = self.E.shape[1:]
        A = A.to(self.E)

        def product(part: slice) -> Tensor:
            E = self.E[part]  # [l k t]
            return (E.view(-1, t) @ A).view(-1, k, t) @ E.mT  # [l k k]

        return torch.cat(self.map(product, len(self.E)))

    def most(
        self, before: "Survey", after: "Survey", changes: Sequence[Change]
    ) -> Float[Tensor, "n"]:
        """Bounds of the scores between two surveys, during these changes."""
        K = torch.cat([change.K for change in changes], 1)  # W₀ − W₁ = K Kᵀ
        largest = float(torch.linalg.eigvalsh(K.T @ self.S @ K)[-1].clamp_min(0))  # λ
        shared = _trace(after.R, before.M - after.M).clamp_min_(0)  # [n]
        return (after.least().sqrt() + (largest * shared).sqrt()) ** 2 * _MARGIN


@dataclass
class Survey:
    """Labels given a batch: M, H, R = M⁻¹ as it was some picks ago, and who is in the batch.

    W is that before a run of picks.
    """

    E: Float[Tensor, "n k t"]
    H: Float[Tensor, "n k k"]
    M: Float[Tensor, "n k k"]
    R: Float[Tensor, "n k k"]
    W: Float[Tensor, "t t"]
    taken: Bool[Tensor, "n"]

    def some(self, which: Tensor | slice) -> "Survey":
        """Those at these positions, to be followed apart from the others."""
        H, M, R, taken = (x[which].clone() for x in (self.H, self.M, self.R, self.taken))
        return Survey(self.E[which], H, M, R, self.W, taken)

    def add(self, change: Change, pick: Int[Tensor, "1"] | None = None) -> None:
        """Add a label to the batch: one of these, or (None) another."""
        if pick is not None:
            self.taken.index_fill_(0, pick, True)
        self._follow(self._shared([change])[:, :, 0], change.KSK)

    def add_while_best(
        self, picks: Int[Tensor, "s"], scores: Float[Tensor, "s"], changes: Sequence[Change]
    ) -> int:
        """Add labels up to the first, but for the very first, that another one beats; how many."""
        for step, shared in enumerate(self._shared(changes).unbind(2)):
            if step and (self.scores(scores[step]) > scores[step] * _SAME).any():
                return step
            self._follow(shared, changes[step].KSK)
            self.taken.index_fill_(0, picks[step : step + 1], True)
        return len(changes)

    def _shared(self, changes: Sequence[Change]) -> Float[Tensor, "n k s 2 k"]:
        """X = E K and Y = E W S K for every change."""
        n, k, t = self.E.shape
        factors = torch.cat([factor for change in changes for factor in change[:2]], 1)  # [t 2k·s]
        return (self.E.view(-1, t) @ factors.to(self.E)).view(n, k, -1, 2, k)

    def _follow(self, shared: Float[Tensor, "n k 2 k"], KSK: Float[Tensor, "k k"]) -> None:
        X, Y = shared.unbind(2)  # [n k k] both
        half = X @ (Y - X @ (KSK / 2).to(Y)).mT  # [n k k]
        self.H -= half + half.mT
        self.M -= X @ X.mT

    def least(self) -> Float[Tensor, "n"]:
        """tr(R H): the scores or, where R is old, less."""
        return _trace(self.R, self.H).clamp_min_(0).masked_fill_(self.taken, 0)

    def scores(self, bound: Float[Tensor, "1"] | None = None) -> Float[Tensor, "n"]:
        """Scores of all that may reach the bound (None: that may be the best), or else less.

        TAKEN for those in the batch.
        """
        scores = self.least()
        which: Tensor | slice = slice(None)
        if not scores.is_cuda:  # where to invert all is faster than to wait for an answer
            room = 1 - self.M.shape[1] + _trace(self.R, self.M)  # 1 − g [n]
            most = _MARGIN * scores / room.clamp_max(1)
            reach = (room <= 0) | (most >= (scores.max() if bound is None else bound))
            which = (reach & ~self.taken).nonzero()[:, 0]
        self.R[which] = _inverse(self.M[which])
        scores[which] = _trace(self.R[which], self.H[which]).clamp_min_(0)
        return scores.masked_fill_(self.taken, TAKEN)


def _inverse(M: Float[Tensor, "l k k"]) -> Float[Tensor, "l k k"]:
    return torch.linalg.inv_ex(M).inverse


def _trace(A: Float[Tensor, "l k k"], B: Float[Tensor, "l k k"]) -> Float[Tensor, "k"]:
    """tr(A B), both symmetric."""
    return (A * B).sum((1, 2))
