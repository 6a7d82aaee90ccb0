"""Images that were uploaded to a real Label Studio, and what it is refused."""

import os
import subprocess
import sys

import real

CLASSES = [str(digit) for digit in range(10)]


def test_digits_by_a_personal_access_token(studio, backends, digits, truth):
    project = studio.project("Image", CLASSES)
    project.add_images(digits)
    token = studio.personal_token()
    assert token != real.TOKEN
    # Of these two nothing is fetched: one is elsewhere, one is not there.
    elsewhere = ["http://localhost:9/secret.png", "/data/upload/1/missing.png"]
    path = f"/api/projects/{project.number}/import"
    project.call("POST", path, [{"image": source} for source in elsewhere])
    backend = backends(project, "--size", "16", token=token)
    project.connect(backend.url)
    backend.settled(0, 80)
    kept = list((backend.state / "images").glob("*.png"))
    assert sorted(path.read_bytes() for path in kept) == sorted(p.read_bytes() for p in digits)
    assert "2 that cannot be read" in backend.said.read_text()
    for done in (0, 20):
        backend.settled(done, 80 - done)
        for task in [t for t in project.tasks(real.BY_SCORE) if not t["annotations"]][:20]:
            project.label(task["id"], truth(task))
    backend.settled(40, 40)
    left = [t for t in project.tasks(real.BY_SCORE) if not t["annotations"]]
    assert [task["id"] for task in left[:40]] == backend.queue()
    assert [task["predictions"] for task in left[40:]] == [[], []]
    guessed = [t["predictions"][0]["result"][0]["value"]["choices"][0] for t in left[:40]]
    right = sum(g == truth(t) for g, t in zip(guessed, left, strict=False))
    print(f"{right} of 40 pre-annotations are right")
    assert right > 20
    assert backend.leaks() == []
    assert real.TOKEN not in backend.said.read_text()


def test_another_project_and_other_tags_are_refused(studio, backends):
    project = studio.project("Text", ["a", "b"])
    project.add_texts(["one", "two", "three"])
    backend = backends(project)
    other = studio.project("Text", ["a", "b"])
    found = other.connect(backend.url, status=(400,))
    assert "doesn't look like a valid ML backend" in str(found)
    rated = '<View><Text name="t" value="$text"/><Rating name="r" toName="t"/></View>'
    project.call("PATCH", f"/api/projects/{project.number}", {"label_config": rated})
    project.connect(backend.url, status=(400,))
    backend.kill()
    said = refused("--url", studio.url, "--project", str(project.number), folder=backend.folder)
    assert "the labelling interface has <Rating>" in said


def test_a_password_that_label_studio_sends(studio, backends, monkeypatch):
    monkeypatch.setenv("FORESEE_PASSWORD", "a-secret-of-the-backend")
    monkeypatch.setattr(real.Backend, "_is_up", lambda self: "Ctrl-C" in self.said.read_text())
    project = studio.project("Text", ["a", "b"])
    project.add_texts(["one", "two", "three"])
    backend = backends(project)
    project.connect(backend.url, status=(400,))
    login = {"basic_auth_user": "studio", "basic_auth_pass": "a-secret-of-the-backend"}
    project.connect(backend.url, auth_method="BASIC_AUTH", **login)
    real.wait(lambda: project.get()["model_version"].startswith("foresee-"))


def refused(*options, folder, token=real.TOKEN):
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "foresee.cli", "label-studio", *options, "--port", "0"],
        env=os.environ | {"PYTHONPATH": path, "LABEL_STUDIO_API_KEY": token},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert token not in done.stderr + done.stdout
    return " ".join(done.stderr.split())


def test_tokens_and_projects_that_are_not_there(studio, tmp_path):
    here = ["--url", studio.url, "--project"]
    assert "there is no project 999" in refused(*here, "999", folder=tmp_path)
    wrong = "f" * 40
    assert "does not take the token" in refused(*here, "1", folder=tmp_path, token=wrong)
    personal = ".".join(["eyJhbGciOiJIUzI1NiJ9"] * 3)
    said = refused(*here, "1", folder=tmp_path, token=personal)
    assert "does not take the personal access token" in said
    nobody = f"http://127.0.0.1:{real.free_port()}"
    said = refused("--url", nobody, "--project", "1", folder=tmp_path)
    assert "cannot reach Label Studio" in said
