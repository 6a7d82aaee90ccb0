"""What strangers try: every one of these must come to nothing."""

import asyncio
import io
import json
import os
import threading
import unicodedata

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from starlette.testclient import TestClient
from visitors import HERE, PORT, TOKEN, Site

from foresee import InputError
from foresee.label import guard, serve
from foresee.label.items import Items
from foresee.label.server import BODY

ROUTES = {
    "/": "GET",
    "/static/page.js": "GET",
    "/static/style.css": "GET",
    "/live": "GET",
    "/image/EDITION/0": "GET",
    "/next": "POST",
    "/label": "POST",
    "/undo": "POST",
    "/name": "POST",
    "/leave": "POST",
}


def where(site, path):
    return path.replace("EDITION", site.book.items.edition)


@pytest.mark.parametrize(("path", "method"), ROUTES.items())
@pytest.mark.parametrize("cookie", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "\xff"])
def test_nothing_without_the_token(site, path, method, cookie):
    stranger = site.stranger()
    headers = {"Origin": HERE}
    if cookie is not None:
        headers["Cookie"] = f"foresee-{PORT}={cookie}".encode("latin-1")
    answer = stranger.request(method, where(site, path), headers=headers, json={})
    assert answer.status_code == 401
    assert set(answer.json()) == {"error"}
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(site):
    answer = site.stranger().get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert site.stranger().get("/?token=wrong").status_code == 401
    assert site.stranger().get(f"/live?token={TOKEN}").status_code == 401


def test_wrong_tokens_are_counted(site):
    site.app._tries = guard.Buckets(guard.TRIES, 0.0)
    stranger = site.stranger()
    answers = [stranger.get(f"/?token=guess{i}").status_code for i in range(guard.TRIES + 5)]
    assert answers[0] == 401
    assert answers[-1] == 429
    assert stranger.get(f"/?token={TOKEN}").status_code == 429  # or one more guess would be free


def test_right_tokens_are_not_counted(site):
    for _ in range(2 * guard.TRIES):
        assert site.stranger().get(f"/?token={TOKEN}").status_code == 303


def test_requests_are_counted(site):
    ann = site.person()
    site.app._rates = guard.Buckets(3, 0.0)
    answers = [ann.client.get("/live").status_code for _ in range(5)]
    assert answers == [200, 200, 200, 429, 429]


def test_a_new_cookie_is_no_new_start(site):
    site.app._rates = guard.Buckets(3, 0.0)
    stranger = site.stranger()
    answers = [stranger.get("/live", headers={"Cookie": f"a={i}"}).status_code for i in range(5)]
    assert answers == [401, 401, 401, 429, 429]
    people = [site.stranger(), site.stranger()]
    for i, person in enumerate(people):  # each of those who may come in is counted apart
        person.cookies.update({f"foresee-{PORT}": TOKEN, "foresee-who": f"p{i}"})
        assert [person.get("/live").status_code for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"192.168.0.9:{PORT}", ""],
)
def test_other_names_for_this_machine_are_refused(site, host):
    """A page elsewhere may let its own name point here."""
    ann = site.person()
    assert ann.client.get("/live", headers={"Host": host}).status_code == 421
    assert ann.client.get("/live", headers={"Host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1:8000", "http://127.0.0.1"]
)
def test_other_pages_may_not_write(site, origin):
    ann = site.person()
    headers = {} if origin is None else {"Origin": origin}
    body = {"tab": ann.tab, "size": 2}
    assert ann.client.post("/next", json=body, headers=headers).status_code == 403
    if origin is not None:
        assert ann.client.get("/live", headers=headers).status_code == 403
    assert site.rows() == []


def knock(host, at="0.0.0.0", port=PORT, proxy=None, **headers):
    """The status of a request without a token, 401 if it may be asked for one, and the cookie."""
    door = guard.Guard(None, TOKEN, at, port, proxy)
    client = TestClient(door, "http://127.0.0.1", follow_redirects=False)
    method = "POST" if headers else "GET"
    answer = client.request(method, f"/?token={TOKEN}", headers={"Host": host, **headers})
    return answer.status_code, answer.headers.get("set-cookie", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "192.168.0.9", "127.0.0.1:80"])
