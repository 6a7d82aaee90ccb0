"""MC dropout: every draw is one thinned network, whatever the batch, the order or the call."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from foresee import InputError, mell
from foresee.posteriors import split
from foresee.posteriors.dropout import McDropout, mc_dropout
from foresee.posteriors.masks import Masks
from foresee.types import more_draws

T = 7


class Net(nn.Module):
    """A network from a function of its layers, so that each test shows its own wiring."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.wiring = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.wiring(self, x)


def mlp():
    return nn.Sequential(
        nn.Linear(5, 16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(12, 3),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.4),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32, 10),
        nn.BatchNorm1d(10),
        nn.AlphaDropout(0.2),
        nn.Linear(10, 4),
    )


def residual():
    def forward(net, x):
        h = net.enter(x)
        size = h.size(0)  # belongs to the batch: this graph cannot be folded
        h += net.drop(F.relu(net.inner(h)))
        h = h + net.drop2(net.inner(h)).view(size, -1)
        return net.leave(h)

    layers = {"enter": nn.Linear(5, 8), "inner": nn.Linear(8, 8), "leave": nn.Linear(8, 3)}
    return Net(forward, drop=nn.Dropout(0.5), drop2=nn.Dropout(0.3), **layers)


def twice():
    def forward(net, x):
        return net.c(net.drop(net.b(net.drop(net.a(x).relu())).relu()))

    layers = {"a": nn.Linear(5, 8), "b": nn.Linear(8, 8), "c": nn.Linear(8, 3)}
    return Net(forward, drop=nn.Dropout(0.5), **layers)


def branch():
    """One branch drops, the other does not; a parameter and a constant join them."""

    def forward(net, x):
        dropped = net.b(net.drop(net.a(x)))
        return torch.cat([dropped, net.a(x)], 1)[:, :3] * net.gain + torch.ones(3)

    net = Net(forward, a=nn.Linear(5, 6), b=nn.Linear(6, 2), drop=nn.Dropout(0.5))
    net.gain = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    return net


def untraceable():
    def forward(net, x):
        h = net.a(x)
        h = h.relu() if x.isfinite().all() else h
        return net.b(net.drop(h))

    return Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout(0.5))


def transformer():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    encoder.self_attn.dropout = 0.0
    reshape = nn.Unflatten(1, (1, 5))
    return nn.Sequential(reshape, nn.Linear(5, 8), encoder, nn.Flatten(), nn.Linear(8, 3))


FLAT = [mlp, residual, twice, branch]
MODELS = [*FLAT, cnn]


def inputs(make, n=9):
    shape = (1, 6, 6) if make is cnn else (5,)
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))


def built(make):
    """A model whose BatchNorm has seen data, left in training mode."""
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.train()


def by_whole_passes(posterior: McDropout, x: Tensor) -> Tensor:
    """Draws through forward hooks with the posterior's masks, one input at a time."""
    masks, model = posterior.masks(), copy.deepcopy(posterior.model).eval()
    calls: dict[str, int] = {}

    def hook(name, draw):
        def replace(layer, args, _):
            calls[name] = calls.get(name, -1) + 1
            keep = masks[f"{name}:{calls[name]}" if calls[name] else name][draw]
            if not isinstance(layer, nn.AlphaDropout):
                return args[0] * keep / (1 - layer.p)
            alpha, p = -1.7580993408473766, layer.p
            a = ((1 - p) * (1 + p * alpha**2)) ** -0.5
            return a * torch.where(keep, args[0], alpha) - a * alpha * p

        return replace

    rows = []
    for one in x.split(1):
        draws = []
        for k in range(posterior.draws):
            calls.clear()
            handles = [
                model.get_submodule(name).register_forward_hook(hook(name, k))
                for name in masks
                if ":" not in name
            ]
            with torch.no_grad():
                draws.append(model(one).softmax(-1))
            for handle in handles:
                handle.remove()
        rows.append(torch.stack(draws, 1))
    return torch.cat(rows)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- the draws are thinned networks -------------------------------------------------------------


