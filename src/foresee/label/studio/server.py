"""What Label Studio talks to. Nothing that is sent here is believed: it only says where to look."""

import base64
import binascii
import hmac
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from foresee.errors import InputError
from foresee.label.guard import (
    HANDLERS,
    LOOPBACK,
    TRIES,
    TRY_RATE,
    Buckets,
    body_of,
    is_loopback,
    refuse,
)
from foresee.label.studio.backend import Backend
from foresee.label.studio.form import Form

# Bytes of a request: Label Studio sends whole tasks, and many at once. Of a larger one nothing is
# read but that it came.
BODY = 32 << 20
_SLOW = 30.0  # seconds that a request may take to arrive


class Setup(msgspec.Struct):
    """Label Studio connects a project, whose number comes with the time it was made."""

    project: str
    schema: str


class Task(msgspec.Struct):
    """A task, of which the number is enough."""

    id: int


class Predict(msgspec.Struct):
    """Label Studio asks what is predicted of tasks."""

    tasks: list[Task]


class Happened(msgspec.Struct):
    """Label Studio tells of something; annotations come one by one, or many."""

    action: str = ""
    annotation: Any = None


class Door:
    """The endpoints of a machine-learning backend.

    Args:
        backend: what answers.
        host: that it is served on.
        port: likewise.
        password: that Label Studio must send (basic authentication), if there is one.
    """

    def __init__(self, backend: Backend, host: str, port: int, password: str | None) -> None:
        self.backend, self.host, self.port, self.password = backend, host, port, password
        self._tries = Buckets(TRIES, TRY_RATE)

    def application(self) -> Starlette:
        """All of them, as an ASGI application."""
        routes = [
            Route("/", self.health),
            Route("/health", self.health),
            Route("/setup", self.setup, methods=["POST"]),
            Route("/predict", self.predict, methods=["POST"]),
            Route("/webhook", self.webhook, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers=HANDLERS)

    async def health(self, request: Request) -> Response:
        """Whether it runs, and how things stand."""
        self._admit(request)
        backend = self.backend
        found: dict[str, Any] = {"status": "UP", "model_class": "foresee"}
        found |= {"model_version": backend.version, "labels": backend.ranking.trained}
        found |= {"tasks": len(backend.ranking.queue), "promise": backend.ranking.promise}
        return JSONResponse(found | ({"error": backend.error} if backend.error else {}))

    async def setup(self, request: Request) -> Response:
        """Label Studio connects: whether the project is the one that is ranked, and its version."""
        self._admit(request)
        body, number = await body_of(request, Setup, BODY, _SLOW), str(self.backend.studio.number)
        if body.project.partition(".")[0] != number:
            return refuse(400, f"this backend ranks project {number} alone")
        try:
            Form.read(body.schema)
        except InputError as error:
            return refuse(400, str(error))
        self.backend.hear(())  # it may show another model version now
        return JSONResponse({"model_version": self.backend.version})

    async def predict(self, request: Request) -> Response:
        """Pre-annotations and places in the queue, from the last fit."""
        self._admit(request)
        body = await body_of(request, Predict, BODY, _SLOW)
        found = self.backend.predictions(task.id for task in body.tasks)
        # As many as there are tasks; an empty list is no prediction.
        return JSONResponse({"results": [each or [] for each in found]})

    async def webhook(self, request: Request) -> Response:
        """Something happened: which tasks to look at again."""
        self._admit(request)
        try:
            body = await body_of(request, Happened, BODY, _SLOW)
        except HTTPException as error:
            if error.status_code != 413:
                raise
            body = Happened()
        one = body.annotation.get("task") if isinstance(body.annotation, dict) else None
        if body.action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED") and isinstance(one, int):
            self.backend.hear([one])
        elif body.action == "PROJECT_UPDATED":
            self.backend.hear(())
        else:
            self.backend.hear(None, force=body.action == "START_TRAINING")
        return JSONResponse({"status": "ok"}, 201)

    def _admit(self, request: Request) -> None:
        """Refuse who is not Label Studio, as far as can be told."""
        if request.headers.get("origin") is not None:
            raise HTTPException(403, "no page may ask this")
        here = [f"{name}:{self.port}" for name in (*LOOPBACK, self.host)]
        if is_loopback(self.host.strip("[]")) and request.headers.get("host") not in here:
            raise HTTPException(421, "this is not the address of the backend")
        if self.password is None:
            return
        given = _password(request.headers.get("authorization", ""))
        if not hmac.compare_digest(given.encode(), self.password.encode()):
            if not self._tries.take(request.client.host if request.client else ""):
                raise HTTPException(429, "too many wrong passwords")
            raise HTTPException(401, "the password is missing or wrong")


def _password(header: str) -> str:
    """Of basic authentication, whoever the user is.

    >>> _password("Basic " + base64.b64encode(b"studio:a:b").decode())
    'a:b'
    """
    kind, _, value = header.partition(" ")
    try:
        plain = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return plain.partition(":")[2] if kind.lower() == "basic" else ""
