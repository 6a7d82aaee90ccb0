"""Chains against exact answers: a Gaussian target, logistic regression by quadrature, plain SGD."""

import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from foresee.errors import InputError
from foresee.posteriors import sgmcmc
from foresee.posteriors.batching import map_batches
from foresee.posteriors.sgmcmc import cosine_step, cyclical_sgmcmc, sgld, sgld_step

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed=0):
    return np.random.default_rng(seed)


def blobs(n=60, d=4, c=3, seed=0):
    torch.manual_seed(seed)
    y = torch.arange(n) % c
    return torch.randn(n, d) + 2 * torch.eye(max(c, d))[y, :d], y


def network(d=4, c=3, seed=0):
    torch.manual_seed(seed)
    body = [nn.Linear(d, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*body, nn.Linear(8, c))


def short(sampler, model, x, y, seed=0, **options):
    if sampler is cyclical_sgmcmc:
        usual = {"cycles": 2, "per_cycle": 3, "iterations": 40, "explore": 0.5}
    else:
        usual = {"draws": 6, "burn_in": 10, "thin": 4}
    return sampler(model, x, y, rng=seeded(seed), **{"batch": 16, **usual, **options})


both = pytest.mark.parametrize("sampler", [sgld, cyclical_sgmcmc])


# The noise scale.


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("eps", [0.05, 0.4])
def test_steps_on_a_gaussian_target_have_its_exact_law(eps, temperature):
    """For U = ½ (θ−μ)ᵀΛ(θ−μ) the stationary law is N(μ, T Λ⁻¹ (I − εΛ/4)⁻¹), here to 4 errors."""
    precision = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    noise = torch.Generator().manual_seed(0)
    chains = torch.zeros(20_000, 2, dtype=torch.float64)
    for _ in range(math.ceil(16 / (eps * 0.5))):
        (chains,) = sgld_step([chains], [(chains - mean) @ precision], eps, temperature, noise)
    exact = temperature * torch.linalg.inv(precision - eps / 4 * precision @ precision)
    variances = exact.diagonal()
    error = ((exact**2 + torch.outer(variances, variances)) / len(chains)).sqrt()
    assert ((chains.T.cov() - exact).abs() < 4 * error).all()
    assert ((chains.mean(0) - mean).abs() < 4 * (variances / len(chains)).sqrt()).all()


def test_without_noise_the_chain_is_sgd_with_weight_decay():
    """``step`` is the learning rate on the mean loss and weight decay is prior precision / N."""
    x, y = blobs()
    model = nn.Linear(4, 3)
    chain = sgld(
        model, x, y, 5, 0, 1, len(x), 0.5, temperature=0, prior_precision=3.0, rng=seeded()
    )
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=3.0 / len(x))
    for k in range(5):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sgd.step()
        torch.testing.assert_close(chain.states["weight"][k], model.weight.detach())
        torch.testing.assert_close(chain.states["bias"][k], model.bias.detach())


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("n", [20, 80])
def test_noise_of_one_iteration_is_root_of_two_step_temperature_over_n(n, temperature):
    x, y = blobs(n, d=5000)
    model = nn.Linear(5000, 3)
    noisy, plain = (
        sgld(model, x, y, 2, 0, 1, step=0.2, temperature=t, rng=seeded()).states["weight"][0]
        for t in (temperature, 0.0)
    )
    noise = (noisy - plain).flatten() / math.sqrt(2 * 0.2 * temperature / n)
    assert abs(noise.std() - 1) < 4 / math.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 4 / math.sqrt(len(noise))


