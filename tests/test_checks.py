"""Bad input: one clear error that names the argument and the remedy."""

import numpy as np
import pytest
import torch

from foresee import InputError, bald, checks, eer, entropy, mebl, mell, mezl
from foresee.testing import check_score, check_strategy, random_draws

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
    "rank 4": (POOL[None], VAL, r"pool must have shape \[n t c\], got \[1, 6, 4, 3\]$"),
    "integers": (np.ones((6, 4, 3), int), VAL, "pool must hold probabilities as floats, got int64"),
    "whole tensor": (torch.ones(6, 4, 3, dtype=torch.int64), VAL, "as floats, got torch.int64"),
    "objects": (POOL.astype(object), VAL, "pool must hold probabilities as floats, got ndarray"),
    "empty pool": (POOL[:0], VAL, "pool is empty: axis n"),
    "empty val": (POOL, VAL[:0], "val is empty: axis n"),
    "one draw": (POOL[:, :1], VAL[:, :1], r"pool has one draw \(t = 1\).*at least 2 draws"),
    "one class": (POOL[..., :1], VAL[..., :1], "pool has 1 class"),
    "other draws": (POOL, VAL[:, :3], r"share draws t: pool is \[6, 4, 3\], val is \[5, 3, 3\]"),
    "other classes": (POOL, VAL[..., :2], "share classes c"),
    "two kinds": (POOL, torch.tensor(VAL), "pool is a ndarray and val is a Tensor"),
    "kinds two": (torch.tensor(POOL), VAL, "pool is a Tensor and val is a ndarray"),
    "two devices": (torch.tensor(POOL), torch.ones(5, 4, 3, device="meta"), "val.to.pool.device"),
    "NaN": (broken((4, 1, 2), np.nan), VAL, r"pool\[4, 1, 2\] is nan.*must be finite"),
    "infinity": (broken((4, 1, 2), np.inf), VAL, r"pool\[4, 1, 2\] is inf"),
    "negative": (broken((3, 2), [1.5, -0.5, 0]), VAL, r"pool\[3, 2, 1\] is -0.5.*never negative"),
    "sum": (broken((5, 3), [0.5, 0.3, 0.1]), VAL, r"pool\[5, 3\] sums to 0\.9, not to 1"),
    "bad val": (POOL, broken((2, 0), [0.5, 0.3, 0.1])[:5], r"val\[2, 0\] sums to 0\.9"),
    "logits": (LOGITS, VAL, "pool holds values from .* look like logits: apply softmax"),
    "negative logits": (-abs(LOGITS) - 3, VAL, "look like logits: apply softmax"),
    "one logit": (broken((2, 1), [1.5, 0.2, 0.1]), VAL, "look like logits: apply softmax"),
    "low logits": (broken((2, 1), [0.5, -0.5, 0.2]), VAL, "look like logits: apply softmax"),
    "sum with a zero": (broken((2, 1), [0.7, 0, 0.2]), VAL, r"pool\[2, 1\] sums to 0\.9, not to 1"),
    "sum with a one": (broken((2, 1), [1, 0, 0.2]), VAL, r"pool\[2, 1\] sums to 1\.2, not to 1"),
    "certain log-probabilities": (
        np.full_like(POOL, -99) * [0, 1, 1],
        VAL,
        "pool holds log-probabilities",
    ),
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f8", np.longdouble])
@pytest.mark.parametrize("scratch", [1000, 1 << 20])
def test_the_row_named_is_the_row_of_the_whole_pool(dtype, scratch):
    pool = np.repeat(POOL.astype(dtype), 100, 0)
    pool[555, 1] = [0.5, 0.25, 0.125]
    with pytest.raises(InputError, match=r"pool\[555, 1\] sums to 0\.875"):
        mell(pool, VAL, scratch=scratch)


@pytest.mark.parametrize("looked_at", [1, 12, 100])
def test_rows_are_looked_at_a_part_at_a_time_however_large_one_is(monkeypatch, looked_at):
    monkeypatch.setattr(checks, "_LOOKED_AT", looked_at)
    pool = POOL.copy()
    pool[4, 1] = [0.5, 0.25, 0.125]
    with pytest.raises(InputError, match=r"pool\[14, 1\] sums to 0\.875"):
        checks.rows_sum_to_one("pool", torch.from_numpy(pool), 10)


