"""MNIST, CIFAR and SVHN from small files in their real layouts, and how to get the real ones."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import sys
import tracemalloc
from types import SimpleNamespace
from typing import ClassVar
from urllib.error import URLError

import numpy as np
import pytest
from scipy.io import savemat

from foresee.errors import InputError
from foresee.lab.data import LOADERS, cifar, download, get, instructions, load, small, wilds

RNG = np.random.default_rng(0)
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


# MNIST


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, packed, sizes=(5, 3)):
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (sum(sizes), 28, 28)).astype(np.uint8)
    labels = RNG.integers(0, 10, sum(sizes)).astype(np.uint8)
    cut = sizes[0]
    for part, rows in (("train", slice(0, cut)), ("t10k", slice(cut, None))):
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx(array[rows])
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    return images, labels


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
def test_mnist_is_read_packed_or_not_and_gets_a_border(tmp_path, folder, packed):
    images, labels = write_mnist(tmp_path / folder, packed)
    got = load("mnist", tmp_path)
    assert got.name == "mnist"
    assert got.pixels.shape == (8, 1, 32, 32)
    assert (got.pixels[:, 0, 2:30, 2:30] == images).all()
    assert got.pixels.sum() == images.sum()  # the border is black
    assert got.labels.tolist() == labels.tolist()
    assert len(got.classes) == 10
    assert got.source is None


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_keeps_its_size(tmp_path, packed):
    images, labels = write_mnist(tmp_path / "FashionMNIST" / "raw", packed)
    got = load("FashionMNIST", tmp_path)
    assert got.pixels.shape == (8, 1, 28, 28)
    assert (got.pixels[:, 0] == images).all()
    assert got.labels.tolist() == labels.tolist()
    assert got.classes[:2] == ("T-shirt/top", "Trouser")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "cannot be read|must have .* bytes for .*, got"),
        (lambda data: b"", "must begin with the number 2051 .* begins with nothing"),
        (lambda data: data[:3], "must begin with|cannot be read"),
        (lambda data: b"PK\x03\x04" + data, "must begin with .* 50 4b 03 04|cannot be read"),
    ],
)
def test_a_damaged_mnist_names_the_file(tmp_path, packed, change, words):
    write_mnist(tmp_path, packed)
    path = tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=words) as caught:
        load("mnist", tmp_path)
    assert path.name in str(caught.value)
    assert "get it again" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "there", "labels"),
    [("fashionmnist", "mnist", "5041921314"), ("mnist", "fashionmnist", "9003027255")],
)
def test_the_files_of_the_other_mnist_are_refused(tmp_path, asked, there, labels):
    write_mnist(tmp_path, packed=False, sizes=(12, 3))
    file = tmp_path / "train-labels-idx1-ubyte"
    file.write_bytes(idx(np.array([*map(int, labels), 1, 2], np.uint8)))
    assert len(load(there, tmp_path)) == 15
    with pytest.raises(InputError, match=rf"must hold {asked}, got {there}.* ask for {there}, or"):
        load(asked, tmp_path)


def test_mnist_files_that_do_not_belong_together_are_refused(tmp_path):
    write_mnist(tmp_path, packed=False)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(4, np.uint8)))
    with pytest.raises(InputError, match="t10k has 3 images and 4 labels"):
        load("mnist", tmp_path)
    labels.write_bytes((tmp_path / "t10k-images-idx3-ubyte").read_bytes())
    with pytest.raises(InputError, match="must begin with the number 2049"):
        load("mnist", tmp_path)
    labels.write_bytes(idx(np.full(3, 10, np.uint8)))
    with pytest.raises(InputError, match="labels of mnist must lie from 0 to 9"):
        load("mnist", tmp_path)
    labels.unlink()
    with pytest.raises(InputError, match=r"no .*t10k-labels-idx1-ubyte, nor .*\.gz"):
        load("mnist", tmp_path)


def test_a_header_that_asks_for_the_moon_is_refused(tmp_path):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">I3I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(10))
    with pytest.raises(InputError, match=r"unpacks to 79228162.*no more than 1073741824"):
        load("mnist", tmp_path)


def test_mnist_parts_of_other_image_sizes_are_named(tmp_path):
    write_mnist(tmp_path, packed=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 20, 28), np.uint8)))
    with pytest.raises(InputError, match="t10k must have images of 28×28 pixels, got 20×28"):
        load("mnist", tmp_path)


@pytest.fixture
def peak():
    """How many bytes Python and NumPy have held at most since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((5, 28, 28), r"must have 3920 bytes for \[5, 28, 28\], got more"),
        ((60_000, 200, 200), "unpacks to 2400000000 bytes or more, and no more than 1073741824"),
    ],
)
def test_an_idx_bomb_is_refused_before_it_is_unpacked(tmp_path, peak, sizes, words):
    write_mnist(tmp_path, packed=True)
    header = struct.pack(">I3I", 0x803, *sizes)
    bomb = gzip.compress(header + bytes(100 << 20), compresslevel=1)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    del bomb
    tracemalloc.reset_peak()
    with pytest.raises(InputError, match=words):
        load("mnist", tmp_path)
    assert peak() < 5 << 20


