"""A data set in memory, or mapped from a file."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError


@dataclass(frozen=True, eq=False)
class Images:
    """All images of a data set, for methods and trials to share: `task` hands out copies.

    Args:
        name: of the data set, in lower case.
        pixels: uint8 [n channels height width]; a mapped file is private, see `open_array`.
        labels: int64 [n], positions in ``classes``.
        classes: the names of the classes.
        source: bool [n], the rows of the source domain where the set's own metadata tells domains
            apart; without it the source of a shift are the darkest images.
        domains: the domain of each row [n], where they are told apart.

    >>> Images("toy", np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 1]), ("cat", "dog")).classes
    ('cat', 'dog')
    """

    name: str
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    source: NDArray[np.bool_] | None = None
    domains: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or len(self.pixels) != n:
            raise InputError(
                f"pixels must be bytes (uint8) [n channels height width] with n = {n}, one image "
                f"for each label, got {self.pixels.dtype} {list(self.pixels.shape)}"
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise InputError(
                f"labels must be int64 [n], got {self.labels.dtype} {list(self.labels.shape)}"
            )
        if n and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise InputError(
                f"labels of {self.name} must lie from 0 to {len(self.classes) - 1}, one for each "
                f"class, got {self.labels.min()} to {self.labels.max()}: the files are damaged or "
                "of another data set"
            )
        if self.source is not None and (
            self.source.dtype != np.bool_ or self.source.shape != self.labels.shape
        ):
            raise InputError(
                f"source must be booleans [n] with n = {n}, got {self.source.dtype} "
                f"{list(self.source.shape)}"
            )
        if self.domains is not None and self.domains.shape != self.labels.shape:
            raise InputError(
                f"domains must be names [n] with n = {n}, got {list(self.domains.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)
