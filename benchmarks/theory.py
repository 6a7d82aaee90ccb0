"""The analysis behind the scores, as numbers and figures: what they see and what they cannot.

    python benchmarks/theory.py [--out docs/theory] [xor mezl linear …]

Makes the figures of docs/theory.md, but for the one of `complexity.py`, and prints the numbers they
show. Everything is computed exactly or from fixed seeds: two runs on one machine are equal.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import draws as measured
import sure
from foresee import (
    GreedyConditioning,
    Random,
    TopK,
    View,
    bald,
    decompose,
    mebl,
    mell,
    mezl,
    networks,
    promise,
)
from foresee.lab import data, samplers
from foresee.lab.experiment import noisy
from foresee.lab.paper import experiment
from foresee.lab.report.palette import INKS, pens
from foresee.posteriors import linear
from foresee.posteriors.linear import LinearModel
from foresee.seeding import generator
from foresee.strategies import batch
from foresee.testing import random_draws
from foresee.types import Strategy

Floats = NDArray[np.float64]
NAMES = ("MELL", "MEZL", "Random", "BALD", "Coreset", "BADGE", "MEBL")
COLOURS = {name: INKS[pen.ink].light for name, pen in pens(NAMES).items()}
COLOURS["MEBL"] = INKS[8].light
GREY = "#c9cbcf"
DPI = 150


# --- parity: what no score of single points can see -------------------------------------------


def parity_world(points: int, parity: int) -> tuple[Floats, Floats]:
    """Fair and independent labels, and a target that is the XOR of the first ``parity`` of them.

    There is one draw for each of the 2^points ways the labels can be, so nothing is approximate.
    """
    bits = np.arange(2**points) >> np.arange(points)[:, None] & 1
    certain = np.eye(2)
    return certain[bits], certain[bits[:parity].sum(0) % 2][None]


def sampled_parity_world(
    points: int, parity: int, draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The same with some draws at random, when 2^points are too many."""
    bits = rng.integers(2, size=(points, draws))
    certain = np.eye(2)
    return certain[bits], certain[bits[:parity].sum(0) % 2][None]


def together(pool: Floats, val: Floats, batches: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """The labels of each batch as one label with c^b values, and the targets with as many classes.

    A score of these is the exact loss reduction that the batch's labels bring together.
    """
    members = np.asarray(batches)
    joint = pool[members[:, 0]]
    for column in members.T[1:]:
        joint = (joint[..., :, None] * pool[column][..., None, :]).reshape(*joint.shape[:2], -1)
    unused = joint.shape[2] - val.shape[2]
    return joint, np.pad(val, ((0, 0), (0, 0), (0, unused)))


def look_ahead(
    score: Callable[..., Any], pool: Floats, val: Floats, size: int
) -> dict[tuple[int, ...], float]:
    """Exact gain of every batch of this size."""
    batches = list(combinations(range(len(pool)), size))
    return dict(zip(batches, score(*together(pool, val, batches)).tolist(), strict=True))


def chance_of_both(points: int, size: int) -> tuple[float, float]:
    """That a batch holds both points of an XOR: by scores of single points, and by greedy choice.

    Scores of single points leave it to chance. Greedy choice does so until chance gives it one of
    the two, by its last pick but one; then it takes the other.
    """
    by_chance = math.comb(points - 2, size - 2) / math.comb(points, size)
    neither = math.comb(points - 2, size - 1) / math.comb(points, size - 1)
    return by_chance, 1 - neither


def figure_xor() -> Figure:
    for parity in (2, 3):
        pool, val = parity_world(10, parity)
        singles = {f.__name__: f(pool, val).max().item() for f in (mell, mezl, mebl, bald)}
        print(f"XOR of {parity} of 10 labels, largest score of a point:", _rounded(singles))
        best = {
            size: max(look_ahead(mell, pool, val, size).items(), key=lambda item: item[1])
            for size in (2, 3)
        }
        print("  best batch and its gain:", {k: (b, round(g, 4)) for k, (b, g) in best.items()})
    print("100 points by 100 random draws, best pairs:", _rounded(sampled_pairs()))
    print("chance of both in 10 of 100, singly and greedily:", chance_of_both(100, 10))

    figure = new_figure(9.6, 3.1)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    for axes, parity in ((left, 2), (middle, 3)):
        pool, val = parity_world(10, parity)
        image = axes.imshow(_pair_gains(pool, val), cmap="Oranges", vmin=0, vmax=math.log(2))
        axes.set_title(f"target = XOR of {parity} labels")
        axes.set_xticks(range(10), range(1, 11))
        axes.set_yticks(range(10), range(1, 11))
        axes.tick_params(length=0)
        axes.set_xlabel("point")
    left.set_ylabel("point")
    bar = figure.colorbar(image, ax=(left, middle), shrink=0.8, pad=0.02)
    bar.set_label("gain of the pair, nats")

    sizes = np.arange(2, 41)
    chance = np.array([chance_of_both(100, int(size)) for size in sizes])
    right.plot(sizes, np.ones(len(sizes)), color=COLOURS["MELL"], label="two steps ahead")
    right.plot(sizes, chance[:, 1], color=COLOURS["BALD"], label="greedy by the exact joint")
    right.plot(sizes, chance[:, 0], color=COLOURS["Random"], label="scores of single points")
    right.set_title("batch holds both of the two points")
    right.set_xlabel("size of the batch, of 100 points")
    right.set_ylabel("probability")
    right.set_ylim(0, 1.04)
    plain(right)
    right.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.72))
    return figure


