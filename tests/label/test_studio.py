"""The backend for Label Studio, each part by itself; tests/label_studio has the real one."""

import base64
import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image
from starlette.testclient import TestClient
from studios import CONFIG, PERSONAL, TOKEN, FakeStudio
from typer.testing import CliRunner

from foresee import InputError
from foresee.cli.app import app
from foresee.label.items import Spec
from foresee.label.studio import api, backend as backends, rank, server
from foresee.label.studio.api import Studio
from foresee.label.studio.backend import Backend, Options, check_target
from foresee.label.studio.form import Form
from foresee.label.studio.rank import ranker
from foresee.label.studio.server import Door
from foresee.label.studio.shelf import Ranking, Shelf
from foresee.learner.record import SKIP
from foresee.reading import images

TEXT = CONFIG.format(kind="Text", field="text")
FORM = Form.read(TEXT)


@pytest.fixture
def fake():
    found = FakeStudio()
    yield found
    found.stop()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (TEXT.replace("Text", "Audio"), "<Choices> of <Audio>"),
        (TEXT.replace("</View>", '<Rating name="r" toName="item"/></View>'), "has <Rating>"),
        (TEXT.replace("<Choices ", '<Choices choice="multiple" '), 'choice="multiple"'),
        (TEXT.replace("<Choices ", '<Choices perRegion="true" '), 'perRegion="true"'),
        (TEXT.replace("<Choices ", '<Choices value="$options" '), "<Choices value>"),
        (TEXT.replace('"good"/>', '"good"><Choice value="fair"/></Choice>'), "in <Choice>"),
        (TEXT.replace('"good"', '"bad"'), "two <Choice> of different values"),
        (TEXT.replace("$text", "http://x/$text"), 'not plainly value="$field"'),
        (TEXT.replace("$text", '$text" valueType="url'), 'not plainly value="$field"'),
        (TEXT.replace('toName="item"', 'toName="other"'), "<Choices> of nothing"),
        ("<View><Text name='item' value='$text'/></View>", "0 <Choices>"),
        (TEXT.replace("</View>", ""), "no XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]>' + TEXT, "entities"),
    ],
)
def test_what_is_no_single_choice_is_refused_by_its_tag(config, words):
    with pytest.raises(InputError, match="labelling interface") as error:
        Form.read(config)
    assert words in str(error.value)


def test_comments_aliases_and_looks_are_no_reason_to_refuse():
    config = TEXT.replace("<View>", "<View><!-- a note --><Header value='hi'/>")
    config = config.replace('value="good"', 'value="good" alias="g" hotkey="g"')
    assert Form.read(config).classes == ("g", "bad")


def test_what_annotations_say():
    note, skip = FakeStudio.note, {"id": 9, "was_cancelled": True, "result": []}
    assert FORM.answer([]) is None
    assert FORM.answer([skip]) is SKIP
    assert FORM.answer([note(2, "bad"), note(1, "good")]) == "bad"
    assert FORM.answer([skip, note(1, "good")]) == FORM.answer([note(1, "good"), skip]) == "good"
    assert FORM.answer([note(1, "gone")]) is None
    other = {"id": 3, "result": [{"from_name": "else", "type": "choices", "value": {}}]}
    assert FORM.answer([other, {"id": 4, "result": []}]) is None


@pytest.mark.parametrize(
    "source",
    [
        "http://elsewhere.example/data/x.png",
        "https://127.0.0.1:8080/data/x.png",
        "http://127.0.0.1/data/x.png",
        "http://127.0.0.1:8080@elsewhere.example/data/x.png",
        "//elsewhere.example/data/x.png",
        "/\\elsewhere.example/data/x.png",
        "file:///data/x.png",
        "s3://bucket/data/x.png",
        "data:image/png;base64,AAAA",
        "/api/users",
        "/data/../api/users",
        "/data/upload/../../api/current-user/token",
        "/data/x\r\nHost: elsewhere",
        "http://[::1/data/x.png",
        "http://127.0.0.1:none/data/x.png",
        "x.png",
    ],
)
def test_nothing_is_fetched_from_elsewhere(source, tmp_path, monkeypatch):
    studio = Studio("http://127.0.0.1:8080", 1, TOKEN)
    monkeypatch.setattr(Studio, "_asked", lambda *_: pytest.fail("it was asked for"))
    assert studio.path(source) is None
    assert not studio.fetch(source, tmp_path / "x")


