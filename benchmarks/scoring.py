"""How fast scores and strategies are, beside the machine's ceilings and the plain versions.

    python benchmarks/scoring.py [--quick] [--device cuda]

One run measures everything, in turns, and takes the best of each: machines are noisy, ratios are
not. Floor = matrix product at the best rate seen + one logarithm per entry at the best rate seen.
"""

import argparse
import ctypes
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from foresee import Badge, Coreset, bald, mebl, mell, mezl
from foresee.kernels import reference
from foresee.types import View

T, M, M_ALL = 100, 100, 5000
console = Console(width=130)


def seconds(work: Callable[[], Any], device: str = "cpu") -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# --- ceilings ---------------------------------------------------------------------------------


@dataclass
class Ceilings:
    """The best rates seen so far: they are measured again beside every score."""

    device: str
    gemm: float = 0.0  # float32 operations per second
    log: float = 0.0  # float32 logarithms per second

    def measure(self) -> None:
        for rows, columns, inner in ((2000, 1000, T), (1024, 1024, 1024)):
            a, b = (torch.rand(k, inner, device=self.device) for k in (rows, columns))
            out = torch.empty(rows, columns, device=self.device)
            work = _bind(torch.mm, a, b.T, out=out)
            best = min(seconds(work, self.device) for _ in range(15))
            self.gemm = max(self.gemm, 2 * rows * columns * inner / best)
        self.log = max(self.log, self._log_rate())

    def _log_rate(self) -> float:
        if self.device == "cuda":
            x = torch.rand(1 << 28, device="cuda")
            return x.numel() / min(seconds(x.log, "cuda") for _ in range(5))
        threads, size, repeats = torch.get_num_threads(), 1 << 15, 200

        def one(_: int) -> None:
            x = np.full(size, 0.7, np.float32)
            out = np.empty_like(x)
            for _ in range(repeats):
                np.log(x, out=out)

        with ThreadPoolExecutor(threads) as pool:
            best = min(seconds(lambda: list(pool.map(one, range(threads)))) for _ in range(5))
        return threads * size * repeats / best


