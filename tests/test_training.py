import copy
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from foresee import bfloat16, iterations, networks, training
from foresee.errors import InputError
from foresee.iterations import batches_of, learning_rate
from foresee.networks import Standardise, mlp
from foresee.recipe import Recipe
from foresee.training import Request, fit, fit_all

SHORT = Recipe(iterations=5, batch=4)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


@pytest.fixture
def few():
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(11, 6))), rng.integers(3, size=11)


def rng(seed=0):
    return np.random.default_rng(seed)


def small(seed=0):
    return networks.mlp(6, 3, hidden=(8,), seed=seed)


def bits(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def test_recipe_is_the_papers():
    recipe = Recipe()
    assert recipe.iterations * recipe.batch == 3_000_000
    rates = [learning_rate(recipe, i) for i in (0, 11_717, 11_718, 23_436, 35_154)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-4, 1e-5], rel=1e-12)


def test_scaled_recipe_keeps_the_form_of_the_schedule():
    recipe = Recipe(learning_rate=0.001).scaled(0.1)
    assert (recipe.iterations, recipe.decay_every, recipe.learning_rate) == (4688, 1172, 0.001)
    assert Recipe().scaled(1) == Recipe()
    assert Recipe().scaled(1e-9).iterations == 1


@pytest.mark.parametrize(
    ("build", "shape", "rate"),
    [
        (lambda: networks.mlp(64, 10), (-1, 64), 0.05),
        (lambda: networks.small_cnn(10, image_size=8), (-1, 1, 8, 8), 0.05),
    ],
)
def test_fit_learns_digits(digits, build, shape, rate):
    images, labels = digits
    recipe = Recipe(iterations=300, learning_rate=rate, decay_every=200)
    result = fit(build(), images.reshape(shape), labels, recipe, rng())
    assert result.accuracy > 0.95
    assert 0 < result.loss < 0.3
    assert result.seconds > 0


def test_health_is_that_of_the_network_returned(digits):
    images, labels = digits[0][:200], digits[1][:200]
    result = fit(networks.mlp(64, 10), images, labels, Recipe(iterations=30), rng())
    assert not any(module.training for module in result.model.modules())
    with torch.no_grad():
        outputs = result.model(torch.from_numpy(images))
    y = torch.from_numpy(labels)
    assert result.loss == pytest.approx(cross_entropy(outputs, y).item(), rel=1e-5)
    assert result.accuracy == pytest.approx((outputs.argmax(1) == y).double().mean().item())