def test_port_80_is_not_named_by_browsers(host):
    assert knock(host, port=80)[0] == 303
    assert knock(host, port=80, Origin=f"http://{host}")[0] == 401
    for other in ("evil.example", f"{host}:81", f"evil.example:{host}", ""):
        assert knock(other, port=80)[0] == 421


@pytest.mark.parametrize("proxy", ["https://label.example", "http://label.example:81"])
@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0"])
def test_a_proxy_has_another_address(proxy, at):
    public, own = proxy.partition("://")[2], f"127.0.0.1:{PORT}"
    for host in (public, own):  # proxies pass on the one or the other
        status, cookie = knock(host, at, proxy=proxy)
        assert (status, "Secure" in cookie) == (303, proxy.startswith("https"))
        assert knock(host, at, proxy=proxy, Origin=proxy)[0] == 401
    assert knock(own, at, proxy=proxy, Origin=f"http://{own}")[0] == 401
    for host in (f"{public}:1", f"x.{public}", "evil.example", ""):
        assert knock(host, at, proxy=proxy)[0] == 421
        assert knock(host, at)[0] == 421
    for origin in ("null", "", "http://label.example", "http://evil.example", f"{proxy}.evil"):
        assert knock(public, at, proxy=proxy, Origin=origin)[0] == 403
    assert knock(own, at, Origin=proxy)[0] == 403


def test_a_form_of_another_page_is_no_request(site):
    ann = site.person()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Origin": HERE, "Content-Type": kind}
        answer = ann.client.post("/leave", content=b'{"tab": "12345678"}', headers=headers)
        assert answer.status_code == 415


@pytest.mark.parametrize(("path", "method"), ROUTES.items())
def test_every_answer_has_the_headers(site, path, method):
    for client in (site.person().client, site.stranger()):
        answer = client.request(method, where(site, path), headers={"Origin": HERE})
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_script_or_style_in_it(site):
    ann = site.person()
    page = ann.client.get("/").text
    assert "<script>" not in page
    assert "style=" not in page
    assert "onclick" not in page
    for text in (page, *(ann.client.get(f"/static/{n}").text for n in ("page.js", "style.css"))):
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
        assert "innerHTML" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/server.py",
        "/static/index.html%00.css",
        "/static//etc/passwd",
        "/image/EDITION/../../secret.txt",
        "/image/EDITION/..%2f..%2fsecret.txt",
        "/image/EDITION/-1",
        "/image/EDITION/30",
        "/image/EDITION/99999999999999999999999999",
        "/image/EDITION/0.png",
        "/image/00000000/0",
        "/secret.txt",
    ],
)
def test_no_path_leads_out(site, path):
    answer = site.person().client.get(where(site, path))
    assert answer.status_code == 404
    assert "secret" not in answer.text
    assert "/tmp" not in answer.text


def test_what_is_no_image_is_shown_as_broken(folder):
    (folder / "a-link.png").symlink_to(folder.parent / "secret.txt")
    Image.new("RGB", (5, 5)).save(folder.parent / "private.png")
    (folder / "b-link.png").symlink_to(folder.parent / "private.png")
    (folder / "c-dangling.png").symlink_to("nowhere.png")
    (folder / "d-svg.png").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>')
    (folder / "e-html.jpg").write_text("<script>alert(1)</script>")
    (folder / "f-cut.png").write_bytes((folder / "00.png").read_bytes()[:60])
    (folder / "g-empty.png").write_bytes(b"")
    (folder / "h-bomb.png").write_bytes(bomb())
    (folder / "i.svg").write_text("<svg/>")
    os.mkfifo(folder / "j-pipe.png")
    (folder.parent / "elsewhere").mkdir()
    Image.new("RGB", (5, 5)).save(folder.parent / "elsewhere" / "private.png")
    (folder / "k-folder").symlink_to(folder.parent / "elsewhere")
    (folder / "l-here").symlink_to(folder)
    (folder / "m-itself.png").symlink_to("m-itself.png")
    found = Site(folder)
    ids = found.book.items.pool.ids
    assert "i.svg" not in ids
    assert {"k-folder", "l-here", "m-itself.png"} <= set(ids)
    assert not any("private" in name or name.startswith("l-here/") for name in ids)
    client = found.person().client
    for number, name in enumerate(ids):
        answer = client.get(f"/image/{found.book.items.edition}/{number}")
        if "-" not in name:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "image/png"
            assert Image.open(io.BytesIO(answer.content)).size == (12, 9)
        else:
            assert (name, answer.status_code) == (name, 404)
            assert str(folder) not in answer.text
    found.book.close()


