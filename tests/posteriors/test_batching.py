"""What every posterior of a network shares: kinds of inputs, refusals, precision, threads."""

import copy
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.naive_bayes import GaussianNB
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from foresee import InputError, arrays, mell
from foresee.networks import Standardise, mlp
from foresee.posteriors import ensemble, mc_dropout, members, point, sgld
from foresee.posteriors.batching import penultimate, probabilities
from foresee.posteriors.laplace import LastLayer, _output_layer
from foresee.recipe import Recipe
from foresee.testing import check_sampler
from foresee.training import fit

pytestmark = pytest.mark.usefixtures("one_thread")


def network(seed=0):
    return mlp(4, 3, hidden=(16, 8), seed=seed)


def rows(n=20):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


def last_layer(model):
    torch.manual_seed(0)
    return LastLayer(model, torch.randn(5, 3, 8), torch.randn(5, 3))


def chain(model):
    y = np.arange(20) % 3
    return sgld(model, rows(), y, draws=3, burn_in=2, thin=1, rng=np.random.default_rng(0))


WRAPPERS = {
    "mc_dropout": lambda model: mc_dropout(model, 5),
    "ensemble": lambda model: ensemble([network(1), model]),
    "point": point,
    "sgld": chain,
    "last_layer": last_layer,
}


def answers(posterior, x):
    """All that a posterior says."""
    names = ("point", "embed") if hasattr(posterior, "outputs") else ("predict", "point", "embed")
    return [getattr(posterior, name)(x) for name in names]


# --- networks whose answer is another at every call ---------------------------------------------


class Noisy(nn.Sequential):
    """Random whether it is trained or not."""

    def forward(self, x):
        h = super().forward(x)
        return h * (torch.rand_like(h) > 0.5)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_network_that_is_random_in_eval_mode_is_refused(wrapper):
    for method in ("predict", "point", "embed"):
        if (wrapper, method) in {("point", "predict"), ("ensemble", "embed")}:
            continue  # without draws; of the first member alone
        with pytest.raises(InputError, match=r"random in eval mode.*self\.training"):
            getattr(WRAPPERS[wrapper](Noisy(*network())), method)(rows())


def test_one_row_is_looked_at_more_often_than_many():
    class Late(nn.Sequential):
        calls = 0

        def forward(self, x):
            Late.calls += 1
            return super().forward(x) + (Late.calls > 3)

    with pytest.raises(InputError, match="random in eval mode"):
        point(Late(*network())).point(rows(1))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("n", [1, 20])
def test_batch_norm_without_statistics_is_refused(wrapper, n):
    model = network()
    model.insert(2, nn.BatchNorm1d(16, track_running_stats=False))
    with pytest.raises(InputError, match=r"2 is a BatchNorm without running stat.*depend on the b"):
        WRAPPERS[wrapper](model).point(rows(n))


class Recurrent(nn.Module):
    """Takes rows for steps in time unless told that they are the batch."""

    def __init__(self, batch_first):
        super().__init__()
        self.rnn = nn.LSTM(4, 16, batch_first=batch_first)
        self.head = network()[4:]

    def forward(self, x):
        steps, _ = self.rnn(x[:, None].expand(-1, 3, -1))
        return self.head(steps[:, -1])


class Centred(nn.Sequential):
    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("make", [lambda: Recurrent(False), lambda: Centred(*network())])
def test_a_network_that_mixes_rows_is_refused(wrapper, make):
    with pytest.raises(InputError, match=r"depends on the rows beside it.*batch_first"):
        WRAPPERS[wrapper](make()).point(rows())


def test_rows_that_are_all_equal_do_not_clear_a_network_of_mixing():
    posterior = point(Centred(*network()))
    assert posterior.point(torch.zeros(20, 4)).shape == (20, 3)
    with pytest.raises(InputError, match="depends on the rows beside it"):
        posterior.point(rows())


class Rounding(nn.Sequential):
    """Rounds by the size of the batch, as kernels in half precision do; tells it in float32."""

    def forward(self, x):
        return super().forward(x).float() * (1.05 if len(x) > 2 else 1.0)