def sampled_pairs() -> dict[str, float]:
    """The paper's 100 points by 100 random draws: gain of the right pair and of the best other."""
    pool, val = sampled_parity_world(100, 2, 100, generator(0, "parity"))
    gains = look_ahead(mell, pool, val, 2)
    return {"pair": gains.pop((0, 1)), "best other": max(gains.values())}


def _pair_gains(pool: Floats, val: Floats) -> Floats:
    """Gains of all pairs [n n]; a point with itself is the point alone."""
    table = np.diag(mell(pool, val))
    for (i, j), gain in look_ahead(mell, pool, val, 2).items():
        table[i, j] = table[j, i] = gain
    return table


# --- MEZL: blind to what changes no prediction ------------------------------------------------


def votes_world(labels: int) -> tuple[Floats, Floats]:
    """Noisy looks at a yes/no question whose answer is yes in 7 draws of 10: [labels 10 2].

    Each label agrees with the answer in 6 cases of 10. Two that say no leave yes the likelier
    answer, 28 to 27; three do not, 56 to 81.
    """
    answer = np.eye(2)[[1] * 7 + [0] * 3]
    look = 0.6 * answer + 0.4 * (1 - answer)
    return np.repeat(look[None], labels, 0), answer[None]


def votes_gains(most: int) -> dict[str, Floats]:
    """Fall of both losses by 1, 2, … labels together, as a part of the loss without any."""
    pool, val = votes_world(most)
    batches = [list(range(size)) for size in range(1, most + 1)]

    def gains(score: Callable[..., Any]) -> Floats:
        return np.concatenate([score(*together(pool, val, [batch])) for batch in batches])

    share = val.mean(1)[0]
    return {
        "zero-one": gains(mezl) / share.min(),
        "log": gains(mell) / -(share * np.log(share)).sum(),
    }


class Blindness(NamedTuple):
    """The part of pool points, and of pairs of pool point and target, that score exactly zero."""

    points: float
    pairs: float


def by_target(score: Callable[..., Any], pool: Tensor, val: Tensor) -> Tensor:
    """What each target adds to each score [n m]."""
    return torch.stack([score(pool, val[j : j + 1]) for j in range(len(val))], 1)


def blindness(score: Callable[..., Any], pool: Tensor, val: Tensor) -> Blindness:
    zeros = score(pool, val) == 0, by_target(score, pool, val) == 0
    return Blindness(*(float(zero.double().mean()) for zero in zeros))


def deciders(score: Callable[..., Any], pool: Tensor, val: Tensor) -> int:
    """How many targets, those that add most, make up half of all scores."""
    sums = by_target(score, pool, val).double().sum(0).sort(descending=True).values
    return int((sums.cumsum(0) < sums.sum() / 2).sum()) + 1


