"""Every kind of model and of rows that a learner takes, and those it refuses."""

import sys
from datetime import date
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from frames import Frame, Table
from PIL import Image
from scipy import sparse
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from foresee import Frozen, InputError, Learner, Recipe, arrays, networks, read
from foresee.lab import own
from foresee.learner import cold, models
from foresee.learner.features import Features, digest
from foresee.posteriors import Forest, mc_dropout
from foresee.posteriors.dropout import McDropout
from foresee.posteriors.ensemble import Ensemble
from foresee.posteriors.sklearn import Members

pytestmark = pytest.mark.usefixtures("one_thread")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = np.where(X[:, 0] < 0, "left", "right")
RECIPE = Recipe(60, batch=16, optimiser="adam", learning_rate=1e-2)
GOOD, BAD = ["lovely film", "a fine cast", "great fun"], ["dull plot", "a bad cast", "no fun"]
TEXTS = [f"{text} {i % 4}" for i in range(20) for text in (GOOD[i % 3], BAD[i % 3])]
VERDICTS = ["+", "-"] * 20


def pictures(n=40):
    """Bytes [n 3 8 8]: bright above, or bright below."""
    rng = np.random.default_rng(1)
    x = rng.integers(180, size=(n, 3, 8, 8)).astype(np.uint8)
    top = np.arange(n) % 2 == 0
    x[top, :, :4] += 60
    x[~top, :, 4:] += 60
    return x, np.where(top, "top", "bottom")


def used(model, x=X, y=Y, **options):
    """Go through a round, check what comes out, and return the posterior."""
    learner = Learner(model, x, **({"draws": 10} | options))
    first = learner.ask(4)
    learner.tell(first.ids, [y[i] for i in first.ids])
    some = [i for i in range(len(y)) if i not in first.ids][:10]
    learner.tell(some, [y[i] for i in some])
    batch = learner.ask(4)
    assert len(set(batch.ids)) == 4
    assert not {*first.ids, *some} & set(batch.ids)
    assert batch.promise > 0
    probs = learner.predict_proba(x)
    assert probs.shape == (len(y), 2)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
    right = np.mean([a == b for a, b in zip(learner.predict(x), y, strict=True)])
    assert right > 0.7, right
    assert learner.promise() > 0
    posterior, rows = learner.fit()._last.posterior, learner._part("pool", np.arange(len(y)))
    draws = np.asarray(posterior.predict(rows[:]))
    np.testing.assert_allclose(posterior.predict(rows[3:8]), draws[3:8], atol=1e-5)
    assert draws.std(1).max() > 0.01
    return posterior


@pytest.mark.parametrize(
    ("model", "kind", "draws"),
    [
        (RandomForestClassifier(12), Forest, 12),
        (ExtraTreesClassifier(12), Forest, 12),
        (LogisticRegression(), Members, 10),
        (LogisticRegression(solver="liblinear"), Members, 10),
        (GaussianNB(), Members, 10),
        (make_pipeline(StandardScaler(), GaussianNB()), Members, 10),
        (make_pipeline(StandardScaler(), RandomForestClassifier(12)), models.Piped, 12),
        (make_pipeline(StandardScaler(), LogisticRegression()), models.Piped, 10),
    ],
    ids=str,
)
def test_classifiers(model, kind, draws):
    posterior = used(model)
    assert isinstance(posterior, kind)
    assert posterior.predict(X).shape == (60, draws, 2)


def test_a_pipeline_draws_as_its_last_step_does():
    model = make_pipeline(StandardScaler(), LogisticRegression())
    posterior = used(model)
    scaled = posterior.before.transform(X)
    np.testing.assert_array_equal(posterior.predict(X), posterior.posterior.predict(scaled))
    assert posterior.embed(X).shape == (60, 4)


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)),
        make_pipeline(CountVectorizer(), MultinomialNB()),
        make_pipeline(CountVectorizer(), RandomForestClassifier(20)),
    ],
    ids=str,
)
def test_texts(model):
    used(model, TEXTS, VERDICTS)


@pytest.mark.parametrize("index", [[0.5, 1.5, 2.5], [date(2026, 1, i) for i in (1, 2, 3)]])
def test_frames_of_inputs_and_of_a_target_have_any_index(index, monkeypatch):
    class Series(tuple):
        def __new__(cls, *values):
            return super().__new__(cls, values)

    class DataFrame:
        def __init__(self, values, index, columns):
            self.values, self.index = values, index

    pandas = SimpleNamespace(Series=Series, DataFrame=DataFrame, Index=lambda each, **_: each)
    frame = Frame(X[:3], index)
    learner = Learner(LogisticRegression(), X[3:], frame, holdout=0.5)
    assert {*learner.ask(6).held} == {f"target/{each}" for each in index}
    learner.tell(range(20), Y[3:23])
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    values, index, _ = learner.predict(frame)
    assert values.tolist() == learner.predict(X[:3]).tolist()
    assert index is learner.predict_proba(frame).index is frame.index
    with pytest.raises(InputError, match="ids must be texts or whole numbers"):
        Learner(LogisticRegression(), frame)


