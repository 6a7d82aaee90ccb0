"""The one reader of image files: known formats only, and nothing is decoded before it is measured.

Files from strangers are read here, so a name is never believed: what a file is, is told by its
content, and a program such as Ghostscript is never started for it.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from foresee.errors import InputError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# The largest image that is decoded: above it Pillow itself begins to warn.
PIXELS = 80_000_000
# The largest file that is opened: room for that many pixels of 16-bit colour, not packed.
BYTES = 512 << 20
# Of what `read` makes of a file: raised when that changes, so that no older pixels are used again.
READER = 2


def inside(root: Path | str, name: str) -> str:
    """Return the real path of the file ``name`` in the folder ``root``, links followed.

    A name or a link that leads out of the folder is refused: `..`, absolute paths, links to
    elsewhere. The folder itself may be a link. Whether the file is there, `read` will say.

    >>> inside("photos", "../secret.png")
    Traceback (most recent call last):
    ...
    foresee.errors.InputError: ../secret.png leads out of the folder photos: put the file itself...
    """
    try:
        home = os.path.realpath(root)
        path = os.path.realpath(os.path.join(home, name))
    except ValueError as error:  # a null character
        raise InputError(f"{name!r} is no file name ({error}): correct it") from error
    if not path.startswith(os.path.join(home, "")):
        raise InputError(
            f"{name} leads out of the folder {root}: put the file itself there, under a plain name"
        )
    return path


def read(
    path: Path | str, size: int | tuple[int, int] | None = None, channels: int = 3
) -> NDArray[np.uint8]:
    """Decode an image file to colour or grey, as people see it.

    Args:
        path: a PNG, JPEG, WebP, GIF, BMP or TIFF file of at most `PIXELS` pixels.
        size: squeeze the image to this square, or to (height, width), by a bilinear filter that
            averages over all pixels when it shrinks; without it the image keeps its size.
        channels: 3 for red, green and blue, 1 for grey.

    Returns:
        Pixels, uint8 [channels height width]. The first frame counts; the camera's orientation
        (EXIF) is applied; what is transparent lies over white; of 16 bits the upper 8 are kept.

    Raises:
        InputError: it is no such file, too large, damaged or cut; the message names it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (40, 30), 7).save(f"{folder}/grey.png")
    ...     read(f"{folder}/grey.png").shape, read(f"{folder}/grey.png", 8).mean()
    ((3, 30, 40), np.float64(7.0))
    """
    if not os.path.isfile(path):
        raise InputError(f"there is no image file {path}: check the path")
    try:
        _check("bytes", os.path.getsize(path), BYTES)
        with Image.open(path, formats=FORMATS) as file:
            _check("pixels", file.width * file.height, PIXELS)
            _rescale_transparent(file)
            ImageOps.exif_transpose(file, in_place=True)
            image = _colour(file).convert("L" if channels == 1 else "RGB")
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises OSError, SyntaxError, struct.error, ...
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"it is none of {', '.join(FORMATS)}" if unknown else error
        raise InputError(f"{path} cannot be read as an image ({reason}): replace it") from error
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image).reshape(image.height, image.width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"{size:,} {what}, and no more than {limit:,} are read")


def _rescale_transparent(file: ImageFile.ImageFile) -> None:
    """Scale the transparent colour of a PNG as Pillow scales its pixels, but not that colour."""
    if file.format == "PNG" and "transparency" in file.info:
        bits: Any = file.tile[0][3]
        file.info["transparency"] *= {"L;2": 85, "L;4": 17}.get(bits, 1)
        if bits == "RGB;16B":
            raise ValueError("its transparent colour has 16 bits: save it with an alpha channel")


def _colour(image: Image.Image) -> Image.Image:
    # Pillow would cut wide greys at 255; older ones open a 16-bit PNG as one of 32 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        values = np.asarray(image)
        seen = values != image.info.get("transparency")
        image = Image.fromarray(np.where(seen, values >> 8, 255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels are numbers of 32 bits, and nothing tells which is white")
    elif image.mode in ("P", "LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
