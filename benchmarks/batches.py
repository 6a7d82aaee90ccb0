"""How fast batches are chosen, beside straightforward versions of the same choice.

    python benchmarks/batches.py [--quick] [--neighbours]

One run measures everything, in turns, and takes the best of each: machines are noisy, ratios are
not. *: on fewer picks or candidates, scaled.
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from foresee import (
    Badge,
    Bait,
    BatchBALD,
    BatchMell,
    Coreset,
    Default,
    GreedyConditioning,
    MaxHerding,
    MeblPlusPlus,
    PowerMell,
    RelevantBadge,
    TopK,
    TopMell,
    TypiClust,
    UncertaintyHerding,
    margin,
    mell,
    mell_top_k,
)
from foresee.kernels import tiled
from foresee.strategies import batch
from foresee.strategies.drawspace import explained, target_gram
from foresee.types import Strategy, View
from scoring import peak_memory, seconds

T, C, L, M_ALL = 100, 10, 100, 5000
console = Console(width=130)


def predictions(n: int, t: int, c: int, spread: float = 0.5) -> Tensor:
    """Draws of a linear model on clustered inputs [n t c]."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    d = 32
    inputs = normal(50, d)[torch.randint(50, (n,), generator=generator)] + normal(n, d)
    weights = 2 * normal(d, c) + spread * normal(t, d, c)
    parts = [torch.einsum("nd,tdc->ntc", x, weights / d**0.5).softmax(2) for x in inputs.split(500)]
    return torch.cat(parts)


