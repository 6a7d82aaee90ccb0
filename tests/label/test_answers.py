"""What people press is what is kept: once, in both files, before anybody hears of it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from visitors import N, Site

from foresee import SKIP, UNSURE, InputError
from foresee.label.book import Book
from foresee.label.imports import take_over
from foresee.label.items import Items, Spec


def name(site, number):
    return site.book.items.id(number)


def test_labels_are_rows_of_a_csv(site):
    ann = site.person("Ann Lee")
    first, second, third, *_ = (item["item"] for item in ann.next())
    assert ann.label(first, "cat").status_code == 200
    assert ann.label([second, third], "a new, odd  label").status_code == 200
    assert site.book.out.read_text().count('"a new, odd label"') == 2
    assert site.book.classes == ["cat", "dog", "a new, odd label"]
    live = ann.client.get("/live").json()
    assert live["counts"] == {"cat": 1, "dog": 0, "a new, odd label": 2}
    assert live["labels"] == 3


def test_written_and_synced_before_the_answer(site, monkeypatch):
    """A kill cannot prove it: the system would write what was not synced."""
    ann, order = site.person(), []
    item = ann.next()[0]["item"]
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1]
    )
    app = site.app.app

    async def spy(scope, receive, send):
        async def sending(message):
            if message["type"] == "http.response.start":
                kept = name(site, item) in site.out.read_text()
                order.append(("answer", message["status"], kept))
            await send(message)

        await app(scope, receive, sending)

    site.app.app = spy
    ann.label(item, "cat")
    state, table = f"{site.out}.state", str(site.out)
    at = order.index(("answer", 200, True))
    assert order[:2] == [state, table]
    assert at > 1


@pytest.mark.parametrize("again", [True, False])
def test_a_full_disk_is_told_and_nothing_is_half_kept(site, monkeypatch, again):
    ann = site.person()
    one, two = (item["item"] for item in ann.next()[:2])
    sync = os.fsync

    def full(fd):
        if os.readlink(f"/proc/self/fd/{fd}") == str(site.out):
            raise OSError(28, "No space left on device")
        return sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    key = ann.key()
    answer = ann.label(one, "cat", key=key)
    assert answer.status_code == 409
    assert "make room" in answer.json()["error"]
    assert site.rows() == []
    monkeypatch.setattr(os, "fsync", sync)
    if again:
        assert ann.label(one, "cat", key=key).status_code == 200
        assert len(site.rows()) == 1
    assert ann.label(two, "dog").status_code == 200
    assert site.rows() == [(name(site, one), "cat", "ann"), (name(site, two), "dog", "ann")]


def test_a_repeated_request_is_one_label(site):
    ann = site.person()
    item = ann.next()[0]["item"]
    for _ in range(3):
        assert ann.label(item, "cat", key="the-same-key").status_code == 200
    site.restart()
    again = site.person()
    assert again.label(item, "cat", key="the-same-key").status_code == 200
    assert site.rows() == [(name(site, item), "cat", "ann")]
    other = again.label(item, "dog", key="the-same-key")
    assert other.status_code == 409
    assert "was used for something else" in other.json()["error"]


def test_undo_takes_the_row_out_and_gives_the_item_back(site):
    ann = site.person()
    one, two, *_ = (item["item"] for item in ann.next())
    ann.label(one, "cat")
    ann.label(two, "dog")
    key = ann.key()
    for _ in range(2):  # one undo, however often it is sent
        found = ann.undo(two, key=key)
        assert [item["item"] for item in found.json()["items"]] == [two]
    assert site.rows() == [(name(site, one), "cat", "ann")]
    assert site.person("bob").undo(one).status_code == 409  # it is not his
    assert site.book.desk.state.out[name(site, two)] == ann.tab
    assert two in [item["item"] for item in ann.next()]  # after a reload too
    ann.label(two, "cat")
    assert site.rows()[1] == (name(site, two), "cat", "ann")


def test_a_change_of_mind_is_one_row(site):
    ann = site.person()
    one, two, *_ = (item["item"] for item in ann.next())
    ann.label(one, "cat")
    ann.label(two, "cat")
    ann.label(one, "dog")
    assert site.rows() == [(name(site, two), "cat", "ann"), (name(site, one), "dog", "ann")]
    ann.label(two, answer="skip")
    assert site.rows() == [(name(site, one), "dog", "ann")]
    assert site.book.disagreements() == []


def test_disagreements_are_kept_and_shown(site):
    ann, bob = site.person("ann"), site.person("bob")
    item = ann.next()[0]["item"]
    ann.label(item, "cat")
    bob.label(item, "dog")
    (found,) = bob.client.get("/live").json()["disagreements"]
    assert found["item"] == item
    assert found["said"] == {"ann": "cat", "bob": "dog"}
    assert [row[1:] for row in site.rows()] == [("cat", "ann"), ("dog", "bob")]
    site.restart()
    assert len(site.book.disagreements()) == 1
    site.person("ann").label(item, "dog")
    assert site.book.disagreements() == []


def test_skipped_items_are_gone_and_unsure_ones_come_last(site):
    ann = site.person()
    one, two, *_ = (item["item"] for item in ann.next())
    ann.label(one, answer="skip")
    ann.label(two, answer="unsure")
    aside = site.book.desk.state.aside
    assert aside == {name(site, one): SKIP, name(site, two): UNSURE}
    seen = set()
    while items := [item["item"] for item in ann.next() if item["item"] not in seen]:
        seen |= set(items)
        ann.label(items, "cat")
    assert len(seen) == N - 1
    assert one not in seen
    assert two in seen


def test_what_somebody_is_not_sure_of_twice_is_left_to_others(site):
    ann = site.person("ann")
    while items := [item["item"] for item in ann.next()]:
        ann.label(items, "cat")
    (last,) = ann.undo(0).json()["items"]
    for again in (False, True):
        (item,) = ann.next()
        assert (item["item"], item["unsure"]) == (last["item"], again)
        found = ann.label(last["item"], answer="unsure").json()
    assert found["items"] == []
    assert found["done"]
    site.fitter.busy = True
    assert not ann.post("/next", tab=ann.tab).json()["done"]
    assert found["live"]["aside"] == {"unsure": 1}
    assert site.book.waiting() == 0  # nobody need choose others first
    site.restart()
    assert site.person("ann").next() == []
    assert [item["item"] for item in site.person("bob").next()] == [last["item"]]


def test_people_and_tabs_share_one_queue(site):
    people = [site.person("ann", "first-tab"), site.person("ann", "second-tab"), site.person("bob")]
    seen: list[int] = []
    for turn in range(N):
        person = people[turn % 3]
        found = person.post("/next", tab=person.tab, size=4).json()
        assert not found["done"]
        items = found["items"]
        if items:
            seen.append(items[0]["item"])
            assert person.label(seen[-1], "cat", size=4).status_code == 200
    assert len(seen) == len(set(seen)) == N
    assert len(site.rows()) == N
    assert people[0].post("/next", tab="first-tab").json()["done"]


def test_what_a_closed_tab_held_is_for_others(site, monkeypatch):
    ann, bob = site.person("ann"), site.person("bob")
    held = {item["item"] for item in ann.next(48)}
    assert held
    assert site.book.waiting() == 0
    assert not held & {item["item"] for item in bob.next(48)}
    ann.post("/leave", tab=ann.tab)
    assert held <= {item["item"] for item in bob.next(48)}
    for i in range(20):  # tabs that come and go
        site.person("cem", f"tab-number-{i}").next(1)
    monkeypatch.setattr("foresee.label.book.LEASE", -1.0)  # bob has gone away without a word
    assert held <= {item["item"] for item in ann.next(48)}
    assert len(site.book._seen) <= 1


def test_a_restart_goes_on_where_it_was(site):
    ann = site.person()
    items = [item["item"] for item in ann.next()]
    ann.label(items[0], "cat")
    site.restart()
    again = site.person()
    assert [item["item"] for item in again.next()] == items[1:]
    found = again.post("/next", tab=again.tab).json()
    assert [(each["item"], each["label"]) for each in found["recent"]] == [(items[0], "cat")]
    assert found["live"]["labels"] == 1


@pytest.mark.parametrize("cut", ["row", "half", "character", "undo"])
def test_a_kill_between_the_two_files_is_mended(site, cut):
    ann = site.person()
    items = [item["item"] for item in ann.next()]
    ann.label(items[0], "cat")
    before = site.out.read_bytes()
    ann.label(items[1], "café")
    after = site.out.read_bytes()
    if cut == "undo":
        ann.undo(items[1])
        site.out.write_bytes(after)
        after = before
    else:
        size = after.index("é".encode()) + 1 if cut == "character" else len(after) - 5
        site.out.write_bytes(before if cut == "row" else after[:size])
    site.restart()
    assert site.out.read_bytes() == after


def test_rows_that_somebody_took_out_are_not_put_back(site):
    ann = site.person()
    for item in [item["item"] for item in ann.next()][:3]:
        ann.label(item, "cat")
    lines = site.out.read_bytes().splitlines(keepends=True)
    site.out.write_bytes(b"".join(lines[:-2]))
    site.book.close()
    with pytest.raises(InputError, match="was changed"):
        Book(Items(site.spec), site.out)
    assert site.out.read_bytes() == b"".join(lines[:-2])


def test_a_csv_that_somebody_changed_is_left_alone(site):
    ann = site.person()
    items = [item["item"] for item in ann.next()]
    ann.label(items[:3], "cat")
    changed = site.out.read_text().replace("cat", "tiger")
    site.out.write_text(changed)
    site.book.close()
    with pytest.raises(InputError, match="was changed"):
        Book(Items(site.spec), site.out)
    assert site.out.read_text() == changed
    (site.out.parent / "labels.csv.state").unlink()
    with pytest.raises(InputError, match="pass --import"):
        Book(Items(site.spec), site.out)


@pytest.mark.parametrize("act", ["label", "again", "undo"])
def test_a_csv_that_is_changed_meanwhile_is_left_alone(site, act):
    ann = site.person()
    one, two, *_ = (item["item"] for item in ann.next())
    ann.label(one, "cat")
    record, kept = len(site.book.desk.events), site.out.read_bytes()

    def acts():
        return ann.undo(one) if act == "undo" else ann.label(two if act == "label" else one, "dog")

    site.out.write_bytes(kept.replace(b"cat", b"tiger"))
    for _ in range(2):
        answer = acts()
        assert answer.status_code == 409
        assert "was changed" in answer.json()["error"]
    assert b"tiger" in site.out.read_bytes()
    assert len(site.book.desk.events) == record
    site.out.rename(site.out.with_name("moved.csv"))
    assert acts().status_code == 200
    labels = {"label": ["cat", "dog"], "again": ["dog"], "undo": []}[act]
    assert [label for _, label, _ in site.rows()] == labels
    os.utime(site.out, (0, 0))  # it is still what the record says
    assert ann.label(two, "cat").status_code == 200


def test_the_csv_is_read_again_only_when_somebody_else_wrote_it(site, monkeypatch):
    site.restart()
    monkeypatch.setattr(Book, "_mend", lambda _: pytest.fail("it was read"))
    ann = site.person()
    one, two, *_ = (item["item"] for item in ann.next())
    for label in ("cat", "dog"):  # a row more, and all of them anew
        assert ann.label(one, label).status_code == 200
        assert ann.label(two, label).status_code == 200
    assert ann.undo(one).status_code == 200


def test_names_of_files_may_be_any_bytes(site, folder):
    os.rename(folder / "00.png", os.fsencode(folder) + b"/caf\xe9.png")
    site.restart()
    ann = site.person()
    name = os.fsdecode(b"caf\xe9.png")
    number = site.book.items.number(name)
    assert r"caf\udce9.png" in {item["name"] for item in ann.next(48)}
    ann.label(number, "cat")
    site.fitter.known.error = f"{name} is broken"
    assert ann.client.get("/live").json()["error"] == site.fitter.known.error
    for _ in range(2):
        assert site.out.read_bytes().splitlines()[1].startswith(b"caf\xe9.png,cat,")
        assert site.person().label(number - 1, "dog").status_code == 200
        site.restart()
        recent = site.person().post("/next", tab="tab-of-ann").json()["recent"]
        assert recent[0]["name"] == r"caf\udce9.png"


def test_numbers_of_other_files_are_refused(site, folder):
    ann = site.person()
    item = ann.next()[0]["item"]
    old = site.book.items.edition
    (folder / "00.png").rename(folder / "zz.png")
    site.restart()
    answer = site.person().label(item, "cat", edition=old)
    assert answer.status_code == 409
    assert "the files have changed" in answer.json()["error"]


def test_files_of_the_same_names_are_other_files(folder, tmp_path):
    # A browser keeps images by their address, and an open page its numbers.
    editions = {Items(Spec(str(folder))).edition for _ in range(2)}
    shutil.copytree(folder, tmp_path / "others")
    editions.add(Items(Spec(str(tmp_path / "others"))).edition)
    (folder / "00.png").write_bytes((folder / "01.png").read_bytes())
    editions.add(Items(Spec(str(folder))).edition)
    assert len(editions) == 3
    looks = set()
    (tmp_path / "new.csv").write_text("text\nfine\n")
    for word in ("good", "bad"):
        (tmp_path / "texts.csv").write_text("text\n" + f"{word} one\n" * 9)
        looks.add(Items(Spec(str(tmp_path / "texts.csv"))).edition)
        looks.add(Items(Spec(str(tmp_path / "texts.csv"), str(tmp_path / "new.csv"))).edition)
    assert len(looks) == 4


@pytest.mark.parametrize(
    ("begun", "taken_up", "known", "where", "remedy"),
    [
        ({}, {"pool": "camera"}, "00.png", "the pool camera", "and no --target"),
        ({}, {"pool": "camera", "target": "photos"}, "00.png", "the pool camera", "and no"),
        ({"target": "camera"}, {}, "target/1.png", "the pool photos", "and its --target"),
        ({"target": "camera"}, {"target": "photos"}, "target/1.png", "--target photos", "and its"),
        ({"holdout": 0.1}, {"target": "camera"}, "03.png", "--target camera", "and no --target"),
    ],
)
def test_a_record_of_other_items_is_told_by_the_options(
    folder, tmp_path, monkeypatch, begun, taken_up, known, where, remedy
):
    monkeypatch.chdir(tmp_path)
    Path("camera").mkdir()
    shutil.copy(folder / "01.png", "camera/1.png")
    book = Book(Items(Spec(**{"pool": "photos", **begun})), Path("labels.csv"))
    if known == "00.png":
        book.tell([0], "cat", who="ann", key=None)
    else:
        book.hold([known])
    book.close()
    with pytest.raises(InputError) as error:
        Book(Items(Spec(**{"pool": "photos", **taken_up})), Path("labels.csv"))
    said = str(error.value)
    assert (
        f"labels.csv.state knows {known!r}, which is not in {where}: choose another --out" in said
    )
    assert "pass the pool (and --ids of a table) that it was begun with" in said
    assert remedy in said
    with pytest.raises(InputError, match=r"was begun with seed = 0, .* another path \(--out\)"):
        Book(Items(Spec(**{"pool": "photos", **begun, "seed": 1})), Path("labels.csv"))


def test_a_file_that_was_skipped_and_taken_away(site, folder):
    ann = site.person()
    one, two = ann.next()[:2]
    ann.label(one["item"], "cat")
    ann.label(two["item"], answer="skip")
    ann.post("/leave", tab=ann.tab)
    site.book.close()
    (folder / two["name"]).unlink()
    with pytest.raises(InputError) as error:
        Book(Items(site.spec), site.out)
    assert f"knows {two['name']!r}" in str(error.value)
    assert str(error.value).endswith(f"choose another --out and pass --import {site.out}")
    book = Book(Items(site.spec), site.out.with_name("labels-2.csv"))
    take_over(book, site.out)
    assert book.desk.state.labels == {one["name"]: "cat"}
    book.close()


def test_an_image_stays_one_when_its_folder_vanishes(site, folder):
    folder.rename(folder.with_name("moved"))
    ann = site.person()
    (item,) = ann.next(1)[:1]
    assert item["kind"] == "image"
    assert ann.client.get(item["src"]).status_code == 404


def test_target_items_are_counted_among_all(folder, tmp_path):
    target = tmp_path / "new"
    shutil.copytree(folder, target)
    site = Site(folder, target=str(target), holdout=0.5)
    site.book.hold(["target/00.png"])
    ann = site.person()
    ann.label([item["item"] for item in ann.next()], "cat")
    live = ann.label(site.book.items.number("target/00.png"), "cat").json()["live"]
    assert live["total"] == N + 1
    site.book.close()


def test_decoded_images_lie_elsewhere_where_their_folder_is_read_only(
    folder, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    found = Spec(str(folder), size=8).read(str(folder))
    assert found.inputs[:2].shape == (2, 3, 8, 8)
    assert not (folder / ".foresee-cache").exists()
    assert (tmp_path / ".foresee-cache").is_dir()


def test_texts_and_rows(tmp_path):
    (tmp_path / "texts.csv").write_text("id,text\n" + "\n".join(f"t{i},word {i}" for i in range(9)))
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(f"{i},{i / 3}" for i in range(9)))
    for file, ids, shown in (
        ("texts.csv", "id", {"kind": "text", "text": "word 3", "name": "t3"}),
        ("rows.csv", None, {"kind": "row", "fields": [["a", "3"], ["b", "1"]], "name": "3"}),
    ):
        found = Site(tmp_path / file, ids=ids)
        assert found.book.items.show(3).items() >= shown.items()
        ann = found.person()
        assert ann.label(ann.next()[0]["item"], "cat").status_code == 200
        assert len(found.rows()) == 1
        found.book.close()
        for path in tmp_path.glob("labels.csv*"):
            path.unlink()


def test_a_target_of_another_kind_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.csv").write_text("text\ngood\nbad\n")
    Path("rows.csv").write_text("a,b\n1,2\n")
    np.save("rows.npy", np.eye(2))
    for pool, target, kinds in (
        ("photos", "texts.csv", "is of texts, and the pool photos of images"),
        ("texts.csv", "photos", "is of images, and the pool texts.csv of texts"),
        ("rows.npy", "texts.csv", "is of texts, and the pool rows.npy of rows"),
    ):
        with pytest.raises(InputError, match=f"--target {target} {kinds}: pass one of"):
            Items(Spec(pool, target))
    assert len(Items(Spec("rows.npy", "rows.csv"))) == 3


def test_rows_are_shown_to_the_last_digit(tmp_path):
    (tmp_path / "rows.csv").write_text("day,pay\n20240131,1234567.25\n20240201,-1e-9\n")
    items = Items(Spec(str(tmp_path / "rows.csv")))
    shown = [[value for _, value in items.show(i)["fields"]] for i in range(2)]
    assert shown == [["20240131", "1234567.25"], ["20240201", "-1e-09"]]
    np.save(tmp_path / "rows.npy", np.array([[0.1, 3.0]], np.float32))
    assert Items(Spec(str(tmp_path / "rows.npy"))).show(0)["fields"] == [["0", "0.1"], ["1", "3"]]


def test_the_state_is_the_learners(site):
    ann = site.person()
    item = ann.next()[0]["item"]
    ann.label(item, "cat")
    lines = (site.out.parent / "labels.csv.state").read_text().splitlines()
    last = next(line for line in map(json.loads, reversed(lines)) if line["kind"] == "tell")
    assert (last["kind"], last["labels"], last["who"]) == ("tell", ["cat"], "ann")


def test_classes_stay_in_their_order_after_a_restart(site):
    ann = site.person()
    one, two, three = (item["item"] for item in ann.next()[:3])
    for item, label in ((one, "bird"), (two, "fish"), (three, "bird"), (one, "fish")):
        ann.label(item, label)
    assert site.book.classes == ["cat", "dog", "bird", "fish"]
    site.restart()
    assert site.book.classes == ["cat", "dog", "bird", "fish"]
    assert site.person().undo(three).status_code == 200
    site.restart()
    assert site.book.classes == ["cat", "dog", "fish"]
