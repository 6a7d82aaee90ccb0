"""Scores of pool points, from posterior draws alone. Larger = label first.

``pool [n t c]`` and ``val [m t c]`` hold the predictions of the same t draws. NumPy arrays give
NumPy arrays, torch tensors give tensors on the same device; float64 is computed in float64,
anything else in float32.

MELL, MEZL, MEBL and EER are expected loss reductions per validation example (Mussmann et al.
2022, equation 1, divided by the number of validation points):

    Σ_j min_a E[ℓ(Y_j, a)]  −  E_{Y_i} Σ_j min_a E[ℓ(Y_j, a) | Y_i]

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
from torch import Tensor

from foresee import checks
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.types import A, Array

_PROMISED = 256  # points whose noise is inverted at once
_JITTER = 1e-6  # of a class's own variance: labels that the draw decides have no noise at all


def mell(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the log loss, in nats: mean_j I(Y_i; Y_j).

    The paper's Score_i = n_val H(Y_i) − Σ_j H(Y_j, Y_i) is m·MELL_i − Σ_j H(Y_j).

    ``scratch`` caps the temporary memory in bytes.
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.log_loss_reduction(p, v, scratch // 2)
    )


def mezl(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the zero-one loss, an error rate.

    (1/m) Σ_j Σ_c [max_c' Pr(Y_j = c', Y_i = c) − Pr(Y_j = a*_j, Y_i = c)], a*_j the class
    predicted now: exactly zero unless some label of i would change some prediction.
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.matrix_loss_reduction(p, 1 - v, scratch // 2)
    )


def mebl(pool: A, val: A, *, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of the Brier loss ‖prediction − onehot(y)‖².

    O(c t²) for each pool or validation point: give it the whole validation set.
    """
    return _against_targets(
        pool, val, scratch, lambda p, v: tiled.brier_reduction(p, v, scratch // 2)
    )


def eer(pool: A, val: A, *, loss: Any, scratch: int = tiled.SCRATCH) -> A:
    """Expected reduction of any loss: ``loss[y, a]`` is the cost of action a when the class is y.

    ``loss = 1 − I`` gives MEZL; a column more is an option to abstain.
    """
    checks.draws("val", val)
    checks.loss_matrix(loss, classes=val.shape[2])

    def kernel(p: Tensor, v: Tensor) -> Tensor:
        return tiled.matrix_loss_reduction(p, v @ torch.as_tensor(loss).to(v), scratch // 2)

    return _against_targets(pool, val, scratch, kernel)


def bald(pool: A, val: A | None = None, *, scratch: int = tiled.SCRATCH) -> A:
    """I(Y_i; θ) in nats: what the label tells about the parameters. ``val`` is not used."""
    return _stream(pool, scratch, lambda p: tiled.parameter_information(p, scratch // 2))


def entropy_mc(pool: A, val: A | None = None, *, scratch: int = tiled.SCRATCH) -> A:
    """H(Y_i) in nats, of the mean over draws. ``val`` is not used."""
    return _stream(pool, scratch, lambda p: torch.special.entr(p.mean(1)).sum(-1))


def entropy(point: A, *, scratch: int = tiled.SCRATCH) -> A:
    """H in nats of one prediction per input, ``point [n c]``: no posterior needed."""
    checks.array("point", point, "n c")
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
    """Split the entropy of each pool label into what helps on the targets and what does not."""
    total = entropy_mc(pool, scratch=scratch)
    epistemic = bald(pool, scratch=scratch)
    relevant = mell(pool, val, scratch=scratch)
    # Both are non-negative; only rounding could say otherwise.
    aleatoric, irrelevant = (total - epistemic).clip(0), (epistemic - relevant).clip(0)
    return Decomposition(total, epistemic, aleatoric, relevant, irrelevant)


def promise(batch: Array, val: Array, *, times: float = 1.0) -> float:
    """Fall of the Brier loss per validation example expected from the labels of a batch [b t c].

    A label is a noisy look at the draws. With a_i the centred predictions of point i over the draws
    [c t], divided by √t, and R_i = mean_t (diag p_t − p_t p_tᵀ) its noise given the draw, the best
    linear predictor after the labels of a batch B leaves of the draws' covariance, at first I,

        W = (I + Σ_{i ∈ B} a_iᵀ R_i⁻¹ a_i)⁻¹,

    and the expected Brier loss on the targets falls by tr S − tr S W, S being the mean over
    targets of b_jᵀ b_j. For a batch of one this is MEBL; redundant points promise together little
    more than one.

    ``times`` counts every point so often: for a random sample of n / times of n points it estimates
    what all n promise. Cost: O(b·(c³ + c·t²) + m·c·t² + t³).
    """
    checks.draws("batch", batch)
    checks.draws("val", val)
    checks.same_posterior(batch, val, name="val")
    if not 0 < times < math.inf:
        raise InputError(f"times must be positive and finite, got {times}")
    start, targets = _probabilities("batch", batch), _probabilities("val", val)
    t = start.shape[1]
    information = torch.zeros(t, t, dtype=torch.float64, device=start.device)
    for part in start.split(_PROMISED):
        information += _information(part)
    gram = torch.zeros_like(information)
    for part in targets.split(_PROMISED):
        centred = (part - part.mean(1, keepdim=True)).transpose(1, 2).reshape(-1, t)
        gram += centred.mT @ centred / t
    gram /= len(targets)
    # tr S − tr S W = tr S (I + F)⁻¹ F, where nothing cancels.
    identity = torch.eye(t, dtype=torch.float64, device=start.device)
    fraction = torch.linalg.solve(identity + times * information, times * information)
    return float((gram * fraction.mT).sum())


def _against_targets(
    pool: A, val: A, scratch: int, kernel: Callable[[Tensor, Tensor], Tensor]
) -> A:
    checks.draws("pool", pool)
    checks.draws("val", val)
    checks.byte_count("scratch", scratch)
    checks.same_posterior(pool, val)
    targets = _tensor(val)
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
    if name == "pool":
        checks.draws(name, pool)
    checks.byte_count("scratch", scratch)
    dtype = dtype or _compute_dtype(pool)
    row = _tensor(pool[:1])
    contiguous = pool.is_contiguous() if isinstance(pool, Tensor) else pool.flags.carray
    copied = not contiguous or row.dtype != dtype
    size = max(1, scratch // 4 // row.nbytes) if copied else len(pool)
    parts = []
    for start in range(0, len(pool), size):
        chunk = _tensor(pool[start : start + size])
        checks.rows_sum_to_one(name, chunk, offset=start)
        parts.append(kernel(chunk.to(dtype).contiguous()))
    scores = torch.cat(parts)
    return scores.numpy() if isinstance(pool, np.ndarray) else scores


def _tensor(values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    readable = values.dtype.isnative and values.itemsize <= 8 and min(values.strides) >= 0
    if not (readable and values.flags.carray):  # torch warns of read-only memory
        dtype = values.dtype.newbyteorder("=") if values.itemsize <= 8 else np.float64
        values = np.array(values, dtype=dtype, order="C")
    return torch.from_numpy(values)


def _compute_dtype(values: Array) -> torch.dtype:
    return torch.float64 if values.dtype.itemsize >= 8 else torch.float32


def _information(probs: Tensor) -> Tensor:
    """Σ_i a_iᵀ R_i⁻¹ a_i [t t]; one class says nothing that the others do not.

    That is the likeliest: beside the rest, however unlikely, nothing cancels.
    """
    n, t, c = probs.shape
    order = probs.mean(1).argsort(1)[:, None, :-1]
    p = probs.gather(2, order.expand(n, t, c - 1))
    mean = p.mean(1)
    a = (p - mean[:, None]).transpose(1, 2) / t**0.5
    noise = torch.diag_embed(mean * (1 + _JITTER) + 1e-12) - p.mT @ p / t
    looks = torch.cholesky_solve(a, torch.linalg.cholesky(noise))
    return a.reshape(-1, t).mT @ looks.reshape(-1, t)


def _probabilities(name: str, draws: Array) -> Tensor:
    """In float64, where rows that were rounded sum to one again: noise must not be negative."""
    probs = torch.as_tensor(draws)
    checks.rows_sum_to_one(name, probs)
    probs = probs.to(torch.float64)
    return probs / probs.sum(2, keepdim=True)
