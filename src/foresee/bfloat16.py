"""Passes through a network in bfloat16 on a GPU: coarse copies of its weights, and layers joined.

Autocast casts the weights at every use, and runs a convolution, its bias, the ReLU and the pooling
after it one by one: each passes over memory, and that takes longer than to multiply.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@cache
def kernels(device: torch.device) -> ModuleType | None:
    """The fused kernels of a training step, if triton is installed and the GPU knows bfloat16."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from foresee.kernels import step
    except ImportError:
        return None
    return step


def copies(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights, by name, that nothing but layers uses which autocast runs coarsely.

    All lie as the weights do, without gaps, as the kernels count.
    """
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {
        name: p.detach().to(torch.bfloat16).requires_grad_()
        for name, p in model.named_parameters()
        if type(model.get_submodule(name.rpartition(".")[0])) in layers
        and name.rpartition(".")[2] in ("weight", "bias")
        and p.requires_grad
        and p.dtype is torch.float32
        and p.stride() == torch.empty_like(p, device="meta").stride()
        and uses[id(p)] == 1
    }


def channels_last(model: nn.Module) -> list[nn.Parameter]:
    """Lay out the weights of convolutions as a GPU's fast kernels read them; tell which changed."""
    changed = [p for p in model.parameters() if p.ndim == 4 and p.is_contiguous()]
    for parameter in changed:
        parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return changed


def forward(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Run a model on other weights; in a sequence, layers that can be joined as one."""
    if type(model) is not nn.Sequential or _hooked(model):
        outputs: Tensor = functional_call(model, weights, (x,))
        return outputs
    left = list(model._modules.items())  # not named_children(), which leaves out what comes again
    while left:
        name, layer = left[0]
        own = {
            key.removeprefix(f"{name}."): weight
            for key, weight in weights.items()
            if key.startswith(f"{name}.")
        }
        number = 1
        if own.keys() >= {"weight", "bias"} and kernels(x.device):
            number = _joined([module for _, module in left[:3]])
        if number == 1:
            x = functional_call(layer, own, (x,))
        else:
            weight, bias = own["weight"], own["bias"]
            form = (layer.stride, layer.padding, layer.dilation, layer.groups)
            x = _Block.apply(x.to(weight), weight, bias, form, number == 3)  # type: ignore[no-untyped-call]
        left = left[number:]
    return x


def _joined(layers: Sequence[Any]) -> int:
    """How many of these run as one, unseen by any hook: a convolution, a ReLU and a pooling."""
    convolution, after = layers[0], layers[1:]
    if (
        type(convolution) is not nn.Conv2d
        or convolution.padding_mode != "zeros"
        or isinstance(convolution.padding, str)
        or _hooked(convolution)
        or not (after and type(after[0]) is nn.ReLU)
        or _hooked(after[0])
    ):
        return 1
    pooling = after[1] if len(after) > 1 else None
    return 3 if type(pooling) is nn.MaxPool2d and _halves(pooling) else 2


def _halves(pooling: nn.MaxPool2d) -> bool:
    """Tell whether a pooling takes the largest of 2×2 pixels, unseen by any hook."""
    form = (pooling.kernel_size, pooling.stride, pooling.padding, pooling.dilation)
    pairs = [tuple(part) if isinstance(part, Sequence) else (part, part) for part in form]
    plain = not (pooling.ceil_mode or pooling.return_indices or _hooked(pooling))
    return plain and pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]


def _hooked(module: nn.Module) -> bool:
    return any(vars(module)[kind] for kind in _HOOKS)


class _Block(torch.autograd.Function):
    """A convolution, its bias and a ReLU in one kernel, and the pooling after them in another."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, form: tuple[Any, ...], pooled: bool
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.cudnn_convolution_relu(x, weight, bias, *form)
        ctx.save_for_backward(x, weight, y)
        ctx.form, ctx.pooled = form, pooled
        return kernels(x.device).max_pool(y) if pooled else y  # type: ignore[union-attr]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, y = ctx.saved_tensors
        *sizes, groups = ctx.form
        gradient, of_bias = kernels(x.device).relu_backward(gradient, y, ctx.pooled)  # type: ignore[union-attr]
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            None,
            *sizes,
            False,
            (0, 0),
            groups,
            (*ctx.needs_input_grad[:2], False),
        )
        return of_x, of_weight, of_bias, None, None