def test_health_is_that_of_points_from_everywhere(monkeypatch):
    monkeypatch.setattr(training, "_HEALTH", 40)
    model = nn.Linear(1, 2)  # it always says 0
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    recipe = Recipe(1, learning_rate=1e-12)
    result = fit(model, np.zeros((100, 1), np.float32), np.arange(100) // 50, recipe, rng())
    assert 0.2 < result.accuracy < 0.8
    assert (40 * result.accuracy) % 1 == pytest.approx(0)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_same_seed_same_bits_and_the_global_state_is_left_alone(few, optimiser):
    recipe = Recipe(iterations=20, batch=4, optimiser=optimiser, learning_rate=0.01)
    state, deterministic = torch.get_rng_state(), torch.backends.cudnn.deterministic
    first = fit(small(), *few, recipe, rng(1))
    torch.rand(3)  # another global state must not matter
    again = fit(small(), *few, recipe, rng(1))
    other = fit(small(), *few, recipe, rng(2))
    assert torch.equal(bits(first.model), bits(again.model))
    assert (first.loss, first.accuracy) == (again.loss, again.accuracy)
    assert not torch.equal(bits(first.model), bits(other.model))
    torch.set_rng_state(state)
    fit(small(), *few, recipe, rng(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.cudnn.deterministic == deterministic


def test_steps_are_those_of_momentum_sgd_by_hand(few):
    """With all the data in each batch and no dropout nothing is random."""
    inputs, labels = few[0], torch.from_numpy(few[1])
    recipe = Recipe(
        iterations=7, batch=99, learning_rate=0.1, decay_every=3, weight_decay=0.01, momentum=0.8
    )
    model = networks.mlp(6, 3, hidden=(8,), dropout=0).double()
    expected = [p.detach().clone().requires_grad_() for p in model.parameters()]
    velocity = [torch.zeros_like(p) for p in expected]
    for step in range(7):
        w1, b1, w2, b2 = expected
        loss = cross_entropy((inputs @ w1.T + b1).relu() @ w2.T + b2, labels)
        gradients = torch.autograd.grad(loss, expected)
        rate = [0.1, 0.01, 0.001][step // 3]
        with torch.no_grad():
            for p, v, g in zip(expected, velocity, gradients, strict=True):
                v.mul_(0.8).add_(g + 0.01 * p)
                p.sub_(rate * v)
    fit(model, inputs, labels, recipe, rng())
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_steps_are_those_of_adam_by_hand(few):
    """Kingma & Ba (2015), algorithm 1, with the weights' own decay in the gradient."""
    inputs, labels = few[0], torch.from_numpy(few[1])
    recipe = Recipe(7, 99, "adam", 0.05, decay_every=3, weight_decay=0.01, momentum=0.8)
    model = nn.Linear(6, 3).double()
    weight = torch.cat([model.weight, model.bias[:, None]], 1).detach().requires_grad_()
    ones = torch.cat([inputs, torch.ones(11, 1)], 1)
    m = v = torch.zeros_like(weight)
    for step in range(1, 8):
        (g,) = torch.autograd.grad(cross_entropy(ones @ weight.T, labels), weight)
        with torch.no_grad():
            g = g + 0.01 * weight
            m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g**2
            m_hat, v_hat = m / (1 - 0.8**step), v / (1 - 0.999**step)
            rate = [0.05, 0.005, 0.0005][(step - 1) // 3]
            weight -= rate * m_hat / (v_hat.sqrt() + 1e-8)
    fit(model, inputs, labels, recipe, rng())
    torch.testing.assert_close(model.weight, weight[:, :-1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.bias, weight[:, -1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_frozen_weights_stay_where_they_are_whatever_gradient_they_kept(few, optimiser):
    model = small()
    cross_entropy(model(few[0].float()), torch.from_numpy(few[1])).backward()
    frozen = model[1].requires_grad_(False).weight
    before = frozen.clone()
    fit(model, *few, replace(SHORT, optimiser=optimiser), rng())
    assert torch.equal(frozen, before)


def test_who_looks_at_the_network_meanwhile_changes_nothing(few):
    model = small()
    fit(model, *few, SHORT, rng(), advance=lambda _: model.eval())
    assert torch.equal(bits(model), bits(fit(small(), *few, SHORT, rng()).model))


def test_each_epoch_is_a_permutation_in_batches_of_one_size():
    batches = batches_of(11, 4, rng(), torch.device("cpu"))
    for _ in range(3):
        epoch = [next(batches) for _ in range(2)]
        assert [len(batch) for batch in epoch] == [4, 4]
        assert len(set(torch.cat(epoch).tolist())) == 8
    assert sorted(next(batches_of(3, 64, rng(), torch.device("cpu"))).tolist()) == [0, 1, 2]
    seen = {i for _, batch in zip(range(40), batches, strict=False) for i in batch.tolist()}
    assert seen == set(range(11))


def test_images_of_bytes_train_like_the_floats_they_stand_for():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 2, 4, 4), np.uint8)
    labels = pixels[:, 0].mean((1, 2)) > 127
    mean, std = (0.4, 0.6), (0.2, 0.3)
    scale = [np.array(v, np.float32)[:, None, None] for v in (mean, std)]
    floats = (np.float32(pixels) / np.float32(255) - scale[0]) / scale[1]
    plain = fit(mlp(32, 2, (8,)), floats, labels.astype(int), SHORT, rng())
    body = mlp(32, 2, (8,))
    ours = fit(
        nn.Sequential(Standardise(mean, std), *body), pixels, labels.astype(int), SHORT, rng()
    )
    for one, other in zip(plain.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"floats from 0 to 1, but .*networks\.Standardise"):
        fit(ours.model, pixels / 255, labels.astype(int), SHORT, rng())
    with pytest.raises(InputError, match=r"got torch.uint8 .*networks.Standardise"):
        fit(mlp(32, 2, (8,)), pixels, labels.astype(int), SHORT, rng())


@needs_gpu
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_recorded_step_trains_like_one_that_is_not(optimiser):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 6, generator=generator), torch.arange(200) % 3
    recipe = Recipe(600, 32, optimiser, learning_rate=0.01, decay_every=250)

    def trained(device):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        nn.init.eye_(model[0].weight)
        return fit(model.double(), x, y, recipe, rng(), device=device).model.state_dict()

    recorded, again, stepped = trained("cuda"), trained("cuda"), trained("cpu")
    for name, value in recorded.items():
        assert torch.equal(value, again[name])
        # The learning rate of a recording is a float32.
        torch.testing.assert_close(value.cpu(), stepped[name], rtol=1e-5, atol=1e-6)


def vgg(seed):
    body = networks.vgg16(10, hidden=256, seed=seed)
    return nn.Sequential(Standardise([0.5] * 3, [0.25] * 3), *body)


def images(seed=0, number=300):
    pixels = np.random.default_rng(seed).integers(0, 256, (number, 3, 32, 32), np.uint8)
    return torch.from_numpy(pixels), np.arange(number) % 10


def request(seed, build=vgg, iterations=40, device="cuda", **changes):
    recipe = Recipe(iterations, learning_rate=0.01, **changes)
    return Request(build(seed).to(device), *images(seed), recipe, rng(seed))


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_neighbours_change_no_bit(precision):
    alone = [fit_all([request(seed, precision=precision)])[0] for seed in range(3)]
    for number in (3, 6):
        beside = fit_all([request(seed, precision=precision) for seed in range(number)])
        for one, other in zip(alone, beside, strict=False):
            assert torch.equal(bits(one.model), bits(other.model))
            assert (one.loss, one.accuracy) == (other.loss, other.accuracy)


@needs_gpu
def test_neighbours_may_differ_in_all_and_one_that_diverges_ends_alone():
    def cnn(seed):
        return nn.Sequential(Standardise([0.5] * 3, [0.25] * 3), *networks.small_cnn(10, 32, 3))

    kinds = [{"build": cnn}, {"iterations": 300}, {"batch": 16, "optimiser": "adam"}]
    alone = [fit_all([request(0, **kind)])[0] for kind in kinds]
    wild = request(0, cnn, iterations=500)
    wild = replace(wild, recipe=replace(wild.recipe, learning_rate=1e9))
    beside = fit_all([request(0, **kinds[0]), wild, *(request(0, **k) for k in kinds[1:])])
    assert isinstance(beside[1], InputError)
    assert "training diverged" in str(beside[1])
    for one, other in zip(alone, beside[:1] + beside[2:], strict=True):
        assert torch.equal(bits(one.model), bits(other.model))


@needs_gpu
def test_coarse_copies_are_what_autocast_would_make(monkeypatch):
    def network(seed):
        body = networks.mlp(3072, 10, (64, 32), seed=seed)
        body.insert(2, nn.BatchNorm1d(64))
        return nn.Sequential(Standardise([0.5] * 3, [0.25] * 3), *body)

    kinds = [{"optimiser": name, "precision": "bfloat16"} for name in ("adam", "sgd")]
    copied = [fit_all([request(0, network, **kind)])[0].model for kind in kinds]
    assert {p.dtype for model in copied for p in model.parameters()} == {torch.float32}
    monkeypatch.setattr(bfloat16, "copies", lambda model: {})
    usual = [fit_all([request(0, network, **kind)])[0].model for kind in kinds]
    assert torch.equal(bits(copied[0]), bits(usual[0]))
    # Our kernel updates the weights in float32, torch's in float64, and both round.
    torch.testing.assert_close(bits(copied[1]), bits(usual[1]), rtol=0.01, atol=1e-3)


def test_weights_with_gaps_in_memory_are_left_to_autocast():
    dense, gaps = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.Linear(4, 3)
    gaps.weight = nn.Parameter(torch.zeros(3, 8)[:, :4])
    found = bfloat16.copies(nn.Sequential(dense, gaps))
    assert list(found) == ["0.weight", "0.bias", "1.bias"]
    assert found["0.weight"].stride() == dense.weight.stride()


RELU, HALVE = nn.ReLU(), nn.MaxPool2d(2)


@pytest.mark.parametrize(
    ("layers", "joined"),
    [
        ([nn.Conv2d(3, 4, 3), RELU, HALVE], 3),
        ([nn.Conv2d(3, 4, 3), RELU, nn.MaxPool2d((2, 2), padding=0)], 3),
        ([nn.Conv2d(3, 4, 3), RELU], 2),
        ([nn.Conv2d(3, 4, 3), RELU, RELU], 2),
        ([nn.Conv2d(3, 4, 3), RELU, nn.AvgPool2d(2)], 2),
        ([nn.Conv2d(3, 4, 3), RELU, nn.MaxPool2d(3)], 2),
        ([nn.Conv2d(3, 4, 3), RELU, nn.MaxPool2d(2, stride=1)], 2),
        ([nn.Conv2d(3, 4, 3), RELU, nn.MaxPool2d(2, padding=1)], 2),
        ([nn.Conv2d(3, 4, 3), RELU, nn.MaxPool2d(2, ceil_mode=True)], 2),
        ([nn.Conv2d(3, 4, 3), HALVE, RELU], 1),
        ([nn.Conv2d(3, 4, 3)], 1),
        ([nn.Conv2d(3, 4, 3, padding="same"), RELU], 1),
        ([nn.Conv2d(3, 4, 3, padding_mode="circular"), RELU], 1),
        ([nn.Linear(3, 4), RELU, HALVE], 1),
    ],
)
def test_only_what_the_kernels_know_is_joined(layers, joined):
    assert bfloat16._joined(layers) == joined


@pytest.mark.parametrize(("place", "joined"), [(0, 1), (1, 1), (2, 2)])
def test_layers_with_hooks_are_not_joined(place, joined):
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers[place].register_forward_hook(print)
    assert bfloat16._joined(layers) == joined


@needs_gpu
@pytest.mark.parametrize("pooling", [[], [HALVE]])
@pytest.mark.parametrize("form", [{}, {"stride": 2, "padding": (1, 0)}, {"groups": 2}])
def test_layers_joined_are_no_less_exact_than_one_after_the_other(form, pooling):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(8, 16, 3, **form), nn.ReLU(), *pooling)
    x = torch.randn(32, 8, 10, 10, generator=generator)
    layer.cuda().to(memory_format=torch.channels_last)

    def gradients(run, model, dtype):
        inputs = x.to("cuda", dtype).requires_grad_()
        out = run(model, inputs)
        out.square().sum().backward()
        found = [out, inputs.grad, model[0].weight.grad, model[0].bias.grad]
        return [value.detach().double() for value in found]

    def joined(model, inputs):
        return bfloat16.forward(model, dict(model.named_parameters()), inputs)

    def plain(model, inputs):
        return model(inputs)

    exact = gradients(plain, copy.deepcopy(layer).double(), torch.float64)
    coarse = gradients(plain, copy.deepcopy(layer).bfloat16(), torch.bfloat16)
    ours = gradients(joined, copy.deepcopy(layer).bfloat16(), torch.bfloat16)
    for want, usual, got in zip(exact, coarse, ours, strict=True):
        assert (got - want).norm() <= 1.2 * (usual - want).norm()
        # Rounding makes another pixel the largest of its window, now and then.
        assert (got - want).norm() < (0.05 if pooling else 0.02) * want.norm()


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_layers_that_come_again_are_trained_as_often_on_a_gpu(precision):
    def network(_):
        torch.manual_seed(0)
        conv, relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
        return nn.Sequential(
            Standardise([0.5] * 3, [0.25] * 3), conv, relu, conv, relu, nn.Flatten(),
            nn.Linear(3072, 10),
        )  # fmt: skip

    with torch.random.fork_rng():
        ours, theirs = (
            fit_all([request(0, network, device=device, iterations=20, precision=precision)])[0]
            for device in ("cuda", "cpu")
        )
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0.05, atol=0.01)


@needs_gpu
def test_a_model_that_looks_at_numbers_is_refused_on_a_gpu_and_ends_alone():
    class Looking(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) * float(x.float().mean() > -1))

    def network(seed):
        return nn.Sequential(Standardise([0.5] * 3, [0.25] * 3), Looking(3072, 10))

    (alone,) = fit_all([request(1)])
    refused, beside = fit_all([request(0, network), request(1)])
    assert "looks at numbers while it runs" in str(refused)
    assert torch.equal(bits(alone.model), bits(beside.model))
    (cpu,) = fit_all([request(0, network, device="cpu")])
    assert cpu.loss > 0


@needs_gpu
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_layer_that_no_output_depends_on_is_left_alone(optimiser, fused, monkeypatch):
    class Idle(nn.Linear):
        def __init__(self):
            super().__init__(3072, 10)
            self.idle = nn.Linear(4, 4)

    def network(_):
        torch.manual_seed(0)
        return nn.Sequential(Standardise([0.5] * 3, [0.25] * 3), nn.Flatten(), Idle())

    if not fused:
        monkeypatch.setattr(bfloat16, "kernels", lambda device: None)
    with torch.random.fork_rng():
        wanted = request(0, network, precision="bfloat16", weight_decay=0.0, optimiser=optimiser)
        before = wanted.model[2].idle.weight.clone()
        (outcome,) = fit_all([wanted])
    assert torch.equal(outcome.model[2].idle.weight, before)


@needs_gpu
def test_without_triton_layers_run_one_by_one_and_train_much_the_same(monkeypatch):
    (fused,) = fit_all([request(0, precision="bfloat16")])
    monkeypatch.setattr(bfloat16, "kernels", lambda device: None)
    (plain,) = fit_all([request(0, precision="bfloat16")])
    assert plain.loss == pytest.approx(fused.loss, rel=0.02)


@needs_gpu
def test_a_gpu_leaves_no_trace():
    state = torch.cuda.get_rng_state()
    wanted = request(0, precision="bfloat16")
    strides = [p.stride() for p in wanted.model.parameters()]
    (outcome,) = fit_all([wanted])
    assert [p.stride() for p in outcome.model.parameters()] == strides
    assert all(p.grad is None for p in outcome.model.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)
    del wanted, outcome

    def held():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # kept for each of torch's 32 streams
        return torch.cuda.memory_allocated()

    before = held()
    fit_all([request(seed, precision="bfloat16") for seed in range(2)])
    assert held() <= before + (1 << 20)


@needs_gpu
def test_a_gpu_drops_out_other_units_at_every_step():
    """A network of nothing but dropout: its loss tells which units were dropped."""
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.register_buffer("kept", torch.zeros(64))
            self.drop = nn.Dropout()

        def forward(self, x):
            kept = self.drop(self.weight)
            if self.training:
                self.kept.copy_(kept.detach() > 0)
            return torch.stack([x @ kept, -(x @ kept)], 1)

    def watched(seed):
        model, masks = Spy().cuda(), []

        def look(_):
            torch.cuda.synchronize()
            masks.append(tuple(model.kept.int().tolist()))

        seen.append(masks)
        recipe = Recipe(20, learning_rate=1e-12)
        return Request(model, torch.ones(9, 64), [0, 1, 0] * 3, recipe, rng(seed), look)

    fit_all([watched(0)])
    fit_all([watched(1), watched(0), watched(2)])
    alone, first, second, third = seen
    assert len(set(alone)) == 20
    assert second == alone
    assert len({*first, *second, *third}) == 60


def test_several_are_trained_as_each_would_be_alone(few):
    def wanted(seed, **changes):
        recipe = Recipe(iterations=20 + seed, batch=4, **changes)
        return Request(small(seed), *few, recipe, rng(seed))

    alone = [fit(r.model, *few, r.recipe, r.rng) for r in (wanted(0), wanted(1), wanted(2))]
    wild = wanted(3, learning_rate=1e9)
    wrong = replace(wanted(4), labels=[9] * 11)
    start = time.perf_counter()
    first, diverged, second, refused, third = fit_all(
        [wanted(0), wild, wanted(1), wrong, wanted(2)]
    )
    whole = time.perf_counter() - start
    assert "training diverged" in str(diverged)
    assert "labels go up to 9" in str(refused)
    for one, other in zip(alone, (first, second, third), strict=True):
        assert torch.equal(bits(one.model), bits(other.model))
        assert replace(one, model=None, seconds=0) == replace(other, model=None, seconds=0)
    assert 0 < first.seconds + second.seconds + third.seconds < whole
    assert fit_all([]) == []


def test_turns_are_taken_step_by_step_and_their_time_is_shared_out():
    taken = []

    def working(name, steps):
        for _ in range(steps):
            taken.append(name)
            time.sleep(0.02)
            yield
        if name == "c":
            raise InputError("enough")
        return training.Training(name, 0.0, 0.0, 0.0)

    start = time.perf_counter()
    trainings = {name: working(name, steps) for name, steps in (("a", 1), ("b", 3), ("c", 2))}
    outcomes = training._in_turns(trainings)
    whole = time.perf_counter() - start
    assert "".join(taken) == "abcbcb"
    assert str(outcomes["c"]) == "enough"
    a, b = outcomes["a"].seconds, outcomes["b"].seconds
    assert (outcomes["a"].model, outcomes["b"].model) == ("a", "b")
    assert 0.02 <= a < b
    assert a + b < whole - 0.03  # c had its share, too


def test_a_bug_in_one_is_its_outcome_and_an_interrupt_ends_all(few):
    def broken(error):
        def advance(_):
            raise error

        return Request(small(), *few, SHORT, rng(), advance)

    bug, fine = fit_all([broken(ZeroDivisionError()), Request(small(), *few, SHORT, rng())])
    assert isinstance(bug, ZeroDivisionError)
    assert fine.loss > 0
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        fit_all([broken(KeyboardInterrupt()), Request(small(), *few, SHORT, rng())])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("shares", "learns", "stuck"),
    [
        ([50, 50], False, True),
        ([96, 2, 2], False, True),  # its loss is far below log 3
        ([96, 2, 2], True, False),
        ([50, 50], True, False),
        ([100, 0], False, False),  # there is nothing to learn
    ],
)
def test_a_network_that_knows_only_how_frequent_classes_are_is_stuck(shares, learns, stuck):
    labels = np.repeat(np.arange(len(shares)), shares)
    model = nn.Linear(len(shares), len(shares))
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor(shares, dtype=torch.float32).clamp_min(1e-6).log())
    recipe = Recipe(300, learning_rate=1.0, weight_decay=0)
    inputs = (
        np.eye(len(shares), dtype=np.float32)[labels] if learns else np.ones((100, len(shares)))
    )
    result = fit(model, inputs.astype(np.float32), labels, recipe, rng())
    assert result.stuck is stuck


