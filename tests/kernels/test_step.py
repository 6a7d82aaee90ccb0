"""Parts of a training step: on the GPU where there is one, else in Triton's interpreter."""

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d

triton = pytest.importorskip("triton")

from foresee.kernels import step  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts off what bfloat16 has no room for.
ROUNDING = {"rtol": 0 if DEVICE == "cuda" else 2**-7, "atol": 0}
SHAPES = [(3, 5, 4, 6), (2, 64, 2, 2), (1, 1, 2, 2), (2, 70, 5, 3), (70, 3, 9, 8)]


def pixels(*shape, seed=0):
    """Few different numbers, so that many are equal, as what a ReLU lets pass: half are zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-8, 9, shape, generator=generator) / 8
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return values.relu().to(DEVICE, torch.bfloat16).contiguous(memory_format=layout)


@pytest.mark.parametrize("shape", SHAPES)
def test_pooling_is_torchs(shape):
    y = pixels(*shape)
    got = step.max_pool(y)
    assert torch.equal(got, max_pool2d(y.float(), 2).bfloat16())
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_pooling_loses_no_nan():
    y = pixels(1, 3, 4, 4)
    y[0, 1, 2, 3] = torch.nan
    assert step.max_pool(y).isnan().nonzero().tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (600, 4, 30, 30), (40, 64, 8, 8)])
def test_gradients_are_those_of_autograd(shape, pooled):
    y = pixels(*shape)
    bias = torch.zeros(shape[1], dtype=torch.float64, device=DEVICE, requires_grad=True)
    # As before the ReLU: what it set to zero was negative.
    before = torch.where(y > 0, y, -1).double().requires_grad_()
    out = (before + bias[:, None, None]).relu()
    out = max_pool2d(out, 2) if pooled else out
    gradient = pixels(*out.shape, seed=1) - pixels(*out.shape, seed=2)
    out.backward(gradient.double())
    of_y, of_bias = step.relu_backward(gradient, y, pooled)
    assert torch.equal(of_y.double(), before.grad)
    assert of_y.is_contiguous(memory_format=torch.channels_last)
    # Sums of eighths are exact; the last step rounds to bfloat16.
    torch.testing.assert_close(of_bias, bias.grad.bfloat16(), **ROUNDING)


def test_gradients_may_lie_in_any_order():
    y, gradient = pixels(4, 6, 4, 4), pixels(4, 6, 4, 4, seed=1)
    want = step.relu_backward(gradient, y, False)
    got = step.relu_backward(gradient.contiguous(), y, False)
    assert all(torch.equal(one, other) for one, other in zip(want, got, strict=True))


@pytest.mark.parametrize("shape", [(7,), (130, 50), (8, 6, 3, 3)])
def test_updates_are_torchs(shape):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    exact = nn.Parameter(start.double())
    optimiser = torch.optim.SGD([exact], lr=0.1, momentum=0.9, weight_decay=0.01)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    weight = start.to(DEVICE, copy=True).contiguous(memory_format=layout)
    velocity, coarse = torch.zeros_like(weight), weight.bfloat16()
    rate = torch.tensor(0.1, device=DEVICE)
    for number in range(4):
        gradient = torch.randn(shape, generator=generator).bfloat16()
        if number % 2:  # laid out in another order
            gradient = gradient.mT.contiguous().mT if len(shape) > 1 else gradient
        exact.grad = gradient.double()
        optimiser.step()
        step.sgd(weight, velocity, gradient.to(DEVICE), coarse, rate, 0.9, 0.01)
    torch.testing.assert_close(weight.cpu().double(), exact.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(coarse, weight.bfloat16(), **ROUNDING)