@pytest.mark.parametrize("draws", [1, 2.5, "9", True, None])
def test_a_number_of_draws_is_whole_and_two_at_least(draws):
    with pytest.raises(InputError, match=f"draws must be a whole number, .* got {draws!r}"):
        checks.n_draws(draws)
    checks.n_draws(np.int64(2))


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
        (np.empty((3, 0)), r"got \[3, 0\]"),
        (None, "loss must be real numbers, got NoneType"),
        ([[0, 1], [1]], "loss must be an array, got list"),
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
    mell((POOL * (1 + 9e-5)).astype(np.float32), VAL.astype(np.float32))
    with pytest.raises(InputError, match="sums to"):
        mell((POOL * (1 + 1.5e-4)).astype(np.float32), VAL.astype(np.float32))
    halves = [torch.tensor([[0.5, other]] * 2, dtype=torch.bfloat16) for other in (0.508, 0.52)]
    entropy(halves[0])
    with pytest.raises(InputError, match="sums to"):
        entropy(halves[1])


def test_a_sum_at_the_edge_of_what_is_forgiven_is_named_too(backend):
    rows = RNG.dirichlet(np.ones(10), 300) * (1 + 1e-4 + RNG.uniform(-2e-7, 2e-7, (300, 1)))
    messages = []
    for row in rows.astype(np.float32):
        try:
            entropy(row[None])
        except InputError as error:
            messages.append(str(error))
    assert 30 < len(messages) < 270
    assert all(m.startswith("point[0] sums to 1.0001, not to 1") for m in messages)


def test_what_is_wrong_with_a_large_pool_is_told_in_little_memory():
    pool = np.full((150_000, 10, 10), 0.1, np.float32)  # 57 MiB
    pool[140_000, 3, 4] = np.nan
    tensor, doubled = torch.from_numpy(pool), []
    with pytest.MonkeyPatch.context() as patch:
        double = torch.Tensor.double
        patch.setattr(torch.Tensor, "double", lambda x: doubled.append(x.numel()) or double(x))
        with pytest.raises(InputError, match=r"pool\[140007, 3, 4\] is nan"):
            checks.rows_sum_to_one("pool", tensor, offset=7)
    assert max(doubled) <= pool.size // 3


@pytest.mark.parametrize("loss", [np.ones((3, 1)), [[2], [2], [2]], torch.ones(3, 1)])
def test_one_action_leaves_nothing_to_decide(loss):
    assert not eer(POOL, VAL, loss=loss).any()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0, 1, 1], r"each position once, got 1 of 3 again"),
        ([0, 1], r"3 positions \[3\], got shape \[2\]"),
        ([[0, 1, 2]], r"3 positions \[3\], got shape \[1, 3\]"),
        ([0, 1, -1], "positions from 0 to 5, got -1 to 1"),
        ([0, 1, 6], "positions from 0 to 5, got 0 to 6"),
        ([True, False, True], "whole numbers, got bool"),
        ([0.0, 1.0, 2.0], "whole numbers, got float64"),
        (None, "whole numbers, got object"),
    ],
)
def test_bad_picks_are_named(values, problem):
    with pytest.raises(InputError, match=f"strategy mine must return {problem}: mend the strategy"):
        checks.picks("mine", values, 3, 6)
    with pytest.raises(InputError, match="what strategy mine returns must be an array, got list"):
        checks.picks("mine", [[0], [1, 2]], 3, 6)


@pytest.mark.parametrize("kind", [list, np.uint8, np.array, torch.tensor])
def test_picks_are_positions_of_any_form(kind):
    found = checks.picks("mine", kind([5, 0, 3]), 3, 6)
    assert found.dtype == np.int64
    assert found.tolist() == [5, 0, 3]
    assert checks.picks("none", np.zeros(0, int), 0, 6).tolist() == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0, 2.0], r"one real number for each of the 3 points, got float64 \[2\]: reduce"),
        (np.ones((3, 1)), r"one real number for each of the 3 points, got float64 \[3, 1\]"),
        (np.ones(3) * 1j, r"one real number for each of the 3 points, got complex128 \[3\]"),
        (["a", "b", "c"], "one real number for each of the 3 points, got <U1"),
        ([True] * 3, "one real number for each of the 3 points, got bool"),
    ],
)
def test_bad_scores_are_named(values, problem):
    with pytest.raises(InputError, match=f"score mine must return {problem}"):
        checks.scores("mine", values, 3)


