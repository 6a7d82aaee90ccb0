"""The process that fits, on all kinds of data, and the page's end of it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn
from typer.testing import CliRunner
from visitors import Site

from foresee import InputError
from foresee.cli.app import app
from foresee.label import extract, work
from foresee.label.fitter import Fitter, answer, started
from foresee.label.items import Items, Spec
from foresee.learner import Batch

OWN = """
from foresee.networks import mlp
from sklearn.ensemble import RandomForestClassifier
from foresee.posteriors import Forest

def build(classes, seed):
    return mlp(3 * 8 * 8, classes, (16,), seed=seed)

def fit(inputs, labels, rng):
    x = inputs[:].reshape(len(inputs), -1)
    return Flat(Forest(RandomForestClassifier(20, random_state=0).fit(x, labels), 2))

class Flat:
    def __init__(self, forest):
        self.forest = forest

    def predict(self, x):
        return self.forest.predict(x[:].reshape(len(x), -1))

    def point(self, x):
        return self.forest.point(x[:].reshape(len(x), -1))
"""


@pytest.fixture
def texts(tmp_path):
    words = ["good fine", "bad dull"]
    rows = [f"{words[i % 2]} w{i % 7}" for i in range(60)]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(rows))
    return str(tmp_path / "texts.csv")


@pytest.fixture
def numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3)) + np.arange(60)[:, None] % 2 * 3
    lines = [",".join(map(str, row)) for row in x.tolist()]
    (tmp_path / "rows.csv").write_text("a,b,c\n" + "\n".join(lines))
    return str(tmp_path / "rows.csv")


def told(ids, held=()):
    """Events of a batch that was answered: odd ones and even ones."""
    labels = [("even", "odd")[i % 2] for i in range(len(ids))]
    ask = {"kind": "ask", "size": len(ids), "ids": list(ids), "scores": [None] * len(ids)}
    ask |= {"promise": None, "held": list(held), "seen": 0}
    tell = {"kind": "tell", "ids": list(ids), "labels": labels, "skip": [], "unsure": []}
    return [ask, tell]


def check(spec, ids):
    answer = work.worker(spec)
    cold = answer({"events": [], "size": 5})
    assert len(cold["batch"]["ids"]) == 5
    assert (cold["why"], cold["card"], cold["promise"]) == ([], None, None)
    warm = json.loads(json.dumps(answer({"events": told(ids, ids[:2]), "size": 6})))
    picked = [name for name in warm["batch"]["ids"] if name not in warm["batch"]["held"]]
    assert not set(picked) & set(ids)
    assert len(warm["guess"]) == len(warm["why"]) == len(picked) > 3
    assert set(warm["guess"]) <= {"even", "odd"}
    assert all(len(why) == 4 and why[0][1] >= why[-1][1] for why in warm["why"])
    assert warm["promise"] >= 0
    assert warm["batch"]["promise"] >= 0
    assert warm["card"][3] == 2
    assert warm["trained"] == len(ids) - 2
    return warm


def test_texts(texts):
    warm = check(Spec(texts), list(range(20)))
    places = [i for i in warm["batch"]["ids"] if i not in warm["batch"]["held"]]
    assert warm["guess"] == [("even", "odd")[i % 2] for i in places]


def test_texts_without_spaces_are_learned_from():
    kinds = "面白い", "退屈だ"
    texts = [f"昨日{a}映画は{b}{c}。" for a in "見たの" for b in kinds for c in "ねよなさ"]
    labels = ["面" in text for text in texts]
    model = work.model_of(Spec("reviews.csv"), texts)["model"].fit(texts[:10], labels[:10])
    assert model.score(texts[10:], labels[10:]) == 1
    words = TfidfVectorizer(sublinear_tf=True).build_analyzer()
    others = "It's 5 o'clock, naïve café_x — привет мир, مرحبا بكم, 안녕 a b"
    assert model[0].build_analyzer()(others) == words(others)


def test_rows(numbers):
    check(Spec(numbers), list(range(20)))


def test_what_the_page_says_of_a_table_is_not_said_twice(numbers):
    path = Path(numbers)
    path.write_text(path.read_text().replace("a,b,c", "850.5,852,860"))
    with pytest.warns(UserWarning, match="begin with the names of its columns"):
        Items(Spec(numbers))
    assert work.worker(Spec(numbers))  # where a warning is an error


@pytest.mark.parametrize("model", [None, "own.py:build", "own.py:fit"])
def test_images(folder, one_thread, model):
    if model:
        (folder.parent / "own.py").write_text(OWN)
        model = str(folder.parent / model)
    spec = Spec(str(folder), str(folder), size=8, model=model, holdout=0.0)
    answer = work.worker(spec)
    ids = [f"{i:02d}.png" for i in range(10)]
    warm = answer({"events": told(ids), "size": 6})
    assert len(warm["guess"]) == 6
    assert all(name.startswith("target/") for why in warm["why"] for name, _ in why)


def test_a_model_that_is_not_there(folder, tmp_path):
    for model, words in (("nowhere.py:build", "there is no file"), (str(tmp_path), "transformers")):
        with pytest.raises(InputError, match=words):
            work.worker(Spec(str(folder), model=model))


CONFIGS = {"transformers": {"architectures": ["ViTModel"]}, "timm": {"architecture": "resnet18"}}


@pytest.mark.parametrize("package", ["transformers", "timm", "torchvision"])
def test_a_package_that_is_not_there_is_named(folder, tmp_path, package):
    model = "torchvision:resnet18"
    if package in CONFIGS:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[package]))
        model = str(tmp_path)
    assert extract.package(model) == package
    if find_spec(package) is None:
        with pytest.raises(InputError, match=f"needs {package}: pip install {package}"):
            work.worker(Spec(str(folder), model=model))
        found = CliRunner().invoke(app, ["label", str(folder), "--no-browser", "--model", model])
        assert found.exit_code == 2
        assert f"pip install {package}" in " ".join(found.output.split())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="fetch the model anew"):
        extract.check(str(tmp_path))


def test_features_are_what_the_network_gives_of_images_in_its_form():
    rows = np.random.default_rng(0).integers(256, size=(70, 3, 6, 6), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    found = extract.features(lambda x: x, 6, mean, std)(rows)
    form = (1, 3, 1, 1)
    expected = (rows / 255 - np.reshape(mean, form)) / np.reshape(std, form)
    np.testing.assert_allclose(found, expected.reshape(70, -1), atol=1e-5)
    larger = extract.features(lambda x: x.mean((2, 3)), 12, mean, std)(rows)
    np.testing.assert_allclose(larger, expected.mean((2, 3)), atol=0.2)


def test_a_network_without_its_head():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.heads = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 1000))

        def forward(self, x):
            return self.heads(self.body(x))

    network, x = Own(), torch.ones(2, 3, 8, 8)
    expected = network.body(x)
    assert torch.equal(extract.headless(network)(x), expected)
    for other in (nn.Conv2d(3, 5, 3), nn.Linear(3, 4)):
        with pytest.raises(InputError, match="ends in no linear layer"):
            extract.headless(other)


def test_without_a_model_it_says_so_again_and_again(texts, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    process = started(Spec(texts, model="nowhere.py:build"))
    for _ in range(2):
        assert "there is no file" in answer(process, {"events": [], "size": 2})["error"]
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_files_in_the_folder_are_no_programs(texts, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    for name in ("torch", "numpy", "queue"):
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w')")
    process = started(Spec(texts))
    assert len(answer(process, {"events": [], "size": 2})["batch"]["ids"]) == 2
    process.communicate(timeout=60)
    assert not (tmp_path / "was-run").exists()


def test_it_answers_line_by_line_and_ends_with_whoever_started_it(texts):
    process = subprocess.Popen(
        [sys.executable, "-m", "foresee.label.work"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    lines = [asdict(Spec(texts)), {"events": [{"kind": "dance"}], "size": 2}]
    lines.append({"events": [], "size": 2})
    for line in lines:
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    assert "cannot have happened" in json.loads(process.stdout.readline())["error"]
    assert len(json.loads(process.stdout.readline())["batch"]["ids"]) == 2
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def wait(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_page_keeps_a_batch_ahead_and_survives_the_death_of_the_process(
    texts, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr("foresee.label.fitter._AGAIN", 0.01)
    site = Site(tmp_path / "texts.csv", batch=8, holdout=0.25)
    fitter = site.fitter = Fitter(site.book, patience=1e9)
    fitter.start()
    try:
        wait(lambda: site.book.waiting() == 8)
        assert len(site.book.desk.state.held) == 2
        for _ in range(2):
            names = site.book.take("a-tab", 8)
            for name in names:
                label = ("even", "odd")[name % 2]
                site.book.tell([name], label, who="ann", key=None)
            fitter.wake()
            wait(lambda: site.book.waiting() >= 8)
        wait(lambda: fitter.known.card is not None)
        assert fitter.known.trained == 12
        assert fitter.known.promise >= 0
        assert fitter.known.why.keys() <= set(site.book.desk.state.out)
        assert fitter.known.error is None
        fitter._process.kill()
        site.book.tell(site.book.take("a-tab", 8), "odd", who="ann", key=None)
        fitter.wake()
        wait(lambda: site.book.waiting() >= 8)
    finally:
        fitter.stop()
        site.book.close()


def test_an_accuracy_whose_labels_were_taken_back_is_not_known(texts, tmp_path):
    site = Site(tmp_path / "texts.csv")
    found = {"why": [], "guess": [], "promise": 0.1, "trained": 8}
    for card in ([1.0, 0.2, 1.0, 1], None):
        site.fitter._learn(Batch(()), Batch(()), found | {"card": card})
        assert site.fitter.known.card == card
    site.book.close()


def test_a_target_is_read_by_the_names_that_the_pool_has(tmp_path):
    spec = Spec(str(tmp_path / "pool.csv"), str(tmp_path / "target.csv"))
    Path(spec.pool).write_text("a,b\n1,2\n3,4\n")
    Path(spec.target).write_text("b,c,a\n6,0,5\n")
    assert spec.read(spec.target).inputs.tolist() == [[5, 6]]
    assert Items(spec).content(2) == {"a": 5, "b": 6}
    Path(spec.target).write_text("a,c\n1,2\n")
    with pytest.raises(InputError, match="has no column 'b' but a, c: name or rename one"):
        spec.read(spec.target)
    Path(spec.pool).write_text("text\nfine\n")
    Path(spec.target).write_text("words\ndull\n")
    assert spec.read(spec.target).inputs == ["dull"]


def test_all_of_a_named_array_is_shown(tmp_path):
    np.savez(tmp_path / "pool.npz", x=[[1.0, 2]], y=[0])
    assert Items(Spec(str(tmp_path / "pool.npz"), inputs=("x",))).content(0) == {"0": 1, "1": 2}
