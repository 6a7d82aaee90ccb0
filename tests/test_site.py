"""The site is built strictly, leads nowhere else than it says, and needs no network."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import foresee
from foresee import posteriors

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """Where a page leads, what it loads, and the names that others can lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.names = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.names.add(found.get("id"))
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if tag in ("script", "img", "link", "iframe", "source"):
            self.loads |= {found[name] for name in ("src", "href") if found.get(name)}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", symlinks=True)
    for name in ("Makefile", "zensical.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "results", "site_examples.py"):
        (folder / name).symlink_to(ROOT / name)
    command = ["make", "site", "-o", ".venv/installed", f"BIN={Path(sys.executable).parent}"]
    env = os.environ | {"NO_COLOR": "1"}
    built = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.stem != "404"}


def test_every_link_leads_somewhere(site, pages):
    assert len(pages) > 20
    for path, page in pages.items():
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert there.exists(), (path.name, link)
            if parts.fragment and there.suffix == ".html":
                assert parts.fragment in pages[there].names, (path.name, link)


def test_nothing_is_loaded_from_elsewhere(pages):
    for path, page in pages.items():
        assert not [link for link in page.loads if urlsplit(link).netloc], path.name


def test_the_reference_has_every_public_name():
    text = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    there = set(re.findall(r"^::: \S+\.(\w+)$", text, re.M))
    for name in (*foresee.__all__, *(n for n in vars(posteriors) if not n.startswith("_"))):
        home = Path(posteriors.__file__).parent
        if not (home / f"{name}.py").exists() or callable(getattr(posteriors, name, None)):
            assert name in there or f"`foresee.{name}`" in text, name


def test_the_search_index_has_every_page(site, pages):
    index = (site / "search.json").read_text()
    for path in pages:
        assert f'"{path.relative_to(site).as_posix()}' in index, path.name
