"""The paper's experiments and methods are the paper's, and every one of them can be run."""

import csv
import hashlib
import json
import re
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from foresee.errors import InputError
from foresee.iterations import learning_rate
from foresee.lab import data, methods, own, paper, store
from foresee.lab.data import wilds
from foresee.lab.experiment import Experiment
from foresee.lab.samplers import DropoutNetwork
from foresee.recipe import Recipe
from foresee.strategies import TopK
from foresee.testing import check_strategy

TABLE = Path(__file__).parents[3] / "shared" / "paper" / "experiments.csv"
COLUMNS = (
    *("dataset", "shift", "image_size", "classes", "n_seed", "n_val", "n_pool", "n_query"),
    *("n_test", "K", "L", "J", "T"),
)
# Rows of the paper's table of parameters, copied by hand: one of every kind there is.
ROWS = {
    "CIFAR10,none,32,10,5000,5000,40000,2500,10000,16,100,25000,100",
    "CIFAR100,shift,32,100,20000,5000,25000,1000,10000,20,100,10000,100",
    "SVHN,none,32,10,5000,5000,50000,2500,10000,20,100,25000,100",
    "MNIST,shift,32,10,200,5000,44800,80,10000,10,100,800,100",
    "iWildCam,none,64,182,5000,5000,100000,2500,10000,20,100,25000,100",
    "FMoW,shift,96,62,20000,5000,97000,1000,10000,20,100,10000,100",
}
SLOW = {"SVHN", "Camelyon17"}
LOSS = tuple(map(tuple, 1 - np.eye(10)))
DIGITS = replace(paper.experiment("digits", shift=True), loss=LOSS)


def as_row(experiment):
    names = {"K": "rounds", "L": "targets", "J": "candidates", "T": "draws"}
    values = {**asdict(experiment), "shift": "shift" if experiment.shift else "none"}
    return ",".join(str(values[names.get(column, column)]) for column in COLUMNS)


def method(name, experiment=DIGITS):
    return methods.method(name, experiment, mean=(0.3,), std=(0.4,))


# Experiments


def test_rows_of_the_papers_table():
    ours = list(map(as_row, paper.EXPERIMENTS))
    assert len(ours) == 14
    assert set(ours) >= ROWS


@pytest.mark.shared
@pytest.mark.skipif(not TABLE.exists(), reason="the paper's table is not beside the repository")
def test_the_whole_of_the_papers_table():
    with open(TABLE, newline="") as file:
        reader = csv.reader(file)
        assert tuple(next(reader)) == COLUMNS
        assert list(map(as_row, paper.EXPERIMENTS)) == [",".join(row) for row in reader]


@pytest.mark.parametrize("experiment", paper.EXPERIMENTS, ids=lambda e: e.name)
def test_training_is_the_papers(experiment):
    recipe = experiment.recipe
    assert (recipe.iterations, recipe.batch) == (46_875, 64)
    assert (recipe.optimiser, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 5e-4)
    first = 0.001 if experiment.dataset in SLOW else 0.01
    steps = [learning_rate(recipe, i) for i in (0, 11_717, 11_718, 23_436, 35_154, 46_874)]
    expected = [first, first, first / 10, first / 100, first / 1000, first / 10_000]
    assert steps == pytest.approx(expected)
    assert (experiment.network, experiment.budget) == ("vgg16", 1.0)


@pytest.mark.parametrize("experiment", [*paper.EXPERIMENTS, *paper.OURS], ids=lambda e: e.name)
def test_the_pool_lasts_for_every_round_and_the_candidates_for_every_batch(experiment):
    assert experiment.rounds * experiment.n_query <= experiment.n_pool
    assert experiment.n_query <= experiment.candidates <= experiment.n_pool
    assert experiment.targets <= experiment.n_val


def test_experiments_are_found_in_any_case_and_have_their_own_names():
    for name in ("cifar10", "CIFAR10", "Cifar10"):
        assert paper.experiment(name, shift=False) == paper.EXPERIMENTS[0]
    names = [e.name for e in (*paper.EXPERIMENTS, *paper.OURS)]
    assert len(set(names)) == len(names)
    assert {"cifar10-noshift", "camelyon17-shift", "digits-shift"} <= set(names)
    assert len(paper.datasets()) == len(names) / 2


