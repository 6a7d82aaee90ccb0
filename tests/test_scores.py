"""Scores and their kernels against the float64 specification, identities and hard cases."""

import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import foresee
from foresee import bald, checks, decompose, eer, entropy, entropy_mc, margin, mebl, mell, mezl
from foresee.errors import InputError
from foresee.kernels import elementwise, reference, tiled
from foresee.testing import check_score, random_draws

RISKS = {
    mell: reference.log_risk,
    mezl: reference.zero_one_risk,
    mebl: reference.brier_risk,
}


def any_loss(pool, val, **options):
    """A loss matrix without symmetry and with an action to abstain."""
    return eer(pool, val, loss=costs(pool.shape[2]), **options)


def costs(classes):
    matrix = np.random.default_rng(classes).uniform(0, 3, (classes, classes + 1))
    np.fill_diagonal(matrix, 0)
    matrix[:, -1] = 0.4
    return matrix


def pair(c, spread=1.0, n=300, m=20, t=50, dtype=np.float64):
    rng = np.random.default_rng(c)
    pool, val = random_draws(rng, n, t, c, spread), random_draws(rng, m, t, c, spread)
    return pool.astype(dtype), val.astype(dtype)


def overlap(one, other):
    """Shared fraction of the top 10 %."""
    k = len(one) // 10
    return len(set(np.argsort(-one)[:k]) & set(np.argsort(-other)[:k])) / k


@pytest.mark.parametrize("score", [mell, mezl, mebl, any_loss, bald, entropy_mc, margin])
def test_laws(score, backend):
    # The expected loss of a matrix and the entropy are differences of larger numbers.
    error = {any_loss: 1e-4, mezl: 3e-5}.get(score, 1e-5)
    check_score(score, class_symmetric=score is not any_loss, float32_error=error)


@pytest.mark.parametrize("c", [2, 3, 10, 31])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("score", RISKS)
def test_float64_is_the_specification(score, c, spread):
    pool, val = pair(c, spread)
    expected = reference.expected_loss_reduction(pool, val, RISKS[score])
    np.testing.assert_allclose(score(pool, val), expected, rtol=0, atol=2e-14)


@pytest.mark.parametrize(("c", "m"), [(2, 1500), (10, 300)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", RISKS)
def test_targets_of_several_blocks_count_alike(score, c, m, dtype, backend):
    pool, val = pair(c, 3.0, n=5, m=m, t=6, dtype=dtype)
    assert m * c > tiled._COLUMNS
    expected = reference.expected_loss_reduction(pool, val, RISKS[score])
    np.testing.assert_allclose(
        score(pool, val), expected, rtol=1e-4 if dtype == np.float32 else 1e-9
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_classes_out_of_many_are_not_two_of_one_label(dtype, backend):
    pool, val = (torch.from_numpy(x) for x in pair(4, 3.0, n=9, dtype=dtype))
    parts = [
        tiled.log_loss_reduction(
            pool[..., i : i + 2].contiguous(), val[..., j : j + 2], binary=False
        )
        for i in (0, 2)
        for j in (0, 2)
    ]
    torch.testing.assert_close(sum(parts), tiled.log_loss_reduction(pool, val))
    two = tiled.log_loss_reduction(*(x[..., :2] / x[..., :2].sum(2, True) for x in (pool, val)))
    assert not torch.allclose(parts[0], two, rtol=1e-2)


@pytest.mark.parametrize("weight", [None, [0.5, 0.2, 0.0, 0.3]])
def test_relative_deviations(weight):
    probs = torch.from_numpy(random_draws(np.random.default_rng(0), 5, 4, 3))
    probs[0, :, 0], probs[0, :, 1] = 0, probs[0, :, 0] + probs[0, :, 1]
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    found, mean = tiled.relative(probs, weight)
    shares = torch.full((4,), 0.25, dtype=torch.float64) if weight is None else weight
    expected = (probs * shares[:, None]).sum(1)
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(found[1:], (probs / expected[:, None] - 1)[1:])
    assert not found[0, :, 0].any()


def test_root_of_a_gram_matrix():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = rows.T @ rows  # of rank 3: rounding makes eigenvalues negative
    root = tiled.root(gram)
    torch.testing.assert_close(root @ root.T, gram)
    assert (root.norm(dim=0).diff() >= 0).all()
    assert root.isfinite().all()


@pytest.mark.parametrize("c", [2, 5])
def test_any_loss_matrix(c, backend):
    pool, val = pair(c, 3.0)
    expected = reference.expected_loss_reduction(pool, val, reference.matrix_risk(costs(c)))
    np.testing.assert_allclose(any_loss(pool, val), expected, atol=2e-14)
    single = any_loss(pool.astype(np.float32), val.astype(np.float32))
    np.testing.assert_allclose(single, expected, atol=1e-6)


def test_what_every_action_costs_takes_no_digits(backend):
    pool, val = pair(3, 3.0, dtype=np.float32)
    dear = costs(3) + np.array([[0], [2**27], [0]])
    np.testing.assert_allclose(eer(pool, val, loss=dear), any_loss(pool, val), atol=1e-7)


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 3e38), (np.float64, 1e308)])
def test_costs_that_overflow_are_refused(dtype, most):
    pool, val = pair(2, t=5, dtype=dtype)
    loss = 1 - np.eye(2)
    expected = eer(pool, val, loss=loss)
    np.testing.assert_allclose(eer(pool, val, loss=most / 6 * loss) / (most / 6), expected, 1e-4)
    with pytest.raises(InputError, match=f"loss has .* apart.* overflows .*{dtype.__name__}: low"):
        eer(pool, val, loss=most * loss)


