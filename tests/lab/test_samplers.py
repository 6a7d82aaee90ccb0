"""The law of posteriors, run on all of them; and that it can be broken."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import uncertainty
from foresee import seeding, training
from foresee.errors import InputError
from foresee.lab import samplers
from foresee.lab.samplers import CyclicalNetwork, DropoutNetwork
from foresee.networks import mlp, small_cnn
from foresee.posteriors import Forest, cyclical_sgmcmc, ensemble, mc_dropout, sgld
from foresee.posteriors.sgmcmc import DivergedError
from foresee.recipe import Recipe
from foresee.testing import LinearPosterior, check_sampler, random_view
from foresee.training import fit

VIEW = random_view(np.random.default_rng(0))


def test_linear_posterior():
    check_sampler(lambda: VIEW.posterior, VIEW.pool)


def test_forest():
    x, y = load_digits(return_X_y=True)
    model = RandomForestClassifier(9, random_state=0).fit(x[:40], y[:40])
    check_sampler(lambda: Forest(model, 10), x[40:60])


class FreshMasks(LinearPosterior):
    """What most MC-dropout code does: other weights at every call."""

    def predict(self, inputs):
        noise = np.random.default_rng().standard_normal(self.weights.shape)
        return LinearPosterior(self.weights + noise).predict(inputs)


class MasksByPosition(LinearPosterior):
    """Weights that depend on the place in the batch."""

    def predict(self, inputs):
        probs = super().predict(inputs)
        return np.stack([np.roll(p, i, axis=0) for i, p in enumerate(probs)])


class OneDraw(LinearPosterior):
    def predict(self, inputs):
        return super().predict(inputs)[:, :1]


class Unanimous(LinearPosterior):
    def predict(self, inputs):
        probs = super().predict(inputs)
        return np.repeat(probs[:, :1], probs.shape[1], axis=1)


class Settled(LinearPosterior):
    """Weights that the first rows asked for decide."""

    def predict(self, inputs):
        if not hasattr(self, "settled"):
            noise = np.random.default_rng(len(inputs)).standard_normal(self.weights.shape)
            object.__setattr__(self, "settled", LinearPosterior(self.weights + noise))
        return self.settled.predict(inputs)


class Clipping(LinearPosterior):
    """Writes to what it reads, the same every time."""

    def predict(self, inputs):
        return super().predict(np.clip(inputs, -1, 1, out=inputs))


class Centred(LinearPosterior):
    def point(self, inputs):
        return super().point(inputs - inputs.mean(0))


class Negative(LinearPosterior):
    def point(self, inputs):
        return super().point(inputs) + np.array([-1, 1, 0])


class Whitened(LinearPosterior):
    def embed(self, inputs):
        return super().embed(inputs / inputs.std(0))


class Sorting(LinearPosterior):
    """Puts rows into an order in which ours are already."""

    def predict(self, inputs):
        return super().predict(inputs[inputs[:, 0].argsort()])


class Short(LinearPosterior):
    def predict(self, inputs):
        return super().predict(inputs)[:-1]


class Unnormalised(LinearPosterior):
    def predict(self, inputs):
        return super().predict(inputs) * 0.9


class Flat(LinearPosterior):
    def point(self, inputs):
        return super().point(inputs)[:, 0]


class Deep(LinearPosterior):
    def embed(self, inputs):
        return super().embed(inputs)[..., None]


class Unembedded(LinearPosterior):
    def embed(self, inputs):
        return super().embed(inputs * np.nan)


@pytest.mark.parametrize(
    ("posterior", "law"),
    [
        (Sorting, "another order gives the same draws"),
        (Short, r"predict gives \[n t c\]: shape \(39, 8, 3\) for 40 inputs"),
        (Unnormalised, "rows sum to one"),
        (Flat, r"point gives \[n c\]"),
        (Deep, r"embed gives \[n d\]"),
        (Clipping, "inputs are left as they were"),
        (Centred, "point looks at each row alone"),
        (Negative, "rows of point sum to one"),
        (Whitened, "embed looks at each row alone"),
        (Unembedded, "embed looks at each row alone"),
        (Settled, "the same seed gives the same draws, whatever is asked first"),
        (FreshMasks, "two calls give the same draws"),
        (MasksByPosition, "batches of 1 give the same draws"),
        (OneDraw, "at least two draws"),
        (Unanimous, "draws disagree"),
    ],
)
def test_broken_samplers_are_caught(posterior, law):
    with pytest.raises(AssertionError, match=law):
        check_sampler(
            lambda: posterior(VIEW.posterior.weights), VIEW.pool[VIEW.pool[:, 0].argsort()]
        )


def test_a_few_rows_show_no_law():
    with pytest.raises(InputError, match="inputs must be at least 5 different rows, got 4"):
        check_sampler(lambda: VIEW.posterior, VIEW.pool[:4])


class Bytes(nn.Module):
    """A first layer that reads bytes in the precision of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([100.0, 150.0]).view(2, 1, 1))

    def forward(self, pixels):
        return (pixels.to(self.mean.dtype) - self.mean) / 64


