"""Arrays in .npy and .npz files: small ones are loaded, large ones are mapped."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import InputError
from foresee.reading import kept

# Bytes of a table or of an array in an archive that are loaded; what is larger is mapped.
LOADED = 64 << 20
# Bytes of a packed array that are loaded where nothing may be written.
UNPACKED = 1 << 30


def array(argument: str, path: Path, name: str | None = None) -> NDArray[Any]:
    """A .npy file, mapped, or an array of a .npz file by its name, or the only one.

    Of an archive it is loaded where it is small or packed, and else mapped.
    """
    try:
        if path.suffix.lower() == ".npy":
            return kept.open_array(path)
        return _from_archive(argument, path, name)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises ValueError, BadZipFile, MemoryError, ...
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{argument}: {path} cannot be read ({reason}): it is damaged or holds no plain array "
            "(of texts: array.astype(str)); write it again with numpy.save"
        ) from error


def members(path: Path) -> list[str]:
    """The names of the arrays in a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}): write it with numpy.savez") from error


def _from_archive(argument: str, path: Path, name: str | None) -> NDArray[Any]:
    # Not numpy.load, which unpacks whatever the size.
    with zipfile.ZipFile(path) as archive:
        names = [file.removesuffix(".npy") for file in archive.namelist() if file.endswith(".npy")]
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            wanted = "one array" if name is None else f"an array {name!r}"
            raise InputError(
                f"{argument} must be {wanted}, but {path} holds {', '.join(names) or 'none'}: pick "
                f"one, as in {path}:{names[0] if names else 'name'}"
            )
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is packed in another way than numpy does")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size > LOADED:
            return _stored(path, member)
        if member.file_size > UNPACKED:
            raise InputError(
                f"{argument}: {name} in {path} unpacks to {member.file_size:,} bytes, and no more "
                f"than {UNPACKED:,} are loaded: write it with numpy.save to a .npy file, which is "
                "read in pieces"
            )
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def _stored(path: Path, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Map an array that is not packed: behind the member's own header, whose length varies."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        head = file.read(30)
        names = sum(int.from_bytes(head[i : i + 2], "little") for i in (26, 28))
        begin = member.header_offset + len(head) + names
    found: Any = kept.open_array(path, begin)
    if found.offset + found.nbytes != begin + member.file_size:
        raise ValueError("its length is another than the archive says")
    return found
