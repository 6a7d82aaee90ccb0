"""Where a data set's files are."""

from pathlib import Path

from foresee.errors import InputError
from foresee.lab.data.get import instructions


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
