"""What people see: a browser opens the pages of a real Label Studio.

FORESEE_PICTURES=docs make test-label-studio    # draws the pictures of docs/label-studio.md
"""

import io
import os
import shutil
from pathlib import Path

import pytest
import real
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
PICTURES = os.environ.get("FORESEE_PICTURES")
HIDDEN = [
    *("inner_id", "completed_at", "predictions_results", "cancelled_annotations", "annotators"),
    *(
        "total_predictions",
        "annotations_results",
        "annotations_ids",
        "file_upload",
        "avg_lead_time",
    ),
    *("predictions_model_versions", "storage_filename", "created_at", "updated_at", "updated_by"),
    *("draft_exists", "comment_count", "unresolved_comment_count"),
]


@pytest.fixture(scope="module")
def page(studio):
    with playwright.sync_playwright() as found:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = found.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        page.goto(f"{studio.url}/user/login/")
        page.fill("input[name=email]", real.USER)
        page.fill("input[name=password]", real.PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_load_state("networkidle")
        yield page
        browser.close()


def picture(page, name):
    if PICTURES:
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256)
        image.save(Path(PICTURES) / f"label-studio-{name}.png", optimize=True)


def test_people_see_the_order_and_the_guesses(studio, backends, page, digits, truth):
    project = studio.project(
        "Image",
        [str(digit) for digit in range(10)],
        title="Digits",
        item='maxWidth="260px"',
        choices='showInline="true"',
    )
    project.add_images(digits)
    port = 9090 if PICTURES else None  # what the document says
    backend = backends(project, "--size", "16", "--ahead", "30", port=port)
    page.goto(f"{studio.url}/projects/{project.number}/settings/ml")
    page.get_by_text("Connect Model").last.click()
    page.locator("input[name=title]").fill("foresee")
    page.locator("input[name=url]").fill(backend.url)
    picture(page, "connect")
    page.get_by_text("Validate and Save").click()
    page.get_by_text("Connected", exact=True).wait_for()
    page.wait_for_timeout(1000)
    picture(page, "model")

    for task in project.tasks()[:20]:
        project.label(task["id"], truth(task))
    backend.settled(20, 60)
    hidden = [f"tasks:{name}" for name in HIDDEN]
    view = {"title": "Label next", "hiddenColumns": {"explore": hidden, "labeling": hidden}}
    project.call("POST", "/api/dm/views/", {"project": project.number, "data": view})
    page.goto(f"{studio.url}/projects/{project.number}/data")
    page.get_by_text("Order by").click()
    page.get_by_text("Prediction score", exact=True).last.click()
    page.mouse.click(500, 690)
    first = backend.queue()[:5]
    real.wait(lambda: shown(page)[:5] == first, 20)
    page.wait_for_timeout(1000)
    picture(page, "order")

    button = page.get_by_role("button", name="Label All Tasks")
    button.locator("xpath=following-sibling::*").first.click()
    page.get_by_text("Label Tasks As Displayed").click()
    guess = backend.project.call("GET", f"/api/tasks/{first[0]}")["predictions"][0]["result"]
    (ticked,) = guess[0]["value"]["choices"]
    box = page.locator(f"input[type=checkbox][name='{ticked}']")
    real.wait(lambda: box.count() == 1 and box.is_checked(), 20)
    assert str(first[0]) in page.locator("body").inner_text().split()
    page.wait_for_timeout(1000)
    picture(page, "task")
    page.get_by_text("Submit", exact=True).last.click()
    backend.settled(21, 59)


def shown(page):
    """Numbers of the tasks in the rows of the data manager."""
    texts = page.locator(".dm-table-row, [class*=table-row]").all_inner_texts()
    found = [text.split()[0] for text in texts if text.split()]
    return [int(word) for word in found if word.isdecimal()]
