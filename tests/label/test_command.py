"""`foresee label` as it is typed."""

import http.client
import os
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from foresee.cli.app import app
from foresee.label import serve


def run(*words):
    return CliRunner().invoke(app, ["label", *map(str, words), "--no-browser"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "opens the page to other machines: pass --token"),
        (["--token", "short"], "--token must be at least 16"),
        (["--origin", "https://a.example/x"], "--origin must be an address as https://label.ex"),
        (["--classes", "cat,\u202edog"], "--classes must be names of 1 to 100 characters"),
        (["--export", "coco"], "--export and --to belong together"),
        (["--export", "voc", "--to", "x"], "--export must be one of"),
        (["--ids", "name"], "--inputs and --ids are columns"),
        (["--import", "nowhere.csv"], "--import nowhere.csv cannot be read"),
        (["--target", "nowhere"], "there is no file nowhere"),
        (["--model", "nowhere.py:build"], "--model must be the folder of a transformers or"),
    ],
)
def test_what_cannot_be(folder, tmp_path, options, words):
    found = run(folder, "--out", tmp_path / "labels.csv", *options)
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_the_page_waits_for_no_model_to_be_imported(folder, tmp_path):
    code = f"""
import sys
from pathlib import Path
from foresee.label import extract, serve
from foresee.label.items import Items, Spec
book = serve.Book(Items(Spec({str(folder)!r})), Path({str(tmp_path / "labels.csv")!r}), ["cat"])
book.fill(3, __import__("numpy").random.default_rng(0))
book.tell([0], "cat", who="ann", key=None)
print(sorted({{"torch", "sklearn", "scipy.stats"}} & sys.modules.keys()))
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert said.stdout == "[]\n", said.stderr


@pytest.mark.parametrize("options", [[], ["--no-browser"]])
def test_it_opens_the_page_unless_told_not_to(folder, tmp_path, monkeypatch, options):
    opened, wait = threading.Event(), 1 if options else 60
    monkeypatch.setattr(serve.webbrowser, "open", lambda url: (urls.append(url), opened.set()))
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda *_, **__: opened.wait(wait))
    urls = []
    words = ["label", str(folder), "--out", str(tmp_path / "labels.csv"), *options]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0
    (printed,) = (line for line in found.stdout.splitlines() if line.startswith("http"))
    assert urls == ([] if options else [printed])
    assert urlsplit(printed).hostname == "127.0.0.1"
    assert urlsplit(printed).port > 0


def test_it_prints_the_address_of_a_proxy(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda *_, **__: None)
    options = ["--origin", "https://label.example", "--token", "long-enough-to-be-a-secret"]
    found = run(folder, "--out", tmp_path / "labels.csv", *options)
    assert found.stdout == "https://label.example/?token=long-enough-to-be-a-secret\n"


def test_what_was_taken_over_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda *_, **__: None)
    (tmp_path / "camera").mkdir()
    (tmp_path / "camera" / "1.png").write_bytes((folder / "01.png").read_bytes())
    (tmp_path / "old.csv").write_text("id,label\n01.png,cat\ntarget/1.png,cat\n")
    options = ["--import", tmp_path / "old.csv", "--target", tmp_path / "camera"]
    found = run(folder, "--out", tmp_path / "labels.csv", *options)
    assert found.exit_code == 0
    said = " ".join(found.output.split())
    assert "2 labels from" in said
    assert "the accuracy counts 1 of them" in said


def test_it_starts_and_ends(folder, tmp_path):
    command = [sys.executable, "-m", "foresee.cli", "label", str(folder), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "labels.csv")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        process_group=0,
    )
    url = urlsplit(process.stdout.readline().strip())
    assert url.hostname == "127.0.0.1"
    assert len(url.query) > len("token=") + 16
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    for path, status in (("/", 401), (f"/?{url.query}", 303), ("/live", 401)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
        assert "server" not in answer.headers
    cookie = {"Cookie": f"foresee-{url.port}={url.query.removeprefix('token=')}"}
    connection.request("GET", "/live", headers=cookie)
    assert connection.getresponse().status == 200
    connection.close()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = "".join(process.communicate(timeout=60))
    assert process.returncode == 130
    assert "Traceback" not in said
    assert url.query not in said
