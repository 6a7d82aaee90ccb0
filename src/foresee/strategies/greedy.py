"""Greedy conditioning: a batch of labels that together tell most about the targets.

Of all labels, add the one with the highest score given those before, again and again. `drawspace`
has the equations: E_i [k t] is a label of k = c − 1 directions, S [t t] the targets, W [t t] what
the batch leaves unknown, and score_i the fall of the expected Brier loss on the targets.

There are two ways to know all n scores after a pick: to follow every label, for n·k²·t operations,
or to survey them, which computes all scores anew, for n·k·t².

Where picks are few for so many draws, or labels are few, or on a GPU, all labels are followed
(`_follow_all`). If their E is too large for the cache, 16 picks at a time are made ahead among the
48 best labels, and then one pass over E keeps those before the first that another label beats.

Where picks are many, that is too slow (`_pick_lazily`). As a label may gain by another, an old
score is no upper bound, and a lazy greedy that trusts it would be wrong. But a bound holds between
two surveys, one before some picks and one after. Hence the plan:

    1. make a few picks among the ``BLOCK`` best labels of the last survey only
    2. survey: score all labels once, which bounds what each was worth during these picks
    3. follow those outside the block whose bound is above a pick, from pick to pick
    4. keep the picks before the first one that any of them would have beaten
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import DrawsWarning, InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import (
    check_subsets,
    draw_candidates,
    gathered,
    pool_draws,
    target_draws,
    with_draws,
)
from foresee.strategies.drawspace import Change, Labels, Survey, reflected, reflections, target_gram
from foresee.types import View

# Candidates among which a run of picks is made.
BLOCK = 512
# Candidates that are all followed, pick by pick.
FEW = 1024
# Picks of the longest run.
STEPS = 64

# Draws that a batch asks for, at least and at most.
FEWEST_DRAWS, MOST_DRAWS = 300, 1000

_NOISE, _NOISE_SHARE = 1e-3, 0.1  # at least, and for each direction and draw
_NOISE_ALONE = 0.3  # at least, where nothing else is noise
_SURVEYS = 4  # where to follow all costs no more than so many surveys, it is done
_CACHED = 1 << 21  # entries of E that stay in the cache from pick to pick
_AHEAD = 16  # picks that are made before the others are asked, or on a GPU before one waits
_AROUND = 3  # labels for each of these picks, among which they are made
_FALL = 0.1  # once scores fall to this share, a survey makes up for the rounding of H


@dataclass(frozen=True)
class GreedyConditioning:
    """Label the point with the highest MEBL, then the one with the highest given its label, etc.

    Draws of a large network by MC dropout agree more than they are right, and take what they do not
    know for noise. Then no label seems to make another redundant, and all picks are of one kind.
    ``aleatoric=False``, as `Default` has it, trusts draws for the directions alone.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all. Time and memory
            grow with it: 80 picks by 1000 draws, c = 10, take 0.7 seconds of one core among 800
            and two among 4000, which time allows; on an H200 0.12 s among 4000 or 25 000, and
            2500 picks of these 3 s: there, take all.
        targets: size of a random subset of the validation set; None: all, which costs hardly more.
        classes: so many of a point are told apart, the likeliest; the rest, r, counts as one, but
            for the first pick. No score rises by that, and MEBL falls by at most
            λ_max(S) Σ_r ‖E_r‖². Memory holds n · classes · (t + 40 classes) numbers.
        noise: ε, the share of a label's variance that is error; None follows from the draws, below.
            A second copy of a point whose label is certain given the draw is worth ε/2 of the
            first, and is taken only where nothing else is worth more.
        draws: a posterior that can draw more, such as `mc_dropout`, is asked for so many; None
            follows from the batch, below.
        aleatoric: whether what the draws do not explain of a label is noise. If not, noise is ε,
            as a share of what they explain of a typical label, and nothing else; the first pick
            need not be that of MEBL.

    t draws span t − 1 directions, and a label can use up c − 1 of them. So a batch asks for as many
    draws as its labels have directions, `directions`, but for no fewer than 300, below which scores
    are chance, and for no more than 1000, beyond which they cost more than they tell. If the draws
    are fewer still, what they say about many labels at once is half chance, and ε grows: it is
    0.1 · directions / t, and at least 0.001, or 0.3 where nothing else is noise (docs/theory.md has
    the experiments).

    The noise also says what happens when the batch has exhausted the draws, of which a
    `foresee.DrawsWarning` warns: W does not vanish but tends to ε (Σ EᵀE)⁻¹, summed over the batch,
    and the picks go on as an experiment designed to keep tr(SW) small (A-optimality). Starting anew
    from W = I instead repeats what is known: on digits that was no better than chance, while this
    was better. Equal scores are ordered at random.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> GreedyConditioning()(view, 3, np.random.default_rng(0))
    array([24, 34, 15])
    """

    candidates: int | None = None
    targets: int | None = None
    classes: int = 16
    noise: float | None = None
    draws: int | None = None
    aleatoric: bool = True

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        checks.whole("classes", self.classes, fewest=2)
        if self.noise is not None and not 1e-4 <= self.noise < np.inf:
            raise InputError(
                f"noise must be at least 1e-4, below which float32 would decide; got {self.noise}"
            )
        if self.draws is not None:
            checks.n_draws(self.draws)

    def directions(self, size: int, classes: int) -> int:
        """How many directions of the draws the labels of a batch can use up.

        >>> GreedyConditioning().directions(size=80, classes=10)
        720
        """
        return size * (min(classes, self.classes) - 1)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        view = with_draws(view, lambda classes: self.enough_draws(size, classes))
        val = target_draws(view, self.targets, rng)
        noise = self.enough_noise(size, *val.shape[1:])
        with tiled.full_precision():
            S = target_gram(val)
        whole: list[Tensor] = []  # MEBL with all classes told apart, of each chunk [k]

        def rows() -> Iterator[Float[Tensor, "l k t"]]:
            for probs in pool_draws(view, order, val):
                if self.aleatoric and probs.shape[2] > self.classes:
                    whole.append(_mebl(probs, S))
                yield from reflections(coarsened(probs, self.classes))

        labels = Labels(gathered(rows(), len(order)), S, noise, self.aleatoric)
        first = torch.cat(whole).argmax(0, keepdim=True) if whole else None
        with tiled.full_precision():
            return order[_select(labels, size, first)]

    def enough_draws(self, size: int, classes: int) -> int:
        """How many draws a batch asks for."""
        if self.draws is not None:
            return self.draws
        return min(max(self.directions(size, classes), FEWEST_DRAWS), MOST_DRAWS)

    def enough_noise(self, size: int, draws: int, classes: int) -> float:
        """How much noise a batch needs for its draws; warns where it can use them up."""
        directions = self.directions(size, classes)
        least = _NOISE if self.aleatoric else _NOISE_ALONE
        noise = max(least, _NOISE_SHARE * directions / draws) if self.noise is None else self.noise
        if directions > draws:
            warnings.warn(
                f"the labels of {size} points can use up {directions} directions, and there are "
                f"{draws} draws: the last picks are spread by the noise, {noise:.3g}; ask for "
                "fewer points, or take a posterior of more draws",
                DrawsWarning,
                stacklevel=3,
            )
        return noise


def coarsened(probs: Float[Tensor, "n t c"], classes: int) -> Float[Tensor, "n t k"]:
    """Keep the ``classes`` − 1 likeliest classes of each point and add up the others."""
    if probs.shape[2] <= classes:
        return probs
    order = probs.mean(1).argsort(1, descending=True)  # [n c]
    ordered = probs.gather(2, order[:, None].expand_as(probs))  # [n t c]
    rest = ordered[..., classes - 1 :].sum(2, keepdim=True)  # [n t 1]
    return torch.cat([ordered[..., : classes - 1], rest], 2)


def _mebl(probs: Float[Tensor, "n t c"], S: Float[Tensor, "t t"]) -> Float[Tensor, "n"]:
    """tr(E S Eᵀ)."""
    E = reflected(probs)  # [n k t]
    with tiled.full_precision():
        return ((E @ S.to(E)) * E).sum((1, 2))


@torch.inference_mode()  # small products start sooner
def _select(labels: Labels, size: int, first: Int[Tensor, "k"] | None = None) -> NDArray[np.int64]:
    """Pick ``size`` labels, of which the first may be given."""
    n, k, t = labels.E.shape
    first = torch.zeros(0, dtype=torch.int64, device=labels.E.device) if first is None else first
    if not labels.E.is_cuda and (threads := torch.get_num_threads()) > 1:
        labels.executor = tiled.one_core_each(threads)
    survey = labels.survey()
    for pick in first[:, None]:
        survey.take(labels, pick, pick)
    few = labels.E.is_cuda or n <= FEW or k * size <= _SURVEYS * t
    runs = (_follow_all if few else _pick_lazily)(labels, size - len(first), survey)
    if not labels.E.is_cuda:
        runs = _apart(runs)
    return torch.cat([first, *runs]).cpu().numpy()


def _apart(runs: Iterator[Int[Tensor, "k"]]) -> Iterator[Int[Tensor, "k"]]:
    """The runs, made on a thread of one core: torch's own wait for each other at every product."""
    one_run = torch.inference_mode()(next)
    while (run := tiled.one_core_each(1).submit(one_run, runs, None).result()) is not None:
        yield run  # Ctrl-C waits for one run


