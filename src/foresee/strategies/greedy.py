"""Greedy conditioning: a batch of labels that together tell most about the targets.

Of all labels, add the one with the highest score given those before, again and again (see
`drawspace` for the equations: E_i [c t] is a label, F [t t] the targets, W [t t] what the batch
leaves unknown, and score_i the fall of the expected Brier loss on the targets).

To score all n labels after every pick costs n·c·t² each time. As a label may gain by another, old
scores are no upper bounds, and a lazy greedy that trusts them would be wrong. But a bound holds
between two surveys of all scores, one before some picks and one after. Hence the plan:

    1. make a few picks among the ``BLOCK`` best labels of the last survey only
    2. survey: score all labels once, which bounds what each was worth during these picks
    3. follow those outside the block whose bound is above a pick, from pick to pick
    4. keep the picks up to the first one that any of them would have beaten

Where the labels are few, all are followed, and no bound of this kind is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import (
    check_subsets,
    draw_candidates,
    gathered,
    pool_draws,
    target_draws,
)
from foresee.strategies.drawspace import TAKEN, Followed, Labels, explained, target_root
from foresee.types import View

# Candidates among which a run of picks is made.
BLOCK = 512
# Candidates that are all followed, pick by pick.
FEW = 1024
# Picks of the longest run.
STEPS = 64


@dataclass(frozen=True)
class GreedyConditioning:
    """Label the point with the highest MEBL, then the one with the highest given its label, etc.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all, which costs hardly more.
        classes: classes of a point that are told apart. Where there are more, the likeliest are,
            and the rest, r, counts as one, but for the first pick: no score rises, and MEBL falls
            by at most λ_max(FFᵀ) Σ_r ‖E_r‖². Memory holds n · classes · (t + 2 classes) numbers.
        noise: ε, the share of a label's variance that is error. A second copy of a point whose
            label is certain given the draw is worth ε/2 of the first, and is taken only where
            nothing else is worth more.

    The noise also says what happens when the batch has exhausted the draws, whose rank is below t:
    W does not vanish but tends to ε (Σ EᵀE)⁻¹, summed over the batch, and the picks go on as an
    experiment designed to keep tr(FᵀWF) small (A-optimality). Starting anew from W = I instead
    repeats what is known: on digits that was no better than chance, and this was. Equal scores are
    ordered at random.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> GreedyConditioning()(view, 3, np.random.default_rng(0))
    array([24, 34, 15])
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
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        with tiled.full_precision():
            F = target_root(val)
        whole: list[Tensor] = []  # MEBL with all classes told apart, of each chunk [k]

        def rows() -> Iterator[Float[Tensor, "k c t"]]:
            for probs in pool_draws(view, order, val):
                if probs.shape[2] > self.classes:
                    whole.append(_mebl(probs, F))
                yield explained(coarsened(probs, self.classes))

        labels = Labels(gathered(rows(), len(order)), F, self.noise)
        first = [int(torch.cat(whole).argmax())] if whole else []
        with tiled.full_precision():
            return order[_select(labels, size, first)]


def coarsened(probs: Float[Tensor, "n t c"], classes: int) -> Float[Tensor, "n t k"]:
    """Keep the ``classes`` − 1 likeliest classes of each point and add up the others."""
    if probs.shape[2] <= classes:
        return probs
    order = probs.mean(1).argsort(1, descending=True)  # [n c]
    ordered = probs.gather(2, order[:, None].expand_as(probs))  # [n t c]
    rest = ordered[..., classes - 1 :].sum(2, keepdim=True)  # [n t 1]
    return torch.cat([ordered[..., : classes - 1], rest], 2)


def _mebl(probs: Float[Tensor, "n t c"], F: Float[Tensor, "t t"]) -> Float[Tensor, "n"]:
    with tiled.full_precision():
        return (explained(probs) @ F.to(probs)).square().sum((1, 2))


