"""Parts of a training step on a GPU, each in one pass over memory where torch takes several.

Images lie as [n h w c] in memory (channels last), in bfloat16; sums are float32, in an order of
their own, so that a step repeats itself bit for bit. `TRITON_INTERPRET=1` runs all on the CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # numbers that a program holds at once
_PARTS = 512  # programs that a sum over all pixels is shared by, at most


@triton.jit
def _largest(y, row, channel, known, height, width, c_total):
    """Of each 2×2 window: its largest number, which of the four it is, and where the window begins.

    Of equals it is the first. ``height`` and ``width`` are those of the images before the pooling.
    """
    down, across = height // 2, width // 2
    image, window = row // (down * across), row % (down * across)
    corner = (image * height + window // across * 2) * width + window % across * 2
    first = corner[:, None] * c_total + channel[None, :]
    best = tl.load(y + first, mask=known, other=0.0).to(tl.float32)
    which = tl.zeros(best.shape, tl.int32)
    for k in tl.static_range(1, 4):
        step = (k // 2 * width + k % 2) * c_total
        value = tl.load(y + first + step, mask=known, other=0.0).to(tl.float32)
        better = (value > best) | (value != value)  # NaN is not to be lost
        best, which = tl.where(better, value, best), tl.where(better, k, which)
    return best, which, first


@triton.jit
def _pool(y, out, rows, height, width, c_total, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = (row < rows)[:, None] & (channel < c_total)[None, :]
    best, _, _ = _largest(y, row, channel, known, height, width, c_total)
    at = row[:, None] * c_total + channel[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=known)


@triton.jit
def _relu_backward(
    gradient,
    y,
    out,
    partial,
    rows,
    per,
    height,
    width,
    c_total,
    POOLED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Pass ``per`` rows of a gradient on where y > 0, and write their sum, a part of the bias's.

    POOLED: a row of the gradient is a window's, and goes to the largest of its pixels.
    """
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(0, per, BLOCK_M):
        row = tl.program_id(0).to(tl.int64) * per + start + tl.arange(0, BLOCK_M)
        known = (row < rows)[:, None] & (channel < c_total)[None, :]
        at = row[:, None] * c_total + channel[None, :]
        g = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
        if POOLED:
            best, which, first = _largest(y, row, channel, known, height, width, c_total)
            g = tl.where(best <= 0, 0.0, g)
            for k in tl.static_range(4):
                step = (k // 2 * width + k % 2) * c_total
                share = tl.where(which == k, g, 0.0)
                tl.store(out + first + step, share.to(out.dtype.element_ty), mask=known)
        else:
            value = tl.load(y + at, mask=known, other=0.0).to(tl.float32)
            g = tl.where(value <= 0, 0.0, g)
            tl.store(out + at, g.to(out.dtype.element_ty), mask=known)
        total += g
    at = tl.program_id(0).to(tl.int64) * c_total + channel
    tl.store(partial + at, tl.sum(total, 0), mask=channel < c_total)


@triton.jit
def _sum(partial, out, parts, c_total, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Add up what the programs of `_relu_backward` wrote [parts c]."""
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        known = (row < parts)[:, None] & (channel < c_total)[None, :]
        total += tl.load(partial + row[:, None] * c_total + channel[None, :], mask=known, other=0.0)
    tl.store(out + channel, tl.sum(total, 0).to(out.dtype.element_ty), mask=channel < c_total)


@triton.jit
def _sgd(weight, velocity, gradient, coarse, rate, total, momentum, decay, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = at < total
    w = tl.load(weight + at, mask=known)
    v = tl.load(velocity + at, mask=known)
    v = momentum * v + (tl.load(gradient + at, mask=known).to(tl.float32) + decay * w)
    w -= tl.load(rate) * v
    tl.store(velocity + at, v, mask=known)
    tl.store(weight + at, w, mask=known)
    tl.store(coarse + at, w.to(coarse.dtype.element_ty), mask=known)


def max_pool(y: Tensor) -> Tensor:
    """The largest of every 2×2 window of y [n c h w], which lies channels last."""
    n, c, h, w = y.shape
    out = torch.empty_like(y[:, :, : h // 2, : w // 2], memory_format=torch.channels_last)
    rows = n * (h // 2) * (w // 2)
    block_c, block_m = _blocks(c)
    grid = (triton.cdiv(rows, block_m), triton.cdiv(c, block_c))
    _pool[grid](y, out, rows, h, w, c, BLOCK_M=block_m, BLOCK_C=block_c)
    return out


def relu_backward(gradient: Tensor, y: Tensor, pooled: bool) -> tuple[Tensor, Tensor]:
    """The gradient before a bias and a ReLU that made y [n c h w], and the bias's, from that after.

    Args:
        gradient: of y or, if ``pooled``, of `max_pool` of y.
        y: lies channels last.
        pooled: see there.

    Returns:
        [n c h w], channels last; [c].
    """
    c, h, w = y.shape[1:]
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    rows = gradient.numel() // c
    block_c, block_m = _blocks(c)
    per = triton.cdiv(triton.cdiv(rows, _PARTS), block_m) * block_m
    parts = triton.cdiv(rows, per)
    odd = pooled and (h % 2 or w % 2)  # a last line that no window sees
    out = torch.zeros_like(y) if odd else torch.empty_like(y)
    partial = torch.empty(parts, c, device=y.device)
    bias = torch.empty(c, dtype=y.dtype, device=y.device)
    blocks = {"BLOCK_M": block_m, "BLOCK_C": block_c}
    _relu_backward[(parts, triton.cdiv(c, block_c))](
        gradient, y, out, partial, rows, per, h, w, c, POOLED=pooled, **blocks
    )
    _sum[(triton.cdiv(c, block_c),)](partial, bias, parts, c, **blocks)
    return out, bias


def sgd(
    weight: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    coarse: Tensor,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    """Update a weight, its velocity and its coarse copy, all in place and laid out alike.

    v ← momentum·v + gradient + decay·w, then w ← w − rate·v.
    """
    if gradient.stride() != weight.stride():
        gradient = torch.empty_like(coarse).copy_(gradient)
    total = weight.numel()
    _sgd[(triton.cdiv(total, _TILE),)](
        weight, velocity, gradient, coarse, rate, total, momentum, decay, BLOCK=_TILE
    )


def _blocks(channels: int) -> tuple[int, int]:
    """How many channels, and how many rows, a program holds at once."""
    block_c = min(64, triton.next_power_of_2(channels))
    return block_c, _TILE // block_c
