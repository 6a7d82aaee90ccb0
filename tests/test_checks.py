"""Bad input: one clear error that names the argument and the remedy."""

import numpy as np
import pytest
import torch

from foresee import InputError, bald, eer, entropy, mebl, mell, mezl
from foresee.testing import random_draws

RNG = np.random.default_rng(0)
POOL, VAL = random_draws(RNG, 6, 4, 3), random_draws(RNG, 5, 4, 3)
LOGITS = RNG.standard_normal((6, 4, 3)) * 3


def broken(position, row):
    pool = POOL.copy()
    pool[position] = row
    return pool


CASES = {
    "nothing": (None, VAL, "pool must hold probabilities as floats, got NoneType"),
    "ragged": ([[[0.5, 0.5]], [[1.0]]], VAL, "pool must be an array, got list: .*inhomogeneous"),
    "words": ([["a"]], VAL, "pool must hold probabilities as floats, got <U1"),
    "complex": (POOL + 0j, VAL, "pool must hold probabilities as floats, got complex128"),
    "no draws": (POOL[:, 0], VAL, r"pool must have shape \[n t c\], got \[6, 3\].*several"),
    "rank 4": (POOL[None], VAL, r"pool must have shape \[n t c\], got \[1, 6, 4, 3\]"),
    "integers": (np.ones((6, 4, 3), int), VAL, "pool must hold probabilities as floats, got int64"),
    "objects": (POOL.astype(object), VAL, "pool must hold probabilities as floats, got ndarray"),
    "empty pool": (POOL[:0], VAL, "pool is empty: axis n"),
    "empty val": (POOL, VAL[:0], "val is empty: axis n"),
    "one draw": (POOL[:, :1], VAL[:, :1], r"pool has one draw \(t = 1\).*at least 2 draws"),
    "one class": (POOL[..., :1], VAL[..., :1], "pool has 1 class"),
    "other draws": (POOL, VAL[:, :3], r"share draws t: pool is \[6, 4, 3\], val is \[5, 3, 3\]"),
    "other classes": (POOL, VAL[..., :2], "share classes c"),
    "two kinds": (POOL, torch.tensor(VAL), "pool is a ndarray and val is a Tensor"),
    "NaN": (broken((4, 1, 2), np.nan), VAL, r"pool\[4, 1, 2\] is nan.*must be finite"),
    "infinity": (broken((4, 1, 2), np.inf), VAL, r"pool\[4, 1, 2\] is inf"),
    "negative": (broken((3, 2), [1.5, -0.5, 0]), VAL, r"pool\[3, 2, 1\] is -0.5.*never negative"),
    "sum": (broken((5, 3), [0.5, 0.3, 0.1]), VAL, r"pool\[5, 3\] sums to 0\.9, not to 1"),
    "bad val": (POOL, broken((2, 0), [0.5, 0.3, 0.1])[:5], r"val\[2, 0\] sums to 0\.9"),
    "logits": (LOGITS, VAL, "pool holds values from .* look like logits: apply softmax"),
    "log-probabilities": (np.log(POOL), VAL, r"pool holds log-probabilities: pass their exp\(\)"),
    "n c t": (
        POOL.transpose(0, 2, 1),
        random_draws(RNG, 5, 3, 4),
        r"pool looks like \[n c t\].*swap",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("score", [mell, mezl, mebl])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bad_probabilities(score, case, dtype, backend):
    pool, val, message = CASES[case]
    if dtype == np.float32:
        pool, val = (
            x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x
            for x in (pool, val)
        )
    with pytest.raises(InputError, match=message):
        score(pool, val)


def test_the_row_named_is_the_row_of_the_whole_pool():
    pool = np.repeat(POOL.astype(np.float32), 100, 0)
    pool[555, 1] = [0.5, 0.3, 0.1]
    with pytest.raises(InputError, match=r"pool\[555, 1\] sums to 0\.9"):
        mell(pool, VAL.astype(np.float32), scratch=1000)


@pytest.mark.parametrize("score", [bald, entropy])
def test_scores_of_the_pool_alone_check_it_too(score):
    with pytest.raises(InputError, match="look like logits"):
        score(LOGITS if score is bald else LOGITS[:, 0])


def test_entropy_takes_one_prediction_per_input():
    with pytest.raises(InputError, match=r"point must have shape \[n c\], got \[6, 4, 3\]"):
        entropy(POOL)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (np.eye(2), r"loss must have shape \[c a\] with c = 3 rows.*got \[2, 2\]"),
        (np.ones(3), r"got \[3\]"),
        (np.full((3, 3), np.nan), "loss must be finite"),
    ],
)
def test_bad_loss_matrix(loss, message):
    with pytest.raises(InputError, match=message):
        eer(POOL, VAL, loss=loss)


@pytest.mark.parametrize("scratch", [0, -1, 2.5, None])
def test_bad_scratch(scratch):
    with pytest.raises(InputError, match="scratch must be a whole number of bytes"):
        mell(POOL, VAL, scratch=scratch)


def test_rounding_of_the_sum_is_forgiven():
    mell((POOL * (1 + 5e-5)).astype(np.float32), VAL.astype(np.float32))
    with pytest.raises(InputError, match="sums to"):
        mell((POOL * (1 + 5e-4)).astype(np.float32), VAL.astype(np.float32))
