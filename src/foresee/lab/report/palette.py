"""One colour per method, the same in every plot.

The hues are those of Okabe and Ito, which people with any kind of colour vision tell apart.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

from foresee.lab.report import published


class Ink(NamedTuple):
    """A hue as it is drawn on a light and on a dark ground."""

    light: str
    dark: str


class Pen(NamedTuple):
    """How the curve of a method is drawn: the number of its ink, and its dashes in pixels."""

    ink: int
    dash: tuple[int, ...] = ()


INKS = (
    Ink("#d55e00", "#ff8f45"),  # MELL
    Ink("#e69f00", "#ffc14d"),  # MEZL
    Ink("#808080", "#969696"),  # Random
    Ink("#0072b2", "#4a9fe0"),  # BALD
    Ink("#56b4e9", "#a3dcff"),  # Entropy_MC
    Ink("#cc79a7", "#ef9fcb"),  # Entropy
    Ink("#009e73", "#2fcf9f"),  # Coreset
    Ink("#1f2023", "#f4f4f2"),  # BADGE
    Ink("#a39100", "#f0e442"),
)
STAGE_INKS = {
    "train": Ink("#b9bbbf", "#5b5e64"),
    "test": Ink("#d9dadc", "#43464b"),
    "sample": Ink("#0f4c5c", "#2b8ba3"),
    "score": Ink("#3a93a8", "#67c3d6"),
    "select": Ink("#8cc7d2", "#b3e4ec"),
    "promise": Ink("#d8b365", "#d8b365"),
}
_DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3))


def pens(methods: Sequence[str]) -> dict[str, Pen]:
    """Give the paper's methods their own inks, and the others what is left, then dashes.

    >>> pens(["BALD", "mine", "MELL"])
    {'BALD': Pen(ink=3, dash=()), 'mine': Pen(ink=1, dash=()), 'MELL': Pen(ink=0, dash=())}
    """
    own = {method: Pen(i) for i, method in enumerate(published.order("method"))}
    taken = {own[method] for method in methods if method in own}
    every = [Pen(ink, dash) for dash in _DASHES for ink in range(len(INKS))]
    free = cycle([pen for pen in every if pen not in taken])
    return {method: own[method] if method in own else next(free) for method in methods}
