"""BADGE: a batch of gradients that are large and unlike each other.

Ash et al. 2020, arXiv:1906.03671. If the predicted class of point i were its label, the gradient of
the loss at the last layer would be g_i = r_i ⊗ h_i, with r = p − onehot(argmax p) and h the
embedding. The batch is a k-means++ seeding of the g: a first one at random, then each point with
probability ∝ D², its squared distance to the nearest pick.

The g have c·d entries but are never formed: ⟨g_i, g_j⟩ = ⟨r_i, r_j⟩⟨h_i, h_j⟩.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import checks
from foresee.kernels import tiled
from foresee.strategies.candidates import check_request, matrix
from foresee.strategies.kmeanspp import RESOLUTION, kmeanspp
from foresee.types import View


@dataclass(frozen=True)
class Badge:
    """k-means++ seeding of the gradients that the predicted classes would cause.

    Needs neither draws nor target: it asks the posterior for point predictions [n c] and for
    embeddings [n d].

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> Badge()(view, 3, np.random.default_rng(0))
    array([34, 10,  1])
    """

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order they were drawn."""
        check_request(view, size, rng)
        probs = matrix("posterior.point(pool)", view.posterior.point, view.pool)
        checks.array("posterior.point(pool)", probs, "n c")
        checks.rows_sum_to_one("posterior.point(pool)", probs)
        embeddings = matrix("posterior.embed(pool)", view.posterior.embed, view.pool)
        with tiled.full_precision():
            return kmeanspp(_Gradients(probs.to(embeddings.device), embeddings), size, rng)


class _Gradients:
    """The vectors r_i ⊗ h_i by their factors."""

    def __init__(self, probs: Float[Tensor, "n c"], embeddings: Float[Tensor, "n d"]) -> None:
        predicted = torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])
        self.r = (probs - predicted).float()
        self.h = embeddings.float()
        norms = torch.linalg.vector_norm(self.r, dim=1) * torch.linalg.vector_norm(self.h, dim=1)
        # A little short, so that the distance between equal points is zero, not rounding noise.
        self.squares = norms.square_() * (1 - RESOLUTION)

    def squared(self, i: Any, j: Any) -> Float[Tensor, "i j"]:
        """‖g_i − g_j‖² between the points at positions i and those at j."""
        products = (self.r[i] @ self.r[j].T).mul_(self.h[i] @ self.h[j].T)
        sums: Tensor = self.squares[i, None] + self.squares[j]
        return sums.sub_(products, alpha=2).clamp_(min=0)
