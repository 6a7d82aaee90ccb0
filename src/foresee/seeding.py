"""Randomness without state: a generator is a function of who asks for it."""

import zlib

import numpy as np

from foresee.errors import InputError


def generator(seed: int, *context: int | str) -> np.random.Generator:
    """Derive an independent generator from a seed and its context, such as (round, purpose).

    >>> a, b = generator(0, 3, "masks"), generator(0, 3, "masks")
    >>> bool(a.random() == b.random())
    True
    >>> bool(generator(0, 3, "split").random() == generator(0, 3, "masks").random())
    False
    """
    check_number(seed)
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in context]
    return np.random.default_rng([seed, *words])


def check(rng: np.random.Generator) -> None:
    """Check that a generator came, not a seed."""
    if not isinstance(rng, np.random.Generator):
        raise InputError(
            f"rng must be a numpy.random.Generator, got {rng!r}: pass numpy.random.default_rng(0)"
        )


def check_number(seed: int) -> None:
    """Check that a seed came, and one that any generator takes: None would be another each time."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number, at least 0, got {seed!r}: 0 is usual")


def number(rng: np.random.Generator) -> int:
    """Draw a seed for what takes no generator, such as torch."""
    return int(rng.integers(2**31))
