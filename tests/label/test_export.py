"""What is labelled, as other tools read it; and labels from elsewhere."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from visitors import Site

from foresee import InputError
from foresee.label import serve
from foresee.label.export import export
from foresee.label.imports import Taken, take_over


@pytest.fixture
def labelled(folder):
    (folder / "sub").mkdir()
    (folder / "00.png").rename(folder / "sub" / "01.png")  # another of this name
    site = Site(folder)
    ann = site.person()
    numbers = {site.book.items.pool.ids[i]: i for i in range(30)}
    ann.label([numbers["sub/01.png"], numbers["01.png"]], "cat/dog")
    ann.label(numbers["02.png"], "..")
    ann.label(numbers["03.png"], "dog")
    ann.label(numbers["03.png"], "cat")
    site.book.close()
    return site


TOLD = {"sub/01.png": "cat/dog", "01.png": "cat/dog", "02.png": "..", "03.png": "cat"}


def test_imagefolder(labelled, tmp_path):
    assert export(labelled.spec, labelled.out, "imagefolder", tmp_path / "to") == 4
    found = sorted(str(p.relative_to(tmp_path / "to")) for p in (tmp_path / "to").rglob("*.png"))
    assert found == ["_../02.png", "cat/03.png", "cat_dog/01.png", "cat_dog/sub__01.png"]
    with Image.open(tmp_path / "to" / "cat" / "03.png") as image:
        assert image.size == (12, 9)


def test_coco(labelled, tmp_path):
    export(labelled.spec, labelled.out, "coco", tmp_path / "to.json")
    found = json.loads((tmp_path / "to.json").read_text())
    names = {each["id"]: each["file_name"] for each in found["images"]}
    kinds = {each["id"]: each["name"] for each in found["categories"]}
    pairs = [(names[a["image_id"]], kinds[a["category_id"]]) for a in found["annotations"]]
    assert dict(pairs) == TOLD
    assert found["images"][0].items() >= {"width": 12, "height": 9}.items()


def test_datasets(labelled, tmp_path):
    export(labelled.spec, labelled.out, "datasets", tmp_path / "to")
    lines = (tmp_path / "to" / "metadata.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["id"]: row["label"] for row in rows} == TOLD
    assert all((tmp_path / "to" / row["file_name"]).is_file() for row in rows)


def test_label_studio(labelled, tmp_path):
    export(labelled.spec, labelled.out, "label-studio", tmp_path / "to.json")
    tasks = json.loads((tmp_path / "to.json").read_text())
    told = {
        task["data"]["image"]: task["annotations"][0]["result"][0]["value"]["choices"][0]
        for task in tasks
    }
    assert told == TOLD


def test_texts(tmp_path):
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(f"word {i}" for i in range(9)))
    site = Site(tmp_path / "texts.csv")
    site.person().label(3, "good")
    site.book.close()
    export(site.spec, site.out, "datasets", tmp_path / "to")
    assert json.loads((tmp_path / "to" / "data.jsonl").read_text()) == {
        "id": "3",
        "label": "good",
        "text": "word 3",
    }
    with pytest.raises(InputError, match="coco is for images"):
        export(site.spec, site.out, "coco", tmp_path / "to.json")


@pytest.mark.parametrize("kind", ["datasets", "label-studio"])
def test_nothing_of_a_text_or_a_row_is_lost(tmp_path, kind):
    pools = {"text\n": ["x" * 30_000, "y"], "a,b\n": ["0.1234567890123,1e-9", "2,3"]}
    for head, rows in pools.items():
        (tmp_path / "pool.csv").write_text(head + "\n".join(rows))
        site = Site(tmp_path / "pool.csv")
        site.person().label(0, "good")
        site.book.close()
        export(site.spec, site.out, kind, tmp_path / "to")
        text = (
            tmp_path / "to" / "data.jsonl" if kind == "datasets" else tmp_path / "to"
        ).read_text()
        assert all(part in text for part in rows[0].replace("1e-9", "1e-09").split(","))
        for path in [*tmp_path.glob("labels.csv*"), *tmp_path.glob("to*/*")]:
            path.unlink()
        (tmp_path / "to").rename(tmp_path / f"old-{head[0]}")
    (tmp_path / "pool.csv").write_text("a,label\n1,2\n3,4\n")
    site = Site(tmp_path / "pool.csv")
    site.person().label(0, "good")
    site.book.close()
    with pytest.raises(InputError, match="the pool has a column label"):
        export(site.spec, site.out, kind, tmp_path / "to")
    assert sorted(path.name for path in tmp_path.glob("*to*")) == []


def test_images_that_would_have_one_name_are_refused(folder, tmp_path):
    (folder / "a").mkdir()
    (folder / "01.png").rename(folder / "a" / "b.png")
    (folder / "02.png").rename(folder / "a__b.png")
    (folder / "broken.png").write_bytes(b"nothing")
    (folder / "album").symlink_to(folder / "a")
    site = Site(folder)
    ann, number = site.person(), site.book.items.number
    ann.label([number("a/b.png"), number("a__b.png")], "cat")
    for name, label, kind, words in (
        ("03.png", "ca/t", "datasets", "two images would be called a__b.png"),
        ("04.png", "ca_t", "imagefolder", "'ca_t' and 'ca/t' would be one folder"),
        ("album", "cat", "coco", "album has a label and is no file"),
        ("broken.png", "cat", "coco", "broken.png has a label and cannot be read"),
    ):
        if name == "broken.png":
            ann.label(number("album"), answer="skip")
        ann.label(number(name), label)
        site.book.close()
        with pytest.raises(InputError, match=words):
            export(site.spec, site.out, kind, tmp_path / "to")
        assert not any(tmp_path.glob("*to.part"))
        assert not (tmp_path / "to").exists()
        site.start()
        ann = site.person()
    site.book.close()


def test_bad_exports(labelled, tmp_path):
    for kind, to, words in (
        ("voc", tmp_path / "to", "must be one of imagefolder"),
        ("coco", labelled.out, "is there already"),
    ):
        with pytest.raises(InputError, match=words):
            export(labelled.spec, labelled.out, kind, to)
    with pytest.raises(InputError, match="there are no labels"):
        export(labelled.spec, tmp_path / "none.csv", "coco", tmp_path / "to")
    assert not (tmp_path / "none.csv.state").exists()


def test_labels_from_elsewhere(site, tmp_path):
    other = tmp_path / "old.csv"
    other.write_text("label,id,who\ncat,01.png,\ndog,02.png,eve\n")
    for _ in range(2):
        assert take_over(site.book, other) == Taken(2)
    assert site.rows() == [("01.png", "cat", "import"), ("02.png", "dog", "eve")]
    other.write_text("id,label\n../secret.txt,cat\n")
    with pytest.raises(InputError, match=r"line 2: '../secret.txt' is not in the pool or the tar"):
        take_over(site.book, other)
    for content, words in (("id\n1\n", "columns id and label"), ("", "columns id and label")):
        other.write_text(content)
        with pytest.raises(InputError, match=words):
            take_over(site.book, other)
    with pytest.raises(InputError, match="cannot be read"):
        take_over(site.book, tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "id,label\n01.png,cat, big\n",
            "line 2 has more values than there are columns: put quotes",
        ),
        ("id,label\n01.png,cat\n01.png,dog\n", "line 3: '01.png' has both 'cat' and 'dog' by the"),
        ("id,label\n\n\n01.png,cat\n99.png,cat\n", "line 5: '99.png' is not in the pool"),
        ("ID,Label\n01.png,cat\n", "id and label, and a row, got 1 rows of ID, Label$"),
        ("", "id and label, and a row, got 0 rows of nothing$"),
    ],
)
def test_a_table_that_says_something_else_is_refused(site, tmp_path, content, said):
    (tmp_path / "old.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        take_over(site.book, tmp_path / "old.csv")
    (tmp_path / "old.csv").write_text(
        "id,label,who\n01.png,cat,ann\n01.png,cat,ann,\n01.png,dog,bob\n"
    )
    assert take_over(site.book, tmp_path / "old.csv") == Taken(2)


def test_a_longer_import_leaves_corrections_as_they_are(site, tmp_path):
    old, head, ann = tmp_path / "old.csv", "id,label,who\n", site.person()
    number = site.book.items.number
    for rows, labels in (
        ("01.png,cat,\n02.png,cat,ann\n04.png,cat,ann\n", ["cat", "cat", "cat"]),
        ("01.png,cat,\n02.png,cat,ann\n04.png,cat,ann\n03.png,dog,\n", ["dog", "dog", None]),
        ("01.png,fox,\n02.png,fox,ann\n04.png,fox,ann\n", ["fox", "fox", "fox"]),
        ("01.png,cat,\n02.png,cat,ann\n04.png,cat,ann\n", ["cat", "cat", "cat"]),
    ):
        old.write_text(head + rows)
        take_over(site.book, old)
        told = site.book.desk.state.labels
        assert [told.get(name) for name in ("01.png", "02.png", "04.png")] == labels
        ann.label([number("01.png"), number("02.png")], "dog")
        ann.undo(number("04.png"))
    assert told["03.png"] == "dog"


TIMES = "id,label,time,who\n01.png,cat,2026-05-04T10:11:12.345Z,ann\n"


def test_labels_keep_their_times_and_the_last_one_counts(site, tmp_path):
    old, rows = tmp_path / "old.csv", ["02.png,dog,2026-05-04T12:00:01+02:00,bob"]
    rows += ["02.png,cat,2026-05-04T10:00:02Z,ann", "03.png,dog,2026-05-04T10:00:03Z,bob"]
    old.write_text(TIMES + "\n".join(rows))
    before = len(site.book.desk.events)
    for _ in range(2):
        assert take_over(site.book, old) == Taken(4)
    assert len(site.book.desk.events) == before + 4
    site.restart()
    found = [line.split(",") for line in site.out.read_text().splitlines()[1:]]
    assert sorted((name, label, time[11:19], who) for name, label, time, who in found) == [
        ("01.png", "cat", "10:11:12", "ann"),
        ("02.png", "cat", "10:00:02", "ann"),
        ("02.png", "dog", "10:00:01", "bob"),
        ("03.png", "dog", "10:00:03", "bob"),
    ]
    assert site.book.desk.state.labels["02.png"] == "cat"  # as where it was made
    assert len(site.book.disagreements()) == 1


@pytest.mark.parametrize("time", ["12:30", "2026-05-04T10:11:12", "yesterday"])
def test_a_time_that_cannot_be_read_is_refused(site, tmp_path, time):
    (tmp_path / "old.csv").write_text(f"{TIMES}02.png,cat,,bob\n03.png,cat,{time},bob\n")
    with pytest.raises(InputError, match=f"line 4: the time '{time}' must be as 2026-05-04T10:1"):
        take_over(site.book, tmp_path / "old.csv")
    assert site.rows() == []


@pytest.mark.parametrize("events", [1, 2])
def test_a_kill_during_an_import_is_mended(site, tmp_path, monkeypatch, events):
    ann, old = site.person(), tmp_path / "old.csv"
    ann.label(0, "cat")
    old.write_text(TIMES + "02.png,dog,2026-05-04T10:00:01Z,bob\n")
    sizes, append = [], site.book.desk.record.append

    def spy(some):
        append(some)
        sizes.append(site.book.desk.record.path.stat().st_size)

    monkeypatch.setattr(site.book.desk.record, "append", spy)
    monkeypatch.setattr(site.book, "_rewrite", lambda: pytest.fail("killed here"))
    with pytest.raises(pytest.fail.Exception):
        take_over(site.book, old)
    assert len(sizes) == 1  # all at once, and yet a kill may cut it anywhere
    if events == 1:
        os.truncate(site.book.desk.record.path, sizes[0] - 1)
    site.restart()
    assert [row[:2] for row in site.rows()[1:]] == [("01.png", "cat"), ("02.png", "dog")][:events]
    assert take_over(site.book, old) == Taken(2)
    assert len(site.rows()) == 3


def test_ids_that_are_whole_numbers(tmp_path):
    np.savez(tmp_path / "pool.npz", x=np.eye(3), id=np.array([10, 20, 30]))
    site = Site(tmp_path / "pool.npz", inputs=("x",), ids="id")
    site.person().label(1, "cat")
    site.book.close()
    site.out = site.out.rename(tmp_path / "old.csv").with_name("new.csv")
    site.start()
    assert take_over(site.book, tmp_path / "old.csv") == Taken(1)
    assert site.book.desk.state.labels == {20: "cat"}
    site.book.close()


@pytest.mark.parametrize("kind", ["imagefolder", "coco", "datasets", "label-studio"])
def test_names_that_are_no_utf8_go_out_and_come_back(folder, tmp_path, kind):
    name = os.fsdecode(b"caf\xe9.png")
    (folder / "00.png").rename(folder / name)
    site = Site(folder)
    site.person().label(site.book.items.number(name), "cat")
    site.book.close()
    export(site.spec, site.out, kind, tmp_path / "to")
    back = site.out.rename(tmp_path / "old.csv")
    if kind == "imagefolder":
        back = tmp_path / "to"
    else:
        file = tmp_path / "to" / "metadata.jsonl" if kind == "datasets" else tmp_path / "to"
        assert ascii(name)[1:-1] in ascii(json.loads(file.read_text()))
    site.out = tmp_path / "new.csv"
    site.start()
    assert take_over(site.book, back) == Taken(1)
    assert site.book.desk.state.labels == {name: "cat"}
    site.book.close()


def test_labels_have_one_spelling_wherever_they_come_from(folder, tmp_path):
    table, old = tmp_path / "old.csv", tmp_path / "old"
    sorted_images(folder, old, {"cafe\u0301/01.png": "01.png", "café/02.png": "02.png"})
    table.write_text("id;label\n03.png;cafe\u0301\n")  # as a spreadsheet may save it
    site = Site(folder)
    take_over(site.book, old, serve.spelled(["cafe\u0301"]))
    take_over(site.book, table)
    assert site.book.counts() == {"cat": 0, "dog": 0, "café": 3}
    (old / "café").rename(old / os.fsdecode(b"caf\xe9"))
    with pytest.raises(InputError, match=r"sub-folder 'caf\\udce9' must have a name of 1 to 100"):
        take_over(site.book, old)
    assert take_over(site.book, old, ["café"]) == Taken(1, 0, 1)
    table.write_bytes(b"id,label\n03.png,caf\xe9\n")
    with pytest.raises(InputError, match="no label of 1 to 100 characters that can be seen"):
        take_over(site.book, table)
    site.book.close()


def sorted_images(folder, to, names):
    """Copies of images in a sub-folder for each class, by the names they have there."""
    for path, name in names.items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_bytes((folder / name).read_bytes())


def test_labels_of_a_sub_folder_each(folder, tmp_path):
    (folder / "sub").mkdir()
    (folder / "02.png").rename(folder / "sub" / "02.png")
    (folder / "03.png").rename(folder / "sub" / "03.png")
    sorted_images(
        folder,
        tmp_path / "old",
        {
            "cat/01.png": "01.png",
            "cat/sub__02.png": "sub/02.png",  # as an export has it
            "big dog/sub/03.png": "sub/03.png",
            "05.png": "05.png",  # in none
        },
    )
    site = Site(folder)
    for _ in range(2):
        assert take_over(site.book, tmp_path / "old") == Taken(3, 0, 1)
    told = {"01.png": "cat", "sub/02.png": "cat", "sub/03.png": "big dog"}
    assert site.book.desk.state.labels == told
    site.book.close()
    export(site.spec, site.out, "imagefolder", tmp_path / "again")
    for path in tmp_path.glob("labels.csv*"):
        path.unlink()
    site = Site(folder)
    assert take_over(site.book, tmp_path / "again") == Taken(3)
    assert site.book.desk.state.labels == told
    sorted_images(folder, tmp_path / "old", {"dog/01.png": "01.png"})
    with pytest.raises(InputError, match=r"01.png is in the sub-folders (big dog|cat) and dog"):
        take_over(site.book, tmp_path / "old")
    assert take_over(site.book, tmp_path / "old", ["dog"]) == Taken(1, 0, 4)
    sorted_images(folder, tmp_path / "other", {"cat/new.png": "01.png"})
    with pytest.raises(InputError, match=r"cat/new.png is in neither the pool nor the target"):
        take_over(site.book, tmp_path / "other")
    with pytest.raises(InputError, match="no images in sub-folders named by --classes"):
        take_over(site.book, tmp_path / "other", ["dog"])
    site.book.close()


def test_the_pool_itself_may_have_a_sub_folder_for_each_class(folder, tmp_path):
    for label, name in (("cat", "01.png"), ("cat", "02.png"), ("unsorted", "03.png")):
        (folder / label).mkdir(exist_ok=True)
        (folder / name).rename(folder / label / name)
    (folder / "cat" / "04.png").write_bytes((folder / "04.png").read_bytes())
    site = Site(folder)
    assert take_over(site.book, folder, ["cat", "dog"]) == Taken(3, 0, 28)
    # Of two images of one name it is the one in the sub-folder.
    assert set(site.book.desk.state.labels) == {"cat/01.png", "cat/02.png", "cat/04.png"}
    site.book.close()


@pytest.mark.parametrize("kind", ["table", "folder", "own"])
def test_labels_of_target_items_are_held_out(folder, tmp_path, kind):
    target = tmp_path / "camera"
    sorted_images(folder, target, {f"cat/{i}.png": f"0{i}.png" for i in range(6)})
    other = target
    if kind == "table":
        other = tmp_path / "old.csv"
        rows = [f"target/cat/{i}.png,cat" for i in range(6)]
        other.write_text("\n".join(["id,label", *rows, "07.png,dog"]))
    elif kind == "folder":
        other = tmp_path / "old"
        names = {f"cat/target__cat__{i}.png": f"0{i}.png" for i in range(6)}
        sorted_images(folder, other, names | {"dog/07.png": "07.png"})
    site = Site(folder, target=str(target), holdout=0.1)
    for _ in range(2):
        assert take_over(site.book, other) == Taken(6 + (kind != "own"), 6)
    desk = site.book.desk
    assert desk.state.held == {f"target/cat/{i}.png" for i in range(6)}
    assert desk.now().labels == ["dog"] * (kind != "own")  # what a model learns from
    assert desk.state.out == {}
    assert len(site.rows()) == 6 + (kind != "own")
    site.restart()
    assert len(site.book.desk.state.held) == 6
    site.book.close()


def test_a_folder_is_no_import_for_texts(tmp_path, folder):
    (tmp_path / "texts.csv").write_text("text\na\nb\n")
    site = Site(tmp_path / "texts.csv")
    with pytest.raises(InputError, match="the pool has no images: pass a CSV"):
        take_over(site.book, folder)
    site.book.close()