@pytest.mark.parametrize(
    ("loss", "accuracy", "shares", "stuck"),
    [  # of equal shares the frequencies leave log 2 = 0.693, and 0.5 is guessed
        (0.70, 0.50, [5, 5], True),
        (0.67, 0.52, [5, 5], True),
        (0.65, 0.50, [5, 5], False),  # it knows how sure to be
        (0.90, 0.53, [5, 5], False),  # it errs with confidence
        (0.30, 0.90, [9, 1], False),  # log loss 0.325, of a rare class
        (0.33, 0.904, [9, 1], True),
        (0.33, 0.906, [9, 1], False),
        (9.0, 0.0, [9], False),
    ],
)
def test_a_plateau_is_where_neither_loss_nor_accuracy_beats_a_guess(loss, accuracy, shares, stuck):
    labels = torch.arange(len(shares)).repeat_interleave(torch.tensor(shares))
    assert training._stuck(loss, accuracy, labels) is stuck


@pytest.mark.parametrize("points", [2, 3, 5, 9])
def test_batch_norm_never_meets_a_batch_of_one(points):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = torch.randn(points, 6, generator=torch.Generator().manual_seed(0))
    result = fit(model, x, [0] * points, SHORT, rng())
    assert result.model[1].num_batches_tracked == 5