def bomb():
    """A PNG that says it has 100 000 × 100 000 pixels."""
    import struct
    import zlib

    def chunk(kind, data):
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def test_what_a_file_hides_does_not_go_out(site, folder):
    """Places and names in a photo's metadata stay on the disk."""
    exif = Image.Exif()
    exif[0x010E] = "taken at a secret place"
    Image.new("RGB", (500, 400)).save(folder / "00.png", exif=exif)
    site.restart()
    answer = site.person().client.get(f"/image/{site.book.items.edition}/0")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"secret place" not in answer.content


def test_images_that_take_long_keep_nobody_from_answering(site, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(Items, "picture", lambda *_: (go.wait(30), (b"", "image/png"))[1])
    ann = site.person()
    item = ann.next()[0]["item"]
    src = f"/image/{site.book.items.edition}/{item}"
    body = {"tab": ann.tab, "key": ann.key(), "edition": site.book.items.edition}
    body |= {"items": [item], "label": "cat"}

    async def play():
        door = httpx2.ASGITransport(site.app)
        async with httpx2.AsyncClient(
            transport=door, base_url=HERE, cookies=ann.client.cookies, headers={"Origin": HERE}
        ) as client:
            waiting = [asyncio.create_task(client.get(src)) for _ in range(50)]
            await asyncio.sleep(0.3)
            assert not any(each.done() for each in waiting)
            try:
                told = await asyncio.wait_for(client.post("/label", json=body), 10)
            finally:
                go.set()
            return told, await asyncio.gather(*waiting)

    told, answers = asyncio.run(play())
    assert told.status_code == 200
    assert {answer.status_code for answer in answers} == {200}


def test_requests_that_cannot_be_read(site):
    assert site.stranger().get("/?" + "a=1&" * 12).status_code == 400
    headers = {"Origin": HERE, "Content-Type": "application/json"}
    answer = site.person().client.post("/name", content=b'{"name": "\xff"}', headers=headers)
    assert answer.status_code == 422


def test_bodies_are_small(site):
    ann = site.person()
    headers = {"Origin": HERE, "Content-Type": "application/json"}
    assert ann.client.post("/name", content=b" " * (BODY + 1), headers=headers).status_code == 413
    parts = (b" " * 4096 for _ in range(100))  # without a length
    assert ann.client.post("/name", content=parts, headers=headers).status_code == 413


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "a\x00b", "\u202eevil", 7, None])
def test_names_are_plain(site, name):
    assert site.person(None, "some-tab").post("/name", name=name).status_code == 422


@pytest.mark.parametrize("label", ["", " ", "x" * 101, "a\x1bb", "\u200d", "a\u2066b", 7, ["cat"]])
def test_labels_are_plain(site, label):
    ann = site.person()
    assert ann.label(0, **{"label": label}).status_code == 422
    assert site.rows() == []


@pytest.mark.parametrize("label", ["می\u200cخواهم", "👩\u200d🚀", "cafe\u0301"])
def test_labels_are_of_all_languages(site, label):
    assert site.person().label(0, label).status_code == 200
    assert site.book.classes == ["cat", "dog", unicodedata.normalize("NFC", label)]


