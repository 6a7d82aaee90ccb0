"""Batches that are judged as a whole: BatchMell and BatchBALD, greedy on sampled labels.

What a batch B tells depends on the labels y that its points will get. Each vector of labels has
its chance Pr(Y_B = y), and leaves a belief over the draws, w_t ∝ Π_{i ∈ B} P_it(y_i). By the chain
rule, E_y being the mean over label vectors and I_w an information under the belief that y leaves,

    mean_v I(Y_v; Y_B ∪ Y_i) = mean_v I(Y_v; Y_B) + E_y mean_v I_w(Y_v; Y_i)      (BatchMell)
    I(θ; Y_B ∪ Y_i)          = I(θ; Y_B)          + E_y I_w(θ; Y_i)               (BatchBALD)

so a greedy step is the plain score under each belief, averaged. The paper's batch objective
f(B) = Σ_v H(Y_v | Y_B) is what BatchMell lowers. While there are no more than ``samples`` possible
label vectors, all are kept and the averages are exact; from then on ``samples`` of them are drawn,
one label at a time.

T draws can tell log T nats and no more. A batch uses that up after a few picks: then a label vector
leaves hardly more than one draw. When the best gain falls below a hundredth of the first, the
labels so far are forgotten, and the next picks begin anew among the points that are left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.kernels import elementwise, tiled
from foresee.strategies.candidates import (
    at_once,
    check_subsets,
    draw_candidates,
    draws_at,
    gathered,
    pool_draws,
    target_draws,
)
from foresee.types import View

_EXHAUSTED = 0.01  # of the first gain
_CHUNK = 1 << 22  # products of a pass that are held at once


@dataclass(frozen=True)
class BatchMell:
    """Label the points whose labels together tell most about the target labels.

    Cost of a pick: samples · shortlist · targets · c² · t. For batches of tens, not of thousands.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all.
        samples: label vectors that stand for all.
        shortlist: how many points of highest MELL are considered, at least ``size``; None: all.
        lookahead: 2 chooses pairs by what they tell together: it finds points that tell nothing
            alone, at c · shortlist / 2 times the cost of a pick.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> BatchMell()(view, 3, np.random.default_rng(0))
    array([24, 34,  7])
    """

    candidates: int | None = None
    targets: int | None = None
    samples: int = 16
    shortlist: int | None = 256
    lookahead: int = 1

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        checks.whole("samples", self.samples)
        checks.whole("shortlist", self.shortlist, optional=True)
        if self.lookahead not in (1, 2):
            raise InputError(f"lookahead must be 1 or 2, got {self.lookahead}")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        pools = pool_draws(view, order, val)
        scores = torch.cat([tiled.log_loss_reduction(pool.to(val), val) for pool in pools])
        keep = None if self.shortlist is None else max(self.shortlist, size)
        best = order[scores.sort(descending=True, stable=True).indices[:keep].cpu().numpy()]
        pool = draws_at(view, "pool", best).to(val)

        def gain(beliefs: Beliefs) -> Tensor:
            return target_information(pool, val, beliefs)

        with tiled.full_precision():
            if self.lookahead == 2:
                return best[_pairs(pool, size, gain, self.samples, rng)]
            return best[_greedy(pool, size, gain, self.samples, rng)]


@dataclass(frozen=True)
class BatchBALD:
    """Label the points whose labels together tell most about the parameters (Kirsch et al. 2019).

    Needs no target. Cost of a pick: samples · n · c · t, a pass of MELL over ``samples`` / c
    targets. It holds the predictions of all candidates.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        samples: label vectors that stand for all.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> BatchBALD()(view, 3, np.random.default_rng(0))
    array([24,  7, 34])
    """

    candidates: int | None = None
    samples: int = 64

    def __post_init__(self) -> None:
        check_subsets(self.candidates, None)
        checks.whole("samples", self.samples)

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order of the choice."""
        order = draw_candidates(view, size, self.candidates, rng)
        pool = gathered(pool_draws(view, order), len(order))
        divergences = divergence(pool)

        def gain(beliefs: Beliefs) -> Tensor:
            return parameter_information(pool, divergences, beliefs)

        with tiled.full_precision():
            return order[_greedy(pool, size, gain, self.samples, rng)]