def thinned(model: nn.Sequential, masks: dict[str, Tensor], x: Tensor) -> Tensor:
    """The same MLP from explicit matrices W·diag(mask)/(1 − p), in double precision."""
    first, middle, last = (model[i].double() for i in (0, 3, 6))
    draws = []
    for one, two in zip(masks["2"], masks["5"], strict=True):
        w2 = middle.weight @ torch.diag(one.double()) / (1 - model[2].p)
        w3 = last.weight @ torch.diag(two.double()) / (1 - model[5].p)
        h = torch.relu(x.double() @ first.weight.T + first.bias)
        h = torch.tanh(h @ w2.T + middle.bias)
        draws.append((h @ w3.T + last.bias).softmax(-1))
    return torch.stack(draws, 1).detach()


@pytest.mark.parametrize("n", [4, 100])  # folded, thinned
def test_mell_is_that_of_the_thinned_networks(n):
    model = built(mlp)
    posterior = mc_dropout(model, draws=50, seed=3)
    pool, val = inputs(mlp, n), inputs(mlp, n + 5)[5:] * 2
    draws = posterior.predict(pool), posterior.predict(val)
    double = copy.deepcopy(model)
    exact = [thinned(double, posterior.masks(), x) for x in (pool, val)]
    for ours, theirs in zip(draws, exact, strict=True):
        close(ours.double(), theirs)
    torch.testing.assert_close(
        mell(*draws).double(), mell(*exact).double(), rtol=1e-4, atol=1e-6, check_dtype=False
    )
    doubles = mc_dropout(model.double(), draws=50, seed=3)
    ours = mell(doubles.predict(pool), doubles.predict(val))
    torch.testing.assert_close(ours, mell(*exact), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("n", [1, 3, 80])
def test_every_draw_is_one_whole_pass_with_its_masks(make, n):
    posterior = mc_dropout(built(make), T, seed=1)
    x = inputs(make, n)
    close(posterior.predict(x), by_whole_passes(posterior, x))


def test_masks_keep_the_right_share():
    posterior = mc_dropout(nn.Sequential(nn.Linear(2, 500), nn.Dropout(0.3), nn.Linear(500, 2)), 40)
    posterior.predict(torch.ones(1, 2))
    kept = posterior.masks()["1"]
    assert kept.shape == (40, 500)
    assert abs(kept.double().mean().item() - 0.7) < 4 * (0.21 / kept.numel()) ** 0.5
    assert len({tuple(row.tolist()) for row in kept}) == 40


def test_channel_dropout_drops_whole_channels():
    posterior = mc_dropout(built(cnn), T)
    posterior.predict(inputs(cnn))
    assert {k: tuple(v.shape[1:]) for k, v in posterior.masks().items()} == {
        "3": (6, 1, 1),
        "9": (32,),
        "12": (10,),
    }


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.4), nn.FeatureAlphaDropout(0.4)])
def test_alpha_dropout_maps_as_torch_does(layer):
    """Torch's own masks differ, its two affine maps do not."""
    x = torch.rand(64, 50, 2)  # kept units stay above dropped ones
    theirs = layer.train()(x)
    masks = Masks(64, 0, {layer: ("drop", 0.4)})
    ours = masks.drop("drop", layer, x[:1], slice(0, 64), 1)
    a = ((1 - 0.4) * (1 + 0.4 * 1.7580993408473766**2)) ** -0.5
    dropped = theirs.amin()  # units at −α, moved by the affine map
    kept = masks.kept["drop"].expand_as(ours)
    close(ours[~kept], dropped.expand_as(ours[~kept]))
    shift = a * 1.7580993408473766 * 0.4
    close(ours[kept], (a * x[:1] + shift).expand_as(ours)[kept])
    taken = theirs > dropped + 1e-6
    close(theirs[taken], (a * x + shift)[taken])


def test_a_layer_called_twice_has_two_masks():
    posterior = mc_dropout(built(twice), T)
    posterior.predict(inputs(twice))
    one, two = posterior.masks()["drop"], posterior.masks()["drop:1"]
    assert not torch.equal(one, two)


