"""The page's script in a browser, where there is one; tests/integrations labels with it."""

import shutil
import threading

import pytest
import uvicorn
from visitors import TOKEN

from foresee import SKIP, UNSURE
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


# Clicks on buttons, each so many milliseconds after what follows the one before can be seen.
CLICKS = """async ([follows, ...clicks]) => {
  const place = document.querySelector(follows);
  let seen;
  for (const [button, wait] of clicks) {
    await seen;
    await new Promise((done) => setTimeout(done, wait));
    seen = new Promise((done) => {
      new MutationObserver(() => place.textContent && done()).observe(place, {childList: true});
      setTimeout(done, 5000);
    });
    document.querySelector(button).click();
  }
}"""
EARLY = "#status:has-text('does not count')"


def answers(site):
    return [answer for given in site.book.desk.state.given.values() for answer, _ in given]


@pytest.mark.parametrize(
    ("selector", "answer"), [(".class", "cat"), ("#skip", SKIP), ("#unsure", UNSURE)]
)
def test_a_slow_double_click_answers_once(page, site, selector, answer):
    page.evaluate(CLICKS, ["#caption", [selector, 0], [selector, 50]])
    page.wait_for_selector(EARLY)
    assert answers(site) == [answer]


def test_a_slow_double_click_in_the_grid_answers_once(page, site):
    page.keyboard.press("g")
    page.click(".tile")  # one has the focus afterwards, as where buttons take none by a click
    page.evaluate(CLICKS, ["#status", [".class", 400], [".class", 50]])
    page.wait_for_selector(EARLY)
    assert answers(site) == ["cat"]


def test_quick_clicks_that_follow_what_is_seen_all_count(page, site):
    alike = [[".class", 320]] * 3
    page.evaluate(CLICKS, ["#caption", ["#skip", 0], [".class", 0], *alike])
    page.wait_for_selector("#count:has-text('4 of')")
    assert answers(site) == [SKIP, *["cat"] * 4]


@pytest.fixture
def late(page):
    """Images that are asked for wait here for the test."""
    found = []
    page.route("**/image/**", lambda route: found.append(route))
    page.reload()
    page.wait_for_selector(".class")
    return found


def arrive(page, late):
    for route in late:
        route.continue_()
    page.unroute("**/image/**")


def test_what_cannot_be_seen_is_not_answered(page, site, late):
    page.keyboard.press("1")
    page.wait_for_selector(EARLY)
    page.wait_for_selector("text=Loading …")
    page.click(".class")
    assert page.locator("#shown img[hidden]").count() == 1
    arrive(page, late)
    page.wait_for_selector("#shown img")
    assert not page.is_visible("text=Loading …")
    assert answers(site) == []
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]


def test_what_takes_long_is_skipped_and_undone(page, site, late):
    page.keyboard.press("s")
    page.wait_for_selector(EARLY)  # it does not take long yet
    page.wait_for_selector("text=Loading …")
    page.keyboard.press("s")
    page.wait_for_selector("#status:has-text('skip')")
    page.keyboard.press("s")
    page.wait_for_selector(EARLY)
    assert answers(site) == [SKIP]
    page.keyboard.press("z")
    page.wait_for_selector("#status:has-text('Undone')")
    assert answers(site) == []
    arrive(page, late)  # what is not shown any more, too
    page.wait_for_selector("#shown img")
    page.wait_for_load_state("networkidle")
    assert page.locator("#caption span").count() == 1


def test_what_is_broken_is_answered(page, site, late):
    page.wait_for_selector("text=Loading …")
    for route in late:
        route.abort()
    page.wait_for_selector("text=This file is broken")
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]


@pytest.mark.parametrize(
    "shown", [{"kind": "text", "text": "good"}, {"kind": "row", "fields": [["a", "1"]]}]
)
def test_texts_and_rows_are_answered_at_once(page, site, monkeypatch, shown):
    monkeypatch.setattr(site.book.items, "show", lambda i: {"item": i, "name": str(i), **shown})
    page.reload()
    page.wait_for_selector("#caption span")
    assert page.is_visible("#shown :text('good'), #shown :text('1')")
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]


def test_what_cannot_be_seen_in_the_grid_is_not_answered(page, site, late):
    page.keyboard.press("g")
    page.click(".tile")
    page.keyboard.press("1")
    page.wait_for_selector(EARLY)
    arrive(page, late)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tile img')].every((each) => each.complete)"
    )
    assert answers(site) == []
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]
