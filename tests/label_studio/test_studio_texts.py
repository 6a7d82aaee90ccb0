"""Texts in a real Label Studio, labelled by its own API."""

import json
import time

import numpy as np
import pytest
import real

TOPICS = ["tea", "rain", "chess", "train", "moon", "bread"]


def texts(n, seed=0):
    """Texts of a topic each, with words that all topics share."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        topic = TOPICS[i % len(TOPICS)]
        own = [f"{topic}{k}" for k in rng.choice(12, 4, replace=False)]
        common = [f"word{k}" for k in rng.choice(40, 6)]
        found.append((" ".join(rng.permutation([*own, *common])), topic))
    return found


def topic_of(task):
    words = task["data"]["text"].split()
    return next(topic for topic in TOPICS for word in words if word.startswith(topic))


@pytest.fixture
def project(studio):
    found = studio.project("Text", TOPICS)
    found.add_texts(text for text, _ in texts(60))
    return found


def label_next(project, n):
    for _ in range(n):
        task = project.next()
        project.label(task["id"], topic_of(task))


def test_tasks_come_in_the_order_of_scores(project, backends):
    backend = backends(project)
    project.connect(backend.url)
    first = backend.settled(0, 60)
    found = project.tasks(real.BY_SCORE)
    assert [task["id"] for task in found[:50]] == backend.queue()[:50]
    scores = [task["predictions_score"] for task in found]
    assert scores[:50] == sorted(set(scores[:50]))
    assert scores[50:] == [None] * 10
    assert all(task["predictions"][0]["result"] == [] for task in found[:50])
    assert project.next()["id"] == backend.queue()[0]

    label_next(project, 12)
    second = backend.settled(12, 48)
    assert int(second.partition("-")[2]) > int(first.partition("-")[2])
    left = [task for task in project.tasks(real.BY_SCORE) if not task["annotations"]]
    assert [task["id"] for task in left] == backend.queue()
    guesses = [task["predictions"][0]["result"][0]["value"]["choices"][0] for task in left]
    assert np.mean([g == topic_of(t) for g, t in zip(guesses, left, strict=True)]) > 0.5
    # One version at a time: whatever is there is of the one that the project shows.
    assert {p["model_version"] for task in left for p in task["predictions"]} == {second}
    assert list(project.call("GET", f"/api/projects/{project.number}/model-versions")) == [second]

    # The stream without a view follows the same scores.
    changed = {"sampling": "Uncertainty sampling"}
    project.call("PATCH", f"/api/projects/{project.number}", changed)
    served = project.call("GET", f"/api/projects/{project.number}/next")
    assert served["id"] == backend.queue()[0]
    assert backend.leaks() == []


def test_whatever_happens_to_annotations_and_tasks_is_followed(project, backends):
    backend = backends(project)
    project.connect(backend.url)
    # A second hook: each delivery comes twice.
    hook = {"project": project.number, "url": f"{backend.url}/webhook", "send_payload": True}
    project.call("POST", "/api/webhooks/", hook | {"send_for_all_actions": True})
    backend.settled(0, 60)
    tasks = project.tasks()
    notes = [project.label(task["id"], topic_of(task))["id"] for task in tasks[:10]]
    version = backend.settled(10, 50)
    time.sleep(3)
    assert backend.settled(10, 50) == version, "a delivery that came again was another fit"

    other = project.result(TOPICS[1])
    project.call("PATCH", f"/api/annotations/{notes[0]}/", other)
    changed = real.wait(lambda: (found := backend.settled(10, 50)) != version and found)
    project.call("DELETE", f"/api/annotations/{notes[0]}/")
    backend.settled(9, 51)
    assert tasks[0]["id"] in backend.queue()
    project.call(
        "POST", f"/api/tasks/{tasks[0]['id']}/annotations/", {"result": [], "was_cancelled": True}
    )
    skipped = backend.settled(9, 50)
    assert tasks[0]["id"] not in backend.queue()
    assert len({version, changed, skipped}) == 3

    (model,) = project.call("GET", f"/api/ml?project={project.number}")
    project.call("POST", f"/api/ml/{model['id']}/train", {})
    trained = real.wait(lambda: (found := backend.settled(9, 50)) != skipped and found)
    assert int(trained.partition("-")[2]) > int(skipped.partition("-")[2])

    project.add_texts(text for text, _ in texts(12, seed=1))
    backend.settled(9, 62)
    project.call("DELETE", f"/api/tasks/{tasks[1]['id']}/")  # it was labelled
    project.call("DELETE", f"/api/tasks/{tasks[59]['id']}/")  # it was not
    backend.settled(8, 61)
    assert tasks[59]["id"] not in backend.queue()
    assert backend.leaks() == []


def test_it_goes_on_after_a_kill(project, backends):
    backend = backends(project, "--ahead", "20")
    project.connect(backend.url)
    backend.settled(0, 60)
    label_next(project, 8)
    before = backend.settled(8, 52)
    order = backend.queue()
    backend.kill()
    backend.start()
    # Nothing changed: nothing is fitted, nothing is written.
    time.sleep(3)
    assert backend.settled(8, 52) == before
    assert backend.queue() == order

    backend.kill()
    label_next(project, 4)
    labelled = {t["id"]: t["annotations"] for t in project.tasks() if t["annotations"]}
    backend.start()
    after = backend.settled(12, 48)
    now = {t["id"]: t["annotations"] for t in project.tasks() if t["annotations"]}
    assert _plain(now) == _plain(labelled)
    assert int(after.partition("-")[2]) > int(before.partition("-")[2])

    # Killed in the middle of writing: what is half there goes.
    label_next(project, 3)
    for _ in range(2):
        time.sleep(0.7)
        backend.kill()
        backend.start()
    last = backend.settled(15, 45)
    assert list(project.call("GET", f"/api/projects/{project.number}/model-versions")) == [last]
    found = [t for t in project.tasks(real.BY_SCORE) if t["predictions"]]
    assert [t["id"] for t in found if not t["annotations"]] == backend.queue()[:20]
    backend.stop()
    assert backend.leaks() == []
    assert "Traceback" not in backend.said.read_text()


def _plain(annotations):
    return {task: [(a["id"], a["result"], a["updated_at"]) for a in each]
            for task, each in annotations.items()}  # fmt: skip


def test_a_narrow_target_is_asked_for_first(studio, backends, tmp_path):
    found = texts(240, seed=2)
    target = tmp_path / "target.csv"
    rows = [text for text, topic in texts(600, seed=3) if topic in TOPICS[:2]]
    target.write_text("text\n" + "\n".join(rows))
    project = studio.project("Text", TOPICS)
    project.add_texts(text for text, _ in found)
    backend = backends(project, "--target", str(target), "--ahead", "10")
    project.connect(backend.url)
    backend.settled(0, 240)
    asked = []
    for done in range(0, 32, 8):
        backend.settled(done, 240 - done)
        for task in [t for t in project.tasks(real.BY_SCORE) if not t["annotations"]][:8]:
            asked.append(topic_of(task) in TOPICS[:2])
            project.label(task["id"], topic_of(task))
    print(f"{np.mean(asked):.2f} of the labels are in the target, by chance it would be 0.33")
    assert np.mean(asked) > 0.6


def test_predictions_that_label_studio_asks_for(project, backends):
    backend = backends(project, "--ahead", "5")
    project.connect(backend.url)
    label_next(project, 8)
    version = backend.settled(8, 52)
    path = f"/api/dm/actions?id=retrieve_tasks_predictions&project={project.number}"
    project.call("POST", path, {"selectedItems": {"all": True, "excluded": []}})
    left = [task for task in project.tasks(real.BY_SCORE) if not task["annotations"]]
    assert [task["id"] for task in left] == backend.queue()
    assert {p["model_version"] for task in left for p in task["predictions"]} == {version}
    assert all(task["predictions"][0]["result"] for task in left)
    assert json.loads((backend.state / "ranking.json").read_text())["trained"] == 8
