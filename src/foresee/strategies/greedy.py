"""Greedy conditioning: a batch of labels that together tell most about the targets.

The Brier score sees a label as a vector of zeros and one, and the best linear predictor of some
labels from others needs no more than their second moments. With the draws as coordinates, these are
those of y = p̄ + √p̄ ⊙ (E z + noise), where z has mean 0 and covariance I:

    E_i [c t] = (P − p̄) / √(t p̄)                        label i, as far as the draws explain it
    F Fᵀ [t t] = Σ_j (Q_j − q̄_j)(Q_j − q̄_j)ᵀ / (t m)    the labels to predict
    W [t t], at first I                                 covariance of z given the batch so far
    M_i [c c] = (1 + ε) I − E_i (I − W) E_iᵀ            covariance of label i given the batch

    score_i = tr(M_i⁻¹ E_i W F Fᵀ W E_iᵀ)               by how much it lowers tr(FᵀWF)
    W ← W − W E_iᵀ M_i⁻¹ E_i W                          once label i is in the batch

tr(FᵀWF) is the expected Brier loss on the targets, less what no label can change. With W = I and
ε = 0 the score is MEBL. (The true M_i has a zero in direction √p̄, but E_i never meets it.)

Scores usually fall as the batch grows, yet a label may gain by another that tells apart what it
mixes: old scores are no upper bounds, and a lazy greedy that trusts them would be wrong. But W and
M_i only fall. So while W goes from W₀ to W₁,

    √score_i(W) ≤ √score_i(W₁) + √(λ_max(Fᵀ(W₀ − W₁)F) · tr(M_i(W₁)⁻¹ (M_i(W₀) − M_i(W₁)))),

as W = W₁ + D with 0 ⪯ D ⪯ W₀ − W₁ and ‖Fᵀ D Eᵀ M^-½‖ ≤ ‖Fᵀ D^½‖ ‖D^½ Eᵀ M^-½‖. Hence the plan: make
a few picks among the best candidates only, score all once, follow the others whose bound is above a
pick through these picks, and keep the picks up to the first one that any of them would have beaten.
Where the candidates are few, all are followed, and no bound of this kind is needed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.kernels.elementwise import TINY
from foresee.strategies.candidates import (
    check_subsets,
    draw_candidates,
    draw_targets,
    draws,
    predict_in_chunks,
)
from foresee.types import View

X = TypeVar("X")

BLOCK = 512
"""Candidates among which a run of picks is made."""
FEW = 1024
"""Candidates that are all followed, pick by pick."""
STEPS = 64
"""Picks of the longest run."""

_TAKEN = -1.0  # in place of a score: below all of them
_MANY = 1 / 8  # of the labels: to renew all costs less than to score these exactly a few times
_MARGIN = 1.001  # more than the rounding of a score in float32
_CHUNK = 1 << 19  # entries of E that are worked on at once: they stay in the cache


@dataclass(frozen=True)
class GreedyConditioning:
    """Label the point with the highest MEBL, then the one with the highest given its label, etc.

    ``candidates`` and ``targets`` draw random subsets, as in `TopK`; the cost hardly grows with the
    targets. Where there are more than ``classes`` classes, the likeliest of each point are told
    apart and the rest, r, counts as one, but for the first pick: no score rises, and MEBL falls by
    at most λ_max(FFᵀ) Σ_r ‖E_r‖². Memory holds n · classes · (t + 2 classes) numbers.

    ``noise`` is ε, the share of a label's variance that is error: a second copy of a point whose
    label is certain given the draw is worth ε/2 of the first, and is taken only where nothing else
    is worth more. It also says what happens when
    the batch has exhausted the draws, whose rank is below t: W does not vanish but tends to
    ε (Σ EᵀE)⁻¹, summed over the batch, and the picks go on as an experiment designed to keep
    tr(FᵀWF) small (A-optimality). Starting anew from W = I instead repeats what is known: on digits
    that was no better than chance, and this was. Equal scores are ordered at random.
    """

    candidates: int | None = None
    targets: int | None = None
    classes: int = 16
    noise: float = 1e-3

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        if self.classes < 2:
            raise InputError(f"classes must be at least 2, got {self.classes}")
        if not 1e-4 <= self.noise < np.inf:
            raise InputError(
                f"noise must be at least 1e-4, below which float32 would decide; got {self.noise}"
            )

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in the pool, in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        predict = view.posterior.predict
        val = draws("posterior.predict(val)", predict(draw_targets(view, self.targets, rng)))
        with tiled.full_precision():
            root = target_root(val)
        alone: list[Tensor] = []

        def rows() -> Iterator[Tensor]:
            for chunk in predict_in_chunks(predict, view.pool, order):
                probs = draws("posterior.predict(pool)", chunk)
                if probs.shape[2] > self.classes:
                    alone.append(_mebl(probs, root))
                yield explained(coarsened(probs, self.classes))

        labels = _Labels(gathered(rows(), len(order)), root, self.noise)
        first = [int(torch.cat(alone).argmax())] if alone else []
        with tiled.full_precision():
            return order[_select(labels, size, first)]


def coarsened(probs: Float[Tensor, "n t c"], classes: int) -> Float[Tensor, "n t k"]:
    """Keep the ``classes`` − 1 likeliest classes of each point and add up the others."""
    if probs.shape[2] <= classes:
        return probs
    order = probs.mean(1).argsort(1, descending=True)
    ordered = probs.gather(2, order[:, None].expand_as(probs))
    rest = ordered[..., classes - 1 :].sum(2, keepdim=True)
    return torch.cat([ordered[..., : classes - 1], rest], 2)


def explained(probs: Float[Tensor, "n t c"]) -> Float[Tensor, "n c t"]:
    """E = (P − p̄) / √(t p̄)."""
    mean = probs.mean(1, keepdim=True)
    scale = torch.where(mean > TINY, 1 / (probs.shape[1] * mean.clamp_min(TINY)).sqrt(), 0)
    return ((probs - mean) * scale).transpose(1, 2).contiguous()


def target_root(val: Float[Tensor, "m t c"]) -> Float[Tensor, "t t"]:
    """F, in float64: columns along the principal axes of the targets, the last the largest."""
    t = val.shape[1]
    gram = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    for part in val.split(max(1, _CHUNK // val[0].numel())):
        deviations = (part - part.mean(1, keepdim=True)).transpose(1, 2).reshape(-1, t)
        gram += deviations.T @ deviations
    values, vectors = torch.linalg.eigh(gram / (t * len(val)))
    return vectors * values.clamp_min(0).sqrt()


def _mebl(probs: Float[Tensor, "n t c"], root: Float[Tensor, "t t"]) -> Float[Tensor, "n"]:
    with tiled.full_precision():
        return (explained(probs) @ root.to(probs)).square().sum((1, 2))


def gathered(parts: Iterator[Tensor], n: int) -> Tensor:
    """Put n rows that come in parts into one tensor, without holding them twice."""
    whole, start = torch.empty(0), 0
    for part in parts:
        if start == 0:
            whole = part.new_empty(n, *part.shape[1:])
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


def _select(labels: "_Labels", size: int, first: Sequence[int] = ()) -> NDArray[np.int64]:
    """Pick ``size`` labels, of which the first are given."""
    picks, cov = list(first), labels.nothing_known()
    for pick in first:
        gain = labels.gain(pick, cov)
        cov = cov - gain @ gain.T
    if len(labels.rows) <= FEW:
        _pick_among_few(labels, size, picks, cov)
    else:
        with _one_core_each() as executor:
            _pick_among_many(labels.shared_by(executor), size, picks, cov)
    return np.array(picks, dtype=np.int64)


def _pick_among_few(
    labels: "_Labels", size: int, picks: list[int], cov: Float[Tensor, "t t"]
) -> None:
    left = np.delete(np.arange(len(labels.rows)), picks)
    while len(picks) < size:
        run = _run(labels.some(torch.from_numpy(left)), cov, min(STEPS, size - len(picks)))
        picks += left[run.picks].tolist()
        left = np.delete(left, run.picks)
        cov = run.covs[-1]


@contextmanager
def _one_core_each() -> Iterator[Executor]:
    """Threads that work apart; torch's own wait for each other after every small product."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, "foresee", torch.set_num_threads, (1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