TASKS: dict[str, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    # classes, which digits are in it, their label
    "10 digits": (10, lambda digit: digit >= 0, lambda digit: digit),
    "even or odd": (2, lambda digit: digit >= 0, lambda digit: digit % 2),
    "4 or 9": (2, lambda digit: (digit == 4) | (digit == 9), lambda digit: digit // 9),
}
TARGETS = 100


@cache
def digits_draws(task: str, labels: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draws of a pool and of 100 targets by a network trained on so many labels, without shift."""
    classes, belongs, label = TASKS[task]
    images, pixels = _digits()
    rows = generator(seed, "theory").permutation(np.flatnonzero(belongs(images.labels)))
    learnt, targets, pool, _ = np.split(rows, [labels, labels + TARGETS, labels + TARGETS + 400])
    recipe = experiment("digits", shift=False).recipe
    sampler = samplers.DropoutNetwork("mlp", classes, 8, *pixels, recipe)
    x, y = torch.from_numpy(images.pixels), torch.from_numpy(label(images.labels))
    posterior = sampler(x[learnt], y[learnt], generator(seed, 0, "train"))
    return _tensor(posterior.predict(x[pool])), _tensor(posterior.predict(x[targets]))


def figure_mezl() -> Figure:
    figure = new_figure(9.6, 3.1)
    left, right = figure.subplots(1, 2)
    gains = votes_gains(11)
    print("votes, part of the loss gone after 1, 2, … labels:")
    for loss, score in (("log", "MELL"), ("zero-one", "MEZL")):
        print(f"  {loss:>8}:", gains[loss].round(4).tolist())
        x = np.arange(1, len(gains[loss]) + 1)
        left.plot(x, gains[loss], "o-", color=COLOURS[score], ms=4, label=f"{loss} loss ({score})")
    left.set_title("three labels can change a prediction, two cannot")
    left.set_xlabel("labels bought together")
    left.set_ylabel("part of the expected loss gone")
    left.set_xticks(range(1, 12, 2))
    plain(left)
    left.legend(frameon=False)

    for task, dash in {"10 digits": "-", "even or odd": "--", "4 or 9": ":"}.items():
        numbers = (20, 50, 100) if task == "4 or 9" else (20, 50, 100, 200, 400)
        each = np.array([network_blindness(mezl, task, n) for n in numbers])
        found = each.mean(1)
        zeros = sum(zero.pairs for n in numbers for zero in network_blindness(mell, task, n))
        print(f"MEZL, {task}: labels, zero points, zero pairs (MELL's zero pairs: {zeros:g})")
        print("  ", [(n, *row) for n, row in zip(numbers, found.round(3).tolist(), strict=True)])
        print("   zero points of each network:", each[..., 0].round(3).tolist())
        right.plot(numbers, found[:, 1], "o", ls=dash, ms=4, color=COLOURS["MEZL"], label=task)
        right.plot(numbers, found[:, 0], "s", ls=dash, ms=4, mfc="white", color="#7a5400")
    for labels in (20, 400):
        draws = [digits_draws("10 digits", labels, seed) for seed in range(3)]
        halves = {f.__name__: [deciders(f, *d) for d in draws] for f in (mezl, mell)}
        print(f"targets of 100 that make up half, 10 digits, {labels} labels: {halves}")
    right.text(400, 0.45, "● pairs of point and target", ha="right", color="#a87400")
    right.text(400, 0.36, "□ points, against 100 targets", ha="right", color="#7a5400")
    right.set_xscale("log")
    right.set_xticks((20, 50, 100, 200, 400), (20, 50, 100, 200, 400))
    right.minorticks_off()
    right.set_ylim(-0.04, 1.04)
    right.set_title("digits by MC dropout: MEZL's exact zeros (MELL has none)")
    right.set_xlabel("labels the network was trained on")
    right.set_ylabel("part that scores exactly 0")
    plain(right)
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.37))
    return figure


def network_blindness(score: Callable[..., Any], task: str, labels: int) -> list[Blindness]:
    """`blindness` on three networks."""
    return [blindness(score, *digits_draws(task, labels, seed)) for seed in range(3)]


# --- information: relevant to what? -----------------------------------------------------------

PICKS = 20
FEW = 3  # digits that the narrow target holds: 0, 1 and 2
SEEDS = 5


class Shifted(NamedTuple):
    """Draws of the experiment with a dark seed set: pool, target and those targets below FEW."""

    pool: Tensor
    val: Tensor
    narrow: Tensor


@cache
def shifted_draws(seed: int) -> Shifted:
    images, pixels = _digits()
    setting = experiment("digits", shift=True)
    split = data.split(images, setting, seed)
    task = data.task(images, split)
    sampler = samplers.DropoutNetwork("mlp", 10, 8, *pixels, setting.recipe, setting.draws)
    posterior = sampler(task.seed, torch.from_numpy(task.seed_labels), generator(seed, 0, "train"))
    pool, val = _tensor(posterior.predict(task.pool)), _tensor(posterior.predict(task.val))
    return Shifted(pool, val, val[torch.from_numpy(images.labels[split.val] < FEW)])


def spending(pool: Tensor, val: Tensor, picks: int = PICKS) -> dict[str, tuple[float, float]]:
    """Relevant and irrelevant information of a label, mean over the best by BALD, MELL, all."""
    parts = decompose(pool, val)
    orders = {
        "BALD": parts.epistemic.argsort(descending=True)[:picks],
        "MELL": parts.relevant.argsort(descending=True)[:picks],
        "Random": torch.arange(len(pool)),  # what chance picks on average
    }
    return {
        name: (float(parts.relevant[rows].mean()), float(parts.irrelevant[rows].mean()))
        for name, rows in orders.items()
    }


def shared_with_targets(
    pool: Tensor, val: Tensor, number: int, rng: np.random.Generator, samples: int = 200
) -> float:
    """The part of I(Y_i; θ) that the labels of so many targets together would tell: Monte Carlo.

    Labels of random targets are drawn from a random draw of the posterior; what they leave is
    I(Y_i; θ | these labels), BALD with the draws weighed by how well they explain them.
    """
    pool, val = pool.double(), val.double()
    entropies = torch.special.entr(pool).sum(2)
    left = 0.0
    for _ in range(samples):
        some = val[torch.from_numpy(rng.permutation(len(val))[:number])]
        truth = some[:, int(rng.integers(val.shape[1]))].cumsum(1)
        chosen = (torch.from_numpy(rng.random((number, 1))) * truth[:, -1:] > truth).sum(1)
        likelihood = some.gather(2, chosen[:, None, None].expand(-1, some.shape[1], 1))
        weight = likelihood.squeeze(2).log().sum(0).softmax(0)
        mean = torch.einsum("t,ntc->nc", weight, pool)
        left += float((torch.special.entr(mean).sum(1) - entropies @ weight).sum()) / samples
    return 1 - left / float(bald(pool).sum())


def figure_information() -> Figure:
    draws = [shifted_draws(seed) for seed in range(SEEDS)]
    figure = new_figure(9.6, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    places = {"BALD": 0.0, "MELL": 1.0, "Random": 2.0}
    for shift, (target, kind) in enumerate((("all digits", 1), ("only 0, 1 and 2", 2))):
        found = [spending(d.pool, d[kind]) for d in draws]
        for name, place in places.items():
            relevant, irrelevant = np.mean([f[name] for f in found], 0)
            share = relevant / (relevant + irrelevant)
            print(f"target {target}, {name}: relevant {relevant:.4f} nats, irrelevant", end=" ")
            print(f"{irrelevant:.3f}, {100 * share:.1f} % relevant")
            x = place + 3.6 * shift
            left.bar(x, relevant, color=COLOURS[name], width=0.75)
            left.bar(x, irrelevant, bottom=relevant, color=GREY, width=0.75)
            left.text(x, relevant + irrelevant + 0.015, f"{100 * share:.1f} %", ha="center")
    ticks = [place + 3.6 * shift for shift in range(2) for place in places.values()]
    left.set_xticks(ticks, [*places, *places])
    for shift, target in enumerate(("target: all digits", "target: only 0, 1 and 2")):
        left.text(1 + 3.6 * shift, -0.1, target, ha="center", va="top")
    left.set_ylim(0, 0.92)
    left.set_title(f"a label's information, best {PICKS} of 870 points")
    left.set_ylabel("nats: coloured relevant, grey not")
    left.tick_params(axis="x", length=0)
    plain(left)

    numbers = (1, 3, 10, 30, 100)
    for name in places:
        shares = [np.mean([joint_share(seed, name, n) for seed in range(3)]) for n in numbers]
        print(f"{name}: part shared with {numbers} targets together:", np.round(shares, 3).tolist())
        right.plot(numbers, shares, "o-", ms=4, color=COLOURS[name], label=name)
    right.set_xscale("log")
    right.set_xticks(numbers, numbers)
    right.minorticks_off()
    right.set_ylim(0, 1.04)
    right.set_title("the same, relevant to several targets")
    right.set_xlabel("targets taken together")
    right.set_ylabel("part of I(Y; θ) they share")
    plain(right)
    right.legend(frameon=False)
    return figure


def joint_share(seed: int, picker: str, number: int) -> float:
    """`shared_with_targets` of the best points by BALD or MELL, or of some at random."""
    pool, val, _ = shifted_draws(seed)
    rng = generator(seed, picker, number)
    if picker == "Random":
        best = torch.from_numpy(rng.permutation(len(pool))[:PICKS])
    else:
        scores = bald(pool) if picker == "BALD" else mell(pool, val)
        best = scores.argsort(descending=True)[:PICKS]
    return shared_with_targets(pool[best], val, number, rng)


# --- the Bayesian linear model ----------------------------------------------------------------


def approximation_error(model: LinearModel, pool: Floats, val: Floats) -> float:
    """Mean |E_v I(Y_x; Y_v) − ½ E_v r(x, v)²|."""
    squares = _correlations(model, pool, val) ** 2 / 2
    return float(np.abs(linear.mell(model, pool, val) - squares.mean(1)).mean())


def shrunk(model: LinearModel, factor: float) -> LinearModel:
    return LinearModel(model.mean, factor * model.covariance, model.noise)


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Exponent of the power law that fits best on log-log axes."""
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])


