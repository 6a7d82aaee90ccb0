"""A traced network in two: the trunk runs once for each input, the head for each draw.

What lies before the first dropout is the trunk. Small batches fold the draws of the head into the
batch axis. Large ones take draws one by one and *thin* the linear layers: a mask is the same for
every input, so only the kept columns, and the rows kept by the next mask, enter the matrix product.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from foresee.posteriors.batching import BATCH, logits, one_row_each
from foresee.posteriors.masks import Layers, Masks, gain, site_of

# Thinning copies a part of the weights: it needs enough rows and enough dropped units to pay.
_THIN_ROWS, _THIN_P = 64, 0.25
# Larger batches make cuDNN take convolutions in float32 that are half as fast (on an H200).
_TRUNK_ROWS = 512
_ELEMENTWISE: set[Any] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Identity),
    *(torch.relu, torch.tanh, torch.sigmoid, functional.relu, functional.leaky_relu),
    *(functional.elu, functional.selu, functional.gelu, functional.silu, functional.softplus),
}


def trusted_split(model: nn.Module, masks: Masks, x: Tensor, truth: Tensor) -> "Split":
    """Split the network, or raise where that fails to give the first draws' ``truth`` [t n c]."""

    def agrees(together: int, thin: bool) -> bool:
        parts = torch.cat(list(found.run(x.clone(), len(truth), together, thin)))
        error = min(0.1, 10 * torch.finfo(truth.dtype).eps ** 0.5)  # wrong wiring is far worse
        return torch.allclose(parts, truth, error, error * float(truth.abs().amax()))

    found = Split(model, masks)
    if not agrees(together=1, thin=True):
        raise ValueError("its traced graph gives other numbers")
    with suppress(Exception):  # a graph that holds on to the batch size cannot be folded
        found.folds = agrees(together=len(truth), thin=False)
    return found


