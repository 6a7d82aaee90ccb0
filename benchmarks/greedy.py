"""GreedyConditioning beside the plain version of the same choice, and beside another checkout.

    python benchmarks/greedy.py [--before DIR] [--quick]

80 picks of 800 and of 4000 points by 1000 draws, c = 10, 1000 targets, with one thread and with
two. Plain: every score and covariance brought up to date after every pick, in float64. DIR holds an
older version of foresee (`git worktree add DIR COMMIT`). Every run has a process of its own, which
makes the same choice (plain: of two points) before the clock starts, and the clock stops while
predictions are copied, as `foresee run` counts selection; the versions take turns, and the best
time of each counts. same picks: the share that the plain version picks, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

C, M, SIZE = 10, 1000, 80
HERE = Path(__file__).parent
console = Console(width=110)


def choose(probs: Any, size: int, plain: bool) -> tuple[float, list[int]]:
    """Seconds and picks; the first rows are the pool, the last ``M`` the targets."""
    n = len(probs) - M
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    if plain:
        from batches import plain_greedy

        order = rng.permutation(n)  # in which the strategy sees the pool
        pool, val = probs[:n][order].double(), probs[n:].double()
        picks = order[plain_greedy(pool, val, size)]
        return time.perf_counter() - start, picks.tolist()
    from foresee import GreedyConditioning, View

    copying = []

    def predict(inputs: Any) -> Any:
        begin = time.perf_counter()
        copied = probs[torch.from_numpy(inputs)]
        copying.append(time.perf_counter() - begin)
        return copied

    rows = np.arange(len(probs))
    view = View(SimpleNamespace(predict=predict), rows[:0], rows[:0], rows[:n], rows[n:])
    picks = GreedyConditioning()(view, size, rng)
    return time.perf_counter() - start - sum(copying), picks.tolist()


def child(file: str, plain: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    probs = torch.from_numpy(np.load(file))
    choose(probs, 2 if plain else SIZE, plain)
    print(json.dumps(choose(probs, SIZE, plain)))


def run(tree: Path, file: Path, plain: bool, threads: int) -> tuple[float, list[int]]:
    """Seconds and picks of the foresee in this tree, or of the plain version."""
    path = os.pathsep.join(map(str, (tree / "src", HERE)))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    request = json.dumps([str(file), plain, threads])
    command = [sys.executable, "-W", "ignore", __file__, "--child", request]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    seconds, picks = json.loads(done.stdout.splitlines()[-1])
    return seconds, picks


def compare(n: int, t: int, before: Path | None, repeats: int) -> None:
    from batches import predictions

    table = Table(title=f"GreedyConditioning, {SIZE} of {n}, {t} draws, c = {C}, {M} targets")
    for heading in ("threads", "version", "s", "× ours", "same picks"):
        table.add_column(heading, justify="left" if heading == "version" else "right")
    trees = {"ours": (HERE.parent, False), "plain": (HERE.parent, True)}
    if before:
        trees["before"] = (before, False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probs.npy"
        np.save(file, predictions(n + M, t, C).numpy())
        for threads in (1, 2):
            runs: dict[str, list[tuple[float, list[int]]]] = {name: [] for name in trees}
            for turn in range(repeats):
                for name, (tree, plain) in trees.items():
                    if not (plain and turn):  # it takes minutes: once
                        runs[name].append(run(tree, file, plain, threads))
            best = {name: min(found) for name, found in runs.items()}
            for name, (seconds, picks) in best.items():
                same = len({*picks} & {*best["plain"][1]}) / SIZE
                ratio = seconds / best["ours"][0]
                table.add_row(str(threads), name, f"{seconds:.2f}", f"{ratio:.1f}", f"{same:.0%}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--quick", action="store_true", help="80 of 800 by 300 draws, once")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*json.loads(args.child))
    elif args.quick:
        compare(800, 300, args.before, repeats=1)
    else:
        for n in (800, 4000):
            compare(n, 1000, args.before, repeats=15 if n < 1000 else 2)


if __name__ == "__main__":
    main()
