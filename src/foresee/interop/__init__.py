"""Other libraries' strategies as ours, and ours as theirs; each is imported when it is used.

Theirs as ours are frozen dataclasses that `foresee run` takes as file.py:name. All their
randomness, even what they draw from global generators, comes from the rng that they are given.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.interop.heuristics import (
        from_baal as from_baal,
        from_batchbald_redux as from_batchbald_redux,
    )
    from foresee.interop.modal import to_modal as to_modal
    from foresee.interop.skactiveml import (
        from_skactiveml as from_skactiveml,
        to_skactiveml as to_skactiveml,
    )
    from foresee.interop.small_text import to_small_text as to_small_text

_HOMES = {
    "heuristics": ("from_baal", "from_batchbald_redux"),
    "modal": ("to_modal",),
    "skactiveml": ("from_skactiveml", "to_skactiveml"),
    "small_text": ("to_small_text",),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(_loaded(home), name)
    raise AttributeError(f"module 'foresee.interop' has no attribute {name!r}")


def _loaded(home: str) -> Any:
    try:
        return import_module(f"foresee.interop.{home}")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != home:
            raise
        remedy = 'scikit-activeml is not installed: pip install "foresee[interop]"'
        raise ModuleNotFoundError(remedy, name=home) from None


def __dir__() -> list[str]:
    return __all__