def test_what_a_network_itself_refuses_is_its_own_to_say(few):
    class Picky(nn.Linear):
        def forward(self, x):
            if self.training:
                raise ValueError("no such word")
            return super().forward(x)

    with pytest.raises(ValueError, match="no such word"):
        fit(Picky(6, 3), *few, SHORT, rng())


def test_one_labelled_point_will_do(few):
    assert fit(small(), few[0][:1], few[1][:1], SHORT, rng()).accuracy in (0.0, 1.0)


def test_numbers_of_numpy_and_a_caller_without_gradients_change_nothing(few):
    expected = bits(fit(small(), *few, SHORT, rng()).model)
    with torch.no_grad():
        found = fit(small(), *few, Recipe(np.int64(5), np.int64(4)), rng())
    assert torch.equal(bits(found.model), expected)


def test_inputs_and_labels_of_any_kind_give_the_same_network(few):
    inputs, labels = few[0].numpy(), few[1]
    locked = inputs.copy()
    locked.flags.writeable = False
    kinds = [(inputs, labels), (few[0], labels.tolist()), (locked, torch.from_numpy(labels)),
             (inputs[::-1][::-1], labels.astype(np.uint8)), (inputs, labels.astype(">i4")),
             (TensorDataset(few[0], torch.from_numpy(labels)), labels),
             ([row[None] for row in few[0]], labels)]  # fmt: skip
    models = [fit(small(), x, y, SHORT, rng()).model for x, y in kinds]
    assert all(torch.equal(bits(model), bits(models[0])) for model in models)
    assert np.array_equal(inputs, few[0].numpy())


