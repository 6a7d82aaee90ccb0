"""Data and models that people bring, for experiments of their own.

`read` gives rows with labels, whatever they are: images, numbers or texts. `split` and `task` do
for them what `foresee.lab.data` does for the sets that are known by name; `sampler` makes what fits
them.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foresee import checks, networks, seeding
from foresee.errors import InputError
from foresee.lab import methods
from foresee.lab.data.splits import PARTS, Split, draw_narrow, in_target
from foresee.lab.experiment import Experiment, Network, Own
from foresee.lab.samplers import DropoutNetwork
from foresee.reading import sources
from foresee.seeding import generator
from foresee.training import seeded
from foresee.types import Array, Inputs, Posterior, Sampler, Task, more_draws

BUILT_IN = ("forest", "logistic", "tfidf")
_CHUNK = 64 << 20  # bytes that are hashed at once
_DRIFT = 1e-3  # standard deviations by which a mean in float32 may be off


@dataclass(frozen=True, eq=False)
class Data:
    """Rows with labels, and what is known of them.

    Args:
        name: of the data set, in lower case.
        inputs: bytes [n channels height width], float32 [n d], or an array of texts [n].
        labels: int64 [n], positions in ``classes``.
        classes: the names of the classes.
        domains: the domain of each row [n], where they are told apart.
    """

    name: str
    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    domains: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "numbers", "texts"]:
        """What the rows are."""
        if self.inputs.dtype == object:
            return "texts"
        return "images" if self.inputs.ndim == 4 else "numbers"

    @functools.cached_property
    def digest(self) -> str:
        """Of all that can change what an experiment finds."""
        found = hashlib.sha256(repr((self.inputs.shape, self.inputs.dtype, self.classes)).encode())
        found.update(self.labels.tobytes())
        for values in (self.domains,) if self.kind != "texts" else (self.domains, self.inputs):
            found.update(repr(None if values is None else values.tolist()).encode())
        rows = max(1, _CHUNK // max(1, self.inputs[:1].nbytes))
        for start in range(0, len(self) if self.kind != "texts" else 0, rows):
            found.update(np.ascontiguousarray(self.inputs[start : start + rows]).data)
        return found.hexdigest()


def read(
    name: str,
    own: Own,
    size: int,
    path: Path,
    cache: Path | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Data:
    """Read one's own data.

    Args:
        name: of the data set.
        own: which columns or arrays mean what.
        size: the side of images in a folder, to which they are squeezed.
        path: a folder of images, or a .npz, .parquet or .csv file.
        cache: where decoded images go, and what is in a large table.
        advance: hears how many images of all are decoded.

    >>> Path("reviews.csv").write_text("text,stars\\nfine,5\\ndull,1\\n") > 0
    True
    >>> found = read("reviews", Own("csv", "", ("text",), "stars"), 0, Path("reviews.csv"))
    >>> found.kind, found.classes, found.labels
    ('texts', ('1', '5'), array([1, 0]))
    """
    if path.is_dir():
        found = sources.folder(path, size, own.channels, cache, advance)
        depth = 1 if own.domain else 0
        parts = [str(row).split("/") for row in found.ids]
        if any(len(part) < depth + 2 for part in parts):
            wanted = "domain/class/image" if depth else "class/image"
            short = min(parts, key=len)
            raise InputError(
                f"{path} must hold images as {wanted}, got {'/'.join(short)}: put each in the "
                "sub-folder of its class"
            )
        labels: Any = [part[depth] for part in parts]
        domains = np.array([part[0] for part in parts]) if depth else None
    else:
        found = sources.read(path, inputs=own.inputs or None, labels=own.labels, cache=cache)
        labels = found.labels
        domains = _domains(path, own.domain, len(found)) if own.domain else None
    classes, positions = _encoded(path, labels)
    return Data(name.lower(), _inputs(path, found.inputs), positions, classes, domains)


def _domains(path: Path, name: str, n: int) -> NDArray[Any]:
    found = sources.read(path, inputs=name, labels=name).labels or []
    if len(found) != n:
        raise InputError(
            f"{path} holds {n} rows of inputs and {len(found)} domains: one for each row is needed"
        )
    check_known(path, found, "domain")
    return np.array([str(value) for value in found])


def check_known(path: Path, values: Any, what: str) -> None:
    """Refuse labels or domains of which some are missing."""
    missing = sum(value is None or value == "" or value != value for value in values)
    if missing:
        raise InputError(
            f"{path}: {missing} of {len(values)} rows have no {what}, and an experiment must know "
            "them all: leave those rows out"
        )


def _encoded(path: Path, labels: Any) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes, numbers by size and all else by name, and each row's position."""
    check_known(path, labels, "label")
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in labels)
    values = labels if numbers else [str(label) for label in labels]
    known = sorted(set(values))
    where = {value: place for place, value in enumerate(known)}
    if len(known) < 2:
        raise InputError(f"{path} has {len(known)} class; at least 2 are needed: look at labels")
    return tuple(map(str, known)), np.array([where[value] for value in values], np.int64)