def _bind(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


# --- straightforward versions -----------------------------------------------------------------


def _joint(pool: Tensor, val: Tensor) -> Tensor:
    """Pr(Y_i = c, Y_j = c') as one product [n c m c']."""
    n, t, c = pool.shape
    product = pool.transpose(1, 2).reshape(n * c, t) @ val.transpose(1, 2).reshape(-1, t).T
    return (product / t).view(n, c, len(val), c)


def plain_mell(pool: Tensor, val: Tensor) -> Tensor:
    """m H(Y_i) − Σ_j H(Y_i, Y_j) + Σ_j H(Y_j), a difference of entropies."""
    entr = torch.special.entr
    marginal = entr(pool.mean(1)).sum(1) + entr(val.mean(1)).sum(1).mean()
    return marginal - entr(_joint(pool, val)).sum((1, 2, 3)) / len(val)


def plain_mezl(pool: Tensor, val: Tensor) -> Tensor:
    return (_joint(pool, val).amax(3).sum((1, 2)) - val.mean(1).amax(1).sum()) / len(val)


def plain_mebl(pool: Tensor, val: Tensor) -> Tensor:
    mean, other = pool.mean(1), val.mean(1)
    difference = _joint(pool, val) - mean[:, :, None, None] * other
    return (difference.square_() / mean[:, :, None, None]).sum((1, 2, 3)) / len(val)


def plain_bald(pool: Tensor, val: Tensor) -> Tensor:
    entr = torch.special.entr
    return entr(pool.mean(1)).sum(1) - entr(pool).sum(2).mean(1)


def by_chunks(score: Callable[[Tensor, Tensor], Tensor], pool: Tensor, val: Tensor) -> Tensor:
    """In the chunk size that suits the plain versions best: about 4 million joint entries."""
    rows = max(1, (1 << 22) // (len(val) * pool.shape[2] ** 2))
    return torch.cat([score(part, val) for part in pool.split(rows)])


# --- scores -----------------------------------------------------------------------------------


def draws(n: int, c: int, device: str) -> Tensor:
    noise = torch.randn(n, T, c, device=device)
    return noise.mul_(0.7).add_(2 * torch.randn(n, 1, c, device=device)).softmax(2)


def bench_scores(shapes: list[tuple[int, int]], device: str, repeats: int) -> None:
    ceilings = Ceilings(device)
    ceilings.measure()
    for n, c in shapes:
        table = Table(title=f"n = {n}, m = {M}, t = {T}, c = {c}, float32 on {device}")
        for heading in ("score", "s", "× floor", "plain s", "× faster", "MiB", "overlap"):
            table.add_column(heading, justify="left" if heading == "score" else "right")
        torch.manual_seed(c)
        pool, val = draws(n, c, device), draws(M, c, device)
        everything = val if c > 10 else draws(M_ALL, c, device)
        entries = n * M * c * c
        rows = [
            ("MELL", mell, plain_mell, val, 2 * T * entries, entries, reference.log_risk),
            ("MEZL", mezl, plain_mezl, val, 2 * T * entries, 0, reference.zero_one_risk),
            (
                f"MEBL, m = {len(everything)}",
                mebl,
                plain_mebl,
                everything,
                2 * T * T * c * (n + len(everything)),
                0,
                reference.brier_risk,
            ),
            ("BALD", bald, plain_bald, val, 0, n * T * c, None),
        ]
        for name, score, plain, targets, flops, logs, risk in rows:
            few = pool[
                : max(
                    20,
                    min(
                        n,
                        int(2.5e8 if c == 10 and len(targets) == M else 2e7)
                        // (len(targets) * c * c),
                    ),
                )
            ]
            ours, theirs = [], []
            once = seconds(_bind(score, pool, targets), device)
            for _ in range(repeats if once > 1 else 2 * repeats):
                for _ in range(2):  # the second time its data and threads are warm again
                    ours.append(seconds(_bind(score, pool, targets), device))
                theirs.append(seconds(_bind(by_chunks, plain, few, targets), device))
                ceilings.measure()
            memory = peak_memory(_bind(score, pool, targets), device)
            # Read the ceilings after the runs they belong to: the best rate is the floor.
            floor = flops / ceilings.gemm + logs / ceilings.log
            scaled = min(theirs) * n / len(few)
            table.add_row(
                name,
                f"{min(ours):.3f}",
                f"{min(ours) / floor:.2f}",
                f"{scaled:.2f}" + ("" if len(few) == n else " *"),
                f"{scaled / min(ours):.1f}",
                f"{memory:.0f}",
                f"{overlap(score, risk, pool[: 300 if c <= 10 else 50], targets):.2f}",
            )
        console.print(table)
    console.print(
        f"ceilings: {ceilings.gemm / 1e9:.0f} GFLOP/s, {ceilings.log / 1e9:.2f} G log/s.  "
        "*: on fewer rows, scaled.  MiB: peak extra memory.  overlap: of the top 10 % of 300 "
        "points (50 where c > 10) with the float64 reference."
    )


def peak_memory(work: Callable[[], Any], device: str) -> float:
    """MiB above what was in use before."""
    if device == "cuda":
        allocated = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # give back what earlier calls left for reuse
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # Linux: forget the peak so far
    before = _status("VmRSS")
    work()
    return max(0.0, (_status("VmHWM") - before) / 1024)


def _status(key: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(key))


def overlap(score: Any, risk: Any, pool: Tensor, val: Tensor) -> float:
    p, v = (x[:400].double().cpu().numpy() for x in (pool, val))
    if risk is None:
        exact = reference.bald(p)
    else:
        parts = np.array_split(p, 60 if p.shape[2] > 10 else 6)
        exact = np.concatenate([reference.expected_loss_reduction(x, v, risk) for x in parts])
    got = score(pool, val[:400]).cpu().numpy()
    k = len(p) // 10
    return len(set(np.argsort(-got)[:k]) & set(np.argsort(-exact)[:k])) / k


# --- strategies -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """A posterior that is two arrays; inputs are row numbers."""

    probs: np.ndarray
    embedding: np.ndarray

    def predict(self, inputs: Any) -> Any:
        raise NotImplementedError

    def point(self, inputs: Any) -> Any:
        return self.probs[inputs]

    def embed(self, inputs: Any) -> Any:
        return self.embedding[inputs]


def plain_coreset(view: View, size: int) -> None:
    """Farthest first, all distances up to date after every pick."""
    x = torch.from_numpy(view.posterior.embed(view.pool))
    centres = torch.from_numpy(view.posterior.embed(view.labelled))
    nearest = torch.cdist(x, centres).amin(1).square_()
    norms = x.square().sum(1)
    for _ in range(size):
        pick = int(nearest.argmax())
        nearest = torch.minimum(nearest, norms + norms[pick] - 2 * (x @ x[pick]))


def plain_badge(view: View, size: int) -> None:
    """k-means++ on factorised gradients, all distances up to date after every pick."""
    p = torch.from_numpy(view.posterior.point(view.pool))
    h = torch.from_numpy(view.posterior.embed(view.pool))
    r = p - torch.nn.functional.one_hot(p.argmax(1), p.shape[1])
    norms = r.square().sum(1) * h.square().sum(1)
    nearest = torch.full_like(norms, torch.inf)
    pick = 0
    for _ in range(size):
        gap = norms + norms[pick] - 2 * (r @ r[pick]) * (h @ h[pick])
        nearest = torch.minimum(nearest, gap.clamp_min_(0))
        pick = int(torch.multinomial(nearest, 1))


def bench_strategies(n: int, d: int, c: int, size: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, d), dtype=np.float32)
    features = centres[rng.integers(200, size=n)] + rng.standard_normal((n, d), dtype=np.float32)
    logits = features @ rng.standard_normal((d, c), dtype=np.float32) / d**0.5
    probs = torch.from_numpy(logits).mul(2).softmax(1).numpy()
    rows = np.arange(n)
    view = View(Arrays(probs, features), rows[:500], rows[:500] % c, rows[500:], rows[:10])
    table = Table(title=f"strategies, N = {n}, d = {d}, c = {c}, {size} picks, one core")
    for heading in ("strategy", "s", "plain s", "× faster", "MiB"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for strategy, plain in ((Coreset(), plain_coreset), (Badge(), plain_badge)):
        pick = _bind(lambda s: s(view, size, np.random.default_rng(0)), strategy)
        ours, theirs = [], []
        for _ in range(repeats):
            ours.append(seconds(pick))
            theirs.append(seconds(_bind(plain, view, size)))
        table.add_row(
            type(strategy).__name__,
            f"{min(ours):.2f}",
            f"{min(theirs):.2f}",
            f"{min(theirs) / min(ours):.1f}",
            f"{peak_memory(pick, 'cpu'):.0f}",
        )
    torch.set_num_threads(threads)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller shapes, under a minute")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    torch.manual_seed(0)
    console.print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    if args.quick:
        bench_scores([(25_000, 2), (25_000, 10), (500, 100)], args.device, repeats=2)
    else:
        shapes = [(25_000, 2), (25_000, 10), (25_000, 100), (5_000, 182), (800, 10)]
        bench_scores(shapes, args.device, repeats=3)
    if args.device == "cpu":
        bench_strategies(25_000, 512, 10, 500 if args.quick else 2500, 1 if args.quick else 2)


if __name__ == "__main__":
    main()