def test_scores_must_be_finite():
    with pytest.raises(InputError, match="score mine must be finite, got inf for 2 of 3 points"):
        checks.scores("mine", [0.0, np.inf, np.nan], 3)
    with pytest.raises(InputError, match="what score mine returns must be an array, got list"):
        checks.scores("mine", [[0], [1, 2], [3]], 3)
    for values in ([1, 2, 3], np.ones(3, np.float16), torch.ones(3, dtype=torch.bfloat16)):
        assert checks.scores("mine", values, 3).shape == (3,)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (0, "must be at least 1, got 0"),
        (8, "= 8 is more than the 7 points of the pool: ask for fewer"),
        (True, "must be a whole number, got True"),
        (2.0, r"must be a whole number, got 2\.0"),
    ],
)
def test_bad_counts(size, problem):
    with pytest.raises(InputError, match=f"k {problem}"):
        checks.count("k", size, 7, of="the pool")


@pytest.mark.parametrize("size", [1, 7, np.int32(7)])
def test_good_counts(size):
    checks.count("k", size, 7, of="the pool")


def nan_for_certain(pool, val):
    scores = mell(pool, val)
    return scores * np.nan if (pool == 1).any() else scores


@pytest.mark.parametrize(
    ("score", "law"),
    [
        (nan_for_certain, "finite on exact zeros and ones: score nan_for_certain must be finite"),
        (lambda pool, val: mell(pool, val) + 0j, "a finite real number: score .* got complex128"),
        (lambda pool, val: mell(pool, val) * np.nan, "a finite real number: .* must be finite"),
        (lambda pool, val: (mell(pool, val), val.sort(1))[0], "pool and val are left as they were"),
        (lambda pool, val: mell(pool, val).tolist(), "NumPy arrays give a NumPy array"),
    ],
)
def test_scores_that_are_no_numbers_break_a_law(score, law):
    with pytest.raises(AssertionError, match=f"broken law: .*{law}"):
        check_score(score)


def remembers_its_cap(pool, val, scratch=0):
    return mell(pool, val) + scratch


@pytest.mark.parametrize(
    ("score", "law"),
    [
        (lambda pool, val: mell(pool, val) + float(pool.max()), "depends on its own row only"),
        (lambda pool, val: mell(pool, val) + (len(pool) == 1), "chunk sizes do not matter"),
        (remembers_its_cap, "the cap on memory does not matter"),
        (lambda pool, val: mell(pool, val[:4]), "the order of targets does not matter"),
        (lambda pool, val: mell(pool, val) * pool.shape[1], "duplicated draws change nothing"),
        (lambda pool, val: mell(pool, val) + pool[..., 0].mean(1), "names of classes do not"),
        (lambda pool, val: mell(np.asarray(pool), np.asarray(val)), "tensors give a torch tensor"),
        (lambda pool, val: mell(pool, val) * isinstance(pool, np.ndarray), "and arrays agree"),
    ],
)
def test_scores_that_look_at_what_they_must_not_break_a_law(score, law):
    with pytest.raises(AssertionError, match=f"broken law: .*{law}"):
        check_score(score)


@pytest.mark.parametrize(
    ("strategy", "law"),
    [
        (lambda view, size, rng: np.arange(size) - 1, "strategy .* positions from 0 to 39, got -1"),
        (lambda view, size, rng: np.arange(size) + 1, "strategy .* positions from 0 to 39"),
        (lambda view, size, rng: np.arange(size + 1), "strategy .* 1 positions"),
    ],
)
def test_picks_that_are_no_positions_break_a_law(strategy, law):
    with pytest.raises(AssertionError, match=f"broken law: .*{law}"):
        check_strategy(strategy)
