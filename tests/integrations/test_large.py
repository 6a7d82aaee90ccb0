"""Pools and targets of any size: what is asked for is read, and no more is held in memory."""

import sys

import pytest

import large


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits differ elsewhere")
@pytest.mark.parametrize(
    "kinds",
    [("numbers.npy", "stored.npz", "packed.npz"), ("numbers.csv", "texts.csv")],
)
def test_pools_larger_than_the_memory_allowed(kinds, tmp_path):
    large.check(kinds, tmp_path)