def test_a_frame_that_is_the_target_is_read_in_the_order_of_the_pool():
    pool, target = Table(X * [9, 1, 1, 1], "abcd"), Table(X[X[:, 0] > 1] * [9, 1, 1, 1], "abcd")
    asked = Learner(LogisticRegression(), pool, target).ask(5)
    assert Learner(LogisticRegression(), pool, target["badc"]).ask(5) == asked


def test_sparse_matrices():
    used(LogisticRegression(), sparse.csr_matrix(X), Y)


def test_the_model_of_the_caller_is_left_alone():
    model = RandomForestClassifier(5)
    used(model)
    assert not hasattr(model, "estimators_")
    network = networks.mlp(4, 2, (16,))
    before = [p.clone() for p in network.parameters()]
    used(network, recipe=RECIPE)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize(
    "build",
    [
        partial(networks.mlp, 4, hidden=(16,)),
        lambda classes, seed: networks.mlp(4, classes, (16,), seed=seed),
        lambda: networks.mlp(4, 2, (16,)),
    ],
)
def test_networks_with_dropout(build):
    posterior = used(build, recipe=RECIPE)
    assert isinstance(posterior, McDropout)
    assert posterior.predict(X).shape == (60, 10, 2)


def test_networks_without_dropout_are_an_ensemble(monkeypatch):
    monkeypatch.setattr(models, "MEMBERS", 3)
    posterior = used(partial(networks.mlp, 4, hidden=(16,), dropout=0.0), recipe=RECIPE)
    assert isinstance(posterior, Ensemble)
    assert posterior.predict(X).shape == (60, 3, 2)
    with pytest.raises(InputError, match="pass a function that builds a fresh network"):
        used(networks.mlp(4, 2, (16,), dropout=0.0), recipe=RECIPE)


def test_images_as_bytes_are_standardised():
    x, y = pictures()
    build = partial(networks.slim_cnn, image_size=8, channels=3)
    short = Recipe(25, batch=16, optimiser="adam", learning_rate=2e-3)  # or nothing is in doubt
    posterior = used(build, x, y, recipe=short)
    assert isinstance(posterior.model[0], networks.Standardise)
    whole = partial(
        lambda classes: nn.Sequential(
            networks.Standardise([0.5] * 3, [0.2] * 3), *networks.slim_cnn(classes, 8, 3)
        )
    )
    assert len(used(whole, x, y, recipe=short).model) == 12


@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(20),
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(StandardScaler(), GaussianNB()),
    ],
    ids=str,
)
def test_classifiers_read_images_flattened(model):
    used(model, *pictures(60))


def test_a_folder_of_images(tmp_path):
    x, y = pictures()
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{i:02d}-{label}.png")
    pool = read(tmp_path, size=8)
    learner = Learner(
        partial(networks.slim_cnn, image_size=8, channels=3), pool, recipe=RECIPE, draws=10
    )
    for _ in range(2):
        batch = learner.ask(6)
        learner.tell(batch.ids, [name[3:-4] for name in batch.ids])
    answers = learner.predict(pool)
    assert np.mean([a == name[3:-4] for a, name in zip(answers, pool.ids, strict=True)]) > 0.8


