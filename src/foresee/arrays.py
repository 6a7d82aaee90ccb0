"""The one door for what people bring: rows by position, numbers as torch and NumPy read them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.errors import InputError


def tensor(values: Any) -> Tensor:
    """Numbers as a tensor without history, on the device they are on.

    Memory is shared where torch can read it: arrays that are read-only, strided backwards, of
    foreign byte order or of more than 64 bits are copied.

    >>> tensor(np.arange(3, dtype=">f4")[::-1])
    tensor([2., 1., 0.])
    """
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise InputError(f"numbers were expected, got {type(values).__name__} of {array.dtype}")
    readable = array.dtype.isnative and array.itemsize <= 8 and array.flags.carray
    if not readable:
        dtype = array.dtype.newbyteorder("=") if array.itemsize <= 8 else np.dtype(np.float64)
        array = np.array(array, dtype=dtype, order="C")
    return torch.from_numpy(array)


def numpy(values: Any) -> NDArray[Any]:
    """Numbers as a NumPy array, which shares memory where it can."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def rows(name: str, inputs: Any) -> Any:
    """Inputs that are indexed by position, with slices and with arrays of positions.

    Arrays and tensors are left as they are; pandas objects, sparse matrices, lists and Datasets
    become `Rows`, whose parts are of the same kind as the whole.

    >>> rows("pool", ["a", "b", "c"])[np.array([2, 0])]
    ['c', 'a']
    """
    if isinstance(inputs, np.ndarray | Tensor | Rows):
        return inputs
    return Rows(inputs, np.arange(count(name, inputs)))


def count(name: str, inputs: Any) -> int:
    """How many rows there are."""
    if hasattr(inputs, "tocsr"):  # a sparse matrix has no len
        return int(inputs.shape[0])
    if not (hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")):
        raise InputError(
            f"{name} must hold rows that can be counted and read by position, got "
            f"{type(inputs).__name__}: pass an array, a tensor, a frame, a list or a map-style "
            "Dataset"
        )
    return len(inputs)


@dataclass(frozen=True)
class Rows:
    """Some rows of a container, read when they are asked for: it is never copied whole."""

    data: Any
    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> Any:
        return take(self.data, self.index[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def take(data: Any, positions: NDArray[np.int64]) -> Any:
    """The rows at these positions, in their order, in a container of the same kind."""
    if hasattr(data, "iloc"):  # pandas counts by label unless told otherwise
        return data.iloc[positions]
    if hasattr(data, "tocsr"):
        return data.tocsr()[positions]
    if isinstance(data, np.ndarray | Tensor | Rows):
        return data[positions]
    return [data[int(i)] for i in positions]