def test_half_precision_may_round_by_the_size_of_the_batch():
    point(Rounding(*network()).bfloat16()).point(rows())
    mc_dropout(Rounding(*network()), precision="bfloat16").point(rows())
    with pytest.raises(InputError, match="depends on the rows beside it"):
        point(Rounding(*network())).point(rows())


def test_rows_of_a_recurrent_network_are_their_own():
    posterior = mc_dropout(Recurrent(True), 4)
    one = [posterior.predict(row[None]) for row in rows(3)]  # alone, then together
    torch.testing.assert_close(posterior.predict(rows(3)), torch.cat(one))


def test_instance_norm_has_no_batch_to_depend_on():
    model = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 2)
    )
    check_sampler(lambda: mc_dropout(model, 5), rows(), model=model)


# --- kinds of inputs ----------------------------------------------------------------------------


def kinds(x):
    """The same rows in other containers."""
    data = TensorDataset(x, torch.zeros(len(x)))
    return {
        "list of tensors": list(x),
        "list of lists": x.tolist(),
        "list of tuples": [tuple(row) for row in x.tolist()],
        "list of pairs": [(row.numpy(), 1) for row in x],
        "sparse": sparse.csr_matrix(x.numpy()),
        "backwards": x.numpy()[::-1].astype(">f8")[::-1],
        "dataset": data,
        "loader": DataLoader(data, 3),
        "rows of a view": arrays.rows("pool", x.tolist()),
    }


@pytest.mark.parametrize("kind", kinds(rows()))
def test_kinds_of_inputs(kind):
    posterior, x = mc_dropout(network(), 5, batch=6), rows()
    for ours, expected in zip(
        answers(posterior, kinds(x)[kind]), answers(posterior, x), strict=True
    ):
        torch.testing.assert_close(ours, expected)


def test_frames():
    pandas = pytest.importorskip("pandas")
    x = rows()
    frame = pandas.DataFrame(x.numpy(), index=np.random.default_rng(0).permutation(20))
    posterior = mc_dropout(network(), 5)
    torch.testing.assert_close(posterior.predict(frame), posterior.predict(x))
    with pytest.raises(InputError, match="inputs must be real numbers, got"):
        posterior.predict(frame.astype(str))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(4), torch.zeros(3)], r"inputs must be of one shape .*: pad or resize"),
        ([[1.0] * 4, [1.0]], "inputs must be of one shape"),
        ({"a": torch.zeros(2, 4)}, r"columns \['a'\], but the model's forward takes \['input'\]"),
        ({"a": torch.zeros(2, 4), "b": torch.zeros(3)}, "columns of one length, got {'a': 2, 'b'"),
        (torch.zeros(2, 4, dtype=torch.uint8), "cannot read inputs of torch.uint8.*Standardise"),
        (np.zeros((2, 4), int), "cannot read inputs of torch.int64.*pass floats"),
        (7, "inputs must hold rows that can be counted"),
    ],
)
def test_inputs_that_cannot_be_read(inputs, message):
    model = network()[1:]
    for method in (mc_dropout(model, 5).predict, ensemble([model, network()]).predict):
        with pytest.raises(InputError, match=message):
            method(inputs)


class Augmented(Dataset):
    """Rows as they are made for training, whole or beside others."""

    def __init__(self, kind, noise):
        self.kind, self.noise = kind, noise

    def __len__(self):
        return 12

    def __getitem__(self, i):
        x = torch.full((4,), torch.nan if i == 0 and not self.noise else 1.0 * i)
        return self.kind(x + self.noise * torch.rand(4))


@pytest.mark.parametrize(
    "kind", [lambda x: x, lambda x: (x.numpy(), 1), lambda x: {"name": "row", "input": x}]
)
def test_random_transforms_are_for_training(kind):
    for posterior in (point(network()[0]), members([GaussianNB().fit(np.eye(4), [0, 1] * 2)] * 2)):
        with pytest.raises(InputError, match=r"first row is another at every read.* transforms"):
            posterior.point(Augmented(kind, 1.0))
    with pytest.raises(InputError, match="NaN"):  # of the rows themselves
        point(network()[0]).point(Augmented(kind, 0.0))


