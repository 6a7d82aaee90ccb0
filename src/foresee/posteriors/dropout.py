"""Monte Carlo dropout with one mask per draw: draw k is the same thinned network for every input.

Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142. Masks are fixed in `masks`; how a network
runs for many draws without running whole for each is in `split`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foresee import checks, seeding
from foresee.errors import InputError
from foresee.posteriors.batching import (
    BATCH,
    Batch,
    Outputs,
    answers,
    bare,
    each,
    map_batches,
    penultimate,
    probabilities,
    weight_of,
)
from foresee.posteriors.masks import (
    Masks,
    borrowed,
    dropout_layers,
    refuse_functional,
    whole_pass,
)
from foresee.posteriors.split import Split, trusted_split
from foresee.types import Inputs


def mc_dropout(
    model: nn.Module,
    draws: int = 100,
    seed: int = 0,
    *,
    outputs: Outputs = "logits",
    classes: int | None = None,
    batch: int = BATCH,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> "McDropout":
    """Wrap any trained network that has dropout layers: draw k fixes one mask in each of them.

    A layer that is called twice gets a mask for each call. The weights are those of the live model
    at the time of each call; its mode, hooks and buffers are left as they were.

    Args:
        model: a trained network that maps inputs [n ...] to ``outputs`` [n c], or to something with
            ``.logits``; rows of dicts go to the arguments of its ``forward`` by name.
        draws: how many thinned networks, t; the first k are the same for any number.
        seed: of the masks.
        outputs: what the network returns, "logits" or "probs".
        classes: how many outputs are expected; unknown by default.
        batch: inputs that pass through the network at once.
        precision: "float32" gives the same draw at every batch size on a GPU too; "bfloat16" is
            faster there and exact to about two digits.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    >>> mc_dropout(network, draws=5).predict(torch.ones(2, 4)).shape
    torch.Size([2, 5, 3])
    """
    return McDropout(model, draws, seed, outputs, classes, batch, precision)


@dataclass(frozen=True)
class McDropout:
    """The thinned networks of one trained network, each one posterior draw; `mc_dropout` builds it.

    Float32 is the network's own precision here, should that be another.
    """

    model: nn.Module
    draws: int = 100
    seed: int = 0
    outputs: Outputs = "logits"
    classes: int | None = None
    batch: int = BATCH
    precision: Literal["float32", "bfloat16"] = "float32"
    _masks: Masks = field(init=False, repr=False, compare=False)
    _plans: dict[Any, Split | None] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        checks.n_draws(self.draws)
        seeding.check_number(self.seed)
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f'precision must be "float32" or "bfloat16", got {self.precision!r}')
        object.__setattr__(self, "model", bare(self.model))
        masks = Masks(self.draws, self.seed, dropout_layers(self.model))
        object.__setattr__(self, "_masks", masks)

    def predict(self, inputs: Inputs) -> Tensor:
        """Probabilities of every draw [n t c]."""
        with borrowed(self.model):
            for key, plan in [*self._plans.items()]:
                if plan is not None and not plan.is_current():
                    del self._plans[key]
        probs = self._map(lambda x: self._probabilities(self._sample(x)), inputs)
        # A few blank inputs may well have equal draws; they cannot all have.
        if len(probs) > 8 and all(bool((p == p[:, :1]).all()) for p in (probs[:8], probs)):
            raise InputError(
                f"all draws are equal for these {len(probs)} inputs, so every score would be 0: "
                "let the outputs depend on what the dropout layers return"
            )
        return probs

    def point(self, inputs: Inputs) -> Tensor:
        """Probabilities of the network itself, dropout off [n c]."""
        return self._map(lambda x: self._probabilities(answers(self.model, x)), inputs)

    def embed(self, inputs: Inputs) -> Tensor:
        """What the last linear layer reads, dropout off [n d]."""
        return self._map(lambda x: penultimate(self.model, x), inputs)

    def at_least(self, draws: int) -> "McDropout":
        """The same thinned networks, and more where they are fewer than ``draws``."""
        return self if draws <= self.draws else replace(self, draws=draws)

    def masks(self) -> dict[str, Tensor]:
        """Units that each draw keeps [t ...], by layer; known after the first `predict`."""
        return dict(self._masks.kept)

    def _map(self, function: Callable[[Any], Tensor], inputs: Inputs) -> Tensor:
        if dropout_layers(self.model) != self._masks.layers:
            raise InputError(
                "the model's dropout layers or their rates have changed since it was wrapped, so "
                "would its draws: call mc_dropout again"
            )
        coarse = self.precision == "bfloat16"
        return map_batches(
            function, inputs, self.model, batch=self.batch, lend=borrowed, coarse=coarse
        )

    def _probabilities(self, outputs: Tensor) -> Tensor:
        return probabilities(outputs, self.outputs, self.classes)

    def _sample(self, x: Batch) -> Tensor:
        """Outputs of every draw [n t c]."""
        weight = weight_of(self.model)  # a trace may hold on to precision and device
        forms = each(lambda v: (v.dtype, v.shape[1:]), x)
        key = (str(forms), weight.dtype, weight.device)
        if key not in self._plans:
            self._plans[key] = self._plan(x)
        plan = self._plans[key]
        if plan is None or isinstance(x, dict):
            parts = [whole_pass(self.model, self._masks, x, k)[None] for k in range(self.draws)]
        else:
            parts = list(plan.every_draw(x))
        return torch.cat(parts).transpose(0, 1).contiguous()

    def _plan(self, x: Batch) -> Split | None:
        """Try the split network on a few rows; trust it only where it agrees with whole passes."""
        if not self._plans:  # masks of inputs that failed must not bind those that will do
            for learnt in (self._masks.kept, self._masks.numbers, self._masks.calls):
                learnt.clear()
        x = each(lambda v: torch.cat([v[:3]] * 3)[:3], x)
        refuse_functional(self.model, x)
        # Two sizes show what is the batch axis.
        whole_pass(self.model, self._masks, each(lambda v: v[:2], x), 0)
        truth = torch.stack([whole_pass(self.model, self._masks, x, k) for k in (0, 1)])
        self._probabilities(truth)  # NaN and wrong classes show here, before any comparison
        self._masks.refuse_equal()
        if isinstance(x, dict):  # torch.fx reads no arguments by name
            return None
        try:
            return trusted_split(self.model, self._masks, x, truth)
        except Exception as error:  # whatever a stranger's forward does when traced
            why = str(error).strip().split("\n")[0]
        if None not in self._plans.values():
            warnings.warn(
                f"mc_dropout runs the whole model {self.draws} times, as torch.fx cannot split it "
                f"at its first dropout: {why}",
                stacklevel=8,
            )
        return None
