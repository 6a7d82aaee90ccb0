"""The Bayesian linear model, exactly (Mussmann et al. 2022, appendix on the linear model).

    y = θᵀx + ε,  θ ~ N(μ, Σ),  ε ~ N(0, σ²)

>>> model = LinearModel(np.zeros(2), np.eye(2), noise=1.0)
>>> pool, val = np.array([[1.0, 0.0], [0.0, 9.0]]), np.array([[2.0, 0.0]])
>>> bald(model, pool).round(2)  # the long one
array([0.35, 2.2 ])
>>> mell(model, pool, val).round(2)  # the one that has to do with the target
array([0.26, 0.  ])
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from foresee import arrays, seeding
from foresee.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinearModel:
    """θ ~ N(mean [d], covariance [d d]); ``noise`` is the variance σ² of a label given θ.

    Its labels are real numbers, so it has `moments` in place of a `Posterior`'s probabilities.

    >>> model = LinearModel([0.0, 0.0], np.eye(2), noise=1.0).condition([[1.0, 0.0]], [4.0])
    >>> mean, variance = model.moments([[1.0, 0.0], [0.0, 1.0]])
    >>> mean, variance
    (array([2., 0.]), array([1.5, 2. ]))
    """

    mean: Floats
    covariance: Floats
    noise: float

    def __post_init__(self) -> None:
        mean, covariance = (np.asarray(v, np.float64) for v in (self.mean, self.covariance))
        if mean.ndim != 1 or covariance.shape != mean.shape * 2:
            raise InputError(f"covariance of mean {mean.shape} must be [d d]: {covariance.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise InputError("mean and covariance must be finite: they hold NaN or infinity")
        if not (np.isfinite(self.noise) and self.noise > 0):
            raise InputError(f"noise must be a variance above 0, got {self.noise}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", (covariance + covariance.T) / 2)
        if np.abs(covariance - self.covariance).max() > 1e-8 * np.linalg.norm(self.root()) ** 2:
            raise InputError("covariance must be symmetric: pass (S + S.T) / 2")

    def root(self) -> Floats:
        """Lower triangular R [d d] with Σ = R Rᵀ."""
        try:
            return np.asarray(np.linalg.cholesky(self.covariance))
        except np.linalg.LinAlgError as error:
            raise InputError("covariance must be positive definite: add to its diagonal") from error

    def condition(self, inputs: Any, targets: Any) -> "LinearModel":
        """The posterior given inputs [l d] and their targets [l]."""
        # Σ' = R (I + Rᵀ Xᵀ X R / σ²)⁻¹ Rᵀ: nothing is subtracted, so Σ' stays positive definite.
        x, y, root = _table(self, inputs), np.asarray(targets, np.float64), self.root()
        if y.shape != (len(x),) or not np.isfinite(y).all():
            raise InputError(f"targets must be finite, of shape [{len(x)}], got {list(y.shape)}")
        precision = np.eye(len(root)) + (x @ root).T @ (x @ root) / self.noise
        half = solve_triangular(np.linalg.cholesky(precision), root.T, lower=True)
        covariance = half.T @ half
        step = covariance @ (x.T @ (y - x @ self.mean)) / self.noise
        return LinearModel(self.mean + step, covariance, self.noise)

    def draws(self, t: int, rng: np.random.Generator) -> Floats:
        """Weights θ [t d]."""
        seeding.check(rng)
        return self.mean + rng.standard_normal((t, len(self.mean))) @ self.root().T

    def moments(self, inputs: Any) -> tuple[Floats, Floats]:
        """Mean and variance of the labels at inputs [n d]: two arrays [n]."""
        return _table(self, inputs) @ self.mean, _variance(self, inputs) + self.noise


def bald(model: LinearModel, pool: Any) -> Floats:
    """I(Y_x; θ) = ½ log(1 + xᵀΣx / σ²) in nats [n]: it grows with the norm of x, without end."""
    return np.asarray(np.log1p(_variance(model, pool) / model.noise) / 2)


def mell(model: LinearModel, pool: Any, val: Any) -> Floats:
    """E_v I(Y_x; Y_v) = E_v[−½ log(1 − r(x, v)²)] in nats [n], r the correlation of the labels."""
    variances = np.outer(model.moments(pool)[1], model.moments(val)[1])
    r = _table(model, pool) @ model.covariance @ _table(model, val).T / np.sqrt(variances)
    information = -np.log1p(-np.minimum(r**2, np.nextafter(1, 0))) / 2
    # No label tells more than θ does; only rounding could say otherwise.
    most = np.minimum(bald(model, pool)[:, None], bald(model, val))
    return np.asarray(np.minimum(information, most).mean(1))


def bound(model: LinearModel, val: Any) -> float:
    """C = E_v[vᵀΣv] / 2σ², which MELL exceeds at no x (the appendix's proposition)."""
    return float(_variance(model, val).mean() / (2 * model.noise))


def _variance(model: LinearModel, inputs: Any) -> Floats:
    return np.asarray(((_table(model, inputs) @ model.root()) ** 2).sum(1))


def _table(model: LinearModel, inputs: Any) -> Floats:
    x = np.asarray(arrays.numpy(inputs, "inputs"), np.float64)
    if x.ndim != 2 or x.shape[1] != len(model.mean):
        raise InputError(f"inputs must have shape [n {len(model.mean)}], got {list(x.shape)}")
    if not np.isfinite(x).all():
        raise InputError("inputs hold NaN or infinity: clean or impute them")
    return x
