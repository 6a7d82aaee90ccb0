"""Experiments on one's own data: what a TOML file says, and what is wrong with it, by line."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foresee.errors import InputError
from foresee.lab import config, look, loop, methods, own, runner, store
from foresee.lab.experiment import Experiment, Own
from foresee.lab.paper import experiment
from foresee.reading import archives, sources

TABLE = """name = "toy"

[data]
path = "toy.npz"
inputs = ["x"]
labels = "y"
domain = "site"
source = ["north"]
target_classes = ["0", "2"]

[sizes]
n_seed = 12
n_pool = 40
n_val = 10
n_test = 20
n_query = 5
rounds = 2

[model]
posterior = "forest"
draws = 5

[run]
settings = ["noshift", "shift", "narrow"]
methods = ["mell", "random"]
seeds = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    x = rng.standard_normal((200, 4)) + 2 * np.eye(4)[y]
    site = np.array(["north", "south"])[rng.integers(0, 2, 200)]
    np.savez("toy.npz", x=x.astype(np.float32), y=y, site=site)
    Path("toy.toml").write_text(TABLE)
    return tmp_path


def write(*changes):
    text = TABLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("toy.toml").write_text(text)


def read():
    return config.read(Path("toy.toml"))


def run(found, out="runs", seeds=1):
    place = runner.Place(Path(out), found.data, home=found.home)
    jobs = runner.plan(found.experiments, found.methods, range(seeds))
    outcomes = list(runner.run_all(jobs, place))
    assert [o.state for o in outcomes] == ["finished"] * len(jobs), [o.message for o in outcomes]
    return store.trials(Path(out))


# What it says


def test_a_file_becomes_experiments(folder):
    found = read()
    assert [e.name for e in found.experiments] == ["toy-noshift", "toy-shift", "toy-narrow"]
    plain, shift, narrow = found.experiments
    assert (plain.n_seed, plain.n_pool, plain.rounds, plain.draws) == (12, 40, 2, 5)
    assert (plain.classes, plain.network, plain.candidates, plain.targets) == (3, "forest", 40, 100)
    assert (plain.own.source, plain.target) == ((), ())
    assert (shift.shift, shift.own.source) == (True, ("north",))
    assert narrow.target == ("0", "2")
    assert (found.methods, found.seeds) == (("MELL", "Random"), 1)


def test_trials_run_and_hold_the_whole_configuration(folder):
    found = read()
    trials = run(found)
    assert len(trials) == 6
    assert all(trial.finished for trial in trials)
    header = next(t.header for t in trials if t.experiment.setting == "narrow")
    assert header["experiment"]["own"]["digest"] == found.experiments[0].own.digest
    assert header["experiment"]["target"] == ["0", "2"]
    assert {t.experiment for t in trials} == set(found.experiments)
    chosen = [r.in_target for t in trials for r in t.rounds if r.in_target is not None]
    assert len(chosen) == 2 * 2, "of the narrow target alone"
    assert header["pool"].keys() == {"in_target"}


def test_a_trial_goes_on_where_it_stopped(folder):
    whole = {(t.experiment.name, t.method): t.rounds for t in run(read())}
    path = Path("runs/toy-shift/MELL-0.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    assert {(t.experiment.name, t.method): _timeless(t.rounds) for t in run(read())} == {
        key: _timeless(rounds) for key, rounds in whole.items()
    }


def _timeless(rounds):
    return [replace(round_, seconds=()) for round_ in rounds]


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [("narrow", '["0", "2"]', '["1"]'), ("shift", '["north"]', '["south"]')],
)
def test_splits_for_another_target_or_source_are_refused(folder, setting, old, new):
    write((', "shift", "narrow"', f', "{setting}"'))
    run(read(), "theirs")
    write((', "shift", "narrow"', f', "{setting}"'), (old, new))
    found = read()
    place = runner.Place(Path("ours"), found.data, home=found.home, splits=Path("theirs"))
    plain, other = (runner.plan([e], ["Random"], [0]) for e in found.experiments)
    assert [o.state for o in runner.run_all(plain, place)] == ["finished"]
    (outcome,) = runner.run_all(other, place)
    assert f"drawn for another target or source than toy-{setting} has" in outcome.message


