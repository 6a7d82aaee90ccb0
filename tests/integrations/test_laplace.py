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


def changed(after):
    """The trained network with something between its last layer and its output."""
    layers, x, y = trained()

    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out = layers[:2], layers[2]

        def forward(self, x):
            return after(self, self.body(x))

    return Changed().eval(), x, y


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(InputError, match=r"pip install 'foresee\[laplace\]'"):
        laplace(nn.Linear(2, 2), torch.zeros(3, 2), torch.zeros(3, dtype=int))


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
        "after",
        [
            lambda net, h: net.out(h) / 0.2,
            lambda net, h: net.out(h) + torch.arange(10.0),
            lambda net, h: net.out(h) + h[:, :10],
        ],
    )
    def test_what_comes_after_the_last_layer(self, after):
        """Draws of the last layer alone would miss it; draws of any weights do not."""
        model, x, y = changed(after)
        with pytest.raises(InputError, match=r"changes what .*'out', returns.*subnetwork"):
            laplace(model, x[:400], y[:400])
        tight = {"subset": "subnetwork", "prior_precision": 1e8}
        posterior = laplace(model, x[:400], y[:400], draws=5, **tight)
        expected = model(x[400:]).softmax(-1)[:, None].expand(-1, 5, -1)
        torch.testing.assert_close(posterior.predict(x[400:]), expected, atol=2e-2, rtol=0)

    def test_log_softmax_after_the_last_layer_changes_nothing(self):
        model, x, y = changed(lambda net, h: net.out(h).log_softmax(-1))
        ours, plain = (laplace(m, x[:400], y[:400], 5) for m in (model, trained()[0]))
        torch.testing.assert_close(ours.predict(x), plain.predict(x), atol=1e-3, rtol=0)

    def test_a_last_layer_for_each_token(self):
        model, x, y = changed(lambda net, h: net.out(h[:, None].expand(-1, 3, -1)).mean(1))
        with pytest.raises(
            InputError, match=r"'out', reads \[256, 3, 20\].*pool before that layer"
        ):
            laplace(model, x[:400], y[:400])

    @pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
    def test_frozen_parameters(self, subset):
        model, x, y = trained()
        model[0].requires_grad_(False)
        posterior = laplace(model, x[:400], y[:400], 5, subset=subset, subnetwork_size=30)
        assert posterior.predict(x[400:]).std(1).max() > 1e-3
        if subset == "subnetwork":
            states = posterior.states
            assert torch.equal(states["0.weight"], model[0].weight.expand(5, -1, -1))
            moved = states["2.weight"].std(0) > 0, states["2.bias"].std(0) > 0
            assert sum(int(m.sum()) for m in moved) == 30
            with pytest.raises(InputError, match="from 1 to the 210 trainable weights"):
                laplace(model, x, y, subset=subset, subnetwork_size=211)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"draws": 1}, "draws must be a whole number, at least 2, got 1"),
            ({"seed": None}, "seed must be a whole number, at least 0, got None"),
            ({"labels": np.full(50, 10)}, "labels go up to 10, but model has outputs"),
            ({"subset": "all"}, 'subset must be "last_layer" or "subnetwork"'),
            ({"subset": "subnetwork", "subnetwork_size": 10**6}, "subnetwork_size must be"),
        ],
    )
    def test_bad_input(self, options, message):
        model, x, y = trained()
        with pytest.raises(InputError, match=message):
            laplace(model, x[:50], **{"labels": y[:50], **options})
