"""Ask and tell on one's own data: which examples to label next, and a model of what was told.

Names are loaded on first use: whoever only keeps questions and answers waits for no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.learner.learner import Card as Card, Learner as Learner
    from foresee.learner.models import Frozen as Frozen
    from foresee.learner.record import (
        SKIP as SKIP,
        UNSURE as UNSURE,
        Batch as Batch,
        Told as Told,
    )

_HOMES = {
    "learner": ("Card", "Learner"),
    "models": ("Frozen",),
    "record": ("SKIP", "UNSURE", "Batch", "Told"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"foresee.learner.{home}"), name)
    raise AttributeError(f"module 'foresee.learner' has no attribute {name!r}")
