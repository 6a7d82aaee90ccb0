"""Laplace draws against laplace-torch's own posterior; skipped where that is not installed."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from foresee import InputError
from foresee.posteriors import laplace
from foresee.testing import check_sampler


def trained():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:400]), y[:400]).backward()
        optimiser.step()
    return model.eval(), x, y


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(InputError, match=r"pip install 'foresee\[laplace\]'"):
        laplace(nn.Linear(2, 2), torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.filterwarnings("ignore")  # of the library's own dependencies
class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def _needs_it(self):
        pytest.importorskip("laplace", reason="needs the extra foresee[laplace]")

    @pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
    def test_law(self, subset):
        model, x, y = trained()
        check_sampler(
            lambda: laplace(model, x[:400], y[:400], draws=12, subset=subset, subnetwork_size=60),
            x[400:420],
            model=model,
        )

    def test_draws_have_the_approximations_moments(self):
        from laplace import Laplace

        model, x, y = trained()
        posterior = laplace(model, x[:400], y[:400], draws=4000, prior_precision=1.0)
        data = torch.utils.data.TensorDataset(x[:400], y[:400])
        exact = Laplace(model, "classification", prior_precision=1.0)
        exact.fit(torch.utils.data.DataLoader(data, batch_size=100))
        mean = posterior.weight.mean(0)
        covariance = exact.posterior_precision.to_matrix().inverse()[:200, :200].diagonal()
        error = (covariance / 4000).sqrt().view(10, 20)
        assert ((mean - model[2].weight).abs() / error).max() < 5
        ratio = posterior.weight.var(0).flatten() / covariance
        assert (ratio - 1).abs().max() < 6 * np.sqrt(2 / 4000)

    def test_accurate_and_unsure_of_what_it_did_not_see(self):
        model, x, y = trained()
        posterior = laplace(model, x[:400], y[:400])
        probs = posterior.predict(x[400:])
        right = (probs.mean(1).argmax(1) == y[400:]).float()
        base = (posterior.point(x[400:]).argmax(1) == y[400:]).float().mean()
        assert right.mean() >= base - 2 * right.std() / len(right) ** 0.5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"draws": 1}, "draws must be at least 2"),
            ({"subset": "all"}, 'subset must be "last_layer" or "subnetwork"'),
            ({"subset": "subnetwork", "subnetwork_size": 10**6}, "subnetwork_size must be"),
        ],
    )
    def test_bad_input(self, options, message):
        model, x, y = trained()
        with pytest.raises(InputError, match=message):
            laplace(model, x[:50], y[:50], **options)
