"""What Ray is not needed for: when it pays, and what is said where it is not there."""

import sys
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee import predictions, scale, suggest
from foresee.cli.app import app
from foresee.errors import InputError
from foresee.scale import cluster
from foresee.scale.pools import Blocks
from foresee.scale.work import Work, namesakes
from foresee.seeding import generator
from foresee.shortlist import Shortlist, ties
from foresee.testing import random_draws


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("pool.npy", random_draws(np.random.default_rng(0), 60, 5, 3).astype(np.float32))
    np.save("val.npy", random_draws(np.random.default_rng(1), 7, 5, 3).astype(np.float32))
    return tmp_path


def run(*words):
    told = ["suggest", "--pool", "pool.npy", "--target", "val.npy", "-k", "5", *words]
    return CliRunner().invoke(app, told)


def test_a_cheap_score_is_computed_without_ray_and_that_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for words in ((), ("--score", "mell")):
        plain, told = run(*words), run(*words, "--ray", "local")
        assert told.exit_code == 0, told.output
        assert told.stdout == plain.stdout
        assert "going on without it; --force-ray takes it" in told.stderr


def test_ray_is_taken_where_it_is_faster_or_asked_for(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    dear = lambda *_: (1000.0, 500.0)  # noqa: E731
    for words in (("--ray", "local", "--force-ray"), ("--ray", "local")):
        result = run(*words)
        assert result.exit_code == 2, result.output
        assert result.stderr.endswith('error: this needs Ray: pip install "foresee[ray]"\n')
        monkeypatch.setattr(cluster, "seconds", dear)


def test_without_ray_the_error_says_how_to_add_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'pip install "foresee\[ray\]"'):
        scale.suggest("pool.parquet", None, 5, score="bald")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("strategy and score exclude each other", {"strategy": "batchmell", "score": "mell"}),
        ("^strategy must be one of greedy", {"strategy": "mell"}),
        ("workers must be at least 1, got 0", {"workers": 0}),
        ("gpus must be at least 0, got -1", {"gpus": -1}),
        ("seed must be a whole number, at least 0, got -1", {"seed": -1}),
        (r"exclude must be a list of names, got '12': pass \['12'\]", {"exclude": "12"}),
    ],
)
def test_options_are_checked_before_ray_is_looked_for(monkeypatch, words, options):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=words):
        scale.suggest("pool.parquet", None, 5, **options)


def test_ray_pays_where_a_row_takes_long(folder, monkeypatch):
    pool = predictions.read("--pool", "pool.npy")
    scorer = suggest.Scorer("bald")
    plain, by_ray = cluster.seconds(pool, scorer, cores=4)
    assert plain < 1 < cluster._START < by_ray
    monkeypatch.setattr(predictions.Predictions, "__len__", lambda self: 10**9)
    plain, by_ray = cluster.seconds(pool, scorer, cores=64)
    assert by_ray < plain


def test_keys_of_ties_do_not_depend_on_the_piece():
    whole = ties(3, 0, 50)
    np.testing.assert_array_equal(whole, generator(3, "ties").random(50))
    parts = [ties(3, start, 7) for start in range(0, 49, 7)]
    np.testing.assert_array_equal(np.concatenate(parts), whole[:49])


def test_where_names_are_looked_for_nothing_else_is_read():
    scorer, short = suggest.Scorer("bald"), Shortlist(1, 0)
    work = Work(scorer, short, 0, "probs", "id", None, None, 1, wanted=frozenset({"a"}))
    assert work.columns(None) == ["id"]
    dataset = MagicMock()
    assert list(Blocks(work, dataset, None, 0).each(MagicMock(), namesakes, tuple)) == []
    dataset.select_columns.assert_called_once_with(["id"])