def test_a_network_that_writes_to_its_inputs_writes_to_copies(few):
    inputs = few[0].float()
    before = inputs.clone()
    fit(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), inputs, few[1], SHORT, rng())
    assert torch.equal(inputs, before)


def test_bfloat16_trains_in_float32_weights(few):
    recipe = Recipe(iterations=5, batch=4, precision="bfloat16")
    result = fit(small(), *few, recipe, rng())
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert not torch.equal(bits(result.model), bits(fit(small(), *few, SHORT, rng()).model))


def test_bfloat16_is_for_the_passes_alone(few, monkeypatch):
    seen = []

    def spy(outputs, labels):
        seen.append(outputs.dtype)
        return cross_entropy(outputs, labels)

    monkeypatch.setattr(iterations, "cross_entropy", spy)
    fit(small(), *few, replace(SHORT, precision="bfloat16"), rng())
    assert set(seen) == {torch.float32}


def test_progress_is_the_callers(few):
    done = []
    fit(small(), *few, SHORT, rng(), advance=done.append)
    assert done == [1, 2, 3, 4, 5]


def test_divergence_names_the_learning_rate(few):
    recipe = Recipe(iterations=300, batch=4, learning_rate=1e8)
    with pytest.raises(InputError, match=r"training diverged.*lower learning_rate, it is 1000"):
        fit(small(), *few, recipe, rng())


