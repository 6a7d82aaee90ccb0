"""A browser, for tests that look at pages."""

import shutil

import pytest


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as found:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        chromium = found.chromium.launch(executable_path=path, args=options)
        yield chromium
        chromium.close()
