"""What it takes to see how far trials are: `foresee status` of small and large stores.

    python benchmarks/store.py [--trials 5000] [--before ../old/src]

The small store is that of results/digits, 300 trials; the large one has made-up rounds, 11 of 80
picks each. With --before, the source folder of another version is timed on the small one as well.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from foresee.lab import methods, paper, store
from foresee.lab.experiment import Round, Stage
from scoring import console

Spent = tuple[tuple[Stage, float], ...]
ROOT = Path(__file__).parents[1]
_COMMAND = "from foresee.cli{} import main; main()"


def status(folder: Path, source: Path = ROOT / "src", repeats: int = 3) -> float:
    """Seconds of the whole command, the best of a few."""
    main = _COMMAND.format(".app" if (source / "foresee/cli/app.py").exists() else "")
    command = [sys.executable, "-c", main, "status", str(folder)]
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        spent.append(time.perf_counter() - start)
    return min(spent)


def fill(folder: Path, trials: int) -> None:
    """Write trials of made-up rounds."""
    rng = np.random.default_rng(0)
    digits = replace(paper.experiment("digits", shift=True), rounds=10, n_query=80)
    names = methods.group("paper")
    for number in range(trials):
        experiment = replace(digits, dataset=f"digits{number % 20}")
        method = methods.method(names[number // 20 % len(names)], experiment, (0.5,), (0.2,))
        with store.recording(folder, experiment, method, number // 20) as recorder:
            for k in range(11):
                accuracy, loss, brier, error = rng.random(4).round(12).tolist()
                picks = tuple(rng.integers(870, size=80 * (k < 10)).tolist())
                labels = tuple(pick % 10 for pick in picks)
                seconds: Spent = (("train", 1.25), ("test", 0.125), ("select", 0.5))
                labelled = experiment.n_seed + 80 * k
                measured = (k, labelled, accuracy, loss, brier, error)
                recorder.append(Round(*measured, picks, labels, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name, "small"), Path(name, "large")
        unpack = [ROOT / "results/packed.py", ROOT / "results/digits/runs.tar.xz", small]
        subprocess.run([sys.executable, *unpack], check=True)
        ours = status(small)
        console.print(f"status of 300 trials: {ours:.2f} s")
        if args.before:
            theirs = status(small, args.before)
            console.print(f"  before: {theirs:.2f} s, {theirs / ours:.1f} times as long")
        with mock.patch("os.fsync"):  # the disk is not what is measured
            fill(large, args.trials)
        size = sum(path.stat().st_size for path in large.glob("*/*.jsonl")) / 1e6
        spent = status(large)
        console.print(f"status of {args.trials} trials, {size:.0f} MB: {spent:.2f} s")


if __name__ == "__main__":
    main()
