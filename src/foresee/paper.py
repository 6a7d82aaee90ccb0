"""The paper's experiments and methods as values, and ours beside them.

The 14 experiments are the paper's table of parameters, the training its table of hyperparameters.
"""

import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from foresee.checks import InputError
from foresee.experiment import Experiment, Method, Network
from foresee.samplers import CyclicalNetwork, DropoutNetwork
from foresee.scores import bald, eer, entropy, entropy_mc, mebl, mell, mezl
from foresee.strategies import (
    Badge,
    BatchBALD,
    BatchMell,
    Coreset,
    GreedyConditioning,
    MeblPlusPlus,
    PowerMell,
    Random,
    TopK,
)
from foresee.training import Recipe
from foresee.types import Strategy

SEEDS = 10
_SLOW = Recipe(learning_rate=0.001)  # for SVHN and Camelyon17


_Sizes: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""n_seed, n_val, n_pool, n_query, n_test, K, L, J, T."""


def _pair(
    dataset: str,
    image_size: int,
    classes: int,
    noshift: _Sizes,
    shift: _Sizes,
    recipe: Recipe,
    network: Network = "vgg16",
) -> tuple[Experiment, Experiment]:
    """Both experiments of a data set."""
    return (
        Experiment(dataset, False, image_size, classes, *noshift, network, recipe),
        Experiment(dataset, True, image_size, classes, *shift, network, recipe),
    )


# fmt: off
EXPERIMENTS: tuple[Experiment, ...] = (
    *_pair("CIFAR10", 32, 10, (5000, 5000, 40000, 2500, 10000, 16, 100, 25000, 100),
           (20000, 5000, 25000, 1000, 10000, 20, 100, 10000, 100), Recipe()),
    *_pair("CIFAR100", 32, 100, (5000, 5000, 40000, 2500, 10000, 16, 100, 25000, 100),
           (20000, 5000, 25000, 1000, 10000, 20, 100, 10000, 100), Recipe()),
    *_pair("SVHN", 32, 10, (5000, 5000, 50000, 2500, 10000, 20, 100, 25000, 100),
           (20000, 5000, 35000, 1000, 10000, 20, 100, 10000, 100), _SLOW),
    *_pair("MNIST", 32, 10, (200, 5000, 44800, 80, 10000, 10, 100, 800, 100),
           (200, 5000, 44800, 80, 10000, 10, 100, 800, 100), Recipe()),
    *_pair("Camelyon17", 96, 2, (5000, 5000, 100000, 2500, 10000, 20, 100, 25000, 100),
           (20000, 5000, 100000, 1000, 10000, 20, 100, 10000, 100), _SLOW),
    *_pair("iWildCam", 64, 182, (5000, 5000, 100000, 2500, 10000, 20, 100, 25000, 100),
           (20000, 5000, 100000, 1000, 10000, 20, 100, 10000, 100), Recipe()),
    *_pair("FMoW", 96, 62, (5000, 5000, 100000, 2500, 10000, 20, 100, 25000, 100),
           (20000, 5000, 97000, 1000, 10000, 20, 100, 10000, 100), Recipe()),
)
OURS: tuple[Experiment, ...] = (
    # Small enough for a laptop, in the proportions of MNIST; nothing has to be downloaded.
    *_pair("digits", 8, 10, (20, 300, 870, 10, 600, 8, 100, 200, 100),
           (20, 300, 870, 10, 600, 8, 100, 200, 100),
           Recipe(iterations=300, batch=32, decay_every=200), "mlp"),
    *_pair("FashionMNIST", 28, 10, (200, 5000, 44800, 80, 10000, 10, 100, 800, 100),
           (200, 5000, 44800, 80, 10000, 10, 100, 800, 100), Recipe(), "small_cnn"),
)
# fmt: on

STRATEGIES: dict[str, Callable[[Experiment], Strategy]] = {
    "MELL": lambda e: TopK(mell, e.candidates, e.targets),
    "MEZL": lambda e: TopK(mezl, e.candidates, e.targets),
    "Random": lambda e: Random(),
    "BALD": lambda e: TopK(bald, targets=0),
    "Entropy_MC": lambda e: TopK(entropy_mc, targets=0),
    "Entropy": lambda e: TopK(entropy, point=True),
    "Coreset": lambda e: Coreset(),
    "BADGE": lambda e: Badge(),
    "MELL_MCMC": lambda e: TopK(mell, e.candidates, e.targets),
    "MEBL": lambda e: TopK(mebl, e.candidates),
    "Greedy": lambda e: GreedyConditioning(e.candidates),
    "MEBL++": lambda e: MeblPlusPlus(e.candidates),
    "PowerMELL": lambda e: PowerMell(e.candidates, e.targets),
    "BatchMELL": lambda e: BatchMell(e.candidates, e.targets),
    "BatchBALD": lambda e: BatchBALD(e.candidates),
    "EER": lambda e: TopK(partial(eer, loss=e.loss), e.candidates, e.targets),
}
"""Every method by name: the paper's eight, its MELL with other draws, and ours."""

PAPER_METHODS = tuple(STRATEGIES)[:8]


def experiment(
    dataset: str, shift: bool, budget: float = 1.0, network: Network | None = None
) -> Experiment:
    """Find an experiment by the name of its data set, in any case, and scale its training.

    >>> experiment("mnist", shift=True, budget=0.1).recipe.iterations
    4688
    """
    known = {(e.dataset.lower(), e.shift): e for e in (*EXPERIMENTS, *OURS)}
    if (dataset.lower(), shift) not in known:
        raise InputError(f"dataset must be one of {', '.join(datasets())}, got {dataset}")
    found = known[dataset.lower(), shift]
    return replace(
        found,
        network=network or found.network,
        recipe=found.recipe.scaled(budget) if budget != 1 else found.recipe,
        budget=budget,
    )


def datasets() -> tuple[str, ...]:
    """The names that `experiment` knows, in lower case."""
    return tuple(dict.fromkeys(e.dataset.lower() for e in (*EXPERIMENTS, *OURS)))


def method(
    name: str,
    experiment: Experiment,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str = "cpu",
) -> Method:
    """Build a method for an experiment on images of a given mean and standard deviation.

    ``name`` is a key of `STRATEGIES` or ``file.py:function``, a score or a strategy of your own.
    """
    sampler = DropoutNetwork(
        experiment.network,
        experiment.classes,
        experiment.image_size,
        mean,
        std,
        experiment.recipe,
        experiment.draws,
        device,
    )
    drawn = CyclicalNetwork(sampler) if name == "MELL_MCMC" else sampler
    return Method(short_name(name), drawn, _strategy(name, experiment))


def short_name(method: str) -> str:
    """What a method is called in files and tables.

    >>> short_name("MELL"), short_name("scores/mine.py:margin")
    ('MELL', 'margin')
    """
    return method.rpartition(":")[2]


def _strategy(name: str, experiment: Experiment) -> Strategy:
    if name in STRATEGIES:
        return STRATEGIES[name](experiment)
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
    """Load ``file.py:function``; the module is named after its content, so changes are noticed."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(
            f"method {name}: there is no file {file or name!r}: write file.py:function, or one of "
            f"{', '.join(STRATEGIES)}"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"method {name}: {file} must be a Python file, such as mine.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's file does
        raise InputError(f"method {name}: {file} does not run ({error!r}): mend it") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(
            f"method {name}: {file} has no function {function!r}: define it, as in docs/add-a-score"
        )
    _arguments(name, found)
    return found