class Logistic(nn.Module):
    """Two classes with the logits 0 and x·w, so that w is identified."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([torch.zeros(len(x), dtype=x.dtype), x @ self.w], 1)


def quadrature(x, y, prior_precision, temperature):
    """Mean and covariance of the posterior of the weights, on a grid."""
    axis = torch.linspace(-3, 3, 61, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    log_p = torch.zeros(len(grid), dtype=torch.float64)
    for row, label in zip(x, y, strict=True):
        log_p += nn.functional.logsigmoid((2 * label - 1) * (grid @ row))
    log_p -= prior_precision / 2 * (grid**2).sum(1)
    p = (log_p / temperature).softmax(0)
    mean = p @ grid
    return mean, (grid - mean).T @ (p[:, None] * (grid - mean))


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_logistic_regression_agrees_with_quadrature(temperature):
    """Means to 0.16 posterior deviations, covariances to 0.21 of the variances.

    Of that, 0.16 are four Monte Carlo errors (about 600 independent draws) and 0.05 the bias of the
    step (εh/4). Noise off by √2 moves the variances by 1 or by 0.5, and a missing N by far more.
    """
    torch.manual_seed(1)
    x = torch.randn(60, 3, dtype=torch.float64)
    x[:, 2] = 1
    y = (torch.rand(60) < (x @ torch.tensor([1.0, -0.5, 0.3], dtype=x.dtype)).sigmoid()).long()
    mean, covariance = quadrature(x, y, 1.0, temperature)
    chain = sgld(Logistic(), x, y, 3000, 200, 4, 60, 0.5, temperature, rng=seeded())
    draws, scale = chain.states["w"], covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean) / scale).abs().max() < 0.16
    assert ((draws.T.cov() - covariance) / torch.outer(scale, scale)).abs().max() < 0.21


# The schedule.


def test_cosine_step_is_the_formula():
    # K = 95 and M = 10 make cycles of 10: it starts at α₀, is half way at α₀/2 and jumps back.
    assert cosine_step(1, 95, 10, 0.5) == 0.5
    assert cosine_step(6, 95, 10, 0.5) == pytest.approx(0.25)
    assert cosine_step(10, 95, 10, 0.5) == pytest.approx(0.25 * (math.cos(0.9 * math.pi) + 1))
    assert cosine_step(11, 95, 10, 0.5) == 0.5
    assert cosine_step(93, 95, 10, 0.5) == pytest.approx(0.25 * (math.cos(0.2 * math.pi) + 1))


def test_cycles_explore_without_noise_then_sample_evenly(monkeypatch):
    x, y = blobs()
    steps, weights = [], []

    def record(params, slopes, eps, heat, noise):
        moved = sgld_step(params, slopes, eps, heat, noise)
        steps.append((eps, heat))
        weights.append(moved[0].clone())
        return moved

    monkeypatch.setattr(sgmcmc, "sgld_step", record)
    # 39 iterations make 2 cycles of 20, of which 20 - 8 = 12 sample: a draw every third.
    chain = cyclical_sgmcmc(
        nn.Linear(4, 3), x, y, 2, 4, 39, explore=0.4, temperature=0.7, rng=seeded()
    )
    assert [eps for eps, _ in steps] == pytest.approx(
        [2 / len(x) * cosine_step(k, 39, 2, 0.5) for k in range(1, 41)]
    )
    assert [heat for _, heat in steps] == [0.0] * 8 + [0.7] * 12 + [0.0] * 8 + [0.7] * 12
    drawn = [11, 14, 17, 20, 31, 34, 37, 40]
    torch.testing.assert_close(
        chain.states["weight"], torch.stack([weights[k - 1] for k in drawn]), rtol=0, atol=0
    )


def test_the_paper_takes_ten_draws_in_each_of_ten_cycles():
    x, y = blobs()
    chain = cyclical_sgmcmc(nn.Linear(4, 3), x, y, iterations=500, rng=seeded())
    assert chain.predict(x[:2]).shape == (2, 100, 3)


def test_batches_visit_every_point_equally():
    batches = sgmcmc._batches(12, 5, torch.Generator().manual_seed(0))
    rows = torch.stack(list(itertools.islice(batches, 4000)))
    epochs = rows.reshape(2000, 10)  # two batches, and two points left out
    assert all(len(epoch.unique()) == 10 for epoch in epochs)
    counts = epochs.flatten().bincount() / 2000
    assert (counts - 10 / 12).abs().max() < 4 * math.sqrt(10 / 12 * 2 / 12 / 2000)
    assert next(sgmcmc._batches(5, 5, torch.Generator())) == slice(None)


# The posterior.


def explicit(chain, model, x, t):
    """Probabilities of draw t by a network that holds its weights and buffers."""
    model = copy.deepcopy(model).eval()
    state = {name: values[t] for name, values in chain.states.items()}
    model.load_state_dict({**model.state_dict(), **state})
    with torch.no_grad():
        return model(x).softmax(-1)


@both
def test_each_draw_is_a_network_with_its_own_batchnorm_statistics(sampler):
    x, y = blobs()
    model = network()
    chain = short(sampler, model, x, y)
    assert set(chain.states) == set(model.state_dict())
    running = chain.states["1.running_mean"]
    assert len(running.unique(dim=0)) == len(running) == 6
    expected = torch.stack([explicit(chain, model, x, t) for t in range(6)], 1)
    torch.testing.assert_close(chain.predict(x), expected)
    assert chain.states["1.num_batches_tracked"].diff().min() > 0
    chain.states["1.running_mean"] = running[:1].expand_as(running)
    assert not torch.allclose(chain.predict(x), expected, atol=1e-3)


@both
def test_draws_are_the_same_in_any_batch_call_order_and_container(sampler, monkeypatch):
    x, y = blobs()
    chain = short(sampler, network(), x, y)
    whole = chain.predict(x)
    assert whole.shape == (60, 6, 3)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole.sum(-1), torch.ones(60, 6))
    assert whole.std(1).amax() > 0.01
    assert torch.equal(whole, chain.predict(x))
    torch.testing.assert_close(whole.flip(0), chain.predict(x.flip(0)))
    torch.testing.assert_close(chain.point(x), whole.mean(1))
    last = nn.Sequential(*list(chain.model)[:-1])(x)
    torch.testing.assert_close(chain.embed(x), last)
    assert chain.embed(x).shape == (60, 8)
    for kind in (x.double().numpy(), TensorDataset(x, y), DataLoader(x, 7)):
        torch.testing.assert_close(chain.predict(kind), whole)
    for size in (1, 3):
        monkeypatch.setattr(sgmcmc, "map_batches", partial(map_batches, batch=size))
        torch.testing.assert_close(chain.predict(x), whole)
        torch.testing.assert_close(chain.embed(x), last)


@both
def test_seeded_and_nothing_else_moves(sampler):
    x, y = blobs()
    model = network()
    model[1].eval()
    model[4].bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [m.training for m in model.modules()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = short(sampler, model, x, y)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(6)
    for again in (x, x.numpy(), TensorDataset(x, y), DataLoader(x, 7)):
        second = short(sampler, model, again, y.numpy())
        assert all(torch.equal(v, second.states[k]) for k, v in first.states.items())
    other = short(sampler, model, x, y, seed=1)
    assert not torch.equal(first.states["0.weight"], other.states["0.weight"])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert "4.bias" not in first.states
    assert torch.equal(first.model[4].bias, model[4].bias)


class Recurrent(nn.Module):
    """vmap has no rule for it."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(x[..., None])[0][:, -1])


