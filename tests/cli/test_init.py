"""`foresee init` and `foresee run` on one's own data: what they write, and what they refuse."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee.cli.app import app
from foresee.lab import config, store


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    np.savez("toy.npz", x=rng.standard_normal((80, 3)) + y[:, None], y=y)
    return tmp_path


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def small(file):
    text = Path(file).read_text()
    for key, value in (("rounds", 1), ("draws", 4), ("seeds", 1)):
        text = re.sub(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.M)
    Path(file).write_text(text)


def test_from_data_to_trials_in_two_commands(folder):
    done = invoke("init", "toy.toml", "--data", "toy.npz")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith("80 rows of numbers, 2 classes: 0 (")
    assert done.stdout.endswith("toy.toml is written: read it, then foresee run toy.toml\n")
    small("toy.toml")
    done = invoke("run", "toy.toml", "--out", "runs")
    assert done.exit_code == 0, done.output
    assert [(t.method, t.finished) for t in store.trials(Path("runs"))] == [
        ("Default", True),
        ("MELL", True),
        ("Random", True),
    ]
    assert "toy-noshift" in invoke("status", "runs").stdout
    again = invoke("run", "toy.toml", "--out", "runs", "--methods", "bald", "--seeds", 2)
    assert again.exit_code == 0, again.output
    assert [(t.method, t.seed) for t in store.trials(Path("runs"))][:2] == [
        ("BALD", 0),
        ("BALD", 1),
    ]


def test_a_row_is_not_taken_for_names(folder):
    rows = ["5.1,3.5,a", "4.9,3.0,a", "6.4,3.2,b", "6.5,3.1,b"] * 10
    Path("rows.csv").write_text("\n".join(rows))
    assert_refused(invoke("init", "rows.toml", "--data", "rows.csv"), "got 5.1, 3.5, a, as in the")
    Path("rows.csv").write_text("\n".join(["0,1,2", *rows]))
    done = invoke("init", "rows.toml", "--data", "rows.csv", "--labels", 2)
    assert done.stdout.startswith("40 rows of numbers, 2 classes: a (20), b (20).")


@pytest.mark.parametrize("shape", [(4, 4), (9, 9, 1), (9, 9, 3), (1, 9, 9), (3, 4, 4), (5, 9, 9)])
def test_images_that_are_taken_can_be_run(folder, shape):
    np.savez("i.npz", x=np.zeros((40, *shape), np.uint8), y=np.arange(40) % 2)
    done = invoke("init", "i.toml", "--data", "i.npz")
    assert done.stdout.startswith("40 rows of images, 2 classes")
    (found,) = config.read(Path("i.toml")).experiments
    assert (found.network, found.image_size) == ("slim_cnn", shape[1])


@pytest.mark.parametrize(
    "shape", [(9, 9, 4), (9, 8), (3, 9, 8), (3, 3), (9, 3, 3), (9, 8, 3), (3, 3, 9), (9, 0)]
)
def test_images_that_no_network_reads_are_not_taken(folder, shape):
    np.savez("i.npz", x=np.zeros((40, *shape), np.uint8), y=np.arange(40) % 2)
    refused = invoke("init", "i.toml", "--data", "i.npz")
    assert_refused(refused, f"x in i.npz holds images {list(shape)}, and networks read square ones")
    assert not Path("i.toml").exists()


@pytest.mark.parametrize("x", [np.full((40, 2), 1e39), np.zeros((40, 2, 4, 4, 3), np.uint8)])
def test_what_is_taken_for_numbers_can_be_run(folder, x):
    np.savez("n.npz", x=x, y=np.arange(40) % 2, z=np.arange(40) / 2)
    assert invoke("init", "n.toml", "--data", "n.npz").stdout.startswith("40 rows of numbers, 2")
    (found,) = config.read(Path("n.toml")).experiments
    assert found.own.inputs == ("x" if x.ndim > 2 else "z",)


def test_the_file_may_lie_elsewhere(folder):
    Path("a sub").mkdir()
    made = invoke("init", "a sub/toy.toml", "--data", "toy.npz")
    assert made.stdout.endswith("then foresee run 'a sub/toy.toml'\n")
    assert 'path = "../toy.npz"' in Path("a sub/toy.toml").read_text()
    small("a sub/toy.toml")
    done = invoke("run", "a sub/toy.toml", "--methods", "random", "--out", "some runs")
    assert done.exit_code == 0, done.output
    assert done.stderr.endswith("next: foresee report 'some runs' -o report\n")


def test_a_file_called_as_a_known_data_set_gets_another_name(folder):
    Path("toy.npz").rename("MNIST.npz")
    invoke("init", "toy.toml", "--data", "MNIST.npz")
    small("toy.toml")
    done = invoke("run", "toy.toml", "--methods", "random")
    assert done.exit_code == 0, done.output
    assert Path("runs/my-mnist-noshift").is_dir()


def test_what_is_there_is_not_overwritten(folder):
    Path("toy.toml").write_text("precious")
    refused = invoke("init", "toy.toml", "--data", "toy.npz")
    assert_refused(refused, "toy.toml is there already")
    assert Path("toy.toml").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy.json", "--data", "toy.npz"], "FILE must end in .toml, got toy.json"),
        (["no/toy.toml", "--data", "toy.npz"], "there is no folder no"),
        (["toy.toml", "--data", "no.npz"], "--data: there is nothing at no.npz"),
        (["toy.toml", "--data", "toy.npz", "--labels", "z"], "toy.npz has no 'z' but x, y"),
        (["toy.toml", "--data", ".", "--labels", "y"], "--labels names a column, and . is a fold"),
    ],
)
def test_bad_requests_are_one_line(folder, words, said):
    assert_refused(invoke("init", *words), said)
    assert not list(folder.glob("*.toml"))


@pytest.mark.parametrize("option", [("--shift",), ("--data", "."), ("--network", "mlp")])
def test_what_the_file_says_no_option_says(folder, option):
    invoke("init", "toy.toml", "--data", "toy.npz")
    assert_refused(invoke("run", "toy.toml", *option), f"{option[0]} is for data sets by name")


def test_a_budget_is_for_networks(folder):
    invoke("init", "toy.toml", "--data", "toy.npz")
    refused = invoke("run", "toy.toml", "--budget", "0.5")
    assert_refused(refused, "--budget scales the training of networks, and toy.toml has posterior")


def test_run_says_the_line(folder):
    invoke("init", "toy.toml", "--data", "toy.npz")
    text = Path("toy.toml").read_text()
    Path("toy.toml").write_text(text.replace("n_test", "n_tests"))
    line = 1 + text[: text.index("n_test")].count("\n")
    assert_refused(
        invoke("run", "toy.toml"), f"toy.toml, line {line}: [sizes] has no key 'n_tests'"
    )
    assert_refused(invoke("run", "no.toml"), "there is no file no.toml", "foresee init no.toml")
