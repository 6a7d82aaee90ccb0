"""Starts and ends all there is: the book, the process that fits, the server, the browser."""

import re
import secrets
import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvicorn

from foresee.errors import InputError
from foresee.label.book import LABEL, Book, plain
from foresee.label.fitter import Fitter, end, started
from foresee.label.guard import is_loopback as is_loopback
from foresee.label.imports import Taken, take_over
from foresee.label.items import Items, Spec
from foresee.label.server import application

_TOKEN = 16  # characters of a token, at least


def check(host: str, token: str | None, origin: str | None = None) -> None:
    """Refuse to open the page to others by accident.

    >>> check("0.0.0.0", None)
    Traceback (most recent call last):
    ...
    foresee.errors.InputError: --host 0.0.0.0 opens the page to other machines: pass --token, ...
    """
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host} opens the page to other machines: pass --token, a secret of at least "
            f"{_TOKEN} characters, or leave --host out"
        )
    if token is not None and not re.fullmatch(rf"[A-Za-z0-9_-]{{{_TOKEN},}}", token):
        raise InputError(f"--token must be at least {_TOKEN} letters and digits, or - and _")
    if origin is not None and not re.fullmatch(r"https?://[a-z0-9.-]+(:\d+)?", origin):
        raise InputError(
            f"--origin must be an address as https://label.example, got {origin}: leave out what "
            "follows the host, and write it in small letters"
        )


def spelled(classes: Sequence[str]) -> list[str]:
    """Classes as the page keeps them, or two that look the same would be there.

    >>> spelled(["cafe\\u0301"])
    ['café']
    """
    found = [plain(name) for name in classes]
    if not all(found):
        raise InputError(
            f"--classes must be names of 1 to {LABEL} characters that can be seen, got {classes}: "
            "write others"
        )
    return found


class Serving:
    """A page that can be opened at ``url``, and all that is behind it.

    Args:
        spec: what to label.
        out: the CSV.
        classes: to begin with.
        import_from: a CSV of labels there are, or a folder with a sub-folder for each class.
        host: to listen on.
        port: likewise; 0: a free one.
        token: the secret; None: a new one.
        origin: see `Guard`.
        patience: see `Fitter`.
        ahead: see `Fitter`.
    """

    def __init__(
        self,
        spec: Spec,
        out: Path,
        classes: Sequence[str] = (),
        import_from: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        origin: str | None = None,
        *,
        patience: float = 2.0,
        ahead: int | None = None,
    ) -> None:
        classes = spelled(classes)
        with ExitStack() as undo:  # what was begun ends where the rest cannot be
            process = started(spec)
            undo.callback(end, process)
            self.book = Book(Items(spec), out, classes)
            undo.callback(self.book.close)
            self.taken: Taken | None = None
            if import_from is not None:
                self.taken = take_over(self.book, import_from, classes)
            self._socket = listening(host, port)
            undo.pop_all()
        token = token or secrets.token_urlsafe(24)
        at = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{origin or f'http://{shown}:{at}'}/?token={token}"
        self.fitter = Fitter(self.book, patience, ahead, process)
        self.app = application(self.book, self.fitter, token, shown, at, origin)

    def run(self, browse: bool = False) -> None:
        """Serve until interrupted."""
        self.fitter.start()
        if browse:
            threading.Timer(0.5, webbrowser.open, [self.url]).start()
        listen(self.app, self._socket)

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        self.fitter.stop()
        self._socket.close()
        self.book.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that is open there; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InputError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose others"
        ) from error
    found.listen(128)
    return found


def listen(app: Any, at: socket.socket) -> None:
    """Serve an application until interrupted; it logs nothing, as addresses may hold secrets."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=500,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[at])