def test_every_set_has_a_narrow_target_in_the_sizes_of_no_shift():
    for narrow in paper.NARROW:
        wide = paper.experiment(narrow.dataset)
        assert paper.experiment(narrow.dataset, narrow=True) == narrow
        assert (narrow.setting, narrow.name) == ("narrow", f"{narrow.dataset.lower()}-narrow")
        same = {part: getattr(wide, part) for part in ("n_val", "n_pool", "n_test", "target")}
        assert replace(narrow, **same) == wide
        assert narrow.n_query <= narrow.candidates <= narrow.n_pool
        assert narrow.targets <= narrow.n_val
    assert {e.dataset.lower() for e in paper.NARROW} == set(paper.datasets())
    sizes = {(e.n_seed, e.n_val, e.n_pool, e.n_query, e.n_test, e.rounds) for e in paper.NARROW}
    assert (20, 200, 1200, 10, 300, 8) in sizes
    with pytest.raises(InputError, match="two settings: choose one"):
        paper.experiment("mnist", shift=True, narrow=True)


# Images of each class, or domain, as published; classes without a target are put together.
IMAGES = {
    "mnist": {"3": 7141, "5": 6313, "8": 6825, "9": 6958, "others": 42763},
    "fashionmnist": {"T-shirt/top": 7000, "Pullover": 7000, "Coat": 7000, "Shirt": 7000, "": 42000},
    "cifar10": {"bird": 6000, "cat": 6000, "deer": 6000, "dog": 6000, "others": 36000},
    "svhn": {"3": 11379, "5": 9266, "8": 6705, "9": 6254, "others": 65685},
    "camelyon17": {"2": 85054, "others": 370900},
    "iwildcam": {"test": 42791, "others": 160238},
}


@pytest.mark.parametrize("name", ["digits", "cifar100", *IMAGES])
def test_the_documented_share_of_the_target_is_that_of_its_pool(name):
    setup = paper.experiment(name, narrow=True)
    counts = IMAGES.get(name) or {**dict.fromkeys(setup.target, 600), "others": 45000}
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    rows = own.Data(name, labels, labels, tuple(counts))
    share = data.pool_share(data.load(name) if name == "digits" else rows, setup)
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \|.*% \|$", page, re.M)
    assert row.endswith(f"| {setup.n_val}, {setup.n_test} | {100 * share:.1f} % |")


def test_an_unknown_experiment_is_refused_with_those_that_are_known():
    with pytest.raises(
        InputError, match=r"dataset must be one of cifar10, .*digits.* got imagenet"
    ):
        paper.experiment("imagenet", shift=True)


@pytest.mark.parametrize("budget", [0.1, 0.01, 2.0])
def test_a_budget_scales_the_training_and_is_kept(budget):
    whole, part = paper.experiment("svhn", True), paper.experiment("svhn", True, budget)
    assert part.budget == budget
    assert part.recipe.iterations == pytest.approx(46_875 * budget, abs=0.5)
    assert part.recipe.decay_every == pytest.approx(11_718 * budget, abs=0.5)
    scaled = {"iterations": part.recipe.iterations, "decay_every": part.recipe.decay_every}
    assert part == replace(whole, budget=budget, recipe=replace(whole.recipe, **scaled))


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(InputError, match=r"budget must be positive, got .*: 0.1 is a tenth"):
        paper.experiment("svhn", True, budget)


def test_another_network_can_be_asked_for():
    assert paper.experiment("mnist", True, network="small_cnn").network == "small_cnn"
    assert paper.experiment("digits", True).network == "mlp"


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_images_have_the_size_that_the_experiment_expects(tmp_path, name):
    folder = tmp_path / name / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", np.zeros((20, 28, 28), np.uint8)),
            ("labels-idx1", np.arange(20, dtype=np.uint8) % 10),
        ):
            header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    images = data.load(name, tmp_path)
    sizes = {"n_seed": 5, "n_val": 5, "n_pool": 20, "n_test": 10}
    for shift in (False, True):
        experiment = replace(paper.experiment(name, shift), **sizes)
        assert len(data.split(images, experiment, 0).pool) == 20


