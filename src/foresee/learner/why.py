"""What one label would tell about each target."""

import numpy as np
from numpy.typing import NDArray


def gains(point: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fall of the Brier loss that is expected at each target from the label of one point.

    Their mean is the MEBL of the point. With joint_j(a, b) = E_θ[p(a | θ) q_j(b | θ)],

        gain_j = Σ_ab joint_j(a, b)² / p(a) − Σ_b q_j(b)².

    Args:
        point: probabilities of the point by every draw [t c].
        targets: those of the targets [m t c].

    Returns:
        Gains [m], none of them negative.

    >>> sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> gains(sure, np.stack([sure, np.full((2, 2), 0.5)]))
    array([0.5, 0. ])
    """
    joint = np.einsum("ta,mtb->mab", point, targets) / len(point)
    label = point.mean(0)
    possible = label > 0
    after = (joint[:, possible] ** 2 / label[possible, None]).sum((1, 2))
    before = (targets.mean(1) ** 2).sum(1)
    return np.maximum(after - before, 0.0)
