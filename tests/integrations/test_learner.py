"""The learner on other people's frames, data sets and models."""

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import foresee
from foresee import Learner, Recipe

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of the packages' own dependencies
]

N = 60
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.where(X[:, 0] < 0, "left", "right")
RECIPE = Recipe(60, batch=16, optimiser="adam", learning_rate=1e-2)


def rounds(learner, person, number=3, size=6):
    for _ in range(number):
        batch = learner.ask(size)
        assert len(set(batch.ids)) == size
        learner.tell(batch.ids, person(batch.ids))
    assert batch.promise is not None
    return batch


def test_pandas_in_and_out():
    pandas = pytest.importorskip("pandas")
    index = [f"row {i}" for i in range(N)]
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "town": ["x", "y"] * (N // 2)}, index)
    truth = pandas.Series(Y, index)
    encode = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["town"]))
    for head in (LogisticRegression(), RandomForestClassifier(20)):
        learner = Learner(make_pipeline(encode, head), frame, frame[:20], draws=20)
        batch = rounds(learner, lambda ids: truth[list(ids)])
        table = batch.frame()
        assert table.index.tolist() == list(batch.ids)
        assert (table.score > 0).all()
        assert not table.held.any()
        answers, probs = learner.predict(frame), learner.predict_proba(frame)
        assert answers.index.equals(frame.index)
        assert (answers == truth).mean() > 0.8
        assert probs.columns.tolist() == ["left", "right"]
        assert probs.loc["row 3"].idxmax() == answers["row 3"]
    twice = pandas.concat([frame, frame])  # its index names no row
    assert Learner(head, twice).ask(3).ids[0] in range(2 * N)


def test_polars_in_and_out(tmp_path):
    polars = pytest.importorskip("polars")
    columns = {"a": X[:, 0], "b": X[:, 1], "town": ["x", "y"] * (N // 2)}
    frame, names = polars.DataFrame(columns), [f"row {i}" for i in range(N)]
    encode = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["town"]))
    for head in (LogisticRegression(), RandomForestClassifier(20)):
        options = {"ids": polars.Series(names), "draws": 20, "path": tmp_path / type(head).__name__}
        with Learner(make_pipeline(encode, head), frame, frame[:20], **options) as learner:
            batch = rounds(learner, lambda ids: polars.Series([Y[names.index(i)] for i in ids]))
            assert set(batch.ids) <= set(names)
            answers, probs = learner.predict(frame), learner.predict_proba(frame)
        assert isinstance(answers, polars.Series)
        assert np.mean(answers.to_numpy() == Y) > 0.8
        assert probs.columns == ["left", "right"]
        assert (probs.to_numpy().argmax(1) == (answers.to_numpy() == "right")).all()
    numbers = frame.select("a", "b")
    learner = Learner(RandomForestClassifier(20), numbers)
    rounds(learner, lambda ids: Y[list(ids)])
    assert learner.predict(numbers[3:5]).to_list() == learner.predict(numbers).to_list()[3:5]
    twice = polars.concat([numbers[:6]] * 5)
    cold = Learner(LogisticRegression(), twice).ask(6)
    assert len({i % 6 for i in cold.ids}) == 6  # of copies one each


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_target_is_read_in_the_order_of_the_pool(package):
    frame = pytest.importorskip(package).DataFrame({"a": 9 * X[:, 0], "b": X[:, 1], "c": X[:, 1]})
    first, *others = (
        Learner(LogisticRegression(), frame, frame[:9][list(columns)]).ask(3)
        for columns in ("abc", "bca", "cab")
    )
    assert others == [first, first]


@pytest.mark.parametrize("package", ["pandas", "polars"])
@pytest.mark.parametrize("pair", [((1, 2), (3, 4)), (datetime(2025, 1, 1), datetime(2026, 1, 1))])
def test_frames_leave_labels_as_they_are(package, pair):
    frame = pytest.importorskip(package).DataFrame({"a": X[:, 0], "b": X[:, 1]})
    learner = Learner(LogisticRegression(), frame, draws=10)
    learner.tell(range(20), [pair[int(x > 0)] for x in X[:20, 0]])
    answers, probs = learner.predict(frame), learner.predict_proba(frame)
    assert all(any(label is own for own in pair) for label in answers.to_numpy().tolist())
    assert list(probs.columns) == ([*pair] if package == "pandas" else [str(own) for own in pair])
    learner.tell(range(N), answers)
    assert list(learner.told.values()) == answers.to_numpy().tolist()


def test_a_polars_series_of_texts():
    polars = pytest.importorskip("polars")
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = polars.Series([f"{'good' if i % 2 else 'bad'} {i % 5}" for i in range(N)])
    learner = Learner(make_pipeline(TfidfVectorizer(), LogisticRegression()), texts, draws=20)
    rounds(learner, lambda ids: [i % 2 for i in ids])
    assert learner.predict(polars.Series(["good", "bad"])).tolist() == [1, 0]


