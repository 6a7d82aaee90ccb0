"""The page's server: questions go out, answers come in, and are on the disk before it says so."""

from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.resources import files as resources
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foresee.errors import InputError
from foresee.label.book import LABEL, Book, plain
from foresee.label.fitter import Fitter
from foresee.label.guard import HANDLERS, Body, Guard, body_of, refuse, reply
from foresee.label.items import DECODERS
from foresee.learner.record import Answer, Id

BODY = 64 << 10  # bytes of a request
_SLOW = 10.0  # seconds that a request may take to arrive
_NAME = 40  # characters of a person's name
SIDES = {"full": 1280, "small": 240}
_STATIC = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_WHO = "foresee-who"

Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{8,64}\Z")]
Numbers = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]],
    msgspec.Meta(min_length=1, max_length=200),
]


class Next(msgspec.Struct, forbid_unknown_fields=True):
    """A tab asks for items; ``size`` is how many it would hold."""

    tab: Token
    size: Annotated[int, msgspec.Meta(ge=1, le=48)] = 6


class Told(msgspec.Struct, forbid_unknown_fields=True):
    """A tab tells one answer to some items, under a key of its own."""

    tab: Token
    key: Token
    edition: str
    items: Numbers
    label: str | None = None
    answer: Literal["skip", "unsure"] | None = None
    size: Annotated[int, msgspec.Meta(ge=1, le=48)] = 6


class Undo(msgspec.Struct, forbid_unknown_fields=True):
    """A tab takes back its person's last answer to some items."""

    tab: Token
    key: Token
    edition: str
    items: Numbers


class Name(msgspec.Struct, forbid_unknown_fields=True):
    """Somebody says who they are."""

    name: str


class Leave(msgspec.Struct, forbid_unknown_fields=True):
    """A tab is closed."""

    tab: Token


