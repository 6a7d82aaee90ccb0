import numpy as np
import pytest
import torch
from torch import fx, nn

from foresee import networks
from foresee.errors import InputError

BUILDERS = [
    lambda seed=0: networks.vgg16(10, hidden=16, seed=seed),
    lambda seed=0: networks.vgg16(10, hidden=16, batch_norm=True, seed=seed),
    lambda seed=0: networks.small_cnn(10, image_size=8, seed=seed),
    lambda seed=0: networks.slim_cnn(10, image_size=8, seed=seed),
    lambda seed=0: networks.mlp(64, 10, seed=seed),
]


def parameters(model, kind):
    layers = [layer for layer in model.modules() if isinstance(layer, kind)]
    return sum(p.numel() for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("image_size", [32, 64, 96])
def test_vgg16_takes_images_of_32_64_and_96_pixels(image_size):
    model = networks.vgg16(7, image_size, hidden=32).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, image_size, image_size)).shape == (1, 7)


def test_vgg16_has_the_layers_of_configuration_d():
    model = networks.vgg16(10)
    assert parameters(model, nn.Conv2d) == 14_714_688
    assert sum(isinstance(layer, nn.Conv2d) for layer in model) == 13
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linears] == [512, 4096, 4096]
    kinds = [type(layer) for layer in model][-7:]
    assert kinds == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model)


def test_batch_norm_follows_each_convolution_on_request():
    model = networks.vgg16(10, hidden=16, batch_norm=True)
    norms = [layer for layer in model if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == 13
    assert all(bool((norm.weight == 1).all()) for norm in norms)
    assert all(bool((norm.running_var == 1).all()) for norm in norms)


@pytest.mark.parametrize("image_size", [4, 8, 28, 32, 33])
def test_small_cnn_takes_any_image(image_size):
    model = networks.small_cnn(5, image_size, channels=2)
    assert model(torch.zeros(3, 2, image_size, image_size)).shape == (3, 5)
    assert sum(isinstance(layer, nn.Dropout) for layer in model) == 2


def test_mlp_flattens_its_input():
    model = networks.mlp(12, 3, hidden=(8, 7))
    assert model(torch.zeros(2, 3, 4)).shape == model(torch.zeros(2, 12)).shape == (2, 3)
    assert networks.mlp(12, 3, hidden=())(torch.zeros(2, 12)).shape == (2, 3)


@pytest.mark.parametrize("build", BUILDERS)
def test_a_seed_is_all_the_randomness(build):
    state = torch.get_rng_state()
    first, again, other = build(seed=3), build(seed=np.int64(3)), build(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
        assert a.device.type == "cpu"
        assert bool(a.isfinite().all())
    assert not torch.equal(first[-1].weight, other[-1].weight)


@pytest.mark.parametrize("build", BUILDERS)
def test_networks_are_traceable(build):
    model = build().eval()
    kinds = {type(model.get_submodule(node.target)) for node in fx.symbolic_trace(model).graph.nodes
             if node.op == "call_module"}  # fmt: skip
    assert nn.Dropout in kinds


def test_signals_keep_their_size_through_vgg16():
    model = networks.vgg16(10).eval()
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert 0.2 < model(x).std().item() < 5


@pytest.mark.parametrize("build", BUILDERS)
def test_weights_keep_the_size_of_signals_and_the_last_has_no_relu_to_make_up_for(build):
    layers = [layer for layer in build() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        fan_in = layer.weight[0].numel()
        gain = 1 if layer is layers[-1] else 2
        samples = layer.weight.numel()
        expected = pytest.approx(gain, abs=5 * gain * (2 / samples) ** 0.5)
        assert fan_in * layer.weight.double().square().mean().item() == expected
        assert not layer.bias.any()


def test_slim_cnn_has_its_channels_last_in_memory():
    assert networks.slim_cnn(10)[3].weight.is_contiguous(memory_format=torch.channels_last)


def test_statistics_are_those_of_evenly_spaced_images():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 2, 3, 3), np.uint8)
    for sample, rows in ((10_000, slice(None)), (3, [0, 4, 8])):
        some = pixels[rows] / 255
        mean, std = networks.statistics(pixels, sample)
        np.testing.assert_allclose(mean, some.mean((0, 2, 3)), atol=1e-4)
        np.testing.assert_allclose(std, some.std((0, 2, 3)), atol=1e-4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: networks.vgg16(10, 28), "multiple of 32.* got 28: resize or pad"),
        (lambda: networks.vgg16(1), "classes must be at least 2, got 1"),
        (lambda: networks.small_cnn(10, 3), "at least 4.* got 3"),
        (lambda: networks.slim_cnn(10, channels=0), "channels must be at least 1, got 0"),
        (lambda: networks.slim_cnn(10, hidden=0), "hidden must be at least 1, got 0"),
        (lambda: networks.small_cnn(10, dropout=1.0), "dropout must be .* got 1.0"),
        (lambda: networks.mlp(10, 2, hidden=(4, 0)), r"hidden\[1\] must be at least 1, got 0"),
        (lambda: networks.mlp(0, 2), "features must be at least 1, got 0"),
        (lambda: networks.mlp(9, 2.0), "classes must be a whole number, got 2.0"),
        (lambda: networks.mlp(9, 2, 64), r"hidden must be a list of widths, got 64: pass \(64,\)"),
        (lambda: networks.mlp(9, 2, (64.0,)), r"hidden\[0\] must be a whole number, got 64.0"),
        (lambda: networks.vgg16(10, 32.0), "image_size must be a whole number, got 32.0"),
    ],
)
def test_impossible_sizes_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_standardise_needs_a_positive_deviation_for_each_channel():
    with pytest.raises(InputError, match="std must be positive, one for each of the 2 channels"):
        networks.Standardise([0.1, 0.2], [0.3])
    with pytest.raises(InputError, match=r"scaled to 0…1, got \[127.5\]: divide it and std"):
        networks.Standardise([127.5], [63.0])
    with pytest.raises(InputError, match=r"got \[0.0\]"):
        networks.Standardise([0.1], [0.0])


def test_a_channel_that_hardly_varies_is_taken_for_constant():
    pixels = np.full((50, 2, 32, 32), 255, np.uint8)
    pixels[0, 0, 0, 0] = 254
    assert networks.statistics(pixels) == ((1.0, 1.0), (1.0, 1.0))