def _pick_among_many(
    labels: "_Labels", size: int, picks: list[int], cov: Float[Tensor, "t t"]
) -> None:
    n = len(labels.rows)
    now = labels.survey(cov)
    now.scores[picks] = _TAKEN
    steps = 8
    while len(picks) < size:
        steps = min(steps, size - len(picks), BLOCK)
        block = now.scores.topk(min(BLOCK, n - len(picks))).indices.sort().values
        run = _run(labels.some(block), now.cov, steps)
        later = labels.survey(run.covs[-1], now)
        rivals = later.most > min(run.scores)
        rivals[picks], rivals[block] = False, False
        followed = int(rivals.sum())
        kept = _unbeaten(labels.some(rivals.nonzero()[:, 0]), now.cov, run) if followed else steps
        picks += block[run.picks[:kept]].tolist()
        now = later if kept == steps else labels.survey(run.covs[kept - 1])
        now.scores[picks] = _TAKEN
        # To score all costs as much as to follow all through some 7 picks: spend alike on both.
        if kept < steps or followed * steps > 12 * n:
            steps = max(1, steps // 2)
        elif followed * steps < 3 * n:
            steps = min(STEPS, 2 * steps)


@dataclass
class _Survey:
    """All scores, and each M, given a batch that leaves the covariance ``cov``.

    ``most`` bounds the scores since the survey before.
    """

    cov: Float[Tensor, "t t"]
    scores: Float[Tensor, "n"]
    spread: Float[Tensor, "n c c"]
    most: Float[Tensor, "n"]


class _Labels:
    """Labels that can be asked for, in the order that decides between equals."""

    def __init__(
        self,
        rows: Float[Tensor, "n c t"],
        root: Float[Tensor, "t t"],
        noise: float,
        executor: Executor | None = None,
    ) -> None:
        self.rows, self.root, self.noise, self.executor = rows, root, noise, executor
        self.alone = (1 + noise) * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)

    def shared_by(self, executor: Executor) -> "_Labels":
        """The same, to be worked on by these threads."""
        return _Labels(self.rows, self.root, self.noise, executor)

    def nothing_known(self) -> Float[Tensor, "t t"]:
        """W before the first label."""
        return torch.eye(self.rows.shape[2]).to(self.root)

    def some(self, which: Tensor | slice) -> "_Labels":
        """Those at these positions."""
        return _Labels(self.rows[which], self.root, self.noise, self.executor)

    def map(self, work: Callable[[slice], X]) -> list[X]:
        """Work on slices of all of them, of few enough to stay in the cache."""
        n, c, t = self.rows.shape
        size = max(1, _CHUNK // (c * t))
        parts = [slice(start, start + size) for start in range(0, n, size)]
        return list(self.executor.map(work, parts) if self.executor else map(work, parts))

    def given(
        self, factors: Float[Tensor, "t 2*t"]
    ) -> tuple[Float[Tensor, "n c t"], Float[Tensor, "n c c"]]:
        """E W F and M, given a batch; see `factors`."""
        n, c, t = self.rows.shape
        both = (self.rows.view(-1, t) @ factors).view(n, c, 2 * t)
        told, learnt = both[..., :t], both[..., t:]
        return told, self.alone - learnt @ learnt.mT

    def factors(self, cov: Float[Tensor, "t t"]) -> Float[Tensor, "t 2*t"]:
        """W F and a square root of I − W, side by side."""
        values, vectors = torch.linalg.eigh(torch.eye(len(cov)).to(cov) - cov)
        learnt = vectors * values.clamp_min(0).sqrt()
        return torch.cat([cov @ self.root, learnt], 1).to(self.rows)

    def survey(self, cov: Float[Tensor, "t t"], before: _Survey | None = None) -> _Survey:
        """Score all labels."""
        n, c, _ = self.rows.shape
        survey = _Survey(cov, *(self.rows.new_zeros(n, *s) for s in ((), (c, c), ())))
        factors = self.factors(cov)
        fall = 0.0
        if before:
            largest = torch.linalg.eigvalsh(self.root.T @ (before.cov - cov) @ self.root)[-1]
            fall = float(largest.clamp_min(0))

        def score(part: slice) -> None:
            told, spread = self.some(part).given(factors)
            inverse = torch.linalg.inv(spread)
            scores = (inverse * (told @ told.mT)).sum((1, 2)).clamp_min_(0)
            survey.scores[part], survey.spread[part] = scores, spread
            if before:
                shared = (inverse * (before.spread[part] - spread)).sum((1, 2)).clamp_min_(0)
                survey.most[part] = (scores.sqrt() + (fall * shared).sqrt()) ** 2 * _MARGIN

        self.map(score)
        return survey

    def gain(self, which: int, cov: Float[Tensor, "t t"]) -> Float[Tensor, "t c"]:
        """K such that this label lowers W by K Kᵀ; in float64."""
        rows = self.rows[which].double()
        spread = self.alone.double() - rows @ rows.T + rows @ cov @ rows.T
        root = torch.linalg.cholesky(spread)
        return torch.linalg.solve_triangular(root, rows @ cov, upper=False).T


class _Followed:
    """Scores of some labels while the batch grows.

    In units in which M was I at the start, M = I − G and score = tr(M⁻¹H), H = E W F Fᵀ W Eᵀ. As
    G ⪰ 0 grows, tr(H) ≤ score ≤ tr(H) / (1 − ‖G‖): few labels need more than these bounds. When
    many do, the units are renewed.
    """

    def __init__(self, labels: _Labels, factors: Float[Tensor, "t 2*t"]) -> None:
        told, spread = labels.given(factors)
        self.rows, self.told = labels.rows, told
        self.taken: list[int] = []
        self._renew(spread)

    def _renew(self, spread: Float[Tensor, "n c c"]) -> None:
        eye = torch.eye(spread.shape[1]).to(spread)
        units = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), eye, upper=False)
        self.rows, self.told = units @ self.rows, units @ self.told
        self.learnt = torch.zeros_like(spread)
        self._bound()

    def add(self, gain: Float[Tensor, "t c"], fall: Float[Tensor, "c t"]) -> None:
        """Lower W by K Kᵀ; ``fall`` is KᵀF."""
        n, c, t = self.rows.shape
        shared = self.rows.view(-1, t) @ gain
        self.told.view(-1, t).addmm_(shared, fall, alpha=-1)
        shared = shared.view(n, c, -1)
        self.learnt.baddbmm_(shared, shared.mT)
        self._bound()

    def _bound(self) -> None:
        self.least = torch.linalg.vector_norm(self.told.flatten(1), dim=1).square_()
        room = 1 - torch.linalg.vector_norm(self.learnt.flatten(1), dim=1)
        self.most = torch.where(room > 0, _MARGIN * self.least / room, torch.inf)
        self.least[self.taken] = self.most[self.taken] = _TAKEN

    def best(self) -> tuple[int, float]:
        """Position and score of the best label; it is taken."""
        which, scores = self.scores_from(self.least.max())
        first = int(scores.argmax())  # of equals
        self.taken.append(int(which[first]))
        return self.taken[-1], float(scores[first])

    def scores_from(self, bound: float | Tensor) -> tuple[Tensor, Float[Tensor, "k"]]:
        """Positions of all labels whose score may reach this bound, and their scores."""
        which = (self.most >= bound).nonzero()[:, 0]
        if len(which) > len(self.rows) * _MANY:
            self._renew(torch.eye(self.learnt.shape[1]).to(self.learnt) - self.learnt)
            which = (self.most >= bound).nonzero()[:, 0]
        return which, self.scores(which)

    def scores(self, which: Tensor) -> Float[Tensor, "k"]:
        """Return the scores of the labels at these positions."""
        told = self.told[which]
        spread = torch.eye(told.shape[1]).to(told) - self.learnt[which]
        return (torch.linalg.inv(spread) * (told @ told.mT)).sum((1, 2)).clamp_min_(0)