def several(model, x, y):
    changed = copy.deepcopy(model)
    with torch.no_grad():
        next(changed.parameters()).mul_(-1)
    return ensemble([model, changed])


def cycles(model, x, y):
    options = {"cycles": 2, "per_cycle": 3, "iterations": 24, "batch": 16, "explore": 0.5}
    return cyclical_sgmcmc(model, x, y, **options, rng=np.random.default_rng(0))


def chain(model, x, y):
    return sgld(model, x, y, draws=4, burn_in=2, thin=2, batch=16, rng=np.random.default_rng(0))


def dropout(model, x, y):
    return mc_dropout(model, 6)


@pytest.mark.parametrize("sampler", [dropout, several, cycles, chain])
@pytest.mark.parametrize("convolutions", [True, False])  # chains run them in another way
def test_images_of_bytes_give_the_draws_of_their_floats(sampler, convolutions):
    pixels = torch.randint(256, (40, 2, 4, 4), generator=torch.Generator().manual_seed(0))
    pixels, y = pixels.to(torch.uint8), torch.arange(40) % 3
    body = small_cnn(3, 4, channels=2, hidden=8) if convolutions else mlp(32, 3, hidden=(8,))
    model, twin = (nn.Sequential(first, *body) for first in (Bytes(), nn.Identity()))
    x = model[0](pixels)
    posterior, plain = sampler(model, pixels, y), sampler(twin, x, y)
    assert posterior.predict(pixels).dtype == torch.float32
    for inputs in (pixels, pixels.numpy(), TensorDataset(pixels), DataLoader(pixels, 16)):
        torch.testing.assert_close(posterior.predict(inputs), plain.predict(x))
        torch.testing.assert_close(posterior.point(inputs), plain.point(x))
        torch.testing.assert_close(posterior.embed(inputs), plain.embed(x))
    check_sampler(lambda: sampler(model, pixels, y), pixels[:8], model=model)
    double = sampler(model.double(), pixels, y)  # the precision is that of the network
    assert double.predict(pixels).dtype == torch.float64


NETWORK = DropoutNetwork("mlp", 10, 8, (0.3,), (0.4,), Recipe(20, batch=16), draws=4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_predictions_have_the_precision_of_the_recipe(precision):
    x, y = torch.zeros(16, 1, 8, 8, dtype=torch.uint8), np.arange(16) % 10
    sampler = replace(NETWORK, recipe=Recipe(2, precision=precision))
    assert sampler(x, y, np.random.default_rng(0)).draws.precision == precision


def labelled():
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[:50].astype(np.uint8) * 15).view(-1, 1, 8, 8), y[:50]


def generator():
    return np.random.default_rng(3)