def test_data_that_changed_are_not_mixed_in(folder):
    run(read())
    arrays = dict(np.load("toy.npz"))
    arrays["x"][3, 0] += 1
    np.savez("toy.npz", **arrays)
    found = read()
    jobs = runner.plan(found.experiments, found.methods, [0])
    (outcome, *_) = runner.run_all(jobs, runner.Place(Path("runs"), found.data, home=found.home))
    assert outcome.state == "failed"
    assert "another configuration" in outcome.message
    assert "experiment.own.digest" in outcome.message


def test_the_digest_is_of_what_is_read_not_of_where_it_lies(folder):
    before = read().experiments[0].own.digest
    Path("sub").mkdir()
    Path("toy.npz").rename("sub/other.npz")
    write(("toy.npz", "sub/other.npz"))
    assert read().experiments[0].own.digest == before
    arrays = dict(np.load("sub/other.npz"))
    np.savez("sub/other.npz", **{**arrays, "y": arrays["y"][::-1]})
    assert read().experiments[0].own.digest != before


def test_the_digest_is_of_texts_and_domains_too():
    texts, labels = np.array(["a", "b"], dtype=object), np.array([0, 1])
    plain = own.Data("t", texts, labels, ("x", "y"))
    others = [
        own.Data("t", np.array(["a", "c"], dtype=object), labels, ("x", "y")),
        own.Data("t", np.array(["ab", ""], dtype=object), labels, ("x", "y")),
        own.Data("t", texts, labels, ("x", "y"), np.array(["n", "s"])),
        own.Data("t", texts, labels, ("x", "y"), np.array(["s", "n"])),
        own.Data("t", texts, labels, ("x", "z")),
    ]
    assert len({data.digest for data in (plain, *others)}) == 6


def test_headers_of_sets_by_name_have_no_entry_for_data_of_ones_own():
    known = experiment("digits", shift=True)
    values = store.configuration(known, methods.method("Random", known, (0.5,), (0.5,)), 0)
    assert "own" not in values["experiment"]


def test_settings_draw_from_where_they_should(folder):
    data = own.read("toy", read().experiments[0].own, 0, Path("toy.npz"))
    plain, shift, narrow = (own.split(data, e, seed=3) for e in read().experiments)
    assert set(data.domains[shift.seed]) == {"north"}
    rest = np.concatenate([shift.val, shift.pool, shift.test])
    assert set(data.domains[rest]) == {"south"}
    assert set(data.labels[np.concatenate([narrow.val, narrow.test])]) == {0, 2}
    assert set(data.labels[narrow.pool]) == {0, 1, 2}
    assert set(data.domains[plain.pool]) == {"north", "south"}
    for split in (plain, shift, narrow):
        assert [len(getattr(split, p)) for p in ("seed", "val", "pool", "test")] == [12, 10, 40, 20]
        again = own.split(data, read().experiments[0], seed=3)
        np.testing.assert_array_equal(again.pool, plain.pool)


def test_where_the_target_is_narrow_all_else_is_drawn_from_what_is_left():
    labels = np.arange(3000) % 3
    data = own.Data("t", np.zeros((3000, 1), np.float32), labels, ("a", "b", "c"))
    wide = Experiment("t", False, 0, 3, 300, 400, 600, 1, 400, 1, 1, 1, 5, own=Own("npz", ""))
    wide = replace(wide, target=("a",))
    split = own.split(data, wide, seed=0)
    for part in (split.seed, split.pool):
        share = np.bincount(labels[part], minlength=3) / len(part)
        np.testing.assert_allclose(share, [2 / 22, 10 / 22, 10 / 22], atol=0.08)


# What is wrong with it