def test_who_is_needed(site):
    assert site.person(None, "some-tab").label(0, "cat").status_code == 403
    nobody = site.person(None, "some-tab")
    nobody.client.cookies.set("foresee-who", "%00%ff")
    assert nobody.label(0, "cat").status_code == 403


def test_other_machines_need_a_token_that_was_chosen(tmp_path):
    for host in ("0.0.0.0", "192.168.0.9", "::", "example"):
        with pytest.raises(InputError, match="opens the page to other machines"):
            serve.check(host, None)
        with pytest.raises(InputError, match="at least 16"):
            serve.check(host, "short")
        serve.check(host, "long-enough-to-be-a-secret")
    for host in ("127.0.0.1", "localhost", "::1"):
        serve.check(host, None)


# Every endpoint, with whatever comes

TEXT = st.text(max_size=30)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT)
FIELDS = {
    "tab": st.one_of(st.just("tab-of-ann"), PLAIN),
    "key": st.one_of(st.from_regex(r"[a-z0-9]{8,12}", fullmatch=True), PLAIN),
    "edition": st.one_of(st.just("EDITION"), PLAIN),
    "items": st.one_of(st.lists(st.integers(-2, 40), max_size=4), st.lists(PLAIN, max_size=3)),
    "label": st.one_of(st.sampled_from(["cat", "dog"]), PLAIN),
    "answer": st.one_of(st.sampled_from(["skip", "unsure"]), PLAIN),
    "size": st.one_of(st.integers(-1, 50), PLAIN),
    "name": PLAIN,
    "other": PLAIN,
}
BODIES = st.one_of(
    st.fixed_dictionaries({}, optional=FIELDS).map(json.dumps).map(str.encode),
    st.recursive(PLAIN, lambda s: st.lists(s) | st.dictionaries(TEXT, s))
    .map(json.dumps)
    .map(str.encode),
    st.binary(max_size=200),
)
PATHS = st.one_of(
    st.sampled_from([*ROUTES, "/static/", "/image/EDITION/7?side=small", "/x"]),
    st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"/image/EDITION/{text}"),
    st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"/{text}"),
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])


@pytest.mark.parametrize("token", [True, False])
def test_whatever_comes_no_answer_is_above_499(folder, token, monkeypatch):
    monkeypatch.setattr(guard, "BURST", 1e9)
    site = Site(folder)
    client = site.person().client if token else site.stranger()
    client = type(client)(site.app, HERE, raise_server_exceptions=False, cookies=client.cookies)

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(PATHS, METHODS, BODIES, st.sampled_from([HERE, None, "null"]), st.booleans())
    def check(path, method, body, origin, plain):
        path = where(site, path)
        body = body.replace(b"EDITION", site.book.items.edition.encode())
        headers = {"Content-Type": "text/plain" if plain else "application/json"}
        headers |= {} if origin is None else {"Origin": origin}
        try:
            answer = client.request(method, HERE + path, content=body, headers=headers)
        except (UnicodeError, httpx2.InvalidURL):
            return  # no client can send it
        assert answer.status_code < 500
        assert "top secret" not in answer.text
        if not token:
            assert answer.status_code in (401, 403, 421, 429)

    check()
    site.book.close()


def test_the_paths_that_only_a_raw_client_sends(site):
    """Starlette is given what a decoder made of the bytes: any text may be there."""

    async def ask(path, query=b"", host="127.0.0.1:8000"):
        sent = []
        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": query,
            "headers": [(b"host", host.encode("latin-1")), (b"cookie", COOKIE)],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT), "scheme": "http",
            "http_version": "1.1", "root_path": "",
        }  # fmt: skip

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        await site.app(scope, receive, send)
        return sent[0]["status"]

    for path in ("/image/%/0", "/static/\x00", "/static/\ud800", "/image/x/１", "/" + "a" * 5000):
        assert asyncio.run(ask(path)) == 404
    assert asyncio.run(ask("/live", b"\xff&" * 20)) == 200
    assert asyncio.run(ask("/live", host="\xff")) == 421


COOKIE = f"foresee-{PORT}={TOKEN}".encode()
