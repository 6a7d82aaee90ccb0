"""Monte Carlo dropout with one mask per draw: draw k is the same thinned network for every input.

Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142. The mask of draw k at a dropout layer is
a pure function of (seed, name of the layer, k, shape of one input's activation there): it cannot
depend on the batch, on the order of the inputs or on earlier calls.

What lies before the first dropout, the trunk, runs once for each input; only the head behind it
runs for each draw. Small batches fold their draws into the batch axis. Large ones take draws one by
one and *thin* the linear layers: a mask is the same for every input, so only the kept columns, and
the rows kept by the next mask, enter the matrix product.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from foresee.checks import InputError
from foresee.posteriors.batching import BATCH, Outputs, map_batches, probabilities
from foresee.seeding import generator

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
# Where each function that drops units takes its probability. Masks of these cannot be fixed.
_FUNCTIONAL: dict[Any, int] = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
} | {
    getattr(module, name): 1
    for module in (functional, torch)
    for name in dir(module)
    if name.rstrip("_").rstrip("123d").endswith("dropout") and not name.startswith("_")
}
_UNBATCHED: dict[Any, int] = {nn.Dropout1d: 2, nn.Dropout3d: 4}
"""Axes at which torch takes the first one for channels, not for the batch."""
_THIN_ROWS, _THIN_P = 64, 0.25
"""Thinning copies a part of the weights: it needs enough rows and enough dropped units to pay."""
_Layers: TypeAlias = dict[nn.Module, tuple[str, float]]
"""Dropout layers with their names and rates, as they were when the model was wrapped."""
_ELEMENTWISE: set[Any] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Identity),
    *(torch.relu, torch.tanh, torch.sigmoid, functional.relu, functional.leaky_relu),
    *(functional.elu, functional.selu, functional.gelu, functional.silu, functional.softplus),
}


def mc_dropout(
    model: nn.Module,
    draws: int = 100,
    seed: int = 0,
    *,
    outputs: Outputs = "logits",
    classes: int | None = None,
    batch: int = BATCH,
) -> "McDropout":
    """Wrap any trained network that has dropout layers: draw k fixes one mask in each of them.

    A layer that is called twice gets a mask for each call. The weights are those of the live model
    at the time of each call; its mode, hooks and buffers are left as they were.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    >>> mc_dropout(network, draws=5).predict(torch.ones(2, 4)).shape
    torch.Size([2, 5, 3])
    """
    return McDropout(model, draws, seed, outputs, classes, batch)


@dataclass(frozen=True)
class McDropout:
    """The thinned networks of one trained network, each one posterior draw."""

    model: nn.Module
    draws: int = 100
    seed: int = 0
    outputs: Outputs = "logits"
    classes: int | None = None
    batch: int = BATCH
    _masks: "_Masks" = field(init=False, repr=False, compare=False)
    _plans: "dict[Any, tuple[_Split | None, bool]]" = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, got {type(self.model).__name__}")
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 2:
            raise InputError(
                f"draws must be a whole number, at least 2, got {self.draws!r}: one draw has no "
                "uncertainty; 100 is usual"
            )
        # A compiled model would be compiled again for each draw.
        object.__setattr__(self, "model", getattr(self.model, "_orig_mod", self.model))
        object.__setattr__(self, "_masks", _Masks(self.draws, self.seed, _layers(self.model)))

    def predict(self, inputs: Any) -> Tensor:
        """Probabilities of every draw [n t c]."""
        return self._map(lambda x: self._probabilities(self._sample(x)), inputs)

    def point(self, inputs: Any) -> Tensor:
        """Probabilities of the network itself, dropout off [n c]."""
        return self._map(lambda x: self._probabilities(_rows(self.model(x), len(x))), inputs)

    def embed(self, inputs: Any) -> Tensor:
        """What the last linear layer reads, dropout off [n d]."""
        seen: list[Tensor] = []

        def last(x: Tensor) -> Tensor:
            seen.clear()
            self.model(x)
            if not seen or len(seen[-1]) != len(x):
                raise InputError(
                    "model has no embedding: none of its nn.Linear layers reads one row for each "
                    "input; Coreset and BADGE need one, scores from draws do not"
                )
            return seen[-1].flatten(1).clone()

        linears = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
        hooks = [m.register_forward_pre_hook(lambda _, x: seen.append(x[0])) for m in linears]
        try:
            return self._map(last, inputs)
        finally:
            for hook in hooks:
                hook.remove()

    def masks(self) -> dict[str, Tensor]:
        """Units that each draw keeps [t ...], by layer; known after the first `predict`."""
        return dict(self._masks.kept)

    def _map(self, function: Callable[[Tensor], Tensor], inputs: Any) -> Tensor:
        if _layers(self.model) != self._masks.layers:
            raise InputError(
                "the model's dropout layers or their rates have changed since it was wrapped, so "
                "would its draws: call mc_dropout again"
            )
        with _borrowed(self.model):
            return map_batches(function, inputs, self.model, self.batch)

    def _probabilities(self, outputs: Tensor) -> Tensor:
        return probabilities(outputs, self.outputs, self.classes)

    def _sample(self, x: Tensor) -> Tensor:
        """Outputs of every draw [n t c]."""
        key = (x.dtype, x.shape[1:])
        if key not in self._plans:
            self._plans[key] = self._plan(x)
        split, folds = self._plans[key]
        if split is None:
            parts = [_whole_pass(self.model, self._masks, x, k)[None] for k in range(self.draws)]
        else:
            together = max(1, BATCH // len(x)) if folds else 1
            thin = together == 1 and len(x) >= _THIN_ROWS
            parts = list(split.run(x, self.draws, together, thin))
        return torch.cat(parts).transpose(0, 1).contiguous()

    def _plan(self, x: Tensor) -> "tuple[_Split | None, bool]":
        """Try the split network on a few rows; trust it only where it agrees with whole passes."""
        if not self._plans:  # masks of inputs that failed must not bind those that will do
            self._masks.kept.clear()
            self._masks.calls.clear()
        x = torch.cat([x[:3]] * 3)[:3]
        _refuse_functional(self.model, x)
        _whole_pass(self.model, self._masks, x[:2], 0)  # two sizes show what is the batch axis
        truth = torch.stack([_whole_pass(self.model, self._masks, x, k) for k in (0, 1)])
        self._probabilities(truth)  # NaN and wrong classes show here, before any comparison

        def agrees(together: int, thin: bool) -> bool:
            assert split is not None
            parts = torch.cat(list(split.run(x, 2, together, thin)))
            error = min(0.1, 10 * torch.finfo(truth.dtype).eps ** 0.5)  # wrong wiring is far worse
            return torch.allclose(parts, truth, error, error * float(truth.abs().amax()))

        split, folds, why = None, False, "its traced graph gives other numbers"
        try:
            split = _Split(self.model, self._masks)
            if not agrees(together=1, thin=True):
                split = None
        except Exception as error:  # whatever a stranger's forward does when traced
            split, why = None, str(error).strip().split("\n")[0]
        if split is None:
            if not any(known is None for known, _ in self._plans.values()):
                warnings.warn(
                    f"mc_dropout runs the whole model {self.draws} times, as torch.fx cannot split "
                    f"it at its first dropout: {why}",
                    stacklevel=7,
                )
            return None, False
        with suppress(Exception):  # a graph that holds on to the batch size cannot be folded
            folds = agrees(together=2, thin=False)
        return split, folds


@dataclass
class _Masks:
    """What each draw keeps at each call site: a layer's name, then name:1 at its second call."""

    draws: int
    seed: int
    layers: _Layers
    kept: dict[str, Tensor] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def at(self, site: str, layer: nn.Module, x: Tensor) -> Tensor:
        """Kept units [t ...]."""
        shape = tuple(x.shape[1:])
        if isinstance(layer, _CHANNELS):
            shape = (*shape[:1], *(1 for _ in shape[1:]))
        if site not in self.kept:
            generators = [generator(self.seed, "dropout", site, k) for k in range(self.draws)]
            keep = [rng.random(shape, np.float32) >= self.layers[layer][1] for rng in generators]
            self.kept[site] = torch.from_numpy(np.stack(keep))
        if self.kept[site].shape[1:] != shape:
            raise InputError(
                f"dropout layer {site!r} met an activation {list(shape)} after "
                f"{list(self.kept[site].shape[1:])}: its mask would depend on the input; pad or "
                "resize all inputs to one shape"
            )
        return self.kept[site]

    def drop(self, site: str, layer: nn.Module, x: Tensor, draws: slice, rows: int) -> Tensor:
        """Apply ``draws`` to x [rows ...], or to x [draws·rows ...] where they are folded in."""
        kept = self.at(site, layer, x)[draws, None].to(x.device)
        p, x = self.layers[layer][1], x.reshape(-1, rows, *x.shape[1:])
        if not isinstance(layer, _ALPHA) or p == 1:
            return (x * (kept.to(x.dtype) * _scale(p))).flatten(0, 1)
        # Klambauer et al. (2017), as torch has it: dropped units go to −α and an affine map then
        # restores mean and variance.
        alpha = 1.7580993408473766
        a = ((alpha**2 * p + 1) * (1 - p)) ** -0.5
        shift = (kept.to(x.dtype) - 1) * (alpha * a) + alpha * a * p
        return (x * (kept.to(x.dtype) * a) + shift).flatten(0, 1)