def _inputs(path: Path, inputs: Any) -> NDArray[Any]:
    if not isinstance(inputs, np.ndarray) or (inputs.dtype.kind == "U" and inputs.ndim == 1):
        return np.array([str(text) for text in inputs], dtype=object)
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        if inputs.ndim == 3:
            return inputs[:, None]
        last = inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3)
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if last else inputs
    if inputs.dtype.kind not in "biuf":
        raise InputError(
            f"{path} must hold numbers, texts, or images as bytes, got {inputs.dtype}: convert it"
        )
    numbers = inputs.reshape(len(inputs), -1).astype(np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers).all(1))[0])
        raise InputError(f"{path}: row {row} is not finite: fill what is missing, or leave it out")
    return numbers


class TooFewError(InputError):
    """There are fewer rows than an experiment needs; ``sizes`` names what it needs them for."""

    def __init__(self, message: str, *sizes: str) -> None:
        super().__init__(message)
        self.sizes = sizes


def split(data: Data, experiment: Experiment, seed: int) -> Split:
    """Draw an experiment's sets; rows of ``data``.

    Without shift all four are drawn from all rows. With shift the seed set comes from the source
    domains and the others from all other domains. If the target is narrow, the validation and test
    sets come from the target classes, and the seed set and the pool from all rows that are left.

    >>> rows = Data("toy", np.zeros((9, 2), np.float32), np.arange(9) % 3, ("a", "b", "c"))
    >>> toy = Experiment("toy", False, 0, 3, 2, 1, 3, 1, 1, 1, 1, 3, 10, own=Own("npz", ""),
    ...                  target=("b",))
    >>> rows.labels[split(rows, toy, seed=0).test]
    array([1])
    """
    rng, name = generator(seed, "split"), data.name
    n = {part: getattr(experiment, f"n_{part}") for part in PARTS}
    if experiment.setting == "narrow":
        inside = in_target(experiment.target, data)
        _check(name, "of the target classes", int(inside.sum()), n, "val", "test")
        _check(name, "beside val and test", len(data) - n["val"] - n["test"], n, "seed", "pool")
        return Split(name, len(data), *draw_narrow(inside, experiment, rng))
    everything = rng.permutation(len(data))
    if experiment.setting == "shift":
        inside = in_source(data, experiment)[everything]
        first, rest = everything[inside], everything[~inside]
        _check(name, "in the source domains", len(first), n, "seed")
        _check(name, "in the other domains", len(rest), n, "val", "pool", "test")
    else:
        _check(name, "in all", len(data), n, *n)
        first, rest = np.split(everything, [n["seed"]])
    val, pool, test, _ = np.split(rest, np.cumsum([n["val"], n["pool"], n["test"]]))
    return Split(name, len(data), first[: n["seed"]], val, pool, test)


def in_source(data: Data, experiment: Experiment) -> NDArray[np.bool_]:
    """Which rows [n] are of the source domains."""
    assert data.domains is not None
    assert experiment.own is not None
    return np.isin(data.domains, experiment.own.source)


def _check(name: str, where: str, there: int, n: dict[str, int], *parts: str) -> None:
    needed = sum(n[part] for part in parts)
    if needed > there:
        told = " + ".join(f"n_{part} {n[part]}" for part in parts)
        raise TooFewError(
            f"{name} has {there} rows {where}, and {needed} are needed ({told}): ask for "
            f"{needed - there} fewer",
            *(f"n_{part}" for part in parts),
        )


def task(data: Data, split: Split, experiment: Experiment, device: str = "cpu") -> Task:
    """Copy the sets into memory and hide the pool's labels behind an oracle.

    Networks read tensors on their device: bytes of images, or numbers of mean 0 and sd 1 over all
    rows. All other models read arrays.
    """
    network = experiment.own is not None and experiment.own.posterior == "dropout"
    moments = _moments(data.inputs) if network and data.kind == "numbers" else None

    def rows(which: NDArray[np.int64]) -> Any:
        held = data.inputs[which]
        if moments:
            held = (held - moments[0]) / moments[1]
        return torch.from_numpy(held).to(device) if network else held

    return Task(
        n_classes=len(data.classes),
        seed=rows(split.seed),
        seed_labels=data.labels[split.seed],
        pool=rows(split.pool),
        val=rows(split.val),
        test=rows(split.test),
        test_labels=data.labels[split.test],
        oracle=data.labels[split.pool].__getitem__,
    )


