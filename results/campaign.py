"""The commands of `results/`: `plans.py` says what is run, `page.py` what is made of it.

    unpack RUNS    the committed rounds, to go on from
    budget RUNS    --data DIR --device cuda: the budget of cifar10-vgg16, for plans.py
    run RUNS       --data DIR --device cuda --processes 16 --minutes 9
    status RUNS    what is left, and how long that takes
    pack RUNS      RUNS/PART into results/PART/runs.tar.xz
    report         results/PART/report, from what is packed
    page           every table of results/*.md and results/curves/PART.png, from what is packed
    default, paper the tables alone: the default less each other method; ours beside the paper's

Every part is a folder of its own in RUNS, and resumes; ``--parts`` picks some of them. A process
runs all methods of a seed side by side, so that their first rounds are trained once; many processes
share a GPU best under MPS. What is stopped by ``--minutes`` loses no finished round.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import packed
from plans import LADDER, PARTS, at
from plateau import search

from foresee.lab import live, runner, store

HERE = Path(__file__).parent


def run(names: Sequence[str], runs: Path, place: runner.Place, processes: int, end: float) -> None:
    """Run what is left of these parts until the time is over."""
    work = []
    for name in names:
        for plan in PARTS[name]:
            out = replace(place, out=runs / name)
            for jobs in plan.groups():
                runner.keep_plan(jobs, out.out)
                if left := [job for job in jobs if live.standing(job, out.out).left]:
                    work.append((left, out))
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _end_with_parent, maxtasksperchild=8) as pool:
        results = [pool.apply_async(_run_group, task) for task in work]
        for done, result in enumerate(results, 1):
            try:
                for line in result.get(max(0.0, end - time.monotonic())):
                    print(line, flush=True)
            except multiprocessing.TimeoutError:
                print(f"stopped at group {done} of {len(work)}: run the same again", flush=True)
                return
    print(f"all {len(work)} groups done", flush=True)


def budget(names: Sequence[str], runs: Path, place: runner.Place) -> None:
    """Find for the first experiment of these parts the smallest budget that is enough."""
    for name in names:
        first = PARTS[name][0].experiments[0]
        print(name)
        found = search([at(first, part) for part in LADDER], place, runs / name / "budget.json")
        if found != first.budget:
            raise SystemExit(f"plans.py has {first.budget} for it: change BUDGETS before it is run")


def _end_with_parent() -> None:
    """End this process with the one that started it, even if that is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _run_group(jobs: list[runner.Job], place: runner.Place) -> list[str]:
    side_by_side = len(jobs) if place.device.startswith("cuda") else 1
    return [
        f"{o.job.experiment.name} {o.job.method} {o.job.seed}: {o.state} {o.message}"
        for o in runner.run_all(jobs, place, side_by_side)
        if o.state != "finished"
    ]


def status(names: Sequence[str], runs: Path) -> None:
    """Print what is left, and how many seconds of one process that will take."""
    for name in names:
        jobs = [job for plan in PARTS[name] for jobs in plan.groups() for job in jobs]
        left = sum(live.standing(job, runs / name).left for job in jobs)
        begun = any((runs / name).glob("*/*.jsonl"))
        known = store.trials(runs / name, lambda _: None) if begun else []
        rounds = [r for trial in known for r in trial.rounds]
        total = sum(job.experiment.rounds + 1 for job in jobs)
        line = f"{name}: {total - left} of {total} rounds"
        if rounds and left:
            each = sum(seconds for r in rounds for _, seconds in r.seconds) / len(rounds)
            line += f", about {live.clock(each * left)} of work left"
        print(line)


def unpack(names: Sequence[str], runs: Path) -> None:
    """Put the committed rounds, and budgets, where `run` and `budget` go on with them."""
    for name in names:
        if (kept := HERE / name / "budget.json").exists():
            (runs / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, runs / name)
        archive = HERE / name / "runs.tar.xz"
        if archive.exists():
            packed.unpack(archive, runs / name)


def pack(names: Sequence[str], runs: Path) -> None:
    """Pack all rounds, and budgets; splits follow from the seeds."""
    for name in names:
        here, there = HERE / name, runs / name
        if (kept := there / "budget.json").exists():
            here.mkdir(exist_ok=True)
            shutil.copy(kept, here)
        if any(there.glob("*/*.jsonl")):
            here.mkdir(exist_ok=True)
            packed.pack(there, here / "runs.tar.xz")


def report(names: Sequence[str]) -> None:
    """Write every report anew from the packed rounds."""
    from foresee.lab.report import folder

    for name in names:
        if (HERE / name / "runs.tar.xz").exists():
            with tempfile.TemporaryDirectory() as runs:
                unpack([name], Path(runs))
                found = folder.read(Path(runs) / name)
                folder.write(found.studies, HERE / name / "report", found.left_out)


def tables(command: str, names: Sequence[str]) -> None:
    """Make the page anew, or print some of its tables."""
    import page  # where it runs nothing is drawn

    if command == "page":
        page.rewrite(HERE)
        return
    for name in names:
        print(f"{name}\n\n{page.TABLES[command](HERE, [name])}\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = ["budget", "run", "status", "unpack", "pack", "report", "page", "default"]
    commands += ["paper"]
    parser.add_argument("command", choices=commands)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("runs"))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    given = parser.parse_args()
    parts = given.parts or list(PARTS)
    place = runner.Place(given.runs, given.data, given.device)
    if given.command == "budget":
        budget(given.parts or ["cifar10-vgg16"], given.runs, place)
    elif given.command == "run":
        end = time.monotonic() + 60 * given.minutes
        run(parts, given.runs, place, given.processes, end)
    elif given.command == "report":
        report(parts)
    elif given.command in ("page", "default", "paper"):
        tables(given.command, parts)
    else:
        {"status": status, "unpack": unpack, "pack": pack}[given.command](parts, given.runs)


if __name__ == "__main__":
    main()