class Folded(nn.Module):
    """vmap takes it in a loop of its own, with a warning."""

    def __init__(self):
        super().__init__()
        self.pair, self.head = nn.Bilinear(4, 4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.pair(x, x))


def convolutional():
    convolution = nn.Conv1d(1, 4, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), convolution, nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("build", [Recurrent, Folded, convolutional])
def test_where_vmap_fails_a_loop_answers(build):
    x, y = blobs()
    model = build()
    chain = short(sgld, model, x, y)
    expected = torch.stack([explicit(chain, model, x, t) for t in range(6)], 1)
    torch.testing.assert_close(chain.predict(x), expected)


@both
@pytest.mark.parametrize("batch", [np.int64(16), 60])
@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 3), convolutional])
def test_models_that_write_to_their_inputs_have_their_own(sampler, batch, build, monkeypatch):
    monkeypatch.setattr(sgmcmc, "BATCH", 8)  # vmap takes two draws at a time
    x, y = blobs()
    body = build()
    plain, writes = (
        short(sampler, nn.Sequential(nn.LeakyReLU(0.1, inplace), body), x, y, batch=batch)
        for inplace in (False, True)
    )
    assert all(torch.equal(v, writes.states[name]) for name, v in plain.states.items())
    assert torch.equal(plain.predict(x), writes.predict(x))


class Named(nn.Module):
    """Its layers have two names each, and two layers one weight."""

    def __init__(self, *more):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.all = nn.Sequential(self.a, nn.Tanh(), self.b, *more, self.out)

    def forward(self, x):
        return self.all(x)


@pytest.mark.parametrize("more", [(), convolutional()[:3]])
def test_weights_of_several_names_are_given_back(more):
    x, y = blobs()
    more = (*more, nn.Linear(8, 4)) if more else ()
    chain = short(sgld, Named(*more), x, y)
    weights = list(chain.model.parameters())
    expected, probs = chain.embed(x), chain.predict(x)
    assert all(a is b for a, b in zip(weights, chain.model.parameters(), strict=True))
    assert torch.equal(copy.deepcopy(chain).embed(x), expected)
    for t in range(6):
        with torch.no_grad():
            for name, weight in chain.model.named_parameters():
                weight.copy_(chain.states[name][t])
        torch.testing.assert_close(probs[:, t], chain.model(x).softmax(-1))


