"""Where a data set is, and how to get it: through torchvision or wilds, else by hand."""

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from foresee.errors import InputError

# Bytes of one file, unpacked, that are read into memory: the published ones have a quarter.
LIMIT = 1 << 30


class File(NamedTuple):
    """A published file: where it belongs under root, its size, and its md5 where there is one."""

    path: str
    size: int
    md5: str | None


FILES: dict[str, tuple[File, ...]] = {
    "digits": (),
    "mnist": (
        File("MNIST/raw/train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        File("MNIST/raw/train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
        File("MNIST/raw/t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
        File("MNIST/raw/t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashionmnist": (
        File(
            "FashionMNIST/raw/train-images-idx3-ubyte.gz",
            26421880,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        File(
            "FashionMNIST/raw/train-labels-idx1-ubyte.gz", 29515, "25c81989df183df01b3e8a0aad5dffbe"
        ),
        File(
            "FashionMNIST/raw/t10k-images-idx3-ubyte.gz",
            4422102,
            "bef4ecab320f06d8554ea6380940ec79",
        ),
        File(
            "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz", 5148, "bb300cfdad3c16e7a12a480ee83cd310"
        ),
    ),
    "cifar10": (File("cifar-10-python.tar.gz", 170498071, "c58f30108f718f92721af3b95e74349a"),),
    "cifar100": (File("cifar-100-python.tar.gz", 169001437, "eb9058c3a382ffc7106e4002c42a8d85"),),
    "svhn": (
        File("train_32x32.mat", 182040794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        File("test_32x32.mat", 64275384, "eb5a983be6a315427106f1b164d9cef3"),
    ),
    # WILDS publishes the size of its archives, unpacked into these folders, and no checksum.
    "camelyon17": (File("camelyon17_v1.0", 10658709504, None),),
    "iwildcam": (File("iwildcam_v2.0", 11957420032, None),),
    "fmow": (File("fmow_v1.1", 53893324800, None),),
}
_TORCHVISION = {
    "mnist": "MNIST",
    "fashionmnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "svhn": "SVHN",
}


def known(name: str) -> str:
    """Check a data set's name and return it in lower case."""
    if name.lower() not in FILES:
        raise InputError(f"there is no data set {name!r}: choose one of {', '.join(FILES)}")
    return name.lower()


def find(name: str, root: Path | None, folder: str, *holds: str) -> Path:
    """Return the folder that holds one of these files: root/folder, root/name or root itself."""
    if root is None:
        raise InputError(
            f"a data folder is needed by {name}: pass the one that holds {Path(folder, holds[0])}"
        )
    for place in (root / folder, root / name, root):
        if any((place / file).is_file() for file in holds):
            return place
    raise InputError(
        f"there is no {Path(folder, holds[0])} in the data folder {root}: pass another folder, or "
        f"get the files.\n{instructions(name, root)}"
    )


def instructions(name: str, root: Path | str) -> str:
    """Say which files to put where, one line each, with what tells whether they are whole.

    Args:
        name: a data set, in any case.
        root: the folder that will be passed to `load`.

    >>> print(instructions("cifar10", "data"))
    Put in data:
      cifar-10-python.tar.gz  170498071 bytes  md5 c58f30108f718f92721af3b95e74349a
      and unpack it there: tar -xzf cifar-10-python.tar.gz
    """
    name = known(name)
    if name == "digits":
        return "digits comes with scikit-learn: there is nothing to get"
    files = FILES[name]
    width = max(len(file.path) for file in files)
    if name in _TORCHVISION:
        head = f"Put in {root}:"
        lines = [f"{f.path:<{width}}  {f.size:>9} bytes  md5 {f.md5}" for f in files]
    else:
        head = f"Unpack in {root} the archive of WILDS:"
        lines = [f"{f.path:<{width}}  {f.size} bytes packed, no md5 is published" for f in files]
    if name.startswith("cifar"):
        lines.append(f"and unpack it there: tar -xzf {files[0].path}")
    return "\n  ".join([head, *lines])


def download(name: str, root: Path | str) -> None:
    """Download a data set into the folder ``root``, with torchvision or wilds.

    Args:
        name: a data set, in any case; digits needs nothing.
        root: a folder, made if need be, to pass to `load`.

    Raises:
        InputError: the package or the network is missing; the message ends with `instructions`.

    >>> download("digits", "data")
    """
    name = known(name)
    if name == "digits":
        return
    package = "torchvision" if name in _TORCHVISION else "wilds"
    by_hand = f"or get the files yourself.\n{instructions(name, root)}"
    try:
        _fetch(name, Path(root))
    except ImportError as error:
        raise InputError(
            f"{package} is needed to download {name} ({error}): pip install {package}, {by_hand}"
        ) from error
    except Exception as error:  # no network raises URLError, RuntimeError, ConnectionError, ...
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{name} could not be downloaded ({reason}): check the network and the room in {root}, "
            f"{by_hand}"
        ) from error


def _fetch(name: str, root: Path) -> None:
    package = import_module("torchvision.datasets" if name in _TORCHVISION else "wilds")
    root.mkdir(parents=True, exist_ok=True)
    if name in _TORCHVISION:
        dataset = getattr(package, _TORCHVISION[name])
        for part in ("train", "test"):
            which = {"split": part} if name == "svhn" else {"train": part == "train"}
            dataset(str(root), download=True, **which)
    else:
        version = FILES[name][0].path.partition("_v")[2]
        package.get_dataset(name, version=version, root_dir=str(root), download=True)
