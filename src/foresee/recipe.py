"""How a network is trained, as a plain value. Torch is not needed to read or compare recipes."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal

from foresee.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; the defaults are the paper's.

    Args:
        iterations: updates of the weights, each on one batch.
        batch: points of a batch, or all if there are fewer.
        optimiser: "sgd" or "adam".
        learning_rate: at the first iteration; the paper takes 0.001 for SVHN and Camelyon17.
        decay_every: iterations after which the learning rate is multiplied by ``decay``, again and
            again.
        decay: by which that is done.
        weight_decay: of all weights.
        momentum: β₁ for Adam.
        precision: "bfloat16" is for the passes through the network alone, in experiments those of
            its predictions too; the weights, the loss and the updates keep the network's own.

    >>> Recipe(iterations=1000, optimiser="adam", learning_rate=1e-3).batch
    64
    """

    iterations: int = 46_875
    batch: int = 64
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    decay_every: int = 11_718
    decay: float = 0.1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "decay_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {value!r}")
        for name in ("learning_rate", "decay", "weight_decay", "momentum"):
            if not isinstance(getattr(self, name), Real):
                raise InputError(f"{name} must be a number, got {getattr(self, name)!r}")
        for name in ("learning_rate", "decay"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        choices = {"optimiser": ("sgd", "adam"), "precision": ("float32", "bfloat16")}
        for name, (one, other) in choices.items():
            value = getattr(self, name)
            if value not in (one, other):
                raise InputError(f'{name} must be "{one}" or "{other}", got {value!r}')

    def scaled(self, budget: float) -> "Recipe":
        """Train for ``budget`` times as many iterations, the decay at the same fractions of them.

        >>> recipe = Recipe().scaled(0.01)
        >>> recipe.iterations, recipe.decay_every
        (469, 117)
        """
        if not 0 < budget < math.inf:
            raise InputError(f"budget must be positive, got {budget}: 0.1 is a tenth of the recipe")
        return replace(
            self,
            iterations=max(1, round(self.iterations * budget)),
            decay_every=max(1, round(self.decay_every * budget)),
        )
