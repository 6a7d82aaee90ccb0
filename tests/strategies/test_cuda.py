"""Batches chosen on a GPU are those of the CPU, and nobody waits for a single pick."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from foresee import (
    Badge,
    Bait,
    BatchBALD,
    BatchMell,
    Coreset,
    GreedyConditioning,
    MaxHerding,
    MeblPlusPlus,
    RelevantBadge,
    TypiClust,
    UncertaintyHerding,
    promise,
)
from foresee.strategies import batch, drawspace, greedy
from foresee.strategies.candidates import at_once
from foresee.testing import random_draws
from foresee.types import View

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@dataclass(frozen=True)
class Table:
    """A posterior that knows its answers by heart; inputs are row numbers."""

    draws: Any = None
    probs: Any = None
    embeddings: Any = None

    def predict(self, inputs):
        return self.draws[torch.from_numpy(inputs)]

    def point(self, inputs):
        return self.probs[torch.from_numpy(inputs)]

    def embed(self, inputs):
        return self.embeddings[torch.from_numpy(inputs)]


def view_of(posterior, n, labelled=0, targets=0):
    rows = np.arange(n + labelled + targets)
    pool, known, val = np.split(rows, [n, n + labelled])
    return View(posterior, known, np.zeros(labelled, int), pool, val)


def draws(n, t, c, dtype=torch.float32, spread=2.0):
    return torch.tensor(random_draws(np.random.default_rng(0), n, t, c, spread), dtype=dtype)


def same_on_both(strategy, view_on, size, device="cuda"):
    picks = [strategy(view_on(d), size, np.random.default_rng(0)) for d in ("cpu", device)]
    assert picks[1].tolist() == picks[0].tolist()
    assert len(set(picks[0].tolist())) == size


@pytest.mark.parametrize(
    ("n", "t", "c", "size"),
    [(900, 30, 3, 100), (3000, 200, 10, 80), (500, 60, 2, 60), (400, 50, 40, 30), (300, 6, 4, 50)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aleatoric", [True, False])
def test_greedy_conditioning(n, t, c, size, dtype, aleatoric):
    probs = draws(n + 60, t, c, dtype)
    if dtype == torch.float32 and t < 10:
        size = 4  # the draws are exhausted: then rounding decides between points alike
    rule = GreedyConditioning(aleatoric=aleatoric)
    same_on_both(rule, lambda d: view_of(Table(probs.to(d)), n, targets=60), size)


@pytest.mark.parametrize(
    "strategy",
    [
        BatchMell(shortlist=None, samples=8),
        BatchMell(shortlist=20, samples=16),
        BatchMell(shortlist=12, samples=4, lookahead=2),
        BatchBALD(samples=16),
    ],
    ids=repr,
)
def test_batches_of_sampled_labels(strategy):
    probs = draws(90, 40, 3, torch.float64)
    same_on_both(strategy, lambda d: view_of(Table(probs.to(d)), 60, targets=30), 11)


def test_exhausted_batches():
    certain = torch.eye(3)[torch.randint(3, (40, 4), generator=torch.manual_seed(0))].double()
    # Draws that are certain leave many points alike: what counts is what the batch tells.
    strategy, told = BatchMell(shortlist=None), []
    for device in ("cpu", "cuda"):
        view = view_of(Table(certain.to(device)), 30, targets=10)
        picks = strategy(view, 16, np.random.default_rng(0))
        assert len(set(picks.tolist())) == 16
        told.append(promise(certain[picks[:4]], certain[30:]))
    assert told[0] == pytest.approx(told[1], rel=0.05)


def gradients(n, c=10, d=64):
    generator = torch.manual_seed(0)
    centres = torch.randn(20, d, generator=generator)
    embeddings = centres[torch.randint(20, (n,), generator=generator)]
    embeddings = embeddings + torch.randn(n, d, generator=generator)
    return torch.randn(n, c, generator=generator).mul_(2).softmax(1), embeddings


def test_badge():
    probs, embeddings = gradients(5000)
    same_on_both(Badge(), lambda d: view_of(Table(None, probs.to(d), embeddings.to(d)), 5000), 400)


def test_relevant_badge():
    probs, embeddings = gradients(2060)
    predicted = draws(2060, 40, 10, torch.float64)
    same_on_both(
        RelevantBadge(),
        lambda d: view_of(Table(predicted.to(d), probs.to(d), embeddings.to(d)), 2000, targets=60),
        100,
    )


@pytest.mark.parametrize("labelled", [0, 50])
@pytest.mark.parametrize(
    "strategy",
    [MaxHerding(cover="target"), *(UncertaintyHerding(cover=c) for c in ("target", "both"))],
)
def test_herding(strategy, labelled):
    n = 2000 + labelled + 300
    predicted, embeddings = draws(n, 10, 5), gradients(n)[1]
    same_on_both(
        strategy,
        lambda d: view_of(Table(predicted.to(d), None, embeddings.to(d)), 2000, labelled, 300),
        40,
    )


@pytest.mark.parametrize("strategy", [MaxHerding(), UncertaintyHerding(bandwidth=None)], ids=repr)
def test_herding_of_the_pool_covers_as_much(strategy):
    predicted, embeddings = draws(2050, 10, 5), gradients(2050)[1]
    covered = []
    for device in ("cpu", "cuda"):
        view = view_of(Table(predicted.to(device), None, embeddings.to(device)), 2000, 50)
        picks = strategy(view, 60, np.random.default_rng(0))
        assert len(set(picks.tolist())) == 60
        unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
        known = torch.cat([unit[2000:], unit[torch.from_numpy(picks)]])
        covered.append(float((-torch.cdist(unit[:2000], known).amin(1).square()).exp().sum()))
    assert covered[0] == pytest.approx(covered[1], rel=1e-3)


@pytest.mark.parametrize("focus", ["pool", "target"])
def test_bait(focus):
    probs, embeddings = gradients(690, c=4, d=8)
    same_on_both(
        Bait(focus=focus),
        lambda d: view_of(Table(None, probs.to(d), embeddings.to(d)), 600, 30, 60),
        20,
    )


def test_typiclust():
    embeddings = gradients(2010)[1].double()  # clusters of rounded points may differ
    same_on_both(TypiClust(), lambda d: view_of(Table(None, None, embeddings.to(d)), 2000, 10), 30)


@pytest.mark.parametrize("labelled", [0, 50])
def test_coreset(labelled):
    embeddings = gradients(4000 + labelled)[1]
    same_on_both(
        Coreset(), lambda d: view_of(Table(None, None, embeddings.to(d)), 4000, labelled), 400
    )


def test_mebl_plus_plus():
    probs = draws(2060, 40, 5)
    same_on_both(MeblPlusPlus(), lambda d: view_of(Table(probs.to(d)), 2000, targets=60), 150)


def test_answers_on_two_devices_meet():
    probs, embeddings = gradients(2000)
    for device in ("cpu", "cuda"):
        other = "cuda" if device == "cpu" else "cpu"
        view = view_of(Table(None, probs.to(device), embeddings.to(other)), 2000)
        assert len(Badge()(view, 50, np.random.default_rng(0))) == 50


def test_what_a_batch_promises():
    probs = draws(120, 60, 7)
    expected = promise(probs[:50], probs[50:])
    assert promise(probs[:50].cuda(), probs[50:].cuda()) == pytest.approx(expected, rel=1e-9)


def waits(work):
    """How often the host waited for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # warns itself, the first time
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


