"""Splits and tasks: who gets which images, always the same ones, and no label of the pool."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foresee.errors import InputError
from foresee.lab.data import (
    Images,
    Split,
    decoding_bytes,
    load,
    mark,
    pool_share,
    split,
    splits,
    task,
)
from foresee.lab.experiment import Experiment, noisy

SHARED = Path(__file__).parents[3] / "shared" / "data"
PARTS = ("seed", "val", "pool", "test")
DIGITS = Experiment(
    dataset="digits",
    shift=False,
    image_size=8,
    classes=10,
    n_seed=20,
    n_val=300,
    n_pool=800,
    n_query=10,
    n_test=600,
    rounds=2,
    targets=100,
    candidates=100,
    draws=10,
)
SMALL = replace(DIGITS, dataset="toy", image_size=2, classes=3, n_seed=4, n_val=3, n_pool=6)
SMALL = replace(SMALL, n_test=5)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


NARROW = replace(SMALL, target=("b", "c"), n_val=4, n_test=3)


def toy(n=20, source=None, name="toy"):
    rng = np.random.default_rng(n)
    pixels = rng.integers(0, 256, (n, 3, 2, 2)).astype(np.uint8)
    mask = None if source is None else np.isin(np.arange(n), source)
    return Images(name, pixels, rng.integers(0, 3, n), ("a", "b", "c"), mask)


def rows_of(drawn):
    return [getattr(drawn, part) for part in PARTS]


def test_digits_are_those_of_scikit_learn(digits):
    assert digits.pixels.shape == (1797, 1, 8, 8)
    assert digits.pixels.dtype == np.uint8
    assert (digits.pixels.min(), digits.pixels.max()) == (0, 240)
    assert digits.pixels[0, 0, 0].tolist() == [0, 0, 75, 195, 135, 15, 0, 0]  # 0 0 5 13 9 1 0 0
    assert digits.labels[:4].tolist() == [0, 1, 2, 3]
    assert len(digits) == 1797
    assert decoding_bytes("digits") == 0


def test_name_is_found_in_any_case_and_an_unknown_one_gets_the_list():
    assert load("Digits").name == "digits"
    with pytest.raises(InputError, match=r"'imagenet': choose one of digits, mnist, .*, fmow"):
        load("imagenet")


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("source", [None, [1, 4, 7, 11, 12]])
@pytest.mark.parametrize("seed", range(5))
def test_sets_have_their_sizes_and_share_no_row(shift, source, seed):
    drawn = split(toy(source=source), replace(SMALL, shift=shift), seed)
    assert [len(rows) for rows in rows_of(drawn)] == [4, 3, 6, 5]
    together = np.concatenate(rows_of(drawn))
    assert len(set(together.tolist())) == 18
    assert together.min() >= 0
    assert together.max() < 20
    if shift and source is not None:
        assert set(drawn.seed.tolist()) < set(source)
        assert not set(source) & set(together[4:].tolist())


def test_without_shift_every_image_is_as_likely_in_every_set():
    images, seeds = toy(), 2000
    counts = np.zeros((4, 20))
    for seed in range(seeds):
        for part, rows in zip(counts, rows_of(split(images, SMALL, seed)), strict=True):
            part[rows] += 1
    expected = np.array([[4], [3], [6], [5]]) / 20
    deviation = np.sqrt(expected * (1 - expected) / seeds)
    assert (np.abs(counts / seeds - expected) < 5 * deviation).all()


def test_shift_takes_the_darkest_images_and_all_others_are_the_target(digits):
    shifted = replace(DIGITS, shift=True, n_pool=877)  # every image is used
    mean = digits.pixels.reshape(1797, -1).mean(1)
    drawn = split(digits, shifted, 0)
    assert sorted(mean[drawn.seed].tolist()) == sorted(mean.tolist())[:20]
    assert sorted(np.concatenate(rows_of(drawn)).tolist()) == list(range(1797))
    other = split(digits, shifted, 1)
    assert other.seed.tolist() == drawn.seed.tolist()
    assert other.val.tolist() != drawn.val.tolist()


def test_ties_of_brightness_go_by_position_whatever_the_chunk(monkeypatch):
    pixels = np.full((20, 3, 2, 2), 7, np.uint8)
    pixels[[3, 19]] = 6
    pixels[5, 0, 0, 0] = 8
    images = Images("toy", pixels, np.zeros(20, np.int64), ("a", "b", "c"))
    for chunk in (1, 50, 1 << 20):
        monkeypatch.setattr(splits, "_CHUNK", chunk)
        drawn = split(images, replace(SMALL, shift=True), 0)
        assert drawn.seed.tolist() == [3, 19, 0, 1]
        np.testing.assert_allclose(splits.brightness(pixels), pixels.reshape(20, -1).mean(1))


def test_the_seed_alone_decides(digits):
    a, b, c = (split(digits, DIGITS, seed) for seed in (3, 3, 4))
    assert [r.tolist() for r in rows_of(a)] == [r.tolist() for r in rows_of(b)]
    assert a.pool.tolist() != c.pool.tolist()
    # Pinned: results on disk were made with these rows.
    assert split(digits, DIGITS, 0).seed[:6].tolist() == [0, 1497, 119, 715, 543, 1470]


# A target that is narrower than the pool


@pytest.mark.parametrize("seed", range(5))
def test_where_the_target_is_narrow_only_validation_and_test_sets_are(seed):
    images = toy(40)
    drawn = split(images, replace(NARROW, n_pool=29), seed)  # every image is used
    assert [len(rows) for rows in rows_of(drawn)] == [4, 4, 29, 3]
    assert sorted(np.concatenate(rows_of(drawn)).tolist()) == list(range(40))
    assert set(images.labels[np.concatenate([drawn.val, drawn.test])]) <= {1, 2}
    assert 0 in images.labels[drawn.pool]


def test_what_a_narrow_target_leaves_is_as_likely_in_the_seed_set_as_in_the_pool():
    images, seeds = toy(40), 2000
    inside = np.isin(images.labels, (1, 2))
    counts = np.zeros((4, 40))
    for seed in range(seeds):
        for part, rows in zip(counts, rows_of(split(images, NARROW, seed)), strict=True):
            part[rows] += 1
    left = np.where(inside, 1 - 7 / inside.sum(), 1.0)  # not taken by val and test
    expected = np.stack([left * 4 / 33, inside * 4 / inside.sum(), left * 6 / 33])
    expected = np.stack([*expected, inside * 3 / inside.sum()])
    deviation = np.sqrt(expected * (1 - expected) / seeds)
    assert (np.abs(counts / seeds - expected) <= 5 * deviation).all()
    shares = counts[2][inside].sum() / counts[2].sum()
    assert pool_share(images, NARROW) == pytest.approx(shares, abs=0.02)


def test_a_target_may_be_a_domain():
    images = replace(toy(40), domains=np.array(["north", "south"] * 20))
    drawn = split(images, replace(NARROW, target=("south",)), 0)
    assert (np.concatenate([drawn.val, drawn.test]) % 2 == 1).all()
    assert set(drawn.pool % 2) == {0, 1}
    assert pool_share(images, replace(NARROW, target=("south",))) == 13 / 33


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_val": 40}, r"toy has \d+ images in the target, but toy-narrow needs 43"),
        ({"n_pool": 40}, "toy has 40 images, but toy-narrow needs 51"),
        (
            {"target": ("b", "x")},
            "target must name classes or domains .* got b, x: the classes are a",
        ),
    ],
)
def test_a_narrow_target_that_cannot_be_drawn_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        split(toy(40), replace(NARROW, **change), 0)


# Noise in the pool


def marked(images, experiment, seed=0):
    drawn = split(images, experiment, seed)
    return drawn, mark(task(images, drawn), images, drawn, experiment, seed)


def test_noise_is_that_share_of_the_pool_and_moves_pixels_alone():
    images = toy(1000)
    drawn, made = marked(images, replace(SMALL, n_pool=310, pool_noise=0.1))
    before = images.pixels[drawn.pool]
    after = made.pool.numpy()
    assert made.scrambled.sum() == 31
    np.testing.assert_array_equal(after[~made.scrambled], before[~made.scrambled])
    moved = 0
    for old, new in zip(before[made.scrambled], after[made.scrambled], strict=True):
        # A pixel keeps its channels: as columns, the images differ in their order alone.
        assert sorted(map(tuple, old.reshape(3, 4).T)) == sorted(map(tuple, new.reshape(3, 4).T))
        moved += (old != new).any()
    assert moved > 20
    picks = np.arange(310)
    assert made.oracle(picks).tolist() == images.labels[drawn.pool].tolist()
    for part in ("seed", "val", "test"):
        np.testing.assert_array_equal(getattr(made, part), images.pixels[getattr(drawn, part)])
    assert made.in_target is None
    assert (images.pixels == toy(1000).pixels).all()


def test_noise_is_decided_by_the_seed_and_differs_from_image_to_image():
    pixels = np.tile(np.arange(64, dtype=np.uint8).reshape(1, 8, 8), (1797, 1, 1, 1))
    images = replace(load("digits"), pixels=pixels)
    setup = noisy(DIGITS, 0.2)
    (_, one), (_, same), (_, other) = (marked(images, setup, seed) for seed in (0, 0, 1))
    assert (one.pool == same.pool).all()
    assert (one.scrambled != other.scrambled).any()
    assert len({image.tobytes() for image in one.pool[one.scrambled].numpy()}) == 160


def test_what_is_scrambled_is_not_in_the_target(digits):
    narrow = replace(DIGITS, target=("3", "5"), n_val=50, n_test=50)
    drawn, made = marked(digits, narrow)
    assert made.scrambled is None
    inside = np.isin(digits.labels[drawn.pool], (3, 5))
    np.testing.assert_array_equal(made.in_target, inside)
    _, made = marked(digits, replace(narrow, pool_noise=0.5))
    np.testing.assert_array_equal(made.in_target, inside & ~made.scrambled)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_no_share_of_noise_is_refused(share):
    with pytest.raises(InputError, match="pool_noise must be a share from 0 to less than 1"):
        noisy(DIGITS, share)


def test_noise_is_for_images_and_names_the_experiment():
    assert noisy(DIGITS, 0.0) == DIGITS
    names = [noisy(DIGITS, share).name for share in (0.2, 0.07, 0.125)]
    assert names == [f"digits-noshift-noise{part}" for part in ("20", "7", "12.5")]
    with pytest.raises(InputError, match="permutes the pixels of images, and digits has none"):
        noisy(replace(DIGITS, image_size=0), 0.2)


@pytest.mark.parametrize(
    ("change", "source", "words"),
    [
        ({"n_pool": 9}, None, "toy has 20 images, but toy-noshift needs 21 of them .*1 fewer"),
        ({"n_pool": 9, "shift": True}, None, "has 20 images, but toy-shift needs 21"),
        ({"shift": True}, [1, 2], "has 2 images in the source domain, but .* needs 4 .*2 fewer"),
        ({"shift": True}, range(9), "has 11 images in the target domain, but .* needs 14"),
        ({"n_val": -1}, None, "must not be negative"),
        ({"dataset": "mnist"}, None, "has dataset mnist, but the images have toy"),
        ({"image_size": 32}, None, "has image_size 32, but the images have 2"),
        ({"classes": 10}, None, "has classes 10, but the images have 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change, source, words):
    with pytest.raises(InputError, match=words):
        split(toy(source=source), replace(SMALL, **change), 0)


def test_a_split_is_read_back_as_it_was_written(tmp_path):
    drawn = split(toy(), SMALL, 0)
    drawn.write(tmp_path / "split.json")
    again = Split.read(tmp_path / "split.json")
    assert (again.dataset, again.size) == ("toy", 20)
    for mine, other in zip(rows_of(drawn), rows_of(again), strict=True):
        assert other.dtype == np.int64
        assert mine.tolist() == other.tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["split.json"]


def test_an_empty_set_is_read_back(tmp_path):
    split(toy(), replace(SMALL, n_val=0), 0).write(tmp_path / "split.json")
    assert Split.read(tmp_path / "split.json").val.tolist() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-9], "holds no split"),
        (lambda content: json.dumps({**json.loads(content), "val": [0.5]}), "got `float`"),
        (lambda content: json.dumps({**json.loads(content), "val": [[1]]}), "got `array`"),
        (lambda content: json.dumps({**json.loads(content), "size": 5}), "must lie from 0 to 4"),
        (lambda content: json.dumps({**json.loads(content), "val": [1, 1]}), "used twice"),
        (lambda content: json.dumps({"dataset": "toy", "size": 20}), "'seed'"),
        (lambda content: json.dumps({**json.loads(content), "size": 1e999}), "holds no split"),
        (lambda content: "[" * 99_999, "holds no split"),
        (lambda content: "[]", "holds no split"),
    ],
)
def test_a_damaged_split_is_refused(tmp_path, change, words):
    path = tmp_path / "split.json"
    split(toy(), SMALL, 0).write(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=words) as caught:
        Split.read(path)
    assert "split.json" in str(caught.value)


def test_a_split_that_cannot_be_written_or_found_says_so(tmp_path):
    drawn = split(toy(), SMALL, 0)
    with pytest.raises(InputError, match="could not be written"):
        drawn.write(tmp_path / "nowhere" / "split.json")
    with pytest.raises(InputError, match="there is no split"):
        Split.read(tmp_path / "split.json")


@pytest.mark.parametrize("chunk", [1, 30, 1 << 20])
def test_a_task_holds_the_images_of_its_rows(monkeypatch, chunk):
    monkeypatch.setattr(splits, "_CHUNK", chunk)
    images = toy()
    drawn = split(images, SMALL, 0)
    made = task(images, drawn)
    assert made.n_classes == 3
    for part in PARTS:
        inputs = getattr(made, part)
        assert isinstance(inputs, torch.Tensor)
        assert inputs.dtype == torch.uint8
        assert (inputs.numpy() == images.pixels[getattr(drawn, part)]).all()
    assert made.seed_labels.tolist() == images.labels[drawn.seed].tolist()
    assert made.test_labels.tolist() == images.labels[drawn.test].tolist()
    picks = np.array([5, 0])
    assert made.oracle(picks).tolist() == images.labels[drawn.pool[picks]].tolist()


def test_what_a_task_holds_is_its_own():
    images = toy()
    drawn = split(images, SMALL, 0)
    made, other = task(images, drawn), task(images, drawn)
    for part in PARTS:
        getattr(made, part).fill_(7)
    for labels in (made.seed_labels, made.test_labels, made.oracle(np.arange(6))):
        labels[:] = 0
    assert (images.pixels == toy().pixels).all()
    assert (images.labels == toy().labels).all()
    for part in PARTS:
        assert (getattr(other, part).numpy() == images.pixels[getattr(drawn, part)]).all()
    assert made.oracle(np.arange(6)).tolist() == images.labels[drawn.pool].tolist()


def test_a_task_of_another_data_set_is_refused():
    drawn = split(toy(), SMALL, 0)
    with pytest.raises(InputError, match="split is of toy with 20 images, images are toy with 21"):
        task(toy(21), drawn)
    with pytest.raises(InputError, match="images are other with 20"):
        task(toy(name="other"), drawn)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pixels": np.zeros((20, 3, 2, 2))}, "must be bytes .uint8."),
        ({"pixels": np.zeros((19, 3, 2, 2), np.uint8)}, "one image for each label"),
        ({"labels": np.zeros(20, np.int32)}, "labels must be int64"),
        ({"labels": np.full(20, 3)}, "from 0 to 2, .* got 3 to 3"),
        ({"labels": np.full(20, -1)}, "got -1 to -1"),
        ({"source": np.zeros(20)}, "source must be booleans"),
        ({"domains": np.array(["a"])}, "domains must be names"),
    ],
)
def test_images_that_do_not_fit_together_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        replace(toy(), **change)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the data folder is not beside the repository")
def test_real_mnist():
    images = load("mnist", SHARED / "mnist")
    assert images.pixels.shape == (70_000, 1, 32, 32)
    assert images.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert images.labels[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
    border = images.pixels.copy()
    border[:, :, 2:-2, 2:-2] = 0
    assert not border.any()
    assert round(images.pixels[:60_000, :, 2:-2, 2:-2].mean() / 255, 4) == 0.1307
    experiment = replace(DIGITS, dataset="MNIST", shift=True, image_size=32, n_seed=200, n_val=5000)
    drawn = split(images, replace(experiment, n_pool=44_800, n_test=10_000), 0)
    counts = np.bincount(images.labels[drawn.seed], minlength=10)
    assert counts.tolist() == [0, 192, 0, 2, 1, 3, 1, 1, 0, 0]


# One file of arrays


def packed(folder, **changes):
    images = load("digits")
    held = {"pixels": images.pixels, "labels": images.labels, "classes": images.classes}
    np.savez(folder / "svhn.npz", **{k: v for k, v in (held | changes).items() if v is not None})
    return images


def test_a_set_may_be_one_file_of_arrays(tmp_path):
    images = packed(tmp_path, source=np.arange(1797) < 500)
    found = load("SVHN", tmp_path)
    assert (found.name, found.classes, int(found.source.sum())) == ("svhn", images.classes, 500)
    np.testing.assert_array_equal(found.pixels, images.pixels)
    np.testing.assert_array_equal(found.labels, images.labels)
    packed(tmp_path, classes=np.arange(10))
    numbered = load("svhn", tmp_path)
    assert (numbered.source, numbered.classes) == (None, tuple("0123456789"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pixels": None}, "must hold pixels uint8"),
        ({"pixels": np.zeros((1797, 64), np.uint8)}, r"svhn.npz: pixels must be bytes"),
        ({"labels": np.full(1797, 10)}, "must lie from 0 to 9"),
        ({"classes": np.array(["a", None], object)}, "must hold pixels uint8"),
    ],
)
def test_a_file_of_other_arrays_is_refused(tmp_path, changes, said):
    packed(tmp_path, **changes)
    with pytest.raises(InputError, match=said):
        load("svhn", tmp_path)