class Beliefs(NamedTuple):
    """What s label vectors of a batch would leave: their chances, and a weight for every draw.

    They are either all vectors that are possible, and some that are not, of chance 0, or samples,
    all of the same chance. ``sampled`` says which: a tensor, so that nobody waits for a GPU.
    """

    chance: Float[Tensor, "s"]
    weight: Float[Tensor, "s t"]
    sampled: Bool[Tensor, ""]


def prior(pool: Float[Tensor, "n t c"], vectors: int = 1) -> Beliefs:
    """Before any label: one empty vector, by which all draws weigh the same; others of chance 0."""
    t = pool.shape[1]
    chance = (torch.arange(vectors, device=pool.device) == 0).to(pool)
    weight = pool.new_full((vectors, t), 1 / t)
    return Beliefs(chance, weight, torch.zeros((), dtype=torch.bool, device=pool.device))


def after(
    beliefs: Beliefs, probs: Float[Tensor, "t c"], samples: int, rng: np.random.Generator
) -> Beliefs:
    """Add a label: all its values while ``samples`` vectors hold them, else one drawn for each."""
    every, c = every_label(beliefs, probs), probs.shape[1]
    if len(every.chance) <= samples:
        return every
    possible = every.chance > 0
    sampled = beliefs.sampled | (possible.sum() > samples)
    # Vectors that are samples already each get one label; of all vectors some are drawn before.
    each = torch.arange(samples, device=probs.device) % len(beliefs.chance)
    vectors = torch.where(beliefs.sampled, each, _draw(beliefs.chance.expand(samples, -1), rng))
    values = _draw((beliefs.weight @ probs)[vectors], rng)
    all_possible = possible.to(torch.int8).argsort(descending=True, stable=True)[:samples]
    kept = torch.where(sampled, vectors * c + values, all_possible)
    chance = torch.where(sampled, 1 / samples, every.chance[kept])
    return Beliefs(chance, every.weight[kept], sampled)


def every_label(beliefs: Beliefs, probs: Float[Tensor, "t c"]) -> Beliefs:
    """Add a label: every vector with each of its c values, which makes s·c vectors."""
    joint = beliefs.weight[:, None] * probs.T  # w_t P_t(y) [s c t]
    given = joint.sum(2, keepdim=True)  # [s c 1]
    chance = (beliefs.chance[:, None] * given[..., 0]).flatten()
    weight = torch.where(given > 0, joint / given, 1 / len(probs)).flatten(0, 1)
    return Beliefs(chance / chance.sum(), weight, beliefs.sampled)


