"""From labelled images to posterior draws: fit a network, then draw. What the loop runs each round.

Every sampler of one recipe fits the same network from the same generator, bit for bit, however its
draws are made: methods that differ in their draws still start from the same model.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from foresee import networks, seeding
from foresee.lab.experiment import Network
from foresee.posteriors import cyclical_sgmcmc, mc_dropout
from foresee.posteriors.batching import BATCH
from foresee.posteriors.sgmcmc import DivergedError
from foresee.recipe import Recipe
from foresee.training import Request, Training, alone
from foresee.types import Array, Inputs, Posterior, more_draws

GPU_BATCH = 8192  # inputs that pass at once: a GPU is idle with fewer
_SHORTEST = 1e-3  # of a chain's first steps: a target that bears no more is broken


@dataclass(frozen=True)
class Fitted:
    """A fitted network with its draws: ``model`` answers for the point, ``draws`` for the rest."""

    training: Training
    model: Posterior
    draws: Posterior
    # Spent on the draws before any prediction was asked for.
    seconds: float = 0.0
    # The first network never left its plateau; this is the second, of other random numbers.
    restarted: bool = False

    def predict(self, inputs: Inputs) -> Array:
        """Probabilities of every draw [n t c]."""
        return self.draws.predict(inputs)

    def at_least(self, draws: int) -> "Fitted":
        """The same network with so many draws, where they can be made."""
        return replace(self, draws=more_draws(self.draws, draws))

    def point(self, inputs: Inputs) -> Array:
        """Probabilities of the fitted network [n c]."""
        return self.model.point(inputs)

    def embed(self, inputs: Inputs) -> Array:
        """Penultimate representation of the fitted network [n d]."""
        return self.model.embed(inputs)


@dataclass(frozen=True)
class DropoutNetwork:
    """Train a network on images of bytes [l channels height width] and draw by MC dropout."""

    network: Network
    classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: Recipe
    draws: int = 100
    device: str = "cpu"

    def __call__(self, inputs: Inputs, labels: Array, rng: np.random.Generator) -> Fitted:
        """Fit and draw; the initialisation, the data order and the masks have their own seeds."""
        return alone(self.steps(inputs, labels, rng))

    def steps(
        self, inputs: Inputs, labels: Array, rng: np.random.Generator
    ) -> Generator[Request, Training, Fitted]:
        """Do the same, but leave the training to who drives this, who may have several to do.

        A network that never leaves its plateau is trained once more, from seeds of these seeds.
        """
        initial, order, masks = rng.spawn(3)
        training = yield self._request(inputs, labels, initial, order)
        restarted = training.stuck
        if restarted:
            (initial,), (order,) = initial.spawn(1), order.spawn(1)
            again = yield self._request(inputs, labels, initial, order)
            training = replace(again, seconds=training.seconds + again.seconds)
        batch = GPU_BATCH if self.device.startswith("cuda") else BATCH
        drawn = mc_dropout(
            training.model,
            self.draws,
            seeding.number(masks),
            classes=self.classes,
            batch=batch,
            precision=self.recipe.precision,
        )
        return Fitted(training, drawn, drawn, restarted=restarted)

    def _request(
        self,
        inputs: Inputs,
        labels: Array,
        initial: np.random.Generator,
        order: np.random.Generator,
    ) -> Request:
        seed = seeding.number(initial)
        # How many draws follow, and from what, makes no difference to the training.
        key = (replace(self, draws=0), seed, str(order.bit_generator.state))
        return Request(self.build(seed), inputs, labels, self.recipe, order, key=key)

    def build(self, seed: int) -> nn.Sequential:
        """Build the untrained network, on its device."""
        size, channels = self.image_size, len(self.mean)
        if self.network == "mlp":
            body = networks.mlp(size * size * channels, self.classes, seed=seed)
        else:
            body = getattr(networks, self.network)(self.classes, size, channels, seed=seed)
        built = nn.Sequential(networks.Standardise(self.mean, self.std), *body).to(self.device)
        # A CPU pools faster where channels are last.
        layout = torch.channels_last if self.device == "cpu" else torch.preserve_format
        return built.to(memory_format=layout)  # type: ignore[call-overload]


@dataclass(frozen=True)
class CyclicalNetwork:
    """Train as ``like`` does, then draw by cyclical SG-MCMC from a chain of the same length.

    The paper trains every method by the chain when it compares draws; here all share one training,
    so the model that is tested does not depend on how a method draws. A network without BatchNorm
    may not bear the paper's α₀ = 0.5: ``step`` is halved until the chain does not diverge.
    """

    like: DropoutNetwork
    cycles: int = 10
    per_cycle: int = 10
    step: float = 0.5

    def __call__(self, inputs: Inputs, labels: Array, rng: np.random.Generator) -> Fitted:
        """Fit, then run the chain from a fresh network."""
        return alone(self.steps(inputs, labels, rng))

    def steps(
        self, inputs: Inputs, labels: Array, rng: np.random.Generator
    ) -> Generator[Request, Training, Fitted]:
        """Do the same, but leave the training to who drives this."""
        fitted = yield from self.like.steps(inputs, labels, rng)
        (own,) = rng.spawn(1)
        start = time.perf_counter()
        samples = self._chain(inputs, labels, own, self.step)
        return replace(fitted, draws=samples, seconds=time.perf_counter() - start)

    def _chain(
        self, inputs: Inputs, labels: Array, rng: np.random.Generator, step: float
    ) -> Posterior:
        while True:
            network, noise = rng.spawn(2)
            try:
                return cyclical_sgmcmc(
                    self.like.build(seeding.number(network)),
                    inputs,
                    labels,
                    self.cycles,
                    self.per_cycle,
                    # A cycle samples during its last fifth: it must have room for its draws.
                    max(self.like.recipe.iterations, 5 * self.cycles * self.per_cycle),
                    self.like.recipe.batch,
                    step,
                    rng=noise,
                )
            except DivergedError:
                if step < _SHORTEST:
                    raise
                step /= 2
