"""Posterior draws from a Markov chain over the weights: SGLD and cyclical SG-MCMC.

The target is exp(−U(θ)/T), T = 1 being Bayes. With N labelled points and a prior of precision λ

    U(θ) = −Σ_i log p(y_i | x_i, θ) + λ/2 · |θ|² ≈ N · (mean loss of a batch) + λ/2 · |θ|²,
    θ ← θ − ε/2 · ∇U(θ) + √(ε · T) · ξ,  ξ ~ N(0, I)                 (Welling and Teh, 2011, eq. 4).

``step`` is α = ε · N / 2, the learning rate on the *mean* loss, as the paper counts α₀ = 0.5:

    θ ← θ − α · ∇(mean loss + λ/2N · |θ|²) + √(2 · α · T / N) · ξ.

Nothing is rejected, so steps must be small: where U has curvature h the variance comes out
1 / (1 − εh/4) times too large, and the noise of small batches adds to it. Dropout is on while the
chain moves and off in predictions; BatchNorm statistics are kept with each draw.
"""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from foresee import seeding
from foresee.errors import InputError
from foresee.iterations import norms
from foresee.posteriors.batching import (
    BATCH,
    Outputs,
    at_least_float32,
    bare,
    forward,
    logits,
    map_batches,
    penultimate,
    probabilities,
)
from foresee.training import class_numbers, randomness, stacked
from foresee.types import Array, Inputs

_LOOK_EVERY = 50  # iterations


class DivergedError(InputError):
    """The steps of a chain were too long for its target."""


def sgld_step(
    params: Sequence[Tensor], slopes: Sequence[Tensor], eps: float, heat: float, noise: Generator
) -> list[Tensor]:
    """Move by −ε/2 times the slopes of U and add noise of variance ε · T, T being the ``heat``."""
    xi = [torch.randn(p.shape, generator=noise, dtype=p.dtype, device=p.device) for p in params]
    scale = math.sqrt(eps * heat)
    return [p - eps / 2 * g + scale * z for p, g, z in zip(params, slopes, xi, strict=True)]


def cosine_step(k: int, iterations: int, cycles: int, step: float) -> float:
    """Step size of iteration k = 1, 2, … in cyclical SG-MCMC (Zhang et al., 2020, eq. 1)."""
    length = math.ceil(iterations / cycles)
    return step / 2 * (math.cos(math.pi * ((k - 1) % length) / length) + 1)


def sgld(
    model: nn.Module,
    inputs: Inputs,
    labels: Array,
    draws: int = 100,
    burn_in: int = 1000,
    thin: int = 10,
    batch: int = 64,
    step: float = 0.1,
    temperature: float = 1.0,
    prior_precision: float = 1.0,
    outputs: Outputs = "logits",
    *,
    rng: np.random.Generator,
) -> "Samples":
    """Draw by SGLD of constant step: every ``thin``-th state after ``burn_in`` iterations.

    Args:
        model: a network that maps inputs [n ...] to ``outputs`` [n c]; the chain starts from its
            weights, and it is left as it was.
        inputs: what the network reads [l ...].
        labels: whole numbers [l] from 0 to c − 1.
        draws: how many states are kept, t.
        burn_in: iterations before the first draw is due.
        thin: iterations from one draw to the next.
        batch: points of an iteration.
        step: α, the learning rate on the mean loss.
        temperature: T; 0 is SGD with weight decay.
        prior_precision: λ of every weight.
        outputs: what the network returns, "logits" or "probs".
        rng: seeds the noise, the order of the data and dropout.

    >>> x, y = np.eye(4, dtype=np.float32), np.arange(4) % 2
    >>> chain = sgld(nn.Linear(4, 2), x, y, draws=5, burn_in=10, rng=np.random.default_rng(0))
    >>> chain.predict(x).shape
    torch.Size([4, 5, 2])
    """
    _at_least(draws=(draws, 2), burn_in=(burn_in, 0), thin=(thin, 1))
    drawn = range(burn_in + thin, burn_in + draws * thin + 1, thin)
    moves = [(step, temperature, k in drawn) for k in range(1, burn_in + draws * thin + 1)]
    return _sample(model, inputs, labels, moves, batch, prior_precision, outputs, rng)