@pytest.mark.parametrize("aleatoric", [True, False])
def test_nobody_waits_within_a_run_of_greedy_picks(aleatoric):
    probs = draws(460, 50, 5).cuda()
    S = drawspace.target_gram(probs[400:])
    labels = drawspace.Labels(drawspace.reflected(probs[:400]), S, 1e-3, aleatoric)
    survey = labels.survey()
    greedy._run(labels, survey, 2)  # libraries wait when they are first used
    assert waits(lambda: greedy._run(labels, survey, 20)) == 0
    assert waits(lambda: survey.scores().tolist()) > 0  # waits are seen


def test_nobody_waits_within_a_batch_of_sampled_labels():
    probs = draws(90, 40, 3).cuda()
    pool, val = probs[:60], probs[60:]

    def choose(size):
        def gain(beliefs):
            return batch.target_information(pool, val, beliefs)

        return batch._greedy(pool, size, gain, 16, np.random.default_rng(0))

    choose(4)
    assert waits(lambda: choose(12)) <= 1  # for all picks


def test_host_waits_for_blocks_of_picks_only():
    probs, embeddings = (x.cuda() for x in gradients(5000))
    view = view_of(Table(None, probs, embeddings), 5000)
    for strategy in (Badge(), Coreset()):
        few, many = (
            waits(lambda size=size: strategy(view, size, np.random.default_rng(0)))  # noqa: B023
            for size in (1, 400)
        )
        assert 0 < many - few < 200


def test_tf32_of_the_caller_changes_nothing():
    probs = draws(3060, 50, 10).cuda()
    view = view_of(Table(probs), 3000, targets=60)
    picks = [GreedyConditioning()(view, 60, np.random.default_rng(0)).tolist()]
    torch.set_float32_matmul_precision("medium")
    try:
        picks.append(GreedyConditioning()(view, 60, np.random.default_rng(0)).tolist())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert picks[0] == picks[1]


def test_chunks_follow_free_memory(monkeypatch):
    like = torch.zeros(1, device="cuda")
    assert at_once(1, like) > 1 << 20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    assert at_once(1 << 12, like) == 1 << 12
    # Of small chunks the same picks.
    monkeypatch.setattr(drawspace, "_CHUNK", 1 << 12)
    probs = draws(560, 50, 5)
    same_on_both(GreedyConditioning(), lambda d: view_of(Table(probs.to(d)), 500, targets=60), 40)
