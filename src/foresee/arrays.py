"""The one door for what people bring: rows by position, numbers as torch and NumPy read them."""

from collections.abc import Mapping
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
    foreign byte order or of more than 64 bits are copied. Sparse matrices are made dense, the items
    of a list are stacked.

    >>> tensor(np.arange(3, dtype=">f4")[::-1])
    tensor([2., 1., 0.])
    """
    if isinstance(values, Tensor):
        return values.detach()
    try:
        if isinstance(values, list) and values and isinstance(values[0], Tensor):
            return torch.stack(values).detach()
        array = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"rows must be of one shape: pad or resize them ({str(error).splitlines()[0]})"
        ) from error
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

    Arrays and tensors are left as they are; pandas objects, sparse matrices, lists, Datasets and
    dicts of columns become `Rows`, whose parts are of the same kind as the whole.

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
    if isinstance(inputs, Mapping):
        sizes = {key: count(key, column) for key, column in inputs.items()}
        if len(set(sizes.values())) != 1:
            raise InputError(f"{name} must hold columns of one length, got {sizes}")
        return next(iter(sizes.values()))
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
    if isinstance(data, Mapping):
        return {key: take(column, positions) for key, column in data.items()}
    return [data[int(i)] for i in positions]


def unlabelled(items: list[Any]) -> Any:
    """Rows as a Dataset gives them: the labels of pairs are left out, dicts become columns.

    >>> unlabelled([({"a": 1}, "label"), ({"a": 2}, "label")])
    {'a': [1, 2]}
    """
    rows = [item[0] if _is_pair(item) else item for item in items]
    if rows and isinstance(rows[0], Mapping):
        return {key: [row[key] for row in rows] for key in rows[0]}
    return rows


def _is_pair(item: Any) -> bool:
    """Whether it is (input, label …), not a row of numbers."""
    if not (isinstance(item, tuple | list) and item):
        return False
    return isinstance(item[0], np.ndarray | Tensor | Mapping)