@pytest.mark.parametrize("c", [2, 7])
def test_zero_one_matrix_gives_mezl(c):
    pool, val = pair(c, 3.0)
    np.testing.assert_allclose(eer(pool, val, loss=1 - np.eye(c)), mezl(pool, val), atol=1e-15)


@pytest.mark.parametrize("c", [2, 3, 10, 40])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 6.0])
def test_float32_mell_ranks_like_float64(c, spread, backend):
    pool, val = pair(c, spread, m=40, t=100)
    exact = mell(pool, val)
    got = mell(pool.astype(np.float32), val.astype(np.float32))
    assert got.dtype == np.float32
    assert got.min() >= 0
    assert np.abs(got - exact).max() <= 1e-5 * exact.std()
    assert overlap(got, exact) == 1.0


def test_the_spreads_above_reach_from_1e_8_to_half_a_nat():
    assert mell(*pair(10, 0.03, m=40, t=100)).mean() < 1e-8
    assert mell(*pair(40, 6.0, m=40, t=100)).mean() > 0.5


@pytest.mark.parametrize("score", [mell, mezl, mebl, any_loss, bald])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("c", [2, 4])
def test_exact_zeros_and_ones(score, dtype, c, backend):
    rng = np.random.default_rng(0)
    pool, val = (np.eye(c, dtype=dtype)[rng.integers(c, size=(n, 6))] for n in (20, 7))
    pool[0] = np.eye(c)[0]  # certain and unanimous: nothing to learn
    got = score(pool, val)
    assert np.isfinite(got).all()
    assert got[0] == 0
    assert got.min() >= 0
    if score in RISKS:
        expected = reference.expected_loss_reduction(pool, val, RISKS[score])
        np.testing.assert_allclose(got, expected, atol=1e-6 if dtype == np.float32 else 1e-14)


def test_probabilities_too_small_to_divide_by(backend):
    tiny = np.float32(1e-38)
    pool = np.array([[[tiny, 1], [0, 1]], [[0, 1], [0, 1]]], np.float32)
    for score in (mell, mezl, mebl, bald):
        assert score(pool, pool).max() <= 1e-30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_phi_to_full_relative_accuracy(dtype, backend):
    u = np.concatenate([-np.geomspace(1e-7, 1, 400), np.geomspace(1e-7, 1e3, 600)])
    u = torch.tensor(u, dtype=dtype)
    if backend == "compiled":
        if dtype == torch.float64:
            pytest.skip("the compiled loops are float32")
        got = np.zeros(len(u), np.float32)
        one = np.ones(1, np.float32)
        for k, value in enumerate(u.numpy()):
            tiled._compiled().information(value.reshape(1, 1), one, one[None], got[k : k + 1])
    else:
        got = elementwise.phi(u).numpy()
    x = u.double().numpy()
    series = sum((-1) ** k * x ** (k + 2) / ((k + 1) * (k + 2)) for k in range(30))
    closed = np.where(x > -1, (1 + x) * np.log1p(np.maximum(x, -1 + 1e-16)) - x, 1)
    exact = np.where(np.abs(x) < 0.1, series, closed)
    worst = np.abs(got / exact - 1).max()
    assert worst <= (2e-6 if dtype == torch.float32 else 1e-13)