@pytest.mark.parametrize("sampler", [NETWORK, CyclicalNetwork(NETWORK, cycles=2, per_cycle=2)])
def test_a_network_on_its_plateau_is_trained_once_more_from_other_seeds(sampler):
    x, y = labelled()

    def driven(*stuck):
        """Draws, and the weights before and after each training."""
        steps, weights = sampler.steps(x, y, generator()), []
        request = next(steps)
        for now in stuck:
            before = request.model[2].weight.detach().clone()
            training = fit(request.model, x, y, request.recipe, request.rng)
            weights.append((before, training.model[2].weight))
            try:
                request = steps.send(replace(training, stuck=now, seconds=1.0))
            except StopIteration as end:
                return end.value, weights
        pytest.fail("it asks for more trainings than two")

    usual, once = driven(False)
    again, twice = driven(True, False)
    hopeless, _ = driven(True, True)
    assert (usual.restarted, again.restarted, hopeless.restarted) == (False, True, True)
    assert (usual.training.seconds, again.training.seconds) == (1.0, 2.0)
    for first, second in zip(once[0], twice[0], strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(twice[0][0], twice[1][0])
    assert torch.equal(again.training.model[2].weight, twice[1][1])
    assert torch.equal(driven(True, False)[0].predict(x), again.predict(x))
    if isinstance(sampler, CyclicalNetwork):  # the chain does not depend on it
        assert torch.equal(usual.predict(x), again.predict(x))


def test_the_second_network_is_the_same_whether_the_first_was_trained_here_or_shared():
    x, y = labelled()
    here, elsewhere = NETWORK.steps(x, y, generator()), NETWORK.steps(x, y, generator())
    first, shared = next(here), next(elsewhere)
    stuck = replace(fit(first.model, x, y, first.recipe, first.rng), stuck=True)
    second = here.send(stuck)
    assert second.key == elsewhere.send(stuck).key
    assert second.key[1] == seeding.number(generator().spawn(3)[0].spawn(1)[0])
    assert not {*second.key[1:]} & {*shared.key[1:]}


def test_a_sampler_trains_by_itself_what_it_would_ask_for(monkeypatch):
    x, y = labelled()
    fitted = NETWORK(x, y, generator())
    initial, order, _ = generator().spawn(3)
    expected = fit(NETWORK.build(seeding.number(initial)), x, y, NETWORK.recipe, order).model
    assert torch.equal(fitted.training.model[2].weight, expected[2].weight)
    assert not fitted.restarted
    monkeypatch.setattr(training, "_stuck", lambda *_: True)
    assert NETWORK(x, y, generator()).restarted


def test_trainings_are_the_same_whatever_is_drawn_after_them():
    x, y = labelled()

    def key(sampler, rng):
        return next(sampler.steps(x, y, rng)).key

    usual = key(NETWORK, generator())
    assert key(CyclicalNetwork(replace(NETWORK, draws=9)), generator()) == usual
    others = [replace(NETWORK, recipe=Recipe(21)), replace(NETWORK, network="slim_cnn")]
    assert usual not in [key(other, generator()) for other in others]
    assert usual != key(NETWORK, np.random.default_rng(4))


def test_masks_are_those_of_the_generator():
    x, y = labelled()
    seeds = [NETWORK(x, y, np.random.default_rng(i)).draws.seed for i in (3, 3, 4)]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(("iterations", "length"), [(20, 30), (70, 70)])
def test_a_chain_that_diverges_begins_anew_with_half_the_step(monkeypatch, iterations, length):
    x, y = labelled()
    bears, tried = 0.07, []

    def chain(model, inputs, labels, cycles, per_cycle, iterations, batch, step, *, rng):
        tried.append((step, bits(model).sum().item(), rng.integers(2**63)))
        assert (iterations, batch) == (length, 16)
        if step > bears:
            raise DivergedError("too long")
        return "draws"

    monkeypatch.setattr(samplers, "cyclical_sgmcmc", chain)
    like = replace(NETWORK, recipe=Recipe(iterations, batch=16))
    sampler = CyclicalNetwork(like, cycles=2, per_cycle=3)
    assert sampler(x, y, generator()).draws == "draws"
    steps, networks, noise = zip(*tried, strict=True)
    assert steps == (0.5, 0.25, 0.125, 0.0625)
    assert len({*networks}) == len({*noise}) == 4  # each from another network, by other noise
    bears = 0.0
    with pytest.raises(DivergedError, match="too long"):
        sampler(x, y, generator())
    assert 1e-4 < tried[-1][0] < 1e-3


def bits(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


@pytest.mark.filterwarnings("ignore:By default `link_approx`")  # laplace-torch's own
@pytest.mark.parametrize("name", uncertainty.SAMPLERS)
def test_uncertainty_is_sane(name, monkeypatch):
    monkeypatch.setattr(uncertainty, "MEMBERS", 3)  # what three disagree on, ten do more
    sanity = uncertainty.measure(uncertainty.SAMPLERS[name]())
    assert sanity.mean >= sanity.point - 2 * sanity.error
    assert sanity.unseen > 1.2 * sanity.known  # it never saw an 8 or a 9
