"""Networks with dropout: the paper's VGG16, two small CNNs and an MLP, each a plain nn.Sequential.

A network is a function of its arguments: the same seed gives the same weights, bit for bit, and the
global random state is left alone. Networks are built on the CPU; move them as usual.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee.errors import InputError

# Channels of the convolutions between poolings: configuration D of Simonyan & Zisserman (2015).
_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    classes: int,
    image_size: int = 32,
    channels: int = 3,
    dropout: float = 0.5,
    *,
    hidden: int = 4096,
    batch_norm: bool = False,
    seed: int = 0,
) -> nn.Sequential:
    """Build VGG16 for square images of 32, 64 or 96 pixels (any multiple of 32).

    The thirteen convolutions, then the original head on the 1×1, 2×2 or 3×3 map that is left: two
    hidden layers, each followed by dropout.

    Args:
        classes: outputs.
        image_size: height and width of the images [n channels image_size image_size].
        channels: of the images.
        dropout: probability of zeroing a unit.
        hidden: units of each hidden layer.
        batch_norm: normalise after every convolution.
        seed: of the weights.

    >>> vgg16(classes=10, hidden=64)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    _check(classes, dropout, image_size=image_size, channels=channels, hidden=hidden)
    if image_size % 32:
        raise InputError(
            f"image_size must be a multiple of 32, as vgg16 halves images five times, got "
            f"{image_size}: resize or pad the images, or take small_cnn"
        )
    with torch.device("meta"):
        layers: list[nn.Module] = []
        size = channels
        for block in _VGG16:
            for width in block:
                layers.append(nn.Conv2d(size, width, 3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(width))
                layers.append(nn.ReLU())
                size = width
            layers.append(nn.MaxPool2d(2))
        layers += [
            nn.Flatten(),
            nn.Linear(size * (image_size // 32) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        ]
    return _initialised(layers, seed)


def small_cnn(
    classes: int,
    image_size: int = 28,
    channels: int = 1,
    dropout: float = 0.5,
    *,
    hidden: int = 512,
    seed: int = 0,
) -> nn.Sequential:
    """Build two convolutions with pooling and one hidden layer, with dropout before both linears.

    The hidden layer is wide, as the paper's are: MC dropout over few units knows little of what it
    does not know. Any square image of at least 4 pixels will do.

    Args:
        classes: outputs.
        image_size: height and width of the images [n channels image_size image_size].
        channels: of the images.
        dropout: probability of zeroing a unit.
        hidden: units of the hidden layer.
        seed: of the weights.

    >>> small_cnn(classes=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    _check(classes, dropout, image_size=image_size, channels=channels, hidden=hidden)
    _check_halves(image_size, "small_cnn")
    with torch.device("meta"):
        layers = [
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(64 * (image_size // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        ]
    return _initialised(layers, seed)


def slim_cnn(
    classes: int,
    image_size: int = 28,
    channels: int = 1,
    dropout: float = 0.5,
    *,
    hidden: int = 512,
    seed: int = 0,
) -> nn.Sequential:
    """Build a CNN for a machine without a GPU: as `small_cnn`, with half the channels.

    Dropout comes after the hidden layer only, as in VGG16, so that all but the last layer runs once
    however many draws there are. Pooling before the ReLU is the same function and saves three
    quarters of it; channels lie last in memory, as a CPU pools them faster. The arguments are those
    of `small_cnn`.

    >>> slim_cnn(classes=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    _check(classes, dropout, image_size=image_size, channels=channels, hidden=hidden)
    _check_halves(image_size, "slim_cnn")
    with torch.device("meta"):
        layers = [
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (image_size // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        ]
    return _initialised(layers, seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def mlp(
    features: int,
    classes: int,
    hidden: Sequence[int] = (256, 256),
    dropout: float = 0.5,
    *,
    seed: int = 0,
) -> nn.Sequential:
    """Build a multilayer perceptron with dropout after every hidden layer; it flattens its input.

    Args:
        features: numbers in one input, d.
        classes: outputs.
        hidden: units of each hidden layer.
        dropout: probability of zeroing a unit.
        seed: of the weights.

    >>> mlp(features=64, classes=10, hidden=(32,))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Dropout(p=0.5, inplace=False)
      (4): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    if not np.iterable(hidden):
        raise InputError(f"hidden must be a list of widths, got {hidden!r}: pass ({hidden},)")
    widths = {f"hidden[{i}]": width for i, width in enumerate(hidden)}
    _check(classes, dropout, features=features, **widths)
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        size = features
        for width in hidden:
            layers += [nn.Linear(size, width), nn.ReLU(), nn.Dropout(dropout)]
            size = width
        layers.append(nn.Linear(size, classes))
    return _initialised(layers, seed)


class Standardise(nn.Module):
    """A first layer for images kept as bytes: to floats, then to mean 0 and sd 1 per channel.

    Bytes take a quarter of the memory.

    Args:
        mean: of each channel, pixels scaled to 0…1.
        std: standard deviation of each channel, likewise.

    >>> Standardise([0.5], [0.25])(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))[:, 0]
    tensor([[[-2.]],
    <BLANKLINE>
            [[ 2.]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not all(0 <= m <= 1 for m in mean):
            raise InputError(
                f"mean must be of pixels scaled to 0…1, got {list(mean)}: divide it and std by 255"
            )
        if len(mean) != len(std) or not all(s > 0 for s in std):
            raise InputError(
                f"std must be positive, one for each of the {len(mean)} channels, got {list(std)}"
            )
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Map bytes [n channels height width] to floats of the buffers' precision."""
        return (pixels.to(self.mean.dtype) - self.mean) / self.std


def check_pixels(model: nn.Module, x: Tensor) -> None:
    """Refuse pixels from 0 to 1 where the first layer is a `Standardise`, which would dim them."""
    first = next((m for m in model.modules() if not list(m.children())), model)
    if not (isinstance(first, Standardise) and x.is_floating_point()):
        return
    if bool(((x >= 0) & (x <= 1)).all()) and bool((x != x.round()).any()):
        raise InputError(
            "inputs are floats from 0 to 1, but the model begins with networks.Standardise, which "
            "reads pixels from 0 to 255: pass the bytes, or leave that layer out"
        )


def statistics(pixels: Any, sample: int = 10_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, pixels scaled to 0…1, over evenly spaced images.

    >>> statistics(np.full((5, 2, 4, 4), 51, np.uint8))
    ((0.2, 0.2), (1.0, 1.0))
    """
    rows = np.unique(np.linspace(0, len(pixels) - 1, min(sample, len(pixels))).astype(int))
    some = torch.as_tensor(pixels[rows]).double() / 255
    mean, std = some.mean((0, 2, 3)), some.std((0, 2, 3), correction=0)
    return _rounded(mean), tuple(s or 1.0 for s in _rounded(std))


def _check_halves(image_size: int, network: str) -> None:
    if image_size < 4:
        raise InputError(
            f"image_size must be at least 4, as {network} halves images twice, got {image_size}: "
            "resize the images, or take mlp"
        )


def _check(classes: int, dropout: float, **sizes: int) -> None:
    for name, size in {"classes": classes, **sizes}.items():
        if not isinstance(size, int | np.integer):
            raise InputError(f"{name} must be a whole number, got {size!r}")
    if classes < 2:
        raise InputError(f"classes must be at least 2, got {classes}: a binary task has two")
    if not 0 <= dropout < 1:
        raise InputError(
            f"dropout must be a probability of zeroing a unit, 0 ≤ dropout < 1, got {dropout}"
        )
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}")


def _initialised(layers: list[nn.Module], seed: int) -> nn.Sequential:
    """Give memory and values to layers built on the meta device, which draws no random numbers.

    He et al. (2015), so that signals keep their size through thirteen convolutions; the scale of
    the last layer is that of a layer without ReLU, so that training starts near uniform.
    """
    network = nn.Sequential(*layers).to_empty(device="cpu")
    rng = torch.Generator().manual_seed(int(seed))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            kind = "linear" if layer is network[-1] else "relu"
            nn.init.kaiming_normal_(layer.weight, nonlinearity=kind, generator=rng)  # type: ignore[arg-type]
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    return network


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)
