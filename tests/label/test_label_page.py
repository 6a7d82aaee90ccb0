"""The page's script in a browser, where there is one; tests/integrations labels with it."""

import shutil
import threading

import pytest
import uvicorn
from visitors import TOKEN, N

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


def test_nobody_labels_without_a_name(page, site):
    page.context.clear_cookies(name="foresee-who")
    page.reload()
    page.wait_for_selector("#asking[open]")
    for _ in range(3):  # a browser lets no page refuse the second
        page.keyboard.press("Escape")
    page.fill("#name", "Bob")
    page.keyboard.press("Enter")
    page.wait_for_selector("#asking", state="hidden")
    page.wait_for_selector("#shown img")
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert [who for _, _, who in site.rows()] == ["Bob"]


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


EARLY = "#status:has-text('does not count')"


def answers(site):
    return [answer for given in site.book.desk.state.given.values() for answer, _ in given]


# Clicks on one button, so many milliseconds apart whatever time really passes; what follows one can
# be seen so many later. Each is answered in words, and by an item whose name is there once it can
# be seen.
PACE = """async ([button, apart, times, seen = 200]) => {
  const [name, words] = ["#caption", "#status"].map((each) => document.querySelector(each));
  let now = performance.now();
  performance.now = () => now;
  for (let i = 0; i < times; i++) {
    words.textContent = "";
    const answered = new Promise((done) => {
      const look = new MutationObserver(() => words.textContent && name.textContent && done());
      for (const each of [name, words]) look.observe(each, {childList: true});
    });
    const click = new MouseEvent("click", {bubbles: true});
    Object.defineProperty(click, "timeStamp", {value: now});
    document.querySelector(button).dispatchEvent(click);
    now += seen;
    await answered;
    now += apart - seen;
  }
}"""


def grid(page):
    """Show all that the tab has in hand at once."""
    page.keyboard.press("g")
    page.wait_for_selector(".tile:focus")


