"""A connection to Ray, and whether it pays."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foresee.errors import InputError

# Bytes of memory that workers of one machine share; results are small.
_STORE = 512 << 20


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