def _moments(inputs: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean, std = inputs.mean(0), inputs.std(0)
    exact = inputs.mean(0, dtype=np.float64)
    drifted = np.abs(mean - exact) > _DRIFT * std  # as sums of many or large float32 do
    if drifted.any():
        mean[drifted] = exact[drifted]
        std[drifted] = inputs[:, drifted].std(0, dtype=np.float64)
    return mean, np.where(std > 0, std, np.float32(1))


@dataclass(frozen=True)
class Shape:
    """What a sampler must know of the data beside the experiment: no row of it.

    ``inputs`` is the shape of one row, ``mean`` and ``std`` are of the channels of images.
    """

    inputs: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def shape(data: Data) -> Shape:
    """Look at the data.

    >>> shape(Data("toy", np.zeros((9, 2), np.float32), np.arange(9) % 3, ("a", "b", "c"))).inputs
    (2,)
    """
    pixels = networks.statistics(data.inputs) if data.kind == "images" else ((), ())
    return Shape(data.inputs.shape[1:], *pixels)


def load(home: Path, name: str) -> Any:
    """Load a model's ``file.py:function`` from a folder."""
    return methods.load(str(home / name), "model", (*get_args(Network), *BUILT_IN))


def sampler(
    experiment: Experiment, shape: Shape, load: Callable[[str], Any], device: str = "cpu"
) -> Sampler:
    """Make what fits the model of an experiment and draws from its posterior.

    Args:
        experiment: whose ``network`` and ``own.posterior`` are built in or file.py:function.
        shape: of the data.
        load: finds the function of file.py:function.
        device: of networks.
    """
    own, classes, draws = experiment.own, experiment.classes, experiment.draws
    assert own is not None
    if own.posterior in BUILT_IN:
        return SklearnModel(own.posterior, classes, draws)
    if own.posterior != "dropout":
        return OwnPosterior(load(own.posterior), classes)
    network: Any = experiment.network
    sizes = (classes, experiment.image_size, shape.mean, shape.std, experiment.recipe, draws)
    if ":" in network:
        return OwnNetwork("mlp", *sizes, device, load(network), shape.inputs)
    if len(shape.inputs) == 1:
        if network != "mlp":
            raise InputError(f"network {network} reads images, and the data are numbers: use mlp")
        return OwnNetwork("mlp", *sizes, device, _mlp, shape.inputs)
    if shape.inputs[1] != shape.inputs[2]:
        raise InputError(
            f"network {network} reads square images [channels height width], got "
            f"{list(shape.inputs)}: crop or pad them, or bring a network of your own"
        )
    return DropoutNetwork(network, *sizes, device)


def _mlp(classes: int, shape: tuple[int, ...], seed: int) -> nn.Module:
    return networks.mlp(shape[0], classes, seed=seed)


@dataclass(frozen=True)
class OwnNetwork(DropoutNetwork):
    """Train a network that somebody brings, and draw by MC dropout.

    ``make(classes, shape)`` builds it: a module with dropout that maps floats [n, *shape] of mean 0
    and sd 1 to logits [n classes]. It may also ask for ``seed``; torch is seeded either way.
    """

    make: Callable[..., nn.Module] = _mlp
    shape: tuple[int, ...] = ()

    def build(self, seed: int) -> nn.Sequential:
        """Build the untrained network, on its device."""
        with seeded(torch.device("cpu"), seed):
            body = _called(self.make, classes=self.classes, shape=self.shape, seed=seed)
        if not isinstance(body, nn.Module):
            raise InputError(
                f"{_name(self.make)} must return a torch.nn.Module, got {type(body).__name__}"
            )
        first = [networks.Standardise(self.mean, self.std)] if self.mean else []
        return nn.Sequential(*first, body).to(self.device)


@dataclass(frozen=True)
class OwnPosterior:
    """Fit by a function ``fit(inputs, labels, rng)``, which may ask for ``classes`` too."""

    fit: Callable[..., Posterior]
    classes: int

    def __call__(self, inputs: Inputs, labels: Array, rng: np.random.Generator) -> Posterior:
        """Fit, and check from then on that there are as many columns as classes."""
        given = {"inputs": inputs, "labels": labels, "rng": rng, "classes": self.classes}
        fitted = _called(self.fit, **given)
        for name in ("predict", "point"):
            if not callable(getattr(fitted, name, None)):
                raise InputError(
                    f"{_name(self.fit)} must return a posterior, with predict(inputs) [n t c] "
                    f"and point(inputs) [n c], got {type(fitted).__name__}: return what "
                    "foresee.posteriors.bootstrap gives, or a class with both"
                )
        return _Checked(fitted, _name(self.fit), self.classes)


def _name(function: Callable[..., Any]) -> str:
    """What messages call it: a partial, or an object that is called, has no name of its own."""
    return getattr(function, "__name__", type(function).__name__)


def _called(function: Callable[..., Any], **given: Any) -> Any:
    """Call a function by place with what it asks for: of the last ones it may ask for fewer."""
    parameters = inspect.signature(function).parameters
    if any(name not in given and p.default is p.empty for name, p in parameters.items()):
        raise InputError(
            f"{_name(function)} must take ({', '.join(given)}) or some of these, got "
            f"({', '.join(parameters)}): rename its arguments"
        )
    return function(**{name: value for name, value in given.items() if name in parameters})


@dataclass(frozen=True)
class _Checked:
    """A posterior whose answers are looked at."""

    posterior: Any
    who: str
    classes: int

    def predict(self, inputs: Inputs) -> Array:
        return self._columns("predict", self.posterior.predict(inputs), "n t c", len(inputs))

    def point(self, inputs: Inputs) -> Array:
        return self._columns("point", self.posterior.point(inputs), "n c", len(inputs))

    def embed(self, inputs: Inputs) -> Array:
        return self.posterior.embed(inputs)

    def at_least(self, draws: int) -> "_Checked":
        return replace(self, posterior=more_draws(self.posterior, draws))

    def _columns(self, name: str, values: Any, axes: str, n: int) -> Array:
        found: Array = checks.array(f"{name} of what {self.who} returns", values, axes)
        if (len(found), found.shape[-1]) != (n, self.classes):
            raise InputError(
                f"{name} of what {self.who} returns must have {n} rows and {self.classes} classes, "
                f"got {list(found.shape)}: let {self.who} take classes, and pass it on"
            )
        return found


@dataclass(frozen=True)
class SklearnModel:
    """Fit a model of scikit-learn: a forest, whose trees are the draws, or the bootstrap.

    ``kind`` is "forest", "logistic" (of numbers) or "tfidf" (the same of texts, by their words).

    >>> texts = np.array(["good film", "bad film", "good", "bad"], dtype=object)
    >>> fit = SklearnModel("tfidf", classes=2, draws=5)
    >>> fit(texts, np.array([1, 0, 1, 0]), np.random.default_rng(0)).predict(texts).shape
    (4, 5, 2)
    """

    kind: str
    classes: int
    draws: int

    def __call__(self, inputs: Inputs, labels: Array, rng: np.random.Generator) -> Posterior:
        """Fit; labels are 0 … classes − 1."""
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        from foresee.learner.cold import WORD
        from foresee.posteriors.sklearn import Forest, bootstrap

        if self.kind != "tfidf":
            inputs = inputs.reshape(len(inputs), -1)
        if self.kind == "forest":
            forest = RandomForestClassifier(self.draws, random_state=seeding.number(rng))
            return Forest(forest.fit(inputs, labels), self.classes)
        if len(np.unique(labels)) < 2:
            raise InputError(
                f"all {len(labels)} labels are of one class, and posterior {self.kind} tells "
                "classes apart: raise n_seed, or take a forest"
            )
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
        prepare = words if self.kind == "tfidf" else StandardScaler()
        rows = prepare.fit_transform(inputs)
        model = LogisticRegression(max_iter=1000)
        drawn = bootstrap(model, rows, labels, self.draws, classes=self.classes, rng=rng)
        return _Prepared(prepare, drawn)


@dataclass(frozen=True)
class _Prepared:
    """A posterior that reads what a fitted transformer makes of the inputs."""

    transformer: Any
    posterior: Posterior

    def predict(self, inputs: Inputs) -> Array:
        return self.posterior.predict(self._rows(inputs))

    def point(self, inputs: Inputs) -> Array:
        return self.posterior.point(self._rows(inputs))

    def embed(self, inputs: Inputs) -> Array:
        return self.posterior.embed(self._rows(inputs))

    def _rows(self, inputs: Inputs) -> Any:
        texts = inputs.dtype == object
        return self.transformer.transform(inputs if texts else inputs.reshape(len(inputs), -1))