def target_information(
    pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t c"], beliefs: Beliefs
) -> Float[Tensor, "n"]:
    """E_y mean_v I_w(Y_v; Y_i), one belief after the other."""
    rows = max(1, at_once(_CHUNK, pool) // (pool.shape[2] * val.shape[0] * val.shape[2]))
    total = pool.new_zeros(len(pool))
    for chance, weight in zip(beliefs.chance, beliefs.weight, strict=True):
        if not pool.is_cuda and chance == 0:
            continue
        parts = [tiled.weighted_information(part, val, weight) for part in pool.split(rows)]
        total += chance * torch.cat(parts)
    return total


def divergence(pool: Float[Tensor, "n t c"]) -> Float[Tensor, "n t"]:
    """KL(P_it ‖ p̄_i), of every draw from the mean: Σ_c p̄_c φ(P_tc / p̄_c − 1)."""
    parts = []
    for part in pool.split(max(1, at_once(_CHUNK, pool) // pool[0].numel())):
        relative, mean = tiled.relative(part)
        parts.append((mean[:, None] * elementwise.phi(relative)).sum(2))
    return torch.cat(parts)


def parameter_information(
    pool: Float[Tensor, "n t c"], divergences: Float[Tensor, "n t"], beliefs: Beliefs
) -> Float[Tensor, "n"]:
    """E_y I_w(θ; Y_i) = E_y Σ_t w_t KL(P_it ‖ p̄_i) − E_y KL(Σ_t w_t P_it ‖ p̄_i).

    ``divergences`` are the KL(P_it ‖ p̄_i). The second term is I(Y_i; Y_B): MELL for one target that
    has the label vectors y as classes, with probabilities Pr(y | θ_t) = Pr(y) w_t t. As MELL is a
    sum over these classes, they may be shared out to made-up targets of c classes each.
    """
    _, t, c = pool.shape
    classes = beliefs.weight * beliefs.chance[:, None] * t  # [s t]
    classes = torch.nn.functional.pad(classes, (0, 0, 0, -len(classes) % c))
    targets = classes.view(-1, c, t).transpose(1, 2).contiguous()  # [s/c t c]
    known = tiled.log_loss_reduction(pool, targets, binary=False) * len(targets)
    return (divergences @ (beliefs.chance @ beliefs.weight) - known).clamp_min_(0)


def _greedy(
    pool: Float[Tensor, "n t c"],
    size: int,
    gain: Callable[[Beliefs], Tensor],
    samples: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    beliefs = prior(pool)
    first = gains = gain(beliefs)
    taken = torch.zeros(len(pool), dtype=torch.bool, device=pool.device)
    picks: list[Tensor] = []
    while True:
        exhausted = gains.masked_fill(taken, -1).max() < _EXHAUSTED * first.max()  # []
        anew = zip(prior(pool, len(beliefs.chance)), beliefs, strict=True)
        beliefs = Beliefs(*(torch.where(exhausted, *pair) for pair in anew))
        gains = torch.where(exhausted, first, gains).masked_fill(taken, -1)
        picks.append(gains.argmax(0, keepdim=True))
        if len(picks) == size:
            return torch.cat(picks).cpu().numpy()
        taken.index_fill_(0, picks[-1], True)
        beliefs = after(beliefs, pool[picks[-1]][0], samples, rng)
        gains = gain(beliefs)


def _pairs(
    pool: Float[Tensor, "n t c"],
    size: int,
    gain: Callable[[Beliefs], Tensor],
    samples: int,
    rng: np.random.Generator,
) -> list[int]:
    """Choose pair by pair; the last of an odd number alone."""
    beliefs, picks = prior(pool), list[int]()
    first = 0.0
    while len(picks) < size - 1:
        best, pair = _best_pair(pool, beliefs, picks, gain)
        first = first if picks else best
        if best < _EXHAUSTED * first:
            beliefs = prior(pool)
            _, pair = _best_pair(pool, beliefs, picks, gain)
        picks += pair
        for i in pair:
            beliefs = after(beliefs, pool[i], samples, rng)
    if len(picks) < size:
        alone, anew = gain(beliefs), gain(prior(pool))
        enough = _EXHAUSTED * anew.max()
        alone[picks] = anew[picks] = -1
        picks.append(int((alone if alone.max() >= enough else anew).argmax()))
    return picks


def _best_pair(
    pool: Float[Tensor, "n t c"],
    beliefs: Beliefs,
    taken: list[int],
    gain: Callable[[Beliefs], Tensor],
) -> tuple[float, tuple[int, int]]:
    """The highest gain of two points that are not taken, and the two, in their order."""
    left = [i for i in range(len(pool)) if i not in taken]
    closed = torch.tensor(taken, dtype=torch.int64, device=pool.device)
    alone, pairs = gain(beliefs), list[Tensor]()
    for i in left[:-1]:
        # All labels of i: a sampled one would hide what the pair tells.
        both = alone[i] + gain(every_label(beliefs, pool[i]))  # gain of i with each other [n]
        both[: i + 1] = -1  # as a pair has one gain, whoever comes first
        pairs.append(both.index_fill_(0, closed, -1))
    best, at = torch.stack(pairs).flatten().max(0)
    i, j = divmod(int(at), len(pool))
    return float(best), (left[i], j)


def _draw(chance: Float[Tensor, "s k"], rng: np.random.Generator) -> Tensor:
    """Draw one column for each row."""
    cumulative = chance.double().cumsum(1)
    uniform = torch.from_numpy(rng.random((len(chance), 1))).to(chance.device, non_blocking=True)
    level = uniform * cumulative[:, -1:]
    return torch.searchsorted(cumulative, level, right=True)[:, 0].clamp_max(chance.shape[1] - 1)