@given(
    n=st.integers(1, 12),
    m=st.integers(1, 9),
    t=st.integers(2, 9),
    c=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    scratch=st.sampled_from([1, 1 << 12, 1 << 28]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_shape(n, m, t, c, seed, spread, scratch, dtype):
    rng = np.random.default_rng(seed)
    pool, val = (random_draws(rng, k, t, c, spread, seed).astype(dtype) for k in (n, m))
    precise = (x.astype(np.float64) for x in (pool, val))
    precise = [x / x.sum(-1, keepdims=True) for x in precise]
    for score, risk in RISKS.items():
        got = score(pool, val, scratch=scratch)
        assert got.shape == (n,)
        assert got.min() >= 0
        expected = reference.expected_loss_reduction(*precise, risk)
        np.testing.assert_allclose(got, expected, atol=2e-6 if dtype == np.float32 else 1e-13)


def test_bald_and_decomposition(backend):
    for dtype, error in ((np.float64, 1e-14), (np.float32, 2e-6)):
        pool, val = pair(4, 2.0, dtype=dtype)
        parts = decompose(pool, val)
        np.testing.assert_allclose(parts.epistemic, reference.bald(pool), atol=error)
        irrelevant = reference.irrelevant_information(pool, val)
        np.testing.assert_allclose(parts.irrelevant, irrelevant, atol=error)
        np.testing.assert_allclose(parts.epistemic + parts.aleatoric, parts.total, atol=error)
        np.testing.assert_allclose(parts.relevant + parts.irrelevant, parts.epistemic, atol=error)
        aleatoric = reference.log_risk(pool.astype(np.float64)).mean(1)
        np.testing.assert_allclose(parts.aleatoric, aleatoric, atol=error)


def test_no_part_of_the_decomposition_is_negative(backend):
    # The target tells the draw, which decides the labels of the first half: parts are zero.
    rng = np.random.default_rng(0)
    certain = np.eye(11, dtype=np.float32)[rng.integers(11, size=(300, 11))]
    almost = rng.dirichlet(np.full(11, 0.1), (300, 11)).astype(np.float32)
    pool = np.concatenate([certain, almost])
    parts = decompose(pool, np.eye(11, dtype=np.float32)[None])
    for part, rounded in (
        (parts.aleatoric, parts.total - parts.epistemic),
        (parts.irrelevant, parts.epistemic - parts.relevant),
    ):
        assert rounded.min() < 0
        assert part.min() == 0
        assert part[:300].max() < 1e-5


def test_bald_of_a_confident_model_keeps_its_digits(backend):
    pool, _ = pair(10, 0.003, t=100)
    exact = reference.bald(pool)
    got = bald(pool.astype(np.float32))
    assert exact.mean() < 1e-5
    assert overlap(got, exact) == 1.0


def test_entropies():
    point = np.array([[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(entropy(point), [np.log(2), 0])
    pool = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_allclose(entropy_mc(pool), [np.log(2)])


@pytest.mark.parametrize("c", [2, 3, 10])
def test_margin_is_between_the_two_likeliest_of_the_mean_over_draws(c):
    pool, _ = pair(c, 3.0)
    ordered = np.sort(pool.mean(1), axis=1)
    np.testing.assert_allclose(margin(pool), 1 - ordered[:, -1] + ordered[:, -2], rtol=1e-12)
    sure = np.array([[[1 - 1e-9, 1e-9, 0.0]] * 2], np.float32)
    assert margin(sure)[0] == pytest.approx(2e-9)


def test_mezl_is_exactly_zero_where_no_prediction_can_change(backend):
    # The paper's failure mode: confident targets, an informative label, no change of mind.
    pool = np.array([[[0.99, 0.01], [0.01, 0.99]]], np.float32)
    val = np.array([[[0.99, 0.01], [0.7, 0.3]]], np.float32)
    assert mezl(pool, val)[0] == 0
    assert mell(pool, val)[0] > 0.01
    assert mebl(pool, val)[0] > 0.01


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_probabilities_are_accepted(dtype, error):
    pool, val = (torch.tensor(x) for x in pair(5, 2.0))
    exact = mell(pool, val)
    got = mell(pool.to(dtype), val.to(dtype))
    assert got.dtype == torch.float32
    assert (got - exact).abs().max() <= error * exact.std()


def test_tensors_with_gradients_and_odd_strides():
    pool, val = pair(3)
    expected = mell(pool, val)
    tensor = torch.tensor(pool.transpose(2, 0, 1).copy()).permute(1, 2, 0).requires_grad_()
    np.testing.assert_allclose(mell(tensor, torch.tensor(val)).numpy(), expected, atol=1e-15)
    np.testing.assert_allclose(mell(pool[::-1], val)[::-1], expected, atol=1e-15)
    swapped = pool.astype(pool.dtype.newbyteorder())
    np.testing.assert_allclose(mell(swapped, val), expected, atol=1e-15)
    np.testing.assert_allclose(mell(pool.astype(np.longdouble), val), expected, atol=1e-15)
    frozen = pool.view()
    frozen.flags.writeable = False
    np.testing.assert_allclose(mell(frozen, val), expected, atol=1e-15)
    np.testing.assert_allclose(mell(pool.tolist(), val.tolist()), expected, atol=1e-15)
    np.testing.assert_allclose(mell(list(pool), val), expected, atol=1e-15)
    np.testing.assert_allclose(decompose(pool.tolist(), val).relevant, expected, atol=1e-15)
    np.testing.assert_array_equal(entropy(pool[:, 0].tolist()), entropy(pool[:, 0]))
    mixed = mell(pool.astype(np.float32), val)
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(mixed, expected, atol=1e-6)


def test_same_bits_every_time(backend):
    pool, val = pair(10, n=2000, dtype=np.float32)
    for score in (mell, mezl, mebl, bald):
        assert np.array_equal(score(pool, val), score(pool, val))


@pytest.fixture
def reduced_precision():
    """A caller who asks for less precision, and two cores."""
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    tf32 = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(2)
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.set_num_threads(before[1])
    torch.backends.cudnn.allow_tf32 = tf32


def settings():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return *precision, torch.get_num_threads(), *seen


def test_callers_torch_settings_are_kept(reduced_precision):
    pool, val = pair(10, dtype=np.float32)
    torch.set_float32_matmul_precision("highest")
    expected = mell(pool, val)
    torch.set_float32_matmul_precision("medium")
    assert np.array_equal(mell(pool, val), expected)
    assert settings() == ("medium", True, 2, 2)
    with tiled.full_precision():
        assert settings() == ("highest", False, 2, 2)
    with pytest.raises(ZeroDivisionError), tiled.full_precision():
        1 / 0  # noqa: B018
    assert settings() == ("medium", True, 2, 2)


@pytest.mark.parametrize("score", [mell, mezl, mebl, any_loss])
def test_autocast_takes_no_digits(score, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # others have no autocast
    pool, val = pair(3, dtype=np.float32)
    expected = score(pool, val)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(score(pool, val), expected)
        assert torch.is_autocast_enabled("cpu")


def test_without_a_folder_for_compiled_kernels_torch_scores(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    monkeypatch.delitem(sys.modules, "foresee.kernels.compiled", raising=False)
    monkeypatch.delattr("foresee.kernels.compiled", raising=False)
    with pytest.warns(UserWarning, match="scores run slower.*set NUMBA_CACHE_DIR"):
        assert tiled._compiled.__wrapped__() is None


def test_a_choice_made_in_the_meantime_is_kept(reduced_precision):
    with tiled.full_precision():
        torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"


def test_threads_score_at_once(reduced_precision):
    pool, val = pair(5, n=2000, m=40, t=20, dtype=np.float32)
    jobs = [
        lambda: mell(pool, val),
        lambda: mezl(pool, val),
        lambda: mebl(pool, val),
        lambda: bald(pool),
        lambda: any_loss(pool, val),
        lambda: decompose(pool[:100], val).irrelevant,
    ]
    expected = [job() for job in jobs]
    for _ in range(3):
        wrong = []

        def work(k, wrong=wrong):
            for i in range(8):
                j = (k + i) % len(jobs)
                if not np.array_equal(jobs[j](), expected[j]):
                    wrong.append(j)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert settings() == ("medium", True, 2, 2)


def test_threads_are_kept_and_use_one_core_each(reduced_precision):
    pool = tiled.one_core_each(2)
    assert pool is tiled.one_core_each(2)
    assert {pool.submit(torch.get_num_threads).result() for _ in range(20)} == {1}
    assert settings() == ("medium", True, 2, 2)


def test_an_error_on_a_thread_reaches_the_caller_and_stops_the_others(reduced_precision):
    done = []

    def work(item):
        done.append(item)
        if item == 3:
            raise ZeroDivisionError
        time.sleep(0.001)

    with pytest.raises(ZeroDivisionError):
        tiled._on_threads(work, range(5000), 2)
    assert len(done) < 5000
    assert tiled._on_threads(lambda x: 2 * x, range(50), 2) == list(range(0, 100, 2))
    assert settings() == ("medium", True, 2, 2)


SCRIPT = """
import numpy as np, os, sys, torch
from foresee import mell
from foresee.kernels import tiled
from foresee.testing import random_draws
torch.set_num_threads(2)
rng = np.random.default_rng(0)
pool, val = (random_draws(rng, n, 8, 3).astype(np.float32) for n in (50, 9))
expected = mell(pool, val)
"""


@pytest.mark.parametrize(
    "code",
    [
        # A child has none of its parent's threads.
        "child = os.fork()\n"
        "if not child: os._exit(0 if np.array_equal(mell(pool, val), expected) else 3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        # Switches that the older ones cannot read.
        "torch.backends.fp32_precision = 'tf32'\n"
        "with tiled.full_precision(): inside = torch.backends.cuda.matmul.fp32_precision\n"
        "same = np.array_equal(mell(pool, val), expected)\n"
        "after = torch.backends.cuda.matmul.fp32_precision\n"
        "sys.exit(0 if (same, inside, after) == (True, 'ieee', 'tf32') else 3)",
    ],
)
def test_in_a_process_of_its_own(code):
    if "fp32_precision" in code and not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("older torch has one kind of switch")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + code], check=False, timeout=120
    )
    assert done.returncode == 0


def test_memory_does_not_grow_with_the_pool():
    pool, val = pair(10, n=1, m=100, t=100, dtype=np.float32)
    small = np.broadcast_to(pool, (2000, *pool.shape[1:]))
    huge = np.broadcast_to(pool, (150_000, *pool.shape[1:]))  # 600 MB, were it copied whole
    for score in (mell, mezl, mebl, bald, entropy_mc):
        score(small, val)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for score in (mebl, bald, entropy_mc):
        score(huge, val)
    mell(huge, val[:5])
    swapped = huge[:1].astype(">f4")
    bald(np.broadcast_to(swapped, huge.shape))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize("score", [mell, mezl, mebl, any_loss, bald, entropy_mc, margin, decompose])
def test_scratch_is_shared_out(score, monkeypatch):
    """A half for the kernel, a quarter for what must be copied; what need not be is not."""
    pool, val = pair(3, n=60, m=5, t=10)
    kernels, chunks = [], []
    tiles, check = tiled._Tiles.__init__, checks.rows_sum_to_one

    def record_kernel(self, pool, val, scratch):
        kernels.append(scratch)
        tiles(self, pool, val, scratch)

    def record_chunk(name, probs, offset=0):
        if name == "pool":
            chunks.append(probs.nbytes)
        check(name, probs, offset)

    monkeypatch.setattr(tiled._Tiles, "__init__", record_kernel)
    monkeypatch.setattr(checks, "rows_sum_to_one", record_chunk)
    scratch = 20_000
    score(pool, val, scratch=scratch)
    assert set(chunks) == {pool.nbytes}
    for other in (pool.astype(">f8"), pool.astype(np.longdouble), pool.transpose(0, 2, 1).copy()):
        chunks.clear()
        view = other if other.shape == pool.shape else other.transpose(0, 2, 1)
        score(view, val, scratch=scratch)
        assert max(chunks) <= scratch // 4
        assert max(chunks) > scratch // 5
    assert set(kernels) <= {scratch // 2}
    chunks.clear()
    score(pool[:5].astype(">f8"), val, scratch=1)
    assert set(chunks) == {pool[:1].nbytes}


def test_importing_foresee_loads_neither_torch_nor_numba():
    code = "import sys, foresee; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names():
    for name in foresee.__all__:
        assert getattr(foresee, name) is not None
    assert {"mell", "mezl", "mebl", "eer", "bald", "entropy_mc", "entropy"} <= set(dir(foresee))
    with pytest.raises(AttributeError, match="no attribute 'mel'"):
        foresee.mel  # noqa: B018


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("score", [mell, mezl, mebl, any_loss, bald])
@pytest.mark.parametrize("c", [2, 10])
def test_cuda_agrees_with_the_cpu(score, c):
    pool, val = (torch.tensor(x) for x in pair(c))
    got = score(pool.cuda(), val.cuda())
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), score(pool, val), rtol=0, atol=1e-13)
    single = score(pool.float().cuda(), val.float().cuda())  # products of float16 factors
    assert (single.cpu() - score(pool, val)).abs().max() <= 3e-3 * score(pool, val).std()