def _follow_all(labels: Labels, left: int, survey: Survey) -> Iterator[Int[Tensor, "k"]]:
    """Run after run among all labels; on a GPU nothing waits for a single pick."""
    n, k, t = labels.E.shape
    best = None
    while left:
        # t // k labels may tell all that t draws know: scores may then fall within one run.
        steps = min(_AHEAD, left, max(1, t // k))
        if labels.E.is_cuda or labels.E.numel() <= _CACHED:
            run = _run(labels, survey, steps)
        else:  # memory is slow: pick among the best, then see in one pass if another was better
            block = survey.scores().topk(min(n, _AROUND * _AHEAD)).indices.sort().values  # [k]
            run = _run(labels, survey.some(block), steps, block)
            kept = survey.add_while_best(*run, block, labels)
            survey.known.size -= k * (steps - kept)
            run = _Run(run.picks[:kept], run.scores[:kept], run.changes[:kept])
        left -= len(run.picks)
        best = run.scores[0] if best is None else best
        if bool(run.scores[-1] < _FALL * best):
            survey, best = labels.survey(survey.known.matrix(), survey.taken), None
        yield run.picks


def _pick_lazily(labels: Labels, left: int, now: Survey) -> Iterator[Int[Tensor, "k"]]:
    """Run after run, as in the plan above."""
    n, k = labels.E.shape[:2]
    steps = 8
    while left:
        steps = min(steps, left, BLOCK)
        free = n - int(now.taken.sum())
        block = now.scores().topk(min(BLOCK, free)).indices.sort().values  # [k]
        run = _run(labels, now.some(block), steps, block)
        later = labels.survey(now.known.matrix(), now.taken)
        rivals = labels.most(now, later, run.changes) > run.scores.min()  # [n]
        rivals[block] = False
        rivals &= ~now.taken
        followed = int(rivals.sum())
        kept = _unbeaten(labels, now.some(rivals.nonzero()[:, 0]), run) if followed else steps
        if kept < steps:
            now.known.size -= k * (steps - kept)
            later = labels.survey(now.known.matrix(), now.taken)
        now = later
        now.taken[run.picks[:kept]] = True
        left -= kept
        # To score all costs as much as to follow all through some 7 picks: spend alike on both.
        if kept < steps or followed * steps > 12 * n:
            steps = max(1, steps // 2)
        elif followed * steps < 3 * n:
            steps = min(STEPS, 2 * steps)
        yield run.picks[:kept]


class _Run(NamedTuple):
    """Picks, one after the other: positions, scores, and what each changed."""

    picks: Int[Tensor, "k"]
    scores: Float[Tensor, "k"]
    changes: list[Change]


def _run(labels: Labels, survey: Survey, steps: int, block: Int[Tensor, "k"] | None = None) -> _Run:
    """Pick the best label of a survey, ``steps`` times; the survey is of all, or of a block."""
    picks, scores, changes = list[Tensor](), list[Tensor](), list[Change]()
    survey.known.make_room(steps * labels.E.shape[1])
    for _ in range(steps):
        score, pick = survey.scores().max(0, keepdim=True)  # [1] both; of equals the first
        scores.append(score)
        picks.append(pick if block is None else block[pick])
        changes.append(survey.take(labels, picks[-1], pick))
    return _Run(torch.cat(picks), torch.cat(scores), changes)


def _unbeaten(labels: Labels, rivals: Survey, run: _Run) -> int:
    """How many picks of a run are made before a rival scores higher than the next.

    The first, the best of all labels, always is.
    """

    def unbeaten_by(part: slice) -> int:
        part_of_rivals = rivals.some(part)
        for step in range(1, len(run.picks)):
            part_of_rivals.add(run.changes[step - 1])
            if (part_of_rivals.scores(run.scores[step]) > run.scores[step]).any():
                return step
        return len(run.picks)

    return min(labels.map(unbeaten_by, len(rivals.E)))
