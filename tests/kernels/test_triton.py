"""The fused kernels: on the GPU where there is one, else the same code in Triton's interpreter."""

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
triton = pytest.importorskip("triton")
assert CUDA or type(triton.language.sum).__name__ != "JITFunction", "triton runs no interpreter"

from foresee.kernels import reference, triton as kernels  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
on_device = pytest.mark.skipif(not CUDA, reason="no GPU")
pytestmark = [
    # NumPy, which the interpreter runs on, speaks of lanes that are masked out.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*not have a deterministic implementation:UserWarning"),
]


@pytest.fixture(autouse=True)
def _poison():
    """Memory that nothing was written to holds NaN."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draws(n, t, c, noise=1.5, dtype=torch.float32, device=DEVICE):
    x = noise * torch.randn(n, t, c, device=device) + 2 * torch.randn(n, 1, c, device=device)
    return x.softmax(2).to(dtype)


# --- the formulas in float64, straight from `tiled`'s docstring -------------------------------


def rows(probs):
    """A = P/p̄ − 1 [n c t] and p̄ [n c]."""
    probs = probs.double()
    mean = probs.mean(1)
    relative = torch.where(mean[:, None] > 0, probs / mean[:, None].clamp_min(1e-300) - 1, 0)
    return relative.transpose(1, 2), mean


def phi(u):
    s = (1 + u).clamp_min(0)
    series = u * u * (1 / 2 - u / 6 + u**2 / 12 - u**3 / 20 + u**4 / 30)
    return torch.where(u.abs() < 1e-3, series, torch.special.xlogy(s, s) - u)


def mell(pool, val):
    (a, p), (b, q) = rows(pool), rows(val)
    u = torch.einsum("nct,mdt->ncmd", a, b) / pool.shape[1]
    return torch.einsum("ncmd,nc,md->n", phi(u), p, q) / len(val)


def mebl(pool, val):
    (a, p), (b, q) = rows(pool), rows(val)
    u = torch.einsum("nct,mdt->ncmd", a, b) / pool.shape[1]
    return torch.einsum("ncmd,nc,md->n", u**2, p, q**2) / len(val)


def cheapest(pool, cost):
    (a, p), cost = rows(pool), cost.double()
    best = cost.mean(1).argmin(1)[:, None, None].expand(-1, cost.shape[1], 1)
    saved = cost.gather(2, best) - cost
    u = torch.einsum("nct,mta->ncma", a, saved - saved.mean(1, keepdim=True)) / pool.shape[1]
    return torch.einsum("ncm,nc->n", (u + saved.mean(1)).amax(3).clamp_min(0), p) / len(cost)


def bald(pool, _):
    a, p = rows(pool)
    return torch.einsum("nct,nc->n", phi(a), p) / pool.shape[1]


SCORES = {
    "mell": (kernels.log_loss_reduction, mell),
    "mebl": (kernels.brier_reduction, mebl),
    "mezl": (lambda pool, val: kernels.matrix_loss_reduction(pool, 1 - val.float()), None),
    "cost": (lambda pool, val: kernels.matrix_loss_reduction(pool, costs(val)), None),
    "bald": (lambda pool, _: kernels.parameter_information(pool), bald),
}


def costs(val):
    """An asymmetric loss with an action to abstain, in units far from one."""
    c = val.shape[2]
    loss = torch.rand(c, c + 1, generator=torch.Generator().manual_seed(c)).to(val.device)
    loss[:, -1] = 0.2
    return val.float() @ (1e4 * loss)


def exact(name, pool, val):
    if name == "mezl":
        return cheapest(pool, 1 - val.float())
    if name == "cost":
        return cheapest(pool, costs(val))
    return SCORES[name][1](pool, val)


def check(name, pool, val, error=2e-3):
    got, want = SCORES[name][0](pool, val), exact(name, pool, val)
    assert got.shape == want.shape
    assert got.dtype == torch.float32
    assert (got >= 0).all()
    # A saving is a difference of costs, and has their error.
    cost = {"mezl": 1.0, "cost": 1e4}.get(name, 0.0)
    assert ((got - want).abs() <= error * want.clamp_min(want.mean()) + 3e-5 * cost).all()


def test_the_formulas_are_the_specification():
    pool, val = (draws(n, 20, 4).double().cpu() for n in (5, 3))
    pool, val = (x / x.sum(2, keepdim=True) for x in (pool, val))
    for ours, risk in (
        (mell, reference.log_risk),
        (mebl, reference.brier_risk),
        (lambda p, v: cheapest(p, 1 - v), reference.zero_one_risk),
    ):
        want = reference.expected_loss_reduction(pool.numpy(), val.numpy(), risk)
        torch.testing.assert_close(ours(pool, val), torch.from_numpy(want), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("n", "m", "t", "c"),
    [
        (7, 5, 2, 2),
        (1, 1, 3, 2),
        (13, 7, 17, 3),
        (9, 4, 100, 10),
        (5, 3, 100, 33),
        (3, 3, 257, 3),
        (67, 2, 128, 2),
        *(
            pytest.param(*shape, marks=on_device)
            for shape in [
                (1001, 37, 100, 10),
                (301, 13, 100, 62),
                (99, 7, 100, 182),
                (333, 11, 129, 10),
                (250, 9, 1000, 10),
                (41, 5, 4000, 7),
                (11, 3, 50, 1000),
                (5, 2, 1999, 333),
            ]
        ),
    ],
)
@pytest.mark.parametrize("name", SCORES)
def test_shapes(name, n, m, t, c):
    check(name, draws(n, t, c), draws(m, t, c))


@pytest.mark.parametrize(("n", "m", "t", "c"), [(60, 20, 3, 2), (70, 11, 100, 2), (50, 9, 128, 7)])
def test_few_columns_have_the_digits_of_float32(monkeypatch, n, m, t, c):
    pool, val = draws(n, t, c), draws(m, t, c)
    cost = val @ (1 + torch.rand(c, c + 1, device=DEVICE)).fill_diagonal_(0)
    want = cheapest(pool, cost)

    def error(few):
        monkeypatch.setattr(kernels, "_FEW_COLUMNS", few)
        return float((kernels.matrix_loss_reduction(pool, cost) - want).abs().max())

    columns = m * (c + 1)
    assert error(columns) < error(columns - 1) / 10 < 1e-5


@pytest.mark.parametrize("name", ["mell", "mezl", "cost"])
@pytest.mark.parametrize(("n", "m", "t", "c"), [(13, 7, 17, 3), (9, 4, 100, 10), (67, 2, 128, 2)])
def test_rows_that_are_prepared_give_the_same(monkeypatch, name, n, m, t, c):
    pool, val = draws(n, t, c), draws(m, t, c)
    made = SCORES[name][0](pool, val)
    monkeypatch.setattr(kernels, "_FEW_COLUMNS", 0)
    check(name, pool, val)
    if name == "mell":
        torch.testing.assert_close(SCORES[name][0](pool, val), made, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SCORES)
def test_half_precision_inputs(name, dtype):
    check(name, draws(6, 20, 5, dtype=dtype), draws(4, 20, 5, dtype=dtype))


def strided(probs, how):
    n, t, c = probs.shape
    if how == "draws first":
        return probs.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "classes first":
        return probs.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if how == "every other":
        return probs.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2]
    space = torch.full((n * t * c + 1,), torch.nan, device=probs.device)
    space[1:] = probs.reshape(-1)
    return space[1:].view(n, t, c)  # unaligned: four bytes into an allocation


@pytest.mark.parametrize("how", ["draws first", "classes first", "every other", "unaligned"])
@pytest.mark.parametrize("name", SCORES)
def test_any_strides_give_the_same_bits(name, how):
    pool, val = draws(5, 18, 7), draws(3, 18, 7)
    score = SCORES[name][0]
    torch.testing.assert_close(
        score(strided(pool, how), strided(val, how)), score(pool, val), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("name", SCORES)
def test_certain_draws_and_classes_that_never_occur(name):
    sure = torch.eye(4, device=DEVICE)[torch.randint(3, (9, 16), device=DEVICE)]
    sure[0] = sure[0, 0]
    # Near 1 + u = 0 the entropy is steep: one entry is off by a rounding error times its logarithm.
    check(name, sure[:6], sure[6:], error=5e-3)
    check(name, sure[:6], draws(3, 16, 4), error=5e-3)
    check(name, draws(6, 16, 4), sure[6:], error=5e-3)


@pytest.mark.parametrize("name", SCORES)
def test_draws_that_agree_score_exactly_zero(name):
    pool, val = draws(6, 50, 5), draws(3, 50, 5)
    pool[::2] = pool[::2, :1]
    scores = SCORES[name][0](pool, val)
    assert (scores[::2] == 0).all()
    if name != "bald":
        assert (SCORES[name][0](pool, val[:, :1].expand(-1, 50, -1)) == 0).all()


@pytest.mark.parametrize("noise", [1e-3, 0.03, 0.3])
@pytest.mark.parametrize("twice", [False, True])
def test_small_scores_keep_their_digits(monkeypatch, noise, twice):
    monkeypatch.setattr(kernels, "_FEW_ENTRIES", 0 if twice else 1 << 60)
    pool, val = draws(12, 60, 4, noise=noise), draws(5, 60, 4, noise=noise)
    pool[3] = pool[3, 0]
    pool[5] = draws(1, 60, 4)
    got, want = kernels.log_loss_reduction(pool, val), mell(pool, val)
    assert got[3] == 0
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", ["mell", "mebl", "mezl"])
def test_less_scratch_gives_the_same_bits(monkeypatch, name):
    monkeypatch.setattr(kernels, "_FEW_COLUMNS", 0)
    pool, val = draws(9, 30, 5), draws(4, 30, 5)
    score = SCORES[name][0] if name != "mezl" else kernels.matrix_loss_reduction
    torch.testing.assert_close(score(pool, val, 2000), score(pool, val), rtol=1e-6, atol=0)


def test_nothing_to_score():
    for score, _ in SCORES.values():
        assert score(draws(0, 10, 3), draws(2, 10, 3)).shape == (0,)


@on_device
@pytest.mark.parametrize("name", SCORES)
def test_more_numbers_than_32_bits_count(name):
    val = draws(2, 100, 1000, dtype=torch.float16)
    pool = torch.empty(22_000, 100, 1000, dtype=torch.float16, device=DEVICE)
    assert pool.numel() > 1 << 31
    for part in pool.split(2000):
        part.copy_(draws(len(part), 100, 1000, dtype=torch.float16))
    score = SCORES[name][0]
    last = score(pool, val)[-7:]
    torch.testing.assert_close(last, score(pool[-7:].clone(), val), rtol=2e-4, atol=0)


@on_device
def test_ranks_like_float64():
    pool, val = draws(5000, 100, 20, noise=0.7), draws(100, 100, 20, noise=0.7)
    got = kernels.log_loss_reduction(pool, val).double()
    want = torch.cat([mell(part, val) for part in pool.split(500)])
    assert (got - want).abs().max() <= 2e-3 * want.std()
    assert (got - want).square().mean().sqrt() <= 5e-4 * want.std()
    top = [set(x.topk(500).indices.tolist()) for x in (got, want)]
    assert len(top[0] & top[1]) >= 499
