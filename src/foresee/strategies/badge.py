"""BADGE: a batch of gradients that are large and unlike each other.

Ash et al. 2020, arXiv:1906.03671. If the predicted class of point i were its label, the gradient of
the loss at the last layer would be g_i = r_i ⊗ h_i, with r = p − onehot(argmax p) and h the
embedding. The batch is a k-means++ seeding of the g: a first one at random, then each point with
probability ∝ D², its squared distance to the nearest pick.

The g have c·d entries but are never formed: ⟨g_i, g_j⟩ = ⟨r_i, r_j⟩⟨h_i, h_j⟩.

BADGE looks at no target. Of what a label tells about the parameters, I(Y_i; θ) = BALD_i, the share
MELL_i / BALD_i tells about the target (see `decompose`): gradients scaled by a power of this share
keep BADGE's geometry, and let it pass by what the target does not need.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from foresee import arrays
from foresee.errors import InputError
from foresee.kernels import tiled
from foresee.strategies.candidates import (
    check_request,
    check_subsets,
    draw_candidates,
    matrix,
    point_predictions,
    pool_draws,
    target_draws,
)
from foresee.strategies.kmeanspp import RESOLUTION, kmeanspp
from foresee.types import Inputs, Posterior, View


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
        probs, embeddings = last_layer(view.posterior, view.pool)
        with tiled.full_precision():
            return kmeanspp(_Gradients(probs, embeddings), size, rng)


@dataclass(frozen=True)
class RelevantBadge:
    """BADGE on gradients scaled by √(MELL/BALD)^γ: by what share of a label the target needs.

    Needs draws and a target beside BADGE's point predictions [n c] and embeddings [n d]. Where the
    draws agree, BALD is 0: no label tells anything then, and the scale is 0 too.

    Args:
        candidates: size of a random subset of the pool to choose from; None: all.
        targets: size of a random subset of the validation set; None: all.
        power: γ of the scale √(MELL/BALD)^γ; 0 is BADGE, and the larger the more the target counts.

    >>> from foresee.testing import random_view
    >>> view = random_view(np.random.default_rng(0), n=40)
    >>> RelevantBadge()(view, 3, np.random.default_rng(0))
    array([36, 20, 23])
    """

    candidates: int | None = None
    targets: int | None = None
    power: float = 1.0

    def __post_init__(self) -> None:
        check_subsets(self.candidates, self.targets)
        if not 0 <= self.power < np.inf:
            raise InputError(f"power must be at least 0 and finite, got {self.power}")

    def __call__(self, view: View, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return positions in ``view.pool`` [size], in the order they were drawn."""
        order = draw_candidates(view, size, self.candidates, rng)
        val = target_draws(view, self.targets, rng)
        chunks = pool_draws(view, order, val)
        mell, bald = tiled.log_loss_reduction, tiled.parameter_information
        share = torch.cat([_relevant_share(mell(p, val), bald(p)) for p in chunks])
        probs, embeddings = last_layer(view.posterior, arrays.Rows(view.pool, order))
        scale = share.to(embeddings) ** (self.power / 2)
        with tiled.full_precision():
            return order[kmeanspp(_Gradients(probs, embeddings, scale), size, rng)]


def _relevant_share(relevant: Float[Tensor, "n"], told: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """MELL/BALD, from 0 to 1 whatever the rounding; 0 where the label tells nothing."""
    return torch.where(told > 0, relevant / told, 0).clamp(0, 1)


def last_layer(
    posterior: Posterior, inputs: Inputs, name: str = "pool"
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n d"]]:
    """Checked point predictions of some inputs, and the embeddings that they are made from."""
    probs = point_predictions(name, posterior, inputs)
    embeddings = matrix(f"posterior.embed({name})", posterior.embed, inputs)
    return probs.to(embeddings.device), embeddings


class _Gradients:
    """The vectors r_i ⊗ h_i by their factors; ``scale`` stretches them."""

    def __init__(
        self,
        probs: Float[Tensor, "n c"],
        embeddings: Float[Tensor, "n d"],
        scale: Float[Tensor, "n"] | None = None,
    ) -> None:
        predicted = torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])
        self.r = (probs - predicted).float()
        if scale is not None:
            self.r *= scale.float()[:, None]
        self.h = embeddings.float()
        norms = torch.linalg.vector_norm(self.r, dim=1) * torch.linalg.vector_norm(self.h, dim=1)
        # A little short, so that the distance between equal points is zero, not rounding noise.
        self.squares = norms.square_() * (1 - RESOLUTION)

    def squared(self, i: Any, j: Any) -> Float[Tensor, "i j"]:
        """‖g_i − g_j‖² between the points at positions i and those at j."""
        products = (self.r[i] @ self.r[j].T).mul_(self.h[i] @ self.h[j].T)
        sums: Tensor = self.squares[i, None] + self.squares[j]
        return sums.sub_(products, alpha=2).clamp_(min=0)
