"""Experiments as plain values: what is run, and what every round found out. No torch here."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from foresee.errors import InputError
from foresee.recipe import Recipe

if TYPE_CHECKING:
    from foresee.types import Sampler, Strategy

_PAPER = Recipe()
Network: TypeAlias = Literal["vgg16", "small_cnn", "slim_cnn", "mlp"]
Setting: TypeAlias = Literal["noshift", "shift", "narrow"]


@dataclass(frozen=True)
class Own:
    """Data that people bring, as far as it decides what an experiment finds.

    Args:
        kind: of the source: "folder" of images, "npz", "parquet" or "csv".
        digest: of all that is read from it; where it lies does not matter.
        inputs: columns or arrays that the model reads; none: all but the others.
        labels: the column or array of labels.
        domain: the column or array of domains; "folder": the first level of a folder is one.
        source: the domains that the seed set of a shift comes from.
        channels: of images.
        posterior: what fits and draws: "dropout" for networks, "forest", "logistic", "tfidf", or
            file.py:function.
    """

    kind: str
    digest: str
    inputs: tuple[str, ...] = ()
    labels: str = ""
    domain: str = ""
    source: tuple[str, ...] = ()
    channels: int = 3
    posterior: str = "dropout"


@dataclass(frozen=True)
class Experiment:
    """The sizes of an experiment, as in the paper's table of parameters, and its training.

    ``rounds`` is K, ``targets`` L, ``candidates`` J and ``draws`` T of the paper. ``loss[y][a]`` is
    the cost of taking action a when the class is y, for those who count costs and not errors.
    ``budget`` is the part of the full training that ``recipe`` was scaled to. ``network`` is one of
    `Network` or, with data of one's ``own``, file.py:function or the name of another model.
    ``target`` are the classes, or the domains, of the validation and test sets where these are
    narrower than the seed set and the pool; none: all. ``pool_noise`` is the share of the pool that
    is scrambled: see `noisy`.
    """

    dataset: str
    shift: bool
    image_size: int
    classes: int
    n_seed: int
    n_val: int
    n_pool: int
    n_query: int
    n_test: int
    rounds: int
    targets: int
    candidates: int
    draws: int
    network: str = "vgg16"
    recipe: Recipe = _PAPER
    loss: tuple[tuple[float, ...], ...] | None = None
    budget: float = 1.0
    own: Own | None = None
    target: tuple[str, ...] = ()
    pool_noise: float = 0.0

    @property
    def name(self) -> str:
        """Name its folder in a store."""
        noise = f"-noise{100 * self.pool_noise:g}" if self.pool_noise else ""
        return f"{self.dataset.lower()}-{self.setting}{noise}"

    @property
    def setting(self) -> Setting:
        """Whether the seed set is of another domain, or the pool wider than the target."""
        if self.target:
            return "narrow"
        return "shift" if self.shift else "noshift"


def noisy(experiment: Experiment, share: float) -> Experiment:
    """Let a share of the pool be scrambled images, which keep their labels and teach nothing.

    Args:
        experiment: on images.
        share: from 0 to 1, exclusive; the nearest whole number of images is scrambled.

    >>> from foresee.lab.paper import experiment
    >>> noisy(experiment("mnist", narrow=True), 0.2).name
    'mnist-narrow-noise20'
    """
    if not 0 <= share < 1:
        raise InputError(f"pool_noise must be a share from 0 to less than 1, got {share}")
    if share and not experiment.image_size:
        raise InputError(
            f"pool_noise permutes the pixels of images, and {experiment.dataset} has none: leave it"
            " out"
        )
    return replace(experiment, pool_noise=share)


@dataclass(frozen=True)
class Method:
    """A named way to choose: how the posterior is drawn and how the picks are made."""

    name: str
    sampler: "Sampler"
    strategy: "Strategy"


Stage: TypeAlias = Literal["train", "test", "sample", "score", "select", "promise"]


@dataclass(frozen=True)
class Round:
    """What one round of active learning found: the model at its start, then what it picked.

    ``picks`` are positions in the task's pool, ``labels`` their classes; the last round has none.
    Test losses are means over the test set: ``brier`` sums over the classes (0 to 2),
    ``calibration_error`` is the expected one over 15 bins of confidence. ``cost`` is the mean loss
    of the best actions under the experiment's loss matrix. ``train_loss`` and ``train_accuracy``
    are the health of the training. ``promise`` is the fall of the Brier loss on the validation set
    expected from these picks, ``promise_pool`` that from the whole rest of the pool. ``draws`` is
    how many the method looked at, if any, ``exhausted`` whether its batch could use them up.
    ``restarted`` says that a first network never left its plateau and a second was trained,
    ``stuck`` that the second did not either. ``seconds`` of a training that was done once for
    several trials count in each of them. ``in_target`` is the share of the picks that the target
    has too, where it is narrow, ``scrambled`` that of noise in the pool; what is scrambled is not
    in the target.
    """

    number: int
    n_labelled: int
    accuracy: float
    log_loss: float
    brier: float
    calibration_error: float
    picks: tuple[int, ...]
    labels: tuple[int, ...]
    seconds: tuple[tuple[Stage, float], ...]
    cost: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    promise: float | None = None
    promise_pool: float | None = None
    restarted: bool = False
    draws: int | None = None
    exhausted: bool = False
    in_target: float | None = None
    scrambled: float | None = None
    stuck: bool = False
