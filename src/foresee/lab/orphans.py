"""Workers that end with their parent. Nothing heavy is imported: they must watch from the start."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_WATCH = 0.5  # seconds between looks


def die_with(parent: int) -> None:
    """End this process when its parent is killed: it would keep its memory and its lock."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Whoever is started meanwhile does not hear Ctrl-C: its parent does, and ends it quietly."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # begun later, it would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