class Split:
    """The nodes of trunk and head, and what of the head can be thinned; masks must be known."""

    folds = False

    def __init__(self, model: nn.Module, masks: Masks) -> None:
        # Tracing leaves constants on its root: a container of ours, not the model.
        self.masks, self.root = masks, nn.Sequential(model)
        graph = _Tracer(masks.layers).trace(self.root)
        self.interpreter = fx.Interpreter(self.root, garbage_collect_values=False, graph=graph)
        self.sites: dict[fx.Node, tuple[str, nn.Module]] = {}
        random, given, calls = set[fx.Node](), set[fx.Node](), Counter[str]()
        for node in graph.nodes:
            layer = self._layer(node)
            if layer in masks.layers:
                self.sites[node] = site_of(masks.layers[layer][0], calls), layer
            for group, starts in ((random, node in self.sites), (given, node.op == "placeholder")):
                if starts or not group.isdisjoint(node.all_input_nodes):
                    group.add(node)
        self.trunk = [n for n in graph.nodes if n not in random and n.op != "output"]
        self.head = [n for n in graph.nodes if n in random or n.op == "output"]
        last = {value: node for node in self.trunk + self.head for value in node.all_input_nodes}
        self.dies: dict[fx.Node, list[fx.Node]] = {}
        for value, node in last.items():
            self.dies.setdefault(node, []).append(value)
        # What a head reads is copied for each draw, as it may be written to; a site only reads.
        self.copied = {v for n in self.head if n not in self.sites for v in n.all_input_nodes}
        self.copied &= given - random
        self.given = given
        self._find_thin()

    def is_current(self) -> bool:
        """Whether a new trace is the same: one holds on to the values of attributes."""
        with suppress(Exception):  # whatever a stranger's forward does by now
            (then, constants), (now, others) = self._held(), Split(self.root[0], self.masks)._held()
            return then == now and all(map(torch.equal, constants, others))
        return False

    def _held(self) -> tuple[str, list[Tensor]]:
        """What a trace has written down, and the constants that it refers to."""
        constants = [value for value in vars(self.root).values() if isinstance(value, Tensor)]
        return f"{self.interpreter.graph} {sorted(map(str, self.thin))}", constants

    def every_draw(self, x: Tensor) -> Iterator[Tensor]:
        """Yield outputs [some n c] of all draws, in order, in the way that is fastest for x."""
        together = max(1, BATCH // len(x)) if self.folds else 1
        return self.run(x, self.masks.draws, together, together == 1 and len(x) >= _THIN_ROWS)

    def run(self, x: Tensor, draws: int, together: int, thin: bool) -> Iterator[Tensor]:
        """Yield outputs [together n c] of the draws, in order."""
        trunk = self._run_trunk(x)
        for start in range(0, draws, together):
            now = slice(start, min(start + together, draws))
            env = {
                n: self._copy(v, now, len(x)) if n in self.copied else v for n, v in trunk.items()
            }
            for node in self.head:
                if thin and node in self.thin:
                    env[node] = self._thinned(node, env, start)
                elif node in self.sites:
                    env[node] = self.masks.drop(*self.sites[node], _read(node, env), now, len(x))
                else:
                    env[node] = self._value(node, env)
                for dead in self.dies.get(node, ()):
                    del env[dead]
            out = one_row_each(logits(env[node]), (now.stop - start) * len(x))
            yield out.reshape(now.stop - start, len(x), -1)

    def _run_trunk(self, x: Tensor) -> dict[fx.Node, Any]:
        """What the head reads of the trunk."""
        if self.folds and len(x) > _TRUNK_ROWS:
            parts = [self._run_trunk(part) for part in x.split(_TRUNK_ROWS)]
            rows = {n: torch.cat([p[n] for p in parts]) for n in parts[0] if n in self.given}
            return {**parts[0], **rows}
        trunk: dict[fx.Node, Any] = {}
        for node in self.trunk:
            trunk[node] = x if node.op == "placeholder" else self._value(node, trunk)
            for dead in self.dies.get(node, ()):
                del trunk[dead]
        return trunk

    def _copy(self, value: Any, draws: slice, rows: int) -> Any:
        times = draws.stop - draws.start
        if times > 1 and not (isinstance(value, Tensor) and value.shape[:1] == (rows,)):
            raise TypeError("the head reads something of the whole batch, such as its size")
        if not isinstance(value, Tensor):
            return value
        return torch.cat([value] * times) if times > 1 else value.clone()

    def _value(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        return getattr(self.interpreter, node.op)(node.target, args, kwargs)

    def _layer(self, node: fx.Node) -> Any:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _find_thin(self) -> None:
        """Find dropout that only linear layers read, and linear layers that only it reads."""
        self.columns: dict[fx.Node, fx.Node] = {}
        self.rows: dict[fx.Node, fx.Node] = {}
        for site, (name, layer) in self.sites.items():
            if type(layer) is not nn.Dropout or not _THIN_P <= self.masks.layers[layer][1] < 1:
                continue
            if self.masks.kept[name].ndim != 2 or not all(map(self._is_linear, site.users)):
                continue
            self.columns |= dict.fromkeys(site.users, site)
            before = site.all_input_nodes[0]
            while self._is_elementwise(before) and len(before.users) == 1:
                before = before.all_input_nodes[0]
            if self._is_linear(before) and len(before.users) == 1 and before in self.head:
                self.rows[before] = site
        self.thin = {*self.columns, *self.columns.values(), *self.rows, *self.rows.values()}

    def _is_linear(self, node: fx.Node) -> bool:
        layer = self._layer(node)
        return type(layer) is nn.Linear and not layer._forward_hooks | layer._forward_pre_hooks

    def _is_elementwise(self, node: fx.Node) -> bool:
        kind = type(self._layer(node)) if node.op == "call_module" else node.target
        return kind in _ELEMENTWISE and len(node.all_input_nodes) == 1

    def _thinned(self, node: fx.Node, env: dict[fx.Node, Any], draw: int) -> Tensor:
        """Value of a dropout or a linear layer, of the kept units alone."""
        x: Tensor = _read(node, env)

        def kept(site: fx.Node | None) -> Tensor | None:
            return None if site is None else self.masks.units(self.sites[site][0], draw, x.device)

        if node in self.sites:
            name, layer = self.sites[node]
            if node not in self.rows.values():  # else only the kept units were computed
                self.masks.at(name, layer, x)
                x = _submatrix(x, None, kept(node))
            return x * gain(self.masks.layers[layer][1])
        linear, rows = self._layer(node), kept(self.rows.get(node))
        bias = linear.bias
        if bias is not None and rows is not None:
            bias = bias.index_select(0, rows)
        weight = _submatrix(linear.weight, rows, kept(self.columns.get(node)))
        return functional.linear(x, weight, bias)


def _submatrix(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    if rows is None or columns is None:
        matrix = matrix if rows is None else matrix.index_select(0, rows)
        return matrix if columns is None else matrix.index_select(1, columns)
    # In pieces, as fresh memory for all columns would cost as much as the product itself.
    out = matrix.new_empty(len(rows), len(columns))
    for some, piece in zip(rows.split(512), out.split(512), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=piece)
    return out


def _read(node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    return env[node.all_input_nodes[0]]


class _Tracer(fx.Tracer):
    """Keeps every dropout layer as one node, so that the graph shows where masks apply.

    While it traces, torch.fx reroutes the modules of all threads: those of others are let through.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers, self.thread = layers, threading.get_ident()

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.layers:
            return True
        return super().is_leaf_module(m, module_qualified_name) and not any(
            inner in self.layers for inner in m.modules()
        )
