"""Which examples, if labelled, would most reduce my model's error on the data I care about?

Names are loaded on first use: importing foresee is instant, importing torch is not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.errors import InputError as InputError
    from foresee.scores import Decomposition as Decomposition
    from foresee.scores import bald as bald
    from foresee.scores import decompose as decompose
    from foresee.scores import eer as eer
    from foresee.scores import entropy as entropy
    from foresee.scores import entropy_mc as entropy_mc
    from foresee.scores import mebl as mebl
    from foresee.scores import mell as mell
    from foresee.scores import mezl as mezl
    from foresee.scores import promise as promise
    from foresee.strategies import Badge as Badge
    from foresee.strategies import BatchBALD as BatchBALD
    from foresee.strategies import BatchMell as BatchMell
    from foresee.strategies import Coreset as Coreset
    from foresee.strategies import GreedyConditioning as GreedyConditioning
    from foresee.strategies import MeblPlusPlus as MeblPlusPlus
    from foresee.strategies import PowerMell as PowerMell
    from foresee.strategies import Random as Random
    from foresee.strategies import RetrainingEER as RetrainingEER
    from foresee.strategies import TopK as TopK
    from foresee.strategies import TopMell as TopMell
    from foresee.strategies import mell_top_k as mell_top_k
    from foresee.types import View as View

_HOMES = {
    "errors": ("InputError",),
    "scores": (
        "Decomposition",
        "bald",
        "decompose",
        "eer",
        "entropy",
        "entropy_mc",
        "mebl",
        "mell",
        "mezl",
        "promise",
    ),
    "strategies": (
        "Badge",
        "BatchBALD",
        "BatchMell",
        "Coreset",
        "GreedyConditioning",
        "MeblPlusPlus",
        "PowerMell",
        "Random",
        "RetrainingEER",
        "TopK",
        "TopMell",
        "mell_top_k",
    ),
    "types": ("View",),
}

__version__ = "0.1.0"
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"foresee.{home}"), name)
    raise AttributeError(f"module 'foresee' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
