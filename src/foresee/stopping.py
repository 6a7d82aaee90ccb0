"""When to stop: the fall of the Brier loss that a batch of labels promises before it is paid.

A label is a noisy look at the draws. With a_i the centred predictions of point i over the draws
[c t], divided by √t, and R_i = mean_t (diag p_t − p_t p_tᵀ) its noise given the draw, the best
linear predictor after the labels of a batch B leaves of the draws' covariance, at first I,

    W = (I + Σ_{i ∈ B} a_iᵀ R_i⁻¹ a_i)⁻¹,

and the expected Brier loss on the targets falls by tr S − tr S W, S being the mean over targets of
b_jᵀ b_j. For a batch of one this is MEBL; redundant points promise together little more than one.
"""

import math

import torch
from torch import Tensor

from foresee import checks
from foresee.types import Array

_CHUNK = 256  # points whose noise is inverted at once
_JITTER = 1e-6  # of a class's own variance: labels that the draw decides have no noise at all


def promise(batch: Array, val: Array, *, times: float = 1.0) -> float:
    """Fall of the Brier loss per validation example expected from the labels of a batch [b t c].

    ``times`` counts every point so often: for a random sample of n / times of n points it estimates
    what all n promise. Cost: O(b·(c³ + c·t²) + m·c·t² + t³).
    """
    checks.draws("batch", batch)
    checks.draws("val", val)
    checks.same_posterior(batch, val, name="val")
    if not 0 < times < math.inf:
        raise checks.InputError(f"times must be positive and finite, got {times}")
    start, targets = _probabilities("batch", batch), _probabilities("val", val)
    t = start.shape[1]
    information = torch.zeros(t, t, dtype=torch.float64, device=start.device)
    for part in start.split(_CHUNK):
        information += _information(part)
    gram = torch.zeros_like(information)
    for part in targets.split(_CHUNK):
        centred = (part - part.mean(1, keepdim=True)).transpose(1, 2).reshape(-1, t)
        gram += centred.mT @ centred / t
    gram /= len(targets)
    # tr S − tr S W = tr S (I + F)⁻¹ F, where nothing cancels.
    identity = torch.eye(t, dtype=torch.float64, device=start.device)
    fraction = torch.linalg.solve(identity + times * information, times * information)
    return float((gram * fraction.mT).sum())


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
