"""The specification: equation 1 of the paper in float64, by eye and without any trick.

Every fast kernel answers to this file. Memory is O(n m c c): for small cases only.

    Score_i = Σ_j min_a E[ℓ(Y_j, a)]  −  E_{Y_i} Σ_j min_a E[ℓ(Y_j, a) | Y_i]

with Pr(Y_i = c) = mean_t P_itc and Pr(Y_i = c, Y_j = c') = mean_t P_itc Q_jtc'. The results are
divided by m: expected loss reduction per validation example.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import entr, rel_entr

# min_a E[ℓ(Y, a)] of a label Y with the given probabilities.
Risk = Callable[[Float[np.ndarray, "*rows c"]], Float[np.ndarray, "*rows"]]


def log_risk(probs: Float[np.ndarray, "*rows c"]) -> Float[np.ndarray, "*rows"]:
    """Log loss: the best prediction is the distribution itself, its risk the entropy."""
    return entr(probs).sum(-1)


def zero_one_risk(probs: Float[np.ndarray, "*rows c"]) -> Float[np.ndarray, "*rows"]:
    """Zero-one loss: predict the likeliest class."""
    return 1 - probs.max(-1)


def brier_risk(probs: Float[np.ndarray, "*rows c"]) -> Float[np.ndarray, "*rows"]:
    """Brier loss ‖a − onehot(y)‖²: the best prediction is the distribution itself."""
    return 1 - (probs**2).sum(-1)


def matrix_risk(loss: Float[np.ndarray, "c a"]) -> Risk:
    """Loss matrix ℓ[y, a]: take the cheapest action."""
    return lambda probs: (probs @ loss).min(-1)


def joint(
    pool: Float[np.ndarray, "n t c"], val: Float[np.ndarray, "m t c"]
) -> Float[np.ndarray, "n m c c"]:
    """Pr(Y_i = c, Y_j = c'): labels are independent given the draw."""
    return np.einsum("itc,jtd->ijcd", *map(np.float64, (pool, val)), optimize=True) / pool.shape[1]


def expected_loss_reduction(
    pool: Float[np.ndarray, "n t c"], val: Float[np.ndarray, "m t c"], risk: Risk
) -> Float[np.ndarray, "n"]:
    """Equation 1, divided by m."""
    pool, val = pool.astype(np.float64), val.astype(np.float64)
    now = risk(val.mean(1)).mean()
    joint_ijcd = joint(pool, val)
    prob_c = joint_ijcd.sum(-1)
    given_c = joint_ijcd / np.where(prob_c > 0, prob_c, 1)[..., None]
    after = (prob_c * risk(given_c)).sum(-1).mean(-1)
    return now - after


def paper_mell(
    pool: Float[np.ndarray, "n t c"], val: Float[np.ndarray, "m t c"]
) -> Float[np.ndarray, "n"]:
    """The paper's Score_i for MELL: m H(Y_i) − Σ_j H(Y_j, Y_i)."""
    marginal = log_risk(pool.astype(np.float64).mean(1))
    return len(val) * marginal - entr(joint(pool, val)).sum((1, 2, 3))


def paper_mezl(
    pool: Float[np.ndarray, "n t c"], val: Float[np.ndarray, "m t c"]
) -> Float[np.ndarray, "n"]:
    """The paper's Score_i for MEZL: Σ_c Σ_j max_c' Pr(Y_j = c', Y_i = c) − m."""
    return joint(pool, val).max(-1).sum((1, 2)) - len(val)


def bald(pool: Float[np.ndarray, "n t c"]) -> Float[np.ndarray, "n"]:
    """I(Y_i; θ), the mean divergence of the draws from their mean."""
    pool = pool.astype(np.float64)
    return rel_entr(pool, pool.mean(1, keepdims=True)).sum(-1).mean(-1)


def irrelevant_information(
    pool: Float[np.ndarray, "n t c"], val: Float[np.ndarray, "m t c"]
) -> Float[np.ndarray, "n"]:
    """mean_j I(Y_i; θ | Y_j): reweight the draws by each label of j, then BALD under them."""
    pool, val = pool.astype(np.float64), val.astype(np.float64)
    total = np.zeros(len(pool))
    for draws in val:
        for likelihood in draws.T:
            seen = likelihood > 0
            if seen.any():
                weight = likelihood[seen] / likelihood.sum()
                mean = np.einsum("t,itc->ic", weight, pool[:, seen])
                divergence = rel_entr(pool[:, seen], mean[:, None]).sum(-1)
                total += likelihood.mean() * (divergence @ weight)
    return total / len(val)