def test_datasets_of_pairs():
    class Pairs(Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            return torch.from_numpy(X[i]), "what is not looked at"

    used(partial(networks.mlp, 4, hidden=(16,)), Pairs(), Y, recipe=RECIPE)
    tensors = TensorDataset(torch.from_numpy(X), torch.zeros(60))
    used(partial(networks.mlp, 4, hidden=(16,)), tensors, Y, recipe=RECIPE)


def test_any_function_that_returns_a_posterior():
    seen = []

    def sampler(inputs, labels, rng):
        seen.append((len(inputs), labels.tolist(), rng))
        return Forest(RandomForestClassifier(7, random_state=0).fit(inputs, labels))

    posterior = used(sampler)
    assert posterior.predict(X).shape == (60, 7, 2)
    n, labels, rng = seen[0]
    assert n == len(labels) == 14
    assert set(labels) == {0, 1}
    assert isinstance(rng, np.random.Generator)


@pytest.mark.parametrize("kind", ["network", "function"])
def test_frozen_features_are_computed_once(kind):
    rows = []

    class Extractor(nn.Module):
        def forward(self, x):
            rows.append(len(x))
            return torch.stack([x[:, 0], x.sum(1)], 1)

    def function(x):
        rows.append(len(x))
        return np.stack([x[:, 0], x.sum(1)], 1)

    model = Frozen(Extractor() if kind == "network" else function, LogisticRegression())
    learner = Learner(model, X, X[:10], draws=10)
    for _ in range(3):
        batch = learner.ask(5)
        learner.tell(batch.ids, Y[list(batch.ids)])
    extra = 34 if kind == "network" else 0  # a network is looked at, first by one row, then by some
    assert sum(rows) <= 70 + 2 + extra  # one of each tells how many features there are
    assert (learner.predict(X) == Y).mean() > 0.7
    used(model)
    with pytest.raises(InputError, match="a finite row of features for each of 60 inputs"):
        Learner(Frozen(lambda x: x[:1], LogisticRegression()), X).ask(2)


class Counting:
    """A function that counts the rows it is given, and may change what it makes of them."""

    def __init__(self, factor=1.0):
        self.rows, self.factor = 0, factor

    def __call__(self, x):
        self.rows += len(x)
        return self.factor * np.stack([x[:, 0], x.sum(1), x[:, 1]], 1)


def test_frozen_features_are_kept_beside_the_state(tmp_path):
    def rounds(extractor, pool=X, times=1):
        path, model = tmp_path / "state", Frozen(extractor, LogisticRegression())
        names = [f"p{i}" for i in range(len(pool))]
        with Learner(model, pool, ids=names, draws=10, path=path, candidates=20) as found:
            for _ in range(times):
                ids = found.ask(4).ids
                found.tell(ids, [str(Y[int(name[1:])]) for name in ids])
            return found.predict_proba(X)

    first = Counting()
    rounds(first, times=3)
    assert 20 < first.rows - len(X) <= 61  # only what was looked at, and once
    second = Counting()
    expected = rounds(second, times=0)
    assert second.rows <= 1 + 4 + len(X)  # its width, some that are tried, and what is predicted

    third = Counting()
    rounds(third, X + 1, times=0)
    assert second.rows < third.rows <= second.rows + 30  # labelled rows that have changed
    assert not np.array_equal(rounds(Counting(2.0), times=0), expected)  # noticed: other features
    np.testing.assert_allclose(rounds(Counting(), times=0), expected)

    files = list((tmp_path / "state.features").glob("*.npy"))
    values = next(f for f in files if "marks" not in f.name)
    assert np.load(values, allow_pickle=False).dtype == np.float32
    values.write_bytes(b"\x80\x04pickle")  # is no array: made again
    np.testing.assert_allclose(rounds(Counting(), times=0), expected)


def test_frozen_features_of_a_killed_process_are_not_computed_again(tmp_path):
    pool = arrays.rows("pool", X)

    class Killed(Counting):
        def __call__(self, x):
            if self.rows > 30:
                raise KeyboardInterrupt
            return super().__call__(x)

    def features(extractor):
        extractor.__class__.__qualname__ = "one"  # the same to a digest
        return Features(Frozen(extractor, None), pool, tmp_path)

    found = features(Killed())
    for start in range(0, 30, 10):
        found[np.arange(start, start + 10)]
    with pytest.raises(KeyboardInterrupt):
        found[np.arange(60)]
    again = Counting()
    np.testing.assert_allclose(features(again)[:], Counting()(X), rtol=1e-6)
    assert again.rows <= 1 + 4 + 30


def test_the_digest_of_an_extractor():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.load_state_dict(a.state_dict())
    assert digest(a) == digest(b)
    with torch.no_grad():
        b.weight[0, 0] += 1
    assert digest(a) != digest(b)
    assert digest(nn.ReLU()) != digest(nn.Tanh())
    one, other, same = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 1)
    assert digest(one) != digest(other)
    assert digest(one) == digest(same)


def test_a_network_must_have_an_output_for_each_class():
    learner = Learner(partial(networks.mlp, 4, 5, (8,)), X, recipe=RECIPE, draws=4)
    learner.tell(range(8), Y[:8])
    for act in (lambda: learner.predict(X), lambda: learner.ask(3)):
        with pytest.raises(InputError, match=r"expected 2|there are 2 classes"):
            act()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (networks.mlp(4, 2), {}, "pass recipe"),
        (partial(networks.mlp, features=4), {}, "if it builds a network, pass recipe"),
        (networks.mlp(4, 2), {"recipe": {"iterations": 9}}, "recipe must be a Recipe, got {"),
        (RidgeClassifier(), {}, "no predict_proba"),
        (RandomForestClassifier, {}, "model must be a scikit-learn classifier"),
        (LogisticRegression(), {"recipe": RECIPE}, "recipe is for networks"),
        ("forest", {}, "model must be"),
        (None, {}, "model must be"),
    ],
)
def test_what_is_no_model(model, options, words):
    with pytest.raises(InputError, match=words):
        Learner(model, X, **options)