def test_bytes_are_read_where_a_network_can():
    model = nn.Sequential(Standardise([0.5], [0.3]), *mlp(4, 3))
    images = torch.randint(256, (9, 1, 2, 2), dtype=torch.uint8)
    assert mc_dropout(model, 5).predict(images).shape == (9, 5, 3)


def test_pixels_from_0_to_1_are_refused_where_bytes_are_expected():
    model = nn.Sequential(Standardise([0.5], [0.3]), *mlp(4, 3))
    images = torch.randint(256, (40, 1, 2, 2), dtype=torch.uint8)
    posterior = mc_dropout(model, 5)
    assert torch.equal(posterior.predict(images.float()), posterior.predict(images))
    few = images[:15] / 255
    assert posterior.predict(few).shape == (15, 5, 3)  # dark, for all that is known
    for inputs in (images / 255, DataLoader(images / 255, 20)):
        with pytest.raises(InputError, match=r"floats from 0 to 1, but .*Standardise.*pass the b"):
            posterior.predict(inputs)
    assert posterior.predict((images > 127).float()).shape == (40, 5, 3)


@pytest.mark.parametrize("make", [torch.Tensor.clone, torch.Tensor.numpy])
def test_the_callers_inputs_are_never_written_to(make):
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(inplace=True), nn.Linear(4, 3))
    x = make(rows())
    before = copy.deepcopy(x)
    for posterior in (mc_dropout(model, 5), ensemble([model, copy.deepcopy(model)]), point(model)):
        for said in answers(posterior, x):
            assert said.isfinite().all()
    fit(model, x, np.arange(20) % 3, Recipe(2, batch=8), np.random.default_rng(0))
    _output_layer(model, torch.as_tensor(x))
    assert (x == before).all()


# --- inputs by name, logits among other outputs ------------------------------------------------


class Text(nn.Module):
    """As Hugging Face's classifiers are called and answer."""

    def __init__(self, answer):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.drop, self.out = nn.Embedding(9, 8), nn.Dropout(), nn.Linear(8, 3)
        self.answer = answer

    def forward(self, input_ids, attention_mask=None, labels=None, **rest):
        assert labels is None
        assert not rest
        h = self.drop(self.words(input_ids))
        h = (h * attention_mask[..., None]).sum(1) / attention_mask.sum(1)[:, None]
        return self.answer(self.out(h))


ANSWERS = {
    "tensor": lambda y: y,
    "dict": lambda y: {"loss": None, "logits": y},
    "attribute": lambda y: SimpleNamespace(logits=y),
    "named tuple": lambda y: namedtuple("Output", "loss logits")(None, y),
}


def tokens(n=12):
    rng = torch.Generator().manual_seed(0)
    mask = (torch.arange(5) < torch.randint(1, 6, (n, 1), generator=rng)).long()
    return {"input_ids": torch.randint(9, (n, 5), generator=rng), "attention_mask": mask}


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def texts():
    """The same texts as they come from tokenisers, datasets and collators."""
    columns = tokens()
    items = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    numbers = [{key: value.tolist() for key, value in item.items()} for item in items]
    labelled = [{**item, "labels": 1, "text": "words"} for item in items]
    return {
        "labelled columns": columns | {"labels": torch.ones(12), "text": ["words"] * 12},
        "list of dicts": items,
        "dicts of numbers": numbers,
        "dicts with labels": labelled,
        "dataset": Items(labelled),
        "dataset of pairs": Items([(item, 1) for item in items]),
        "loader": DataLoader(Items(items), 5),
        "view": arrays.rows("pool", columns),
    }


