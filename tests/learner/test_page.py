"""The shortest paths stay short: each example is run as it stands with the other documents."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text()


@pytest.mark.parametrize(
    ("title", "most"), [("Texts and scikit-learn", 8), ("A folder of images and torch", 12)]
)
def test_examples_are_short(title, most):
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    _, example, *_ = re.findall(r"```python\n(.*?)```", section, re.S)
    lines = [line for line in example.splitlines() if line]
    assert "import foresee" in example
    assert "learner.tell" in example
    assert len(lines) <= most
    assert max(len(line) for line in lines) <= 100