@dataclass
class _Run:
    """Picks, one after the other: positions, scores, what each changed (K and KᵀF), and W after."""

    picks: list[int]
    scores: list[float]
    changes: list[tuple[Tensor, Tensor]]
    covs: list[Float[Tensor, "t t"]]


def _run(labels: _Labels, cov: Float[Tensor, "t t"], steps: int) -> _Run:
    """Pick the best label, ``steps`` times."""
    followed = _Followed(labels, labels.factors(cov))
    run = _Run([], [], [], [])
    while True:
        pick, score = followed.best()
        gain = labels.gain(pick, cov)
        cov = cov - gain @ gain.T
        run.picks.append(pick)
        run.scores.append(score)
        run.changes.append((gain.to(labels.rows), (gain.T @ labels.root).to(labels.rows)))
        run.covs.append(cov)
        if len(run.picks) == steps:
            return run
        followed.add(*run.changes[-1])


def _unbeaten(labels: _Labels, cov: Float[Tensor, "t t"], run: _Run) -> int:
    """How many picks of a run, at least one, are made before one of these labels scores higher.

    The first pick was the best of all.
    """
    factors = labels.factors(cov)

    def unbeaten_by(part: slice) -> int:
        followed = _Followed(labels.some(part), factors)
        for step in range(1, len(run.picks)):
            followed.add(*run.changes[step - 1])
            if (followed.scores_from(run.scores[step])[1] > run.scores[step]).any():
                return step
        return len(run.picks)

    return min(labels.map(unbeaten_by))
