"""Sets that fit in memory and hold plain arrays: digits, MNIST, Fashion-MNIST, SVHN."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.lab.data.files import find
from foresee.lab.data.images import Images

_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Both sets have the same files; how their training labels begin tells them apart.
_BEGINNINGS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashionmnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}


def digits(root: Path | None = None) -> Images:
    """scikit-learn's 1797 digits of 8×8 pixels; its values 0 to 16 become 0 to 240."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    pixels = (values * 15).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Images("digits", pixels, labels.astype(np.int64), _DIGITS)


def mnist(root: Path | None) -> Images:
    """MNIST in the paper's border of two black pixels, which makes it 32×32."""
    pixels, labels = _idx("mnist", root, "MNIST/raw")
    return Images("mnist", np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2))), labels, _DIGITS)


def fashionmnist(root: Path | None) -> Images:
    """Fashion-MNIST as it is, 28×28."""
    return Images("fashionmnist", *_idx("fashionmnist", root, "FashionMNIST/raw"), _CLOTHES)


def svhn(root: Path | None) -> Images:
    """Street View House Numbers, cropped digits, without the extra set."""
    folder = find("svhn", root, "", "train_32x32.mat")
    parts = [_mat(folder / f"{part}_32x32.mat") for part in ("train", "test")]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Images("svhn", pixels, labels, _DIGITS)


def _idx(name: str, root: Path | None, folder: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    first = "train-images-idx3-ubyte"
    place = find(name, root, folder, first, f"{first}.gz")
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(place / f"{part}-images-idx3-ubyte", axes=3)
        labels = _read_idx(place / f"{part}-labels-idx1-ubyte", axes=1)
        if len(images) != len(labels):
            raise InputError(
                f"{place}: {part} has {len(images)} images and {len(labels)} labels: the files are "
                "of different data sets, get both again"
            )
        parts.append((images, labels))
    _check_beginning(name, place, parts[0][1])
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return pixels[:, None], labels.astype(np.int64)


def _check_beginning(name: str, place: Path, labels: NDArray[np.uint8]) -> None:
    for other, beginning in _BEGINNINGS.items():
        if other != name and tuple(labels[: len(beginning)]) == beginning:
            raise InputError(
                f"{place} must hold {name}, got {other}, whose training labels begin with "
                f"{' '.join(map(str, beginning))}: ask for {other}, or pass the folder of {name}"
            )


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read bytes in the format of MNIST: magic number, one size per axis, values."""
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        raise InputError(f"there is no {path}, nor {packed.name} beside it: put it there")
    try:
        if path.is_file():
            data = path.read_bytes()
        else:
            path = packed
            with gzip.open(path) as file:
                data = file.read()
    except Exception as error:  # a damaged archive raises EOFError, BadGzipFile, zlib.error
        raise InputError(f"{path} cannot be read ({error}): get it again") from error
    header = 4 * (1 + axes)
    magic = 0x0800 + axes
    if len(data) < header or int.from_bytes(data[:4], "big") != magic:
        raise InputError(
            f"{path} must begin with the number {magic} and {axes} sizes, as an idx file of bytes "
            f"does, got {data[:4].hex(' ') or 'nothing'}: get it again"
        )
    shape = struct.unpack(f">{axes}I", data[4:header])
    expected = header + int(np.prod(shape, dtype=object))
    if len(data) != expected:
        raise InputError(
            f"{path} must have {expected} bytes for {list(shape)}, got {len(data)}: it was cut or "
            "changed, get it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from scipy.io import loadmat

    if not path.is_file():
        raise InputError(f"there is no {path}: put it beside the other part of SVHN")
    try:
        content = loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"], content["y"].ravel().astype(np.int64)
    except Exception as error:  # a damaged file raises ValueError, zlib.error, KeyError, ...
        raise InputError(
            f"{path} cannot be read as SVHN's X and y ({error}): get it again"
        ) from error
    if pixels.shape != (32, 32, 3, len(labels)):
        raise InputError(
            f"{path}: X must be [32 32 3 n] with n = {len(labels)} labels, got "
            f"{list(pixels.shape)}: get it again"
        )
    # The file counts a zero as 10.
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), np.where(labels == 10, 0, labels)