@dataclass(frozen=True)
class Held:
    """A posterior that is an array; inputs are row numbers."""

    probs: Tensor

    def predict(self, inputs: Any) -> Tensor:
        return self.probs[torch.from_numpy(inputs)]

    def point(self, inputs: Any) -> Any:
        raise NotImplementedError

    def embed(self, inputs: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Embedded(Held):
    """The same with point predictions and embeddings."""

    points: Tensor
    embeddings: Tensor

    def point(self, inputs: Any) -> Tensor:
        return self.points[torch.from_numpy(inputs)]

    def embed(self, inputs: Any) -> Tensor:
        return self.embeddings[torch.from_numpy(inputs)]


def view_of(probs: Tensor, n: int) -> View:
    """The first n rows are the pool, the others the validation set."""
    rows = np.arange(len(probs))
    return View(Held(probs), rows[:0], rows[:0], rows[:n], rows[n:])


# --- straightforward versions -----------------------------------------------------------------


def plain_greedy(pool: Tensor, val: Tensor, size: int) -> list[int]:
    """Greedy conditioning with all scores brought up to date after every pick; the picks."""
    rows, root = explained(pool), tiled.root(target_gram(val)).to(pool)
    n, c, t = rows.shape
    told, spread = rows @ root, 1.001 * torch.eye(c, dtype=pool.dtype).expand(n, c, c)
    cov, taken = torch.eye(t, dtype=pool.dtype), torch.zeros(n, dtype=torch.bool)
    picks = list[int]()
    for _ in range(size):
        scores = (torch.linalg.solve(spread, told) * told).sum((1, 2))
        best = int(scores.masked_fill(taken, -1).argmax())
        taken[best] = True
        picks.append(best)
        gain = torch.linalg.solve_triangular(
            torch.linalg.cholesky(spread[best]), rows[best] @ cov, upper=False
        ).T
        cov = cov - gain @ gain.T
        shared = rows @ gain
        told = told - shared @ (gain.T @ root)
        spread = spread - shared @ shared.mT
    return picks


def plain_seeding(pool: Tensor, val: Tensor, size: int) -> None:
    """k-means++ on the MEBL embedding with all distances brought up to date after every pick."""
    vectors = (explained(pool) @ tiled.root(target_gram(val)).float()).flatten(1)
    squares = vectors.square().sum(1)
    nearest = squares.clone()
    for _ in range(size):
        pick = int(torch.multinomial(nearest, 1))
        gap = squares + squares[pick] - 2 * (vectors @ vectors[pick])
        nearest = torch.minimum(nearest, gap.clamp_min_(0))
        nearest[pick] = 0


def plain_batch_mell(pool: Tensor, val: Tensor, size: int, samples: int) -> None:
    """Entropies of all triples (label vector, candidate, target), for every pick."""
    likelihood = torch.ones(1, T)
    entr = torch.special.entr
    for _ in range(size):
        scores = []
        for part in pool.split(max(1, (1 << 24) // (len(likelihood) * C * len(val) * C))):
            outcome = torch.einsum("st,ntc->nsct", likelihood, part) / T
            joint = torch.einsum("nsct,mtd->nscmd", outcome, val)
            scores.append(
                len(val) * entr(outcome.sum(3)).sum((1, 2)) - entr(joint).sum((1, 2, 3, 4))
            )
        pick = int(torch.cat(scores).argmax())
        likelihood = _extended(likelihood, pool[pick], samples)


def plain_batchbald(pool: Tensor, val: Tensor, size: int, samples: int) -> None:
    """Joint entropies of label vector and candidate, minus the noise, for every pick."""
    likelihood = torch.ones(1, T)
    noise = torch.special.entr(pool).sum(2).mean(1)
    for _ in range(size):
        parts = pool.split(max(1, (1 << 24) // (len(likelihood) * C)))
        joint = [torch.einsum("st,ntc->nsc", likelihood / T, part) for part in parts]
        scores = torch.cat([torch.special.entr(x).sum((1, 2)) for x in joint]) - noise
        likelihood = _extended(likelihood, pool[int(scores.argmax())], samples)


def _extended(likelihood: Tensor, probs: Tensor, samples: int) -> Tensor:
    longer = (likelihood[:, None] * probs.T).flatten(0, 1)
    return longer[torch.randperm(len(longer))[:samples]]


# --- tables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """A strategy and its plain version, and how many picks each is timed on."""

    ours: Strategy
    picks: int
    plain: Callable[[Tensor, Tensor, int], Any]
    plain_picks: int


def contests(size: int, few: int) -> list[Contest]:
    """Where a pick costs the same whatever came before, a few stand for all in large batches."""
    samples, shortlist = 16, max(256, size)
    small = size <= 100
    some = max(5, few)  # the first picks have fewer label vectors to deal with

    def batch_mell(pool: Tensor, val: Tensor, size: int) -> None:
        plain_batch_mell(pool[:shortlist], val[:L], size, samples)

    def batchbald(pool: Tensor, val: Tensor, size: int) -> None:
        plain_batchbald(pool, val, size, samples=64)

    return [
        Contest(GreedyConditioning(), size, plain_greedy, size if small else few),
        Contest(MeblPlusPlus(), size, plain_seeding, size if small else 10 * few),
        Contest(BatchMell(None, L, samples, shortlist), some, batch_mell, some),
        Contest(BatchBALD(), size if small else few, batchbald, size if small else few),
    ]


def bench_strategies(n: int, size: int, few: int, repeats: int) -> None:
    probs = predictions(n + M_ALL, T, C)
    view = view_of(probs, n)
    pool, val = probs[:n], probs[n:]
    table = Table(title=f"{size} of {n} points, c = {C}, {T} draws, {M_ALL} targets, {L} for MELL")
    for heading in ("strategy", "s", "plain s", "× faster", "MiB"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for contest in contests(size, few):
        pick = _picker(contest.ours, view, contest.picks)
        plain = _bind(contest.plain, pool, val, contest.plain_picks)
        _picker(contest.ours, view, 1)()  # loads what was compiled
        ours, theirs = zip(*((seconds(pick), seconds(plain)) for _ in range(repeats)), strict=True)
        scaled = [
            min(t) * size / k for t, k in ((ours, contest.picks), (theirs, contest.plain_picks))
        ]
        marks = ["" if k == size else " *" for k in (contest.picks, contest.plain_picks)]
        table.add_row(
            type(contest.ours).__name__,
            f"{scaled[0]:.2f}{marks[0]}",
            f"{scaled[1]:.1f}{marks[1]}",
            f"{scaled[1] / scaled[0]:.1f}",
            f"{peak_memory(_picker(contest.ours, view, min(contest.picks, 10)), 'cpu'):.0f}",
        )
    for strategy in (PowerMell(targets=L), TopK(mell, targets=L), TopMell(targets=L)):
        pick = _picker(strategy, view, size)
        pick()
        best = min(seconds(pick) for _ in range(repeats))
        table.add_row(
            repr(strategy).split("(")[0], f"{best:.2f}", "", "", f"{peak_memory(pick, 'cpu'):.0f}"
        )
    console.print(table)


def bench_many_draws(pools: list[int], t: int, m: int, plain_up_to: int, repeats: int) -> None:
    """GreedyConditioning where draws are many for the batch: 80 picks of growing pools."""
    size = 80
    table = Table(title=f"GreedyConditioning, {size} picks, c = {C}, {t} draws, {m} targets")
    for heading in ("candidates", "s", "plain s", "× faster", "same picks", "MiB"):
        table.add_column(heading, justify="right")
    for n in pools:
        probs = predictions(n + m, t, C)
        pick = _picker(GreedyConditioning(), view_of(probs, n), size)
        _picker(GreedyConditioning(), view_of(probs, n), 1)()
        order = np.random.default_rng(0).permutation(n)  # in which the strategy sees the pool
        plain = _bind(plain_greedy, probs[:n][order], probs[n:], size)
        slow, same = ["", ""], ""
        if n <= plain_up_to:
            runs = [(seconds(pick), seconds(plain)) for _ in range(repeats)]
            ours, theirs = map(min, zip(*runs, strict=True))
            slow = [f"{theirs:.1f}", f"{theirs / ours:.1f}"]
            same = f"{np.mean(pick() == order[plain()]):.0%}"
        else:
            ours = min(seconds(pick) for _ in range(repeats))
        table.add_row(f"{n}", f"{ours:.2f}", *slow, same, f"{peak_memory(pick, 'cpu'):.0f}")
    console.print(table)


def bench_bounds(shapes: list[tuple[int, int, int]], repeats: int) -> None:
    table = Table(title=f"the highest MELL by bounds, {T} draws")
    for heading in ("n", "targets", "c", "k", "scored", "s", "all s", "× faster"):
        table.add_column(heading, justify="right")
    for n, m, c in shapes:
        pool, val = predictions(n + m, T, c).split([n, m])
        mell(pool[:10], val)
        everything = min(seconds(_bind(mell, pool, val)) for _ in range(repeats))
        for k in (n // 1000, n // 100, n // 10):
            best = min(seconds(_bind(mell_top_k, pool, val, k)) for _ in range(repeats))
            share = mell_top_k(pool, val, k).share
            table.add_row(
                *map(str, (n, m, c, k)),
                f"{100 * share:.0f} %",
                f"{best:.2f}",
                f"{everything:.2f}",
                f"{everything / best:.1f}",
            )
    console.print(table)


def bench_neighbours(pools: list[int], repeats: int, d: int = 128, m: int = 1000) -> None:
    """What others choose by, beside BADGE: 80 of pools of embeddings, on one core."""
    size, labelled, threads = 80, 200, torch.get_num_threads()
    torch.set_num_threads(1)
    table = Table(
        title=f"{size} picks, c = {C}, d = {d}, {T} draws, {labelled} labelled, {m} targets, 1 core"
    )
    table.add_column("strategy")
    for n in pools:
        for heading in (f"s of {n}", "× BADGE", "MiB"):
            table.add_column(heading, justify="right")
    cells = dict[str, list[str]]()
    for n in pools:
        view = _embedded(n, labelled, m, d)
        found = dict[str, float]()
        for name, strategy in NEIGHBOURS.items():
            pick = _picker(strategy, view, size)
            if n == min(pools):
                pick()  # loads what was compiled
            times = list[float]()
            memory = [
                peak_memory(lambda: times.append(_cpu_seconds(pick)), "cpu")  # noqa: B023
                for _ in range(repeats if n < 10_000 else 1)
            ]
            found[name] = min(times)
            ratio = f"{found[name] / found['BADGE']:.1f}"
            cells.setdefault(name, []).extend([f"{min(times):.2f}", ratio, f"{max(memory):.0f}"])
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)
    torch.set_num_threads(threads)


def _cpu_seconds(work: Callable[[], Any]) -> float:
    """Of this process alone, whoever else is on the machine; on one core the time it takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


NEIGHBOURS: dict[str, Strategy] = {
    "BADGE": Badge(),
    "Coreset": Coreset(),
    f"RelevantBADGE, {L} targets": RelevantBadge(targets=L),
    "Margin": TopK(margin, targets=0),
    "MaxHerding": MaxHerding(),
    "UHerding": UncertaintyHerding(),
    "UHerding of 4000": UncertaintyHerding(targets=4000),
    "TargetHerding": MaxHerding(cover="target"),
    "Default": Default(),
    "TypiClust": TypiClust(),
    "BAIT": Bait(),
    "BAIT, 32 axes": Bait(axes=32),
    "TargetBAIT": Bait(focus="target"),
}


def _embedded(n: int, labelled: int, m: int, d: int) -> View:
    """Pool, labelled points and targets with embeddings as a network's ReLU leaves them."""
    total = n + labelled + m
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(50, d, generator=generator)
    rows = centres[torch.randint(50, (total,), generator=generator)]
    rows = (rows + torch.randn(total, d, generator=generator)).relu_()
    pool, known, val = np.split(np.arange(total), [n, n + labelled])
    probs = predictions(total, T, C)
    return View(Embedded(probs, probs.mean(1), rows), known, known * 0, pool, val)


def bench_samples(repeats: int) -> None:
    """Gains of a fourth point: with sampled label vectors against all thousand."""
    pool, val = predictions(300, T, C).split([200, L])

    def gains(samples: int, seed: int) -> Tensor:
        beliefs, rng = batch.prior(pool), np.random.default_rng(seed)
        for i in range(3):
            beliefs = batch.after(beliefs, pool[i], samples, rng)
        return batch.target_information(pool, val, beliefs)

    exact = gains(C**3, 0)
    table = Table(title="BatchMell: sampled label vectors against all, fourth of 200 points")
    for heading in ("samples", "error / sd", "gain of its pick / best"):
        table.add_column(heading, justify="right")
    for samples in (4, 16, 64, 256):
        runs = [gains(samples, seed) for seed in range(repeats)]
        error = np.mean([float((run - exact).std() / exact.std()) for run in runs])
        regret = np.mean([float(exact[run.argmax()] / exact.max()) for run in runs])
        table.add_row(str(samples), f"{error:.2f}", f"{regret:.3f}")
    console.print(table)


def _bind(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: function(*args)


def _picker(strategy: Strategy, view: View, size: int) -> Callable[[], Any]:
    return lambda: strategy(view, size, np.random.default_rng(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller, a few minutes")
    parser.add_argument("--neighbours", action="store_true", help="these alone")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.manual_seed(0)
    console.print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    bench_neighbours([800] if quick else [800, 44_800], repeats=1 if quick else 2)
    if arguments.neighbours:
        return
    bench_strategies(800, 80, few=5, repeats=2 if quick else 5)
    bench_strategies(*((5_000, 500, 5) if quick else (25_000, 2_500, 10)), repeats=1)
    if quick:
        bench_many_draws([800], t=300, m=1000, plain_up_to=800, repeats=1)
    else:
        bench_many_draws([800, 4_000, 10_000], t=1000, m=1000, plain_up_to=4_000, repeats=2)
    bench_bounds(
        [(2_000, 100, 10), (2_000, 100, 100)]
        if quick
        else [(25_000, 100, 10), (25_000, 1_000, 10), (10_000, 100, 100)],
        repeats=1 if quick else 2,
    )
    bench_samples(5 if quick else 20)
    console.print(
        "*: on fewer picks, scaled.  plain: everything brought up to date after every pick; for "
        "BatchMell and BatchBALD differences of entropies.  MiB: peak extra memory, of 10 picks."
    )


if __name__ == "__main__":
    main()