def test_files_of_label_studio_itself(fake, tmp_path, monkeypatch):
    studio, to = Studio(fake.url, 1, TOKEN), tmp_path / "file"
    fake.files["/data/upload/1/a%20cat.png"] = 200, b"x" * 3000, {}
    assert studio.fetch("/data/upload/1/a cat.png", to)
    assert studio.fetch(f"{fake.url}/data/upload/1/a cat.png", to)
    assert to.read_bytes() == b"x" * 3000
    assert not studio.fetch("/data/upload/1/none.png", tmp_path / "none")
    other = FakeStudio()
    fake.files["/data/away.png"] = 302, b"", {"Location": f"{other.url}/data/x.png"}
    assert not studio.fetch("/data/away.png", tmp_path / "away")
    assert other.asked == []
    other.stop()
    fake.files["/data/large.png"] = 200, b"x" * (5 << 20), {}
    written = []
    monkeypatch.setattr(api, "_write", lambda file, content: written.append(len(content)))
    monkeypatch.setattr(images, "BYTES", 2000)
    assert not studio.fetch("/data/large.png", tmp_path / "large")
    assert sum(written) <= 1 << 20  # no more than tells that it is too large
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_personal_token_buys_short_ones(fake):
    studio = Studio(fake.url, 1, PERSONAL)
    for _ in range(3):
        studio.project()
    assert len(fake.bearers) == 1
    fake.bearers.append("another")  # as if the first had been revoked
    studio.project()
    assert len(fake.bearers) == 3


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ünïcode"])
def test_a_token_that_cannot_be_one_is_refused_unseen(token):
    with pytest.raises(InputError) as error:
        Studio("http://127.0.0.1:1", 1, token)
    assert not token or token not in str(error.value)


@pytest.mark.parametrize("token", ["f" * 40, PERSONAL[:-1] + "x"])
def test_errors_tell_no_token(fake, token):
    with pytest.raises(InputError, match="does not take") as error:
        Studio(fake.url, 1, token).project()
    assert token not in str(error.value)
    fake.stop()
    with pytest.raises(OSError, match="cannot reach Label Studio") as error:
        Studio(fake.url, 1, token).project()
    assert token not in str(error.value)


def test_addresses_and_answers_that_are_not_label_studios(fake):
    with pytest.raises(InputError, match="--url must be http") as error:
        Studio("http://ann:secret@127.0.0.1", 1, TOKEN)
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="there is no project 2"):
        Studio(fake.url, 2, TOKEN).project()
    fake.broken = 200, b"<html>hello</html>", {}
    with pytest.raises(InputError, match="does not answer as Label Studio does"):
        Studio(fake.url, 1, TOKEN).project()
    fake.broken = 500, b"oh", {}
    with pytest.raises(OSError, match="answers 500 to GET /api/projects/1"):
        Studio(fake.url, 1, TOKEN).project()


def test_many_tasks_come_in_pages(fake, monkeypatch):
    monkeypatch.setattr(api, "_PAGE", 10)
    for i in range(1, 26):
        fake.add(i, f"text {i}")
    assert [task["id"] for task in Studio(fake.url, 1, TOKEN).tasks()] == list(range(1, 26))


def test_a_folder_is_of_one_project_and_one_backend(tmp_path):
    shelf = Shelf(tmp_path / "state", {"url": "http://a", "project": 1})
    with pytest.raises(InputError, match="in use by another backend"):
        Shelf(tmp_path / "state", {"url": "http://a", "project": 1})
    ranking = Ranking(3, "x", 2, 0.5, [(7, "good", 0.9), (8, None, None)], True)
    shelf.keep(ranking)
    assert shelf.ranking() == ranking
    (tmp_path / "state" / "ranking.json").write_text('{"number": 1, "qu')
    assert shelf.ranking() == Ranking()
    shelf.close()
    with pytest.raises(InputError, match="of project 1 at http://a"):
        Shelf(tmp_path / "state", {"url": "http://a", "project": 2})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Shelf(tmp_path / "file", {})


