"""What a reader must know before trusting a number: what is missing, and what trained badly."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from foresee.lab.experiment import Experiment
from foresee.lab.paper import EXPERIMENTS
from foresee.lab.report import published, words
from foresee.lab.report.study import Study

FEW_SEEDS = 5
POOR_FIT = 0.90  # median train accuracy


def absent(study: Study, methods: Sequence[str]) -> dict[str, list[int]]:
    """Seeds that others ran here and a method of the report did not, nor was it planned to."""
    ran = sorted({trial.seed for trial in study.all if trial.rounds})
    gaps = {}
    for method in methods:
        present = {trial.seed for trial in study.trials.get(method, ())}
        if missing := [seed for seed in ran if seed not in present]:
            gaps[method] = missing
    return gaps


def missing(study: Study, methods: Sequence[str], left_out: Sequence[Exception]) -> list[str]:
    """Name the trials that a reader would look for in vain."""
    total = study.experiment.rounds + 1
    found = []
    waiting: dict[str, list[int]] = defaultdict(list)
    for trial in study.unfinished:
        if trial.rounds:
            here = len(trial.rounds)
            found.append(f"{trial.method} seed {trial.seed} is at {here} of {total} rounds")
        elif any(str(trial.path) in str(problem) for problem in left_out):
            found.append(f"{trial.method} seed {trial.seed} left out")
        else:
            waiting[trial.method].append(trial.seed)
    found += [f"{method}{_seeds(seeds)} not begun" for method, seeds in waiting.items()]
    gaps = absent(study, methods)
    some = [f"{m}{_seeds(seeds)}" for m, seeds in gaps.items() if m in study.trials]
    never = ", ".join(method for method in gaps if method not in study.trials)
    return found + [f"{each} absent" for each in (*some, never) if each]


class Caution(NamedTuple):
    """A sentence on what limits the report, and the section of the page that says more."""

    text: str
    see: str = ""


def cautions(studies: Sequence[Study], methods: Sequence[str], left_out: int = 0) -> list[Caution]:
    """Say in a sentence each what limits the whole report."""
    gone = f"{words.some(left_out, 'file was', 'files were')} left out, whole or in part."
    return [
        *([Caution(gone, see="left-out")] if left_out else []),
        *_about_setups(studies),
        *_about_draws(studies),
        *_about_seeds(studies),
        *_about_gaps(studies, methods),
        *_about_starts(studies),
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


def _about_setups(studies: Sequence[Study]) -> Iterator[Caution]:
    for part, where in _places(studies, shortened):
        yield Caution(f"Networks were trained for {part}{where}.")
    for network, where in _places(studies, _other_network):
        yield Caution(f"The network is {network}{where}: levels differ.")
    for sizes, where in _places(studies, _other_sizes):
        yield Caution(f"Sizes{where} are {sizes} in the paper: levels differ.")
    for part, where in _places(studies, _noise):
        yield Caution(f"Scrambled images are {part} of the pool{where}; they teach nothing.")


def _about_draws(studies: Sequence[Study]) -> Iterator[Caution]:
    def said(study: Study) -> str:
        trials = [t for t in study.all if any(round_.exhausted for round_ in t.rounds)]
        return " and ".join(dict.fromkeys(trial.method for trial in trials))

    for names, where in _places(studies, said):
        yield Caution(
            f"{names} chose batches{where} whose labels can use up the draws: their last picks are "
            "spread by noise."
        )


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
    ours, theirs = study.experiment, _of_paper(study.experiment)
    if theirs is None or theirs.network == ours.network:
        return ""
    return f"{ours.network}, while the paper’s figures stand for {theirs.network}"


def _other_sizes(study: Study) -> str:
    """Name the sizes beside those of the paper; nothing where they agree or the paper has none."""
    theirs = _of_paper(study.experiment)
    if theirs is None or _sizes(theirs) == _sizes(study.experiment):
        return ""
    return f"{_sizes(study.experiment)}, and {_sizes(theirs)}"


def _sizes(setup: Experiment) -> str:
    bought = f"{words.count(setup.n_seed)} + {setup.rounds} × {words.count(setup.n_query)} labels"
    return f"{bought} of {words.count(setup.n_seed + setup.n_pool)} images"


def _noise(study: Study) -> str:
    noise = study.experiment.pool_noise
    return words.part(noise) if noise else ""


def _of_paper(ours: Experiment) -> Experiment | None:
    """The paper's experiment on the same data in the same setting."""
    if ours.setting == "narrow" or ours.pool_noise:
        return None
    key = ours.dataset.lower(), ours.shift
    same = (e for e in EXPERIMENTS if (e.dataset.lower(), e.shift) == key)
    return next(same, None)


def _about_seeds(studies: Sequence[Study]) -> Iterator[Caution]:
    finished = [max(map(len, s.areas.values())) for s in studies if s.areas]
    few = [seeds for seeds in finished if seeds < FEW_SEEDS]
    if few:
        yield Caution(
            f"{words.some(len(few), 'experiment has', 'experiments have')} fewer than {FEW_SEEDS} "
            f"seeds ({words.span(few)}): deviations and p-values there are rough.",
            see="run",
        )


def _about_gaps(studies: Sequence[Study], methods: Sequence[str]) -> Iterator[Caution]:
    begun = sum(len(study.unfinished) for study in studies)
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


def _about_starts(studies: Sequence[Study]) -> Iterator[Caution]:
    for study in studies:
        if study.parted:
            yield Caution(
                f"{study.title}: the methods of{_seeds(study.parted)} began from networks that "
                "differ: they ran on other devices, versions or numbers of threads, whose rounding "
                "is another."
            )


def _about_health(studies: Sequence[Study]) -> Iterator[Caution]:
    number = sum(len(study.unhealthy) for study in studies)
    if number:
        yield Caution(f"{words.some(number, 'round')} trained badly.", see="health")
    again = sum(len(study.restarted) for study in studies)
    if again:
        yield Caution(
            f"{words.some(again, 'round')} trained a second network, as the first never left its "
            "plateau.",
            see="health",
        )
    for study in studies:
        usual = study.fit
        if usual is not None and usual < POOR_FIT:
            yield Caution(
                f"{study.title}: the networks fit only {words.percent(usual)} of their training "
                "sets (median); they were trained too briefly, or cannot fit."
            )


def _seeds(some: Sequence[int]) -> str:
    return f" seed{'s' * (len(some) > 1)} {words.ranges(some)}"
