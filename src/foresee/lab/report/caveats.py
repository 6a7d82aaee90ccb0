"""What a reader must know before trusting a number: what is missing, and what trained badly."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from foresee.lab.experiment import Round
from foresee.lab.paper import EXPERIMENTS
from foresee.lab.report import published, words
from foresee.lab.report.measures import areas
from foresee.lab.report.study import Study
from foresee.lab.store import Trial

FEW_SEEDS = 5
GUESSING = 0.95  # of log(classes), the loss of a network that learnt nothing
BEHIND = 0.10  # in train accuracy, under the median of the trials at the same round
POOR_FIT = 0.90  # median train accuracy


def unfinished(study: Study) -> list[Trial]:
    """The trials that have not come to their last round."""
    return [trial for trial in study.all if not trial.finished]


def not_begun(study: Study) -> dict[str, list[int]]:
    """Seeds by method that were planned and have no round yet."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for trial in study.all:
        if not trial.rounds:
            waiting[trial.method].append(trial.seed)
    return waiting


def absent(study: Study, methods: Sequence[str]) -> dict[str, list[int]]:
    """Seeds that others ran here and a method of the report did not, nor was it planned to."""
    ran = sorted({trial.seed for trial in study.all if trial.rounds})
    gaps = {}
    for method in methods:
        present = {trial.seed for trial in study.trials.get(method, ())}
        if missing := [seed for seed in ran if seed not in present]:
            gaps[method] = missing
    return gaps


class Unhealthy(NamedTuple):
    """A round whose network is not what the round was meant to measure."""

    study: Study
    trial: Trial
    round: Round
    problem: str


def unhealthy(study: Study) -> list[Unhealthy]:
    """List the rounds whose training went wrong; one such round ruins an AUC.

    Not finite: a loss is NaN or infinite. Plateau: the train loss is that of guessing. Behind: the
    train accuracy is more than 10 points under the median of all trials at the same round.
    """
    usual = _usual_accuracy(study)
    return [
        Unhealthy(study, trial, round_, problem)
        for trial in study.all
        for round_ in trial.rounds
        if (problem := _what_is_wrong(round_, study.experiment.classes, usual))
    ]


def fit(study: Study) -> float | None:
    """Median train accuracy of all rounds; None where it was not recorded."""
    values = [value for _, value in _train_accuracies(study)]
    return median(values) if values else None


class Caution(NamedTuple):
    """A sentence on what limits the report, and the section of the page that says more."""

    text: str
    see: str = ""


def cautions(studies: Sequence[Study], methods: Sequence[str]) -> list[Caution]:
    """Say in a sentence each what limits the whole report."""
    return [
        *_about_training(studies),
        *_about_seeds(studies),
        *_about_gaps(studies, methods),
        *_about_health(studies),
    ]


def shortened(study: Study) -> str:
    """Say how far the training was cut or stretched; nothing where it was not."""
    part = study.experiment.budget
    if part == 1:
        return ""
    known = any(name == study.experiment.dataset.lower() for name, *_ in published.aucs())
    whose = "the paper’s" if known else "the full"
    return f"{words.part(part)} of {whose} iterations"


def _about_training(studies: Sequence[Study]) -> Iterator[Caution]:
    for part, where in _places(studies, shortened):
        yield Caution(f"Networks were trained for {part}{where}.")
    for network, where in _places(studies, _other_network):
        yield Caution(f"The network is {network}{where}: levels differ.")


def _places(studies: Sequence[Study], said_of: Callable[[Study], str]) -> Iterator[tuple[str, str]]:
    """Gather the studies of which the same is said; where it is all of them, name none."""
    groups: dict[str, list[str]] = defaultdict(list)
    for study in studies:
        groups[said_of(study)].append(study.title)
    for said, titles in groups.items():
        if said:
            yield said, "" if len(titles) == len(studies) else f" in {'; '.join(titles)}"


def _other_network(study: Study) -> str:
    """Name the network beside that of the paper; nothing where they agree or the paper has none."""
    ours = study.experiment
    for theirs in EXPERIMENTS:
        same = (theirs.dataset.lower(), theirs.shift) == (ours.dataset.lower(), ours.shift)
        if same and theirs.network != ours.network:
            return f"{ours.network}, while the paper’s figures stand for {theirs.network}"
    return ""


def _about_seeds(studies: Sequence[Study]) -> Iterator[Caution]:
    finished = [max(map(len, by_method.values())) for s in studies if (by_method := areas(s))]
    few = [seeds for seeds in finished if seeds < FEW_SEEDS]
    if few:
        yield Caution(
            f"{words.some(len(few), 'experiment has', 'experiments have')} fewer than {FEW_SEEDS} "
            f"seeds ({words.span(few)}): deviations and p-values there are rough.",
            see="run",
        )


def _about_gaps(studies: Sequence[Study], methods: Sequence[str]) -> Iterator[Caution]:
    begun = sum(len(unfinished(study)) for study in studies)
    never = sum(len(seeds) for study in studies for seeds in absent(study, methods).values())
    if begun:
        yield Caution(
            f"{words.some(begun, 'trial is', 'trials are')} unfinished: in the curves as far as "
            "they go, and in no area.",
            see="missing",
        )
    if never:
        yield Caution(
            f"{words.some(never, 'trial is', 'trials are')} absent, of methods and seeds that ran "
            "elsewhere.",
            see="missing",
        )


def _about_health(studies: Sequence[Study]) -> Iterator[Caution]:
    number = sum(len(unhealthy(study)) for study in studies)
    if number:
        yield Caution(f"{words.some(number, 'round')} trained badly.", see="health")
    for study in studies:
        usual = fit(study)
        if usual is not None and usual < POOR_FIT:
            yield Caution(
                f"{study.title}: the networks fit only {words.percent(usual)} of their training "
                "sets (median); they were trained too briefly, or cannot fit."
            )


def _usual_accuracy(study: Study) -> dict[int, float]:
    groups: dict[int, list[float]] = defaultdict(list)
    for number, value in _train_accuracies(study):
        groups[number].append(value)
    return {number: median(values) for number, values in groups.items()}


def _train_accuracies(study: Study) -> Iterator[tuple[int, float]]:
    for trial in study.all:
        for round_ in trial.rounds:
            if round_.train_accuracy is not None and math.isfinite(round_.train_accuracy):
                yield round_.number, round_.train_accuracy


def _what_is_wrong(round_: Round, classes: int, usual: dict[int, float]) -> str:
    measured = (round_.train_loss, round_.train_accuracy, round_.accuracy, round_.log_loss)
    if not all(math.isfinite(value) for value in (*measured, round_.brier) if value is not None):
        return "not finite"
    if round_.train_loss is not None and round_.train_loss >= GUESSING * math.log(classes):
        return "plateau"
    if round_.train_accuracy is not None:
        behind = usual[round_.number] - round_.train_accuracy
        if behind > BEHIND:
            return f"{100 * behind:.0f} points behind"
    return ""