def cyclical_sgmcmc(
    model: nn.Module,
    inputs: Inputs,
    labels: Array,
    cycles: int = 10,
    per_cycle: int = 10,
    iterations: int = 5000,
    batch: int = 64,
    step: float = 0.5,
    explore: float = 0.8,
    temperature: float = 1.0,
    prior_precision: float = 1.0,
    outputs: Outputs = "logits",
    *,
    rng: np.random.Generator,
) -> "Samples":
    """Draw by cyclical SG-MCMC; the defaults are the paper's α₀ = 0.5 and 10 cycles of 10 draws.

    The first part ``explore`` of a cycle is SGD without noise, the rest is SGLD with draws spread
    evenly over it. ``iterations`` counts all cycles together; the last is run to its end. The step
    falls from ``step`` to 0 in each cycle; the other arguments are those of `sgld`.

    >>> x, y = np.eye(4, dtype=np.float32), np.arange(4) % 2
    >>> settings = {"cycles": 2, "per_cycle": 3, "iterations": 100}
    >>> chain = cyclical_sgmcmc(nn.Linear(4, 2), x, y, **settings, rng=np.random.default_rng(0))
    >>> chain.predict(x).shape
    torch.Size([4, 6, 2])
    """
    _at_least(cycles=(cycles, 1), per_cycle=(per_cycle, 1), iterations=(iterations, 1))
    length = math.ceil(iterations / cycles)
    room = length - math.ceil(explore * length - 1e-9)  # iterations that sample
    if not per_cycle <= room <= length:
        raise InputError(
            f"explore = {explore} leaves {room} of a cycle's {length} iterations for per_cycle = "
            f"{per_cycle} draws: raise iterations, or choose explore between 0 and 1"
        )
    drawn = {length - j * room // per_cycle for j in range(per_cycle)}
    cycle = [
        (cosine_step(k, iterations, cycles, step), temperature * (k > length - room), k in drawn)
        for k in range(1, length + 1)
    ]
    return _sample(model, inputs, labels, cycle * cycles, batch, prior_precision, outputs, rng)


@dataclass(frozen=True)
class Samples:
    """Draws of a chain: their weights and buffers [t ...] by name; ``model`` is the last draw."""

    model: nn.Module
    states: dict[str, Tensor]
    outputs: Outputs = "logits"

    def predict(self, inputs: Inputs) -> Tensor:
        """Probabilities of every draw [n t c]."""
        return map_batches(self._probs, inputs, self.model)

    def point(self, inputs: Inputs) -> Tensor:
        """Mean of the draws [n c]: a chain has no fitted model apart from them."""
        return map_batches(lambda x: self._probs(x).mean(1), inputs, self.model)

    def embed(self, inputs: Inputs) -> Tensor:
        """What enters the last linear layer of the last draw [n d]."""
        return map_batches(lambda x: penultimate(self.model, x), inputs, self.model)

    def _probs(self, x: Tensor) -> Tensor:
        out, states = None, self._everywhere()
        if not any(isinstance(m, nn.modules.conv._ConvNd) for m in self.model.modules()):
            every = torch.vmap(self._output, (0, None), 1, chunk_size=max(1, 16 * BATCH // len(x)))
            with suppress(RuntimeError, UserWarning), warnings.catch_warnings():
                warnings.filterwarnings("error", "There is a performance drop")
                out = every(states, x)
        if out is None:  # vmap cannot take some layers, and slows convolutions down
            draws = (dict(zip(states, s, strict=True)) for s in zip(*states.values(), strict=True))
            out = torch.stack([self._output(state, x) for state in draws], 1)
        return probabilities(out, self.outputs)

    @torch.no_grad()
    def _output(self, state: dict[str, Tensor], x: Tensor) -> Tensor:
        return logits(functional_call(self.model, state, (x.clone(),), tie_weights=False))

    def _everywhere(self) -> dict[str, Tensor]:
        """The draws at each place that holds them: weights may be shared, layers have two names."""
        places = [
            (name, value)
            for prefix, module in self.model.named_modules()
            for named in (module.named_parameters, module.named_buffers)
            for name, value in named(prefix, recurse=False, remove_duplicate=False)
        ]
        known = {value: name for name, value in reversed(places)}
        return {name: self.states[known[v]] for name, v in places if known[v] in self.states}


def _sample(
    model: nn.Module,
    inputs: Inputs,
    labels: Array,
    moves: list[tuple[float, float, bool]],
    batch: int,
    precision: float,
    outputs: Outputs,
    rng: np.random.Generator,
) -> Samples:
    """Make moves (step, temperature, whether to draw) with a copy of the model in train mode."""
    seeding.check(rng)
    _at_least(draws=(sum(keep for _, _, keep in moves), 2), batch=(batch, 1))
    _at_least(step=(moves[0][0], 1e-12), temperature=(moves[-1][1], 0.0))
    _at_least(prior_precision=(precision, 0.0))
    chain = copy.deepcopy(bare(model)).eval()
    params = [p for p in chain.parameters() if p.requires_grad]
    frozen = {name for name, p in chain.named_parameters() if not p.requires_grad}
    if not params:
        raise InputError("the model has no weights that require a gradient: unfreeze some")
    noise, order, kept = Generator(params[0].device), Generator(), []
    devices = range(torch.cuda.device_count())
    with randomness, torch.random.fork_rng(devices), torch.enable_grad():
        for seed in (noise.manual_seed, order.manual_seed, torch.manual_seed):
            seed(number := int(rng.integers(1 << 62)))
        x, y = labelled(chain, inputs, labels, outputs)
        torch.manual_seed(number)  # a DataLoader draws from it once
        batches = _batches(len(x), int(batch), order)
        chain.train()
        for k, (step, temperature, keep) in enumerate(moves, 1):
            with norms():
                out = at_least_float32(forward(chain, x[rows := next(batches)]))
            log_probs = out.log_softmax(-1) if outputs == "logits" else out.clamp_min(1e-30).log()
            loss = nn.functional.nll_loss(log_probs, y[rows])
            grads = torch.autograd.grad(loss, params, materialize_grads=True)
            with torch.no_grad():
                slopes = [len(x) * g + precision * p for p, g in zip(params, grads, strict=True)]
                moved = sgld_step(params, slopes, 2 * step / len(x), temperature, noise)
                for p, value in zip(params, moved, strict=True):
                    p.copy_(value)
            looks = keep or k % _LOOK_EVERY == 0  # each look makes a GPU wait
            if looks and not all(value.isfinite().all() for value in (loss, *params)):
                raise DivergedError(f"the chain diverged by iteration {k}: lower step = {step:.3g}")
            if keep:
                named = [*chain.named_parameters(), *chain.named_buffers()]
                kept.append({key: v.detach().clone() for key, v in named if key not in frozen})
    states = {name: torch.stack([state.pop(name) for state in kept]) for name in list(kept[0])}
    return Samples(chain.eval(), states, outputs)


@torch.no_grad()
def labelled(
    model: nn.Module, inputs: Inputs, labels: Array, kind: Outputs
) -> tuple[Tensor, Tensor]:
    """Inputs and their labels on the device of a model, which has outputs for all of them."""
    x = map_batches(stacked, inputs, model)
    y = class_numbers(labels, x)
    c = probabilities(forward(model, x[:BATCH]), kind).shape[-1]
    if int(y.amax()) >= c:
        raise InputError(
            f"labels go up to {int(y.amax())}, but model has outputs for the classes 0 to {c - 1}: "
            "encode them, or widen the model"
        )
    return x, y


def _batches(n: int, batch: int, order: Generator) -> Iterator[Tensor | slice]:
    while batch >= n:
        yield slice(None)
    while True:
        yield from torch.randperm(n, generator=order).split(batch)[: n // batch]


def _at_least(**bounds: tuple[Any, float]) -> None:
    """Check finite numbers by the least that they may be: a whole one for whole numbers."""
    for name, (value, least) in bounds.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if isinstance(least, int) and not whole:
            raise InputError(f"{name} must be a whole number, got {value!r}")
        if not least <= value < math.inf:
            raise InputError(f"{name} must be finite and at least {least}, got {value}")