WRONG = {
    "no table": ("[sizes]", "[size]", 11, "the file has no key 'size': did you mean sizes?"),
    "a key": ("n_seed = 12", "n_seeds = 12", 12, "[sizes] has no key 'n_seeds': did you mean"),
    "a type": ("n_pool = 40", 'n_pool = "40"', 13, "sizes.n_pool: Expected `int`, got `str`"),
    "a size": ("n_val = 10", "n_val = 0", 14, "sizes.n_val must be positive, got 0"),
    "no target": ("rounds = 2", "rounds = 2\ntargets = 0", 18, "sizes.targets must be positive"),
    "missing": ("n_test = 20\n", "", 11, "sizes.n_test is missing: add it under [sizes]"),
    "too many": ("n_pool = 40", "n_pool = 4000", 13, "noshift: toy has 200 rows in all, and 4042"),
    "no path": ('"toy.npz"', '"no.npz"', 4, "there is nothing at no.npz"),
    "a kind": ('"toy.npz"', '"toy.toml"', 4, "must be a folder of images or a .npz"),
    "a column": ('["x"]', '["z"]', 4, "has no column 'z' but x, y, site"),
    "an answer": ('["x"]', '["x", "y"]', 5, "data.inputs has 'y', the labels, which no model"),
    "labels": ('labels = "y"\n', "", 3, "data.labels, the column or array of labels, is missing"),
    "a domain": ('["north"]', '["east"]', 8, "data.source has 'east', but there are north, south"),
    "a class": ('["0", "2"]', '["0", "7"]', 9, "data.target_classes has '7', but there are 0, 1"),
    "a method": ('"random"]', '"rendom"]', 25, "run.methods knows mell, mezl"),
    "a setting": ('"narrow"]', '"narrowed"]', 24, "knows noshift, shift, narrow, got 'narrowed'"),
    "no source": ('source = ["north"]\n', "", 23, "setting 'shift' needs data.source: add it"),
    "a posterior": ('"forest"', '"jungle"', 20, "model.posterior must be one of forest, logistic"),
    "a file": ('"forest"', '"no.py:fit"', 20, "there is no file 'no.py'"),
    "two models": (
        '"forest"',
        '"forest"\nnetwork = "mlp"',
        19,
        "network or posterior, one of them",
    ),
    "one draw": ("draws = 5", "draws = 1", 21, "model.draws must be at least 2"),
    "texts": ('"forest"', '"tfidf"', 20, "posterior tfidf cannot read numbers"),
    "images": ('posterior = "forest"', 'network = "vgg16"', 19, "network vgg16 reads images"),
    "a name": ('"toy"', '"MNIST"', 1, "is that of a data set foresee knows"),
    "no name": ('name = "toy"\n', "", 1, "name must be a word"),
    "no TOML": ("[sizes]", "[sizes", 11, "is no TOML file"),
    "twice": ("n_val = 10", "n_val = 10\nn_val = 10", 15, "is no TOML file"),
    "size": ('path = "toy.npz"', 'path = "toy.npz"\nsize = 8', 5, "is for a folder of images"),
    "noise": ("seeds = 1", "seeds = 1\npool_noise = 1.5", 27, "run.pool_noise must be a share"),
    "no noise": ("seeds = 1", "seeds = 1\npool_noise = nan", 27, "run.pool_noise must be a share"),
    "all noise": ("seeds = 1", "seeds = 1\npool_noise = 1", 27, "less than 1, got 1"),
    "noise below 0": ("seeds = 1", "seeds = 1\npool_noise = -1", 27, "run.pool_noise must be"),
    "a switch": ("seeds = 1", "seeds = 1\npool_noise = true", 27, "run.pool_noise: Expected"),
    "no images": ("seeds = 1", "seeds = 1\npool_noise = 0.2", 27, "run.pool_noise permutes the p"),
    "recipe": ("[run]", "[recipe]\nbatch = 9\ndecay = -1.0\n[run]", 25, "recipe.decay must be pos"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_file_and_the_line(folder, case):
    old, new, line, words = WRONG[case]
    write((old, new))
    with pytest.raises(InputError) as error:
        read()
    said = str(error.value)
    assert said.startswith("toy.toml"), said
    assert words in said, said
    assert re.search(rf"line {line}\b", said), said
    assert "\n" not in said


def test_a_line_is_found_in_any_form_of_toml():
    text = 'a = """\nb = 1\n"""\n[t]\nx = [\n  1,\n  2,\n]\ny.z = 3\n"q r" = 4\n[u.v]\nb = 1\n'
    lines = config.Lines(Path("a.toml"), text)
    assert [lines.of("a"), lines.of("t", "x"), lines.of("t", "y", "z")] == [1, 5, 9]
    assert [lines.of("t", "q r"), lines.of("u", "v", "b"), lines.of("t", "none")] == [10, 12, 4]
    assert lines.of("nothing") == 1


def test_labels_that_are_missing_are_refused(folder):
    Path("t.csv").write_text("a,b\n1,x\n2,\n")
    with pytest.raises(InputError, match="1 of 2 rows have no label"):
        own.read("t", Own("csv", "", ("a",), "b"), 0, Path("t.csv"))


@pytest.mark.parametrize("kind", [int, float])
def test_labels_that_are_numbers_are_classes_by_size(folder, kind):
    y = np.arange(24) % 12 - 1
    np.savez("t.npz", x=np.eye(24), y=y.astype(kind))
    found = own.read("t", Own("npz", "", ("x",), "y"), 0, Path("t.npz"))
    assert found.classes == tuple(map(str, np.arange(-1, 11).astype(kind).tolist()))
    assert found.labels.tolist() == (y + 1).tolist()


def test_domains_that_are_missing_are_refused(folder):
    """A row of which nobody knows whence it came would be of the target."""
    Path("t.csv").write_text("a,b,site\n1,x,north\n2,y,\n3,y,south\n")
    with pytest.raises(InputError, match="1 of 3 rows have no domain"):
        own.read("t", Own("csv", "", ("a",), "b", "site"), 0, Path("t.csv"))


def test_a_large_table_is_unpacked_where_it_is_said(folder, monkeypatch):
    monkeypatch.setattr(archives, "LOADED", 0)
    Path("t.csv").write_text("a,b,site\n1,x,north\n2,y,south\n")
    table = Own("csv", "", ("a",), "b", "site")
    data = own.read("t", table, 0, Path("t.csv"), cache=Path("there"))
    assert (data.inputs.tolist(), data.domains.tolist()) == ([[1], [2]], ["north", "south"])
    assert not Path(sources.CACHE).exists()
    assert len(list(Path("there").glob("*.npy"))) == 1


@pytest.mark.parametrize("n", [2, 4])
def test_domains_are_one_for_each_row(folder, n):
    np.savez("d.npz", x=np.eye(3), y=[0, 1, 0], site=["north"] * n)
    with pytest.raises(InputError, match=rf"d\.npz holds 3 rows of inputs and {n} domains"):
        own.read("d", Own("npz", "", ("x",), "y", "site"), 0, Path("d.npz"))


def test_numbers_that_are_none_are_refused(folder):
    np.savez("n.npz", x=np.array([[1.0], [np.nan]]), y=[0, 1])
    with pytest.raises(InputError, match=r"n\.npz: row 1 is not finite"):
        own.read("n", Own("npz", "", ("x",), "y"), 0, Path("n.npz"))


# Models


@pytest.mark.parametrize("model", ['posterior = "logistic"', 'network = "mlp"'])
def test_built_in_models_learn_numbers(folder, model):
    recipe = "[recipe]\niterations = 60\nbatch = 12\nlearning_rate = 0.05\n"
    write(('posterior = "forest"', model), ("[run]", recipe + "[run]"))
    trials = run(read())
    assert np.mean([trial.rounds[-1].accuracy for trial in trials]) > 0.6


FIT = """
from sklearn.naive_bayes import GaussianNB
from foresee.posteriors import bootstrap

def fit(inputs, labels, rng, classes):
    return bootstrap(GaussianNB(), inputs, labels, draws=5, classes=classes, rng=rng)

def without(inputs, labels, rng):
    return bootstrap(GaussianNB(), inputs, labels, draws=5, classes=7, rng=rng)

def broken(inputs, labels, rng):
    return [][1]

def none(inputs, labels, rng):
    return GaussianNB()

def strange(pool, val):
    return None

from functools import partial
nameless = partial(fit)
"""
BUILD = """
import torch
from torch import nn

def build(classes, shape):
    torch.rand(3)
    return nn.Sequential(nn.Linear(*shape, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, classes))

def wrong(classes, shape):
    return "network"
"""


def test_a_posterior_of_ones_own(folder):
    Path("mine.py").write_text(FIT)
    write(('"forest"', '"mine.py:fit"'))
    trials = run(read())
    assert all(trial.rounds[-1].accuracy > 0.45 for trial in trials)
    assert re.fullmatch(r"mine_\w{8}\.fit", trials[0].header["method"]["sampler"]["fit"])
    assert trials[0].experiment.network == "mine.py:fit"


def test_a_posterior_of_ones_own_needs_no_name(folder):
    Path("mine.py").write_text(FIT)
    write(('"forest"', '"mine.py:nameless"'))
    assert all(trial.finished for trial in run(read()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("without", "must have 20 rows and 3 classes, got [20, 7]: let without take classes"),
        ("broken", r"IndexError: list index out of range (mine.py:12)"),
        ("none", "none must return a posterior, with predict(inputs)"),
        ("strange", "strange must take (inputs, labels, rng, classes) or some of these"),
    ],
)
def test_a_bad_posterior_of_ones_own_is_one_line(folder, name, words):
    Path("mine.py").write_text(FIT)
    write(('"forest"', f'"mine.py:{name}"'))
    found = read()
    jobs = runner.plan(found.experiments[:1], found.methods[:1], [0])
    (outcome,) = runner.run_all(jobs, runner.Place(Path("runs"), found.data, home=found.home))
    assert outcome.state == "failed"
    assert words in outcome.message
    assert "\n" not in outcome.message


def test_a_network_of_ones_own(folder):
    Path("net.py").write_text(BUILD)
    recipe = "[recipe]\niterations = 80\nbatch = 12\nlearning_rate = 0.05\n"
    write(('posterior = "forest"', 'network = "net.py:build"'), ("[run]", recipe + "[run]"))
    trials = run(read())
    assert np.mean([trial.rounds[-1].accuracy for trial in trials]) > 0.6
    again = run(read(), "again")
    assert [_timeless(t.rounds) for t in again] == [_timeless(t.rounds) for t in trials]

    Path("net.py").write_text(BUILD + "# changed\n")
    found = read()
    jobs = runner.plan(found.experiments[:1], found.methods[:1], [0])
    (outcome,) = runner.run_all(jobs, runner.Place(Path("runs"), found.data, home=found.home))
    assert "another configuration" in outcome.message


def test_a_network_that_is_none_is_refused(folder):
    Path("net.py").write_text(BUILD)
    write(('posterior = "forest"', 'network = "net.py:wrong"'))
    found = read()
    jobs = runner.plan(found.experiments[:1], found.methods[:1], [0])
    (outcome,) = runner.run_all(jobs, runner.Place(Path("runs"), found.data, home=found.home))
    assert "wrong must return a torch.nn.Module, got str" in outcome.message


def test_methods_of_ones_own_are_found_from_the_file(folder, monkeypatch):
    Path("score.py").write_text("def margin(pool):\n    return pool.mean(1).max(1)\n")
    write(('"random"]', '"score.py:margin"]'))
    monkeypatch.chdir("/")
    found = config.read(folder / "toy.toml")
    assert [methods.short_name(m) for m in found.methods] == ["MELL", "margin"]
    assert len(run(found, folder / "runs")) == 6


def test_chains_are_for_networks(folder):
    write(('"mell", "random"', '"mell_mcmc"'))
    found = read()
    jobs = runner.plan(found.experiments[:1], found.methods, [0])
    (outcome,) = runner.run_all(jobs, runner.Place(Path("runs"), found.data, home=found.home))
    assert "method MELL_MCMC draws by a chain" in outcome.message


# Kinds of data


def test_texts(folder):
    rng = np.random.default_rng(1)
    words = {"sport": ["ball", "goal", "team"], "food": ["soup", "salt", "oven"]}
    lines = ["text,topic"]
    for _ in range(120):
        topic = ["sport", "food"][rng.integers(2)]
        lines.append(f"{' '.join(rng.choice(words[topic], 4))} and so on,{topic}")
    Path("texts.csv").write_text("\n".join(lines))
    Path("toy.toml").write_text(look.describe(Path("texts.csv"), Path("."), "topic"))
    write_small("toy.toml")
    trials = run(read())
    assert {t.experiment.network for t in trials} == {"tfidf"}
    assert all(t.rounds[-1].accuracy > 0.8 for t in trials)


def write_small(file):
    text = Path(file).read_text()
    for key, value in (("rounds", 1), ("draws", 4), ("n_query", 5), ("iterations", 20)):
        text = re.sub(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.M)
    Path(file).write_text(text)


@pytest.mark.parametrize("domain", [False, True])
def test_a_folder_of_images(folder, domain):
    rng = np.random.default_rng(0)
    for i in range(60):
        place = Path("photos", *(["day", "night"][i % 2 : i % 2 + 1] if domain else []))
        place = place / ("dark" if i % 3 else "light")
        place.mkdir(parents=True, exist_ok=True)
        level = 40 if i % 3 else 200
        pixels = rng.integers(level, level + 50, (9, 12, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{i}.png")
    text = look.describe(Path("photos"), Path("."))
    text = text.replace("size = 32", "size = 8").replace("n_seed = 10", "n_seed = 8")
    if domain:
        text = text.replace("# domain", "domain").replace('# source = ["one', 'source = ["day"] #')
        text = text.replace('["noshift"]', '["shift"]')
        text = re.sub(r"n_(pool|val|test) = \d+", r"n_\1 = 9", text)
    Path("toy.toml").write_text(text)
    write_small("toy.toml")
    assert "# pool_noise = 0.2 " in text
    found = read()
    assert (found.experiments[0].image_size, found.experiments[0].pool_noise) == (8, 0)
    trials = run(found)
    assert len(trials) == 3
    assert Path(f"runs/{found.experiments[0].name}/MELL-0.png").is_file()


def test_a_share_of_the_pool_is_scrambled(folder):
    rng = np.random.default_rng(0)
    np.savez("toy.npz", x=rng.integers(0, 255, (200, 6, 6)).astype(np.uint8), y=np.arange(200) % 3)
    text = look.describe(Path("toy.npz"), Path("."), "y").replace("# pool_noise", "pool_noise")
    Path("toy.toml").write_text(text.replace('["default", "mell", "random"]', '"random"'))
    write_small("toy.toml")
    (found,) = read().experiments
    assert (found.name, found.pool_noise) == ("toy-noshift-noise20", 0.2)
    (trial,) = run(read())
    assert trial.header["pool"]["scrambled"] == round(0.2 * found.n_pool)
    assert trial.header["experiment"]["pool_noise"] == 0.2
    assert all(r.scrambled is not None for r in trial.rounds if r.picks)
    write_zero = Path("toy.toml").read_text().replace("pool_noise = 0.2", "pool_noise = 0")
    Path("toy.toml").write_text(write_zero)
    assert read().experiments[0].name == "toy-noshift"


@pytest.mark.parametrize("layout", ["n h w", "n h w c", "n c h w"])
def test_images_in_an_archive(folder, layout):
    pixels = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    arrays = {"n h w": pixels[..., 0], "n h w c": pixels, "n c h w": pixels.transpose(0, 3, 1, 2)}
    np.savez("i.npz", x=arrays[layout], y=["a", "b"])
    data = own.read("i", Own("npz", "", ("x",), "y"), 0, Path("i.npz"))
    assert data.kind == "images"
    expected = pixels.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(data.inputs, expected[:, :1] if layout == "n h w" else expected)


def test_channels_are_those_of_an_archive(folder):
    pixels, y = np.zeros((200, 8, 8, 3), np.uint8), np.load("toy.npz")["y"]
    write(
        ('posterior = "forest"', 'network = "slim_cnn"'),
        ('domain = "site"\nsource = ["north"]', "channels = 1"),
        ('"shift", ', ""),
    )
    np.savez("toy.npz", x=pixels[..., 0], y=y)
    assert read().experiments[0].own.channels == 1
    np.savez("toy.npz", x=pixels, y=y)
    with pytest.raises(InputError, match=r"line 7: data\.channels is of a folder .* 3 channels"):
        read()


@pytest.mark.parametrize("shape", [(3, 6, 5), (16, 16, 4)])
def test_images_that_no_network_of_ours_reads_are_refused(folder, shape):
    mine = Experiment("t", False, 6, 2, 1, 1, 1, 1, 1, 1, 1, 1, 5, "mlp", own=Own("npz", ""))
    with pytest.raises(InputError, match=r"network mlp reads square images .* crop or pad them"):
        own.sampler(mine, own.Shape(shape, (0.5,), (0.5,)), lambda name: None)


def test_numbers_for_networks_are_standardised_over_all_rows(folder):
    rng = np.random.default_rng(0)
    x = np.c_[rng.standard_normal((50, 2)) * 5 + 3, np.ones(50)].astype(np.float32)
    data = own.Data("t", x, np.arange(50) % 2, ("a", "b"))
    mine = Experiment("t", False, 0, 2, 10, 10, 20, 5, 10, 1, 5, 20, 5, "mlp", own=Own("npz", ""))
    split = own.split(data, mine, 0)
    task = own.task(data, split, mine)
    rows = torch.cat([task.seed, task.pool, task.val, task.test]).numpy()
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows[:, :2].std(0), 1, rtol=1e-5)
    assert task.oracle(np.array([0])) == data.labels[split.pool[0]]
    round_ = next(loop.run(mine, _random(mine, data), 0, task))
    assert len(round_.picks) == 5


def test_large_numbers_of_many_rows_are_standardised_too(folder):
    """Sums in float32 were off by 44 deviations in the first column."""
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(1e6, 10, 100_000), rng.normal(2020, 3, 100_000), np.full(100_000, 0.1)]
    data = own.Data("t", x.astype(np.float32), np.arange(len(x)) % 2, ("a", "b"))
    sizes = (100, 100, 99_700, 5, 100, 1, 5, 20, 5)
    mine = Experiment("t", False, 0, 2, *sizes, "mlp", own=Own("npz", ""))
    pool = own.task(data, own.split(data, mine, 0), mine).pool.numpy().astype(np.float64)
    np.testing.assert_allclose(pool.mean(0), 0, atol=2e-2)
    np.testing.assert_allclose(pool.std(0), [1, 1, 0], atol=1e-2)


def _random(experiment, data):
    sampler = own.sampler(
        replace(experiment, recipe=replace(experiment.recipe, iterations=5)),
        own.shape(data),
        lambda name: None,
    )
    return methods.drawn_by("Random", experiment, sampler)


# A look at data


def test_a_look_at_an_archive(folder):
    text = look.describe(Path("toy.npz"), Path("."))
    assert text.startswith("# 200 rows of numbers, 3 classes: 0 (")
    Path("toy.toml").write_text(text)
    found = read()
    assert found.experiments[0].own.inputs == ("x",)
    assert found.experiments[0].own.labels == "y"


def test_what_a_model_cannot_read_of_numbers_is_left_out(folder):
    rows = "".join(f"{i / 2},{'nan' if i == 7 else i},{i % 2}\n" for i in range(60))
    Path("t.csv").write_text("a,b,y\n" + rows)
    text = look.describe(Path("t.csv"), Path("."))
    assert 'inputs = ["a"]' in text
    assert '# Left out: "b" (nan in row 7).' in text
    np.savez("t.npz", x=np.ones((60, 2)), y=np.arange(60) % 2, version=3, score=np.inf)
    text = look.describe(Path("t.npz"), Path("."))
    assert 'inputs = ["x"]' in text
    assert '# Left out: "version", "score".' in text


def test_a_guess_that_is_not_clear_is_refused(folder):
    rows = "".join(f"{i % 2},{i % 3},{i / 2}\n" for i in range(60))
    Path("t.csv").write_text("a,b,c\n" + rows)
    with pytest.raises(InputError, match=r"which of a, b, c in t\.csv holds the labels"):
        look.describe(Path("t.csv"), Path("."))
    assert 'inputs = ["b", "c"]' in look.describe(Path("t.csv"), Path("."), "a")
    with pytest.raises(InputError, match="has no 'd' but a, b, c"):
        look.describe(Path("t.csv"), Path("."), "d")


def test_a_look_passes_over_ids_and_prefers_prose(folder):
    rows = [f"{100 + i},{'a fine and long film ' * 2},{i % 7 / 2},{i % 2}\n" for i in range(60)]
    Path("t.csv").write_text("id,text,length,label\n" + "".join(rows))
    text = look.describe(Path("t.csv"), Path("."))
    assert 'inputs = ["text"]' in text
    assert '# Left out: "id", "length".' in text
    rows = [f"{i},{i % 7},{i % 2}\n" for i in range(60)]
    Path("n.csv").write_text("id,length,label\n" + "".join(rows))
    assert 'inputs = ["length"]' in look.describe(Path("n.csv"), Path("."))


@pytest.mark.parametrize(
    ("other", "is_read"),
    [
        ("123e4567-e89b-12d3-a456-4266141740{:02}", False),
        ("https://example.org/a/very/long/address/{}", False),
        ("2020-01-01 10:00:00.0000{:02} +00:00", False),
        ("a film of {} hours that is fine", True),
        ("昨日見た映画は面白いし音楽も良かったと思います{}", True),
    ],
)
def test_long_codes_are_no_prose(folder, other, is_read):
    rows = "".join(f"{other.format(i)},{i / 7},{i % 2}\n" for i in range(60))
    Path("t.csv").write_text("which,a,label\n" + rows)
    name = "which" if is_read else "a"
    assert f'inputs = ["{name}"]' in look.describe(Path("t.csv"), Path("."))


def test_a_look_says_what_it_leaves_out_and_why(folder):
    rows = [f"{i / 7},{i / 3 if i else ''},{'ab'[i % 2]},{i % 2}\n" for i in range(60)]
    Path("t.csv").write_text("a,gap,kind,label\n" + "".join(rows))
    text = look.describe(Path("t.csv"), Path("."))
    assert 'inputs = ["a"]' in text
    assert text.splitlines()[1] == """# Left out: "gap" ('' in row 0), "kind"."""
    rows = [f"{i / 3 if i else ''},{i % 2}\n" for i in range(60)]
    Path("t.csv").write_text("gap,label\n" + "".join(rows))
    with pytest.raises(InputError, match=r"nothing but 60 labels, beside \"gap\" \('' in row 0\)"):
        look.describe(Path("t.csv"), Path("."))


def test_the_column_of_few_values_has_the_labels(folder):
    rows = "".join(f"{i / 7},k{i % 9}\n" for i in range(90))
    Path("t.csv").write_text("a,kind\n" + rows)
    text = look.describe(Path("t.csv"), Path("."))
    some = ", ".join(f"k{i} (10)" for i in range(8))
    assert text.startswith(f"# 90 rows of numbers, 9 classes: {some}, ….\n")
    Path("t.csv").write_text("a,kind\n" + "".join(rows.splitlines(keepends=True)[:36]))
    assert "36 rows of numbers, 9 classes" in look.describe(Path("t.csv"), Path("."), "kind")


@pytest.mark.parametrize("y", [np.arange(60), np.arange(60) % 7 / 2])
def test_numbers_to_predict_are_no_classes(folder, y):
    np.savez("n.npz", x=np.eye(60), y=y)
    with pytest.raises(InputError, match=r"classes in 60 rows, too few of each .* --labels"):
        look.describe(Path("n.npz"), Path("."))


def test_a_look_at_labels_that_are_missing(folder):
    Path("t.csv").write_text("a,label\n" + "1.5,x\n2.5,\n2.5,y\n" * 20)
    with pytest.raises(InputError, match="20 of 60 rows have no label"):
        look.describe(Path("t.csv"), Path("."))


def test_texts_in_an_archive(folder):
    words = np.array(["a warm and lovely film", "a cold and dull film"])
    np.savez("t.npz", text=words[np.arange(60) % 2], label=np.arange(60) % 2)
    Path("toy.toml").write_text(look.describe(Path("t.npz"), Path(".")))
    assert read().experiments[0].network == "tfidf"
    text = Path("toy.toml").read_text()
    for model in ('network = "mlp"', 'posterior = "forest"'):
        Path("toy.toml").write_text(text.replace('posterior = "tfidf"', model))
        with pytest.raises(InputError, match=r"line \d+: .*(reads no|cannot read) texts"):
            read()
    np.savez("t.npz", text=words[np.eye(2, dtype=int)], label=[0, 1])
    with pytest.raises(InputError, match="must hold numbers, texts"):
        own.read("t", Own("npz", "", ("text",), "label"), 0, Path("t.npz"))


def test_labels_of_several_lines_stay_in_the_comment(folder):
    Path("t.csv").write_text("a,label\n" + '1.5,"x\n\rname"\n2.5,y\n' * 20)
    Path("toy.toml").write_text(look.describe(Path("t.csv"), Path(".")))
    assert read().experiments[0].classes == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("no", "there is nothing at no"), ("empty", "sub-folder of images for each class, got no im")],
)
def test_a_look_at_nothing(folder, name, words):
    Path("empty").mkdir()
    with pytest.raises(InputError, match=words):
        look.describe(Path(name), Path("."))


def test_labels_without_rows_that_a_model_can_read(folder):
    np.savez("short.npz", x=np.ones((50, 2)), y=np.arange(60) % 2)
    with pytest.raises(InputError, match=r"nothing but 60 labels, beside \"x\": .* a row for each"):
        look.describe(Path("short.npz"), Path("."))


def test_names_that_toml_must_quote(folder):
    rows = "".join(f"{'x' * (i % 3)} word,{i % 2}\n" for i in range(60))
    Path('q"\\.csv').write_text('"te""x\\t",label\n' + rows)
    Path("toy.toml").write_text(look.describe(Path('q"\\.csv'), Path(".")))
    assert read().experiments[0].own.inputs == ('te"x\\t',)
