"""A real Label Studio on loopback, and the backend as people start it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / ".venv-label-studio" / "bin" / "label-studio"
TOKEN = "0123456789abcdef0123456789abcdef01234567"
USER, PASSWORD = "ann@example.org", "a-password-for-the-tests"
BY_SCORE = ["tasks:predictions_score"]


def wait(done, seconds=90, every=0.2):
    """What ``done`` returns as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(every)
    return found


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Studio:
    """Label Studio, started with an empty folder."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {
            "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data"),
            "LABEL_STUDIO_USERNAME": USER,
            "LABEL_STUDIO_PASSWORD": PASSWORD,
            "LABEL_STUDIO_USER_TOKEN": TOKEN,
            "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
            # Without both, a backend on loopback is refused.
            "ML_BLOCK_LOCAL_IP": "false",
            "SSRF_PROTECTION_ENABLED": "false",
            "COLLECT_ANALYTICS": "false",
            "LATEST_VERSION_CHECK": "false",
            "SENTRY_DSN": "",
            "FRONTEND_SENTRY_DSN": "",
            "HOME": str(folder),
        }
        mine = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [COMMAND, "start", "--no-browser", "--internal-host", "127.0.0.1"]
        self.log = open(folder / "label-studio.log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            env=mine | settings,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait(self._is_up, 180)

    def _is_up(self):
        assert self.process.poll() is None, (self.folder / "label-studio.log").read_text()[-2000:]
        try:
            return self.send("GET", "/health").status == 200
        except OSError:
            return False

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def send(self, method, path, body=b"", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Token {TOKEN}", **headers}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.content = answer.read()
        connection.close()
        return answer

    def call(self, method, path, body=None, status=(200, 201, 204)):
        content = b"" if body is None else json.dumps(body).encode()
        answer = self.send(method, path, content, **{"Content-Type": "application/json"})
        assert answer.status in status, (answer.status, answer.content[:500])
        try:
            return json.loads(answer.content)
        except ValueError:
            return None

    def personal_token(self):
        """A personal access token, as the page makes it for who is logged in."""
        return self.call("POST", "/api/token/", {})["token"]

    def project(self, kind, classes, title="A project", item="", choices=""):
        """A new one; ``item`` and ``choices`` are attributes of these two."""
        each = "".join(f'<Choice value="{name}"/>' for name in classes)
        shown = f'<{kind} name="item" value="${kind.lower()}" {item}/>'
        chosen = f'<Choices name="label" toName="item" {choices}>{each}</Choices>'
        body = {"title": title, "label_config": f"<View>{shown}{chosen}</View>"}
        return Project(self, self.call("POST", "/api/projects", body)["id"])


class Project:
    """A project with one choice."""

    def __init__(self, studio, number):
        self.studio, self.number, self.call = studio, number, studio.call

    def add_texts(self, texts):
        self.call("POST", f"/api/projects/{self.number}/import", [{"text": t} for t in texts])

    def add_images(self, paths):
        """Upload files, as the page does."""
        edge = "--a-line-between-files"
        parts = [
            f'--{edge}\r\nContent-Disposition: form-data; name="{path.name}"; '
            f'filename="{path.name}"\r\nContent-Type: image/png\r\n\r\n'.encode()
            + path.read_bytes()
            + b"\r\n"
            for path in paths
        ]
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        body = b"".join(parts) + f"--{edge}--\r\n".encode()
        answer = self.studio.send("POST", f"/api/projects/{self.number}/import", body, **kind)
        assert answer.status == 201, answer.content[:500]

    def get(self):
        return self.call("GET", f"/api/projects/{self.number}")

    def connect(self, url, status=(201,), **more):
        body = {"project": self.number, "url": url, "title": "foresee", **more}
        return self.call("POST", "/api/ml", body, status)

    def tasks(self, ordering=()):
        query = quote(json.dumps({"ordering": list(ordering)}))
        path = f"/api/tasks?project={self.number}&page_size=1000&fields=all&query={query}"
        return self.call("GET", path)["tasks"]

    def next(self):
        """What the labelling stream of a view in the order of scores serves."""
        path = f"/api/dm/actions?id=next_task&project={self.number}"
        return self.call("POST", path, {"ordering": BY_SCORE, "project": self.number})

    def label(self, task, label):
        return self.call("POST", f"/api/tasks/{task}/annotations/", self.result(label))

    def result(self, label):
        region = {"from_name": "label", "to_name": "item", "type": "choices"}
        return {"result": [{**region, "value": {"choices": [label]}}]}


class Backend:
    """`foresee label-studio` in a process of its own."""

    def __init__(self, project, folder, *options, token=TOKEN, port=None):
        self.project, self.folder, self.token = project, folder, token
        self.state, self.port = folder / "state", port or free_port()
        self.options, self.said = options, folder / "said"
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [sys.executable, "-m", "foresee.cli", "label-studio"]
        command += ["--url", self.project.studio.url, "--project", str(self.project.number)]
        command += ["--state", str(self.state), "--port", str(self.port), *self.options]
        path = os.pathsep.join(filter(None, sys.path))
        with open(self.said, "a") as said:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": path, "LABEL_STUDIO_API_KEY": self.token},
                stdout=said,
                stderr=said,
            )
        wait(self._is_up)

    def _is_up(self):
        assert self.process.poll() is None, self.said.read_text()
        try:
            return self.health()
        except OSError:
            return None

    def health(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/health")
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def settled(self, labels, tasks=None):
        """Wait until a model of so many labels is shown; its version."""

        def done():
            found = self.health()
            assert "error" not in found, found
            right = found["labels"] == labels and tasks in (None, found["tasks"])
            shown = self.project.get()["model_version"]
            return shown if right and shown == found["model_version"] and self._shown() else None

        return wait(done)

    def _shown(self):
        return json.loads((self.state / "ranking.json").read_text())["shown"]

    def queue(self):
        return [task for task, *_ in json.loads((self.state / "ranking.json").read_text())["queue"]]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 130, self.said.read_text()

    def leaks(self):
        """Files that hold the token."""
        files = [self.said, *(path for path in self.state.rglob("*") if path.is_file())]
        return [path for path in files if self.token.encode() in path.read_bytes()]


def is_installed():
    return COMMAND.exists()
