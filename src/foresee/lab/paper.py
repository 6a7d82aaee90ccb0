"""The paper's experiments as values, and ours beside them.

The 14 experiments are the paper's table of parameters, the training its table of hyperparameters.
"""

from dataclasses import replace
from typing import Any, TypeAlias

from foresee.errors import InputError
from foresee.lab.experiment import Experiment, Network, Setting
from foresee.recipe import Recipe

SEEDS = 10
_SLOW = Recipe(learning_rate=0.001)  # for SVHN and Camelyon17


# n_seed, n_val, n_pool, n_query, n_test, K, L, J, T.
_Sizes: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]


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


def _narrow(dataset: str, *target: str, **sizes: Any) -> Experiment:
    """The experiment without shift whose target is some classes or a domain of it alone."""
    (wide,) = (e for e in (*EXPERIMENTS, *OURS) if e.dataset == dataset and not e.shift)
    return replace(wide, target=target, **sizes)


# fmt: off
NARROW: tuple[Experiment, ...] = (
    _narrow("CIFAR10", "bird", "cat", "deer", "dog", n_test=5000),
    _narrow("CIFAR100",  # its five groups of mammals
            "beaver", "dolphin", "otter", "seal", "whale",
            "bear", "leopard", "lion", "tiger", "wolf",
            "camel", "cattle", "chimpanzee", "elephant", "kangaroo",
            "fox", "porcupine", "possum", "raccoon", "skunk",
            "hamster", "mouse", "rabbit", "shrew", "squirrel", n_val=3000, n_test=5000),
    _narrow("SVHN", "3", "5", "8", "9"),
    _narrow("MNIST", "3", "5", "8", "9"),
    # The domain that WILDS itself keeps for testing.
    _narrow("Camelyon17", "2"),
    _narrow("iWildCam", "test"),
    _narrow("FMoW", "test"),
    _narrow("digits", "3", "5", "8", "9", n_val=200, n_pool=1200, n_test=300),
    _narrow("FashionMNIST", "T-shirt/top", "Pullover", "Coat", "Shirt"),
)
# fmt: on


def experiment(
    dataset: str,
    shift: bool = False,
    budget: float = 1.0,
    network: Network | None = None,
    *,
    narrow: bool = False,
) -> Experiment:
    """Find an experiment by the name of its data set, in any case, and scale its training.

    Args:
        dataset: one of `datasets`.
        shift: whether the seed set is of another domain.
        budget: the part of the iterations to train for.
        network: another than the experiment's own.
        narrow: whether the target is narrower than the pool; not with ``shift``.

    >>> experiment("mnist", shift=True, budget=0.1).recipe.iterations
    4688
    >>> experiment("mnist", narrow=True).target
    ('3', '5', '8', '9')
    """
    if shift and narrow:
        raise InputError("shift and narrow are two settings: choose one")
    setting: Setting = "narrow" if narrow else "shift" if shift else "noshift"
    known = {(e.dataset.lower(), e.setting): e for e in (*EXPERIMENTS, *OURS, *NARROW)}
    if (dataset.lower(), setting) not in known:
        raise InputError(f"dataset must be one of {', '.join(datasets())}, got {dataset}")
    found = known[dataset.lower(), setting]
    return replace(
        found,
        network=network or found.network,
        recipe=found.recipe.scaled(budget) if budget != 1 else found.recipe,
        budget=budget,
    )


def datasets(ours: bool = True) -> tuple[str, ...]:
    """The names that `experiment` knows, in lower case; without ours, those of the paper."""
    experiments = (*EXPERIMENTS, *OURS) if ours else EXPERIMENTS
    return tuple(dict.fromkeys(e.dataset.lower() for e in experiments))
