"""The backend's own folder: a copy of what the tasks show, and the last ranking.

    texts.json    texts by the number of the task, or
    images/       a file for each task: its number, and a digest of where it came from
    ranking.json  the last ranking (`Ranking`)

Nothing here is the only copy of anything: what is lost is fetched and computed again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from foresee import files
from foresee.errors import InputError
from foresee.reading import sources


@dataclass(frozen=True)
class Ranking:
    """The tasks without a label, those first that should be labelled first.

    Args:
        number: of the model; each has a larger one than those before.
        seen: a digest of what it was made from.
        trained: from how many labels.
        promise: fall of the Brier loss per target example expected from all labels that remain;
            None where there is no model.
        queue: numbers of tasks, each with the likeliest label and its probability, or None twice.
        shown: whether Label Studio has all of it.
    """

    number: int = 0
    seen: str = ""
    trained: int = 0
    promise: float | None = None
    queue: list[tuple[int, str | None, float | None]] = field(default_factory=list)
    shown: bool = False


class Shelf:
    """The folder of one backend, which no other may use.

    Args:
        folder: where; it is made by need.
        owner: the url and the project it is for.
    """

    def __init__(self, folder: Path, owner: dict[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / ".lock", timeout=0)
            self._lock.acquire()
        except Timeout:
            raise InputError(
                f"--state {folder} is in use by another backend: end it, or choose another folder"
            ) from None
        except OSError as error:
            raise InputError(
                f"--state {folder} cannot be written ({error.strerror}): choose another folder"
            ) from error
        known = _json(folder / "project.json", owner)
        if known != owner:
            self.close()
            raise InputError(
                f"--state {folder} is of project {known.get('project')} at {known.get('url')}: "
                "choose another folder"
            )
        files.write(folder / "project.json", json.dumps(owner).encode())

    def close(self) -> None:
        """Let another backend use it."""
        self._lock.release()

    def ranking(self) -> Ranking:
        """The last one that was kept, or an empty one."""
        found = _json(self.folder / "ranking.json", {})
        try:
            queue = [(int(task), label, share) for task, label, share in found.pop("queue")]
            return Ranking(**found, queue=queue)
        except (AttributeError, KeyError, TypeError, ValueError):
            return Ranking()

    def keep(self, ranking: Ranking) -> None:
        """Write a ranking."""
        files.write(self.folder / "ranking.json", json.dumps(asdict(ranking)).encode())

    def texts(self, found: Mapping[int, str]) -> tuple[Path, dict[int, str]]:
        """Keep texts by task.

        Returns:
            The file, and what each task is called in it.
        """
        path = self.folder / "texts.json"
        names = {task: str(task) for task in found}
        content = json.dumps({names[task]: text for task, text in found.items()}).encode()
        if not path.exists() or path.read_bytes() != content:
            files.write(path, content)
        return path, names

    def images(
        self, found: Mapping[int, str], fetch: Callable[[str, Path], bool]
    ) -> tuple[Path, dict[int, str]]:
        """Keep images by task, and no others.

        Args:
            found: where each image is.
            fetch: copies one of them to a path, or says that it cannot.

        Returns:
            The folder, and the files of those tasks whose images are there.
        """
        folder = self.folder / "images"
        folder.mkdir(exist_ok=True)
        names = {task: _name(task, source) for task, source in found.items()}
        here = {name for name in os.listdir(folder) if (folder / name).is_file()}
        for name in here - set(names.values()):
            (folder / name).unlink()
        return folder, {
            task: name
            for task, name in names.items()
            if name in here or fetch(found[task], folder / name)
        }


def _name(task: int, source: str) -> str:
    """A plain name for an image, whatever is in its address.

    >>> _name(7, "/data/upload/1/../a%20cat.JPEG")[-5:], _name(7, "/data/local-files/?d=x")[-4:]
    ('.jpeg', '.png')
    """
    suffix = PurePosixPath(urlsplit(source).path).suffix.lower()
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    # The content tells what it is; the name tells only that it is an image.
    return f"{task}-{digest}{suffix if suffix in sources.SUFFIXES else '.png'}"


def _json(path: Path, default: dict[str, Any]) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return default
