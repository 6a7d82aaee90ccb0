"""What experiments cost beside their training: the loop and the store, then the report.

    python benchmarks/experiments.py [--quick]

The trial is one of `foresee run digits`; the report is of 14 experiments × 8 methods × 10 seeds
with made-up rounds as large as the paper's (with --quick, 2 seeds).
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import track

from foresee.lab import loop, methods, paper, runner, store
from foresee.lab.experiment import Experiment, Round
from foresee.lab.report import folder as report
from scoring import console, seconds


def bench_loop(folder: Path) -> None:
    """Wall time of a trial that no stage accounts for, in the bare loop and as `run` has it."""
    experiment = paper.experiment("digits", shift=True)
    place = runner.Place(folder)
    task, _, pixels = runner._prepared(experiment, 0, place)
    for name in ("Random", "MELL", "Greedy"):
        method = methods.method(name, experiment, *pixels)
        rounds: list[Round] = []
        bare = seconds(partial(rounds.extend, loop.run(experiment, method, 0, task)))
        promises = sum(dict(r.seconds).get("promise", 0) for r in rounds)
        stored = seconds(partial(runner.run_trial, runner.Job(experiment, name, 0), place))
        trial = store.read(store.trial_path(folder, experiment, name, 0))
        assert trial is not None
        console.print(
            f"{name:6} {bare:5.2f} s, of which outside the stages {1 - _staged(rounds) / bare:.2%}"
            f" ({1 - _staged(trial.rounds) / stored:.2%} with store and pictures); promises, their "
            f"predictions included, {promises / bare:.0%}"
        )


def _staged(rounds: Iterable[Round]) -> float:
    return sum(spent for r in rounds for _, spent in r.seconds)


def bench_report(folder: Path, seeds: int) -> None:
    """Seconds for the report of the whole paper."""
    rng = np.random.default_rng(0)
    cells = [(e, m) for e in paper.EXPERIMENTS for m in methods.group("paper")]
    for experiment, name in track(cells, "writing trials", console=console, transient=True):
        method = methods.method(name, experiment, (0.5,), (0.2,))
        for seed in range(seeds):
            with store.recording(folder, experiment, method, seed) as recorder:
                for finished in _made_up(experiment, rng):
                    recorder.append(finished)
    size = sum(path.stat().st_size for path in folder.glob("*/*.jsonl")) / 1e6
    spent = seconds(lambda: report.write(report.read(folder).studies, folder.with_name("report")))
    console.print(f"report of {len(cells) * seeds} trials, {size:.0f} MB: {spent:.1f} s")


def _made_up(experiment: Experiment, rng: np.random.Generator) -> Iterator[Round]:
    for number in range(experiment.rounds + 1):
        size = experiment.n_query if number < experiment.rounds else 0
        yield Round(
            number=number,
            n_labelled=experiment.n_seed + number * experiment.n_query,
            accuracy=0.5 + 0.4 * number / experiment.rounds + 0.01 * rng.normal(),
            log_loss=1.0,
            brier=0.5,
            calibration_error=0.1,
            picks=tuple(rng.integers(experiment.n_pool, size=size).tolist()),
            labels=tuple(rng.integers(experiment.classes, size=size).tolist()),
            seconds=(("train", 60.0), ("sample", 5.0), ("select", 1.0)),
            train_loss=0.01,
            train_accuracy=0.99,
            promise=0.1 if size else None,
            promise_pool=0.2 if size else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 seeds instead of 10 in the report")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench_loop(Path(folder) / "digits")
        bench_report(Path(folder) / "paper", seeds=2 if args.quick else 10)


if __name__ == "__main__":
    main()
