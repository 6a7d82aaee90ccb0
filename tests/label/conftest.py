import numpy as np
import pytest
from PIL import Image
from visitors import N, Site


@pytest.fixture
def folder(tmp_path):
    """Thirty plain images, and a secret beside their folder."""
    root = tmp_path / "photos"
    root.mkdir()
    rng = np.random.default_rng(0)
    for i in range(N):
        pixels = rng.integers(256, size=(9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{i:02d}.png")
    (tmp_path / "secret.txt").write_text("top secret")
    return root


@pytest.fixture
def site(folder):
    found = Site(folder)
    yield found
    found.book.close()
