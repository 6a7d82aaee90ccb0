"""A connection to Ray, and whether it pays."""

import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foresee.errors import InputError
from foresee.predictions import Predictions
from foresee.suggest import Scorer

# Bytes of memory that workers of one machine share; results are small.
_STORE = 512 << 20
# Seconds until Ray and its workers are there, and the share of a core that then scores.
_START, _SHARE = 10.0, 0.85
_PATIENCE = 10.0  # seconds until somebody must answer
RETRIES = 100  # of a task whose worker died: what kills every worker must end
_SAMPLE = 4096  # rows that are scored to see how long a row takes


def outcome(ray: Any, task: Any, what: str) -> Any:
    """What a task returned; where every worker died of it, that is said."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error, ray.exceptions.RaySystemError):
            raise unreadable(error.cause) from None
        raise  # the task's own error
    except ray.exceptions.RayError as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{what} was given up after its worker died {RETRIES + 1} times ({said}): give workers "
            "more memory, or fewer a machine"
        ) from error


def unreadable(error: Exception) -> InputError:
    """What is said where a worker cannot take up its work, as it lacks a module of it."""
    said = str(error).removeprefix("System error: ").partition("\n")[0]
    return InputError(
        f"a worker cannot read its work ({said}): every machine needs foresee, and the modules of "
        "posterior and read, as they are here; or connect before by "
        "ray.init(runtime_env={'py_modules': [my_module]})"
    )


def sent(ray: Any, work: Any) -> Any:
    """What every worker needs, where all of them find it."""
    try:
        return ray.put(work)
    except TypeError as error:
        raise InputError(
            f"posterior and read must be such that they can be sent to workers: {error.__cause__}; "
            "make what cannot travel, such as a lock or an open file, where it is used"
        ) from None


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Connect to Ray, or start it on this machine, for a while; a connection that is there is used.

    Args:
        address: of a cluster; None or "local": started here, with so many
        cpus: None: all.
    """
    try:
        import ray
    except ImportError:
        raise InputError('this needs Ray: pip install "foresee[ray]"') from None
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray will do to tasks without a GPU: leave the environment as it is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        address, options["num_cpus"] = "local", cpus
        options |= {"include_dashboard": False, "object_store_memory": _STORE}
    try:
        _knock(str(address))
        ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(
            f"no Ray answers at {address} ({said}): pass the address of a running cluster, as in "
            '"127.0.0.1:6379", or "local"'
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Find out in seconds whether somebody answers: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


def machines(address: str) -> int:
    """How many machines a cluster has."""
    with connected(address) as ray:
        return len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})


def check_room(ray: Any, cpus: int, gpus: float) -> None:
    """Warn where no machine has what a worker takes: Ray waits in silence for one to join."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus for has in there):
        warnings.warn(
            f"no machine of the cluster has cpus={cpus} and gpus={gpus:g} for a worker: waiting "
            "until one joins; ask for fewer",
            stacklevel=3,
        )


def seconds(pool: Predictions, scorer: Scorer, cores: int) -> tuple[float, float]:
    """What a pool will take on this machine, about: in one plain loop, and by Ray.

    >>> import numpy as np
    >>> from foresee import predictions
    >>> from foresee.testing import random_draws
    >>> np.save("pool.npy", random_draws(np.random.default_rng(0), 100, 4, 3))
    >>> plain, by_ray = seconds(predictions.read("--pool", "pool.npy"), Scorer("bald"), cores=2)
    >>> plain < by_ray
    True
    """
    threads = torch.get_num_threads()

    def of_all(threads: int) -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        piece = next(pool.pieces(_SAMPLE))
        scorer(piece, 0)
        return (time.perf_counter() - start) * len(pool) / len(piece)

    try:
        of_all(threads)  # what is compiled is compiled before
        return of_all(threads), _START + of_all(1) / (cores * _SHARE)
    finally:
        torch.set_num_threads(threads)