@pytest.mark.parametrize("kind", texts())
@pytest.mark.parametrize("answer", ANSWERS)
def test_inputs_by_name_and_logits(kind, answer):
    model = Text(ANSWERS[answer])
    plain = Text(ANSWERS["tensor"]).eval()
    columns, inputs = tokens(), texts()[kind]
    posterior = mc_dropout(model, 5, batch=7)
    with torch.no_grad():
        expected = plain(**columns).softmax(-1)
    torch.testing.assert_close(posterior.point(inputs), expected)
    torch.testing.assert_close(point(model).point(inputs), expected)
    torch.testing.assert_close(ensemble([model, plain]).predict(inputs)[:, 0], expected)
    torch.testing.assert_close(posterior.embed(inputs), point(plain).embed(columns))
    probs = posterior.predict(inputs)
    kept = posterior.masks()["drop"]
    assert kept.shape == (5, 5, 8)
    with torch.no_grad():
        h = plain.words(columns["input_ids"])[:, None] * kept * 2  # [n t words d]
        mask = columns["attention_mask"]
        h = (h * mask[:, None, :, None]).sum(2) / mask.sum(1)[:, None, None]
        torch.testing.assert_close(probs, plain.out(h).softmax(-1))


def test_columns_are_refused_where_one_tensor_is_trained_on():
    y, rng = np.arange(12) % 3, np.random.default_rng(0)
    with pytest.raises(InputError, match=r"columns \['input_ids', 'attention_mask'\].*one tensor"):
        sgld(Text(ANSWERS["tensor"]), tokens(), y, rng=rng)


def test_a_forward_that_takes_anything_gets_every_column():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Text(ANSWERS["dict"])

        def forward(self, **columns):
            return self.inner(**columns)

    columns = tokens()
    torch.testing.assert_close(
        point(Wrapper()).point(columns | {"label": torch.ones(12), "label_ids": torch.ones(12)}),
        point(Text(ANSWERS["tensor"])).point(columns),
    )


def test_columns_are_handed_on_through_wrappers():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Adapted(Text(ANSWERS["tensor"]))

        def forward(self, input_ids, **more):
            return self.inner(input_ids, **more)

    class Adapted(nn.Sequential):
        def forward(self, *places, **names):
            return self[0](*places, **names)

    columns = tokens()
    expected = point(Text(ANSWERS["tensor"])).point(columns)
    for model in (Wrapper(), nn.DataParallel(Text(ANSWERS["tensor"]))):
        said = point(model).point(columns | {"text": ["words"] * 12, "input": ["a"] * 12})
        torch.testing.assert_close(said, expected)