def ceiling(model: LinearModel, val: Floats) -> float:
    """E_v I(Y_v; θ): no label tells more about a target than θ does."""
    return float(linear.bald(model, val).mean())


def example() -> tuple[LinearModel, Floats, Floats]:
    """A plane of inputs, Σ = I and σ² = 1; the targets lie along one direction."""
    rng = generator(0, "linear")
    pool = 2 * rng.standard_normal((400, 2))
    val = rng.standard_normal((50, 2)) * (1.5, 0.3) @ _rotation(np.pi / 6)
    return LinearModel(np.zeros(2), np.eye(2), 1.0), pool, val


def figure_linear() -> Figure:
    model, pool, val = example()
    figure = new_figure(9.6, 3.2)
    left, middle, right = figure.subplots(1, 3)
    scores = {"BALD": linear.bald(model, pool), "MELL": linear.mell(model, pool, val)}
    lengths = np.sqrt((pool**2).sum(1))
    _draw_picks(left, pool, val, {name: np.argsort(-s)[:20] for name, s in scores.items()})
    cosines = np.abs(pool @ _rotation(np.pi / 6)[0]) / lengths
    for name, s in scores.items():
        top = np.argsort(-s)[:20]
        print(f"{name}'s 20 of 400: mean length {lengths[top].mean():.2f}, cosine with the", end="")
        print(f" targets' direction {cosines[top].mean():.2f}")

    along = np.geomspace(0.05, 1000, 200)
    ray = along[:, None] * _rotation(np.pi / 6)[0]
    middle.plot(along, linear.bald(model, ray), color=COLOURS["BALD"], label="BALD")
    middle.plot(along, linear.mell(model, ray, val), color=COLOURS["MELL"], label="MELL")
    best, loose = ceiling(model, val), linear.bound(model, val)
    print(f"MELL far along the targets: {linear.mell(model, ray, val)[-1]:.3f} nats, mean BALD of")
    print(f"  the targets {best:.3f}, C = {loose:.3f}")
    for height, name in ((best, "mean BALD of targets"), (loose, "C")):
        middle.axhline(height, color="#555555", lw=0.8, ls="--")
        middle.text(1000, height + 0.05, name, ha="right", va="bottom")
    middle.set_xscale("log")
    middle.set_ylim(0, 4)
    middle.set_title("one direction, growing input")
    middle.set_xlabel("length of x")
    middle.set_ylabel("nats")
    plain(middle)
    middle.legend(frameon=False)

    factors = np.geomspace(1e-4, 1, 13)
    errors = [approximation_error(shrunk(model, f), pool, val) for f in factors]
    values = [float(linear.mell(shrunk(model, f), pool, val).mean()) for f in factors]
    for name, y in (("MELL", values), ("the error of ½ E r²", errors)):
        print(f"as Σ shrinks, {name} falls with exponent {slope(factors[:4], y[:4]):.3f}")
    right.loglog(factors, values, "o-", ms=3.5, color=COLOURS["MELL"], label="MELL")
    right.loglog(factors, errors, "s-", ms=3.5, color="#555555", label="error of ½ E r²")
    right.set_title("shrinking Σ")
    right.set_xlabel("factor on Σ")
    right.set_ylabel("nats, mean over the pool")
    plain(right)
    right.legend(frameon=False)
    return figure


