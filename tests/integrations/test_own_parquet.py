"""Experiments on Parquet files, of numbers and of texts, as pandas writes them."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee.cli.app import app
from foresee.lab import store

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def frame(kind):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 90)
    words = np.array([["ball", "goal", "team"], ["soup", "salt", "oven"]])
    if kind == "texts":
        inputs = {"body": [" ".join(rng.choice(words[k], 4)) for k in label]}
    else:
        inputs = {name: rng.standard_normal(90) + label for name in ("a", "b")}
    return pandas.DataFrame({**inputs, "topic": np.array(["sport", "food"])[label]})


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
