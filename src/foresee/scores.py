"""Scores of pool points, from posterior draws alone. Larger = label first.

``pool [n t c]`` and ``val [m t c]`` hold the predictions of the same t draws. Torch tensors give
tensors on the same device; arrays, and what NumPy reads as one, such as nested lists, give arrays.
float64 is computed in float64, anything else in float32. Any number of threads may score at once.

MELL, MEZL, MEBL and EER are expected loss reductions per validation example (Mussmann et al.
2022, equation 1, divided by the number of validation points):

    Σ_j min_a E[ℓ(Y_j, a)]  −  E_{Y_i} Σ_j min_a E[ℓ(Y_j, a) | Y_i]

Arguments that scores share:

    pool     probabilities [n t c]: of every draw, for the points that could be labelled
    val      probabilities [m t c]: of the same draws, for a sample of the target
    scratch  bytes of temporary memory, beside the draws, that a score may use

>>> import numpy as np
>>> pool = np.array([[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]])
>>> val = np.array([[[0.8, 0.2], [0.2, 0.8]]])
>>> mell(pool, val).round(3)  # the draws disagree on the first point, and on the target with it
array([0.12, 0.  ])
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import svd
from torch import Tensor

from foresee import arrays, checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.types import A, Array

# Points whose noise [c c] is inverted at once, fewer where that is more than so many numbers.
_PROMISED, _NUMBERS = 256, 1 << 24
_JITTER = 1e-6  # of a class's own variance: labels that the draw decides have no noise at all


def mell(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the log loss, in nats: mean_j I(Y_i; Y_j).

    The paper's Score_i = n_val H(Y_i) − Σ_j H(Y_j, Y_i) is m·MELL_i − Σ_j H(Y_j).

    Args:
        pool: probabilities [n t c].
        val: probabilities [m t c] of the same draws.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], never negative.

    >>> pool = [[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> mell(pool, [[[0.8, 0.2], [0.2, 0.8]]]).round(3)
    array([0.12, 0.  ])
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.log_loss_reduction(p, v, scratch // 2)
    )


def mezl(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the zero-one loss, an error rate.

    (1/m) Σ_j Σ_c [max_c' Pr(Y_j = c', Y_i = c) − Pr(Y_j = â_j, Y_i = c)], â_j the class
    predicted now: exactly zero unless some label of i would change some prediction.

    Args:
        pool: probabilities [n t c].
        val: probabilities [m t c] of the same draws.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], never negative.

    >>> pool = [[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> mezl(pool, [[[0.8, 0.2], [0.2, 0.8]]]).round(3)
    array([0.24, 0.  ])
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.matrix_loss_reduction(p, 1 - v, scratch // 2)
    )


def mebl(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the Brier loss ‖prediction − onehot(y)‖².

    O(c t²) for each pool or validation point: give it the whole validation set.

    Args:
        pool: probabilities [n t c].
        val: probabilities [m t c] of the same draws.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], never negative.

    >>> pool = [[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> mebl(pool, [[[0.8, 0.2], [0.2, 0.8]]]).round(4)
    array([0.1152, 0.    ])
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.brier_reduction(p, v, scratch // 2)
    )


def eer(pool: A, val: A, *, loss: Any, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of any loss that is a matrix.

    Args:
        pool: probabilities [n t c].
        val: probabilities [m t c] of the same draws.
        loss: costs [c a]; ``loss[y, a]`` is that of action a when the class is y. 1 − I gives
            MEZL, a column more is an option to abstain.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], in units of the loss, never negative.

    >>> pool = [[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> missing_it_costs_five = [[0.0, 1.0], [5.0, 0.0]]
    >>> eer(pool, [[[0.99, 0.01], [0.6, 0.4]]], loss=missing_it_costs_five).round(3)
    array([0.353, 0.   ])
    """
    val = checks.draws("val", val)
    costs = checks.loss_matrix(loss, classes=val.shape[2]).double()
    # What every action costs moves no score, but would take digits.
    costs = costs - costs.amin(1, keepdim=True)

    def kernel(p: Tensor, v: Tensor) -> Tensor:
        if not bool((costs.to(v.dtype) * v.shape[1]).isfinite().all()):
            raise InputError(
                f"loss has costs of one class that are {float(costs.max()):.3g} apart, whose sum "
                f"over draws overflows {v.dtype}: lower the largest, or divide them all"
            )
        with tiled.full_precision():
            return tiled.matrix_loss_reduction(p, v @ costs.to(v), scratch // 2)

    return _against_targets(pool, val, scratch, kernel)


def bald(pool: A, val: A | None = None, *, scratch: int = tiled.SCRATCH) -> A:
    """I(Y_i; θ) in nats: what the label tells about the parameters.

    Args:
        pool: probabilities [n t c].
        val: not used: so that it can stand where other scores do.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], never negative.

    >>> bald([[[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.5]]]).round(3)
    array([0.368, 0.   ])
    """
    return _stream(pool, scratch, lambda p: tiled.parameter_information(p, scratch // 2))


def entropy_mc(pool: A, val: A | None = None, *, scratch: int = tiled.SCRATCH) -> A:
    """H(Y_i) in nats, of the mean over draws.

    Args:
        pool: probabilities [n t c].
        val: not used: so that it can stand where other scores do.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], never negative.

    >>> entropy_mc([[[0.9, 0.1], [0.1, 0.9]], [[1.0, 0.0], [1.0, 0.0]]]).round(3)
    array([0.693, 0.   ])
    """
    return _stream(pool, scratch, lambda p: torch.special.entr(p.mean(1)).sum(-1))


def margin(pool: A, val: A | None = None, *, scratch: int = tiled.SCRATCH) -> A:
    """1 − (p₁ − p₂), p₁ and p₂ being the likeliest two classes of the mean over draws.

    Args:
        pool: probabilities [n t c].
        val: not used: so that it can stand where other scores do.
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point of the pool [n], from 0, certain, to 1, a tie.

    >>> margin([[[0.9, 0.1], [0.3, 0.7]], [[1.0, 0.0], [1.0, 0.0]]]).round(3)
    array([0.8, 0. ])
    """

    def kernel(p: Tensor) -> Tensor:
        ordered = p.mean(1).sort(1, descending=True).values
        return ordered[:, 1] + ordered[:, 1:].sum(1)  # 1 − p₁ as a sum keeps its digits

    return _stream(pool, scratch, kernel)


def entropy(point: A, *, scratch: int = tiled.SCRATCH) -> A:
    """H in nats of one prediction per input: no posterior needed.

    Args:
        point: probabilities [n c].
        scratch: bytes of temporary memory, at most.

    Returns:
        One score for each point [n], never negative.

    >>> entropy([[0.5, 0.5], [1.0, 0.0]]).round(3)
    array([0.693, 0.   ])
    """
    return _stream(point, scratch, lambda p: torch.special.entr(p).sum(-1), name="point")


@dataclass(frozen=True)
class Decomposition(Generic[A]):
    """What the label of each pool point tells, in nats [n].

    total = entropy of the label = epistemic + aleatoric; epistemic = I(Y_i; θ) = relevant +
    irrelevant, where relevant = mean_j I(Y_i; Y_j) and irrelevant = mean_j I(Y_i; θ | Y_j).
    """

    total: A
    epistemic: A
    aleatoric: A
    relevant: A
    irrelevant: A


def decompose(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> Decomposition[A]:
    """Split the entropy of each pool label into what helps on the targets and what does not.

    Args:
        pool: probabilities [n t c].
        val: probabilities [m t c] of the same draws.
        scratch: bytes of temporary memory, at most.

    Returns:
        Five arrays [n]; see `Decomposition`.

    >>> parts = decompose([[[0.9, 0.1], [0.1, 0.9]]], [[[0.8, 0.2], [0.2, 0.8]]])
    >>> parts.relevant.round(3), parts.irrelevant.round(3), parts.aleatoric.round(3)
    (array([0.12]), array([0.248]), array([0.325]))
    """
    pool = checks.draws("pool", pool)
    total = entropy_mc(pool, scratch=scratch)
    epistemic = bald(pool, scratch=scratch)
    relevant = mell(pool, val, scratch=scratch)
    # Both are non-negative; only rounding could say otherwise.
    aleatoric, irrelevant = (total - epistemic).clip(0), (epistemic - relevant).clip(0)
    return Decomposition(total, epistemic, aleatoric, relevant, irrelevant)


def promise(batch: Array, val: Array, *, times: float = 1.0) -> float:
    """Fall of the Brier loss per validation example expected from the labels of a batch.

    A label is a noisy look at the draws. Let a_i be the centred predictions of point i over the
    draws [c t], divided by √t, and R_i = mean_t (diag p_t − p_t p_tᵀ) its noise given the draw. The
    covariance of the draws is I at first. After the labels of a batch B the best linear predictor
    leaves of it

        W = (I + Σ_{i ∈ B} a_iᵀ R_i⁻¹ a_i)⁻¹,

    and the expected Brier loss on the targets falls by tr S − tr S W, S being the mean over
    targets of b_jᵀ b_j. For a batch of one this is MEBL; redundant points promise together little
    more than one.

    Args:
        batch: probabilities [b t c] of the points to label.
        val: probabilities [m t c] of the same draws.
        times: how often every point counts. A random sample of n / times of n points estimates so
            what all n promise.

    Returns:
        A Brier loss. Cost: O(b·(c³ + c·t²) + m·c·t² + t³).

    >>> batch, val = [[[0.9, 0.1], [0.1, 0.9]]], [[[0.8, 0.2], [0.2, 0.8]]]
    >>> round(promise(batch, val), 4), round(promise(batch * 2, val), 4)
    (0.1152, 0.1405)
    """
    if not 0 < times < math.inf:
        raise InputError(f"times must be positive and finite, got {times}")
    points, targets = _promising(batch, val)
    t = points.shape[1]
    looks = torch.zeros(0, t, dtype=torch.float64, device=points.device)
    for part in _parts(points):
        # As good as all of them for Σ aᵀ R⁻¹ a = looksᵀ looks, and no more than t.
        looks = torch.linalg.qr(torch.cat([looks, _looks(part)]), mode="r").R
    # tr S − tr S W = Σ_k s_k f_k / (1 + f_k) over the principal axes of the looks, S having the
    # parts s_k along them: no term is negative, and nothing cancels or overflows.
    lengths, axes = _principal(looks)
    seen = lengths > t * torch.finfo(lengths.dtype).eps * lengths[0]
    fraction = 1 / (1 + 1 / (times * lengths[seen].square()))
    along = (axes[seen] @ _target_gram(targets) * axes[seen]).sum(1)
    return float(along @ fraction)


def promises(batch: Array, val: Array) -> NDArray[np.float64]:
    """What the labels of a batch promise as it grows: `promise` of its first point, first two, ….

    Label r lowers W to W − K Kᵀ with K = W a_rᵀ (R_r + a_r W a_rᵀ)^-½, and tr S W by tr Kᵀ S K.

    Args:
        batch: probabilities [b t c] of the points to label, in their order.
        val: probabilities [m t c] of the same draws.

    Returns:
        Brier losses [b], none lower than the one before. Cost: O(b·(c³ + c·t²) + m·c·t²).

    >>> batch, val = [[[0.9, 0.1], [0.1, 0.9]]], [[[0.8, 0.2], [0.2, 0.8]]]
    >>> promises(batch * 2, val).round(4)
    array([0.1152, 0.1405])
    """
    points, targets = _promising(batch, val)
    S = _target_gram(targets)
    W = torch.eye(len(S), dtype=S.dtype, device=S.device)
    gains = []
    for part in _parts(points):
        for look in _looks(part).view(len(part), -1, len(S)):
            noise = torch.linalg.cholesky(torch.eye(len(look)).to(look) + look @ W @ look.mT)
            K = torch.linalg.solve_triangular(noise, look @ W, upper=False).mT
            W = W - K @ K.mT
            gains.append((K * (S @ K)).sum())
    return arrays.numpy(torch.stack(gains).cumsum(0))


def _promising(batch: Array, val: Array) -> tuple[Tensor, Tensor]:
    """Checked predictions of a batch and of the targets."""
    batch, val = checks.draws("batch", batch), checks.draws("val", val)
    checks.same_posterior(batch, val)
    points, targets = arrays.tensor(batch), arrays.tensor(val)
    checks.rows_sum_to_one("batch", points)
    checks.rows_sum_to_one("val", targets)
    return points, targets


def _parts(points: Tensor) -> tuple[Tensor, ...]:
    return points.split(max(1, min(_PROMISED, _NUMBERS // points.shape[2] ** 2)))


def _target_gram(targets: Tensor) -> Tensor:
    """S = mean_j b_jᵀ b_j [t t], b_j being the centred predictions of target j, over √t."""
    m, t, _ = targets.shape
    gram = torch.zeros(t, t, dtype=torch.float64, device=targets.device)
    for part in _parts(targets):
        centred = _renormalised(part)
        centred = (centred - centred.mean(1, keepdim=True)).transpose(1, 2).reshape(-1, t)
        gram += centred.mT @ centred
    return gram / (t * m)


def _against_targets(
    pool: A, val: A, scratch: int, kernel: Callable[[Tensor, Tensor], Tensor]
) -> A:
    pool, val = checks.draws("pool", pool), checks.draws("val", val)
    checks.same_posterior(pool, val)
    targets = arrays.tensor(val)
    checks.rows_sum_to_one("val", targets)
    dtype = torch.promote_types(_compute_dtype(pool), _compute_dtype(val))
    targets = targets.to(dtype).contiguous()
    return _stream(pool, scratch, lambda p: kernel(p, targets), dtype=dtype)


def _stream(
    pool: A,
    scratch: int,
    kernel: Callable[[Tensor], Tensor],
    name: str = "pool",
    dtype: torch.dtype | None = None,
) -> A:
    """Apply a kernel to the pool, by chunks where it must be copied: never all of it at once."""
    values = checks.draws(name, pool) if name == "pool" else checks.array(name, pool, "n c")
    checks.byte_count("scratch", scratch)
    dtype = dtype or _compute_dtype(values)
    is_tensor = isinstance(values, Tensor)
    as_is = values.is_contiguous() if is_tensor else arrays.is_shareable(values)
    row = arrays.tensor(values[:1])
    whole = as_is and row.dtype == dtype
    size = len(values) if whole else max(1, scratch // 4 // row.nbytes)
    parts = []
    for start in range(0, len(values), size):
        chunk = arrays.tensor(values[start : start + size])
        checks.rows_sum_to_one(name, chunk, offset=start)
        parts.append(kernel(chunk.to(dtype).contiguous()))
    scores: Any = torch.cat(parts)
    return scores if is_tensor else scores.numpy()


def _compute_dtype(values: Array) -> torch.dtype:
    return torch.float64 if values.dtype.itemsize >= 8 else torch.float32


def _looks(points: Tensor) -> Tensor:
    """Rows L with Lᵀ L = Σ_i a_iᵀ R_i⁻¹ a_i, for points [n t c]: n (c − 1) of length t.

    What the labels of all classes but one say, that one says too. Left out is the likeliest: the
    noise of the others stays accurate however unlikely they are.
    """
    probs = _renormalised(points)
    n, t, c = probs.shape
    order = probs.mean(1).argsort(1)[:, None, :-1]
    p = probs.gather(2, order.expand(n, t, c - 1))
    mean = p.mean(1)
    a = (p - mean[:, None]).transpose(1, 2) / t**0.5
    noise = torch.diag_embed(mean * (1 + _JITTER) + 1e-12) - p.mT @ p / t
    factor = torch.linalg.cholesky(noise)
    return torch.linalg.solve_triangular(factor, a, upper=False).reshape(-1, t)


def _principal(looks: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths along the principal axes, the longest first, and these as rows."""
    try:
        _, lengths, axes = torch.linalg.svd(looks, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Sure draws have many equal lengths, at which it may fail to converge.
        found = svd(looks.cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
        _, lengths, axes = (torch.from_numpy(part).to(looks) for part in found)
    return lengths, axes


def _renormalised(points: Tensor) -> Tensor:
    """In float64, where rows that were rounded sum to one again: noise must not be negative."""
    probs = points.to(torch.float64)
    return probs / probs.sum(2, keepdim=True)