# --- the same draws everywhere ------------------------------------------------------------------


@pytest.mark.parametrize("make", [*MODELS, untraceable])
@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_batches_orders_and_calls_share_draws(make):
    model, x = built(make), inputs(make)
    whole = mc_dropout(model, T).predict(x)
    assert whole.shape == (9, T, 4 if make is cnn else 3)
    assert not whole.requires_grad
    close(whole.sum(-1), torch.ones(9, T))
    for batch in (1, 3):
        close(mc_dropout(model, T, batch=batch).predict(x), whole)
    posterior = mc_dropout(model, T)
    close(posterior.predict(x.flip(0)).flip(0), whole)
    close(posterior.predict(x[4:]), whole[4:])  # a pool and a validation set
    close(posterior.predict(x), whole)
    same = posterior.predict(x[:1].repeat(5, *(1 for _ in x.shape[1:])))
    close(same, whole[:1].expand_as(same))
    assert whole.std(1).amax() > 1e-3


def test_seeds_and_draws():
    model, x = built(mlp), inputs(mlp)
    few = mc_dropout(model, 3).predict(x)
    close(mc_dropout(model, 8).predict(x)[:, :3], few)
    assert (mc_dropout(model, 3, seed=1).predict(x) - few).abs().max() > 1e-3


def test_global_randomness_is_left_alone():
    model, x = built(cnn), inputs(cnn)
    state = torch.get_rng_state()
    mc_dropout(model, T).predict(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_kinds_of_inputs_agree():
    posterior, x = mc_dropout(built(mlp), T), inputs(mlp)
    whole, data = posterior.predict(x), TensorDataset(x, torch.zeros(len(x)))
    for same in (x.numpy(), x.double().numpy(), data, DataLoader(data, 4), DataLoader(x, 2)):
        close(posterior.predict(same), whole)
        close(posterior.point(same), posterior.point(x))
        close(posterior.embed(same), posterior.embed(x))
    with pytest.raises(InputError, match="shuffle=False"):
        posterior.predict(DataLoader(data, 4, shuffle=True))


class Bytes(nn.Module):
    """A first layer that reads bytes in whatever precision the network has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([100.0, 150.0]).view(2, 1, 1))

    def forward(self, x):
        return (x.to(self.mean.dtype) - self.mean) / 64


def test_images_of_bytes():
    model = built(lambda: nn.Sequential(Bytes(), nn.Flatten(), nn.Linear(2 * 9, 5), *mlp()))
    bytes_ = torch.randint(256, (90, 2, 3, 3), dtype=torch.uint8)
    plain, x = mc_dropout(model.double()[1:], T), (bytes_ - model[0].mean) / 64
    posterior = mc_dropout(model, T, batch=80)  # thinned, then folded
    data = TensorDataset(bytes_)
    for same in (bytes_, bytes_.numpy(), data, DataLoader(data, 80)):
        probs = posterior.predict(same)
        close(probs, by_whole_passes(posterior, bytes_))
        close(posterior.point(same), plain.point(x))
        close(posterior.embed(same), plain.embed(x))
    assert None not in posterior._plans.values()  # nothing ran whole
    assert probs.dtype == torch.float64
    model.float()  # a trace of the first layer holds on to the precision it had then
    close(posterior.predict(bytes_), probs.float())


def test_weights_are_those_of_the_live_model():
    model, x = built(mlp), inputs(mlp)
    posterior = mc_dropout(model, T)
    before = posterior.predict(x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert (posterior.predict(x) - before).abs().max() > 1e-3
    close(posterior.predict(x), mc_dropout(model, T).predict(x))


@pytest.mark.parametrize("change", [lambda m: setattr(m[2], "p", 0.1), lambda m: m.pop(5)])
def test_dropout_layers_must_stay_as_they_were(change):
    model = built(mlp)
    posterior = mc_dropout(model, T)
    change(model)
    with pytest.raises(InputError, match="call mc_dropout again"):
        posterior.predict(inputs(mlp))


# --- dropout in place, and dropout of no effect ---------------------------------------------------


def statement():
    """Calls its dropout for what it leaves in place."""

    def forward(net, x):
        h = net.a(x).relu()
        net.drop(h)
        return net.b(h)

    return Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout(inplace=True))


def shared():
    """Adds what its dropout wrote over."""

    def forward(net, x):
        h = net.a(x).relu()
        return net.b(net.drop(h) + h)

    return Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout(inplace=True))


@pytest.mark.parametrize("make", [statement, shared])
@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_dropout_in_place_is_honoured(make):
    model, x = built(make), inputs(mlp, 70)
    posterior = mc_dropout(model, T)
    probs = posterior.predict(x)
    times = {statement: 1, shared: 2}[make]
    with torch.no_grad():
        h = model.a(x).relu()[:, None] * posterior.masks()["drop"] * 2 * times
        close(probs, model.b(h).softmax(-1))
    close(mc_dropout(model, T, batch=1).predict(x), probs)


@pytest.mark.parametrize(
    ("trick", "whole"), [(lambda x: x, False), (lambda x: x if x.isfinite().all() else 2 * x, True)]
)
@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_a_forward_that_writes_to_its_inputs(trick, whole):
    """Whether it is traced or run whole, each draw gets the inputs as they came."""

    def forward(net, x):
        return net.b(net.drop(net.a(trick(x).mul_(2))))

    model = built(lambda: Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout()))
    plain = Net(lambda n, x: n.b(n.drop(n.a(2 * x))), **dict(model.named_children()))
    x = inputs(mlp)
    posterior = mc_dropout(model, T)
    close(posterior.predict(x), mc_dropout(plain, T).predict(x))
    (plan,) = posterior._plans.values()
    assert plan is None if whole else plan.folds
    assert torch.equal(x, inputs(mlp))


def test_dropout_in_place_of_the_usual_kind_is_still_thinned():
    model, x = built(mlp), inputs(mlp, 70)
    expected = mc_dropout(model, T).predict(x)
    model[2].inplace = model[5].inplace = True
    posterior = mc_dropout(model, T)
    assert torch.equal(posterior.predict(x), expected)
    assert None not in posterior._plans.values()


def test_equal_draws_are_refused():
    whole = nn.Sequential(nn.Linear(5, 8), nn.Dropout(1.0), nn.Linear(8, 3))
    with pytest.raises(InputError, match=r"keep the same units.*between 0 and 1 for {'1': 1.0}"):
        mc_dropout(whole, T).predict(inputs(mlp))
    model = head(lambda net, h: h)
    mc_dropout(model, T).predict(inputs(mlp))  # the same, but for its wiring
    ignored = Net(lambda n, x: (n.drop(n.a(x)), n.b(n.a(x)))[1], **dict(model.named_children()))
    posterior = mc_dropout(ignored, T)
    with pytest.raises(InputError, match=r"all draws are equal for these 9 inputs.*depend on what"):
        posterior.predict(inputs(mlp))


def test_blank_inputs_may_have_equal_draws():
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Dropout(), nn.Linear(8, 3))
    probs = mc_dropout(model, T).predict(torch.zeros(3, 5))
    close(probs, probs[:, :1].expand_as(probs))
    half = torch.cat([torch.zeros(20, 5), inputs(mlp)])
    assert mc_dropout(model, T).predict(half).std(1).amax() > 0


# --- point and embed ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*MODELS, untraceable])
def test_point_and_embed_are_those_of_the_model_itself(make):
    model, x = built(make), inputs(make)
    posterior = mc_dropout(model, T, batch=4)
    reference, seen = copy.deepcopy(model).eval(), []
    linears = [m for m in reference.modules() if isinstance(m, nn.Linear)]
    for layer in linears:
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        close(posterior.point(x), reference(x).softmax(-1))
    close(posterior.embed(x), seen[-1])
    assert not posterior.embed(x).requires_grad


def test_declared_probabilities_are_not_softmaxed_again():
    model, x = built(mlp), inputs(mlp)
    probs = mc_dropout(nn.Sequential(*model, nn.Softmax(-1)), T, outputs="probs").predict(x)
    close(probs, mc_dropout(model, T).predict(x))


# --- the model is given back --------------------------------------------------------------------


def snapshot(model):
    return (
        {k: v.clone() for k, v in model.state_dict().items()},
        [(sorted(vars(m)), m.training) for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [(id(p), p.requires_grad) for p in model.parameters()],
    )


def same(a, b):
    return all(torch.equal(a[0][k], b[0][k]) for k in a[0]) and a[1:] == b[1:]


@pytest.mark.parametrize("make", [*MODELS, untraceable])
@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_the_model_is_given_back_untouched(make):
    model, x = built(make), inputs(make)
    next(iter(model.children())).eval()  # a frozen part stays frozen
    next(iter(model.parameters())).requires_grad_(False)
    before, posterior = snapshot(model), mc_dropout(model, T)
    for method in (posterior.predict, posterior.point, posterior.embed):
        method(x)
        assert same(snapshot(model), before)
        with pytest.raises(RuntimeError):
            method(torch.zeros(2, 77, 2, 2, 2))
        assert same(snapshot(model), before)


def test_an_error_amid_the_draws_leaves_the_model_untouched():
    def forward(net, x):
        if len(x) > 16:
            raise RuntimeError("too many")
        return net.b(net.drop(net.a(x)))

    model = built(lambda: Net(forward, a=nn.Linear(5, 4), b=nn.Linear(4, 3), drop=nn.Dropout()))
    before, posterior = snapshot(model), mc_dropout(model, T)
    with pytest.warns(UserWarning, match="whole model"), pytest.raises(RuntimeError, match="many"):
        posterior.predict(inputs(mlp, 20))
    assert same(snapshot(model), before)


def test_forward_in_training_mode_is_looked_at_without_a_trace():
    """Buffers that a module updates in training, and what forward stores, stay as they were."""

    def forward(net, x):
        if net.training:
            net.seen += 1
        net.last = x
        return net.b(net.drop(net.a(x)))

    model = Net(forward, a=nn.Linear(5, 4), b=nn.Linear(4, 3), drop=nn.Dropout()).train()
    model.register_buffer("seen", torch.zeros(()))
    mc_dropout(model, T).predict(inputs(mlp))
    assert model.seen == 0
    assert not hasattr(model, "last")


# --- both ways agree ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("n", [2, 90])
def test_the_split_network_equals_whole_passes(make, n, monkeypatch):
    model, x = built(make), inputs(make, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no fallback here
        probs = mc_dropout(model, T).predict(x)
    monkeypatch.setattr(split._Tracer, "trace", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="division by zero"):
        close(mc_dropout(model, T).predict(x), probs)


@pytest.mark.parametrize("make", [mlp, cnn, residual, twice, branch])
def test_a_long_batch_passes_the_trunk_in_parts(make, monkeypatch):
    model, x = built(make), inputs(make, 70)
    whole = mc_dropout(model, T).predict(x)
    monkeypatch.setattr(split, "_TRUNK_ROWS", 32)
    posterior = mc_dropout(model, T)
    close(posterior.predict(x), whole)
    close(by_whole_passes(posterior, x), whole)


def test_the_trunk_runs_once(monkeypatch):
    model, sizes = built(mlp), []
    posterior = mc_dropout(model, T)
    posterior.predict(inputs(mlp, 90))
    model[0].register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    posterior.predict(inputs(mlp, 90))
    assert sizes == [90]
    sizes.clear()
    monkeypatch.setattr(split, "_TRUNK_ROWS", 64)
    posterior.predict(inputs(mlp, 90))
    assert sizes == [64, 26]


class Live(TorchDispatchMode):
    """The most bytes that results of operations ever held at once, those of ``known`` left out."""

    def __init__(self, *known):
        super().__init__()
        self.known = {StorageWeakRef(x.untyped_storage()).cdata for x in known}
        self.held, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.held = {k: v for k, v in self.held.items() if not v[0].expired()}
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference.cdata not in self.known:
                    self.held[reference.cdata] = reference, storage.nbytes()
        self.most = max(self.most, sum(size for _, size in self.held.values()))
        return out


@pytest.mark.parametrize("make", [*MODELS, untraceable])
@pytest.mark.parametrize("batch", [8, 64])  # folded; one by one, thinned
@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_memory_does_not_grow_with_the_inputs_beyond_the_output(make, batch, monkeypatch):
    # It makes a trace, whose constants are a few bytes that wait for the collector of cycles.
    monkeypatch.setattr(split.Split, "is_current", lambda self: True)
    model = built(make)
    posterior = mc_dropout(model, T, batch=batch)
    posterior.predict(inputs(make))

    def extra(n, method):
        x = inputs(make, n)
        with Live(x, *model.parameters(), *model.buffers()) as live:
            out = method(x)
        return live.most - out.nbytes

    for method in (posterior.predict, posterior.point, posterior.embed):
        assert 0 < extra(10 * batch, method) <= extra(2 * batch, method)


def test_a_traced_graph_that_lies_is_not_believed():
    def forward(net, x):
        h = net.a(x)
        h = h if isinstance(x, Tensor) else 2 * h  # a tracer's proxy is no tensor
        return net.b(net.drop(h))

    model = built(lambda: Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout()))
    posterior, x = mc_dropout(model, T), inputs(mlp)
    with pytest.warns(UserWarning, match="other numbers"):
        probs = posterior.predict(x)
    close(probs, by_whole_passes(posterior, x))


def test_logits_among_other_outputs_are_traced_too():
    model = built(mlp)
    named = Net(lambda n, x: {"logits": n.layers(x)}, layers=model)
    expected = mc_dropout(model, T).predict(inputs(mlp))  # the masks have other names
    posterior = mc_dropout(named, T)
    probs = posterior.predict(inputs(mlp))  # to run whole would be a warning, an error here
    assert None not in posterior._plans.values()
    assert probs.shape == expected.shape


@pytest.mark.parametrize("n", [9, 150])  # folded, thinned
@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "temperature", 2.0),
        lambda net: setattr(net, "drop_again", True),
        lambda net: net.scale.fill_(3),
        lambda net: net.shift.copy_(torch.arange(3)),
        lambda net: net.b.register_forward_hook(lambda _, args, out: 2 * out),
    ],
)
def test_what_a_trace_holds_is_that_of_the_live_model(change, n):
    def forward(net, x):
        h = net.drop(net.a(x))
        h = net.drop(h) if net.drop_again else h
        return net.b(h) / net.temperature * float(net.scale) + 2 * net.shift

    model = Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=nn.Dropout())
    model.temperature, model.drop_again = 1.0, False
    model.register_buffer("scale", torch.ones(()))
    model.register_buffer("shift", torch.zeros(3))
    posterior, x = mc_dropout(model, T), inputs(mlp, n)
    before = posterior.predict(x)
    plans = dict(posterior._plans)
    assert torch.equal(posterior.predict(x), before)
    assert posterior._plans == plans  # nothing was planned anew
    change(model)
    after = posterior.predict(x)
    assert torch.equal(after, mc_dropout(model, T).predict(x))
    assert (after - before).abs().amax() > 1e-3


def test_untraceable_models_run_whole_and_say_so_once():
    posterior, x = mc_dropout(built(untraceable), T), inputs(mlp)
    with pytest.warns(UserWarning, match="whole model 7 times") as caught:
        probs = posterior.predict(x)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    close(posterior.predict(x), probs)  # a second warning would be an error
    posterior.predict(x.double())
    close(probs, by_whole_passes(posterior, x))


@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_transformer_layers_use_their_dropout():
    posterior, x = mc_dropout(built(transformer), T), inputs(mlp)
    probs = posterior.predict(x)
    assert len(posterior.masks()) == 3
    close(probs, by_whole_passes(posterior, x))
    assert torch.backends.mha.get_fastpath_enabled()


def test_compiled_models_are_unwrapped():
    model, x = built(mlp), inputs(mlp)
    compiled = torch.compile(model, backend="eager")
    close(mc_dropout(compiled, T).predict(x), mc_dropout(model, T).predict(x))
    spread = nn.DataParallel(torch.compile(model, backend="eager"))
    close(mc_dropout(spread, T).predict(x), mc_dropout(model, T).predict(x))


@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_compiled_parts_are_not_compiled_again():
    model, x = built(mlp), inputs(mlp)
    compiled = copy.deepcopy(model)
    compiled[0] = torch.compile(compiled[0], backend="eager", fullgraph=True)
    close(mc_dropout(compiled, T).predict(x), mc_dropout(model, T).predict(x))
    inner = nn.Sequential(torch.compile(model, backend="eager", fullgraph=True))
    assert mc_dropout(inner, T).predict(x).std(1).max() > 0.01


class Locked(nn.Dropout):
    """One mask for the whole batch, as some language models have it."""

    def forward(self, x):
        return x * torch.bernoulli(torch.ones_like(x[:1])) if self.training else x


# --- bad input ----------------------------------------------------------------------------------


def head(middle=None, drop=None, **more):
    """A small network whose forward is ``middle(net, hidden)`` between two linear layers."""

    def forward(net, x):
        return net.b(net.drop(middle(net, net.a(x)) if middle else net.a(x)))

    return Net(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 3), drop=drop or nn.Dropout(), **more)


def functional(net, h):
    return F.dropout(h, 0.5, net.training)


def only_in_training(net, h):
    return F.dropout(h, 0.5) if net.training else h


def attention(net, h):
    q = h[:, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1 if net.training else 0.0)[:, 0]


def folded(net, h):
    return net.drop2(h.reshape(-1, 4)).reshape(-1, 8)


def sequence_first(net, h):
    return net.drop2(h.reshape(-1, 2, 4).transpose(0, 1)).transpose(0, 1).flatten(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(5, 3), "no dropout layer"),
        (lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 3)), "no dropout layer"),
        (lambda: head(attn=nn.MultiheadAttention(8, 2, 0.1)), "attn is an nn.MultiheadAttention"),
        (lambda: head(rnn=nn.LSTM(8, 8, 2, dropout=0.1)), "rnn is an nn.LSTM .* one-layer"),
        (lambda: head(rnn=nn.GRU(8, 8, 2, dropout=0.1)), "rnn is an nn.GRU"),
        (lambda: head(functional), "calls dropout in forward.*nn.Dropout module"),
        (lambda: head(only_in_training), "calls dropout in forward"),
        (lambda: head(attention), "calls scaled_dot_product_attention"),
        (lambda: head(folded, drop2=nn.Dropout()), "'drop2' reads .* place in the batch"),
        (lambda: head(sequence_first, drop2=nn.Dropout()), "'drop2' reads .* place in the batch"),
        (lambda: head(drop=Locked()), "'drop' is a .*Locked, with a forward of its own"),
        (lambda: head(drop=nn.Dropout1d()), "'drop' reads .* place in the batch"),
        (lambda: Net(lambda n, x: n.d(x).mean(), d=nn.Dropout()), r"must return \[n c\].*got \[\]"),
        (lambda: Net(lambda n, x: (n.d(x), x), d=nn.Dropout()), r"must return \[n c\].*got tuple"),
        (lambda: nn.Sequential(mlp(), nn.Softmax(-1)), 'pass outputs="probs"'),
    ],
)
def test_models_whose_masks_cannot_be_fixed(make, message):
    with pytest.raises(InputError, match=message):
        mc_dropout(make(), T).predict(inputs(mlp))


def test_functional_dropout_of_nothing_is_fine():
    model = built(lambda: head(lambda net, h: F.dropout(h, 0.0, net.training)))
    mc_dropout(model, T).predict(inputs(mlp))


@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
@pytest.mark.parametrize("traced", [True, False])
def test_masks_that_would_depend_on_the_input(traced, monkeypatch):
    if not traced:
        monkeypatch.setattr(split._Tracer, "trace", lambda *_: 1 / 0)
    layers = {"conv": nn.Conv1d(1, 4, 3), "drop": nn.Dropout(), "out": nn.Linear(4, 3)}
    model = Net(lambda n, x: n.out(n.drop(n.conv(x)).mean(-1)), **layers)
    posterior = mc_dropout(model, T)
    posterior.predict(torch.randn(4, 1, 10))
    with pytest.raises(InputError, match=r"'drop' met .*\[4, 10\] after \[4, 8\].*pad"):
        posterior.predict(torch.randn(4, 1, 12))
    channels = mc_dropout(Net(model.wiring, **layers | {"drop": nn.Dropout1d()}), T)
    for length in (10, 12):  # one value for each channel: any length will do
        assert channels.predict(torch.randn(4, 1, length)).shape == (4, T, 3)


@pytest.mark.filterwarnings("ignore:mc_dropout runs the whole model")
def test_calls_that_depend_on_the_input():
    def middle(net, h):
        return net.drop(h) if float(h.sum()) > 0 else h

    model = head(middle, drop=nn.Dropout())
    with torch.no_grad():
        model.a.weight.fill_(1.0)
    posterior = mc_dropout(model, T)
    posterior.predict(torch.ones(3, 5))
    with pytest.raises(InputError, match="equally often"):
        posterior.predict(-torch.ones(3, 5))


def test_inputs_that_failed_do_not_bind_the_next():
    layers = {"conv": nn.Conv1d(1, 4, 3), "drop": nn.Dropout(), "out": nn.Linear(32, 3)}
    model = Net(lambda n, x: n.out(n.drop(input=n.conv(x)).flatten(1)), **layers)
    posterior = mc_dropout(model, T)
    with pytest.raises(RuntimeError, match="shapes"):
        posterior.predict(torch.randn(4, 1, 12))
    assert posterior.predict(torch.randn(4, 1, 10)).shape == (4, T, 3)


def test_bad_arguments():
    model = built(mlp)
    for draws in (1, 0, True, 2.0):
        with pytest.raises(InputError, match="draws must be a whole number, at least 2"):
            mc_dropout(model, draws)
    with pytest.raises(InputError, match="seed must be a whole number, at least 0, got -1"):
        mc_dropout(model, seed=-1)
    with pytest.raises(InputError, match="model must be a torch"):
        mc_dropout("model")
    with pytest.raises(InputError, match="returned 3 classes, expected 4"):
        mc_dropout(model, T, classes=4).predict(inputs(mlp))
    with pytest.raises(InputError, match="outputs must be"):
        mc_dropout(model, T, outputs="scores").predict(inputs(mlp))
    with pytest.raises(InputError, match="no penultimate representation"):
        mc_dropout(nn.Sequential(nn.Flatten(), nn.Dropout()), T).embed(inputs(mlp))
    with pytest.raises(InputError, match="inputs must be real numbers, got <U4"):
        mc_dropout(model, T).predict(["text", "more"])
    with torch.no_grad():
        model[0].weight[0, 0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        mc_dropout(model, T).predict(inputs(mlp))


def test_out_of_memory_halves_the_batch(monkeypatch):
    posterior, x = mc_dropout(built(mlp), T), inputs(mlp)
    whole, sample = posterior.predict(x), McDropout._sample

    def fragile(self, x):
        if len(x) > 3:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return sample(self, x)

    monkeypatch.setattr(McDropout, "_sample", fragile)
    with pytest.warns(UserWarning, match=r"going on in batches of [23];") as said:
        close(posterior.predict(x), whole)
    assert len(said) == 1  # however often it had to be halved


def test_more_draws_begin_with_those_that_were():
    posterior, x = mc_dropout(mlp(), draws=5, seed=3), inputs(mlp, 7)
    more = more_draws(posterior, 12)
    assert more.predict(x).shape[1] == 12
    assert torch.equal(more.predict(x)[:, :5], posterior.predict(x))
    assert more_draws(more, 8) is more
