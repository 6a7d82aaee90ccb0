"""Kill `foresee run` again and again: no round is lost, no bit differs, nobody is left behind.

    python benchmarks/kills.py [--kills 300] [--seed 0]

A small experiment on digits is run whole once. Then the same command is started over and over, in
one folder until it is finished, then in a fresh one, and each time SIGKILL ends the parent, one of
its workers, or all of them: every fourth time at any moment of its start, else after a round was
stored. What is on the disk is compared with the whole run after every kill. Linux only: processes
are found in /proc.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from foresee.lab import store
from foresee.lab.experiment import Round
from scoring import console

COMMAND = [sys.executable, "-m", "foresee.cli", "run", "digits", "--shift", "--methods"]
COMMAND += ["mell,random", "--seeds", "3", "--budget", "0.05"]
GRACE = 5.0  # seconds until everybody must be gone
STALE = "TEMPORARY FILES AFTER THE NEXT RUN"
Rounds = dict[tuple[str, int], list[Round]]


def start(command: list[str], out: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Start the command as the leader of its own session: whoever it starts is found by that."""
    return subprocess.Popen(
        [*command, "--jobs", str(jobs), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def members(session: int) -> dict[int, bytes]:
    """The command lines of the processes of a session that are alive."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            state, _, _, theirs = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(theirs) == session and state != "Z":
                found[int(path.name)] = (path / "cmdline").read_bytes()
    return found


def workers(session: int) -> list[int]:
    """Those of a session that run trials for its leader."""
    return [pid for pid, line in members(session).items() if b"LokyProcess" in line]


def gone(session: int, within: float) -> bool:
    """Wait for a session to end; tell whether it did."""
    deadline = time.monotonic() + within
    while members(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def kill(child: subprocess.Popen[bytes], victim: str, rng: random.Random) -> None:
    """Kill the parent, a worker (where there is none, the parent), or all at once."""
    some = workers(child.pid) if victim == "worker" else []
    with suppress(ProcessLookupError):  # done meanwhile
        if victim == "group":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            os.kill(rng.choice(some) if some else child.pid, signal.SIGKILL)


def rounds(out: Path) -> Rounds:
    """Every stored round of every trial, without its seconds."""
    paths = sorted(out.glob("*/*.jsonl"))
    trials = [trial for trial in map(store.read, paths) if trial is not None]
    return {(t.method, t.seed): [replace(r, seconds=()) for r in t.rounds] for t in trials}


def count(out: Path) -> int:
    """How many rounds are on the disk; the files may be growing."""
    return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in out.glob("*/*.jsonl"))


def temporary(out: Path) -> set[Path]:
    """Files that were being written when somebody was killed."""
    return {path for path in out.rglob("*") if path.name.endswith(".tmp")}


def one_kill(
    command: list[str], out: Path, whole: Rounds, number: int, span: float, rng: random.Random
) -> Counter[str]:
    """Start the command, kill it once, and count what is wrong afterwards.

    ``span`` is how long it takes until a first round is stored, in seconds.
    """
    found = Counter(dict.fromkeys(("ORPHANS", "LOST ROUNDS", "DIFFERENT ROUNDS", STALE), 0))
    leftover, before = temporary(out), count(out)
    victim = ("parent", "worker", "group")[number % 3]
    child = start(command, out, jobs=1 if number % 4 == 3 else 2)
    if number // 3 % 4 == 0:
        time.sleep(rng.uniform(0, span))
    else:
        while count(out) <= before and child.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3 * span))
    stored = count(out)
    if child.poll() is None:
        found.update(["kills", f"kills of {victim}", *["kills after a stored round"][:stored]])
    kill(child, victim, rng)
    if not gone(child.pid, GRACE):
        found["ORPHANS"] += len(members(child.pid))
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    there = rounds(out)
    found["LOST ROUNDS"] += max(0, stored - sum(map(len, there.values())))
    for trial, some in there.items():
        found["DIFFERENT ROUNDS"] += sum(a != b for a, b in zip(some, whole[trial], strict=False))
    if stored > before:  # it was at work, not killed before it could look
        found[STALE] += len(leftover & temporary(out))
    return found


def campaign(
    command: list[str], folder: Path, kills: int, seed: int, tell: Callable[[Counter[str]], object]
) -> Counter[str]:
    """Run the command whole, then kill it so often; count what was done and what was wrong."""
    rng = random.Random(seed)
    begin = time.monotonic()
    child = start(command, folder / "whole", jobs=2)
    while count(folder / "whole") == 0 and child.poll() is None:
        time.sleep(0.01)
    span = time.monotonic() - begin
    assert child.wait() == 0
    whole = rounds(folder / "whole")
    total = Counter[str]()
    out = folder / "killed"
    for number in itertools.count():
        total.update(one_kill(command, out, whole, number, span, rng))
        if rounds(out) == whole or total["kills"] == kills:
            assert start(command, out, jobs=2).wait() == 0
            total["folders finished"] += 1
            total["DIFFERENT ENDS"] += rounds(out) != whole
            total[STALE] += len(temporary(out))
            shutil.rmtree(out)
        tell(total)
        if total["kills"] == kills:
            break
    return total


def wrong(total: Counter[str]) -> int:
    """How much went wrong: all that is counted in capitals."""
    return sum(number for what, number in total.items() if what.isupper())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as bar:
        task = bar.add_task("kills", total=args.kills)

        def tell(total: Counter[str]) -> None:
            bar.update(task, completed=total["kills"], description=f"{wrong(total)} wrong")

        total = campaign(COMMAND, Path(folder), args.kills, args.seed, tell)
    for what, number in sorted(total.items()):
        console.print(f"{number:5d} {what}")
    sys.exit(wrong(total) > 0)


if __name__ == "__main__":
    main()