def test_a_series_of_texts():
    pandas = pytest.importorskip("pandas")
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = pandas.Series([f"{'good' if i % 2 else 'bad'} {i % 5}" for i in range(N)])
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    learner = Learner(model, texts, draws=20)
    rounds(learner, lambda ids: [i % 2 for i in ids])
    assert learner.predict(pandas.Series(["good", "bad"], ["a", "b"])).to_dict() == {"a": 1, "b": 0}


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    flat = arrow.array(X.reshape(-1))
    columns = {
        "x": arrow.FixedSizeListArray.from_arrays(flat, 4),
        "name": [f"r{i}" for i in range(N)],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "pool.parquet")
    pool = foresee.read(tmp_path / "pool.parquet", ids="name")
    with Learner(LogisticRegression(), pool, draws=20, path=tmp_path / "state") as learner:
        rounds(learner, lambda ids: [Y[int(name[1:])] for name in ids])
        expected = learner.ask(4)
    with Learner.load(tmp_path / "state", LogisticRegression(), draws=20) as again:
        assert again.ask(4) == expected


def test_lightgbm():
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMClassifier(
        n_estimators=5, min_child_samples=2, n_jobs=1, verbose=-1, deterministic=True
    )
    learner = Learner(model, X, draws=8)
    rounds(learner, lambda ids: Y[list(ids)], number=4, size=10)
    assert (learner.predict(X) == Y).mean() > 0.8


def tokens(n=48):
    """Two kinds of texts: one says more of the words 10 … 19, one of 20 … 29."""
    rng = np.random.default_rng(0)
    kind = np.arange(n) % 2
    ids = rng.integers(10, 20, (n, 8)) + 10 * (kind[:, None] ^ (rng.random((n, 8)) < 0.1))
    return torch.from_numpy(ids), kind


def bert(transformers, **settings):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertConfig(
        vocab_size=50, intermediate_size=32, max_position_embeddings=16, num_labels=2,
        attention_probs_dropout_prob=0.0, **sizes | settings,
    )  # fmt: skip


def test_the_example_of_the_docs():
    transformers = pytest.importorskip("transformers")
    page = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text()
    code = re.search(r"<!-- run by tests/integrations -->\n```python\n(.*?)```", page, re.S)[1]
    ids, kind = tokens()
    names = ["calm", "angry"]

    def person(some):
        return [names[kind[i]] for i in some]

    torch.manual_seed(0)
    space = {"transformers": transformers, "foresee": foresee, "config": bert(transformers)}
    space |= {"ids": ids, "mask": torch.ones_like(ids), "person": person}
    exec(code, space)
    assert np.mean([a == names[k] for a, k in zip(space["answers"], kind, strict=True)]) > 0.8
    probs = space["learner"].predict_proba(space["pool"])
    assert probs.shape == (48, 2)


def test_rows_of_datasets():
    transformers, datasets = pytest.importorskip("transformers"), pytest.importorskip("datasets")
    ids, kind = tokens()
    table = {"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()}
    pool = datasets.Dataset.from_dict(table | {"label": [0] * len(ids)})
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(bert(transformers))
    recipe = Recipe(60, batch=16, optimiser="adam", learning_rate=1e-3)
    learner = Learner(model, pool, recipe=recipe, draws=20)
    rounds(learner, lambda some: kind[list(some)], size=8)
    assert (learner.predict(pool) == kind).mean() > 0.8


def test_an_image_classifier_of_transformers():
    transformers = pytest.importorskip("transformers")
    rng = np.random.default_rng(0)
    kind = np.arange(40) % 2
    images = rng.normal(size=(40, 3, 8, 8)).astype(np.float32)
    images[:, :, :4] += 2 * kind[:, None, None, None]
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=0.2, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    recipe = Recipe(60, batch=16, optimiser="adam", learning_rate=3e-3)
    learner = Learner(
        transformers.ViTForImageClassification(config), images, recipe=recipe, draws=20
    )
    rounds(learner, lambda some: kind[list(some)], size=8)
    assert (learner.predict(images) == kind).mean() > 0.8


def test_lightning():
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):
        def __init__(self, dropout=0.3):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 2)
            )

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    for model in (Lit(), lambda: Lit()):
        learner = Learner(model, X, recipe=RECIPE, draws=20)
        rounds(learner, lambda ids: Y[list(ids)])
        assert (learner.predict(X) == Y).mean() > 0.8
    again = Learner(Lit, X, recipe=RECIPE, draws=20, seed=3)
    other = Learner(Lit, X, recipe=RECIPE, draws=20, seed=3)
    for learner in (again, other):
        learner.tell(range(10), Y[:10])
    assert again.ask(5) == other.ask(5)
