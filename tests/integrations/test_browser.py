"""A browser labels digits by its keyboard, and the server is killed in the middle."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from PIL import Image
from sklearn.datasets import load_digits

pytest.importorskip("axe_playwright_python")

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
TOKEN = "a-token-for-the-browser"
NUMBER = int(os.environ.get("FORESEE_PAGE_LABELS", "30"))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits().images, load_digits().target
    few = (labels < 9).nonzero()[0][: 2 * NUMBER + 60]  # nine keys
    for i in few:
        Image.fromarray((images[i] * 15.9).astype("uint8")).save(root / f"{i:04d}-{labels[i]}.png")
    return root


class Server:
    """`foresee label` as people start it, again on the port that was free at first."""

    def __init__(self, folder, out):
        self.folder, self.out, self.port = folder, out, 0
        self.start()

    def start(self):
        classes = ",".join(map(str, range(9)))
        options = ["--classes", classes, "--size", "8", "--no-browser", "--port", str(self.port)]
        command = [sys.executable, "-m", "foresee.cli", "label", str(self.folder), *options]
        self.process = subprocess.Popen(
            [*command, "--token", TOKEN, "--out", str(self.out)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.url, before = self.process.stdout.readline().strip(), self.port
        self.port = urlsplit(self.url).port
        assert self.url == f"http://127.0.0.1:{self.port}/?token={TOKEN}"
        assert before in (0, self.port)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def server(digits, tmp_path):
    found = Server(digits, tmp_path / "labels.csv")
    yield found
    found.kill()


@contextmanager
def opened(browser, server, **options):
    """The page as somebody with a name sees it; anything in the console is an error."""
    page, errors = browser.new_page(**options), []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(server.url)
    assert page.url == f"http://127.0.0.1:{server.port}/"
    page.fill("#name", "Ann")
    page.keyboard.press("Enter")
    page.wait_for_selector("#shown img")
    yield page
    assert errors == []
    page.close()


def press(page):
    """Give the shown digit its key; return what was pressed once the next is shown."""
    page.wait_for_selector("#shown img")
    name = page.inner_text("#caption span")
    digit = re.search(r"-(\d)\.", name).group(1)
    page.keyboard.press(str(int(digit) + 1))
    return name, digit


def wait_for_next(page, name):
    changed = "name => document.querySelector('#caption span')?.textContent !== name"
    page.wait_for_function(changed, arg=name, timeout=60_000)


def rows(server):
    lines = server.out.read_text().splitlines()[1:]
    return [(line.split(",")[0], line.split(",")[1], line.split(",")[3]) for line in lines]


def test_what_is_pressed_is_kept_whatever_happens_to_the_server(browser, server):
    pressed = []
    with opened(browser, server) as page:
        for turn in range(NUMBER):
            if turn == NUMBER // 2:
                server.kill()
                name, digit = press(page)  # nobody is there to hear it
                page.wait_for_selector("#status.bad")
                server.start()
            else:
                name, digit = press(page)
            pressed.append((name, digit, "Ann"))
            wait_for_next(page, name)
        assert rows(server) == pressed
        page.keyboard.press("z")
        page.wait_for_selector(f'#caption span:text-is("{pressed[-1][0]}")')
        assert rows(server) == pressed[:-1]
        server.kill()
        server.start()  # a page that is opened anew knows what was pressed
        page.goto(server.url)
        page.wait_for_selector("#shown img")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"#caption:has-text('you said {pressed[-2][1]}')")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#shown img")
        page.keyboard.press("s")
        page.wait_for_selector("#status:has-text('skip')")
    assert rows(server) == pressed[:-1]


def test_a_grid_by_mouse_and_new_labels(browser, server):
    with opened(browser, server, viewport={"width": 1200, "height": 900}) as page:
        page.fill("#new", "smudge")
        page.keyboard.press("Enter")
        page.click("#mode")
        page.wait_for_selector(".tile img")
        names = titles(page)[:3]
        for name in names:
            page.click(f'.tile[title="{name}"]')
        page.locator(".class", has_text="smudge").click()
        page.wait_for_selector("#status:has-text('3 items')")
        assert sorted(rows(server)) == sorted((name, "smudge", "Ann") for name in names)
        page.click("#undo")
        page.wait_for_selector("#status:has-text('Undone: 3 items')")
        assert rows(server) == []
        assert set(names) <= set(titles(page))


def tap(page):
    """Give the shown digit its label by a finger."""
    name = page.inner_text("#caption span")
    digit = re.search(r"-(\d)\.", name).group(1)
    page.wait_for_timeout(350)  # or the same digit twice would be a double tap
    page.locator(".class").nth(int(digit)).tap()
    wait_for_next(page, name)
    return name, digit, "Ann"


def titles(page):
    """Of all tiles at one moment."""
    return page.eval_on_selector_all(".tile", "found => found.map((tile) => tile.title)")


def boxes(page, selector):
    """Where all of these lie at one moment: the page may draw them anew at any other."""
    where = "found => found.map((element) => element.getBoundingClientRect().toJSON())"
    return page.eval_on_selector_all(selector, where)


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def test_a_phone(browser, server):
    with opened(browser, server, **PHONE) as page:
        tapped = [tap(page) for _ in range(4)]
        assert rows(server) == tapped
        for box in boxes(page, "button:visible"):  # as large as a finger, nearly
            assert min(box["width"], box["height"]) >= 36
        page.locator("#undo").tap()
        page.wait_for_selector(f'#caption span:text-is("{tapped[-1][0]}")')
        assert rows(server) == tapped[:-1]
        page.locator("#back").tap()
        page.wait_for_selector(f"#caption:has-text('you said {tapped[-2][1]}')")
        page.locator(".class").nth(8).tap()  # another label than before
        page.wait_for_selector("#status:has-text(': 8.')")
        changed = (tapped[2][0], "8", "Ann")
        assert rows(server) == [*tapped[:2], changed]
        skipped = page.inner_text("#caption span")
        assert skipped == tapped[-1][0]  # what was undone is still there
        page.locator("#skip").tap()
        wait_for_next(page, skipped)
        page.locator("#mode").tap()
        page.wait_for_selector(".tile img")
        page.set_viewport_size({"width": 390, "height": 300})  # too low for all of them
        page.locator(".tile").nth(5).wait_for()
        tiles = boxes(page, ".tile")
        tops = sorted({round(tile["y"]) for tile in tiles})
        assert len(tops) > 1
        assert min(b - a for a, b in pairwise(tops)) >= tiles[0]["height"]  # and none on another
        page.set_viewport_size(PHONE["viewport"])
        names = titles(page)[:2]
        for name in names:  # not by place: guesses that arrive change it
            page.tap(f'.tile[title="{name}"]')
        page.locator(".class").nth(0).tap()
        page.wait_for_selector("#status:has-text('2 items')")
        assert sorted(rows(server)[3:]) == sorted((name, "0", "Ann") for name in names)


def test_what_is_undone_can_wait(browser, server):
    with opened(browser, server) as page:
        first, digit = press(page)
        wait_for_next(page, first)
        page.keyboard.press("z")
        page.wait_for_selector(f'#caption span:text-is("{first}")')
        assert rows(server) == []
        page.keyboard.press("ArrowRight")  # later
        wait_for_next(page, first)
        pressed = []
        for _ in range(3):
            name, other = press(page)
            assert name != first
            pressed.append((name, other, "Ann"))
            wait_for_next(page, name)
        assert rows(server) == pressed
        page.reload()  # it is still out, for whoever comes first
        for _ in range(30):
            name, other = press(page)
            pressed.append((name, other, "Ann"))
            wait_for_next(page, name)
            if name == first:
                break
        assert pressed[-1] == (first, digit, "Ann")
        assert rows(server) == pressed


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1440])
def test_everybody_can_use_it(browser, server, scheme, width):
    size = {"width": width, "height": 900}
    with opened(browser, server, viewport=size, color_scheme=scheme) as page:
        page.evaluate(AXE)
        for key in (None, "g", "?"):
            if key:
                page.keyboard.press(key)
                page.wait_for_selector(".tile img" if key == "g" else "#help[open]")
            found = page.evaluate(
                "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', "
                "'wcag22aa', 'best-practice']})"
            )
            assert [(each["id"], each["help"]) for each in found["violations"]] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
        outside = "performance.getEntriesByType('resource').map(e => new URL(e.name).origin)"
        assert set(page.evaluate(outside)) == {f"http://127.0.0.1:{server.port}"}