def _draw_picks(axes: Axes, pool: Floats, val: Floats, picks: dict[str, NDArray[Any]]) -> None:
    axes.scatter(pool[:, 0], pool[:, 1], s=5, color=GREY, lw=0)
    axes.scatter(val[:, 0], val[:, 1], s=14, color="black", marker="x", lw=0.7, label="targets")
    for name, marker, size in (("BALD", "o", 36), ("MELL", "D", 14)):
        x, y = pool[picks[name]].T
        face = "none" if name == "BALD" else COLOURS[name]
        axes.scatter(x, y, s=size, marker=marker, fc=face, ec=COLOURS[name], label=name)
    axes.set_title("best 20 of 400 inputs")
    axes.set_xlabel("x₁")
    axes.set_ylabel("x₂")
    axes.set_xlim(-8, 8)
    axes.set_ylim(-7, 8.5)
    plain(axes)
    axes.legend(frameon=False, loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.1)


def _correlations(model: LinearModel, pool: Floats, val: Floats) -> Floats:
    """r(x, v) between the labels [n m]."""
    spread = np.sqrt(np.outer(model.moments(pool)[1], model.moments(val)[1]))
    return np.asarray(pool @ model.covariance @ val.T / spread)


def _rotation(angle: float) -> Floats:
    return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


# --- batches: what a set of labels tells, and what it promises ----------------------------------


def monte_carlo_errors(
    sizes: Sequence[int], repeats: int = 10, points: int = 60, targets: int = 30
) -> dict[int, float]:
    """Relative error of BatchMell's gains after three labels, by the number of label vectors.

    3 labels of 10 classes make 1000 vectors, few enough to sum over all of them.
    """
    shifted = shifted_draws(0)
    pool, val = shifted.pool[:points].double(), shifted.val[:targets].double()

    def gains(samples: int, rng: np.random.Generator) -> Tensor:
        beliefs = batch.prior(pool)
        for point in pool[:3]:
            beliefs = batch.after(beliefs, point, samples, rng)
        return batch.target_information(pool, val, beliefs)

    exact = gains(1000, np.random.default_rng(0))
    errors = {}
    for size in sizes:
        runs = [gains(size, np.random.default_rng(k)) for k in range(repeats)]
        squares = torch.stack([(run - exact).square().mean() for run in runs]).mean()
        errors[size] = float(squares.sqrt() / exact.mean())
    return errors


def promises(sizes: Sequence[int], seed: int = 0) -> dict[str, list[float]]:
    """What batches of each size promise, as a share of what the whole pool does."""
    shifted = shifted_draws(seed)
    pool, val = shifted.pool, shifted.val
    rows = np.arange(len(pool) + len(val))
    posterior = _Known(torch.cat([pool, val]))
    view = View(posterior, rows[:1], rows[:1], rows[: len(pool)], rows[len(pool) :])
    strategies: dict[str, Strategy] = {
        "MEBL": TopK(mebl),
        "Greedy": GreedyConditioning(),
        "Random": Random(),
    }
    every = promise(pool, val)
    shares: dict[str, list[float]] = {}
    for name, strategy in strategies.items():
        order = strategy(view, max(sizes), np.random.default_rng(seed))
        shares[name] = [promise(pool[order[:size]], val) / every for size in sizes]
    return shares


@dataclass(frozen=True)
class _Known:
    """A posterior whose inputs are numbers of rows."""

    draws: Tensor

    def predict(self, inputs: Any) -> Tensor:
        return self.draws[inputs]

    def point(self, inputs: Any) -> Tensor:
        return self.predict(inputs).mean(1)

    def embed(self, inputs: Any) -> Tensor:
        return self.point(inputs)


