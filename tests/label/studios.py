"""A Label Studio of few words: what the backend asks, answered from memory."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TOKEN = "0123456789abcdef0123456789abcdef01234567"
PERSONAL = "eyJhbGciOiJIUzI1NiJ9.eyJ0b2tlbiI6MX0.c2lnbmF0dXJl"
CONFIG = (
    '<View><{kind} name="item" value="${field}"/><Choices name="label" toName="item">'
    '<Choice value="good"/><Choice value="bad"/></Choices></View>'
)


class FakeStudio:
    """Project 1, its tasks, predictions and files."""

    def __init__(self, kind="Text"):
        self.config = CONFIG.format(kind=kind, field=kind.lower())
        self.tasks, self.predictions, self.files = {}, {}, {}
        self.model_version, self.asked, self.broken = "", [], None
        self.bearers, self.lock = [], threading.RLock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with fake.lock:
                    status, found, headers = fake.answer(
                        self.command, self.path, self.headers, body
                    )
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(content))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def add(self, number, value, *labels, skipped=False):
        notes = [self.note(100 * number + i, label) for i, label in enumerate(labels)]
        notes += [{"id": 100 * number + 99, "was_cancelled": True, "result": []}] * skipped
        field = "image" if "Image" in self.config else "text"
        task = {"id": number, "project": 1, "data": {field: value}, "annotations": notes}
        self.tasks[number] = task

    @staticmethod
    def note(number, label):
        region = {"from_name": "label", "to_name": "item", "type": "choices"}
        result = [{**region, "value": {"choices": [label]}}]
        return {"id": number, "result": result, "updated_at": f"2026-01-01T{number:06d}"}

    def label(self, number, label):
        self.tasks[number]["annotations"] = [self.note(100 * number, label)]

    def answer(self, method, target, headers, body):
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.asked.append((method, path))
        if self.broken is not None:
            return self.broken
        if path == "/api/token/refresh/":
            right = json.loads(body) == {"refresh": PERSONAL}
            self.bearers.append(f"access-{len(self.bearers)}")
            return (200, {"access": self.bearers[-1]}, {}) if right else (401, {}, {})
        known = [f"Token {TOKEN}", *(f"Bearer {each}" for each in self.bearers[-1:])]
        if headers.get("Authorization") not in known:
            return 401, {"detail": headers.get("Authorization")}, {}
        given = json.loads(body) if body else None
        return self.project(method, path, query, given)

    def project(self, method, path, query, given):
        if path.startswith("/data/"):
            return self.files.get(path, (404, b"", {}))
        if path == "/api/projects/1":
            if method == "PATCH":
                self.model_version = given["model_version"]
            counts = sum(len(task["annotations"]) for task in self.tasks.values())
            shown = {"label_config": self.config, "model_version": self.model_version}
            return 200, shown | {"task_number": len(self.tasks), "skipped": counts}, {}
        if path == "/api/tasks":
            page, size = int(query["page"][0]), int(query["page_size"][0])
            part = list(self.tasks.values())[(page - 1) * size : page * size]
            return 200, {"tasks": part, "total": len(self.tasks)}, {}
        if found := re.fullmatch(r"/api/tasks/(\d+)", path):
            task = self.tasks.get(int(found[1]))
            return (404, {}, {}) if task is None else (200, task, {})
        if path.endswith("/import/predictions"):
            for each in given:
                self.predictions.setdefault(each["model_version"], []).append(each)
            return 201, {"created": len(given)}, {}
        if path.endswith("/model-versions"):
            if method == "DELETE":
                self.predictions.pop(given["model_version"])
            return 200, {name: len(each) for name, each in self.predictions.items()}, {}
        return 404, {}, {}