def _select(labels: Labels, size: int, first: Sequence[int] = ()) -> NDArray[np.int64]:
    """Pick ``size`` labels, of which the first are given."""
    picks, W = list(first), labels.nothing_known()
    for pick in first:
        K = labels.gain(pick, W)
        W = W - K @ K.T
    threads = torch.get_num_threads()
    if len(labels.E) <= FEW:
        _pick_among_few(labels, size, picks, W)
    elif threads == 1:
        for _ in _pick_among_many(labels, size, picks, W):
            pass
    else:
        # Threads that work apart: torch's own wait for each other after every small product.
        shared = labels.shared_by(tiled.one_core_each(threads))
        runs = _pick_among_many(shared, size, picks, W)
        while tiled.one_core_each(1).submit(next, runs, 0).result():  # Ctrl-C waits for one run
            pass
    return np.array(picks, dtype=np.int64)


def _pick_among_few(labels: Labels, size: int, picks: list[int], W: Float[Tensor, "t t"]) -> None:
    left = np.delete(np.arange(len(labels.E)), picks)
    while len(picks) < size:
        run = _run(labels.some(torch.from_numpy(left)), W, min(STEPS, size - len(picks)))
        picks += left[run.picks].tolist()
        left = np.delete(left, run.picks)
        W = run.Ws[-1]


def _pick_among_many(
    labels: Labels, size: int, picks: list[int], W: Float[Tensor, "t t"]
) -> Iterator[int]:
    """Run after run, as in the plan above; yields how many picks of a run were kept."""
    n = len(labels.E)
    now = labels.survey(W)
    now.scores[picks] = TAKEN
    steps = 8
    while len(picks) < size:
        steps = min(steps, size - len(picks), BLOCK)
        block = now.scores.topk(min(BLOCK, n - len(picks))).indices.sort().values
        run = _run(labels.some(block), now.W, steps)
        later = labels.survey(run.Ws[-1], now)
        rivals = later.most > min(run.scores)
        rivals[picks], rivals[block] = False, False
        followed = int(rivals.sum())
        kept = _unbeaten(labels.some(rivals.nonzero()[:, 0]), now.W, run) if followed else steps
        picks += block[run.picks[:kept]].tolist()
        now = later if kept == steps else labels.survey(run.Ws[kept - 1])
        now.scores[picks] = TAKEN
        # To score all costs as much as to follow all through some 7 picks: spend alike on both.
        if kept < steps or followed * steps > 12 * n:
            steps = max(1, steps // 2)
        elif followed * steps < 3 * n:
            steps = min(STEPS, 2 * steps)
        yield kept


@dataclass
class _Run:
    """Picks, one after the other: positions, scores, what each changed (K and KᵀF), and W after."""

    picks: list[int]
    scores: list[float]
    changes: list[tuple[Float[Tensor, "t c"], Float[Tensor, "c t"]]]
    Ws: list[Float[Tensor, "t t"]]


def _run(labels: Labels, W: Float[Tensor, "t t"], steps: int) -> _Run:
    """Pick the best label, ``steps`` times."""
    followed = Followed(labels, labels.factors(W))
    run = _Run([], [], [], [])
    while True:
        pick, score = followed.best()
        K = labels.gain(pick, W)
        W = W - K @ K.T
        run.picks.append(pick)
        run.scores.append(score)
        run.changes.append((K.to(labels.E), (K.T @ labels.F).to(labels.E)))
        run.Ws.append(W)
        if len(run.picks) == steps:
            return run
        followed.add(*run.changes[-1])


def _unbeaten(labels: Labels, W: Float[Tensor, "t t"], run: _Run) -> int:
    """How many picks of a run, at least one, are made before one of these labels scores higher.

    The first pick was the best of all.
    """
    factors = labels.factors(W)

    def unbeaten_by(part: slice) -> int:
        followed = Followed(labels.some(part), factors)
        for step in range(1, len(run.picks)):
            followed.add(*run.changes[step - 1])
            if (followed.scores_from(run.scores[step])[1] > run.scores[step]).any():
                return step
        return len(run.picks)

    return min(labels.map(unbeaten_by))
