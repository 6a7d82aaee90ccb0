import copy
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from foresee import networks
from foresee.errors import InputError
from foresee.posteriors.batching import map_batches, penultimate
from foresee.posteriors.ensemble import (
    ensemble,
    train_ensemble,
)
from foresee.recipe import Recipe

SHORT = Recipe(iterations=6, batch=8)


pytestmark = pytest.mark.usefixtures("one_thread")


def rng(seed=0):
    return np.random.default_rng(seed)


def member(seed):
    """A network that gives itself away unless it runs in eval mode."""
    model = networks.mlp(6, 3, hidden=(8,), seed=seed)
    model.insert(1, nn.BatchNorm1d(6))
    return model


@pytest.fixture
def models():
    return [member(seed) for seed in range(4)]


@pytest.fixture
def x():
    return torch.randn(10, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels():
    return rng(1).integers(3, size=10)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_draws_are_the_members(models, x):
    posterior = ensemble(models)
    probs = posterior.predict(x)
    assert probs.shape == (10, 4, 3)
    assert not probs.requires_grad
    with torch.no_grad():
        for t, model in enumerate(models):
            expected = copy.deepcopy(model).eval()(x).softmax(-1)
            torch.testing.assert_close(probs[:, t], expected)
    torch.testing.assert_close(posterior.point(x), probs.mean(1))
    torch.testing.assert_close(posterior.point(x).sum(1), torch.ones(10))


def test_members_that_write_to_their_inputs_have_their_own(models, x):
    def after(shift):
        return ensemble([nn.Sequential(shift, *model) for model in models])

    expected = after(nn.LeakyReLU()).predict(x)
    assert torch.equal(after(nn.LeakyReLU(inplace=True)).predict(x), expected)


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_draws_do_not_depend_on_batches_order_or_kind(models, x, batch):
    whole = ensemble(models).predict(x)
    posterior = ensemble(models, batch=batch)
    loader = DataLoader(TensorDataset(x), batch_size=4)
    for inputs in (x, x.numpy(), TensorDataset(x), loader):
        torch.testing.assert_close(posterior.predict(inputs), whole)
        torch.testing.assert_close(posterior.point(inputs), whole.mean(1))
        torch.testing.assert_close(posterior.embed(inputs), ensemble(models).embed(x))
    torch.testing.assert_close(posterior.predict(x.flip(0)), whole.flip(0))
    assert torch.equal(posterior.predict(x), posterior.predict(x))


def test_members_are_given_back_untouched(models, x):
    models[1].eval()
    models[2][1].eval()  # a frozen BatchNorm in a network that is being trained
    states = [state(model) for model in models]
    modes = [[module.training for module in model.modules()] for model in models]
    posterior = ensemble(models)
    generator = torch.get_rng_state()
    posterior.predict(x), posterior.point(x), posterior.embed(x)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(same(state(model), s) for model, s in zip(models, states, strict=True))
    assert [[module.training for module in model.modules()] for model in models] == modes
    assert not any(m._forward_pre_hooks for model in models for m in model.modules())


def test_members_are_given_back_untouched_after_an_error(models, x):
    models.append(networks.mlp(6, 5))
    with pytest.raises(InputError, match=r"disagree on the number of classes, \[3, 5\]"):
        ensemble(models).predict(x)
    assert all(module.training for model in models for module in model.modules())


def test_embed_is_what_the_last_layer_of_the_first_member_reads(models, x):
    first = models[0]
    features = ensemble(models).embed(x)
    assert features.shape == (10, 8)
    with torch.no_grad():
        expected = copy.deepcopy(first).eval()(x)
    torch.testing.assert_close(features @ first[-1].weight.T + first[-1].bias, expected)


def test_penultimate_follows_the_order_of_execution(x):
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 2)
            self.first = nn.Linear(6, 4)

        def forward(self, x):
            return self.last(self.first(x).relu())

    model = Backwards()
    torch.testing.assert_close(penultimate(model, x), model.first(x).relu().detach())


def test_penultimate_needs_a_linear_layer(x):
    with pytest.raises(InputError, match=r"none of its nn\.Linear layers runs"):
        penultimate(nn.Sequential(nn.ReLU()), x)


