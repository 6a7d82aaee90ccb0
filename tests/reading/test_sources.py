"""Folders and files as people have them, and as nobody should."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from foresee import arrays
from foresee.errors import InputError
from foresee.reading import archives, decoded, fields, images, kept, sources, tables


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


@pytest.mark.parametrize("lazy", [False, True])
def test_what_an_older_reader_decoded_is_decoded_anew(photos, monkeypatch, lazy):
    read = decoded.read
    with monkeypatch.context() as older:
        older.setattr(images, "READER", 1)
        older.setattr(decoded, "read", lambda *a: 0 * read(*a))
        assert not np.array(sources.folder(photos, 4, lazy=lazy).inputs[:]).any()
    assert (sources.folder(photos, 4, lazy=lazy).inputs[:][:, 2] == 100).all()


def test_links_out_of_a_lazy_folder_are_broken_images(photos, tmp_path):
    save(tmp_path / "secret.png", "white")
    (photos / "a" / "link.png").symlink_to(tmp_path / "secret.png")
    (photos / "a" / "none.png").symlink_to(tmp_path / "none.png")
    found = sources.folder(photos, 4, lazy=True)
    assert found.ids[1:3] == ["a/link.png", "a/none.png"] == sources.image_names(photos, True)[1:3]
    assert (found.inputs[1:3] == 0).all()
    assert found.inputs.broken == ["a/link.png", "a/none.png"]


def test_images_are_decoded_as_they_are_asked_for(photos, monkeypatch):
    whole = sources.folder(photos, 4).inputs
    read, seen = decoded.read, []
    monkeypatch.setattr(decoded, "read", lambda *a: (seen.append(a), read(*a))[1])
    first, second = (sources.folder(photos, 4, lazy=True).inputs for _ in range(2))
    assert seen == []
    np.testing.assert_array_equal(first[np.array([2, 0, 2])], whole[[2, 0, 2]])
    assert len(seen) == 2
    np.testing.assert_array_equal(second[2], whole[2])  # another process would see it too
    assert len(seen) == 2
    np.testing.assert_array_equal(arrays.rows("pool", second)[:], whole)
    assert len(seen) == 3
    assert first.broken == []
    save(photos / "a" / "1.PNG", "white", (3, 3))
    assert (sources.folder(photos, 4, lazy=True).inputs[0] == 255).all()


def test_images_whose_pixels_were_deleted_are_decoded_again(photos):
    first = sources.folder(photos, 4, lazy=True).inputs[:]
    (file,) = (photos / sources.CACHE).glob("*-marks.npy")
    file.with_name(file.name.replace("-marks", "")).unlink()
    np.testing.assert_array_equal(sources.folder(photos, 4, lazy=True).inputs[:], first)


def test_an_image_that_a_full_disk_cuts_off_is_an_error(photos):
    resource = pytest.importorskip("resource")
    found = sources.folder(photos, 4, lazy=True).inputs
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 + 40, before[1]))  # header, most of one
    try:
        with pytest.raises(InputError, match=r"cannot be written \(File too large\): make room"):
            found[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(found[:], sources.folder(photos, 4).inputs)


def test_a_broken_image_of_a_lazy_folder_is_black(photos):
    (photos / "a" / "0.png").write_bytes(b"no image")
    found = sources.read(photos, size=4, lazy=True)
    place = found.ids.index("a/0.png")
    assert (found.inputs[place] == 0).all()
    assert found.inputs.broken == ["a/0.png"]
    assert sources.read(**found.origin).inputs.broken == ["a/0.png"]


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
        ({"size": 0}, "size must be one or two positive whole numbers"),
        ({"size": 8.0}, "whole numbers and channels 1 or 3, got 8.0"),
        ({"size": (8,)}, "size must be one or two"),
        ({"size": (8, 0)}, "size must be one or two"),
        ({"size": 4, "channels": 2}, "channels 1 or 3"),
        ({"size": 4, "labels": "class"}, "labels names a column"),
    ],
)
def test_bad_requests_of_a_folder(photos, arguments, words):
    with pytest.raises(InputError, match=words):
        sources.read(photos, **arguments)


def test_a_size_of_numpy_can_be_kept_as_json(photos):
    origin = json.loads(json.dumps(sources.read(photos, size=np.int64(4)).origin))
    assert sources.read(**origin).inputs.shape == (3, 3, 4, 4)


def test_an_empty_folder_and_a_missing_one(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        sources.read(tmp_path, size=4)
    with pytest.raises(InputError, match="there is no file"):
        sources.read(tmp_path / "nothing.csv")


def test_csv_of_texts_and_of_numbers(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('name,a,b,kind\nx,1,2.5,007\n\ny,-3,"4e1",8\n\n', encoding="utf-8-sig")
    found = sources.read(path, labels="kind", ids="name")
    np.testing.assert_array_equal(found.inputs, [[1, 2.5], [-3, 40]])
    assert (found.ids, found.labels) == (["x", "y"], ["007", "8"])
    assert sources.read(path, inputs="name").inputs == ["x", "y"]
    assert sources.read(path, inputs=["b"]).ids == range(2)
    assert sources.read(path, inputs="b").inputs.tolist() == [[2.5], [40]]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("", {}, "begin with the names"),
        ("a,a\n1,2\n", {}, "each once"),
        ("a,b\n1\n", {}, "line 2: 2 fields were expected, got 1"),
        ("a\n", {}, "holds no rows"),
        ("a,b\n", {}, "holds no rows"),
        ("a,b\n1,x\n", {}, r"got texts in b \('x' in row 0\): name the columns"),
        ("a;b\n1;2\n3;4,5\n", {}, r"texts in b \('4,5' in row 1\): .* write numbers as 1000\.5"),
        ("a;b\n1;2\n3;4,5\n", {"inputs": "b"}, "b holds numbers, and '4,5' in row 1"),
        ("a,b\n1,2\n,3\n", {"inputs": "a"}, "a holds numbers, and '' in row 1: fill it"),
        ("text\nfine\n\ndull\n", {}, 'line 3 is empty: write ""'),
        ("a,b,\n1,2,\n3,4,5\n", {}, "line 3: '5' is in a column without a name"),
        ("a;b\n1;2;3\n", {}, "got 3: quote texts that hold ';'"),
        ("a,b\n1,2\n", {"labels": "c"}, "no column 'c' but a, b"),
        ("a,b\n1,2\n1,3\n", {"ids": "a"}, "the id '1' is there twice"),
        ("\xe9,b\n1,2\n", {}, "in UTF-8"),
        (f"a\n{'x' * (1 << 17)}y\n", {}, r"save it so, or as \.parquet"),
    ],
)
def test_bad_tables(tmp_path, content, arguments, words):
    path = tmp_path / "table.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=words):
        sources.read(path, **arguments)


_ROWS = ["5.1,3.5,setosa", "4.9,3.0,setosa", "6.4,3.2,other"]


@pytest.mark.parametrize(
    "lines",
    [
        _ROWS,
        ["0.3,-1.2,0.5,7", "1,2,3,4"],
        ["3,1,2", "4,,6"],
        ['"1,5",2', '"2,5",3'],
        ["great,5", "dull,1", "great,4"],
    ],
)
def test_rows_are_no_names(tmp_path, lines):
    path = tmp_path / "table.CSV"
    path.write_text("\n".join(lines))
    for read in (sources.read, lambda path: tables.names(path, {None})):
        with pytest.raises(InputError, match="begin with the names of its columns, got "):
            read(path)
    name = lines[0].rpartition(",")[2]  # whoever calls it so knows it for a name
    assert len(sources.read(path, inputs=name)) == len(sources.read(path, ids=name, inputs=name))
    assert tables.names(path, {name})


@pytest.mark.parametrize(
    "names",
    [
        "0",
        "0,1,2",
        "2019,2020,2021",
        "id,3,1,2",
        "5.1,b",
        "3,1,2,text",
        "spam",
        "spam,ham",
        "1,0,yes",
        ",2,1",
    ],
)
def test_names_may_be_numbers(tmp_path, names):
    path = tmp_path / "table.csv"
    row = ",".join("spam" if name in ("text", "spam") else "4" for name in names.split(","))
    path.write_text(f"{names}\n{row}\n{row}\n")
    assert tables.names(path, ())


@pytest.mark.parametrize("names", ["850.5,852.1,860", "4000,3000,400", "1,10,11,2", "0.5", "3,4.5"])
def test_numbers_in_order_may_be_names(tmp_path, names):
    path = tmp_path / "table.csv"
    path.write_text(f"{names}\n{names.replace('0', '1')}\n")
    with pytest.warns(UserWarning, match="got .* as in the rows below: add such a line, if these"):
        assert len(sources.read(path)) == 1


@pytest.mark.parametrize("separator", ";\t|")
def test_other_separators_than_commas(tmp_path, separator):
    path, text = tmp_path / "table.csv", '"a, b; \t| c"'
    rows = [["id", text, "kind"], ["x1", text, "no"], ["x2", "2", "yes"]]
    path.write_text("\n" + "\n".join(map(separator.join, rows)))
    found = sources.read(path, ids="id", labels="kind")
    assert found.inputs == [text.strip('"'), "2"]
    assert (found.ids, found.labels) == (["x1", "x2"], ["no", "yes"])


@pytest.mark.parametrize("text", ["a; b", "a | b", "a\tb"])
def test_texts_alone_need_no_separator(tmp_path, text):
    (tmp_path / "table.csv").write_text(f"text\n{text}\nc\n")
    assert sources.read(tmp_path / "table.csv").inputs == [text, "c"]


@pytest.mark.parametrize("name", ['"a,\n""b"""', '"a,\r\nb"', '5" a', '"a"",""b"'])
def test_a_name_may_hold_quotes_and_line_ends(tmp_path, name):
    (tmp_path / "table.csv").write_text(f"{name};c\n1;2\n3;4\n", newline="")
    assert sources.read(tmp_path / "table.csv").inputs.tolist() == [[1, 2], [3, 4]]