def test_images_are_fetched_once_and_go_with_their_tasks(tmp_path):
    shelf, asked = Shelf(tmp_path, {}), []

    def fetch(source, to):
        asked.append(source)
        to.write_bytes(b"x")
        return not source.startswith("bad")

    found = {1: "/data/a.png", 2: "/data/b.JPG", 3: "bad"}
    folder, names = shelf.images({k: v for k, v in found.items() if k < 3}, fetch)
    assert sorted(os.listdir(folder)) == sorted(names.values())
    again = shelf.images({2: "/data/b.JPG", 1: "/data/changed.png"}, fetch)[1]
    assert asked == ["/data/a.png", "/data/b.JPG", "/data/changed.png"]
    assert again[2] == names[2]
    assert again[1] != names[1]
    assert sorted(os.listdir(folder)) == sorted(again.values())
    assert list(shelf.images({3: "bad"}, fetch)[1]) == []


def answering(fake, tmp_path, monkeypatch, **options):
    """A backend whose fitting process answers at once: tasks by their numbers, backwards."""
    monkeypatch.setattr(backends, "_QUIET", 0.02)
    monkeypatch.setattr(backends, "_AGAIN", 0.05)
    monkeypatch.setattr(backends, "_POLL", 0.2)
    monkeypatch.setattr(backends, "started", lambda *_: None)
    questions = []

    def ask(self, question):
        questions.append(question)
        known = set(question["told"]) | set(question["skip"])
        names = sorted((n for n in self._pool[1].values() if n not in known), key=int)
        return {"queue": [(name, "good", 0.9) for name in names[::-1]], "promise": 0.25}

    monkeypatch.setattr(Backend, "_ask", ask)
    studio, log = Studio(fake.url, 1, TOKEN), []
    form = Form.read(studio.project()["label_config"])
    shelf = Shelf(tmp_path / "state", {})
    found = Backend(studio, form, shelf, Options(**options), log.append)
    found.log, found.questions = log, questions
    return found


