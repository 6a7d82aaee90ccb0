"""Examples in documents and docstrings write files: never into the repository."""

import os
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # on the CPU; triton looks when it is first imported
# Doctests are looked for in every module, and these cannot be imported without their packages.
needed = {
    "kernels/triton.py": "triton",
    "kernels/step.py": "triton",
    "interop/skactiveml.py": "skactiveml",
}
collect_ignore = [f"src/foresee/{file}" for file, name in needed.items() if not find_spec(name)]


@pytest.fixture(autouse=True)
def _own_folder(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
