"""Folders and files as people have them, and as nobody should."""

import os

import numpy as np
import pytest
from PIL import Image

from foresee import decoded, sources
from foresee.errors import InputError


def save(path, colour, size=(9, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for i, name in enumerate(["b/2.png", "a/1.PNG", "b/deep/3.png"]):
        save(root / name, (i, 10 * i, 100))
    (root / "notes.txt").write_text("no image")
    save(root / ".hidden" / "4.png", "red")
    save(root / ".thumb.png", "red")
    return root


def test_a_folder_is_rows_by_path(photos):
    found = sources.read(photos, size=(4, 6))
    assert found.ids == ["a/1.PNG", "b/2.png", "b/deep/3.png"]
    assert found.labels == ["a", "b", "b"]
    assert found.inputs.shape == (3, 3, 4, 6)
    assert found.inputs.dtype == np.uint8
    assert found.inputs[:, :, 0, 0].tolist() == [[1, 10, 100], [0, 0, 100], [2, 20, 100]]
    assert sources.folder(photos, 5, channels=1).inputs.shape == (3, 1, 5, 5)
    save(photos / "top.png", "blue")
    assert sources.folder(photos, 5).labels is None


def test_a_folder_is_decoded_once_and_again_when_a_file_changes(photos, monkeypatch):
    read, seen = decoded.read, []
    monkeypatch.setattr(decoded, "read", lambda *a: (seen.append(a), read(*a))[1])
    for _ in range(2):
        sources.folder(photos, 4)
    assert len(seen) == 3
    save(photos / "a" / "1.PNG", "white", (3, 3))
    assert (sources.folder(photos, 4).inputs[0] == 255).all()
    assert len(seen) == 6
    os.utime(photos / "a" / "1.PNG", ns=(1, 1))
    sources.folder(photos, 4)
    assert len(seen) == 9


def test_two_folders_share_a_cache(photos, tmp_path):
    save(tmp_path / "other" / "photos" / "1.png", "white")
    for _ in range(2):
        assert len(sources.folder(photos, 4, cache=tmp_path / "cache")) == 3
        assert len(sources.folder(tmp_path / "other" / "photos", 4, cache=tmp_path / "cache")) == 1
    assert not (photos / sources.CACHE).exists()


def test_broken_images_are_named_all(photos):
    for name in ("x.png", "y.jpg"):
        (photos / name).write_bytes(b"%PDF")
    with pytest.raises(InputError, match=r"(?s)x\.png cannot be read.*y\.jpg cannot be read"):
        sources.folder(photos, 4)


@pytest.mark.parametrize("what", ["file", "folder", "dangling"])
def test_links_out_of_the_folder_are_refused(photos, tmp_path, what):
    save(tmp_path / "elsewhere" / "1.png", "red")
    goal = {"file": "elsewhere/1.png", "folder": "elsewhere", "dangling": "nowhere.png"}[what]
    (photos / "link.png").symlink_to(tmp_path / goal)
    with pytest.raises(InputError, match=r"leads out of the folder|is a link to a folder"):
        sources.folder(photos, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "pass size"),
        ({"size": 0}, "size must be positive"),
        ({"size": 4, "channels": 2}, "channels 1 or 3"),
        ({"size": 4, "labels": "class"}, "labels names a column"),
    ],
)
def test_bad_requests_of_a_folder(photos, arguments, words):
    with pytest.raises(InputError, match=words):
        sources.read(photos, **arguments)


def test_an_empty_folder_and_a_missing_one(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        sources.read(tmp_path, size=4)
    with pytest.raises(InputError, match="there is no file"):
        sources.read(tmp_path / "nothing.csv")


def test_csv_of_texts_and_of_numbers(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('name,a,b,kind\nx,1,2.5,007\ny,-3,"4e1",8\n', encoding="utf-8-sig")
    found = sources.read(path, labels="kind", ids="name")
    np.testing.assert_array_equal(found.inputs, [[1, 2.5], [-3, 40]])
    assert (found.ids, found.labels) == (["x", "y"], ["007", "8"])
    assert sources.read(path, inputs="name").inputs == ["x", "y"]
    assert sources.read(path, inputs=["b"]).ids == [0, 1]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("", {}, "begin with the names"),
        ("a,a\n1,2\n", {}, "each once"),
        ("a,b\n1\n", {}, "line 2: 2 fields were expected, got 1"),
        ("a\n", {}, "holds no rows"),
        ("a,b\n1,x\n", {}, "b of texts: name the columns"),
        ("a,b\n1,2\n", {"labels": "c"}, "no column 'c' but a, b"),
        ("a,b\n1,2\n1,3\n", {"ids": "a"}, "the id '1' is there twice"),
        ("\xe9,b\n1,2\n", {}, "in UTF-8"),
    ],
)
def test_bad_tables(tmp_path, content, arguments, words):
    path = tmp_path / "table.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=words):
        sources.read(path, **arguments)


def test_arrays(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez(tmp_path / "data.npz", x=x, y=y)
    found = sources.read(tmp_path / "data.npz", labels="y")
    np.testing.assert_array_equal(found.inputs, x)
    assert found.labels == ["a", "b", "a"]
    with pytest.raises(InputError, match="holds x, y: name the array"):
        sources.read(tmp_path / "data.npz")
    np.save(tmp_path / "data.npy", x)
    assert isinstance(sources.read(tmp_path / "data.npy").inputs, np.memmap)
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="holds no plain array"):
        sources.read(tmp_path / "pickled.npy")
    np.savez(tmp_path / "long.npz", x=x, y=y[:2])
    with pytest.raises(InputError, match="3 rows of inputs and 2 labels"):
        sources.read(tmp_path / "long.npz", labels="y")
    with pytest.raises(InputError, match=r"must be a folder of images, or a \.csv"):
        sources.read(__file__)


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "data.parquet"
    x = arrow.FixedSizeListArray.from_arrays(arrow.array(np.arange(6, dtype=np.float32)), 2)
    table = arrow.table({"x": x, "y": ["a", "b", "a"], "z": [1, None, 2]})
    parquet.write_table(table, path)
    found = sources.read(path, inputs="x", labels="y")
    np.testing.assert_array_equal(found.inputs, [[0, 1], [2, 3], [4, 5]])
    assert found.labels == ["a", "b", "a"]
    assert sources.read(path, inputs="y").inputs == ["a", "b", "a"]
    with pytest.raises(InputError, match="z has 1 empty values"):
        sources.read(path, inputs="z")
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        sources.read(path)
