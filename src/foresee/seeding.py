"""Randomness without state: a generator is a function of who asks for it."""

import zlib

import numpy as np


def generator(seed: int, *context: int | str) -> np.random.Generator:
    """Derive an independent generator from a seed and its context, such as (round, purpose).

    >>> a, b = generator(0, 3, "masks"), generator(0, 3, "masks")
    >>> bool(a.random() == b.random())
    True
    >>> bool(generator(0, 3, "split").random() == generator(0, 3, "masks").random())
    False
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in context]
    return np.random.default_rng([seed, *words])
