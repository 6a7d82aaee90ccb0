"""The door: who may come in, from where, how often, and what they take along.

Every request passes here first. Without the token there is nothing to see, not even the page.
"""

import asyncio
import hmac
import ipaddress
import json
import socket
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Requests: so many at once, so many a second from then on; and tries of a token.
BURST, RATE = 400, 100.0
TRIES, TRY_RATE = 20, 0.2
_KNOWN = 1000  # addresses that are counted

Body = TypeVar("Body", bound=msgspec.Struct)


class Buckets:
    """Who may do something once more: ``burst`` times at once, ``rate`` times a second after that.

    >>> buckets = Buckets(2, 0.0)
    >>> [buckets.take("ann") for _ in range(3)], buckets.take("bob")
    ([True, True, False], True)
    """

    def __init__(self, burst: float, rate: float) -> None:
        self.burst, self.rate = burst, rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> bool:
        """Whether somebody may; if so it is counted."""
        now = time.monotonic()
        left, then = self._left.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        self._left[who] = (left - 1 if left >= 1 else left), now
        if len(self._left) > _KNOWN:
            self._left.popitem(last=False)
        return left >= 1

    def give_back(self, who: str) -> None:
        """Let the last time not count."""
        left, then = self._left[who]
        self._left[who] = left + 1, then


class Guard:
    """Lets requests through to an application that have the token and come from its own page.

    Args:
        app: the application.
        token: the secret.
        host: that the server listens on.
        port: likewise.
        origin: the address that people open, where that is a proxy's.
    """

    def __init__(
        self, app: ASGIApp, token: str, host: str, port: int, origin: str | None = None
    ) -> None:
        self.app, self.token, self.host, self.port = app, token, host, port
        self.origin = origin
        # Cookies do not know ports: two servers on one machine need two names.
        self.cookie = f"foresee-{port}"
        self._rates, self._tries = Buckets(BURST, RATE), Buckets(TRIES, TRY_RATE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, let in by the token, or pass on."""
        if scope["type"] != "http":
            raise ValueError("only HTTP is served here")

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        response = self._refusal(scope)
        await (response or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        hosts, origin = headers.getlist("host"), headers.get("origin")
        here = len(hosts) == 1 and self._is_here(hosts[0])
        if not here and (self.origin is None or hosts != [urlsplit(self.origin).netloc]):
            return refuse(421, "this is not the address of the page: --origin names a proxy's")
        if method not in ("GET", "HEAD") and origin is None:
            return refuse(403, "a request that changes something must say where it comes from")
        own = [self.origin, f"http://{hosts[0]}"] if here else [self.origin]
        if origin is not None and origin not in own:
            return refuse(403, "another page may not ask this")
        client, cookies = (scope.get("client") or ("",))[0], headers.get("cookie", "")
        known = _same(cookie_parser(cookies).get(self.cookie, ""), self.token)
        # People may share an address, and strangers would bring a new cookie with each request.
        if not self._rates.take(f"{client} {cookies[:200]}" if known else client):
            return refuse(429, "too many requests at once", {"Retry-After": "1"})
        return None if known else self._admit(scope, client)

    def _admit(self, scope: Scope, client: str) -> Response:
        """The token in the address of the page becomes a cookie, and leaves the address."""
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=10)
        except ValueError:
            return refuse(400, "the address has too many fields")
        tried = query.get("token", [""])[0]
        if scope["path"] != "/" or scope["method"] != "GET" or not tried:
            return refuse(401, "open the address that foresee label printed: it has the token")
        if not self._tries.take(client):
            return refuse(429, "too many wrong tokens", {"Retry-After": "60"})
        if not _same(tried, self.token):
            return refuse(401, "this is not the token that foresee label printed")
        self._tries.give_back(client)
        response = RedirectResponse("/", 303)
        secure = (self.origin or "").startswith("https:")
        response.set_cookie(
            self.cookie, self.token, path="/", secure=secure, httponly=True, samesite="strict"
        )
        return response

    def _is_here(self, host: str) -> bool:
        """Whether a Host header names this server: other names may be an attacker's for it."""
        if self.port == 80 and not host.endswith(":80"):  # browsers leave it out
            host += ":80"
        name, colon, port = host.rpartition(":")
        if not colon or port != str(self.port):
            return False
        if name in (*LOOPBACK, self.host):
            return True
        if is_loopback(self.host):
            return False
        return name == socket.gethostname() or _is_address(name.strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach a server there.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example")]
    [True, True, True, False, False]
    """
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON, and in ASCII: the name of a file may be nothing that UTF-8 has."""
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def refuse(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    return reply({"error": reason}, status, headers)


async def body_of(request: Request, kind: type[Body], most: int, slow: float) -> Body:
    """What a request brings: of more bytes than ``most`` nothing is kept but that it came.

    ``slow`` is how many seconds it may take to arrive.
    """
    found, size = bytearray(), 0
    try:
        async with asyncio.timeout(slow):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    found += part
    except TimeoutError:
        raise HTTPException(408, "the request took too long to arrive") from None
    if size > most:
        raise HTTPException(413, f"the body must be at most {most} bytes")
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HTTPException(422, str(error)) from None


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(error.status_code, error.detail)


async def _gone(request: Request, error: Exception) -> Response:
    return refuse(400, "the request broke off")


# What is answered where answering failed.
HANDLERS: dict[Any, Any] = {HTTPException: _told, ClientDisconnect: _gone}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())
