"""Kill a process that asks and tells, again and again: no label is lost, no batch differs.

    python benchmarks/learner_kills.py [--kills 200] [--labels 1000] [--seed 0]

A child asks for labels and tells them, in batches of one to seven, and prints what it told as soon
as `tell` returns. SIGKILL ends it at a random moment; the next child takes up the same file. What
was printed must be in the file, and the batches must be those of a run that was never killed.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from sklearn.naive_bayes import GaussianNB

from foresee import Learner, posteriors
from foresee.learner import record
from foresee.lines import content

SIZES = (3, 1, 7, 2, 5)


def model(inputs: Any, labels: Any, rng: np.random.Generator) -> Any:
    """Quick to fit: the labels decide every draw, so a lost one would show."""
    return posteriors.bootstrap(GaussianNB(), inputs, labels, 4, classes=3, rng=rng)


def child(path: Path, labels: int, out: TextIO) -> None:
    """Ask and tell until all is labelled, and say each time what was told."""
    x = np.random.default_rng(0).normal(size=(labels, 2))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    learner = Learner(model, x, classes=range(3), candidates=30, targets=10, holdout=0.1, path=path)
    print("ready", file=out, flush=True)
    while True:
        # Who takes over from the dead asks for as many, so it is the same batch.
        batch = learner.ask(SIZES[len(learner.told) % len(SIZES)])
        if not batch.ids:
            break
        learner.tell(batch.ids, y[list(batch.ids)])
        print(*batch.ids, file=out, flush=True)


def start(path: Path, labels: int) -> tuple[int, TextIO]:
    """Fork, as to import all anew would take longer than the work; return the pid and its words."""
    there, here = os.pipe()
    pid = os.fork()
    if pid:
        os.close(here)
        return pid, os.fdopen(there)
    status = 1
    try:
        with os.fdopen(here, "w") as out:
            child(path, labels, out)
        status = 0
    finally:
        os._exit(status)


def told(lines: list[str]) -> list[int]:
    """Ids in what a child printed; the last line may be cut."""
    whole = [line for line in lines if line.endswith("\n") and line[0].isdigit()]
    return [int(word) for line in whole for word in line.split()]


def campaign(folder: Path, kills: int, labels: int, seed: int) -> Counter[str]:
    """Run whole once, then kill so often; count what was done and what was wrong."""
    rng, total = random.Random(seed), Counter({"LOST LABELS": 0, "DIFFERENT BATCHES": 0})
    begin = time.monotonic()
    pid, words = start(folder / "whole", labels)
    with words:
        order = told(words.readlines())
    span = time.monotonic() - begin
    assert os.waitpid(pid, 0)[1] == 0
    assert len(set(order)) == len(order) > 0.9 * labels
    path, said = folder / "killed-0", list[int]()
    while total["kills"] < kills:
        pid, words = start(path, labels)
        with words:
            time.sleep(rng.uniform(0, span / 4))
            os.kill(pid, signal.SIGKILL)
            said += told(words.readlines())
        ended = os.waitpid(pid, 0)[1] == 0
        total["kills"] += not ended
        # What was kept and not said was killed in between: it is no loss.
        total["LOST LABELS"] += len(set(said) - set(order[: kept(path, order)]))
        if ended or total["kills"] == kills:
            pid, words = start(path, labels)
            words.close()
            os.waitpid(pid, 0)
            total["DIFFERENT BATCHES"] += path.read_bytes() != (folder / "whole").read_bytes()
            total["files finished"] += 1
            path, said = folder / f"killed-{total['files finished']}", []
    return total


def kept(path: Path, order: list[int]) -> int:
    """How many labels are in the file; they must be the first of the whole run's."""
    if content(path).count(b"\n") < 1:
        return 0
    _, state = record.folded(path, record.read(path)[1])
    assert set(state.labels) == set(order[: len(state.labels)])
    return len(state.labels)


def wrong(total: Counter[str]) -> int:
    """How much went wrong: all that is counted in capitals."""
    return sum(number for what, number in total.items() if what.isupper())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        total = campaign(Path(folder), args.kills, args.labels, args.seed)
    for what, number in sorted(total.items()):
        print(f"{number:5d} {what}")
    sys.exit(wrong(total) > 0)


if __name__ == "__main__":
    main()
