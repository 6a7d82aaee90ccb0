"""The learner beside random order, on digits with a narrow target; its speed; large files.

    python benchmarks/learner.py [--seeds 0-19] [--models forest,logistic,cnn] [--speed | --large]

Pool and 20 first labels hold all ten digits, the target only 3, 5, 8 and 9: 1200 images to choose
from, 200 of the target without labels, 300 of it to test on. Then 8 batches of 10. AUC is the mean
accuracy on the target over 20 … 100 labels, in points; differences are paired by seed.
"""

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from foresee import Learner, Random, Recipe, networks, read
from foresee.reading import kept
from scoring import console

TARGET = (3, 5, 8, 9)
BATCHES, BATCH = 8, 10

MODELS: dict[str, dict[str, Any]] = {
    "forest": {"model": RandomForestClassifier(100)},
    "logistic": {"model": LogisticRegression(max_iter=1000)},
    "cnn": {
        "model": partial(networks.slim_cnn, image_size=8, channels=1),
        "recipe": Recipe(iterations=300, batch=32, optimiser="adam", learning_rate=3e-3),
    },
}


def split(seed: int) -> dict[str, Any]:
    """Rows of the four sets."""
    labels = load_digits().target
    rng = np.random.default_rng([seed, 13])
    inside = rng.permutation(np.flatnonzero(np.isin(labels, TARGET)))
    rest = rng.permutation(np.setdiff1d(np.arange(len(labels)), inside[:500]))
    return {"val": inside[:200], "test": inside[200:500], "first": rest[:20], "pool": rest[:1220]}


def curve(name: str, seed: int, **options: Any) -> tuple[list[float], float]:
    """Accuracy on the target after 20, 30, … labels, and the share of them inside the target."""
    digits, rows = load_digits(), split(seed)
    x = (digits.data / 16).astype(np.float32)
    x = x.reshape(-1, 1, 8, 8) if name == "cnn" else x
    y = digits.target
    learner = Learner(
        pool=x[rows["pool"]],
        target=x[rows["val"]],
        seed=seed,
        classes=range(10),
        **(MODELS[name] | options),
    )
    learner.tell(range(20), y[rows["first"]])
    found = []
    for batch in range(BATCHES + 1):
        found.append(float((learner.predict(x[rows["test"]]) == y[rows["test"]]).mean()))
        if batch < BATCHES:
            ids = learner.ask(BATCH).ids
            learner.tell(ids, y[rows["pool"][list(ids)]])
    bought = list(learner.told.values())[20:]  # in the order of telling
    return found, float(np.isin(bought, TARGET).mean())


def auc(found: list[float]) -> float:
    """Mean accuracy over the labels bought, in points."""
    return 100 * float(np.trapezoid(found) / (len(found) - 1))


def compare(name: str, seeds: list[int]) -> list[str]:
    ours, random, inside = [], [], []
    start = time.perf_counter()
    for seed in seeds:
        found, share = curve(name, seed)
        ours.append(auc(found))
        inside.append(share)
        random.append(auc(curve(name, seed, strategy=Random())[0]))
    difference = np.subtract(ours, random)
    half = stats.t.ppf(0.975, len(seeds) - 1) * stats.sem(difference)
    return [
        name,
        f"{np.mean(ours):.1f}",
        f"{np.mean(random):.1f}",
        f"{difference.mean():+.2f}",
        f"{difference.mean() - half:+.2f}",
        f"{100 * np.mean(inside):.0f} %",
        f"{time.perf_counter() - start:.0f} s",
    ]


def speed() -> None:
    """Ask 50 of 100 000 points with 512 features, a logistic regression and 100 draws."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=100_000)
    x = rng.standard_normal((100_000, 512), np.float32)
    x += rng.standard_normal((10, 512), np.float32)[y] / 4
    learner = Learner(LogisticRegression(max_iter=200), x, seed=0)
    learner.tell(range(200), y[:200])
    walls, cpus = [time.perf_counter()], [time.process_time()]
    for act in (learner.fit, lambda: learner.ask(50)):
        act()
        walls.append(time.perf_counter())
        cpus.append(time.process_time())
    (fit, ask), (fit_cpu, ask_cpu) = np.diff(walls), np.diff(cpus)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"50 of 100 000 (d = 512, 10 classes, 200 labels, 100 draws): fit {fit:.1f} s, choice "
        f"{ask:.1f} s; on all cores {fit_cpu:.1f} and {ask_cpu:.1f} s; {most:.2f} GiB with the pool"
    )


def large() -> None:
    """Ask 50 of files of 4 GB and 1 GB, in half a gigabyte."""
    rng = np.random.default_rng(0)
    few = rng.standard_normal((1000, 512), np.float32)
    labels = rng.integers(10, size=200).tolist()

    def ask(pool: Any) -> float:
        learner = Learner(LogisticRegression(max_iter=200), pool, seed=0)
        learner.tell(range(200), labels)
        learner.fit()
        start = time.perf_counter()
        learner.ask(50)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        ask(few)  # code and buffers that any pool needs
        limit = _data() + (512 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        numbers, table = Path(folder, "pool.npy"), Path(folder, "pool.csv")
        rows = (few + i for i in range(2000))
        kept.fill_array(numbers, rows)
        with open(table, "w") as out:
            out.write(",".join(f"f{i}" for i in range(512)) + "\n")
            text = "\n".join(",".join(f"{x:.5f}" for x in row) for row in few.tolist()) + "\n"
            for _ in range(240):
                out.write(text)
        for file in (numbers, table):
            start = time.perf_counter()
            pool = read(file)
            opened, chosen = time.perf_counter() - start, ask(pool)
            console.print(
                f"{file.suffix} of {file.stat().st_size / 1e9:.1f} GB, {len(pool):,} rows: opened "
                f"in {opened:.1f} s, 50 chosen in {chosen:.1f} s, within 512 MiB of memory"
            )


def _data() -> int:
    """Bytes of memory that this process may write to."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--models", default="forest,logistic,cnn")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    if args.speed or args.large:
        return speed() if args.speed else large()
    torch.set_num_threads(1)
    first, last = map(int, args.seeds.split("-"))
    seeds = list(range(first, last + 1))
    table = Table("model", "learner", "random", "difference", "lower bound", "inside", "time")
    for name in args.models.split(","):
        table.add_row(*compare(name, seeds))
    console.print(table)
    return None


if __name__ == "__main__":
    main()