@pytest.mark.parametrize("name", wilds.LAYOUTS)
def test_decoded_images_have_the_size_that_the_experiment_expects(name):
    assert wilds.LAYOUTS[name].side == paper.experiment(name, True).image_size


# Methods


def test_the_papers_methods_come_first():
    eight = ["MELL", "MEZL", "Random", "BALD", "Entropy_MC", "Entropy", "Coreset", "BADGE"]
    assert methods.group("paper") == eight
    assert {"MELL_MCMC", "MEBL"} <= set(methods.METHODS)


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_builds_prints_and_hashes(name):
    built = method(name)
    assert built.name == name
    assert isinstance(hash(built), int)
    assert f"name={name!r}" in repr(built)
    assert json.loads(json.dumps(store.configuration(DIGITS, built, 0)))["method"]["name"] == name


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_strategy_obeys_the_laws(name):
    # Of three classes, as in the view that the laws are checked on.
    experiment = replace(DIGITS, candidates=40, targets=7, loss=LOSS[:3])
    check_strategy(methods.METHODS[name].strategy(experiment))


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_method_trains_as_its_experiment_says(name):
    sampler = method(name, replace(DIGITS, draws=17)).sampler
    sampler = sampler if isinstance(sampler, DropoutNetwork) else sampler.like
    expected = DropoutNetwork("mlp", 10, 8, (0.3,), (0.4,), DIGITS.recipe, 17, "cpu")
    assert sampler == expected


@pytest.mark.parametrize("name", ["MELL", "MEZL", "MELL_MCMC"])
def test_candidates_and_targets_are_the_papers_j_and_l(name):
    strategy = method(name, Experiment(*["x", True, *range(11)])).strategy
    assert (strategy.candidates, strategy.targets) == (9, 8)


HASH = """
import hashlib, json
from test_paper import DIGITS, method
from foresee.lab import methods, store
texts = [json.dumps(store.configuration(DIGITS, method(m), 0)) for m in methods.METHODS]
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


def test_configurations_are_the_same_in_another_process():
    texts = [json.dumps(store.configuration(DIGITS, method(m), 0)) for m in methods.METHODS]
    assert len(set(texts)) == len(texts)
    here = hashlib.sha256("".join(texts).encode()).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", HASH],
        cwd=Path(__file__).parent,
        env={"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


# Of the methods as they were when the first results were stored; Coreset has lost two options, and
# the draws of Greedy follow the batch since.
STORED = {
    "MELL": "d3713ddf1eb883c2",
    "MEZL": "90b02c487b876c5d",
    "Random": "a837ba5e389bc6db",
    "BALD": "10c529ad816c94cb",
    "Entropy_MC": "f28e96b9330550a1",
    "Entropy": "6766723881ac6b47",
    "Coreset": "0e3ad6d4582b55f1",
    "BADGE": "6ad0f4d851254daf",
    "MELL_MCMC": "f5d7f1aeb863ef94",
    "MEBL": "c3de722915ac3e6c",
    "Greedy": "5104823cd95f9551",
    "MEBL++": "814ba9082db21fde",
    "PowerMELL": "89c15a090ea23a57",
    "BatchMELL": "338f8de74721c1e3",
    "BatchBALD": "971c16e052fbfca5",
    "EER": "59d3d156e65f8fd5",
}


def digest(built):
    config = store.configuration(DIGITS, built, 0)
    config["method"]["strategy"].pop("aleatoric", None)  # which older headers left unsaid
    text = json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_configurations_are_those_of_old_stores_which_therefore_go_on():
    assert {name: digest(method(name)) for name in STORED} == STORED


@pytest.mark.parametrize(
    "change",
    [
        {"draws": 99},
        {"candidates": 199},
        {"targets": 99},
        {"recipe": Recipe(iterations=299)},
        {"network": "small_cnn"},
        {"budget": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_the_outcome_is_in_the_configuration(change):
    changed = replace(DIGITS, **change)
    before = store.configuration(DIGITS, method("MELL"), 0)
    assert store.configuration(changed, method("MELL", changed), 0) != before
    assert store.configuration(DIGITS, method("MELL"), 1) != before
    assert store.configuration(DIGITS, method("MELL"), 0) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", r"does not run \(SyntaxError"),
        ("import nowhere_at_all", r"does not run \(ModuleNotFoundError"),
        ("import sys; sys.exit(3)", r"does not run \(SystemExit\(3\)\): mend it"),
        ("x = 1", r"has no function 'score'"),
        ("score = 1", r"has no function 'score'"),
    ],
)
def test_a_file_of_ones_own_that_does_not_run_is_named(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        methods.own(f"{tmp_path}/mine.py:score")


FAR = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Far:
    first: int = 0
    def __call__(self, view, size, rng):
        return range(self.first, size)

far = Far()
"""