def test_a_comma_separates_whatever_else_there_is(tmp_path):
    (tmp_path / "table.csv").write_text("a;b;c,d\n1,2\n")
    assert sources.read(tmp_path / "table.csv", inputs=["d"]).inputs.tolist() == [[2]]


def test_a_column_without_a_name_is_no_input(tmp_path):
    """As pandas writes an index, and spreadsheets empty columns."""
    path = tmp_path / "table.csv"
    path.write_text(",a,b,,\n7,1,2,,\n8,3,4,,\n")
    assert sources.read(path).inputs.tolist() == [[1, 2], [3, 4]]
    assert sources.read(path, ids="").ids == ["7", "8"]
    assert sources.read(path, inputs=["", "a"]).inputs.tolist() == [[7, 1], [8, 3]]


@pytest.mark.parametrize(
    "code", ["01234", "1234567890123456789", "+12345678901234567", "12_3", " 007\t"]
)
def test_codes_are_no_numbers(tmp_path, code):
    path = tmp_path / "table.csv"
    path.write_text(f"code,a\n1234567890123456,1\n{code},2\n")
    assert sources.read(path, inputs="code").inputs == ["1234567890123456", code]
    with pytest.raises(InputError, match="texts in code"):
        sources.read(path)


def test_numbers_that_look_like_codes(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n0,0.5,1e17\n10,00.5,1234567890123456\n2,1,-0.0000000000000000001\n")
    found = sources.read(path).inputs.tolist()
    assert found == [[0, 0.5, 1e17], [10, 0.5, 1234567890123456], [2, 1, -1e-19]]


@pytest.mark.parametrize(("shape", "how"), [((3, 1), r"ravel\(\)"), ((3, 2), r"argmax\(1\)")])
def test_labels_are_one_for_each_row(tmp_path, shape, how):
    np.savez(tmp_path / "data.npz", x=np.eye(3), y=np.zeros(shape))
    with pytest.raises(InputError, match=rf"labels must be one for each row.* write the \.{how}"):
        sources.read(tmp_path / "data.npz", labels="y")


def test_an_empty_label_is_none(tmp_path):
    path = tmp_path / "part.csv"
    path.write_text("a,b\n1,x\n2,\n3,0\n")
    assert sources.read(path, labels="b").labels == ["x", None, "0"]
    np.savez(tmp_path / "part.npz", x=np.eye(3), y=["x", "", "0"], z=[1, 0, 2])
    assert sources.read(tmp_path / "part.npz", inputs="x", labels="y").labels == ["x", None, "0"]
    assert sources.read(tmp_path / "part.npz", inputs="x", labels="z").labels == [1, 0, 2]


def test_several_arrays_are_joined(tmp_path):
    parts = {"x": np.eye(3), "y": np.arange(3.0), "z": np.arange(12.0).reshape(3, 2, 2)}
    np.savez(tmp_path / "data.npz", **parts)
    found = sources.read(tmp_path / "data.npz", inputs=["z", "x", "y"]).inputs
    np.testing.assert_array_equal(found, np.c_[np.arange(12).reshape(3, 4), np.eye(3), range(3)])


@pytest.mark.parametrize("named", ["inputs", "labels", "ids"])
def test_an_array_of_its_own_has_no_names(tmp_path, named):
    np.save(tmp_path / "data.npy", np.eye(3))
    with pytest.raises(InputError, match=r"holds one array without a name: leave 'y' out"):
        sources.read(tmp_path / "data.npy", **{named: "y"})


def test_photos_that_cannot_be_read_are_named(photos):
    (photos / "a" / "5.HEIC").write_bytes(b"a camera's")
    with pytest.raises(InputError, match=r"5\.HEIC cannot be read as an image"):
        sources.read(photos, size=4)
    lazy = sources.read(photos, size=4, lazy=True)
    assert (lazy.inputs[:].shape[0], lazy.inputs.broken) == (4, ["a/5.HEIC"])


def test_arrays(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez(tmp_path / "data.npz", x=x, y=y)
    found = sources.read(tmp_path / "data.npz", labels="y")
    np.testing.assert_array_equal(found.inputs, x)
    assert found.labels == ["a", "b", "a"]
    with pytest.raises(InputError, match=r"ids must be one for each row, got 'x' \[3, 2\]"):
        sources.read(tmp_path / "data.npz", inputs="x", ids="x")
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
    for options in ({"size": 4}, {"lazy": True}, {"channels": 1}):
        with pytest.raises(InputError, match="are for a folder of images"):
            sources.read(tmp_path / "data.npy", **options)
    np.save(tmp_path / "one.npy", np.float64(1))
    with pytest.raises(InputError, match="holds no rows"):
        sources.read(tmp_path / "one.npy")


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


@pytest.mark.parametrize("size", [0, 1 << 26])
def test_parquet_of_other_kinds(tmp_path, monkeypatch, size):
    """As Hugging Face keeps images, and polars embeddings."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(archives, "LOADED", size)
    path, floats = tmp_path / "data.parquet", arrow.float32()
    table = {
        "large": arrow.array([[1, 2], [3, 4]], arrow.large_list(floats)),
        "nested": arrow.array([[[1], [2]], [[3], [4]]], arrow.list_(arrow.list_(floats, 1), 2)),
        "image": [{"bytes": b"PNG", "path": "a.png"}] * 2,
        "bytes": [b"a", b"b"],
    }
    parquet.write_table(arrow.table(table), path)
    assert sources.read(path, inputs="large").inputs.tolist() == [[1, 2], [3, 4]]
    assert sources.read(path, inputs="nested").inputs.tolist() == [[[1], [2]], [[3], [4]]]
    for name in ("image", "bytes"):
        with pytest.raises(InputError, match=f"{name} holds neither texts nor numbers but"):
            sources.read(path, inputs=name)
    twice = arrow.Table.from_arrays([arrow.array([1])] * 2, names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(InputError, match="each once, got a, a"):
        sources.read(path)


TABLE = "name,a,b,text\n" + "".join(f'r{i},{i},{i / 2},"é, {i}\n"\n' for i in range(50))


@pytest.fixture
def large(monkeypatch):
    """All files are large, and read some rows at a time."""
    monkeypatch.setattr(archives, "LOADED", 0)
    monkeypatch.setattr(fields, "BLOCK", 1000)


@pytest.mark.parametrize(
    "arguments",
    [
        {"inputs": ["a", "b"], "ids": "name", "labels": "text"},
        {"inputs": "b", "labels": "a"},
        {"inputs": "text"},
        {"inputs": "text", "ids": "name"},
        {"inputs": "name"},
    ],
)
def test_a_large_table_is_read_as_a_small_one(tmp_path, monkeypatch, arguments):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    small = sources.read(path, **arguments)
    assert not (tmp_path / sources.CACHE).exists()
    monkeypatch.setattr(archives, "LOADED", 0)
    monkeypatch.setattr(fields, "BLOCK", 1000)
    for found in (sources.read(path, **arguments), sources.read(path, **arguments)):
        assert list(found.ids) == list(small.ids)
        assert found.labels == small.labels
        assert isinstance(found.inputs, np.memmap | tables.Texts)
        np.testing.assert_array_equal(found.inputs[:], small.inputs)


def test_texts_are_read_by_position(tmp_path, large):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    texts = sources.read(path, inputs="text").inputs
    assert len(texts) == 50
    assert texts[3] == texts[np.int64(-47)] == "é, 3\n"
    assert texts[2:4] == texts[np.array([2, 3])] == ["é, 2\n", "é, 3\n"]
    rows = arrays.rows("pool", texts)
    assert rows[np.array([5, 1])] == ["é, 5\n", "é, 1\n"]
    with pytest.raises(IndexError):
        texts[50]
    path.write_text("a\nword\n" + "1\n" * 200)
    assert sources.read(path).inputs[[0, 200]] == ["word", "1"]


def test_what_is_unpacked_is_unpacked_once_and_again_when_the_file_changes(
    tmp_path, large, monkeypatch
):
    made, make = [], kept.make
    monkeypatch.setattr(kept, "make", lambda *a: (made.append(a), make(*a))[1])
    path = tmp_path / "table.csv"
    for content, times in ((TABLE, 1), (TABLE, 1), (TABLE.replace("49", "47"), 2)):
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
            os.utime(path, ns=(times, times))
        last = sources.read(path, inputs=["a", "b"]).inputs[-1, 0]
        assert len(made) == times
    assert last == 47
    monkeypatch.setattr(tables, "_READER", 0)  # another version of foresee reads otherwise
    sources.read(path, inputs=["a", "b"])
    assert len(made) == times + 1
    other = sources.read(path, inputs=["b", "a"], cache=tmp_path / "there").inputs
    assert other[-1, 1] == 47
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "table.csv").write_text(TABLE)
    sources.read(tmp_path / "sub" / "table.csv", inputs=["b", "a"], cache=tmp_path / "there")
    assert len(list((tmp_path / "there").glob("*.npy"))) == 2


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_large_array_of_an_archive_is_mapped(tmp_path, large, save):
    path, x = tmp_path / "data.npz", np.arange(600.0).reshape(100, 6)
    save(path, x=x, y=np.arange(100), names=np.array(["a", "b"] * 50))
    found = sources.read(path, inputs="x", labels="y")
    assert isinstance(found.inputs, np.memmap)
    np.testing.assert_array_equal(found.inputs, x)
    assert found.labels == list(range(100))
    assert sources.read(path, inputs="names").inputs.tolist() == ["a", "b"] * 50
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"(100, 6)", b"(100, 9)") if save is np.savez else content[:-9]
    )
    with pytest.raises(InputError, match="cannot be read"):
        sources.read(path, inputs="x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TABLE + "r50,1\n", "line 102: 4 fields were expected, got 2"),
        ("a,b\n1,2\n3,x\n", r"got texts in b \('x' in row 1\): name the columns"),
        ("a\n" + "1\n" * 200 + "NA\n", "a holds numbers, and 'NA' in row"),
        ("a,b\n", "holds no rows"),
    ],
)
def test_bad_large_tables(tmp_path, large, content, words):
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        sources.read(path)
    assert not list(tmp_path.rglob("*.npy"))


def test_parquet_that_is_large(tmp_path, large):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "data.parquet"
    numbers = np.arange(300, dtype=np.uint8)
    columns = {"x": numbers, "y": [f"é {i}" for i in range(300)], "z": [1, None] * 150}
    parquet.write_table(arrow.table(columns), path, row_group_size=70)
    assert (sources.read(path, inputs="x").inputs[:, 0] == numbers).all()
    found = sources.read(path, inputs="y", ids="y", labels="x")
    assert found.inputs[:] == found.ids == columns["y"]
    assert found.labels == numbers.tolist()
    with pytest.raises(InputError, match="empty values"):
        sources.read(path, inputs="z")


def test_what_memory_cannot_hold_is_mapped_to_be_read(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(5))
    memmap = np.memmap

    def reserve(file, dtype, mode, *rest):
        if mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return memmap(file, dtype, mode, *rest)

    monkeypatch.setattr(np, "memmap", reserve)
    found = kept.open_array(tmp_path / "x.npy")
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert not found.flags.writeable
