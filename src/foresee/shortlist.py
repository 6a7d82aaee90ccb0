"""The few rows of a large pool that a batch is chosen from, kept while all of it passes by."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foresee import arrays
from foresee.seeding import generator


class Scored(NamedTuple):
    """Some rows of the pool: their positions [k], their scores [k], and which are copies [k]."""

    positions: NDArray[np.int64]
    scores: NDArray[Any]
    copies: NDArray[np.bool_]


@dataclass
class Shortlist:
    """The rows with the highest scores of all that pass by, and some others by chance.

    Equal scores are ordered by ``keys``, numbers that are drawn for the rows, then by position.
    Rows of one kind, whose keys are equal too, count as one: the first by that order; the others
    are its copies.

    Args:
        best: how many of the highest scores are kept.
        others: how many of the rest are kept, those with the lowest keys.
        copies: so many copies are kept, at most best + others, while there are fewer kinds.
        least, last: rows with a lower score and a higher key are known not to be kept.

    Whatever the pieces, and whatever their order, the same rows are kept: a shortlist of parts is
    the shortlist of the shortlists of the parts.

    >>> short = Shortlist(best=1, others=0)
    >>> for start in (2, 0):
    ...     values = np.array([0.1, 0.3, 0.2, 0.0])[start : start + 2]
    ...     short.add(np.arange(start, start + 2), values, np.zeros(2))
    >>> short.sorted().positions, short.sorted().scores
    (array([1]), array([0.3]))
    """

    best: int
    others: int
    copies: int = 0
    least: float = -np.inf
    last: float = np.inf
    rows: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(
        self,
        positions: NDArray[np.int64],
        scores: NDArray[Any],
        keys: NDArray[np.float64],
        kinds: NDArray[np.uint64] | None = None,
        **along: NDArray[Any],
    ) -> None:
        """Consider rows [n]; ``kinds`` None: all differ. ``along`` [n …] goes with them."""
        kinds = positions.view(np.uint64) if kinds is None else kinds
        new = {"positions": positions, "scores": scores, "keys": keys, "kinds": kinds, **along}
        some = (scores >= self.least) | (keys <= self.last)
        parts = [{name: column[some] for name, column in new.items()}]
        parts += [self.rows] if self.rows else []
        self.rows = {name: np.concatenate([part[name] for part in parts]) for name in new}
        first, copies = self._kinds()
        # Of the lowest keys some may be among the best, now or later.
        lowest = self._lowest(first)[: self.best + self.others if self.others else 0]
        if len(first) >= self.best + self.others:
            self.least = float(self.rows["scores"][first[self.best - 1]])
            self.last = float(self.rows["keys"][lowest[-1]]) if self.others else -np.inf
        keep = np.unique(np.concatenate([first[: self.best], lowest, copies]))
        self.rows = {name: column[keep] for name, column in self.rows.items()}

    def sorted(self) -> Scored:
        """The shortlist, the highest score first and copies last."""
        first, copies = self._kinds()
        best = first[: self.best]
        rest = self._lowest(first)
        rest = rest[~np.isin(rest, best)][: self.others]
        first = first[np.isin(first, np.concatenate([best, rest]))]
        order = np.concatenate([first, copies])
        is_copy = np.arange(len(order)) >= len(first)
        return Scored(self.rows["positions"][order], self.rows["scores"][order], is_copy)

    def _lowest(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.lexsort((self.rows["positions"][which], self.rows["keys"][which]))
        return which[order]

    def _kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first row of each kind, and the copies that may be needed, the best first."""
        rows = self.rows
        order = np.lexsort((rows["positions"], rows["keys"], -rows["scores"]))
        at = np.unique(rows["kinds"][order], return_index=True)[1]
        copies = np.delete(order, at)[: self.copies if len(at) < self.copies else 0]
        return order[np.sort(at)], copies


def ties(seed: int, start: int, n: int) -> NDArray[np.float64]:
    """The keys [n] of rows from position ``start`` on, by chance; the same in any piece."""
    rng: Any = generator(seed, "ties")
    rng.bit_generator.advance(start)
    return rng.random(n)


def kinds_of(rows: NDArray[Any], seed: int) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """The keys [n] of rows, by chance, and their kinds [n]: both by their predictions alone."""
    kinds = _kinds(rows)
    return spread(kinds, seed), kinds


def spread(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Keys [n] by chance for numbers [n] that stand for rows: a function of each and the seed."""
    odd = generator(seed, "kinds").integers(2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (numbers * odd >> np.uint64(11)) / 2.0**53


def _kinds(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for every row, the same for rows that are the same in float16."""
    halves = arrays.numpy(arrays.tensor(rows).to(torch.float16).flatten(1)).view(np.uint16)
    factors = generator(0, "prints").integers(2**64, size=halves.shape[1], dtype=np.uint64)
    return np.einsum("nk,k->n", halves, factors)
