"""The experiments of `results/`: what is run, in the order in which it is worth most, and reports.

    unpack RUNS    the committed rounds, to go on from
    budget RUNS    --data DIR --device cuda: the budget of cifar10-vgg16, which is then set here
    run RUNS       --data DIR --device cuda --processes 16 --minutes 9
    status RUNS    what is left, and how long that takes
    pack RUNS      RUNS/PART into results/PART/runs.tar.xz
    report         results/PART/report, from what is packed
    compare        the default less each other method, paired by seed, from what is packed

Every part is a folder of its own in RUNS, and resumes; ``--parts`` picks some of them. A process
runs all methods of a seed side by side, so that their first rounds are trained once; many processes
share a GPU best under MPS. What is stopped by ``--minutes`` loses no finished round.
"""

import argparse
import io
import multiprocessing
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plateau import search
from scipy import stats

from foresee.lab import live, paper, runner, store
from foresee.lab.experiment import Experiment, noisy
from foresee.lab.methods import METHODS, group
from foresee.lab.report.statistics import area_under_curve

HERE = Path(__file__).parent
SETTINGS: tuple[dict[str, bool], ...] = ({}, {"shift": True}, {"narrow": True})


@dataclass(frozen=True)
class Plan:
    """Experiments, the methods that run on them, and for how many seeds."""

    experiments: Sequence[Experiment]
    methods: Sequence[str]
    seeds: int

    def groups(self) -> Iterator[list[runner.Job]]:
        """All methods of one seed of one experiment, seed by seed."""
        for seed in range(self.seeds):
            for experiment in self.experiments:
                yield runner.plan([experiment], self.methods, [seed])


def settings(dataset: str, budget: float = 1.0, network: Any = None) -> list[Experiment]:
    """A data set without shift, with shift, and with a narrow target."""
    return [paper.experiment(dataset, budget=budget, network=network, **s) for s in SETTINGS]


