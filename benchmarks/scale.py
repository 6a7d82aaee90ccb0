"""Pools on Ray: one plain loop, one worker, two workers, and two of which many are killed.

Rows are made on the spot: float16 [20 10], packed in Parquet, 410 bytes each; MELL with 100
targets, the 100 best. Every way runs in a process of its own, and all must find the same rows.

    python benchmarks/scale.py                      10⁶ and 10⁷ rows, some 20 minutes of two cores
    python benchmarks/scale.py --rows 1e6 --repeats 3 --kills 5
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

T, C, TARGETS, K = 20, 10, 100, 100
GROUP, FILE = 1 << 16, 1 << 20  # rows of a row group and of a file, at most
_TICK = os.sysconf("SC_CLK_TCK")


def make(folder: Path, rows: int) -> None:
    """Files of rows that all differ, and targets by the same draws."""
    from pyarrow import parquet

    from foresee import predictions

    rng = np.random.default_rng(0)

    def draws(n: int) -> Any:
        gamma = rng.standard_exponential((n, T, C), dtype=np.float32) ** 2
        return (gamma / gamma.sum(2, keepdims=True)).astype(np.float16)

    np.save(folder / "val.npy", draws(TARGETS))
    schema = predictions.to_arrow(probs=draws(1)).schema
    for start in range(0, rows, FILE):
        path, size = folder / f"pool-{start // FILE:04}.parquet", min(FILE, rows - start)
        with parquet.ParquetWriter(path, schema, compression="none") as writer:
            for group in range(0, size, GROUP):
                table = predictions.to_arrow(probs=draws(min(GROUP, size - group)))
                writer.write_table(table, row_group_size=GROUP)


class Watch:
    """CPU seconds and the peak memory of Ray's workers, and kills of those that are at work."""

    def __init__(self, kills: int = 0, every: float = 2.5) -> None:
        self.cpu, self.peak, self.killed = dict[int, float](), 0.0, 0
        self._kills, self._every, self._over = kills, every, threading.Event()

    def _look(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.2):
            kill = self.killed < self._kills and time.monotonic() - last > self._every
            workers = list(_workers())
            random.shuffle(workers)
            for pid in workers:
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self.cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICK
                    self.peak = max(self.peak, _peak(pid))
                    if kill:
                        os.kill(pid, signal.SIGKILL)
                        self.killed, last, kill = self.killed + 1, time.monotonic(), False

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _peak(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _workers() -> Iterator[int]:
    """Workers of this process, or of its children, that score a shard."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if (entry / "cmdline").read_bytes().startswith(b"ray::foresee shard"):
                above = pid
                while above > 1 and above != os.getpid():
                    stat = Path(f"/proc/{above}/stat").read_text()
                    above = int(stat.rpartition(")")[2].split()[1])
                if above > 1:
                    yield pid


def child(way: str, folder: Path, kills: int) -> None:
    """Run one way and print what it took."""
    import torch

    from foresee import predictions, scale, suggest

    torch.set_num_threads(1)
    val, watch, start = np.load(folder / "val.npy"), Watch(), time.perf_counter()
    if way == "plain":
        rows = predictions.read("--pool", str(folder / "*.parquet"))
        some: Any = _Some(rows)
        suggest.best_by_score(some, val, "mell", 1)  # what is compiled is compiled before
        up, cpu, start = 0.0, time.process_time(), time.perf_counter()
        found: Any = suggest.best_by_score(rows, val, "mell", K)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    else:
        from foresee.scale.cluster import connected

        workers = 1 if way == "one" else 2
        with connected("local", workers):
            first = str(folder / "first")
            scale.suggest(first, val, K, score="mell", workers=workers, shard=1)
            up, start = time.perf_counter() - start, time.perf_counter()
            watch = Watch(kills if way == "kills" else 0)
            source, found = str(folder / "*.parquet"), None
            with watch:
                while found is None or (way == "kills" and watch.killed < kills):
                    before = found
                    found = scale.suggest(source, val, K, score="mell", workers=workers)
                    assert before is None or np.array_equal(before.scores, found.scores)
            seconds, cpu = time.perf_counter() - start, sum(watch.cpu.values())
    peak = _peak(os.getpid())  # what getrusage tells is at least what the parent had
    said = {
        "seconds": seconds,
        "start": up,
        "cpu": cpu,
        "driver": peak,
        "worker": watch.peak,
        "killed": watch.killed,
        "positions": found.positions.tolist(),
        "scores": found.scores.tolist(),
    }
    print(json.dumps(said))


class _Some:
    """The first rows of a pool."""

    def __init__(self, rows: Any) -> None:
        self.row_bytes, self._rows = rows.row_bytes, rows
        self.take = rows.take

    def pieces(self, size: int) -> Iterator[Any]:
        yield next(self._rows.pieces(256))


def run(way: str, folder: Path, kills: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "--child", way, "--folder", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--kills", str(kills)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def study(folder: Path, rows: int, repeats: int, kills: int) -> None:
    from pyarrow import parquet

    start = time.perf_counter()
    make(folder, rows)
    table = parquet.read_table(folder / "pool-0000.parquet").slice(0, 4096)
    (folder / "first").mkdir()
    parquet.write_table(table, folder / "first" / "some.parquet", row_group_size=512)
    print(f"\n{rows:,} rows, made in {time.perf_counter() - start:.0f} s", flush=True)
    ways = ("plain", "one", "two")
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in (*ways, "kills")}
    for _ in range(repeats):
        for way in ways:
            found[way].append(run(way, folder, 0))
    if kills:
        found["kills"].append(run("kills", folder, kills))
    every = [one for way in found.values() for one in way]
    same = all(one[key] == every[0][key] for one in every for key in ("positions", "scores"))
    print("way     seconds  rows/s   CPU s  start s  driver MiB  worker MiB  kills")
    for way, runs in found.items():
        if runs:
            best = min(runs, key=lambda one: one["seconds"])
            print(
                f"{way:6} {best['seconds']:8.1f} {rows / best['seconds']:8.0f} {best['cpu']:7.1f} "
                f"{best['start']:8.1f} {best['driver']:10.0f} {best['worker']:11.0f} "
                f"{best['killed']:6}",
            )
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(found["one"], found["two"], strict=True)]
    over = [a["seconds"] / b["seconds"] for a, b in zip(found["one"], found["plain"], strict=True)]
    print(f"two workers are {statistics.median(ratios):.2f} times one (must be ≥ 1.6)")
    print(f"one worker takes {statistics.median(over):.2f} of the plain loop")
    print(f"all found the same rows and scores: {same}; load {os.getloadavg()[0]:.1f}", flush=True)


def ceilings() -> None:
    """How close the ceiling is to what greedy batches of digits are worth."""
    import warnings

    import torch
    from sklearn.datasets import load_digits

    from foresee import predictions, suggest
    from foresee.posteriors import mc_dropout
    from foresee.scale import _tangent

    warnings.simplefilter("ignore")
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16).float(), torch.tensor(y)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    layers += [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs[:60]), labels[:60]).backward()
        optimizer.step()
    for draws in (20, 100):
        probs = mc_dropout(network.eval(), draws=draws).predict(inputs).numpy()
        pool, val, found = probs[:1500], probs[1500:], []
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/pool.npy", pool)
            rows = predictions.read("--pool", f"{folder}/pool.npy")
            for k in (1, 5, 20, 80):
                picks = suggest.best_by_strategy(rows, val, suggest.choice("greedy"), k)
                tangent = _tangent(pool[picks.positions], val)
                most = tangent.ceiling(tangent.slopes(torch.tensor(pool)).topk(k).values)
                found.append(f"k = {k}: {tangent.worth / most:.2f}")
        print(f"{draws} draws, worth / ceiling at", ", ".join(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ceiling", action="store_true", help="how close it is, on digits")
    parser.add_argument("--child")
    parser.add_argument("--folder", type=Path)
    told = parser.parse_args()
    if told.child:
        child(told.child, told.folder, told.kills)
        return
    if told.ceiling:
        ceilings()
        return
    for rows in told.rows:
        folder = Path(tempfile.mkdtemp(prefix="scale-", dir=told.folder))
        try:
            # Kills need time: they are made where the pool is largest.
            study(folder, int(rows), told.repeats, told.kills if rows == max(told.rows) else 0)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
