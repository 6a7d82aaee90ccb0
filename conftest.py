"""Examples in documents and docstrings write files: never into the repository."""

import pytest


@pytest.fixture(autouse=True)
def _own_folder(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