def wait(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def shown(fake, number, size):
    return lambda: (
        fake.model_version == f"foresee-{number}"
        and {name: len(each) for name, each in fake.predictions.items()}
        == {f"foresee-{number}": size}
    )


def test_news_become_an_order(fake, tmp_path, monkeypatch):
    for i in range(1, 6):
        fake.add(i, f"text {i}")
    fake.predictions["by hand"] = []
    found = answering(fake, tmp_path, monkeypatch, ahead=3)
    found.start()
    wait(lambda: found.ranking.shown)
    first = fake.predictions["foresee-1"]
    assert [(each["task"], each["score"]) for each in first] == [(5, 0.0), (4, 0.2), (3, 0.4)]
    assert first[0]["result"][0]["value"] == {"choices": ["good"]}
    assert fake.model_version == "foresee-1"

    fake.label(5, "bad")
    for _ in range(20):  # each delivery comes again and again, and is one fit
        found.hear([5])
    wait(lambda: fake.model_version == "foresee-2" and found.ranking.shown)
    assert found.questions[-1]["told"] == {"5": "bad"}
    assert "foresee-1" not in fake.predictions
    assert "by hand" in fake.predictions  # it is not ours
    found.hear([5])
    found.hear(())
    time.sleep(0.5)
    assert fake.model_version == "foresee-2"
    assert found.ranking.trained == 1

    fake.tasks[5]["annotations"] = []
    fake.add(4, "text 4", skipped=True)
    found.hear(None)
    wait(lambda: fake.model_version == "foresee-3" and found.ranking.shown)
    assert found.questions[-1]["told"] == {}
    assert found.questions[-1]["skip"] == ["4"]
    del fake.tasks[1]
    found.hear([1])
    wait(lambda: [task for task, *_ in found.ranking.queue] == [5, 3, 2])
    found.hear((), force=True)
    wait(lambda: found.ranking.number == 5)
    fake.add(6, "text 6")  # nobody tells: it is found by counting
    wait(lambda: len(found.ranking.queue) == 4)
    fake.config = fake.config.replace("good", "fine")
    found.hear(())
    wait(lambda: found.ranking.number == 7)
    assert found.predictions([6])[0]["result"] == []  # "good" can be chosen no more
    fake.model_version = "by hand"
    wait(lambda: fake.model_version == "foresee-7")
    found.stop()
    found.shelf.close()


def test_what_was_not_told_is_found_by_the_next_poll(fake, tmp_path, monkeypatch):
    for i in range(1, 4):
        fake.add(i, f"text {i}")
    found = answering(fake, tmp_path, monkeypatch)
    found._round(set(), True, False)
    fake.label(1, "good"), fake.label(2, "bad")
    for changed, polled, told, reads in (
        ({2}, False, {"2": "bad"}, 1),
        (set(), False, {"2": "bad"}, 1),  # of the project, such as the order that we wrote
        (set(), True, {"1": "good", "2": "bad"}, 2),
        (set(), True, {"1": "good", "2": "bad"}, 2),
    ):
        found._round(changed, False, False, polled)
        assert found.questions[-1]["told"] == told
        assert fake.asked.count(("GET", "/api/tasks")) == reads
    found.shelf.close()


def test_what_was_cut_off_is_written_anew(fake, tmp_path, monkeypatch):
    for i in range(1, 4):
        fake.add(i, f"text {i}")
    found = answering(fake, tmp_path, monkeypatch)
    monkeypatch.setattr(Studio, "show", lambda *_: pytest.fail("killed here"))
    found.hear(None)
    with pytest.raises(pytest.fail.Exception):
        found._round(set(), True, False)
    assert list(fake.predictions) == ["foresee-1"]
    found.shelf.close()
    monkeypatch.undo()
    again = answering(fake, tmp_path, monkeypatch)
    assert again.version == "foresee-1"
    assert not again.ranking.shown
    again._round(set(), True, False)
    assert shown(fake, 2, 3)()
    assert again.questions == []  # nothing changed, so nothing is fitted
    again.shelf.close()
    # And where the folder is lost, numbers go on.
    (tmp_path / "state" / "ranking.json").unlink()
    last = answering(fake, tmp_path, monkeypatch)
    last._round(set(), True, False)
    assert shown(fake, 3, 3)()
    last.shelf.close()


def test_label_studio_may_be_gone_for_a_while(fake, tmp_path, monkeypatch):
    fake.add(1, "text"), fake.add(2, "text two")
    found = answering(fake, tmp_path, monkeypatch)
    fake.broken = 503, b"", {}
    found.start()
    wait(lambda: "503" in found.error)
    time.sleep(0.3)
    assert len(found.log) == 1  # it is said once
    fake.broken = None
    wait(shown(fake, 1, 2))
    wait(lambda: found.error == "")
    fake.tasks.clear()
    fake.add(1, "")
    found.hear(None)
    wait(lambda: "no task of project 1 has texts" in found.error)
    found.stop()
    found.shelf.close()


def test_two_backends_of_one_project_do_not_fight(fake, tmp_path, monkeypatch):
    fake.add(1, "one"), fake.add(2, "two")
    mine = answering(fake, tmp_path / "mine", monkeypatch)
    mine._round(set(), True, False)
    other = answering(fake, tmp_path / "other", monkeypatch)
    other._round(set(), True, False)
    assert shown(fake, 2, 2)()
    with pytest.raises(InputError, match="another backend orders project 1 too"):
        mine._round(set(), False, False)
    assert shown(fake, 2, 2)()
    mine.shelf.close()
    other.shelf.close()


def test_all_is_labelled(fake, tmp_path, monkeypatch):
    fake.add(1, "one", "good"), fake.add(2, "two", "bad")
    found = answering(fake, tmp_path, monkeypatch)
    found._round(set(), True, False)
    assert found.questions == []
    assert fake.predictions == {}
    found.shelf.close()


def test_targets_are_of_the_kind_of_tasks(tmp_path):
    image = Form.read(CONFIG.format(kind="Image", field="image"))
    (tmp_path / "texts.csv").write_text("text\nhello\n")
    check_target(str(tmp_path), image)
    check_target(str(tmp_path / "texts.csv"), FORM)
    for target, form in ((tmp_path, FORM), (tmp_path / "texts.csv", image), ("nowhere", FORM)):
        with pytest.raises(InputError, match="--target must be"):
            check_target(str(target), form)


class Still:
    """A backend that only listens."""

    def __init__(self, studio):
        self.studio, self.error, self.heard = studio, "", []
        self.version, self.ranking = "foresee-4", Ranking(4, trained=2)

    def hear(self, tasks=None, force=False):
        self.heard.append((tasks if tasks is None else list(tasks), force))

    def predictions(self, tasks):
        some = {"result": [], "score": 0.5, "model_version": self.version}
        return [some if task == 3 else None for task in tasks]


def client(still, password=None, host="127.0.0.1", **headers):
    door = Door(still, host, 9090, password).application()
    return TestClient(door, "http://127.0.0.1:9090", headers=headers)


@pytest.fixture
def still():
    return Still(Studio("http://127.0.0.1:8080", 1, TOKEN))


def test_endpoints(still):
    door = client(still)
    assert door.get("/").json() == door.get("/health").json()
    assert door.get("/health").json()["status"] == "UP"
    body = {"project": "1.1794815259", "schema": TEXT, "access_token": TOKEN}
    assert door.post("/setup", json=body).json() == {"model_version": "foresee-4"}
    assert still.heard.pop() == ([], False)
    wrong = door.post("/setup", json=body | {"project": "2.1794815259"})
    assert (wrong.status_code, wrong.json()["error"]) == (
        400,
        "this backend ranks project 1 alone",
    )
    rated = TEXT.replace("Choices", "Ranker")
    answer = door.post("/setup", json=body | {"schema": rated})
    assert answer.status_code == 400
    assert "<Ranker>" in answer.json()["error"]
    found = door.post("/predict", json={"tasks": [{"id": 3}, {"id": 99}], "project": "1.1"})
    (one, none) = found.json()["results"]
    assert one["model_version"] == "foresee-4"
    assert none == []  # which Label Studio takes for no prediction
    assert still.heard == []


@pytest.mark.parametrize(
    ("action", "more", "heard"),
    [
        ("ANNOTATION_CREATED", {"annotation": {"id": 9, "task": 3}}, ([3], False)),
        ("ANNOTATION_UPDATED", {"annotation": {"id": 9, "task": 3}}, ([3], False)),
        ("ANNOTATION_CREATED", {"annotation": {"task": "../3"}}, (None, False)),
        ("ANNOTATIONS_CREATED", {"annotation": [{"id": 9, "task": 3}]}, (None, False)),
        ("ANNOTATIONS_DELETED", {"annotations": [{"id": 9}]}, (None, False)),
        ("TASKS_CREATED", {"tasks": [{"id": 3}]}, (None, False)),
        ("TASKS_DELETED", {"tasks": [{"id": 3}]}, (None, False)),
        ("PROJECT_UPDATED", {}, ([], False)),
        ("START_TRAINING", {}, (None, True)),
    ],
)
def test_what_happened_tells_where_to_look(still, action, more, heard):
    answer = client(still).post("/webhook", json={"action": action, **more})
    assert answer.status_code == 201
    assert still.heard == [heard]


def test_bodies_that_are_too_large_or_no_json(still, monkeypatch):
    monkeypatch.setattr(server, "BODY", 1000)
    door = client(still)
    large = json.dumps({"tasks": [{"id": 1}], "padding": "x" * 2000})
    assert door.post("/predict", content=large).status_code == 413
    assert door.post("/webhook", content=large).status_code == 201
    assert still.heard == [(None, False)]  # something happened, whatever it was
    for path in ("/setup", "/predict", "/webhook"):
        assert door.post(path, content=b"{").status_code == 422
        assert door.get(path).status_code == 405
    assert door.post("/setup", content=b'{"project": "\xff"}').status_code == 422
    assert door.get("/elsewhere").status_code == 404


@settings(max_examples=60, deadline=None)
@given(path=st.sampled_from(["/setup", "/predict", "/webhook"]), data=st.data())
def test_nothing_that_is_sent_breaks_it(path, data):
    keys = st.sampled_from(["project", "schema", "tasks", "id", "action", "annotation", "task"])
    leaves = st.none() | st.integers() | st.text() | st.sampled_from(["1.2", "ANNOTATION_CREATED"])
    body = data.draw(
        st.recursive(leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(keys, x))
    )
    door = client(Still(Studio("http://127.0.0.1:8080", 1, TOKEN)))
    assert door.post(path, json=body).status_code < 500


def test_who_may_ask(still):
    assert client(still, Origin="http://127.0.0.1:9090").get("/health").status_code == 403
    assert client(still, Host="elsewhere.example:9090").get("/health").status_code == 421
    assert client(still, Host="localhost:9090").get("/health").status_code == 200
    assert client(still, Host="studio:9090").get("/health").status_code == 421
    login = "Basic " + base64.b64encode(b"studio:open sesame").decode()
    options = {"password": "open sesame", "host": "0.0.0.0", "Host": "studio:9090"}
    assert client(still, **options, Authorization=login).get("/health").status_code == 200
    for wrong in ("", "Basic", "Basic !", "Bearer " + login[6:], login[:-3] + "x=="):
        answers = client(still, **options, Authorization=wrong)
        assert answers.post("/webhook", json={}).status_code == 401
    assert still.heard == []
    many = client(still, **options)
    assert {many.get("/health").status_code for _ in range(40)} == {401, 429}


def texts(n):
    return {f"{i}": f"{('good fine', 'bad dull')[i % 2]} w{i % 7} x{i}" for i in range(n)}


def test_texts_are_ranked_by_batch_and_worth(tmp_path, monkeypatch):
    pool = tmp_path / "texts.json"
    pool.write_text(json.dumps(texts(40)))
    answer = ranker(Spec(str(pool), inputs=("text",)))
    cold = answer({"told": {}, "skip": ["3"], "size": 4})
    assert {name for name, *_ in cold["queue"]} == set(texts(40)) - {"3"}
    assert {(label, share) for _, label, share in cold["queue"]} == {(None, None)}
    told = {f"{i}": ("good", "bad")[i % 2] for i in range(8)}
    warm = answer({"told": told, "skip": ["9"], "size": 4})
    assert warm == answer({"told": told, "skip": ["9"], "size": 4})
    names = [name for name, *_ in warm["queue"]]
    assert set(names) == set(texts(40)) - set(told) - {"9"}
    right = [label == ("good", "bad")[int(name) % 2] for name, label, _ in warm["queue"]]
    assert np.mean(right) > 0.9
    assert all(0.5 <= share <= 1 for *_, share in warm["queue"])
    assert warm["promise"] >= 0
    assert answer({"told": dict.fromkeys(texts(40), "good"), "skip": [], "size": 4})["queue"] == []

    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from foresee import SKIP as LEFT_OUT, Learner

    words = TfidfVectorizer(sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
    learner = Learner(model, list(texts(40).values()), ids=list(texts(40)), targets=500)
    learner.tell([*told, "9"], [*told.values(), LEFT_OUT])
    assert names[:4] == list(learner.propose(4).ids)
    worth = learner.worth(names[4:])
    assert (np.diff(worth) <= 1e-12).all()

    # Of many only some are scored; the others follow, the least sure first.
    monkeypatch.setattr(rank, "TEXTS", 10)
    some = answer({"told": told, "skip": ["9"], "size": 4})["queue"]
    assert {name for name, *_ in some} == set(names)
    assert [name for name, *_ in some[:4]] == names[:4]
    assert (np.diff(learner.worth([name for name, *_ in some[4:14]])) <= 1e-12).all()
    assert sorted(share for *_, share in some[14:]) == [share for *_, share in some[14:]]


def test_a_target_of_texts_by_its_column(tmp_path):
    pool = tmp_path / "texts.json"
    pool.write_text(json.dumps(texts(12)))
    (tmp_path / "a.csv").write_text("stars,text\n5,good fine\n1,bad dull\n")
    (tmp_path / "b.csv").write_text("words\ngood fine\nbad dull\n")
    told = {"0": "good", "1": "bad"}
    found = [
        ranker(Spec(str(pool), str(tmp_path / name), ("text",)))(
            {"told": told, "skip": [], "size": 2}
        )
        for name in ("a.csv", "b.csv")
    ]
    assert found[0] == found[1]


def test_images_are_ranked(tmp_path, one_thread):
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(12):
        shade = np.full((9, 9, 3), (40, 200)[i % 2] + i, np.uint8)
        Image.fromarray(shade).save(folder / f"{i}-aa.png")
    answer = ranker(Spec(str(folder), size=8))
    told = {f"{i}-aa.png": ("dark", "light")[i % 2] for i in range(6)}
    found = answer({"told": told, "skip": [], "size": 2})["queue"]
    assert {int(name.partition("-")[0]) for name, *_ in found} == set(range(6, 12))
    assert all(label == ("dark", "light")[int(name[:-7]) % 2] for name, label, _ in found)


DOCUMENT = (Path(__file__).parents[2] / "docs" / "label-studio.md").read_text()


def test_the_document_starts_what_it_says(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text("text\nhello\n")
    fake.add(1, "one"), fake.add(2, "two")
    monkeypatch.setattr(backends, "_QUIET", 0.02)
    monkeypatch.setattr(backends, "started", lambda *_: None)
    queue = [("2", None, None), ("1", None, None)]
    monkeypatch.setattr(Backend, "_ask", lambda *_: {"queue": queue, "promise": 0.2312})
    monkeypatch.setattr("foresee.label.serve.listening", lambda *_: Listening())
    monkeypatch.setattr("foresee.label.serve.listen", lambda *_: wait(lambda: fake.model_version))
    commands = re.findall(r"^foresee (label-studio .*)$", DOCUMENT, re.M)
    assert len(commands) == 3
    for i, line in enumerate(commands):
        fake.model_version = ""
        fake.label(1, ["good", "bad", "bad"][i])
        words = line.replace("http://127.0.0.1:8080", fake.url).split()[1:]
        found = run(*words, LABEL_STUDIO_API_KEY=TOKEN, FORESEE_PASSWORD="open sesame")
        assert found.exit_code == 0, found.output
        assert TOKEN not in found.output
        assert "open sesame" not in found.output
        line = r"foresee-\d+: 1 labels, 2 tasks in order, which promise 0.231 \(\d+\.\d s\)"
        assert re.search(f"^{line}$", found.output, re.M), found.output
        assert re.search(f"^{line}$".replace("1 labels, 2", r"\d+ labels, \d+"), DOCUMENT, re.M)
    assert {"label-studio-1", "backend"} <= {path.name for path in tmp_path.iterdir()}


class Listening:
    """A socket that nobody reaches."""

    def getsockname(self):
        return "127.0.0.1", 9090

    def close(self):
        pass


def test_options_and_interfaces_of_the_document_are_there():
    known = run("--help", COLUMNS="200").output
    named = set(re.findall(r"`(--[a-z-]+)", DOCUMENT))
    assert named
    assert all(name in known for name in named)
    (config,) = re.findall(r"^```xml\n(.*?)^```$", DOCUMENT, re.M | re.S)
    assert Form.read(config).classes == ("cat", "dog")
    assert Options().ahead == 50
    assert Options().batch == 10
    script = (Path(__file__).parents[1] / "label_studio" / "real.py").read_text()
    settings = re.search(r"^export (ML_.*)$", DOCUMENT, re.M)[1].split()
    assert all(f'"{each.partition("=")[0]}": "false"' in script for each in settings)


def run(*words, **env):
    return CliRunner().invoke(app, ["label-studio", *map(str, words)], env=env)


def test_what_cannot_be(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, key = ["--url", fake.url, "--project", "1"], "LABEL_STUDIO_API_KEY"
    for options, env, words in (
        ([], {key: ""}, "there is no token: set $LABEL_STUDIO_API_KEY"),
        (["--token-file", "nowhere"], {}, "--token-file nowhere cannot be read"),
        (["--host", "0.0.0.0"], {key: TOKEN, "FORESEE_PASSWORD": ""}, "set $FORESEE_PASSWORD"),
        (["--target", "nowhere"], {key: TOKEN}, "--target must be a table of texts"),
        (["--model", "nowhere.py:build"], {key: TOKEN}, "--model must be the folder"),
        ([], {key: "f" * 40}, "does not take the token"),
    ):
        found = run(*here, *options, **env)
        assert found.exit_code == 2, found.output
        assert words in " ".join(found.output.split())
        assert (env.get(key) or TOKEN) not in found.output
    assert list(tmp_path.iterdir()) == []  # nothing is begun that is refused
    fake.config = TEXT.replace("Choices", "Taxonomy")
    assert "has <Taxonomy>" in run(*here, **{key: TOKEN}).output
