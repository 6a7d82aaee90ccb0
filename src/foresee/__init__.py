"""Which examples, if labelled, would most reduce my model's error on the data I care about?

Names are loaded on first use: importing foresee is instant, importing torch is not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.errors import DrawsWarning as DrawsWarning, InputError as InputError
    from foresee.learner import (
        SKIP as SKIP,
        UNSURE as UNSURE,
        Batch as Batch,
        Frozen as Frozen,
        Learner as Learner,
    )
    from foresee.reading.sources import read as read
    from foresee.recipe import Recipe as Recipe
    from foresee.scores import (
        Decomposition as Decomposition,
        bald as bald,
        decompose as decompose,
        eer as eer,
        entropy as entropy,
        entropy_mc as entropy_mc,
        margin as margin,
        mebl as mebl,
        mell as mell,
        mezl as mezl,
        promise as promise,
    )
    from foresee.strategies import (
        Badge as Badge,
        Bait as Bait,
        BatchBALD as BatchBALD,
        BatchMell as BatchMell,
        Coreset as Coreset,
        Default as Default,
        GreedyConditioning as GreedyConditioning,
        MaxHerding as MaxHerding,
        MeblPlusPlus as MeblPlusPlus,
        PowerMell as PowerMell,
        Random as Random,
        RelevantBadge as RelevantBadge,
        RetrainingEER as RetrainingEER,
        TopK as TopK,
        TopMell as TopMell,
        TypiClust as TypiClust,
        UncertaintyHerding as UncertaintyHerding,
        default_strategy as default_strategy,
        herd as herd,
        mell_top_k as mell_top_k,
    )
    from foresee.types import View as View

_HOMES = {
    "errors": ("DrawsWarning", "InputError"),
    "learner": ("Batch", "Frozen", "Learner", "SKIP", "UNSURE"),
    "recipe": ("Recipe",),
    "scores": (
        "Decomposition",
        "bald",
        "decompose",
        "eer",
        "entropy",
        "entropy_mc",
        "margin",
        "mebl",
        "mell",
        "mezl",
        "promise",
    ),
    "reading.sources": ("read",),
    "strategies": (
        "Badge",
        "Bait",
        "BatchBALD",
        "BatchMell",
        "Coreset",
        "Default",
        "GreedyConditioning",
        "MaxHerding",
        "MeblPlusPlus",
        "PowerMell",
        "Random",
        "RelevantBadge",
        "RetrainingEER",
        "TopK",
        "TopMell",
        "default_strategy",
        "TypiClust",
        "UncertaintyHerding",
        "herd",
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
