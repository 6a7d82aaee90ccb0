"""Turn images that are packed without loss into the files that `foresee run` reads.

    python results/data.py PACKED OUT [cifar10 cifar100 svhn iwildcam]

PACKED has a folder for each set, with .npz files: ``blob``, strips of lossless WebP one after the
other, ``off``, where they begin, ``side`` of an image, ``y``, and for some ``index``, the row in
the published set, and ``camera``. OUT/NAME.npz has all of it as arrays; CIFAR-100 and SVHN are
subsets with the darkest images of the whole set. iWildCam becomes OUT/iwildcam_v2.0, a folder as
WILDS publishes it: a table and a file for each image. Cameras of an odd number are its "test", the
source of a shift, and those of an even number its "train".
"""

import argparse
import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
FILES = {
    "cifar10": [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
    "cifar100": ["train_subset", "train_darkest1000", "test_subset"],
    "svhn": ["train_subset", "train_darkest1000", "test_subset"],
    "iwildcam": ["iwildcam64_slice"],
}


def read(path: Path) -> dict[str, Any]:
    """The arrays of a packed file, with its images as ``pixels`` [n channels height width]."""
    with np.load(path, allow_pickle=False) as held:
        found = {key: held[key] for key in held.files}
    blob, side = found.pop("blob").tobytes(), int(found["side"])
    strips = [
        np.asarray(Image.open(io.BytesIO(blob[a:b]))).reshape(-1, side, side, 3)
        for a, b in zip(found["off"][:-1], found["off"][1:], strict=True)
    ]
    return {**found, "pixels": np.concatenate(strips).transpose(0, 3, 1, 2)}


def joined(folder: Path, name: str) -> dict[str, Any]:
    """Train, then test; an image that is in two files is there once."""
    parts = [read(folder / name / f"{file}.npz") for file in FILES[name]]
    if "index" in parts[0]:
        new = ~np.isin(parts[1]["index"], parts[0]["index"])
        parts[1] = {key: parts[1][key][new] for key in ("pixels", "y")}
    found = {key: np.concatenate([part[key] for part in parts]) for key in ("pixels", "y")}
    labels = found["y"].astype(np.int64)
    names = CIFAR10.split() if name == "cifar10" else [str(k) for k in range(labels.max() + 1)]
    return {"pixels": found["pixels"], "labels": labels, "classes": np.array(names)}


def as_wilds(packed: dict[str, Any], out: Path) -> None:
    """Write images, and the columns of the two tables that tell what they are."""
    (out / "train").mkdir(parents=True, exist_ok=True)
    rows = list(zip(packed["camera"].tolist(), packed["y"].tolist(), strict=True))
    names = [f"{row:04}.png" for row in range(len(rows))]
    for name, pixels in zip(names, packed["pixels"], strict=True):
        Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(out / "train" / name)
    _table(
        out / "categories.csv", ["y", "name"], ((y, y) for y in range(int(packed["y"].max()) + 1))
    )
    splits = ("test" if camera % 2 else "train" for camera, _ in rows)
    columns = ["split", "location_remapped", "y", "filename"]
    table = ((split, *row, name) for split, row, name in zip(splits, rows, names, strict=True))
    _table(out / "metadata.csv", columns, table)


def _table(path: Path, columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packed", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="*", default=list(FILES))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        if name == "iwildcam":
            packed = read(given.packed / name / f"{FILES[name][0]}.npz")
            as_wilds(packed, given.out / "iwildcam_v2.0")
            print(name, packed["pixels"].shape, "as files", flush=True)
            continue
        arrays = joined(given.packed, name)
        np.savez(given.out / f"{name}.npz", **arrays)
        print(name, arrays["pixels"].shape, "of", len(arrays["classes"]), "classes", flush=True)


if __name__ == "__main__":
    main()
