"""How the cost of scores and strategies grows: CPU seconds against each size, on one core.

    python benchmarks/complexity.py [--quick] [--out docs/theory]

Each size is multiplied step by step while the others stay; the exponent is the slope of the best
times on log-log axes. Beside it stands the slope of the operations that the formulas of
docs/theory.md count over the same sizes. Machines are noisy: sizes take turns, the best counts, and
the clock stands still while others have the core. Under two minutes; ``--quick`` under one.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

from foresee import Badge, Coreset, mebl, mell, mezl
from foresee.types import View
from scoring import Arrays
from theory import COLOURS, new_figure, plain, save, slope


@dataclass(frozen=True)
class Sizes:
    """Sizes of the inputs; ``m`` and ``t`` are for scores, ``picks`` and ``d`` for strategies."""

    n: int
    c: int
    m: int = 0
    t: int = 0
    picks: int = 0
    d: int = 0


Work: TypeAlias = Callable[[], Any]


def draws(n: int, t: int, c: int) -> Tensor:
    return torch.randn(n, t, c).mul_(0.7).add_(2 * torch.randn(n, 1, c)).softmax(2)


def scoring(score: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Sizes], Work]:
    def prepare(s: Sizes) -> Work:
        torch.manual_seed(0)
        pool, val = draws(s.n, s.t, s.c), draws(s.m, s.t, s.c)
        return lambda: score(pool, val)

    return prepare


def picking(strategy: Any) -> Callable[[Sizes], Work]:
    def prepare(s: Sizes) -> Work:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((200, s.d), dtype=np.float32)
        features = centres[rng.integers(200, size=s.n)]
        features += rng.standard_normal((s.n, s.d), dtype=np.float32)
        logits = features @ rng.standard_normal((s.d, s.c), dtype=np.float32) / s.d**0.5
        probs = torch.from_numpy(logits).mul_(2).softmax(1).numpy()
        rows = np.arange(s.n)
        view = View(Arrays(probs, features), rows[:100], rows[:100] % s.c, rows, rows[:10])
        return lambda: strategy(view, s.picks, np.random.default_rng(0))

    return prepare


@dataclass(frozen=True)
class Subject:
    """What is measured: ``base`` sizes, how far each grows, and the operations it should take."""

    name: str
    prepare: Callable[[Sizes], Work]
    base: Sizes
    steps: dict[str, int]
    operations: Callable[[Sizes], float]

    def sweep(self, axis: str, fewer: int) -> list[Sizes]:
        """Doublings of one size."""
        first = getattr(self.base, axis)
        steps = max(3, self.steps[axis] - fewer)
        return [replace(self.base, **{axis: first << step}) for step in range(steps)]


SUBJECTS = (
    Subject(
        "MELL",
        scoring(mell),
        Sizes(n=1000, m=100, t=100, c=10),
        {"n": 5, "m": 5, "t": 4, "c": 4},
        lambda s: s.n * s.m * s.t * s.c**2,
    ),
    Subject(
        "MEZL",
        scoring(mezl),
        Sizes(n=1000, m=100, t=100, c=10),
        {"n": 5, "m": 5, "t": 4, "c": 4},
        lambda s: s.n * s.m * s.t * s.c**2,
    ),
    Subject(
        "MEBL",
        scoring(mebl),
        Sizes(n=4000, m=100, t=100, c=10),
        {"n": 4, "m": 5, "t": 4, "c": 4},
        lambda s: (s.n + s.m) * s.c * s.t**2,
    ),
    Subject(
        "BADGE",
        picking(Badge()),
        Sizes(n=4000, picks=200, d=128, c=10),
        {"n": 5, "picks": 4, "d": 5, "c": 4},
        lambda s: s.n * s.picks * (s.d + s.c),
    ),
    Subject(
        "Coreset",
        picking(Coreset()),
        Sizes(n=4000, picks=200, d=128, c=10),
        {"n": 5, "picks": 4, "d": 5},
        lambda s: s.n * s.picks * s.d,
    ),
)


@dataclass(frozen=True)
class Curve:
    """Best seconds over the sizes of one axis."""

    subject: str
    axis: str
    sizes: list[int]
    seconds: list[float]
    expected: float

    @property
    def exponent(self) -> float:
        return slope(self.sizes, self.seconds)


def measure(subject: Subject, axis: str, quick: bool) -> Curve:
    sweep = subject.sweep(axis, fewer=1 if quick else 0)
    work = [subject.prepare(sizes) for sizes in sweep]
    best = [np.inf] * len(work)
    rounds, end = 0, time.process_time() + (1 if quick else 4)
    while rounds < 3 or time.process_time() < end:
        rounds += 1
        for position, run in enumerate(work):
            start = time.process_time()
            run()
            best[position] = min(best[position], time.process_time() - start)
    numbers = [getattr(sizes, axis) for sizes in sweep]
    expected = slope(numbers, [subject.operations(sizes) for sizes in sweep])
    return Curve(subject.name, axis, numbers, best, expected)


def table(curves: list[Curve]) -> Table:
    axes = ("n", "m", "t", "c", "picks", "d")
    grid = Table(title="exponent of CPU seconds (of operations), one core")
    grid.add_column("")
    for axis in axes:
        grid.add_column(axis, justify="right")
    for subject in SUBJECTS:
        cells = {
            curve.axis: f"{curve.exponent:.2f} ({curve.expected:.2f})"
            for curve in curves
            if curve.subject == subject.name
        }
        grid.add_row(subject.name, *(cells.get(axis, "") for axis in axes))
    return grid


def figure(curves: list[Curve]) -> Figure:
    rows = {
        ("MELL", "MEZL", "MEBL"): ("n", "m", "t", "c"),
        ("BADGE", "Coreset"): ("n", "picks", "d", "c"),
    }
    titles = {"n": "pool points n", "m": "targets m", "t": "draws t", "c": "classes c"}
    titles |= {"picks": "picks", "d": "features d"}
    picture = new_figure(9.6, 4.6)
    grid = picture.subplots(2, 4, sharey="row")
    for row, (names, axes_of_row) in zip(grid, rows.items(), strict=True):
        for axes, axis in zip(row, axes_of_row, strict=True):
            shown = [curve for curve in curves if curve.axis == axis and curve.subject in names]
            for curve in shown:
                label = f"{curve.subject} {curve.exponent:.1f}"
                colour = COLOURS[curve.subject]
                axes.loglog(curve.sizes, curve.seconds, "o-", ms=3.5, color=colour, label=label)
            ticks = shown[0].sizes[::2]
            axes.set_xticks(ticks, ticks)
            axes.minorticks_off()
            axes.set_xlabel(titles[axis])
            plain(axes)
            axes.legend(frameon=False, loc="upper left")
        low, high = row[0].get_ylim()
        row[0].set_ylim(low, 8 * high)  # room for the legends
        row[0].set_ylabel("CPU seconds")
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, no figure")
    parser.add_argument("--out", type=Path, default=Path("docs/theory"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    curves = [measure(s, axis, args.quick) for s in SUBJECTS for axis in s.steps]
    console = Console(width=110)
    console.print(table(curves))
    console.print(f"{time.perf_counter() - start:.0f} s")
    if not args.quick:
        save(figure(curves), args.out / "complexity.png")


if __name__ == "__main__":
    main()