def test_a_model_of_probabilities_gives_the_draws_of_its_logits():
    x, y = blobs()
    logits = nn.Linear(4, 3)
    chain = short(sgld, logits, x, y)
    probs = short(sgld, nn.Sequential(logits, nn.Softmax(-1)), x, y, outputs="probs")
    torch.testing.assert_close(chain.predict(x), probs.predict(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [(sgld, {"burn_in": 400, "thin": 4}), (cyclical_sgmcmc, {"cycles": 4, "iterations": 800})],
)
def test_digits(sampler, options):
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16, dtype=torch.float32)
    order = seeded().permutation(len(x))
    train, test = order[:500], order[500:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    chain = sampler(model, x[train], y[train], rng=seeded(), **options)
    accuracy = (chain.point(x[test]).argmax(1).numpy() == y[test]).mean()
    assert accuracy > 0.85


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 1}, "draws must be finite and at least 2, got 1"),
        ({"draws": 5.0}, "draws must be a whole number, got 5.0"),
        ({"burn_in": 1e2}, "burn_in must be a whole number, got 100.0"),
        ({"thin": True}, "thin must be a whole number, got True"),
        ({"batch": 2.5}, "batch must be a whole number, got 2.5"),
        ({"thin": 0}, "thin must be"),
        ({"burn_in": -1}, "burn_in must be"),
        ({"step": 0.0}, "step must be"),
        ({"step": math.nan}, "step must be"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"prior_precision": math.inf}, "prior_precision must be"),
        ({"step": 1e30}, r"the chain diverged by iteration \d+: lower step = 1e\+30"),
        ({"outputs": "probs"}, 'declare outputs="logits"'),
    ],
)
def test_bad_options_of_sgld(options, message):
    x, y = blobs()
    with pytest.raises(InputError, match=message):
        short(sgld, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), x, y, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cycles": 1, "per_cycle": 1}, "draws must be"),
        ({"cycles": 0}, "cycles must be"),
        ({"cycles": 2.0}, "cycles must be a whole number, got 2.0"),
        ({"iterations": 50.5}, "iterations must be a whole number, got 50.5"),
        ({"per_cycle": "3"}, "per_cycle must be a whole number, got '3'"),
        ({"explore": 1.0}, "explore = 1.0 leaves 0 of a cycle's 20 iterations"),
        ({"explore": -0.5}, "choose explore between 0 and 1"),
        ({"per_cycle": 11}, "raise iterations"),
    ],
)
def test_bad_options_of_cycles(options, message):
    with pytest.raises(InputError, match=message):
        short(cyclical_sgmcmc, network(), *blobs(), **options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(59, dtype=torch.long), r"labels must have shape \[l\] = \[60\]"),
        (torch.zeros(60), "got torch.float32"),
        (torch.full((60,), 3), "widen the model"),
        (torch.full((60,), -1), "whole numbers from 0, got -1"),
        (torch.zeros(0, dtype=torch.long), r"\[60\], one for each input, got \[0\]"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(InputError, match=message):
        short(sgld, network(), blobs()[0], labels)


class Restless(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x))


def test_bad_inputs_and_models():
    x, y = blobs()
    with pytest.raises(InputError, match="inputs are empty"):
        short(sgld, network(), x[:0], y[:0])
    with pytest.raises(InputError, match="shuffle=False"):
        short(sgld, network(), DataLoader(x, 7, shuffle=True), y)
    with pytest.raises(InputError, match="no weights that require a gradient"):
        short(sgld, network().requires_grad_(False), x, y)
    with pytest.raises(InputError, match=r"BatchNorm.* cannot train on one point.* raise batch"):
        short(sgld, network(), x, y, batch=1)
    with pytest.raises(InputError, match=r"model must be a torch\.nn\.Module, got str: pass"):
        short(sgld, "network", x, y)
    with pytest.raises(InputError, match="random in eval mode"):
        short(sgld, Restless(4, 3), x, y)
    with pytest.raises(InputError, match="must return floats"):
        short(sgld, nn.LSTM(4, 3), x, y)
    with pytest.raises(InputError, match="no penultimate representation"):
        short(sgld, Logistic(), x[:, :3], y % 2).embed(x[:, :3])
