"""What is asked of Label Studio, and of nobody else: no redirect is followed.

No message holds a token, nor what Label Studio answers, which may hold one.
"""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import SplitResult, quote, urlsplit

from foresee.errors import InputError
from foresee.label.studio.form import Json
from foresee.reading import images

_PAGE = 500  # tasks that are read at once
_PART = 500  # predictions that are written at once
_TIMEOUT = 120.0  # seconds: large projects on a small machine take their time
_FRESH = 200.0  # seconds that a short-lived token is used; Label Studio takes it for 300
_MOST = 256 << 20  # bytes of an answer


class Studio:
    """A project of Label Studio; one thread may use it.

    Args:
        url: of Label Studio.
        project: its number.
        token: the user's, either the legacy one or a personal access token.

    >>> Studio("ftp://127.0.0.1", 1, "secret")
    Traceback (most recent call last):
    ...
    foresee.errors.InputError: --url must be http://… or https://…, got ftp://127.0.0.1: ...
    """

    def __init__(self, url: str, project: int, token: str) -> None:
        self.url, self.number = url.rstrip("/"), project
        self._at = urlsplit(self.url)
        if self._at.scheme not in ("http", "https") or not self._at.hostname or self._at.username:
            raise InputError(
                f"--url must be http://… or https://…, got {_shown(self._at)}: copy the address of "
                "Label Studio's first page"
            )
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError("the token must be one word: copy it again from Label Studio")
        self._token = token
        self._personal = token.count(".") == 2  # a JSON web token
        self._bearer, self._until = "", 0.0

    def project(self) -> Json:
        """The project: its label_config, model_version and counts of what there is."""
        try:
            found: Json = self._ask("GET", f"/api/projects/{self.number}")
        except _MissingError:
            raise InputError(
                f"there is no project {self.number} at {self.url}: take the number from its address"
            ) from None
        return found

    def tasks(self) -> Iterator[Json]:
        """All tasks, each with its data and annotations."""
        page, found = 1, 0
        while True:
            query = f"project={self.number}&page={page}&page_size={_PAGE}&fields=all"
            try:
                part = self._ask("GET", f"/api/tasks?{query}")
            except _MissingError:  # where tasks were deleted meanwhile there may be fewer pages
                return
            yield from part["tasks"]
            page, found = page + 1, found + len(part["tasks"])
            if found >= part["total"] or not part["tasks"]:
                return

    def task(self, number: int) -> Json | None:
        """One task; None where it is not in the project (any more)."""
        try:
            found: Json = self._ask("GET", f"/api/tasks/{number}")
        except _MissingError:
            return None
        return found if found.get("project") == self.number else None

    def versions(self) -> list[str]:
        """The model versions of which there are predictions."""
        return list(self._ask("GET", f"/api/projects/{self.number}/model-versions"))

    def predict(self, predictions: Sequence[Json]) -> None:
        """Write predictions."""
        for start in range(0, len(predictions), _PART):
            part = list(predictions[start : start + _PART])
            self._ask("POST", f"/api/projects/{self.number}/import/predictions", part)

    def show(self, version: str) -> None:
        """Let the project order and show the predictions of a model version."""
        self._ask("PATCH", f"/api/projects/{self.number}", {"model_version": version})

    def forget(self, version: str) -> None:
        """Delete the predictions of a model version."""
        path = f"/api/projects/{self.number}/model-versions"
        self._ask("DELETE", path, {"model_version": version})

    def path(self, source: str) -> str | None:
        """Where on Label Studio's own server a file is; None where it is elsewhere.

        >>> studio = Studio("http://127.0.0.1:8080", 1, "secret")
        >>> studio.path("/data/upload/1/cat.png"), studio.path("http://127.0.0.1:8080/data/x.png")
        ('/data/upload/1/cat.png', '/data/x.png')
        >>> studio.path("http://127.0.0.1:80/data/x.png"), studio.path("//else.where/data/x.png")
        (None, None)
        """
        if not source.isprintable():
            return None
        try:
            at = urlsplit(source)
            here = _origin(at) == _origin(self._at)
        except ValueError:  # a port that is no number, half an IPv6 address
            return None
        if (at.scheme or at.netloc) and not here:
            return None
        path = at.path.removeprefix(self._at.path)
        # Uploads, local files and nothing else: an address in a task must not act with the token.
        if not path.startswith("/data/") or "/.." in path:
            return None
        return f"{path}?{at.query}" if at.query else path

    def fetch(self, source: str, to: Path) -> bool:
        """Copy a file from Label Studio; False where it cannot be had."""
        path = self.path(source)
        if path is None:
            return False
        part, size = to.with_name(f".{to.name}.part"), 0
        header = self._authorisation()
        with open(part, "wb") as file, self._asked("GET", _quoted(path), None, header) as response:
            there = response.status == 200  # where a file is gone, Label Studio answers 500
            while there and size <= images.BYTES and (content := response.read(1 << 20)):
                size += len(content)
                _write(file, content)
        if not there or size > images.BYTES:
            part.unlink()
            return False
        part.replace(to)
        return True

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        status, found = self._once(method, path, content, self._authorisation())
        if status == 401 and self._personal:  # the short-lived token ended early
            self._until = 0.0
            status, found = self._once(method, path, content, self._authorisation())
        short = path.split("?")[0]
        if status == 404:
            raise _MissingError(f"Label Studio has no {short}")
        if status in (401, 403):
            raise InputError(
                f"{self.url} does not take the token for project {self.number}: copy it again from "
                "Label Studio (Account & Settings), and check that its owner may see the project"
            )
        if status >= 300:
            raise OSError(f"Label Studio answers {status} to {method} {short}")
        try:
            return json.loads(found) if found else None
        except ValueError:
            raise InputError(
                f"{self.url} does not answer as Label Studio does: check --url"
            ) from None

    def _authorisation(self) -> str:
        """The header; a personal access token buys short-lived ones."""
        if not self._personal:
            return f"Token {self._token}"
        if time.monotonic() >= self._until:
            body = json.dumps({"refresh": self._token}).encode()
            status, found = self._once("POST", "/api/token/refresh/", body, "")
            if status != 200:
                raise InputError(
                    f"{self.url} does not take the personal access token: make another in Label "
                    "Studio (Account & Settings)"
                )
            self._bearer = f"Bearer {json.loads(found)['access']}"
            self._until = time.monotonic() + _FRESH
        return self._bearer

    def _once(
        self, method: str, path: str, body: bytes | None, authorisation: str
    ) -> tuple[int, bytes]:
        with self._asked(method, path, body, authorisation) as response:
            return response.status, response.read(_MOST)

    @contextmanager
    def _asked(
        self, method: str, path: str, body: bytes | None, authorisation: str
    ) -> Iterator[http.client.HTTPResponse]:
        """What is answered, to be read inside; nobody is asked but the server at ``url``."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        if authorisation:
            headers["Authorization"] = authorisation
        secure = self._at.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._at.hostname or "", self._at.port, timeout=_TIMEOUT)
        try:
            connection.request(method, self._at.path + path, body, headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise OSError(
                f"cannot reach Label Studio at {self.url} ({error}): start it, or check --url"
            ) from None
        finally:
            connection.close()


class _MissingError(OSError):
    """There is no such thing in Label Studio."""


def _write(file: BinaryIO, content: bytes) -> None:
    try:
        file.write(content)
    except OSError as error:
        raise InputError(
            f"{file.name} could not be written ({error.strerror}): make room"
        ) from None


def _shown(at: SplitResult) -> str:
    """An address without the password that may be in it."""
    return at._replace(netloc=at.netloc.rpartition("@")[2]).geturl()


def _origin(at: SplitResult) -> tuple[str, str | None, int | None]:
    return at.scheme, at.hostname, at.port or {"http": 80, "https": 443}.get(at.scheme)


def _quoted(path: str) -> str:
    """As a request line holds it: what is encoded already stays as it is."""
    return quote(path, safe="/?&=%:+,;@!$'()*~-._")
