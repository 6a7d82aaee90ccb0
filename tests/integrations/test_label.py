"""A transformers image model on the disk, as `foresee label --model FOLDER` reads it."""

import numpy as np
import pytest
import torch
from PIL import Image

from foresee.label import work
from foresee.label.items import Spec

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(30):
        pixels = rng.integers(100, size=(16, 16, 3), dtype=np.uint8) + 100 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / f"{i:02d}.png")
    return tmp_path / "photos"


def test_features_of_a_model_on_the_disk(folder, tmp_path):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    answer = work.worker(Spec(str(folder), size=16, model=str(tmp_path / "vit"), holdout=0.0))
    ids = [f"{i:02d}.png" for i in range(12)]
    labels = [("dark", "light")[i % 2] for i in range(12)]
    ask = {"kind": "ask", "size": 12, "ids": ids, "scores": [None] * 12, "promise": None}
    ask |= {"held": [], "seen": 0}
    tell = {"kind": "tell", "ids": ids, "labels": labels, "skip": [], "unsure": []}
    found = answer({"events": [ask, tell], "size": 6})
    places = [int(name[:2]) for name in found["batch"]["ids"]]
    assert found["guess"] == [("dark", "light")[i % 2] for i in places]


def test_what_is_exported_is_read_by_datasets(folder, tmp_path):
    from foresee.label.book import Book
    from foresee.label.export import export
    from foresee.label.items import Items

    spec, out = Spec(str(folder)), tmp_path / "labels.csv"
    book = Book(Items(spec), out)
    book.tell([0, 1], "cat", who="ann", key=None)
    book.tell([2], "dog", who="ann", key=None)
    book.close()
    for kind in ("datasets", "imagefolder"):
        export(spec, out, kind, tmp_path / kind)
        options = {"data_dir": str(tmp_path / kind), "cache_dir": str(tmp_path / "cache")}
        rows = datasets.load_dataset("imagefolder", split="train", **options)
        assert len(rows) == 3
        assert rows[0]["image"].size == (16, 16)