def test_divergence_ends_a_training_early_and_that_of_the_last_step_is_seen(few):
    done = []
    with pytest.raises(InputError, match=r"training diverged.* at iteration 100:"):
        fit(small(), *few, Recipe(300, 4, learning_rate=1e8), rng(), advance=done.append)
    assert done[-1] == 100
    with pytest.raises(InputError, match=r"training diverged.* at iteration 0:"):
        fit(small(), *few, Recipe(1, 4, learning_rate=1e38), rng())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.ma.array([0] * 11, mask=[1] + [0] * 10)}, "labels has masked entries"),
        ({"labels": [[0], [0, 1]]}, "labels must be an array, got list"),
        ({"labels": [3] * 11}, "labels go up to 3, but model has 3 outputs.*classes=4"),
        ({"labels": [-1] + [0] * 10}, "from 0, got -1"),
        ({"labels": [0.0] * 11}, "whole numbers from 0, got float64: number the classes"),
        ({"labels": ["cat"] * 11}, "whole numbers from 0, got <U3: number the classes"),
        ({"labels": torch.ones(11, dtype=torch.bool)}, "whole numbers from 0, got torch.bool"),
        ({"inputs": np.zeros(11)}, r"rows of floats .* got torch.float64 \[11\]: reshape them"),
        ({"labels": [0] * 10}, r"shape \[l\] = \[11\].* got \[10\]"),
        ({"inputs": np.zeros((11, 6), np.uint8)}, "floats .* got torch.uint8.*1 / 255"),
        ({"inputs": [[0.0] * 6] * 10 + [[0.0]]}, "inputs must be of one shape.*pad"),
        ({"inputs": [["a"] * 6] * 11}, "inputs must be real numbers, got <U1"),
        ({"inputs": {"a": np.zeros((11, 6))}}, r"columns \['a'\].*only one tensor"),
        ({"rng": 0}, "rng must be a numpy.random.Generator, got 0: pass numpy.random.default_rng"),
        ({"inputs": np.full((11, 6), np.nan)}, "inputs hold NaN"),
        ({"inputs": torch.zeros(0, 6), "labels": np.zeros(0, int)}, "inputs are empty"),
        ({"model": nn.Sequential()}, "no parameters"),
        ({"model": small().requires_grad_(False)}, "no weights that require a gradient: unfreeze"),
        (
            {"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "recipe": Recipe(batch=1)},
            "BatchNorm, which cannot train on one point: label more, raise batch",
        ),
        (
            {"model": nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), small())},
            "BatchNorm, which has no running statistics: train it with track_running_stats=True",
        ),
        ({"model": nn.Conv1d(1, 1, 1)}, r"logits \[n c\].* returned"),
    ],
)
def test_what_cannot_be_trained_is_refused(few, change, message):
    data = {"inputs": few[0], "labels": few[1]}
    arguments = {"model": small(), "rng": rng(), "recipe": SHORT, **data, **change}
    if isinstance(arguments["model"], nn.Conv1d):
        arguments["inputs"] = few[0][:, None]
    with pytest.raises(InputError, match=message):
        fit(**arguments)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iterations", 0),
        ("batch", 1.5),
        ("decay_every", True),
        ("learning_rate", 0),
        ("learning_rate", "0.1"),
        ("momentum", None),
        ("learning_rate", float("nan")),
        ("decay", -1),
        ("weight_decay", -1e-4),
        ("momentum", 1),
        ("optimiser", "lbfgs"),
        ("precision", "float16"),
    ],
)
def test_recipe_refuses_what_it_cannot_mean(field, value):
    with pytest.raises(InputError, match=f"{field} must .*got {value!r}"):
        Recipe(**{field: value})


def test_budget_must_be_positive():
    with pytest.raises(InputError, match="budget must be positive, got 0"):
        Recipe().scaled(0)
