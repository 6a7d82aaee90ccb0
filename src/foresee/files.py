"""Files that are written whole or not at all, and what is added to one."""

import os
import platform
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from foresee.errors import InputError

_PREFIX = f".foresee-{platform.node()}-"


def write(path: Path, content: bytes) -> None:
    """Write the file, or leave things as they were; an existing file keeps its mode.

    What processes of this machine left half-written in the same folder when they were killed goes.
    """
    path = Path(os.path.realpath(path))  # through a link, as a plain write would
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file that could be replaced: choose another name")
    _sweep(path.parent)
    # Not from tempfile: its files are closed to everybody else, and would stay so.
    temporary = path.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"{path} could not be written ({error.strerror}): make room or choose another folder"
        ) from error
    finally:
        with suppress(OSError):  # where nothing can be written, this says so once more
            temporary.unlink()


def append(path: Path, content: bytes) -> None:
    """Write at the end of a file; when this returns it is on the disk."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):  # what stays is torn, and dropped when it is read
            os.truncate(path, size)
        raise InputError(
            f"{path} could not be written ({error.strerror}): make room and do the same again; all "
            "that was written before is safe"
        ) from error


def _sweep(folder: Path) -> None:
    """Remove the temporary files of dead processes."""
    with suppress(OSError):  # what cannot be listed or removed is in nobody's way
        for name in os.listdir(folder):
            if name.startswith(_PREFIX) and name.endswith(".tmp"):
                pid = name.removeprefix(_PREFIX).partition("-")[0]
                if pid.isdecimal() and not _lives(int(pid)):
                    (folder / name).unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    if os.name != "posix":  # elsewhere the question would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