def test_probabilities_can_be_declared(models, x):
    softmaxed = [nn.Sequential(model, nn.Softmax(-1)) for model in models]
    whole = ensemble(models).predict(x)
    torch.testing.assert_close(ensemble(softmaxed, outputs="probs").predict(x), whole)
    with pytest.raises(InputError, match='pass outputs="probs"'):
        ensemble(softmaxed).predict(x)
    with pytest.raises(InputError, match='pass outputs="probs"'):
        ensemble([models[0], softmaxed[1]]).predict(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ms: ms[:1], "1 member: an ensemble needs at least 2"),
        (lambda ms: [], "0 member"),
        (lambda ms: [ms[0]] * 5, "same network twice"),
        (lambda ms: [*ms, member(9).to("meta")], "on cpu and meta: move them"),
        (lambda ms: ms[0], "models must be a list of networks, got one, a Sequential.*mc_dropout"),
        (lambda ms: nn.Linear(6, 3), "got one, a Linear"),
        (lambda ms: [ms[0], "other"], "hold a torch.nn.Module each, got str.*take members"),
    ],
)
def test_what_is_no_ensemble_is_refused(models, change, message):
    with pytest.raises(InputError, match=message):
        ensemble(change(models))


def test_members_may_come_in_a_module_list(models, x):
    assert torch.equal(ensemble(nn.ModuleList(models)).predict(x), ensemble(models).predict(x))


def test_outputs_of_the_wrong_form_are_refused(models, x):
    odd = [nn.Sequential(model, nn.Unflatten(1, (3, 1))) for model in models]
    with pytest.raises(InputError, match=r"\[n c\].*10 inputs, got \[10, 3, 1\]"):
        ensemble(odd).predict(x)
    for classes in (2, 7):
        with pytest.raises(InputError, match=f"3 classes, expected {classes}: build .* correct cl"):
            ensemble(models, classes=classes).predict(x)
    single = [nn.Sequential(model, nn.Linear(3, 1)) for model in models]
    with pytest.raises(InputError, match="1 classes, expected at least 2: a binary model"):
        ensemble(single).predict(x)
    with torch.no_grad():
        models[2][-1].bias[0] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        ensemble(models).predict(x)


class Endless(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:0], "inputs are empty: pass at least one row"),
        (lambda x: TensorDataset(x[:0]), "inputs are empty"),
        (lambda x: DataLoader(x[:0], 4), "inputs are empty"),
        (Endless, "inputs is an IterableDataset.*pass a DataLoader"),
        (lambda x: DataLoader(x, 4, shuffle=True), "shuffle=False"),
        (lambda x: DataLoader(x, 4, sampler=SubsetRandomSampler(range(10))), "shuffle=False"),
        (lambda x: DataLoader(x, 4, sampler=WeightedRandomSampler([1] * 10, 10)), "shuffle=False"),
        (
            lambda x: DataLoader(x, 4, sampler=DistributedSampler(x, 2, 0)),
            r"shuffle=False, and no sampler \(DistributedSampler\)",
        ),
        (
            lambda x: DataLoader(x, batch_sampler=BatchSampler(RandomSampler(x), 4, False)),
            "shuffle",
        ),
        (lambda x: DataLoader(x, 4, drop_last=True), "drop_last=False"),
        (
            lambda x: DataLoader(x, batch_sampler=BatchSampler(range(10), 4, True)),
            "drop_last=False",
        ),
        (lambda x: iter(x), "inputs must hold rows that can be counted.*pass an array, a tensor"),
    ],
)
def test_inputs_that_cannot_be_read_in_order(models, x, change, message):
    for method in (ensemble(models).predict, ensemble(models).embed):
        with pytest.raises(InputError, match=message):
            method(change(x))


def test_a_loader_may_read_what_has_no_length_in_an_order_of_its_own(models, x):
    posterior, order = ensemble(models), [3, 1, 4, 1, 5]
    whole = posterior.predict(x)
    torch.testing.assert_close(posterior.predict(DataLoader(Endless(x), 4)), whole)
    torch.testing.assert_close(posterior.predict(DataLoader(x, 2, sampler=order)), whole[order])
    torch.testing.assert_close(
        posterior.predict(DataLoader(x, batch_sampler=[[0, 2], [1]])), whole[[0, 2, 1]]
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:1], r"returned \[1, 6\] for a batch of 4 inputs, expected \[4, 6\]: let it"),
        (lambda x: x[:, : len(x)], r"returned \[2, 2\] for a batch of 2 inputs, expected \[2, 4\]"),
    ],
)
def test_batches_must_fit_together(models, x, function, message):
    with pytest.raises(InputError, match=message):
        map_batches(function, x, models[0], batch=4)


