"""What is labelled, as other tools read it; and labels from elsewhere."""

import json

import pytest
from PIL import Image
from visitors import Site

from foresee import InputError
from foresee.label.export import export
from foresee.label.serve import take_over


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
        assert take_over(site.book, other) == 2
    assert site.rows() == [("01.png", "cat", "import"), ("02.png", "dog", "eve")]
    other.write_text("id,label\n../secret.txt,cat\n")
    with pytest.raises(InputError, match=r"line 2: '../secret.txt' is not in the pool"):
        take_over(site.book, other)
    for content, words in (("id\n1\n", "columns id and label"), ("", "columns id and label")):
        other.write_text(content)
        with pytest.raises(InputError, match=words):
            take_over(site.book, other)
    with pytest.raises(InputError, match="cannot be read"):
        take_over(site.book, tmp_path / "missing.csv")
