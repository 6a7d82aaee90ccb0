"""What labels tell of each other by their second moments, with the draws as coordinates.

The Brier score takes a label for a vector of zeros and a one, and the best linear predictor of some
such vectors from others needs no more than their means and covariances. P_i [t c] being the
predictions for point i, and p̄_i [c] their mean over draws (Q_j and q̄_j those for target j), labels
have the means and covariances of this model:

    y_i = p̄_i + √p̄_i ⊙ (E_i z + noise)                    z [t] has mean 0 and covariance I
    E_i [c t] = (P_i − p̄_i)ᵀ / √(t p̄_i)                    label i, as far as the draws explain it
    S [t t] = Σ_j (Q_j − q̄_j)(Q_j − q̄_j)ᵀ / (t m)         the labels to predict

All that a batch of known labels does to the others, it does through W:

    W [t t], at first I                                   covariance of z given the batch
    M_i [k k] = N_i + E_i W E_iᵀ                           covariance of label i given the batch
    H_i [k k] = E_i W S W E_iᵀ                            what label i shares with the targets
    score_i = tr(M_i⁻¹ H_i)                               by how much label i lowers tr(S W)
    W ← W − K Kᵀ,  K [t k] = W E_iᵀ L⁻ᵀ,  M_i = L Lᵀ       once label i is in the batch

tr(S W) is the expected Brier loss on the targets, less what no label can change. N_i is the noise,
and there are two accounts of it:

    N_i = (1 + ε) I − E_i E_iᵀ        the draws' own: all that they do not explain, and ε more
    N_i = ε v I,  v = Σ tr(E_i E_iᵀ)² / (k Σ tr(E_i E_iᵀ))

By the first, with W = I and ε = 0, the score is MEBL. But draws that agree more than they are right
call noise what they do not know: then no label seems to tell what another does, and a batch is
redundant. By the second the noise is a share ε of v, what the draws explain of a typical label: a
mean over labels, each weighted by just that. So it does not matter how wide the draws spread.

Probabilities sum to one, so √p̄ᵀE_i = 0: a label of c classes has k = c − 1 directions. (The true
M_i is zero in the direction of √p̄, which E_i never meets.) A reflection that takes √p̄ to the first
axis leaves scores as they are and the first row of E_i zero, so that row is left out:

    E_j ← E_j − E_0 √p̄_j / (1 + √p̄_0),  j = 1 … k         E_i [k t] of the code

Once a label is in the batch, every other one is brought up to date by what it shares with that one:

    Z [t k] = W S K − K (KᵀSK) / 2,  by the W before
    X [k k] = E K,  Y [k k] = E Z
    M ← M − X Xᵀ,  H ← H − X Yᵀ − Y Xᵀ

To follow a label so takes k²·t operations. A survey, M and H from W itself, takes k·t².

M only falls. So with R = M⁻¹ as it was some picks ago, and g = tr(R (M_then − M)) < 1,

    tr(R H) ≤ score ≤ tr(R H) / (1 − g):

for most labels these two show that they are not the best, and M need not be inverted anew.

Scores usually fall as the batch grows, yet a label may gain by another that tells apart what it
mixes: an old score is no upper bound. But W only falls, too. So while W goes from W₀ to W₁,

    √score_i(W) ≤ √score_i(W₁) + √(λ · tr(M_i(W₁)⁻¹ (M_i(W₀) − M_i(W₁)))),  λ = λ_max(S (W₀ − W₁)),

as W = W₁ + D with 0 ⪯ D ⪯ W₀ − W₁ and ‖S^½ D Eᵀ M^-½‖ ≤ ‖S^½ D^½‖ ‖D^½ Eᵀ M^-½‖.

The code writes E, S, W, M, H, K and R as here, for n labels at once where there is an axis n.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foresee.kernels.elementwise import TINY
from foresee.strategies.candidates import at_once, gathered

X = TypeVar("X")

# In place of a score: below all of them.
TAKEN = -1.0

_MARGIN = 1.001  # more than the rounding of a score in float32
_SAME = 1.00001  # by how much one label's score may differ between two products
_AXES = 128  # draws whose products with all later ones are computed at once
_PARTS = 20  # of the targets, whose products are added up in their own type, then in float64
_CHUNK = 1 << 19  # entries of E that are worked on at once: they stay in the cache
_COARSE = 1e-2  # noise from which float32 is enough for K


def explained(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n c t"]:
    """E = (P − p̄)ᵀ / √(t p̄)."""
    n, t, c = probs.shape
    return gathered((_explained(probs[part])[0] for part in _parts(n, t * c, probs)), n)


def reflected(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n k t"]:
    """E without the row that a reflection leaves zero; each point has a reflection of its own."""
    return gathered(reflections(probs), len(probs))


def reflections(probs: Float[Tensor, "n t c"]) -> Iterator[Float[Tensor, "l k t"]]:
    """E as `reflected` gives it, as many labels at once as stay in the cache."""
    n, t, c = probs.shape
    for part in _parts(n, t * c, probs):
        E, root = _explained(probs[part])
        # E_j − E_0 √p̄_j / (1 + √p̄_0)
        yield torch.addcmul(E[:, 1:], root[:, 1:] / (1 + root[:, :1]), E[:, :1], value=-1)


def _explained(
    probs: Float[Tensor, "l t c"],
) -> tuple[Float[Tensor, "l c t"], Float[Tensor, "l c 1"]]:
    """E and √p̄."""
    deviations, mean = _centred(probs)
    scale = torch.where(mean > TINY, (probs.shape[1] * mean).rsqrt(), 0)
    return deviations.mul_(scale), mean.sqrt()


def typical(E: Float[Tensor, "n k t"]) -> Float[Tensor, ""]:
    """v = Σ s² / Σ s, where s_i = tr(E_i E_iᵀ) / k; 1 where draws explain nothing of any label."""
    s = torch.linalg.vector_norm(E, dim=(1, 2)).square() / E.shape[1]  # [n]
    return torch.where(s.sum() > 0, s.square().sum() / s.sum(), 1)


def target_gram(val: Float[Tensor, "m t c"]) -> Float[Tensor, "t t"]:
    """S, in float64."""
    m, t, c = val.shape
    S = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    parts = _parts(m, t * c, val)
    for first in range(0, len(parts), _PARTS):
        sums = val.new_zeros(t, t)
        for part in parts[first : first + _PARTS]:
            deviations = _centred(val[part])[0].view(-1, t)  # a row for each target and class
            for axis in range(0, t, _AXES):  # what is below the diagonal is the same
                block = slice(axis, axis + _AXES)
                sums[block, axis:].addmm_(deviations[:, block].T, deviations[:, axis:])
        S += sums
    return (S.triu() + S.triu(1).T).div_(t * m)


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


class Known:
    """W after a batch of labels, as V − BᵀB: V [t t] after the first, B [r t] the Kᵀ of all later.

    As long as B has few rows, products with it are faster than to bring a whole W up to date. All
    is of the type of S. ``size`` is r, how many rows B has; V is None as long as it is I.
    """

    def __init__(self, S: Float[Tensor, "t t"], V: Float[Tensor, "t t"] | None = None) -> None:
        self.V, self.size = None if V is None else V.to(S), 0
        self._space = S.new_empty(3 * len(S) // 4, len(S))

    def times(self, A: Float[Tensor, "k t"]) -> Float[Tensor, "k t"]:
        """A W = A V − (A Bᵀ) B."""
        B = self._space[: self.size]
        return (A if self.V is None else A @ self.V) - (A @ B.T) @ B

    def matrix(self) -> Float[Tensor, "t t"]:
        """W, in float64."""
        B = self._space[: self.size].double()
        return (_identity(B) if self.V is None else self.V) - B.T @ B

    def make_room(self, rows: int) -> None:
        """Let B grow by so many rows: where it is full, V becomes W, and B begins anew."""
        if self.size + rows > len(self._space):
            self.V, self.size = self.matrix().to(self._space), 0
            self._space = self._space.new_empty(max(rows, len(self._space)), len(self.V))

    def add(self, K: Float[Tensor, "t k"]) -> None:
        """Add a label; there must be room."""
        self._space[self.size : self.size + K.shape[1]] = K.T
        self.size += K.shape[1]


class Change(NamedTuple):
    """What a label changes once it is in the batch."""

    K: Float[Tensor, "t k"]
    Z: Float[Tensor, "t k"]


class Labels:
    """Labels that can be asked for, in the order that decides between equals; ``noise`` is ε.

    What a label changes is computed in float64: W, at first 1, tends to ε, and must not be lost in
    the rounding of 1. On a CPU, where that takes three times as long, only if ε is small.
    """

    def __init__(
        self,
        E: Float[Tensor, "n k t"],
        S: Float[Tensor, "t t"],
        noise: float,
        aleatoric: bool = True,
    ) -> None:
        self.E, self.S, self.aleatoric = E, S, aleatoric
        self.executor: Executor | None = None
        self._S = S if noise < _COARSE or E.is_cuda else S.to(E)
        identity = torch.eye(E.shape[1], dtype=E.dtype, device=E.device)  # [k k]
        # N [k k]; by the draws' own account without − E Eᵀ: `change` and `survey` take W − I for W.
        self._N = (1 + noise if aleatoric else noise * typical(E)) * identity

    def map(self, work: Callable[[slice], X], n: int) -> list[X]:
        """Work on slices of n labels, each of few enough to stay in the cache."""
        parts = _parts(n, self.E[0].numel(), self.E)
        work = torch.inference_mode()(work)  # a choice that threads do not share
        return list(self.executor.map(work, parts) if self.executor else map(work, parts))

    def change(self, which: Int[Tensor, "1"], known: Known) -> Change:
        """What this label changes, given a batch."""
        E = self.E[which][0].to(self._S)  # [k t]
        EW = known.times(E)  # [k t]
        M = self._N.to(E) + (EW - E if self.aleatoric else EW) @ E.T  # [k k]
        L = torch.linalg.cholesky_ex(M).L  # M always has one: _ex does not wait to make sure
        # Solved from the right, Kᵀ has its rows side by side as EW has: later products are faster.
        K = torch.linalg.solve_triangular(L.T, EW.T, upper=True, left=False)  # [t k]
        KS = K.T @ self._S  # KᵀS [k t]
        ZT = known.times(KS) - (KS @ K / 2) @ K.T  # Zᵀ = KᵀS W − (KᵀSK) Kᵀ / 2 [k t]
        return Change(K, ZT.T)

    def survey(
        self, W: Float[Tensor, "t t"] | None = None, taken: Bool[Tensor, "n"] | None = None
    ) -> "Survey":
        """M, H and R of all labels from W, and who is in the batch [n]; None: no label is yet."""
        n = len(self.E)
        if W is None or taken is None:
            taken = torch.zeros(n, dtype=torch.bool, device=self.E.device)
            H = self._between(self.S)
            M = self._N.expand(n, -1, -1).clone()
            if not self.aleatoric:
                M += torch.cat(self.map(lambda part: self.E[part] @ self.E[part].mT, n))
        else:
            H = self._between(W @ self.S @ W)
            M = self._N + self._between(W - _identity(W) if self.aleatoric else W)
        R = torch.cat(self.map(lambda part: _inverse(M[part]), n))
        return Survey(self.E, H, M, R, Known(self._S, W), taken.clone())

    def _between(self, A: Float[Tensor, "t t"]) -> Float[Tensor, "n k k"]:
        """E A Eᵀ for a symmetric A = U + Uᵀ: as U is a triangle, by half of the products."""
        k, t = self.E.shape[1:]
        U = A.to(self.E).triu()
        U.diagonal().div_(2)

        def product(part: slice) -> Tensor:
            E = self.E[part]  # [l k t]
            columns = [(start, min(start + _AXES, t)) for start in range(0, t, _AXES)]
            # Columns a to b of U have no entries below row b.
            EU = torch.cat([E.view(-1, t)[:, :b] @ U[:b, a:b] for a, b in columns], 1)
            half = EU.view(-1, k, t) @ E.mT  # E U Eᵀ [l k k]
            return half + half.mT

        return torch.cat(self.map(product, len(self.E)))

    def most(
        self, before: "Survey", after: "Survey", changes: Sequence[Change]
    ) -> Float[Tensor, "n"]:
        """What no score between two surveys exceeds: (√score(W₁) + √(λ tr(M₁⁻¹ (M₀ − M₁))))²."""
        K = torch.cat([change.K for change in changes], 1)  # W₀ − W₁ = K Kᵀ
        KSK = K.T @ self._S @ K  # has the eigenvalues of S (W₀ − W₁) that are not zero
        try:
            largest = float(torch.linalg.eigvalsh(KSK)[-1].clamp_min(0))  # λ
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # Draws that are fewer than directions leave many equal to zero, at which it may fail.
            largest = float(torch.linalg.matrix_norm(KSK))  # no less
        fall = _trace(after.R, before.M - after.M).clamp_min_(0)  # tr(M₁⁻¹ (M₀ − M₁)) [n]
        return (after.least().sqrt() + (largest * fall).sqrt()) ** 2 * _MARGIN


@dataclass
class Survey:
    """Labels given a batch: M, H, R = M⁻¹ as it was some picks ago, and who is in the batch."""

    E: Float[Tensor, "n k t"]
    H: Float[Tensor, "n k k"]
    M: Float[Tensor, "n k k"]
    R: Float[Tensor, "n k k"]
    known: Known
    taken: Bool[Tensor, "n"]

    def some(self, which: Tensor | slice) -> "Survey":
        """A copy of those at these positions, to be followed apart from the others."""
        H, M, R, taken = (x[which].clone() for x in (self.H, self.M, self.R, self.taken))
        return Survey(self.E[which], H, M, R, self.known, taken)

    def take(self, labels: Labels, label: Int[Tensor, "1"], pick: Int[Tensor, "1"]) -> Change:
        """Add a label, which is the ``pick`` of these, and return what that changes."""
        self.known.make_room(labels.E.shape[1])
        change = labels.change(label, self.known)
        self.known.add(change.K)
        self.add(change, pick)
        return change

    def add(self, change: Change, pick: Int[Tensor, "1"] | None = None) -> None:
        """Add a label to the batch: ``pick`` of these, or (None) one that is not among them."""
        if pick is not None:
            self.taken.index_fill_(0, pick, True)
        k, t = self.E.shape[1:]
        shared = self.E.view(-1, t) @ _factors([change], self.E)  # X and Y side by side
        self._follow(shared.view(-1, k, 2, 1, k))

    def add_while_best(
        self,
        picks: Int[Tensor, "s"],
        scores: Float[Tensor, "s"],
        changes: Sequence[Change],
        block: Int[Tensor, "l"],
        labels: Labels,
    ) -> int:
        """Add s picks made within a block, up to the first that a label outside beats; how many.

        The first one is the best of all, within the block and outside.
        """
        factors = _factors(changes, self.E)  # [t 2·s·k]
        (n, k, t), s = self.E.shape, len(changes)
        shared = self.E.new_empty(n, k, 2, s, k)  # X and Y with each of the picks
        bounds = self.E.new_empty(n, s)  # of the scores before each pick
        after = self.some(slice(None))  # where all picks are kept

        def bound_and_follow(part: slice) -> None:
            torch.mm(self.E[part].view(-1, t), factors, out=shared[part].view(-1, 2 * s * k))
            bounds[part] = self._most(shared[part], part)
            after._follow(shared[part], part)  # while they are in the cache

        labels.map(bound_and_follow, n)
        outside = (~self.taken).index_fill(0, block, False)
        may_win = (bounds >= scores)[:, 1:].any(1)
        which = (may_win & outside).nonzero()[:, 0]
        rivals, shared_with, kept = self.some(which), shared[which], s
        for step in range(1, s if len(which) else 0):
            rivals._follow(shared_with[..., step - 1 : step, :])
            if (rivals.scores(scores[step]) > scores[step] * _SAME).any():
                kept = step
                break
        if kept == s:
            self.H, self.M = after.H, after.M
        else:
            labels.map(lambda part: self._follow(shared[part, ..., :kept, :], part), n)
        self.taken.index_fill_(0, picks[:kept], True)
        return kept

    def _most(
        self, shared: Float[Tensor, "l k 2 s k"], part: slice = slice(None)
    ) -> Float[Tensor, "l s"]:
        """What no score exceeds before each of s labels is added: tr(R H) / (1 − g) [l s]."""
        R, M, H = self.R[part], self.M[part], self.H[part]
        X, Y = shared.unbind(2)  # [l k s k] both
        RX = (R @ X.flatten(2)).view(X.shape)
        # By how much each label lowers tr(R H), 2 tr(R X Yᵀ), and 1 − g, tr(R X Xᵀ) [l s]; added up
        # along one axis after the other, which is faster.
        falls, rises = 2 * (RX * Y).sum(1).sum(2), (RX * X).sum(1).sum(2)
        at_first = _trace(R, H)[:, None]  # [l 1]
        least = at_first - falls.cumsum(1) + falls  # tr(R H) [l s]
        # 1 − g, as tr(R M_then) = tr I = k
        room = 1 - R.shape[1] + _trace(R, M)[:, None] - rises.cumsum(1) + rises
        most = _MARGIN * (least + (_SAME - 1) * at_first) / room.clamp_max(1)
        return torch.where(room > 0, most, torch.inf)

    def _follow(self, shared: Float[Tensor, "l k 2 s k"], part: slice = slice(None)) -> None:
        """M ← M − X Xᵀ and H ← H − X Yᵀ − Y Xᵀ, for s labels that are added."""
        X, Y = (factor.flatten(2) for factor in shared.unbind(2))  # [l k s·k] both
        half = X @ Y.mT  # [l k k]
        self.H[part] -= half + half.mT
        self.M[part] -= X @ X.mT

    def least(self) -> Float[Tensor, "n"]:
        """tr(R H): the scores or, where R is old, less; 0 for those in the batch."""
        return _trace(self.R, self.H).clamp_min_(0).masked_fill_(self.taken, 0)

    def scores(self, bound: Float[Tensor, "1"] | None = None) -> Float[Tensor, "n"]:
        """Scores of all that may reach the bound (None: that may be the best); less for others.

        TAKEN for those in the batch. R is renewed where scores are.
        """
        scores = self.least()
        which: Tensor | slice = slice(None)
        if not scores.is_cuda:  # on a GPU to invert all is faster than to wait for an answer
            room = 1 - self.M.shape[1] + _trace(self.R, self.M)  # 1 − g [n]
            bound = scores.max() if bound is None else bound
            reach = _MARGIN * scores >= bound * room.clamp_max(1)  # true also without room
            which = (reach & ~self.taken).nonzero()[:, 0]
        R = self.R[which] = _inverse(self.M[which])
        scores[which] = _trace(R, self.H[which]).clamp_min_(0)
        return scores.masked_fill_(self.taken, TAKEN)


def _factors(changes: Sequence[Change], like: Tensor) -> Float[Tensor, "t f"]:
    """K of all changes and then Z of all, side by side [t 2·s·k]."""
    return torch.cat([c.K.T for c in changes] + [c.Z.T for c in changes]).to(like).T


def _identity(like: Float[Tensor, "r t"]) -> Float[Tensor, "t t"]:
    """I, made where the other is: nobody waits for a copy."""
    return torch.eye(like.shape[1], dtype=like.dtype, device=like.device)


def _inverse(M: Float[Tensor, "l k k"]) -> Float[Tensor, "l k k"]:
    return torch.linalg.inv_ex(M).inverse


def _trace(A: Float[Tensor, "l k k"], B: Float[Tensor, "l k k"]) -> Float[Tensor, "k"]:
    """tr(A B), both symmetric."""
    return (A * B).sum((1, 2))
