"""Experiments on Parquet files, of numbers and of texts, as pandas writes them."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee.cli.app import app
from foresee.errors import InputError
from foresee.lab import store
from foresee.reading import archives, sources

pandas = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")


def frame(kind):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 90)
    words = np.array([["ball", "goal", "team"], ["soup", "salt", "oven"]])
    if kind == "texts":
        inputs = {"body": [" ".join(rng.choice(words[k], 4)) for k in label]}
    else:
        inputs = {name: rng.standard_normal(90) + label for name in ("a", "b")}
    return pandas.DataFrame({**inputs, "topic": np.array(["sport", "food"])[label]})


def test_the_index_of_a_frame_is_no_input_unless_it_is_named(tmp_path, monkeypatch):
    path = tmp_path / "d.parquet"
    numbers = pandas.DataFrame({"a": [1.0, 2, 3, 4], "b": [5.0, 6, 7, 8]})
    numbers[numbers.a != 2].to_parquet(path)
    for _ in range(2):
        assert sources.read(path).inputs.tolist() == [[1, 5], [3, 7], [4, 8]]
        monkeypatch.setattr(archives, "LOADED", 0)
    assert sources.read(path, inputs="__index_level_0__").inputs.tolist() == [[0], [2], [3]]
    numbers.set_index(pandas.Index([7, 9, 8, 6], name="id")).to_parquet(path)
    assert sources.read(path).inputs.shape == (4, 2)
    found = sources.read(path, ids="id", labels="id")
    assert found.inputs.shape == (4, 2)
    assert found.ids == found.labels == [7, 9, 8, 6]
    table = parquet.read_table(path).replace_schema_metadata({"pandas": "{"})
    parquet.write_table(table, path)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        sources.read(path)


@pytest.mark.parametrize(("kind", "model"), [("texts", "tfidf"), ("numbers", "forest")])
def test_from_a_frame_to_trials(tmp_path, monkeypatch, kind, model):
    monkeypatch.chdir(tmp_path)
    frame(kind).to_parquet("d.parquet")
    done = CliRunner().invoke(app, ["init", "d.toml", "--data", "d.parquet"])
    assert done.exit_code == 0, done.output
    text = Path("d.toml").read_text()
    for key, value in (("rounds", 1), ("draws", 4), ("seeds", 1)):
        text = re.sub(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.M)
    Path("d.toml").write_text(text)
    done = CliRunner().invoke(app, ["run", "d.toml", "--out", "runs", "--methods", "random"])
    assert done.exit_code == 0, done.output
    (trial,) = store.trials(Path("runs"))
    assert trial.experiment.network == model
    assert trial.rounds[-1].accuracy > 0.6