class _Split:
    """A traced network in two: the trunk, which no dropout reaches, and the head behind it."""

    def __init__(self, model: nn.Module, masks: _Masks) -> None:
        self.root, self.masks = _Root(model), masks
        nodes = list(_Tracer(masks.layers).trace(self.root).nodes)
        self.sites: dict[fx.Node, tuple[str, nn.Module]] = {}
        random, given, calls = set[fx.Node](), set[fx.Node](), Counter[str]()
        for node in nodes:
            layer = self._layer(node)
            if layer in masks.layers:
                self.sites[node] = _site(masks.layers[layer][0], calls), layer
            for group, starts in ((random, node in self.sites), (given, node.op == "placeholder")):
                if starts or not group.isdisjoint(node.all_input_nodes):
                    group.add(node)
        self.trunk = [n for n in nodes if n not in random and n.op != "output"]
        self.head = [n for n in nodes if n in random or n.op == "output"]
        last = {value: node for node in self.trunk + self.head for value in node.all_input_nodes}
        self.dies: dict[fx.Node, list[fx.Node]] = {}
        for value, node in last.items():
            self.dies.setdefault(node, []).append(value)
        # What a head reads is copied for each draw, as it may be written to; a site only reads.
        self.copied = {v for n in self.head if n not in self.sites for v in n.all_input_nodes}
        self.copied &= given - random
        self._find_thin()

    def run(self, x: Tensor, draws: int, together: int, thin: bool) -> Iterator[Tensor]:
        """Yield outputs [together n c] of the draws, in order."""
        trunk: dict[fx.Node, Any] = {}
        for node in self.trunk:
            trunk[node] = x if node.op == "placeholder" else self._value(node, trunk)
            for dead in self.dies.get(node, ()):
                del trunk[dead]
        for start in range(0, draws, together):
            now = slice(start, min(start + together, draws))
            env = {
                n: self._copy(v, now, len(x)) if n in self.copied else v for n, v in trunk.items()
            }
            for node in self.head:
                if thin and node in self.thin:
                    env[node] = self._keep(node, env, start)
                elif thin and (node in self.columns or node in self.rows):
                    env[node] = self._thinned(node, env, start)
                elif node in self.sites:
                    env[node] = self.masks.drop(*self.sites[node], _read(node, env), now, len(x))
                else:
                    env[node] = self._value(node, env)
                for dead in self.dies.get(node, ()):
                    del env[dead]
            out = _rows(env[node], (now.stop - start) * len(x))
            yield out.reshape(now.stop - start, len(x), -1)

    def _copy(self, value: Any, draws: slice, rows: int) -> Any:
        times = draws.stop - draws.start
        if times > 1 and not (isinstance(value, Tensor) and value.shape[:1] == (rows,)):
            raise TypeError("the head reads something of the whole batch, such as its size")
        if not isinstance(value, Tensor):
            return value
        return torch.cat([value] * times) if times > 1 else value.clone()

    def _layer(self, node: fx.Node) -> Any:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _value(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        target: Any = node.target
        if node.op == "get_attr":
            return reduce(getattr, target.split("."), self.root)
        if node.op == "call_module":
            return self._layer(node)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return args[0] if node.op == "output" else target(*args, **kwargs)

    def _find_thin(self) -> None:
        """Find dropout that only linear layers read, and linear layers that only it reads."""
        self.thin: set[fx.Node] = set()
        self.columns: dict[fx.Node, fx.Node] = {}
        self.rows: dict[fx.Node, fx.Node] = {}
        for site, (name, layer) in self.sites.items():
            if type(layer) is not nn.Dropout or not _THIN_P <= self.masks.layers[layer][1] < 1:
                continue
            if self.masks.kept[name].ndim != 2 or not all(map(self._is_linear, site.users)):
                continue
            self.thin.add(site)
            self.columns |= dict.fromkeys(site.users, site)
            before = site.all_input_nodes[0]
            while self._is_elementwise(before) and len(before.users) == 1:
                before = before.all_input_nodes[0]
            if self._is_linear(before) and len(before.users) == 1 and before in self.head:
                self.rows[before] = site

    def _is_linear(self, node: fx.Node) -> bool:
        layer = self._layer(node)
        return type(layer) is nn.Linear and not layer._forward_hooks | layer._forward_pre_hooks

    def _is_elementwise(self, node: fx.Node) -> bool:
        kind = type(self._layer(node)) if node.op == "call_module" else node.target
        return kind in _ELEMENTWISE and len(node.all_input_nodes) == 1

    def _index(self, site: fx.Node, draw: int, device: torch.device) -> Tensor:
        return self.masks.kept[self.sites[site][0]][draw].nonzero().flatten().to(device)

    def _keep(self, node: fx.Node, env: dict[fx.Node, Any], draw: int) -> Tensor:
        x: Tensor = _read(node, env)
        if node not in self.rows.values():  # else only the kept units were computed
            self.masks.at(*self.sites[node], x)
            x = x.index_select(1, self._index(node, draw, x.device))
        return x * _scale(self.masks.layers[self.sites[node][1]][1])

    def _thinned(self, node: fx.Node, env: dict[fx.Node, Any], draw: int) -> Tensor:
        x, layer = _read(node, env), self._layer(node)
        weight, bias = layer.weight, layer.bias
        columns, rows = (
            self._index(sites[node], draw, x.device) if node in sites else None
            for sites in (self.columns, self.rows)
        )
        if rows is not None:
            bias = None if bias is None else bias.index_select(0, rows)
        return functional.linear(x, _submatrix(weight, rows, columns), bias)


def _submatrix(weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    if rows is None or columns is None:
        weight = weight if rows is None else weight.index_select(0, rows)
        return weight if columns is None else weight.index_select(1, columns)
    # In pieces, as fresh memory for all columns would cost as much as the product itself.
    out = weight.new_empty(len(rows), len(columns))
    for some, piece in zip(rows.split(512), out.split(512), strict=True):
        torch.index_select(weight.index_select(0, some), 1, columns, out=piece)
    return out


class _Root(nn.Module):
    """Calls the model as its users do; also keeps what tracing would leave on the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class _Tracer(fx.Tracer):
    def __init__(self, layers: _Layers) -> None:
        super().__init__()
        self.layers = layers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.layers:
            return True
        return super().is_leaf_module(m, module_qualified_name) and not any(
            inner in self.layers for inner in m.modules()
        )


class _Watch(TorchFunctionMode):
    """Notes functions that drop units; dropout layers do not call theirs while masks are set."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONAL:
            args_p = args[_FUNCTIONAL[func]] if len(args) > _FUNCTIONAL[func] else 0.0
            if kwargs.get("p", kwargs.get("dropout_p", args_p)) > 0:
                self.found.add(func.__name__)
        return func(*args, **kwargs)


def _layers(model: nn.Module) -> _Layers:
    """Find the dropout layers, or say why masks cannot be fixed."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            raise InputError(
                f"{name or 'model'} is an nn.MultiheadAttention with dropout {module.dropout} "
                "inside, whose masks cannot be fixed: set its .dropout = 0.0 and rely on "
                "nn.Dropout layers around it"
            )
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            raise InputError(
                f"{name or 'model'} is an nn.{type(module).__name__} with dropout "
                f"{module.dropout} between its layers, whose masks cannot be fixed: stack "
                "one-layer networks with nn.Dropout between them, or set its .dropout = 0.0"
            )
    dropouts = [(n, m) for n, m in model.named_modules() if isinstance(m, _DropoutNd)]
    layers: _Layers = {module: (name, module.p) for name, module in dropouts if module.p > 0}
    if not layers:
        raise InputError(
            "model has no dropout layer with p > 0, so all draws would be equal: train it with "
            "nn.Dropout modules (functional dropout in forward cannot be fixed: use modules), or "
            "take an ensemble"
        )
    return layers


def _refuse_functional(model: nn.Module, x: Tensor) -> None:
    """Look for functional dropout in eval mode, then in code that runs in training only."""
    buffers, watch = [(buffer, buffer.clone()) for buffer in model.buffers()], _Watch()
    with _borrowed(model), watch, torch.random.fork_rng([x.device] if x.is_cuda else []):
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                vars(module)["forward"] = nn.Identity().forward
        model(x)
        for module in model.modules():
            ours = type(module).__module__.startswith("torch.") or isinstance(module, _NormBase)
            module.training = not ours
        with suppress(Exception):  # some models want labels in training; only the look is lost
            model(x)
    for buffer, value in buffers:
        if not torch.equal(buffer, value):  # an idle write would spoil the user's autograd graph
            buffer.copy_(value)
    if watch.found:
        raise InputError(
            f"the model calls {', '.join(sorted(watch.found))} in forward, whose masks cannot be "
            "fixed: replace it by an nn.Dropout module made in __init__ (for attention, apply one "
            "to its output and set dropout_p = 0)"
        )


def _whole_pass(model: nn.Module, masks: _Masks, x: Tensor, draw: int) -> Tensor:
    """Run one draw through the whole network, every dropout layer replaced by its mask [n c]."""
    calls: Counter[str] = Counter()

    def masked(layer: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
        def forward(input: Tensor) -> Tensor:  # noqa: A002  (torch's name, which callers may use)
            site = _site(name, calls)
            if input.shape[:1] != x.shape[:1] or input.ndim == _UNBATCHED.get(type(layer)):
                raise InputError(
                    f"dropout layer {site!r} reads {list(input.shape)} for a batch of {len(x)}: "
                    "its mask would depend on the place in the batch; make the batch its first "
                    "axis, with units behind it"
                )
            return masks.drop(site, layer, input, slice(draw, draw + 1), len(x))

        return forward

    for layer, (name, _) in masks.layers.items():
        vars(layer)["forward"] = masked(layer, name)
    out = _rows(model(x), len(x))
    masks.calls.update({} if masks.calls else calls)
    if calls != masks.calls:
        raise InputError(
            f"dropout layers were called {dict(calls)} times after {dict(masks.calls)}: masks "
            "would depend on the input; call each layer equally often for every input"
        )
    return out


@contextmanager
def _borrowed(model: nn.Module) -> Iterator[None]:
    """Lend the model in eval mode; each module's attributes come back, whatever happens."""
    saved = [(module, dict(vars(module))) for module in model.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it skips a transformer's dropout layers
    try:
        for module, _ in saved:
            module.training = False
            vars(module)["_compiled_call_impl"] = None
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, attributes in saved:
            vars(module).clear()
            vars(module).update(attributes)


def _rows(out: Any, rows: int) -> Tensor:
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != rows:
        what = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"the model must return [n c], one row for each of {rows}, got {what}")
    return out


def _site(name: str, calls: Counter[str]) -> str:
    calls[name] += 1
    return name if calls[name] == 1 else f"{name}:{calls[name] - 1}"


def _read(node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    return env[node.all_input_nodes[0]]


def _scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)
