"""Ways to choose that `foresee run` knows by name: the paper's, ours, and those people bring."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from foresee.errors import InputError
from foresee.lab.experiment import Experiment, Method, Network
from foresee.lab.samplers import CyclicalNetwork, DropoutNetwork
from foresee.scores import bald, eer, entropy, entropy_mc, margin, mebl, mell, mezl
from foresee.strategies import (
    Badge,
    Bait,
    BatchBALD,
    BatchMell,
    Coreset,
    Default,
    GreedyConditioning,
    MaxHerding,
    MeblPlusPlus,
    PowerMell,
    Random,
    RelevantBadge,
    TopK,
    TypiClust,
    UncertaintyHerding,
)
from foresee.types import Sampler, Strategy


@dataclass(frozen=True)
class Entry:
    """A method that goes by a name: how it chooses, to which group it belongs, how it draws.

    ``strategy`` is made for an experiment, as it may need the experiment's sizes; ``group`` is
    "paper", "ours", or "loss" for methods that minimise an experiment's loss matrix and need one;
    ``chain`` says that it draws by cyclical SG-MCMC, and not as the experiment does.

    >>> Entry(lambda e: TopK(mebl, e.candidates)).group
    'ours'
    """

    strategy: Callable[[Experiment], Strategy]
    group: Literal["paper", "ours", "loss"] = "ours"
    chain: bool = False


# What ``--methods`` knows by name, in the order of reports; add an `Entry` to add a method.
METHODS: dict[str, Entry] = {
    "MELL": Entry(lambda e: TopK(mell, e.candidates, e.targets), "paper"),
    "MEZL": Entry(lambda e: TopK(mezl, e.candidates, e.targets), "paper"),
    "Random": Entry(lambda e: Random(), "paper"),
    "BALD": Entry(lambda e: TopK(bald, targets=0), "paper"),
    "Entropy_MC": Entry(lambda e: TopK(entropy_mc, targets=0), "paper"),
    "Entropy": Entry(lambda e: TopK(entropy, point=True), "paper"),
    "Coreset": Entry(lambda e: Coreset(), "paper"),
    "BADGE": Entry(lambda e: Badge(), "paper"),
    "MELL_MCMC": Entry(lambda e: TopK(mell, e.candidates, e.targets), chain=True),
    "MEBL": Entry(lambda e: TopK(mebl, e.candidates)),
    "Default": Entry(lambda e: Default()),
    # What the default was at first, and then: as Greedy, of more candidates.
    "Greedy4000": Entry(lambda e: GreedyConditioning(max(4000, 10 * e.n_query), 1000)),
    "GreedySure": Entry(
        lambda e: GreedyConditioning(max(4000, 10 * e.n_query), 1000, aleatoric=False)
    ),
    "Greedy": Entry(lambda e: GreedyConditioning(e.candidates)),
    "MEBL++": Entry(lambda e: MeblPlusPlus(e.candidates)),
    "PowerMELL": Entry(lambda e: PowerMell(e.candidates, e.targets)),
    "BatchMELL": Entry(lambda e: BatchMell(e.candidates, e.targets)),
    "BatchBALD": Entry(lambda e: BatchBALD(e.candidates)),
    "RelevantBADGE": Entry(lambda e: RelevantBadge(targets=e.targets)),
    "UHerding": Entry(lambda e: UncertaintyHerding()),
    "MaxHerding": Entry(lambda e: MaxHerding()),
    "TargetUHerding": Entry(lambda e: UncertaintyHerding(cover="target")),
    "TargetHerding": Entry(lambda e: MaxHerding(cover="target")),
    "TypiClust": Entry(lambda e: TypiClust()),
    "BAIT": Entry(lambda e: Bait(axes=128)),
    "TargetBAIT": Entry(lambda e: Bait(focus="target", axes=128)),
    "Margin": Entry(lambda e: TopK(margin, targets=0)),
    "EER": Entry(lambda e: TopK(partial(eer, loss=e.loss), e.candidates, e.targets), "loss"),
}


def group(name: str) -> list[str]:
    """Name the methods of a group: "paper", "ours" or "loss".

    >>> group("loss")
    ['EER']
    """
    return [method for method, entry in METHODS.items() if entry.group == name]


def named(names: Iterable[str], argument: str, with_loss: bool = False) -> list[str]:
    """Turn words of people into names of methods, each once.

    Args:
        names: methods in any case, ``paper`` for its eight, ``all``, or file.py:function.
        argument: what the caller calls these words.
        with_loss: whether ``all`` has methods that need a loss matrix.

    >>> named(["mell", "MELL", "random"], "--methods")
    ['MELL', 'Random']
    """
    known = {name.lower(): name for name in METHODS}
    groups = {
        "all": [name for name in METHODS if with_loss or name not in group("loss")],
        "paper": group("paper"),
    }
    chosen: list[str] = []
    for name in filter(None, (part.strip() for part in names)):
        lower = name.lower()
        if ":" in name:
            own(name)
            chosen.append(name)
        elif lower in known or lower in groups:
            chosen += groups.get(lower) or [known[lower]]
        else:
            raise InputError(
                f"{argument} knows {', '.join(known)}, paper (its eight), all, and "
                f"file.py:function, got {name}"
            )
    if not chosen:
        raise InputError(f"{argument} is empty: name at least one, such as mell")
    return list(dict.fromkeys(chosen))


def method(
    name: str,
    experiment: Experiment,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str = "cpu",
) -> Method:
    """Build a method for an experiment on images of a given mean and standard deviation.

    ``name`` is a key of `METHODS` or ``file.py:function``, a score or a strategy of your own.
    """
    sampler = DropoutNetwork(
        cast("Network", experiment.network),
        experiment.classes,
        experiment.image_size,
        mean,
        std,
        experiment.recipe,
        experiment.draws,
        device,
    )
    return drawn_by(name, experiment, sampler)


def drawn_by(name: str, experiment: Experiment, sampler: Sampler) -> Method:
    """Build a method for an experiment, on the draws of a sampler."""
    if name in METHODS and METHODS[name].chain:
        if not isinstance(sampler, DropoutNetwork):
            raise InputError(
                f"method {name} draws by a chain of a network's weights, and the model is none: "
                "leave it out"
            )
        sampler = CyclicalNetwork(sampler)
    return Method(short_name(name), sampler, _strategy(name, experiment))


def short_name(method: str) -> str:
    """What a method is called in files and tables.

    >>> short_name("MELL"), short_name("scores/mine.py:margin")
    ('MELL', 'margin')
    """
    return method.rpartition(":")[2]


def _strategy(name: str, experiment: Experiment) -> Strategy:
    if name in METHODS:
        return METHODS[name].strategy(experiment)
    function = own(name)
    arguments = _arguments(name, function)
    if arguments == 3:
        return function
    if arguments == 2:
        return TopK(function, experiment.candidates, experiment.targets)
    return TopK(partial(_without_target, function), experiment.candidates, targets=0)


def _without_target(score: Callable[[Any], Any], pool: Any, _: None) -> Any:
    return score(pool)


def _arguments(name: str, function: Any) -> int:
    """How many arguments a function is given: 1 or 2 for a score, 3 for a strategy."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # C code does not tell
        signature = inspect.Signature()
    parameters = signature.parameters.values()
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in by_place)
    if needed == 1 and len(by_place) > 1 and by_place[1].default is None:
        needed = 2  # (pool, val=None), as the scores of foresee have it
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if needed not in (1, 2, 3) or by_name:
        raise InputError(
            f"method {name} must take (pool) or (pool, val), a score, or (view, size, rng), a "
            f"strategy; got {signature}: give every other argument a default"
        )
    return needed


def own(name: str) -> Any:
    """Load a score or a strategy from ``file.py:function``."""
    found = load(name, "method", METHODS)
    _arguments(name, found)
    return found


def load(name: str, what: str, known: Iterable[str] = ()) -> Any:
    """Load ``file.py:function``; the module is named after its content, so changes are noticed.

    ``what`` it is to be, messages say, and the ``known`` names that would do instead.
    """
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not function.isidentifier():  # it names files: nothing that leads out of a folder
        raise InputError(
            f"{what} {name}: {function!r} is no name of a function: write file.py:function"
        )
    if not path.is_file():
        raise InputError(
            f"{what} {name}: there is no file {file or name!r}: write file.py:function, or "
            f"one of {', '.join(known)}"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{what} {name}: {file} must be a Python file, such as mine.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up the names in their annotations
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a stranger's file does
        raise InputError(f"{what} {name}: {file} does not run ({error!r}): mend it") from error
    finally:  # or joblib would have its processes import what they cannot
        sys.modules.pop(spec.name, None)
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(
            f"{what} {name}: {file} has no function {function!r}: define it, as in docs/add-a-score"
        )
    return found
