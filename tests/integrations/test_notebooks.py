"""The notebooks run as they stand, and the site shows what is in them."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_are_what_the_site_shows(path, capsys):
    matplotlib.use("agg")
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    matplotlib.pyplot.close("all")
    assert capsys.readouterr().out
    page = path.with_suffix(".md").read_text()
    shown = re.findall(r"^```python\n(.*?)\n```$", page, re.M | re.S)
    assert shown == ["".join(cell["source"]) for cell in cells]
    for cell in cells:
        for output in cell["outputs"]:
            for line in output.get("text", []):
                assert line.rstrip("\n") in page
