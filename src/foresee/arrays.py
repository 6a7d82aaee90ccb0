"""The one door for what people bring: rows by position, numbers as torch and NumPy read them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor; torch, which takes long, is not imported to find out.

    >>> is_tensor(np.ones(2))
    False
    """
    return _is_of_torch(value, "torch", "Tensor")


def _is_of_torch(value: Any, module: str, kind: str) -> bool:
    """Whoever brings something of torch has imported it."""
    home = sys.modules.get(module)
    return home is not None and isinstance(value, getattr(home, kind))


def tensor(values: Any, name: str = "values") -> "Tensor":
    """Real numbers as a tensor without history, on the device they are on.

    Memory is shared where torch can read it: arrays that are read-only, strided backwards, of
    foreign byte order or of more than 64 bits are copied. Frames, sparse matrices and nested lists
    are read as `numpy` reads them.

    >>> tensor(np.arange(3, dtype=">f4")[::-1])
    tensor([2., 1., 0.])
    """
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach()
    array = numpy(values, name)
    if array.dtype.kind not in "biuf":
        kind = type(values).__name__ if array.dtype == object else array.dtype
        raise InputError(f"{name} must be real numbers, got {kind}: encode what is not a number")
    if not is_shareable(array):
        dtype = array.dtype.newbyteorder("=") if array.itemsize <= 8 else np.dtype(np.float64)
        array = np.array(array, dtype=dtype, order="C")
    return torch.from_numpy(array)


def is_shareable(array: NDArray[Any]) -> bool:
    """Whether torch reads this memory as it is, without a copy and without a warning."""
    forward = min(array.strides, default=0) >= 0  # one row may be backwards, yet contiguous
    return forward and array.flags.carray and array.dtype.isnative and array.itemsize <= 8


def numpy(values: Any, name: str = "values") -> NDArray[Any]:
    """Values as a NumPy array, which shares memory where it can; bfloat16 becomes float32.

    >>> import torch
    >>> numpy(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if is_tensor(values):
        values = values.detach().cpu()
        wide = values.float() if str(values.dtype) == "torch.bfloat16" else values
        return np.asarray(wide.numpy())
    if np.ma.is_masked(values):
        raise InputError(f"{name} has masked entries: fill them or leave their rows out")
    try:
        return np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array, got {type(values).__name__}: {error}") from None


def rows(name: str, inputs: Any) -> Any:
    """Inputs [n …] that are read by position: ``[slice]``, ``[positions]``, ``[mask]``, ``[i]``.

    Arrays and tensors are left as they are. Frames and series, sparse matrices, lists, map-style
    Datasets and dicts of columns become `Rows`, whose parts are of the same kind as the whole;
    ``[:]`` is all of it.

    >>> rows("pool", ["a", "b", "c"])[np.array([2, 0])]
    ['c', 'a']
    """
    is_array = isinstance(inputs, np.ndarray) or is_tensor(inputs)
    if isinstance(inputs, Rows) or (is_array and inputs.ndim > 0):
        return inputs
    if type(inputs).__module__.partition(".")[0] == "polars" and hasattr(inputs, "to_list"):
        inputs = inputs.to_list()  # a series
    if hasattr(inputs, "tocsr"):  # other formats have no rows, or none that are quick to read
        inputs = inputs.tocsr()
        return Rows(inputs, np.arange(inputs.shape[0]))
    if isinstance(inputs, Mapping) and inputs:
        columns = {key: rows(f"{name}[{key!r}]", column) for key, column in inputs.items()}
        sizes = {key: len(column) for key, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(f"{name} must hold columns of one length, got {sizes}")
        return Rows(columns, np.arange(max(sizes.values())))
    remedy = ""
    if _is_of_torch(inputs, "torch.utils.data", "DataLoader"):
        remedy = "its .dataset"
    elif isinstance(inputs, Mapping | tuple):  # its length is that of a row, not of the pool
        remedy = "a list or a Dataset of such rows"
    elif (
        isinstance(inputs, str | bytes)
        or _is_of_torch(inputs, "torch.utils.data", "IterableDataset")
        or not (hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__"))
    ):
        remedy = "an array, a tensor, a frame, a list or a map-style Dataset"
    if remedy or is_array:
        raise InputError(
            f"{name} must hold rows that can be counted and read by position, got "
            f"{type(inputs).__name__}: pass {remedy or 'one row for each example'}"
        )
    return Rows(inputs, np.arange(len(inputs)))


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a container, read when they are asked for: it is never copied whole."""

    data: Any
    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> Any:
        return take(self.data, self.index[numpy(key) if is_tensor(key) else key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(numpy(self[:]), dtype)


def is_polars(data: Any) -> bool:
    """Whether this is a frame of polars, which is not imported to find out."""
    return type(data).__module__.partition(".")[0] == "polars" and hasattr(data, "columns")


class OnDisk:
    """Rows that lie in files: ``[positions]`` and ``[slice]`` bring some into memory."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError


def take(data: Any, positions: Any) -> Any:
    """The rows at these positions [k], in their order, in a container of the same kind; or one."""
    positions = np.array(positions, order="C")[()]  # torch reads no array backwards
    if hasattr(data, "iloc"):  # pandas counts by label unless told otherwise
        return data.iloc[positions]
    if is_polars(data):
        one = isinstance(positions, np.integer)
        return data.row(int(positions), named=True) if one else data[positions]
    arrays = isinstance(data, np.ndarray | Rows | OnDisk) or is_tensor(data)
    if arrays or hasattr(data, "tocsr"):
        return data[positions]
    if isinstance(data, Mapping):
        return {key: take(column, positions) for key, column in data.items()}
    if isinstance(positions, np.integer):
        return data[int(positions)]
    if isinstance(data, list):
        return [data[i] for i in positions]
    from torch.utils.data import Subset

    return Subset(data, positions.tolist())