def in_bfloat16(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The same with passes through the trained network in bfloat16."""
    return [replace(e, recipe=replace(e.recipe, precision="bfloat16")) for e in experiments]


def scaled(dataset: str, shift: bool = False, network: Any = None, **sizes: int) -> Experiment:
    """An experiment at sizes that what there is of its data allows, passes in bfloat16."""
    whole = paper.experiment(dataset, shift, 0.05, network)
    return in_bfloat16([replace(whole, **sizes)])[0]


def at(experiment: Experiment, budget: float) -> Experiment:
    """The same for another part of the full training."""
    recipe = paper.experiment(experiment.dataset, experiment.shift, budget).recipe
    recipe = replace(recipe, precision=experiment.recipe.precision)
    return replace(experiment, recipe=recipe, budget=budget)


# Of the default and of those it must not lose to; then of all others.
MAIN = ("Default", "BADGE", "MELL", "MEBL", "UHerding", "Random")
SOME = ("Random", "BADGE", "MELL", "Default")
OTHERS = tuple(name for name in METHODS if name not in (*MAIN, *group("loss"), "MELL_MCMC"))
_SMALL = settings("mnist", 0.015, "small_cnn")

# What `budget` tries, in this order, and the first that was enough for CIFAR-10.
LADDER = (0.05, 0.1, 0.2)
CIFAR10_BUDGET = 0.05

# Two fifths of the paper's sizes, half as many batches.
_NOSHIFT = {"n_seed": 2000, "n_val": 2000, "n_query": 1000, "n_test": 4000}
_NOSHIFT |= {"rounds": 8, "candidates": 10_000}
_SHIFT = {**_NOSHIFT, "n_seed": 8000, "n_query": 400, "rounds": 10, "candidates": 4000}
# 79 cameras are the source, 85 others the target: 1521 and 1622 images.
_CAMERAS = {"classes": 158, "n_seed": 1000, "n_val": 200, "n_pool": 1000, "n_query": 100}
_CAMERAS |= {"n_test": 400, "rounds": 5, "candidates": 500}

# The first plans of a part are worth most.
PARTS: dict[str, tuple[Plan, ...]] = {
    # The default was chosen on digits; a small network on MNIST confirms it, or does not.
    "mnist-small": (
        Plan(_SMALL, MAIN, 10),
        Plan(in_bfloat16([noisy(e, 0.2) for e in _SMALL]), MAIN, 10),
        Plan(_SMALL, OTHERS, 5),
    ),
    # The paper's network, on a twentieth of its iterations.
    "mnist-vgg16": (
        Plan(in_bfloat16(settings("mnist", 0.05)), (*group("paper"), "MEBL", "Default"), 5),
    ),
    "cifar10-vgg16": (
        Plan(
            in_bfloat16(settings("cifar10", CIFAR10_BUDGET)),
            ("Random", "Entropy", "BALD", "Coreset", "BADGE", "MELL", "MEBL", "Default"),
            3,
        ),
    ),
    # Whether the order of the methods hangs on the budget.
    "cifar10-longer": (
        Plan(
            in_bfloat16([paper.experiment("cifar10", budget=4 * CIFAR10_BUDGET)]),
            ("Random", "MELL", "Default"),
            1,
        ),
    ),
    "cifar100-scaled": (
        Plan(
            [
                scaled("cifar100", n_pool=16_000, **_NOSHIFT),
                scaled("cifar100", True, n_pool=10_000, **_SHIFT),
            ],
            SOME,
            3,
        ),
    ),
    "svhn-scaled": (
        Plan(
            [
                scaled("svhn", n_pool=20_000, **_NOSHIFT),
                scaled("svhn", True, n_pool=14_000, **_SHIFT),
            ],
            SOME,
            3,
        ),
    ),
    "iwildcam-slice": (Plan([scaled("iwildcam", True, "small_cnn", **_CAMERAS)], SOME, 3),),
    "digits-settings": (
        Plan(settings("digits"), MAIN, 10),
        Plan([noisy(e, 0.2) for e in settings("digits")], MAIN, 10),
        Plan(settings("digits"), OTHERS, 10),
    ),
}


def run(names: Sequence[str], runs: Path, place: runner.Place, processes: int, end: float) -> None:
    """Run what is left of these parts until the time is over."""
    work = []
    for name in names:
        for plan in PARTS[name]:
            out = replace(place, out=runs / name)
            for jobs in plan.groups():
                runner.keep_plan(jobs, out.out)
                if any(live.standing(job, out.out).left for job in jobs):
                    work.append((jobs, out))
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
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
        search([at(first, part) for part in LADDER], place, runs / name / "budget.json")


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
        known = store.trials(runs / name, lambda _: None) if (runs / name).is_dir() else []
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
        packed = HERE / name / "runs.tar.xz"
        if packed.exists():
            with tarfile.open(packed) as tar:
                tar.extractall(runs / name, filter="data")


def pack(names: Sequence[str], runs: Path) -> None:
    """Pack all rounds; the same rounds give the same bytes."""
    for name in names:
        found = sorted((runs / name).glob("*/*.jsonl"))  # splits follow from the seeds
        kept = runs / name / "budget.json"
        if found or kept.exists():
            (HERE / name).mkdir(exist_ok=True)
        if kept.exists():
            shutil.copy(kept, HERE / name)
        if not found:
            continue
        with tarfile.open(HERE / name / "runs.tar.xz", "w:xz", preset=9) as tar:
            for path in found:
                content = path.read_bytes()
                entry = tarfile.TarInfo(str(path.relative_to(runs / name)))
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def report(names: Sequence[str]) -> None:
    """Write every report anew from the packed rounds."""
    from foresee.lab.report import folder

    for name in names:
        if (HERE / name / "runs.tar.xz").exists():
            with tempfile.TemporaryDirectory() as runs:
                unpack([name], Path(runs))
                found = folder.read(Path(runs) / name)
                folder.write(found.studies, HERE / name / "report", found.left_out)


def compare(names: Sequence[str]) -> None:
    """Print a table for each experiment: who is how far from the default."""
    for name in names:
        if not (HERE / name / "runs.tar.xz").exists():
            continue
        with tempfile.TemporaryDirectory() as runs:
            unpack([name], Path(runs))
            trials = store.trials(Path(runs) / name)
        for experiment in dict.fromkeys(trial.experiment for trial in trials):
            here = {(t.method, t.seed): t for t in trials if t.experiment == experiment}
            if lines := _beside_default(here):
                print(f"\n{name}, {experiment.name}\n", *lines, sep="\n")


def _beside_default(trials: dict[tuple[str, int], store.Trial]) -> list[str]:
    """Rows of a table; of unfinished trials the rounds count that all methods of a seed have."""
    seeds = sorted(seed for method, seed in trials if method == "Default")
    methods = [m for m in METHODS if all((m, s) in trials for s in seeds) and m != "Default"]
    rounds = min(
        (len(trials[m, s].rounds) for m in ("Default", *methods) for s in seeds), default=0
    )
    if rounds < 2 or len(seeds) < 2:
        return []

    def areas(method: str) -> NDArray[np.float64]:
        found = [trials[method, seed].rounds[:rounds] for seed in seeds]
        curves = [([r.n_labelled for r in f], [r.accuracy for r in f]) for f in found]
        return 100 * np.array([area_under_curve(*curve) for curve in curves])

    ours = areas("Default")
    tests = {m: stats.ttest_rel(ours, areas(m)) for m in methods}
    order = sorted(methods, key=lambda m: tests[m].pvalue)
    holm = dict(zip(order, holm_adjusted([tests[m].pvalue for m in order]), strict=True))
    lines = [
        f"{len(seeds)} seeds, {rounds} rounds; Default {ours.mean():.2f} ± {ours.std(ddof=1):.2f}",
        "",
        "| | AUC × 100 | Default less it | 95 % | p, Holm |",
        "|---|---|---|---|---|",
    ]
    for m in methods:
        area, interval = areas(m), tests[m].confidence_interval()
        lines.append(
            f"| {m} | {area.mean():.2f} ± {area.std(ddof=1):.2f} | {(ours - area).mean():+.2f} | "
            f"{interval.low:+.2f} to {interval.high:+.2f} | {holm[m]:.2g} |"
        )
    return lines


def holm_adjusted(ascending: Sequence[float]) -> list[float]:
    """p-values by Holm's step-down rule, of p-values that ascend.

    >>> holm_adjusted([0.01, 0.03, 0.04])
    [0.03, 0.06, 0.06]
    """
    scaled = [p * (len(ascending) - i) for i, p in enumerate(ascending)]
    return np.minimum(np.maximum.accumulate(scaled), 1).tolist()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = ["budget", "run", "status", "unpack", "pack", "report", "compare"]
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
    elif given.command in ("report", "compare"):
        {"report": report, "compare": compare}[given.command](parts)
    else:
        {"status": status, "unpack": unpack, "pack": pack}[given.command](parts, given.runs)


if __name__ == "__main__":
    main()