def figure_batches() -> Figure:
    """Error against samples, and the promise of a batch against its size."""
    samples, sizes = (8, 16, 32, 64, 128, 256, 512), (1, 2, 5, 10, 20, 40, 80)
    errors, shares = monte_carlo_errors(samples), promises(sizes)
    print("BatchMell, relative error:", _rounded({str(k): v for k, v in errors.items()}))
    for name, values in shares.items():
        print(f"promise of {name}:", [round(value, 3) for value in values])

    figure = new_figure(8, 3.1)
    left, right = figure.subplots(1, 2)
    left.loglog(errors.keys(), errors.values(), marker="o", color=COLOURS["MELL"])
    start = errors[samples[0]] * samples[0] ** 0.5
    left.loglog(samples, [start / k**0.5 for k in samples], color=GREY, zorder=0)
    left.annotate("samples$^{-1/2}$", (samples[-2], start / samples[-2] ** 0.5), color="#777")
    left.set(xlabel="sampled label vectors", ylabel="error of the gains / their mean")
    left.set_title("BatchMell approaches enumeration", fontsize=10)
    inks = {"MEBL": COLOURS["MEBL"], "Greedy": COLOURS["BADGE"], "Random": COLOURS["Random"]}
    for name, values in shares.items():
        right.plot(sizes, [100 * v for v in values], marker="o", ms=3, label=name, color=inks[name])
    right.set(xlabel="labels in the batch", ylabel="of what the pool promises, %", xscale="log")
    right.set_title("Redundant batches promise less", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    plain(left)
    plain(right)
    return figure


# --- draws: is it noise that spoils the highest scores, or redundancy? -------------------------

REFERENCE = 2000  # draws that judge what others chose
SETTINGS = ("no shift", "shift", "narrow")


def some_draws(
    pool: Floats, val: Floats, draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """A posterior sample of ``draws`` from the finite posterior whose parameters these are."""
    rows = rng.integers(pool.shape[1], size=draws)
    return pool[:, rows], val[:, rows]


def degrees_of_freedom(pool: Any, val: Any) -> Floats:
    """k [n], the mean over targets of D(Y_i, Y_j) − D(Y_i) − D(Y_j).

    D(Y) = Σ_y Var_θ p(y|θ) / p(y). Scores by t draws are too high by k / 2t, on average and but for
    terms like 1 / t². Labels that are certain given θ have D = c − 1, and k = (c − 1)² if all pairs
    of them occur.
    """
    P, Q = (np.asarray(x, np.float64).transpose(0, 2, 1) for x in (pool, val))  # [n c t], [m c t]
    (n, c, t), m = P.shape, len(Q)

    def moment(power: int) -> Floats:
        flat = [(x**power).reshape(-1, t) for x in (P, Q)]
        return (flat[0] @ flat[1].T / t).reshape(n, c, m, c).transpose(0, 2, 1, 3)  # [n m c c]

    def spread(second: Floats, first: Floats) -> Floats:
        """D of the outcomes along the last axis."""
        ratio = np.divide(second, first, out=np.zeros_like(first), where=first > 0)
        return np.asarray(ratio.sum(-1) - 1)

    both = spread(moment(2).reshape(n, m, -1), moment(1).reshape(n, m, -1))  # [n m]
    alone = [spread((x**2).mean(2), x.mean(2)) for x in (P, Q)]  # [n], [m]
    return np.asarray((both - alone[1]).mean(1) - alone[0])


def corrected(pool: Any, val: Any) -> Floats:
    """MELL less its bias, k / 2t by the same draws."""
    return np.asarray(mell(pool, val)) - degrees_of_freedom(pool, val) / (2 * pool.shape[1])


def jackknifed(pool: Any, val: Any) -> Floats:
    """MELL less its bias, which is twice as large by half the draws."""
    halves = [np.asarray(mell(pool[:, i::2], val[:, i::2])) for i in (0, 1)]
    return np.asarray(2 * np.asarray(mell(pool, val)) - (halves[0] + halves[1]) / 2)


ESTIMATES: dict[str, Callable[[Any, Any], Floats]] = {
    "as it is": lambda pool, val: np.asarray(mell(pool, val)),
    "less k / 2t": corrected,
    "jackknife": jackknifed,
}


def best(scores: Any, size: int) -> NDArray[np.int64]:
    return np.argsort(-np.asarray(scores), kind="stable")[:size]


class Luck(NamedTuple):
    """What the best by some draws claim to be worth, and are worth, in parts of the true best."""

    claimed: float
    true: float


def luck(scores: Floats, truth: Floats, size: int) -> Luck:
    picks, whole = best(scores, size), truth[best(truth, size)].sum()
    return Luck(float(scores[picks].sum() / whole), float(truth[picks].sum() / whole))


def finite_bias(sizes: Sequence[int], repeats: int = 20) -> dict[str, list[float]]:
    """Mean error of MELL's estimates by so many draws of a posterior of 1000 parameters, and k/2t.

    In parts of the exact score.
    """
    pool, val = (
        random_draws(np.random.default_rng(i), n, 1000, 4, spread=2.0)
        for i, n in enumerate((40, 20))
    )
    exact = ESTIMATES["as it is"](pool, val)
    k = degrees_of_freedom(pool, val).mean() / exact.mean()
    errors: dict[str, list[float]] = {name: [] for name in ESTIMATES}
    for size in sizes:
        samples = [some_draws(pool, val, size, np.random.default_rng(r)) for r in range(repeats)]
        for name, estimate in ESTIMATES.items():
            found = np.mean([estimate(*sample) for sample in samples])
            errors[name].append(float(found / exact.mean() - 1))
    return errors | {"k / 2t": [float(k / (2 * size)) for size in sizes]}


@cache
def network_draws(
    setting: str, seed: int, draws: int, dataset: str = "digits", root: str | None = None
) -> tuple[Tensor, Tensor]:
    """Draws of up to 1000 points of an experiment's pool and of 100 targets, by its seed set."""
    images = data.load(dataset, root) if root else _digits()[0]
    wanted = experiment(dataset, shift=setting == "shift", narrow=setting == "narrow")
    task = data.task(images, data.split(images, wanted, seed))
    small = experiment("digits").recipe
    statistics = networks.statistics(images.pixels[:10_000])
    sampler = samplers.DropoutNetwork("mlp", 10, wanted.image_size, *statistics, small, draws)
    posterior = sampler(task.seed, torch.from_numpy(task.seed_labels), generator(seed, 0, "train"))
    pool, val = task.pool[:1000], task.val[:TARGETS]
    return _tensor(posterior.predict(pool)), _tensor(posterior.predict(val))


def noise_and_redundancy(
    pool: Tensor, val: Tensor, size: int, draws: int = 100, many: int = 1000, sets: int = 5
) -> dict[str, float]:
    """What batches by sets of ``draws`` draws are worth by those after the first ``many``: means.

    Scores in parts of the true best ones, promises in parts of that of greedy conditioning by many.
    """

    def part(first: int, last: int | None) -> tuple[Tensor, ...]:
        return tuple(x[:, first:last] for x in (pool, val))

    judge = part(many, None)
    truth = ESTIMATES["as it is"](*judge)
    whole = promise(judge[0][greedy(part(0, many), size)], judge[1])

    def promised(picks: NDArray[np.int64]) -> float:
        return promise(judge[0][picks], judge[1]) / whole

    def by_few(few: tuple[Tensor, ...]) -> dict[str, float]:
        scores = {name: estimate(*few) for name, estimate in ESTIMATES.items()}
        plain_scores = scores["as it is"]
        found = {"bias": float(plain_scores.mean() / truth.mean() - 1)}
        for name, values in scores.items():
            claimed, true = luck(values, truth, size)
            found |= {f"claimed, {name}": claimed, f"true, {name}": true}
        return found | {
            "MELL": promised(best(plain_scores, size)),
            "Greedy": promised(greedy(few, size)),
        }

    each = [by_few(part(k * draws, (k + 1) * draws)) for k in range(sets)]
    top = best(truth, size)
    return {key: float(np.mean([found[key] for found in each])) for key in each[0]} | {
        "MELL, no noise": promised(top),
        "Random": promised(generator(0, "batch").permutation(len(pool))[:size]),
        "alone": float(mebl(judge[0][top], judge[1]).sum()) / whole,
    }


def greedy(draws: tuple[Tensor, ...], size: int) -> NDArray[np.int64]:
    """Positions in the pool, of whose draws and those of the targets this is the pair."""
    pool, val = draws
    rows = np.arange(len(pool) + len(val))
    posterior = _Known(torch.cat([pool, val]))
    view = View(posterior, rows[:1], rows[:1], rows[: len(pool)], rows[len(pool) :])
    return GreedyConditioning()(view, size, np.random.default_rng(0))


def scrambled_picks(
    draws: Sequence[int], seed: int = 0, labels: int = 40
) -> dict[int, tuple[float, float, float]]:
    """Digits, a narrow target, a fifth of the pool scrambled: what share of ten greedy picks is.

    By each number of draws, the mean over sets of them; then the median MEBL of what is scrambled,
    and of what is in the target. The network knows the seed set and some of the rest of the pool.
    """
    images = _digits()[0]
    wanted = noisy(experiment("digits", narrow=True), 0.2)
    split = data.split(images, wanted, seed)
    task = data.mark(data.task(images, split), images, split, wanted, seed)
    assert task.scrambled is not None
    assert task.in_target is not None
    known = np.flatnonzero(~task.scrambled)[:labels]
    network = samplers.DropoutNetwork(
        "mlp", 10, wanted.image_size, *networks.statistics(images.pixels), wanted.recipe, max(draws)
    )
    posterior = network(
        torch.cat([task.seed, task.pool[known]]),
        np.concatenate([task.seed_labels, task.oracle(known)]),
        generator(seed, 0, "train"),
    )
    pool, val = (_tensor(posterior.predict(x)) for x in (task.pool, task.val))
    found = {}
    for t in draws:
        parts = [slice(start, start + t) for start in range(0, max(draws) - t + 1, t)]
        sets = [(pool[:, part], val[:, part]) for part in parts]
        share = np.mean([task.scrambled[greedy(some, 10)].mean() for some in sets])
        scores = np.mean([np.asarray(mebl(*some)) for some in sets], 0)
        noise, target = (float(np.median(scores[w])) for w in (task.scrambled, task.in_target))
        found[t] = float(share), noise, target
    return found


def network_means(setting: str, seeds: int, size: int, *of: str) -> dict[str, float]:
    """Print `noise_and_redundancy` of batches of this size, the mean of some networks."""
    draws = [network_draws(setting, seed, 1000 + REFERENCE, *of) for seed in range(seeds)]
    found = [noise_and_redundancy(*drawn, size) for drawn in draws]
    means = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
    print(*of[:1], f"{setting}, batches of {size}:", _rounded(means), flush=True)
    return means


def figure_noise() -> Figure:
    sizes = (25, 50, 100, 200, 400)
    errors = finite_bias(sizes)
    figure = new_figure(9.6, 3.1)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    for (name, values), mark in zip(errors.items(), ("o-", "s-", "^-", "--"), strict=True):
        print(f"error of the scores by {sizes} draws, {name}:", np.round(values, 3).tolist())
        ink = {"as it is": COLOURS["MELL"], "k / 2t": "#555555"}.get(name, COLOURS["BALD"])
        left.plot(sizes, [100 * v for v in values], mark, ms=4, color=ink, label=name)
    left.set(xscale="log", xlabel="draws t", ylabel="mean error of MELL, %")
    left.set_xticks(sizes, sizes)
    left.minorticks_off()
    left.set_title("a finite posterior: exact scores are known")
    left.legend(frameon=False)
    bars = {
        "MELL": COLOURS["MELL"],
        "MELL, no noise": "#f2b8a0",
        "Greedy": COLOURS["BADGE"],
        "Random": COLOURS["Random"],
    }
    for place, setting in enumerate(SETTINGS):
        means = network_means(setting, 3, 10)
        for shift, (name, ink) in enumerate(bars.items()):
            x = place + 0.2 * shift
            label = f"{name}, t = 100" if name in ("MELL", "Greedy") else name
            right.bar(x, 100 * means[name], 0.18, color=ink, label=None if place else label)
    right.set_xticks([place + 0.3 for place in range(len(SETTINGS))], SETTINGS)
    right.set(ylim=(0, 135), ylabel="of Greedy by t = 1000, %")
    right.set_title("digits: what 10 labels promise together")
    right.legend(frameon=False, ncols=2, loc="upper center")
    plain(left)
    plain(right)
    return figure


def figure_draws() -> Figure:
    """Areas under the learning curves on digits, by draws and size of the batch, from a file."""
    rows = measured.read()
    panels = {
        "no shift": "no shift",
        "shift": "shift",
        "unseen": "narrow target, unseen in the seed set",
    }
    figure = new_figure(9.6, 3.0)
    for axes, (setting, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for size, ink in ((10, COLOURS["MELL"]), (40, COLOURS["BADGE"]), (100, COLOURS["BALD"])):
            here = [row for row in rows if (row.setting, row.batch) == (setting, size)]
            ours = [row for row in here if row.method == "Greedy" and row.noise == "0.1"]
            x, y = zip(*((int(row.draws), row.auc) for row in ours), strict=True)
            axes.plot(x, y, "o-", ms=4, color=ink, label=f"batches of {size}")
            (badge,) = (row.auc for row in here if row.method == "BADGE")
            axes.axhline(badge, color=ink, lw=0.9, ls=":")
        axes.set(xscale="log", xlabel="draws T")
        axes.set_xticks((30, 100, 300, 1000), (30, 100, 300, 1000))
        axes.minorticks_off()
        axes.set_title(title)
        plain(axes)
    figure.axes[0].set_ylabel("AUC × 100 (dotted: BADGE)")
    figure.axes[0].legend(frameon=False)
    return figure


# --- draws that agree too much ------------------------------------------------------------------


def figure_sure() -> Figure:
    """Areas less that of BADGE on digits by two accounts of noise, from a file."""
    rows = sure.read()
    kinds = (("aleatoric", "MEBL", -0.12), ("not aleatoric", "MELL", 0.12))
    figure = new_figure(9.6, 3.0)
    for axes, dropout in zip(figure.subplots(1, 2, sharey=True), sure.DROPOUTS, strict=True):
        here = [row for row in rows if row.dropout == dropout]
        for method, ink, aside in kinds:
            ours = [row for row in here if row.method == method]
            x = np.arange(len(ours)) + aside
            y, error = [row.less_badge for row in ours], [row.error for row in ours]
            axes.errorbar(x, y, error, fmt="o", ms=4, color=COLOURS[ink], label=method)
        axes.axhline(0, color=GREY)
        axes.set_xticks(range(len(ours)), [f"{row.batch}\n{row.setting}" for row in ours])
        share = np.mean([row.explained for row in ours])
        axes.set_title(f"dropout {dropout:g}: draws explain {share:.0%} of the loss")
        plain(axes)
    figure.axes[0].set_ylabel("AUC × 100 less BADGE")
    figure.axes[0].legend(frameon=False)
    return figure


# --- all of it --------------------------------------------------------------------------------


@cache
def _digits() -> tuple[data.Images, tuple[tuple[float, ...], tuple[float, ...]]]:
    images = data.load("digits")
    return images, networks.statistics(images.pixels)


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values)


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def plain(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.title.set_fontsize(10)
        for text in (axes.xaxis.label, axes.yaxis.label, *axes.texts, *_entries(axes)):
            text.set_fontsize(9)
        axes.tick_params(labelsize=8.5)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    path.parent.mkdir(parents=True, exist_ok=True)
    # A palette of 128 colours is enough for lines and letters, and makes the file half as large.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB\n")


def _entries(axes: Axes) -> list[Any]:
    legend = axes.get_legend()
    return [] if legend is None else list(legend.get_texts())


FIGURES: dict[str, Callable[[], Figure]] = {
    "xor": figure_xor,
    "mezl": figure_mezl,
    "information": figure_information,
    "linear": figure_linear,
    "batches": figure_batches,
    "noise": figure_noise,
    "draws": figure_draws,
    "sure": figure_sure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", help=f"some of {', '.join(FIGURES)}; default all")
    parser.add_argument("--out", type=Path, default=Path("docs/theory"))
    parser.add_argument("--mnist", help="folder of MNIST: print its numbers beside those of noise")
    args = parser.parse_args()
    unknown = set(args.which) - set(FIGURES)
    if unknown:
        parser.error(f"there is no figure {', '.join(unknown)}: choose of {', '.join(FIGURES)}")
    torch.set_num_threads(1)  # small networks: threads would cost more than they bring
    for name in args.which or FIGURES:
        save(FIGURES[name](), args.out / f"{name}.png")
    for setting, size in product(SETTINGS if args.mnist else (), (10, 80)):
        network_means(setting, 1, size, "mnist", args.mnist)


if __name__ == "__main__":
    main()
