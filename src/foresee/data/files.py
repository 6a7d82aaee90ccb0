"""Where a data set's files are, and files that are written whole or not at all."""

import os
import secrets
from pathlib import Path

from foresee.checks import InputError
from foresee.data.get import instructions


def find(name: str, root: Path | None, folder: str, *holds: str) -> Path:
    """Return the folder that holds one of these files: root/folder, root/name or root itself."""
    if root is None:
        raise InputError(
            f"root is needed by {name}: pass the folder that holds {Path(folder, holds[0])}"
        )
    for place in (root / folder, root / name, root):
        if any((place / file).is_file() for file in holds):
            return place
    raise InputError(
        f"root: there is no {Path(folder, holds[0])} in {root}.\n{instructions(name, root)}"
    )


def write(path: Path, text: str) -> None:
    """Write the file whole or leave things as they were."""
    temporary = path.with_name(f".foresee-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"{path} could not be written ({error.strerror}): make room or choose another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
