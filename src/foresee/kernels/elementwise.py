"""What happens to one tile, in plain torch: any device, any float type.

`compiled` has the same functions for float32 on the CPU, several times faster. All of them write
into arrays that the caller owns.

They speak of relative deviations: with p̄ = mean_t P, a row P_tc / p̄_c − 1 says how much more often
than usual draw t predicts class c. The product of two rows, divided by t, is u = J / (p̄ q̄) − 1,
the relative deviation of the joint from independence, and keeps its relative accuracy however
small it is. A difference of entropies does not.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# A class below this mean probability carries less than 1e-28 nats: it is left out.
TINY = 1e-30


def are_probabilities(probs: Float[Tensor, "*rows c"], tolerance: float) -> bool:
    """Whether no value is negative and the last axis sums to one; false for NaN."""
    error = (probs.sum(-1) - 1).abs_()
    return bool(error.amax() <= tolerance) and bool(probs.amin() >= 0)


def renormalised(probs: Float[Tensor, "*rows c"]) -> Float[Tensor, "*rows c"]:
    """In float64, where rows that were rounded sum to one again: no noise is to be negative."""
    probs = probs.double()
    return probs / probs.sum(-1, keepdim=True)


def relative(
    probs: Float[Tensor, "n t c"], weight: Float[Tensor, "t"] | None = None
) -> tuple[Float[Tensor, "n t c"], Float[Tensor, "n c"]]:
    """A = P/p̄ − 1 and p̄, the mean over draws, which have these weights (None: the same)."""
    mean = probs.mean(1) if weight is None else torch.einsum("ntc,t->nc", probs, weight)
    scale = torch.where(mean > TINY, 1 / mean.clamp_min(TINY), 0)
    return (probs - mean[:, None]) * scale[:, None], mean


def deviations(
    probs: Float[Tensor, "n t c"], rows: Float[Tensor, "r t"], mean: Float[Tensor, "n c"]
) -> None:
    """Set rows P/p̄ − 1, one for every point and class, and the means p̄."""
    deviation, average = relative(probs)
    mean.copy_(average)
    rows.view(*mean.shape, -1).copy_(deviation.transpose(1, 2))


def standardised(
    probs: Float[Tensor, "n t 2"], rows: Float[Tensor, "n t"], pair: Float[Tensor, "n 2"]
) -> None:
    """For two classes: set one row (P − p) / √(p(1−p)) per point, and the pair (p, 1 − p).

    p belongs to the rarer class, whose probabilities keep their relative accuracy in floats.
    """
    mean, order = probs.mean(1).sort(1)
    pair.copy_(mean)
    p, rest = mean[:, :1], mean[:, 1:]
    rare = probs.gather(2, order[:, None, :1].expand(-1, probs.shape[1], -1))[..., 0]
    rows.copy_(torch.where(p > TINY, (rare - p) / (p.clamp_min(TINY) * rest).sqrt(), 0))


def phi(u: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """φ(u) = (1+u) log(1+u) − u ≥ 0 for u ≥ −1, to full relative accuracy."""
    # Below `small`, the first terms of u²/2 − u³/6 + u⁴/12 − …; above, nothing cancels.
    small, degree = (0.1, 6) if u.dtype == torch.float32 else (0.01, 7)
    u = u.clamp_min(-1)
    series = torch.zeros_like(u)
    for k in reversed(range(degree + 1)):
        series.mul_(u).add_((-1) ** k / ((k + 1) * (k + 2)))
    closed = torch.log1p(u).clamp_min_(-100).mul_(1 + u).sub_(u)  # 0 log 0 = 0
    return torch.where(u.abs() < small, series.mul_(u).mul_(u), closed)


def information(
    u: Float[Tensor, "r k"],
    weight: Float[Tensor, "k"],
    mean: Float[Tensor, "n c"],
    out: Float[Tensor, "n"],
) -> None:
    """Add Σ_c p̄_c Σ_k weight_k φ(u_ck): mutual information."""
    out += (mean * (phi(u) @ weight).view_as(mean)).sum(1)


def binary_information(
    corr: Float[Tensor, "n m"],
    val: Float[Tensor, "m 2"],
    pair: Float[Tensor, "n 2"],
    out: Float[Tensor, "n"],
) -> None:
    """Add Σ_j I(Y_i; Y_j) for two classes, where one correlation r fixes the joint.

    For the rarer classes u = r √((1−p)/p · (1−q)/q); the other of two turns ratio and sign round.
    """
    odds_i = (pair[:, 1] / pair[:, 0].clamp_min(TINY)).sqrt()[:, None]
    odds_j = (val[:, 1] / val[:, 0].clamp_min(TINY)).sqrt()
    q, not_q = val.unbind(1)
    high, low = corr * odds_j, corr / odds_j
    rare = phi(high * odds_i) @ q + phi(-low * odds_i) @ not_q
    usual = phi(-high / odds_i) @ q + phi(low / odds_i) @ not_q
    out += pair[:, 0] * rare + pair[:, 1] * usual


def squares(u: Float[Tensor, "r k"], mean: Float[Tensor, "n c"], out: Float[Tensor, "n"]) -> None:
    """Add Σ_c p̄_c Σ_k u_ck²."""
    out += (mean * u.square().sum(1).view_as(mean)).sum(1)


def savings(
    u: Float[Tensor, "r k"],
    saving: Float[Tensor, "a j"],
    mean: Float[Tensor, "n c"],
    out: Float[Tensor, "n"],
) -> None:
    """Add Σ_c p̄_c Σ_j max_a (saving_aj + u_caj)⁺: what a change of mind saves, given the label."""
    best = (u.view(-1, *saving.shape) + saving).amax(1).clamp_min_(0)
    out += (mean * best.sum(1).view_as(mean)).sum(1)