def test_a_function_must_return_a_posterior():
    for function in (lambda x, y, rng: None, lambda x, y, rng: networks.mlp(4, 2)):
        learner = Learner(function, X)
        learner.tell(range(8), Y[:8])
        with pytest.raises(InputError, match="must return a posterior with predict and point"):
            learner.ask(3)


# Cold start


@pytest.mark.parametrize(
    "rows",
    [
        X,
        X.astype(np.float64),
        torch.from_numpy(X),
        sparse.csr_matrix(X),
        TEXTS,
        pictures()[0],
        pictures()[0].astype(np.float32),
        list(X),
        TensorDataset(torch.from_numpy(X), torch.zeros(60)),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_raw_features_of_any_rows(rows):
    rows = arrays.rows("pool", rows)
    found = cold.features(rows, rows)
    n = len(rows)
    assert found.shape[0] == 2 * n
    assert found.shape[1] <= 32
    np.testing.assert_allclose(found[:n], found[n:], atol=1e-5)
    assert found.std(0).max() > 0
    picks = cold.spread(rows, rows, 5, np.random.default_rng(0))
    assert len(set(picks.tolist())) == 5


def test_a_network_that_is_there_spreads_by_its_own_embedding():
    x = np.concatenate([np.full((20, 4), 5.0), -np.full((20, 4), 5.0)]).astype(np.float32)
    network = networks.mlp(4, 2, (16,))
    batch = Learner(network, {"input": torch.from_numpy(x)}, recipe=RECIPE).ask(2)
    assert sorted(i // 20 for i in batch.ids) == [0, 1]


def test_a_cold_start_tells_texts_apart():
    texts = ["the cat sat"] * 10 + ["stock markets fell"] * 10 + ["goal in extra time"] * 10
    picks = cold.spread(texts, texts, 3, np.random.default_rng(0))
    assert sorted(i // 10 for i in picks) == [0, 1, 2]


def test_texts_without_spaces_are_told_apart_by_their_letters():
    films, trains = (
        [f"{a}{what}{b}" for a in ("昨日", "今朝", "先週") for b in "ねよなさわ"]
        for what in ("の映画は面白い", "から電車が遅れた")
    )
    picks = cold.spread(films + trains[1::2], trains[::2], 3, np.random.default_rng(0))
    assert min(picks) >= len(films)
    fit = own.SklearnModel("tfidf", classes=2, draws=5)
    some = np.array(films[:5] + trains[:5] + films[-5:] + trains[-5:], object)
    labels = np.repeat([0, 1, 0, 1], 5)
    found = fit(some[:10], labels[:10], np.random.default_rng(0)).point(some[10:])
    assert (found.argmax(1) == labels[10:]).all()


def test_what_is_no_text_among_texts_is_named():
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    with pytest.raises(InputError, match=r"pool\[1\] must be a text, .* got None"):
        Learner(model, ["a film", None, "a cast"])


def test_broken_numbers_of_images_are_refused():
    images = np.ones((9, 1, 4, 4), np.float32)
    images[3] = np.nan
    with pytest.raises(InputError, match="images of the pool or the target hold NaN"):
        cold.spread(images, images, 2, np.random.default_rng(0))


def test_of_what_nothing_is_known_chance_decides():
    rows = [{"a": {}}] * 9
    assert cold.features(rows, rows) is None
    assert len(set(cold.spread(rows, rows, 4, np.random.default_rng(0)).tolist())) == 4


def test_more_points_than_there_are_different_ones():
    rows = np.repeat(np.eye(3), 3, axis=0)
    picks = cold.spread(rows, rows[:2], 7, np.random.default_rng(0))
    assert len(set(picks.tolist())) == 7
    assert len({tuple(rows[i]) for i in picks[:3]}) == 3


def test_mc_dropout_of_a_trained_network_stays_what_it_was():
    """A posterior that exists already needs no training: a function returns it."""
    trained = networks.mlp(4, 2, (16,))
    used_as_it_is = Learner(lambda x, y, rng: mc_dropout(trained, 10), X)
    used_as_it_is.tell(range(6), Y[:6])
    assert len(used_as_it_is.ask(3)) == 3
