"""CIFAR-10 and CIFAR-100. Their files are pickles, and a pickle can run any code.

So nothing is unpickled but the published bytes, and nothing is built from them but arrays, lists,
dictionaries and strings.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from foresee.errors import InputError
from foresee.lab.data.dataset import Images
from foresee.lab.data.get import LIMIT, find

MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # its module has a new name in NumPy 2
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def cifar10(root: Path | None) -> Images:
    """CIFAR-10: 60 000 images of 32×32 pixels."""
    folder = find("cifar10", root, "cifar-10-batches-py", "batches.meta")
    batches = [f"data_batch_{i}" for i in range(1, 6)]
    return _joined("cifar10", folder, [*batches, "test_batch"], "labels", "batches.meta")


def cifar100(root: Path | None) -> Images:
    """CIFAR-100 with its 100 fine classes."""
    folder = find("cifar100", root, "cifar-100-python", "meta")
    return _joined("cifar100", folder, ["train", "test"], "fine_labels", "meta")


def _joined(name: str, folder: Path, batches: list[str], key: str, meta: str) -> Images:
    classes = _unpickle(folder / meta, key[:-1] + "_names")[0]
    parts = [_unpickle(folder / batch, "data", key) for batch in batches]
    try:
        pixels = np.concatenate([data.reshape(-1, 3, 32, 32) for data, _ in parts])
        labels = np.concatenate([np.array(labels, np.int64) for _, labels in parts])
        return Images(name, pixels, labels, tuple(classes))
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{folder} does not hold {name} ({error}): get it again") from error


def _unpickle(path: Path, *keys: str) -> list[Any]:
    if not path.is_file():
        raise InputError(f"there is no {path}: unpack the archive again")
    with open(path, "rb") as file:
        data = file.read(LIMIT)
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if md5 != MD5[path.name]:
        raise InputError(
            f"{path} must have the published md5 {MD5[path.name]}, got {md5}: it is damaged, or "
            "not the original, and unpickling it could run any code; get it again"
        )
    try:
        content = _Restricted(io.BytesIO(data), encoding="latin1").load()
        return [content[key] for key in keys]
    except Exception as error:
        raise InputError(
            f"{path} cannot be unpickled to {', '.join(keys)} ({error}): get it again"
        ) from error


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data needs")
        return _ALLOWED[module, name]