def test_the_limit_is_the_last_size_that_is_read(tmp_path, monkeypatch):
    write_mnist(tmp_path, packed=True)
    monkeypatch.setattr(small, "LIMIT", 5 * 28 * 28)
    assert len(load("mnist", tmp_path)) == 8
    monkeypatch.setattr(small, "LIMIT", 5 * 28 * 28 - 1)
    with pytest.raises(InputError, match="unpacks to 3920 bytes or more, and no more than 3919"):
        load("mnist", tmp_path)


# CIFAR


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes alike as the strings of Python 2, as the published files have them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    dispatch[str] = dispatch[bytes] = save_string


def python2(content):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


@pytest.fixture(params=["python 2", "python 3"])
def dumps(request):
    return python2 if request.param == "python 2" else pickle.dumps


def write_cifar(folder, files, monkeypatch):
    """Write the files and have their checksums stand for the published ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        monkeypatch.setitem(cifar.MD5, name, hashlib.md5(data).hexdigest())


def batch(n, key, classes):
    pixels = RNG.integers(0, 256, (n, 3072)).astype(np.uint8)
    return {"batch_label": "some", key: RNG.integers(0, classes, n).tolist(), "data": pixels}


@pytest.mark.parametrize("inside", [True, False])
def test_cifar10_joins_its_batches_in_order(tmp_path, monkeypatch, dumps, inside):
    batches = [batch(4, "labels", 10) for _ in BATCHES]
    files = {name: dumps(content) for name, content in zip(BATCHES, batches, strict=True)}
    names = [f"class {i}" for i in range(10)]
    files["batches.meta"] = dumps({"label_names": names, "num_vis": 3072})
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, files, monkeypatch)
    got = load("CIFAR10", folder if inside else tmp_path)
    assert got.pixels.shape == (24, 3, 32, 32)
    assert (got.pixels.reshape(24, -1) == np.concatenate([b["data"] for b in batches])).all()
    assert got.labels.tolist() == [label for b in batches for label in b["labels"]]
    assert got.classes == tuple(names)


def test_cifar100_has_its_fine_labels(tmp_path, monkeypatch, dumps):
    parts = [{**batch(4, "fine_labels", 100), "coarse_labels": [1, 2, 3, 4]} for _ in range(2)]
    names = [f"class {i}" for i in range(100)]
    files = {"train": dumps(parts[0]), "test": dumps(parts[1])}
    files["meta"] = dumps({"fine_label_names": names, "coarse_label_names": ["few"]})
    write_cifar(tmp_path / "cifar-100-python", files, monkeypatch)
    got = load("cifar100", tmp_path)
    assert got.labels.tolist() == parts[0]["fine_labels"] + parts[1]["fine_labels"]
    assert (got.pixels[4:].reshape(4, -1) == parts[1]["data"]).all()
    assert got.classes == tuple(names)


def test_python2_strings_are_what_the_published_files_have():
    data = python2({"data": np.arange(3, dtype=np.uint8)})
    assert b"cnumpy.core.multiarray\n_reconstruct" in data
    assert pickle.BINSTRING + b"\x04\x00\x00\x00data" in data


class Evil:
    """What an attacker would write: code that runs as soon as it is unpickled."""

    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("how", ["system", "eval", "load", "getattr"])
def test_a_malicious_pickle_runs_nothing(tmp_path, monkeypatch, how, protocol):
    mark = tmp_path / "mark"
    call = {
        "system": (os.system, (f"touch {mark}",)),
        "eval": (eval, (f"__import__('os').mkdir({str(mark)!r})",)),
        "load": (np.load, (str(tmp_path / "any.npy"), None, True)),
        "getattr": (getattr, ("text", "format")),
    }[how]
    data = pickle.dumps({"label_names": Evil(call)}, protocol)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(data)
    with pytest.raises(InputError, match="must have the published md5 5ff9c542"):
        load("cifar10", tmp_path)
    # Even if its checksum were known:
    write_cifar(folder, {"batches.meta": data}, monkeypatch)
    with pytest.raises(InputError, match=r"it asks for .*, which no data needs"):
        load("cifar10", tmp_path)
    assert not mark.exists()
    if how in ("system", "eval"):
        pickle.loads(data)  # it does bite
        assert mark.exists()


def test_what_a_pickle_may_name_is_arrays_alone():
    assert {name for _, name in cifar._ALLOWED} == {"_reconstruct", "ndarray", "dtype"}
    assert cifar._RECONSTRUCT.__name__ == "_reconstruct"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("batches.meta", {"names": []}, "cannot be unpickled to label_names"),
        ("data_batch_2", {"data": np.zeros((1, 3072), np.uint8)}, "unpickled to data, labels"),
        ("data_batch_2", {"data": np.zeros((1, 5), np.uint8), "labels": [1]}, "cannot reshape"),
        ("data_batch_2", {"data": "pixels", "labels": [1]}, "does not hold cifar10"),
        ("data_batch_2", {"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "each label"),
        ("test_batch", {"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "from 0 to 9"),
    ],
)
def test_a_cifar_of_another_form_is_refused(tmp_path, monkeypatch, name, content, words):
    files = {batch_name: pickle.dumps(batch(2, "labels", 10)) for batch_name in BATCHES}
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")})
    files[name] = pickle.dumps(content)
    write_cifar(tmp_path, files, monkeypatch)
    with pytest.raises(InputError, match=words):
        load("cifar10", tmp_path)


def test_no_more_of_a_cifar_file_is_read_than_could_be_right(tmp_path, monkeypatch, peak):
    monkeypatch.setattr(cifar, "LIMIT", 1000)
    with open(tmp_path / "batches.meta", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match="must have the published md5"):
        load("cifar10", tmp_path)
    assert peak() < 1 << 20


def test_a_missing_batch_is_named(tmp_path, monkeypatch):
    write_cifar(tmp_path, {"batches.meta": pickle.dumps({"label_names": ["a"]})}, monkeypatch)
    with pytest.raises(InputError, match=r"there is no .*data_batch_1"):
        load("cifar10", tmp_path)


# SVHN


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_counts_its_zeros_as_zero(tmp_path, compressed):
    parts = {}
    for part, n in (("train", 12), ("test", 5)):
        pixels = RNG.integers(0, 256, (32, 32, 3, n)).astype(np.uint8)
        labels = RNG.permutation(np.arange(n) % 10 + 1).astype(np.uint8)[:, None]
        content = {"X": pixels, "y": labels}
        savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=compressed)
        parts[part] = content
    got = load("svhn", tmp_path)
    assert got.pixels.shape == (17, 3, 32, 32)
    assert got.pixels.flags.c_contiguous
    assert (got.pixels[13, 2] == parts["test"]["X"][:, :, 2, 1]).all()
    expected = np.concatenate([parts["train"]["y"], parts["test"]["y"]]).ravel() % 10
    assert got.labels.tolist() == expected.tolist()


def test_a_damaged_svhn_names_the_file(tmp_path):
    for part in ("train", "test"):
        content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
        savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=True)
    test = tmp_path / "test_32x32.mat"
    whole = test.read_bytes()
    test.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"test_32x32\.mat cannot be read .* get it again"):
        load("svhn", tmp_path)
    savemat(test, {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.ones((2, 1), np.uint8)})
    with pytest.raises(InputError, match=r"y must be uint8 with n = 3, as X, got uint8 \[2, 1\]"):
        load("svhn", tmp_path)
    savemat(test, {"Z": np.zeros(3)})
    with pytest.raises(InputError, match="cannot be read as SVHN's X and y"):
        load("svhn", tmp_path)
    test.unlink()
    with pytest.raises(InputError, match=r"there is no .*test_32x32\.mat"):
        load("svhn", tmp_path)


def write_svhn(folder, x=None, y=None, compressed=True):
    x = np.zeros((32, 32, 3, 2), np.uint8) if x is None else x
    y = np.ones((2, 1), np.uint8) if y is None else y
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": y}, do_compression=compressed)
    return folder / "test_32x32.mat"


@pytest.mark.parametrize("which", ["x", "y", "other"])
def test_an_svhn_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, peak, which):
    monkeypatch.setattr(small, "LIMIT", 20 << 20)
    path = write_svhn(tmp_path)
    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
    bomb = {"x": "X", "y": "y", "other": "a"}[which]
    savemat(path, {**content, bomb: np.zeros(100 << 20, np.uint8)}, do_compression=True)
    tracemalloc.reset_peak()
    with pytest.raises(InputError, match=r"unpacks to .* and no more than 20971520 are read"):
        load("svhn", tmp_path)
    assert peak() < 30 << 20


def test_the_limit_counts_all_that_a_mat_file_unpacks_to(tmp_path, monkeypatch):
    write_svhn(tmp_path)
    monkeypatch.setattr(small, "LIMIT", 10_000)  # X and y have 6146 bytes, and some headers
    assert len(load("svhn", tmp_path)) == 4
    write_svhn(tmp_path, np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8))
    with pytest.raises(InputError, match="no more than 10000 are read"):
        load("svhn", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (
            np.zeros((32, 32, 3, 2)),
            None,
            r"X must be uint8 \[32 32 3 n\], got double \[32, 32, 3, 2",
        ),
        (np.zeros((32, 31, 3, 2), np.uint8), None, r"got uint8 \[32, 31, 3, 2\]"),
        (None, np.array(["ab"]), "y must be uint8 with n = 2, as X, got char"),
        (None, np.array([[1.5], [2]]), "y must be uint8 with n = 2, as X, got double"),
        (None, np.array([{}, {}], object), "y must be uint8 with n = 2, as X, got cell"),
        (None, np.full((2, 1), 11, np.uint8), "labels of svhn must lie from 0 to 9"),
    ],
)
def test_an_svhn_of_another_form_is_refused_unread(tmp_path, x, y, words):
    write_svhn(tmp_path, x, y)
    with pytest.raises(InputError, match=words):
        load("svhn", tmp_path)


def test_pixels_that_look_like_a_packed_part_are_pixels(tmp_path):
    lookalike = np.frombuffer(struct.pack("<II", 15, 8), np.uint8)
    pixels = np.tile(lookalike, 32 * 32 * 3 * 2 // 8).reshape((32, 32, 3, 2), order="F")
    write_svhn(tmp_path, pixels, compressed=False)
    assert (load("svhn", tmp_path).pixels[0] == pixels[..., 0].transpose(2, 0, 1)).all()


def test_a_mat_file_of_another_time_is_refused(tmp_path):
    savemat(write_svhn(tmp_path), {"X": np.zeros((2, 2)), "y": np.ones((2, 1))}, format="4")
    with pytest.raises(InputError, match="does not begin as a file of MATLAB 5 does"):
        load("svhn", tmp_path)


# Damage of every kind


def damages(content, rng, n=60):
    """Cut anywhere, bytes changed, bytes put in, noise alone."""
    for _ in range(n):
        yield content[: rng.integers(0, len(content))]
        changed = np.frombuffer(content, np.uint8).copy()
        changed[rng.integers(0, len(content), 2)] = rng.integers(0, 256, 2)
        yield changed.tobytes()
        place = rng.integers(0, min(200, len(content)))
        yield content[:place] + rng.bytes(4) + content[place:]
        yield rng.bytes(200)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["idx", "idx.gz", "labels", "mat", "mat, packed", "cifar"])
def test_damage_is_an_input_error_that_names_the_file(tmp_path, monkeypatch, kind):
    rng, dataset = np.random.default_rng(1), kind
    if kind.startswith(("idx", "labels")):
        write_mnist(tmp_path, packed=kind == "idx.gz")
        name = "labels-idx1" if kind == "labels" else "images-idx3"
        path = tmp_path / f"t10k-{name}-ubyte{'.gz' if kind == 'idx.gz' else ''}"
        dataset = "mnist"
    elif kind == "cifar":
        files = {name: pickle.dumps(batch(2, "labels", 10)) for name in BATCHES}
        files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")})
        write_cifar(tmp_path, files, monkeypatch)
        path, dataset = tmp_path / "data_batch_2", "cifar10"
    else:
        path, dataset = write_svhn(tmp_path, compressed=kind == "mat, packed"), "svhn"
    refused = 0
    for damaged in damages(path.read_bytes(), rng):
        path.write_bytes(damaged)
        if kind == "cifar":  # as if the checksum were right
            monkeypatch.setitem(cifar.MD5, path.name, hashlib.md5(damaged).hexdigest())
        try:
            load(dataset, tmp_path)
        except InputError as error:
            refused += str(tmp_path) in str(error) or "labels of" in str(error)
    assert refused > 120


# Getting them


@pytest.mark.parametrize("name", [name for name in get.FILES if name != "digits"])
def test_what_is_missing_comes_with_instructions(tmp_path, name):
    with pytest.raises(InputError, match=f"a data folder is needed by {name}"):
        load(name)
    with pytest.raises(InputError) as caught:
        load(name, tmp_path)
    for file in get.FILES[name]:
        assert all(str(part) in str(caught.value) for part in (file.path, file.size, tmp_path))
        assert file.md5 is None or file.md5 in str(caught.value)


def test_every_data_set_can_be_loaded_and_got():
    assert set(get.FILES) == set(LOADERS) | set(wilds.LAYOUTS)
    assert instructions("Digits", "anywhere").endswith("there is nothing to get")
    download("digits", "anywhere")
    with pytest.raises(InputError, match="choose one of"):
        download("imagenet", "anywhere")


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("mnist", "MNIST", [{"train": True}, {"train": False}]),
        ("fashionmnist", "FashionMNIST", [{"train": True}, {"train": False}]),
        ("cifar10", "CIFAR10", [{"train": True}, {"train": False}]),
        ("cifar100", "CIFAR100", [{"train": True}, {"train": False}]),
        ("svhn", "SVHN", [{"split": "train"}, {"split": "test"}]),
    ],
)
def test_torchvision_downloads_what_it_knows(tmp_path, monkeypatch, name, kind, parts):
    calls = []
    fake = SimpleNamespace(**{kind: lambda root, **options: calls.append((root, options))})
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=fake))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", fake)
    download(name, tmp_path / "new")
    assert calls == [(str(tmp_path / "new"), {"download": True, **part}) for part in parts]
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("name", "version"), [("camelyon17", "1.0"), ("iwildcam", "2.0"), ("fmow", "1.1")]
)
def test_wilds_downloads_the_version_that_is_read(tmp_path, monkeypatch, name, version):
    calls = []
    fake = SimpleNamespace(get_dataset=lambda *args, **options: calls.append((args, options)))
    monkeypatch.setitem(sys.modules, "wilds", fake)
    download(name, tmp_path)
    options = {"version": version, "root_dir": str(tmp_path), "download": True}
    assert calls == [((name,), options)]


def test_without_torchvision_or_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(InputError, match="pip install torchvision, or get the files") as caught:
        download("mnist", tmp_path / "new")
    assert instructions("mnist", tmp_path / "new") in str(caught.value)
    assert not (tmp_path / "new").exists()

    def offline(root, **options):
        raise URLError("no route to host")

    fake = SimpleNamespace(MNIST=offline)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=fake))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", fake)
    with pytest.raises(InputError, match=r"no route to host.*check the network"):
        download("mnist", tmp_path)