def test_an_object_of_ones_own_is_told_by_the_content_of_its_file(tmp_path):
    """Or its rounds would mix with those of another code; it may have annotations as texts."""
    found = []
    for text in (FAR, FAR, FAR + "# changed"):
        (tmp_path / "mine.py").write_text(text)
        built = method(f"{tmp_path}/mine.py:far")
        found.append(store.configuration(DIGITS, built, 0)["method"]["strategy"])
    assert found[0] == found[1] != found[2]
    assert found[0]["first"] == 0


@pytest.mark.parametrize("function", ["../../evil", "a/b", "", "a b", "f.g", "3", "evil\n"])
def test_a_function_whose_name_could_lead_out_of_the_store_is_refused(tmp_path, function):
    (tmp_path / "p.py").write_text(f"globals()[{function!r}] = lambda pool: pool[:, 0, 0]")
    with pytest.raises(InputError, match=r"is no name of a function: write file\.py:f"):
        methods.own(f"{tmp_path}/p.py:{function}")


@pytest.mark.parametrize("name", ["nowhere.py:f", "f", ":f"])
def test_a_file_that_is_not_there_is_named(name):
    with pytest.raises(InputError, match=rf"method {name}: there is no file .*, or one of MELL, "):
        methods.own(name)


def test_a_file_must_be_python(tmp_path):
    (tmp_path / "mine.txt").write_text("def f(pool):\n    pass\n")
    with pytest.raises(InputError, match=r"mine.txt must be a Python file, such as mine.py"):
        methods.own(f"{tmp_path}/mine.txt:f")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("pool", (30, 0)),
        ("pool, power=1.0", (30, 0)),
        ("pool, val", (30, 10)),
        ("pool, val, power=1.0", (30, 10)),
        ("pool, val=None, *, scratch=0", (30, 10)),
        ("view, size, rng", None),
        ("view, size, rng, power=1.0", None),
    ],
)
def test_what_a_function_of_ones_own_needs_tells_what_it_is(tmp_path, arguments, kind):
    (tmp_path / "mine.py").write_text(f"def f({arguments}):\n    return pool[:, 0, 0]\n")
    changed = replace(DIGITS, candidates=30, targets=10)
    strategy = method(f"{tmp_path}/mine.py:f", changed).strategy
    found = (strategy.candidates, strategy.targets) if isinstance(strategy, TopK) else None
    assert found == kind
    if kind:
        pool = np.full((3, 2, 2), 0.5)
        assert strategy.score(pool, None).tolist() == [0.5] * 3


@pytest.mark.parametrize("arguments", ["", "*args", "a, b, c, d", "pool, val, *, power", "x=1"])
def test_a_function_that_is_neither_score_nor_strategy_is_refused(tmp_path, arguments):
    (tmp_path / "mine.py").write_text(f"def f({arguments}):\n    pass\n")
    with pytest.raises(InputError, match=r"must take \(pool\) or .* give every other argument a d"):
        methods.own(f"{tmp_path}/mine.py:f")
