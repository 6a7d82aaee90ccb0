"""Files that are written whole or not at all."""

import os
import secrets
from pathlib import Path

from foresee.errors import InputError


def write(path: Path, content: bytes) -> None:
    """Write the file, or leave things as they were."""
    path = Path(os.path.realpath(path))  # through a link, as a plain write would
    # Not from tempfile: its files are closed to everybody else, and would stay so.
    temporary = path.with_name(f".foresee-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"{path} could not be written ({error.strerror}): make room or choose another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