class Page:
    """What the page may ask, each as a function of a request.

    Args:
        book: what is labelled.
        fitter: what chooses.
    """

    def __init__(self, book: Book, fitter: Fitter) -> None:
        self.book, self.fitter, self.items = book, fitter, book.items
        self._decoders = CapacityLimiter(DECODERS)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/", self.index),
            Route("/static/{name}", self.static),
            Route("/image/{edition}/{number:int}", self.image),
            Route("/live", self.live),
            Route("/next", self._taking(Next, self.next), methods=["POST"]),
            Route("/label", self._taking(Told, self.label), methods=["POST"]),
            Route("/undo", self._taking(Undo, self.undo), methods=["POST"]),
            Route("/name", self._taking(Name, self.name), methods=["POST"]),
            Route("/leave", self._taking(Leave, self.leave), methods=["POST"]),
        ]

    def index(self, request: Request) -> Response:
        """The page."""
        return _static("index.html", "text/html")

    def static(self, request: Request) -> Response:
        """Its parts, by names that are known: no path is made of what a client sends."""
        name = request.path_params["name"]
        if name not in _STATIC:
            return refuse(404, "there is no such part of the page")
        return _static(name, _STATIC[name])

    async def image(self, request: Request) -> Response:
        """An item, as an image."""
        # However many wait for images, a thread is left for those who answer.
        return await to_thread.run_sync(self._image, request, limiter=self._decoders)

    def _image(self, request: Request) -> Response:
        if request.path_params["edition"] != self.items.edition:
            return refuse(404, "the files have changed: reload the page")
        side = SIDES.get(request.query_params.get("side", "full"))
        if side is None:
            return refuse(400, f"side must be one of {', '.join(SIDES)}")
        try:
            content, kind = self.items.picture(request.path_params["number"], side)
        except InputError:
            # Its message would tell where the file lies.
            return refuse(404, "this file cannot be shown: it is broken, too large, or no image")
        caching = {"Cache-Control": "private, max-age=86400, immutable"}
        return Response(content, media_type=kind, headers=caching)

    def live(self, request: Request) -> Response:
        """How things stand."""
        return reply(self._live(request))

    def next(self, request: Request, body: Next) -> dict[str, Any]:
        """Items for a tab, and on its first call what its person answered last."""
        who = _who(request)
        recent = [] if who is None else self.book.recent(who)
        last = [{**self._show(name), "label": label} for name, label in recent]
        return {**self._next(body, who), "recent": last, "live": self._live(request)}

    def label(self, request: Request, body: Told) -> dict[str, Any]:
        """Keep an answer; the next items are the answer to that."""
        who = self._ready(request, body.edition)
        if (body.label is None) == (body.answer is None):
            raise HTTPException(422, "label or answer must be there, and not both")
        answer = Answer(body.answer) if body.label is None else _plain(body.label, LABEL, "label")
        self.book.tell(body.items, answer, who=who, key=body.key)
        return {**self._next(body, who), "live": self._live(request)}

    def undo(self, request: Request, body: Undo) -> dict[str, Any]:
        """Take an answer back."""
        who = self._ready(request, body.edition)
        self.book.untell(body.items, who=who, key=body.key, tab=body.tab)
        back = [self._show(self.items.id(number)) for number in body.items]
        return {"items": back, "live": self._live(request)}

    def name(self, request: Request, body: Name) -> Response:
        """Remember who somebody is."""
        name = _plain(body.name, _NAME, "name")
        response = reply({"who": name})
        year = 365 * 24 * 3600
        response.set_cookie(_WHO, quote(name), year, httponly=True, samesite="strict", path="/")
        return response

    def leave(self, request: Request, body: Leave) -> dict[str, Any]:
        """What a tab held is for others."""
        self.book.leave(body.tab)
        self.fitter.wake()
        return {}

    def _next(self, body: Next | Told, who: str | None) -> dict[str, Any]:
        tab, size = body.tab, body.size
        ids = self.book.take(tab, size, who)
        self.fitter.wake(size if size > len(ids) else 0)
        if not ids:
            self.fitter.hungry()
            ids = self.book.take(tab, size, who)
        # What is held out comes by a choice alone: one that is being made may bring some.
        done = not ids and not len(self.book.desk.free()) and not self.fitter.busy
        return {"items": [self._show(name) for name in ids], "done": done}

    def _show(self, name: Id) -> dict[str, Any]:
        known = self.fitter.known
        why = [
            {**self.items.show(self.items.number(target)), "gain": gain}
            for target, gain in known.why.get(name, ())
        ]
        shown = self.items.show(self.items.number(name))
        state = self.book.desk.state
        more = {"held": name in state.held, "unsure": name in state.aside}
        return {**shown, "why": why, "guess": known.guess.get(name), **more}

    def _live(self, request: Request) -> dict[str, Any]:
        known, book, pool = self.fitter.known, self.book, self.items.pool
        state, counts = book.desk.state, book.counts()
        return {
            "who": _who(request),
            "edition": self.items.edition,
            "classes": list(counts),
            "counts": counts,
            "labels": len(state.labels),
            "aside": Counter(answer.value for answer in list(state.aside.values())),
            "total": len(pool) + sum(name not in pool.places for name in list(state.held)),
            "card": known.card,
            "batch": known.batch,
            "promise": known.promise,
            "trained": known.trained,
            "fitting": self.fitter.busy,
            "error": known.error,
            "disagreements": [
                {**self.items.show(self.items.number(name)), "said": said}
                for name, said in book.disagreements()[:20]
            ],
        }

    def _ready(self, request: Request, edition: str) -> str:
        """Who answers; refused where the numbers of items may mean others."""
        who = _who(request)
        if who is None:
            raise HTTPException(403, "say who you are first")
        if edition != self.items.edition:
            raise HTTPException(409, "the files have changed: reload the page")
        return who

    def _taking(
        self, kind: type[Body], act: Callable[[Request, Body], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler that reads its body, and leaves files and locks to a thread."""

        async def handler(request: Request) -> Response:
            if request.headers.get("content-type", "").split(";")[0] != "application/json":
                return refuse(415, "the body must be application/json")
            body = await body_of(request, kind, BODY, _SLOW)
            try:
                found = await run_in_threadpool(act, request, body)
            except InputError as error:
                return refuse(409, str(error))
            return found if isinstance(found, Response) else reply(found)

        return handler


def application(
    book: Book, fitter: Fitter, token: str, host: str, port: int, origin: str | None = None
) -> Guard:
    """The page behind its door.

    Args:
        book: what is labelled.
        fitter: what chooses.
        token: the secret that lets in.
        host: that it is served on.
        port: likewise.
        origin: see `Guard`.
    """
    app = Starlette(routes=Page(book, fitter).routes(), exception_handlers=HANDLERS)
    return Guard(app, token, host, port, origin)


def _who(request: Request) -> str | None:
    """The name in the cookie, if it could have been given here."""
    try:
        return _plain(unquote(request.cookies.get(_WHO, ""), errors="strict"), _NAME, "name")
    except (HTTPException, UnicodeDecodeError):
        return None


def _plain(text: str, most: int, what: str) -> str:
    if not (found := plain(text, most)):
        raise HTTPException(422, f"{what} must be 1 to {most} characters that can be seen")
    return found


def _static(name: str, kind: str) -> Response:
    content = resources("foresee.label").joinpath("static", name).read_bytes()
    return Response(content, media_type=kind)
