"""The whole idea in a minute: digits, a random forest, and three ways to choose what to label.

The trees of the forest are the posterior draws. Under shift the first labels are those of the
darkest images, as in the paper, while pool, validation and test set look like all the others.
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from foresee import bald, mell
from foresee.posteriors import Forest
from foresee.report import area_under_curve
from foresee.seeding import generator
from foresee.strategies import Random, TopK
from foresee.types import Round, Stage, Strategy, Task, View

METHODS: dict[str, Strategy] = {
    "MELL": TopK(mell),
    "BALD": TopK(bald, targets=0),
    "Random": Random(),
}
SEEDS, ROUNDS, N_QUERY = 3, 8, 10
N_SEED, N_VAL, N_TEST = 20, 300, 600


class Trial(NamedTuple):
    """One learning curve."""

    method: str
    shift: bool
    seed: int
    rounds: list[Round]

    @property
    def auc(self) -> float:
        """Area under the accuracy curve, the paper's summary."""
        sizes = [r.n_labelled for r in self.rounds]
        return area_under_curve(sizes, [r.accuracy for r in self.rounds])


def run(advance: Callable[[], None]) -> list[Trial]:
    """Run every method on every split; ``advance`` is called after each of `n_trials()`."""
    trials = []
    for shift in (False, True):
        for seed in range(SEEDS):
            task = digits(shift, seed)
            for name, strategy in METHODS.items():
                trials.append(Trial(name, shift, seed, learn(task, strategy, seed)))
                advance()
    return trials


def n_trials() -> int:
    """How many learning curves `run` makes."""
    return 2 * SEEDS * len(METHODS)


def digits(shift: bool, seed: int) -> Task:
    """scikit-learn's 1797 images of 8×8 pixels, split at random or with a dark seed set."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = generator(seed, "split").permutation(len(images))
    if shift:
        brightness = images[order].mean(1)
        darkest = np.argsort(brightness, kind="stable")[:N_SEED]
        order = np.concatenate([order[darkest], np.delete(order, darkest)])
    start, val, test, pool = np.split(order, np.cumsum([N_SEED, N_VAL, N_TEST]))
    return Task(
        n_classes=10,
        seed=images[start],
        seed_labels=labels[start],
        pool=images[pool],
        val=images[val],
        test=images[test],
        test_labels=labels[test],
        oracle=lambda picks: labels[pool[picks]],
    )


def learn(task: Task, strategy: Strategy, seed: int) -> list[Round]:
    """Train, choose, label, and again; the last round only trains."""
    labelled, labels = task.seed, task.seed_labels
    left = np.arange(len(task.pool))
    rounds = []
    for number in range(ROUNDS + 1):
        start = perf_counter()
        posterior = _fit(labelled, labels, task.n_classes, seed, number)
        trained = perf_counter()
        accuracy = float((posterior.point(task.test).argmax(1) == task.test_labels).mean())
        picks = np.empty(0, np.int64)
        chosen = perf_counter()
        if number < ROUNDS:
            view = View(posterior, labelled, labels, task.pool[left], task.val)
            positions = strategy(view, N_QUERY, generator(seed, number, "select"))
            picks, left = left[positions], np.delete(left, positions)
        seconds: tuple[tuple[Stage, float], ...] = (
            ("train", trained - start),
            ("select", perf_counter() - chosen),
        )
        rounds.append(Round(number, len(labels), accuracy, tuple(picks.tolist()), seconds))
        labelled = np.concatenate([labelled, task.pool[picks]])
        labels = np.concatenate([labels, task.oracle(picks)])
    return rounds


def _fit(inputs: np.ndarray, labels: np.ndarray, n_classes: int, seed: int, number: int) -> Forest:
    from sklearn.ensemble import RandomForestClassifier

    state = int(generator(seed, number, "forest").integers(2**31))
    forest = RandomForestClassifier(100, random_state=state)
    return Forest(forest.fit(inputs, labels), n_classes)


def summary(trials: list[Trial], method: str, shift: bool) -> str:
    """Mean ± standard deviation of the AUC over seeds, in %."""
    aucs = [100 * t.auc for t in trials if t.method == method and t.shift == shift]
    return f"{np.mean(aucs):.1f} ± {np.std(aucs, ddof=1):.1f}"


def plot(trials: list[Trial], path: Path) -> None:
    """Learning curves, mean and one standard deviation over seeds, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, shift in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        for name, colour in zip(METHODS, ("#0b6e4f", "#d1495b", "#6b7280"), strict=True):
            curves = [t.rounds for t in trials if t.method == name and t.shift == shift]
            sizes = [r.n_labelled for r in curves[0]]
            accuracy = 100 * np.array([[r.accuracy for r in curve] for curve in curves])
            mean, std = accuracy.mean(0), accuracy.std(0, ddof=1)
            axes.plot(sizes, mean, color=colour, label=name, marker="o", markersize=3)
            axes.fill_between(sizes, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
        axes.set_title("dark seed set (shift)" if shift else "no shift")
        axes.set_xlabel("labels")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test accuracy, %")
    figure.axes[1].legend(frameon=False, loc="lower right")
    FigureCanvasAgg(figure).print_png(path)
