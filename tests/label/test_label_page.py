"""The page's script in a browser, where there is one; tests/integrations labels with it."""

import shutil
import threading

import pytest
import uvicorn
from visitors import TOKEN

from foresee.label.serve import listening
from foresee.label.server import application

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
# Over plain http no name but the machine's own is trusted, as with --host.
ELSEWHERE = "label.example"
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
FLAGS += [f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]


@pytest.fixture
def page(site):
    """The page as somebody on another machine sees it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    at = listening("127.0.0.1", 0)
    port = at.getsockname()[1]
    app = application(site.book, site.fitter, TOKEN, ELSEWHERE, port)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, args=[[at]])
    thread.start()
    try:
        with playwright.sync_playwright() as driver:
            running = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
            found, errors = running.new_page(), []
            found.on("pageerror", lambda error: errors.append(error))
            found.goto(f"http://{ELSEWHERE}:{port}/?token={TOKEN}")
            found.fill("#name", "Ann")
            found.keyboard.press("Enter")
            found.wait_for_selector("#asking", state="hidden")
            found.wait_for_selector("#shown img")
            yield found
            assert errors == []
            running.close()
    finally:
        server.should_exit = True
        thread.join()


LONG = """() => {
  const text = document.createElement("p"), first = document.querySelector("#classes button");
  text.className = "text";
  text.textContent = "word ".repeat(4000);
  document.querySelector("#shown").replaceChildren(text);
  first.lastChild.textContent = "a supercalifragilistic name ".repeat(2);
  for (let i = 0; i < 29; i++) first.after(first.cloneNode(true));
  text.scrollTo(0, 1e6);
  const buttons = [...first.parentNode.children];
  const cut = buttons.filter((each) => each.scrollHeight > each.clientHeight);
  const place = text.getBoundingClientRect();
  return {scrolled: text.scrollTop, top: place.top, bottom: place.bottom, cut: cut.length};
}"""


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_what_is_long_can_be_read_beside_many_classes(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    found = page.evaluate(LONG)
    assert found["scrolled"] > 1000
    assert 0 < found["top"] < found["bottom"] - 100 < 900
    assert found["cut"] == 0


def test_a_button_that_is_held_down_answers_once(page, site):
    name = page.inner_text("#caption span")
    page.focus("#classes button")
    for _ in range(6):
        page.keyboard.down("Enter")
        page.wait_for_timeout(60)
    page.keyboard.up("Enter")
    page.wait_for_selector("#status:has-text('cat')")
    assert site.rows() == [(name, "cat", "Ann")]


def test_an_answer_that_breaks_off_is_asked_for_again(page, site):
    assert not page.evaluate("isSecureContext")
    sent, cut = [], {"content_type": "application/json", "body": '{"items": [{"it'}
    page.on("request", lambda asked: sent.append(asked.post_data) if asked.post_data else None)
    page.route("**/label", lambda route: route.fulfill(**cut), times=2)
    name = page.inner_text("#caption span")
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert site.rows() == [(name, "cat", "Ann")]
    assert page.inner_text("#caption span") != name
    assert len(sent) == 3
    assert len(set(sent)) == 1
