"""Whether each sampler's uncertainty is sane: accurate on average, unsure of what it never saw.

    python benchmarks/uncertainty.py

Every sampler learns the digits 0 to 7 of scikit-learn's set from 400 images. On other images of
these, the mean of the draws should be as accurate as the point prediction; on the digits 8 and 9,
which it never saw, the draws should disagree more (BALD, in nats). Prints the table of
docs/posteriors.md.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from torch import nn

from foresee import bald
from foresee.networks import mlp
from foresee.posteriors import (
    Forest,
    bootstrap,
    cyclical_sgmcmc,
    laplace,
    laplace_logistic,
    mc_dropout,
    sgld,
    train_ensemble,
)
from foresee.recipe import Recipe
from foresee.seeding import generator
from foresee.training import fit

KNOWN = 8
MEMBERS = 10
RECIPE = Recipe(iterations=600, optimiser="adam", learning_rate=2e-3, decay_every=300)


class Digits(NamedTuple):
    """Images of the known digits to learn from and to test on, and of the unseen ones."""

    x: Any
    y: Any
    test: Any
    test_labels: Any
    unseen: Any


@cache
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = generator(0, "uncertainty").permutation(len(images))
    images, labels = images[order], labels[order]
    known = labels < KNOWN
    x, y = images[known], labels[known]
    return Digits(x[:400], y[:400], x[400:], y[400:], images[~known])


def build(seed: int) -> nn.Module:
    return mlp(64, KNOWN, (100, 100), dropout=0.3, seed=seed)


@cache
def network() -> nn.Module:
    return fit(build(0), digits().x, digits().y, RECIPE, generator(0, "fit")).model


def data() -> tuple[Any, Any]:
    return digits().x, digits().y


def _chain(sampler: Callable[..., Any], **settings: Any) -> Callable[[], Any]:
    plain = mlp(64, KNOWN, (100,), dropout=0.0, seed=0)
    return lambda: sampler(plain, *data(), **settings, rng=generator(0, "chain"))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "mc_dropout": lambda: mc_dropout(network(), draws=100),
    "train_ensemble": lambda: train_ensemble(
        build, *data(), MEMBERS, RECIPE, generator(0, "members")
    ),
    "sgld": _chain(sgld, draws=50),
    "cyclical_sgmcmc": _chain(cyclical_sgmcmc, iterations=2000),
    "random forest": lambda: Forest(_fitted(RandomForestClassifier(100, random_state=0))),
    "extra trees": lambda: Forest(_fitted(ExtraTreesClassifier(100, random_state=0))),
    "bootstrap of naive Bayes": lambda: bootstrap(
        GaussianNB(var_smoothing=1e-2), *data(), 50, rng=generator(0, "bootstrap")
    ),
    "laplace_logistic": lambda: laplace_logistic(
        _fitted(LogisticRegression(max_iter=500)), *data()
    ),
}
if find_spec("laplace"):
    SAMPLERS["laplace, last layer"] = lambda: laplace(network(), *data())


def _fitted(model: Any) -> Any:
    return model.fit(*data())


class Sanity(NamedTuple):
    """What the table shows of one sampler."""

    point: float
    mean: float
    error: float  # standard error of the accuracies
    known: float
    unseen: float


def measure(posterior: Any) -> Sanity:
    test, labels = digits().test, digits().test_labels
    probs = np.asarray(posterior.predict(test))
    right = probs.mean(1).argmax(1) == labels
    point = np.asarray(posterior.point(test)).argmax(1) == labels
    unseen = np.asarray(posterior.predict(digits().unseen))
    error = right.std() / len(right) ** 0.5
    return Sanity(point.mean(), right.mean(), error, bald(probs).mean(), bald(unseen).mean())


def main() -> None:
    print("| sampler | accuracy of the point | of the mean of draws | BALD, known | BALD, unseen |")
    print("|---|---|---|---|---|")
    for name, sampler in SAMPLERS.items():
        s = measure(sampler())
        print(
            f"| {name} | {100 * s.point:.1f} | {100 * s.mean:.1f} ± {200 * s.error:.1f} | "
            f"{s.known:.3f} | {s.unseen:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
