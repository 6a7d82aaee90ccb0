"""The site in a browser: search from a server and from files, and no page wider than a phone."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from test_site import site  # noqa: F401


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def homes(site):  # noqa: F811
    """Where the site lies: served, and as files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever).start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": site.as_uri()}
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize("page", ["index.html", "api/scores.html"])
def test_search_finds(browser, homes, scheme, page):
    opened = browser.new_page()
    opened.goto(f"{homes[scheme]}/{page}")
    for _ in range(60):  # the script that hears it may come after the page
        if opened.evaluate("document.activeElement !== document.body"):
            break
        opened.keyboard.press("/")
        opened.wait_for_timeout(500)
    opened.keyboard.type("conditioning", delay=20)
    found = opened.locator("a", has_text="Batches and stopping")
    found.first.click(timeout=60_000)
    opened.wait_for_url("**/theory.html*")
    opened.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_the_screen(browser, homes, site, width):  # noqa: F811
    opened = browser.new_page(viewport={"width": width, "height": 844})
    for path in sorted(site.rglob("*.html")):
        opened.goto(f"{homes['http']}/{path.relative_to(site)}")
        wider = opened.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, path.name
    opened.close()
