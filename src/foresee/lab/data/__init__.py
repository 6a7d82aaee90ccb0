"""Files on disk to tasks: images, their split for an experiment, and what a learner may see.

>>> images = load("digits")
>>> images.pixels.shape, images.classes[:3]
((1797, 1, 8, 8), ('0', '1', '2'))
"""

from collections.abc import Callable
from pathlib import Path

from foresee.lab.data.cifar import cifar10, cifar100
from foresee.lab.data.dataset import Images
from foresee.lab.data.get import download, instructions, known
from foresee.lab.data.small import digits, fashionmnist, from_npz, mnist, svhn
from foresee.lab.data.splits import Split, mark, pool_share, split, task
from foresee.lab.data.wilds import LAYOUTS, load_wilds, wilds_bytes

__all__ = [
    "LOADERS",
    "Images",
    "Split",
    "decoding_bytes",
    "download",
    "instructions",
    "load",
    "mark",
    "pool_share",
    "split",
    "task",
]

# The sets that fit in memory; those of WILDS are decoded into a file first.
LOADERS: dict[str, Callable[[Path | None], Images]] = {
    "digits": digits,
    "mnist": mnist,
    "fashionmnist": fashionmnist,
    "svhn": svhn,
    "cifar10": cifar10,
    "cifar100": cifar100,
}


def load(
    name: str,
    root: Path | str | None = None,
    *,
    cache: Path | str | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Images:
    """Read a data set; all its own splits are joined, train then test.

    Args:
        name: one of `LOADERS` or of WILDS: camelyon17, iwildcam, fmow; in any case.
        root: the folder that holds its files, or all of it as arrays in ``name``.npz; digits needs
            none.
        cache: where the images of a WILDS set are decoded on first use, by default beside them.
        advance: hears how many images are decoded, and of how many.

    Returns:
        The images [n channels height width] and their labels [n].

    >>> load("Digits").labels[:4]
    array([0, 1, 2, 3])
    """
    name = known(name)
    root = None if root is None else Path(root)
    if root is not None and (packed := root / f"{name}.npz").is_file():
        return from_npz(name, packed)
    if name in LAYOUTS:
        return load_wilds(name, root, None if cache is None else Path(cache), advance)
    return LOADERS[name](root)


def decoding_bytes(
    name: str, root: Path | str | None = None, *, cache: Path | str | None = None
) -> int:
    """How many bytes of disk the next `load` of the same arguments will fill.

    0 where nothing is left to decode.

    >>> decoding_bytes("digits")
    0
    """
    name = known(name)
    root = None if root is None else Path(root)
    if name not in LAYOUTS or (root is not None and (root / f"{name}.npz").is_file()):
        return 0
    return wilds_bytes(name, root, None if cache is None else Path(cache))