class Typed(nn.Module):
    """Reads a column more than `Text`, or its second argument by place."""

    def __init__(self):
        super().__init__()
        self.text = Text(ANSWERS["tensor"])

    def forward(self, input_ids, attention_mask=None, kinds=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        said = self.text(input_ids, attention_mask)
        return said if kinds is None else said + kinds.sum(1, keepdim=True) * torch.arange(3.0)


@pytest.mark.parametrize("turned", [1, -1])
def test_each_member_reads_the_columns_that_it_names(turned):
    columns = tokens() | {"kinds": torch.arange(60).view(12, 5) % 2}
    models = [Text(ANSWERS["tensor"]), Typed()][::turned]
    expected = [point(model).point(columns) for model in models]
    torch.testing.assert_close(ensemble(models).predict(columns), torch.stack(expected, 1))


def test_members_may_be_of_several_precisions():
    models = [network(0).bfloat16(), network(1)]
    said = ensemble(models).predict(rows().double())
    torch.testing.assert_close(said[:, 1], point(models[1]).point(rows()))


@pytest.mark.parametrize("more", [[torch.zeros(12)], []])
def test_a_mask_beside_the_tokens_is_not_left_out(more):
    """As TensorDatasets of tokens have it; labels and numbers of rows are."""
    ids, mask = tokens().values()
    data = TensorDataset(ids, mask, *more)
    for inputs in (data, list(data), DataLoader(data, 5)):
        with pytest.raises(InputError, match=r"parts beyond.*\[5\].*'attention_mask'.*dicts"):
            point(Typed()).point(inputs)
    network_of_two = mlp(5, 3)
    network_of_two.forward = lambda ids, attention_mask: ids
    with pytest.raises(InputError, match="parts beyond"):
        point(network_of_two).point(data)
    network_of_one = mlp(5, 3)
    network_of_one.forward = lambda x, verbose=False: nn.Sequential.forward(network_of_one, x)
    assert point(network_of_one).point(TensorDataset(mask.float(), torch.eye(12))).shape == (12, 3)
    plain = TensorDataset(ids, torch.zeros(12), torch.arange(12))
    torch.testing.assert_close(point(Typed()).point(plain), point(Typed()).point(ids))


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_of_16_bits_runs_in_float32(dtype):
    logits = 4 * torch.randn(50, 6, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    probs = probabilities(logits, "logits")
    assert probs.dtype is torch.float32
    torch.testing.assert_close(probs, logits.float().softmax(-1))
    declared = probabilities(logits.float().softmax(-1).to(dtype), "probs")
    torch.testing.assert_close(declared.sum(-1), torch.ones(50, 6))
    coarse = logits.softmax(-1).float()
    exact = mell(logits.double().softmax(-1), logits.double().softmax(-1))
    off = [(mell(p, p) - exact).abs().max() for p in (probs, coarse / coarse.sum(-1, True))]
    assert off[0] < 1e-5 < off[1]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_networks_of_16_bits_answer_in_float32(wrapper):
    model = network().to(torch.bfloat16)
    posterior = point(model) if wrapper == "ensemble" else WRAPPERS[wrapper](model)
    for said in answers(posterior, rows()):
        assert said.dtype is torch.float32
        said.numpy()  # which has no bfloat16


def test_bfloat16_by_choice():
    model, x = network(), rows()
    exact, fast = (mc_dropout(model, 5, precision=p) for p in ("float32", "bfloat16"))
    for ours, expected in zip(answers(fast, x), answers(exact, x), strict=True):
        assert ours.dtype is torch.float32
        assert 0 < (ours - expected).abs().max() < 0.05
    with pytest.raises(InputError, match=r"precision must be .*, got 'tf32'"):
        mc_dropout(model, precision="tf32")


def test_a_callers_choice_of_precision_does_not_reach_the_network():
    seen = []

    class Looks(nn.Linear):
        def forward(self, x):
            seen.append(torch.get_float32_matmul_precision())
            return super().forward(x)

    model = nn.Sequential(nn.Dropout(), Looks(4, 3))
    torch.set_float32_matmul_precision("medium")
    try:
        answers(mc_dropout(model, 5), rows()), answers(point(model), rows())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("wrapper", ["mc_dropout", "ensemble"])
def test_on_a_gpu_draws_do_not_depend_on_the_batch(wrapper):
    """With TF32 allowed, as torch allows it to convolutions, they differ by 7e-4."""

    def build(seed):
        torch.manual_seed(seed)
        convolutions = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
        head = [nn.Flatten(), nn.Linear(64 * 28 * 28, 64), nn.Dropout(), nn.Linear(64, 10)]
        return nn.Sequential(*convolutions, *head).cuda()

    models = [build(0), build(1)]
    x = 3 * torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    make = {
        "mc_dropout": lambda: mc_dropout(models[0], 10),
        "ensemble": lambda: ensemble(models),
    }[wrapper]
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = allowed
        check_sampler(make, x, model=models[0], tolerance=1e-5)
        assert torch.backends.cudnn.allow_tf32 is allowed
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_runs_out_of_memory_is_given_smaller_batches():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(57_600, 3)]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(8192, 3, 32, 32)
    expected = mc_dropout(model, 4, batch=256).predict(x)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
    try:
        with pytest.warns(UserWarning, match="the GPU ran out of memory: going on in batches of"):
            found = mc_dropout(model, 4, batch=len(x)).predict(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# --- threads ------------------------------------------------------------------------------------


def together(*works, times=6):
    """What each work returns when all run at once, each again and again."""
    start = threading.Barrier(len(works))

    def repeat(work):
        start.wait()
        return [work() for _ in range(times)]

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result() for done in [pool.submit(repeat, work) for work in works]]


def test_posteriors_of_one_network_in_many_threads():
    """Draws, points and embeddings, through shared layers, masks, modes and hooks."""
    body = network()[:-1]
    models = [nn.Sequential(body, nn.Linear(8, 3)) for _ in range(2)]
    x, modes = rows(90), [[m.training for m in model.modules()] for model in models]

    def makers():
        posterior = mc_dropout(models[0], 9, batch=16)
        both = ensemble(models, batch=16)
        other = mc_dropout(models[1], 9, seed=1, batch=16)
        return [
            lambda: posterior.predict(x), lambda: posterior.point(x), lambda: posterior.embed(x),
            lambda: other.predict(x), lambda: both.predict(x), lambda: point(models[1]).embed(x),
            lambda: mc_dropout(models[0], 9, batch=16).predict(x),
        ]  # fmt: skip

    alone = [work() for work in makers()]
    for results, expected in zip(together(*makers()), alone, strict=True):
        for result in results:
            assert torch.equal(result, expected)
    assert [[m.training for m in model.modules()] for model in models] == modes
    assert not any(vars(m).get("forward") for model in models for m in model.modules())


def test_other_threads_may_run_their_networks_while_one_is_traced():
    """Torch.fx reroutes calls and attributes of all modules while it traces."""
    begun, ended = threading.Event(), threading.Event()

    class Slow(nn.Sequential):
        def forward(self, x):
            if not isinstance(x, torch.Tensor):  # a tracer's proxy
                begun.set()
                assert ended.wait(60)
            return super().forward(x)

    def other():
        assert begun.wait(60)
        try:
            return strange(rows()), traced[1].weight
        finally:
            ended.set()

    strange, traced = nn.Linear(4, 3), Slow(*network())
    (answers,), (probs,) = together(other, lambda: mc_dropout(traced, 5).predict(rows()), times=1)
    torch.testing.assert_close(answers[0], strange(rows()))
    assert answers[1] is traced[1].weight
    torch.testing.assert_close(probs, mc_dropout(network(), 5).predict(rows()))


def test_trainings_in_many_threads_repeat_themselves():
    """While others train, walk and look at fresh networks, which torch.fx traces."""
    x, y = rows(30), np.arange(30) % 3

    def train():
        model = fit(network(), x, y, Recipe(40, batch=8), np.random.default_rng(0)).model
        return model[-1].weight.detach()

    def walk():
        drawn = sgld(network(), x, y, 2, 20, 5, rng=np.random.default_rng(0))
        return drawn.states["1.weight"]

    def look():
        return mc_dropout(network(), 4).predict(x)

    expected = [train(), walk()]
    state = torch.get_rng_state()
    for results, alone in zip(together(train, walk, train, look, look), expected, strict=False):
        assert all(torch.equal(result, alone) for result in results)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_network_spread_over_gpus_says_what_it_says_alone(wrapper):
    said, alone = (WRAPPERS[wrapper](m) for m in (nn.DataParallel(network()), network()))
    for ours, expected in zip(answers(said, rows()), answers(alone, rows()), strict=True):
        torch.testing.assert_close(ours, expected)


def test_compiled_parts_are_looked_into():
    """Compiled code does not look at hooks: another layer would pass for the last."""
    model = network()
    compiled = nn.Sequential(model[:4], torch.compile(model[4:], backend="eager")).eval()
    with torch.no_grad():
        compiled(rows())
    torch.testing.assert_close(penultimate(compiled, rows()), penultimate(model, rows()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nn.utils.parametrizations.weight_norm, r"holds \['bias', 'param.*weight and bias alone"),
        (nn.utils.spectral_norm, "holds .*'weight_orig'"),
        (lambda layer: Scaled(8, 3), "changes what its last linear layer"),
    ],
)
def test_a_last_layer_that_is_more_than_its_weights(change, message):
    model = network()
    model[-1] = change(model[-1])
    with pytest.raises(InputError, match=rf'{message}.*subset="subnetwork"'):
        _output_layer(model.eval(), rows())


class Scaled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


def test_penultimate_of_a_layer_that_is_called_by_name():
    class Named(nn.Sequential):
        def forward(self, x):
            return self[0](input=x)

    assert torch.equal(penultimate(Named(nn.Linear(4, 3)), rows()), rows())


def test_penultimate_of_nothing_linear():
    with pytest.raises(InputError, match="no penultimate representation"):
        penultimate(nn.Sequential(nn.ReLU()), rows())
