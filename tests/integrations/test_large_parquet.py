"""Parquet files that are larger than the memory a learner is allowed."""

import sys

import pytest

import large

pytest.importorskip("pyarrow")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits differ elsewhere")
@pytest.mark.parametrize("kind", ["numbers.parquet", "texts.parquet"])
def test_pools_larger_than_the_memory_allowed(kind, tmp_path):
    large.check([kind], tmp_path)
