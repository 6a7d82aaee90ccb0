"""Workers that end with their parent. Nothing heavy is imported: they must watch from the start."""

import os
import threading
import time

_WATCH = 0.5  # seconds between looks


def die_with(parent: int) -> None:
    """End this process when its parent is killed: it would keep its memory and its lock."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