def test_trained_members_differ_and_repeat(x, labels):
    first = train_ensemble(member, x, labels, 3, SHORT, rng())
    again = train_ensemble(member, x, labels, 3, SHORT, rng())
    more = train_ensemble(member, x, labels, 4, SHORT, rng())
    probs = first.predict(x)
    assert torch.equal(again.predict(x), probs)
    assert torch.equal(more.predict(x)[:, :3], probs)
    assert len(first.trainings) == 3
    for i in range(3):
        assert not any(torch.equal(probs[:, i], probs[:, j]) for j in range(i))
    other = train_ensemble(member, x, labels, 3, SHORT, rng(1))
    assert not torch.equal(other.predict(x), probs)


def test_progress_counts_the_iterations_of_all_members(x, labels):
    done = []
    train_ensemble(member, x, labels, 2, SHORT, rng(), advance=done.append)
    assert done == list(range(1, 13))


def test_build_must_build(x, labels):
    model = member(0)
    with pytest.raises(InputError, match="same network twice: let it build a fresh one"):
        train_ensemble(lambda seed: model, x, labels, 2, SHORT, rng())


def test_members_that_begin_alike_are_told_of(x, labels):
    with pytest.warns(UserWarning, match="first two .* same weights.*take a seed") as said:
        train_ensemble(lambda: member(0), x, labels, 3, SHORT, rng())
    assert said[0].filename == __file__


class Plain(nn.Sequential):
    """A class whose arguments are sizes, not seeds."""

    def __init__(self, width=5):
        super().__init__(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.mark.parametrize("build", [Plain, lambda: Plain(4), partial(networks.mlp, 6, 3)])
def test_networks_that_take_no_seed_or_take_it_by_name(x, labels, build):
    state = torch.get_rng_state()
    runs = (train_ensemble(build, x, labels, 3, SHORT, rng(seed)) for seed in (0, 0, 1))
    posterior, again, other = runs
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(posterior.predict(x), again.predict(x))
    assert not torch.equal(posterior.predict(x), other.predict(x))
    assert posterior.predict(x).std(1).max() > 0
    if build is Plain:
        assert {model[0].out_features for model in posterior.models} == {5}


def test_every_member_has_a_seed_of_its_own(x, labels):
    seeds = []

    def build(width=8, *, seed):
        seeds.append((width, seed))
        return networks.mlp(6, 3, (width,), seed=seed)

    train_ensemble(build, x, labels, 3, SHORT, rng())
    assert len(set(seeds)) == 3
    assert {width for width, _ in seeds} == {8}


class Sized(Plain):
    def __init__(self, width):
        super().__init__(width)


def test_what_cannot_be_built_from_a_seed_says_so(x, labels):
    for build, needs in ((Sized, "width"), (lambda a, b: Plain(), "a, b")):
        with pytest.raises(InputError, match=f"build needs {needs}: pass a function of a seed"):
            train_ensemble(build, x, labels, 2, SHORT, rng())
    for build, what in ((Plain(), "Plain"), (lambda seed: None, "NoneType")):
        with pytest.raises(InputError, match=f"build must make .* networks, got a {what}: pass a"):
            train_ensemble(build, x, labels, 2, SHORT, rng())
    with pytest.raises(InputError, match=r"rng must be a numpy\.random.Generator, got 0"):
        train_ensemble(member, x, labels, 2, SHORT, 0)


def test_one_draw_is_no_posterior(x, labels):
    with pytest.raises(InputError, match="draws must be a whole number, at least 2, got 1"):
        train_ensemble(member, x, labels, 1, SHORT, rng())


def test_on_digits_the_mean_is_accurate_and_strangers_divide_the_members():
    """Trained on 0 to 4; disagreement is the mutual information of label and member."""
    images, digit = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    known = digit < 5
    seen, unseen = images[known], images[~known]
    recipe = Recipe(iterations=200, learning_rate=0.05, decay_every=200)
    posterior = train_ensemble(
        lambda seed: networks.mlp(64, 5, hidden=(64,), seed=seed),
        seen[:300], digit[known][:300], 4, recipe, rng(),
    )  # fmt: skip
    test, y = seen[300:], torch.from_numpy(digit[known][300:])
    probs = posterior.predict(test)
    right = (probs.mean(1).argmax(1) == y).double().mean().item()
    single = (posterior.trainings[0].model(torch.from_numpy(test)).argmax(1) == y).double()
    assert right >= single.mean().item() - 2 * single.std().item() / len(y) ** 0.5

    def information(p):
        return (
            torch.special.entr(p.mean(1)).sum(-1) - torch.special.entr(p).sum(-1).mean(1)
        ).mean()

    assert information(posterior.predict(unseen)) > 2 * information(probs)