def see(page):
    """Wait until all in the grid can be seen."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tile img')].every((each) => each.complete)"
    )


def press(page, *keys):
    """Press keys one after the other, however slow the machine is: no item is drawn in between."""
    page.evaluate(
        """keys => keys.forEach((fields) => document.body.dispatchEvent(
            new KeyboardEvent("keydown", {bubbles: true, ...fields})))""",
        [key if isinstance(key, dict) else {"key": key} for key in keys],
    )


def test_deliberate_clicks_on_one_button_all_count(page, site):
    page.evaluate(PACE, ["#skip", 10, 1, 0])
    page.evaluate(PACE, [".class", 350, 9])
    assert answers(site) == [SKIP, *["cat"] * 9]


@pytest.mark.parametrize(
    ("button", "apart", "seen", "left"),
    [(".class", 250, 50, 3), (".class", 400, 350, 3), ("#undo", 250, 50, 1)],
)
def test_a_double_click_counts_once(page, site, button, apart, seen, left):
    page.evaluate(PACE, [".class", 350, 2])
    page.evaluate(PACE, [button, apart, 2, seen])
    page.wait_for_selector(EARLY)
    assert answers(site) == ["cat"] * left


@pytest.mark.parametrize(
    ("selector", "answer"), [(".class", "cat"), ("#skip", SKIP), ("#unsure", UNSURE)]
)
def test_a_slow_double_click_answers_once(page, site, selector, answer):
    page.evaluate(PACE, [selector, 400, 2, 350])
    page.wait_for_selector(EARLY)
    assert answers(site) == [answer]


def test_a_slow_double_click_in_the_grid_answers_once(page, site):
    grid(page)  # one has the focus afterwards, as where buttons take none by a click
    see(page)
    page.evaluate(PACE, [".class", 400, 2, 350])
    page.wait_for_selector(EARLY)
    assert answers(site) == ["cat"]


class Late(list):
    """Images that are asked for, which wait until all may arrive."""

    arrived = False

    def hear(self, route):
        if self.arrived:
            route.continue_()
        else:
            self.append(route)

    def arrive(self):
        self.arrived = True  # first, or one might be asked for that nobody continues
        for route in self:
            route.continue_()


@pytest.fixture
def late(page):
    found = Late()
    page.route("**/image/**", found.hear)
    page.reload()
    page.wait_for_selector(".class")
    return found


def test_what_cannot_be_seen_is_not_answered(page, site, late):
    page.keyboard.press("1")
    page.wait_for_selector(EARLY)
    page.wait_for_selector("text=Loading …")
    page.click(".class")
    assert page.locator("#shown img[hidden]").count() == 1
    late.arrive()
    page.wait_for_selector("#shown img")
    assert not page.is_visible("text=Loading …")
    assert answers(site) == []
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]


def test_what_takes_long_is_skipped_and_undone(page, site, late):
    press(page, "ArrowRight", "s")
    page.wait_for_selector(EARLY)  # it does not take long yet
    page.wait_for_selector("text=Loading …")
    page.keyboard.press("s")
    page.wait_for_selector("#status:has-text('skip')")
    assert answers(site) == [SKIP]
    page.keyboard.press("z")
    page.wait_for_selector("#status:has-text('Undone')")
    assert answers(site) == []
    late.arrive()  # what is not shown any more, too
    page.wait_for_selector("#shown img")
    page.wait_for_load_state("networkidle")
    assert page.locator("#caption span").count() == 1


def test_what_is_broken_is_answered(page, site, late):
    page.wait_for_selector("text=Loading …")
    page.route("**/image/**", lambda route: route.fulfill(status=404))
    for route in late:
        route.fulfill(status=404)
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
    grid(page)
    page.keyboard.press("1")
    page.wait_for_selector(EARLY)
    late.arrive()
    see(page)
    assert answers(site) == []
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    assert answers(site) == ["cat"]


@pytest.mark.parametrize("many", [False, True])
def test_an_image_is_not_broken_while_the_server_is_away(page, site, late, many):
    if many:
        grid(page)
    page.route("**/image/**", lambda route: route.abort())
    for route in late:
        route.abort()
    page.wait_for_timeout(300)
    assert not page.is_visible("text=This file is broken")
    page.keyboard.press("1")
    page.wait_for_selector(EARLY)
    assert answers(site) == []
    page.unroute("**/image/**")
    page.wait_for_function("() => document.querySelector('#stage img')?.naturalWidth")
    page.wait_for_selector(".tile img" if many else "#shown img:not([hidden])")


def test_keys_stay_with_their_labels_whatever_others_add(page, site):
    page.fill("#new", "bird")
    page.keyboard.press("Enter")
    bob = site.person("bob")
    bob.label(bob.next()[0]["item"], "fish")
    page.wait_for_selector(".class:has-text('fish')")
    assert page.locator(".class kbd + span").all_inner_texts() == ["cat", "dog", "bird", "fish"]
    page.keyboard.press("3")
    page.wait_for_selector("#status:has-text(': bird')")
    page.fill("#new", "bird")
    page.keyboard.press("Enter")
    assert page.inner_text("#status") == "There is the label bird: key 3."


def test_the_focus_stays_on_a_label_whatever_others_add(page, site):
    page.focus(".class:nth-child(2)")
    site.person("bob").label(0, "fish")
    page.wait_for_selector(".class:has-text('fish')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text(': dog')")
    assert page.locator(".class kbd").all_inner_texts() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("key", "code", "answer"),
    [
        ("&", "Digit1", "cat"),  # French
        ("١", "Digit1", "cat"),  # Arabic
        ("ы", "KeyS", SKIP),  # Russian
        ("S", "KeyS", SKIP),  # Caps Lock
        ("z", "KeyS", UNSURE),  # undo, wherever it lies
        (";", "KeyS", UNSURE),
        ("End", "Numpad1", UNSURE),
    ],
)
def test_keyboards_of_other_countries(page, site, key, code, answer):
    press(page, {"key": key, "code": code}, "u")  # which counts if the one before did nothing
    page.wait_for_selector("#status:has-text(': ')")
    assert answers(site) == [answer]


def test_whoever_writes_a_label_goes_on_while_items_come(page, site):
    grid(page)
    page.focus("#new")
    page.keyboard.type("mo")
    # As if others had come: it is drawn anew.
    page.evaluate("document.querySelector('.tile').setAttribute('aria-pressed', 'true')")
    page.wait_for_selector(".tile[aria-pressed=true]", state="detached")
    page.keyboard.type("use")
    assert page.input_value("#new") == "mouse"
    assert answers(site) == []


def test_the_focus_stays_on_a_disagreement(page, site):
    for name, label in (("bob", "cat"), ("eve", "dog")):
        site.person(name).label(0, label)
    page.wait_for_selector("#disagreements button")
    page.focus("#disagreements button")
    live = [page.wait_for_event("response", lambda each: each.url.endswith("/live")) for _ in "12"]
    assert len(live) == 2
    assert page.evaluate("document.activeElement.closest('#disagreements')")


def test_a_copy_of_a_tab_has_items_of_its_own(page):
    with page.expect_popup() as found:
        page.evaluate("() => { window.open(location.href); }")
    copy = found.value
    copy.wait_for_selector("#shown img")
    shown = page.inner_text("#caption span")
    assert copy.inner_text("#caption span") != shown
    page.reload()
    page.wait_for_selector("#shown img")
    assert page.inner_text("#caption span") == shown


def test_the_grid_is_drawn_when_all_of_it_is_there(page):
    page.evaluate(
        """() => {
          globalThis.drawings = 0;
          new MutationObserver(() => { drawings += 1; }).observe(
            document.querySelector("#grid"), {childList: true});
        }"""
    )
    grid(page)
    assert page.locator(".tile").count() == 10  # six were at hand
    assert page.evaluate("drawings") == 1


def test_what_is_selected_while_an_answer_is_kept_stays_selected(page, site):
    grid(page)
    see(page)
    second = page.evaluate(
        """() => {
          const first = document.activeElement, second = first.nextSibling;
          first.dispatchEvent(new KeyboardEvent("keydown", {bubbles: true, key: "1"}));
          second.click();
          return second.title;
        }"""
    )
    page.wait_for_selector("#status:has-text('cat')")
    chosen = page.locator(".tile[aria-pressed=true]")
    assert [tile.get_attribute("title") for tile in chosen.all()] == [second]
    assert answers(site) == ["cat"]


def test_all_of_an_image_is_in_its_tile(page):
    grid(page)
    fit = "getComputedStyle(document.querySelector('.tile img')).objectFit"
    page.wait_for_function(f"() => {fit} === 'contain'")


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_the_grid_has_all_the_room_there_is(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    grid(page)
    tiles, answers = (page.locator(each).bounding_box() for each in ("#grid", "#answers"))
    assert answers["y"] + answers["height"] <= 900
    assert 0 < answers["y"] - tiles["y"] - tiles["height"] < 20


def test_what_was_kept_is_seen_on_a_small_screen(page):
    page.set_viewport_size({"width": 300, "height": 640})
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    box = page.locator("#status").bounding_box()
    assert box["y"] + box["height"] <= 640


def test_a_label_without_a_key_is_found_by_its_name(page, site):
    for i in range(9):
        page.keyboard.press("n")
        page.keyboard.type(f"kind {i}")
        page.keyboard.press("Enter")
    assert page.inner_text("#status").startswith("New label kind 8: key Enter")
    page.keyboard.press("n")
    page.keyboard.type("kind 7")
    page.keyboard.press("Enter")
    assert answers(site) == []
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text(': kind 7')")
    assert answers(site) == ["kind 7"]


def test_why_a_model_failed_is_told_beside_the_last_accuracy(page, site):
    site.fitter.known.card = [0.9, 0.6, 1.0, 20]
    site.fitter.known.error = "it has no room"
    page.wait_for_selector("#accuracy:has-text('90 %'):has-text('it has no room')")


def test_what_comes_next_is_read_out(page):
    page.keyboard.press("1")
    page.wait_for_selector("#status:has-text('cat')")
    page.wait_for_selector("[aria-live=polite] > img:not([hidden])")


def test_what_the_model_has_not_guessed_is_like_nothing(page, site):
    grid(page)
    page.keyboard.press("a")
    page.wait_for_selector("#status:has-text('not guessed')")
    assert page.locator(".tile[aria-pressed=true]").count() == 0
    names = page.locator(".tile").evaluate_all("tiles => tiles.map((tile) => tile.title)")
    site.fitter.known.guess |= dict.fromkeys(names[:2], "cat") | dict.fromkeys(names[2:4], "dog")
    page.reload()
    page.wait_for_selector("#shown img")
    grid(page)
    page.focus(f'.tile[title="{names[0]}"]')
    page.keyboard.press("a")
    page.wait_for_selector(".tile[aria-pressed=true]")
    chosen = page.locator(".tile[aria-pressed=true]").evaluate_all("all => all.map(t => t.title)")
    assert sorted(chosen) == sorted(names[:2])


def test_what_is_asked_once_more_says_why(page, site):
    ann = site.person("Ann", "another-tab")
    ann.label(list(range(1, N)), "cat")
    ann.label(1, answer="skip")
    ann.post("/leave", tab=ann.tab)
    page.reload()
    for reason in ("There is no model yet", "Somebody was not sure"):
        page.wait_for_selector(f"#reason:has-text('{reason}')")
        page.wait_for_selector("#shown img:not([hidden])")
        page.keyboard.press("u")
    page.wait_for_selector("#note:has-text('but for 1 skipped and 1 not sure')")
    assert not page.is_visible("#item")
