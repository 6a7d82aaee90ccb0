"""Sets that fit in memory and hold plain arrays: digits, MNIST, Fashion-MNIST, SVHN."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.lab.data.dataset import Images
from foresee.lab.data.get import LIMIT, find

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


def from_npz(name: str, path: Path) -> Images:
    """A data set as arrays: pixels uint8 [n channels height width], labels [n], classes, names.

    ``source`` [n], whether a row is of the source domain, may be there too.
    """
    try:
        with np.load(path, allow_pickle=False) as held:
            found = {key: held[key] for key in held.files}
        source = found["source"].astype(bool) if "source" in found else None
        classes = tuple(map(str, found["classes"].tolist()))
        labels = found["labels"].astype(np.int64)
        return Images(name, found["pixels"], labels, classes, source)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged archive raises BadZipFile, zlib.error, KeyError, ...
        raise InputError(
            f"{path} must hold pixels uint8 [n channels height width], labels [n] and classes "
            f"({error}): write it with numpy.savez"
        ) from error


def _idx(name: str, root: Path | None, folder: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    first = "train-images-idx3-ubyte"
    place = find(name, root, folder, first, f"{first}.gz")
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(place / f"{part}-images-idx3-ubyte", axes=3)
        labels = _read_idx(place / f"{part}-labels-idx1-ubyte", axes=1)
        if images.shape[1:] != (28, 28):
            raise InputError(
                f"{place}: {part} must have images of 28×28 pixels, got "
                f"{'×'.join(map(str, images.shape[1:]))}: get its files again"
            )
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
    path = path if path.is_file() else packed
    magic = 0x0800 + axes
    try:
        with gzip.open(path) if path == packed else open(path, "rb") as file:
            header = file.read(4 * (1 + axes))
            if len(header) < 4 * (1 + axes) or int.from_bytes(header[:4], "big") != magic:
                raise ValueError(
                    f"it must begin with the number {magic} and {axes} sizes, as an idx file of "
                    f"bytes does, and begins with {header[:4].hex(' ') or 'nothing'}"
                )
            shape = struct.unpack(f">{axes}I", header[4:])
            size = math.prod(shape)
            _check_size(size)
            data = file.read(size + 1)  # one more: is that all?
    except Exception as error:  # a damaged archive raises EOFError, BadGzipFile, zlib.error
        raise InputError(f"{path} cannot be read ({error}): get it again") from error
    if len(data) != size:
        there = "more" if len(data) > size else len(data)
        raise InputError(
            f"{path} must have {size} bytes for {list(shape)}, got {there}: it was cut or "
            "changed, get it again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from scipy.io import loadmat, whosmat

    if not path.is_file():
        raise InputError(f"there is no {path}: put it beside the other part of SVHN")
    try:
        _check_unpacked(path)
        found = {name: (kind, shape) for name, shape, kind in whosmat(path)}
        (kind, (*image, n)), (kind_y, shape_y) = found["X"], found["y"]
        if (kind, image) != ("uint8", [32, 32, 3]):
            raise ValueError(f"X must be uint8 [32 32 3 n], got {kind} {[*image, n]}")
        if (kind_y, math.prod(shape_y)) != ("uint8", n):
            raise ValueError(f"y must be uint8 with n = {n}, as X, got {kind_y} {list(shape_y)}")
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file raises ValueError, zlib.error, KeyError, ...
        raise InputError(
            f"{path} cannot be read as SVHN's X and y ({error}): get it again"
        ) from error
    pixels, labels = content["X"], content["y"].ravel().astype(np.int64)
    # The file counts a zero as 10.
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), np.where(labels == 10, 0, labels)


def _check_unpacked(path: Path) -> None:
    """Unpack a file of MATLAB 5 piece by piece: scipy would do so at once, whatever the size."""
    total = 0
    with open(path, "rb") as file:
        if file.read(128)[126:] != b"IM":
            raise ValueError("it does not begin as a file of MATLAB 5 does")
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack("<II", tag)
            unpacker = zlib.decompressobj()
            while kind == _PACKED and size > 0 and (piece := file.read(min(size, 1 << 13))):
                size -= len(piece)
                total += len(unpacker.decompress(piece))
                _check_size(total)
            file.seek(size, os.SEEK_CUR)


_PACKED = 15  # miCOMPRESSED


def _check_size(size: int) -> None:
    if size > LIMIT:
        raise ValueError(f"it unpacks to {size} bytes or more, and no more than {LIMIT} are read")
