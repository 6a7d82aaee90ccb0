"""BAIT by factors and Woodbury against explicit Fisher matrices, inverted in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from stand_ins import Table

from foresee import Bait, InputError, View
from foresee.strategies import bait
from foresee.testing import check_strategy


def rng(seed=0):
    return np.random.default_rng(seed)


def table(n=30, labelled=6, m=9, c=3, d=4, sharp=1.5, seed=0):
    total = n + labelled + m
    h = 1 + rng(seed).standard_normal((total, d))
    logits = sharp * h @ rng(seed + 1).standard_normal((d, c))
    probs = np.exp(logits - logits.max(1, keepdims=True))
    rows = np.arange(total)
    pool, known, val = np.split(rows, [n, n + labelled])
    posterior = Table(None, probs / probs.sum(1, keepdims=True), h)
    return View(posterior, known, np.zeros(labelled, int), pool, val)


def fishers(view, rows):
    """(diag p − p pᵀ) ⊗ h hᵀ of each."""
    found = []
    for p, h in zip(view.posterior.probs[rows], view.posterior.embeddings[rows], strict=True):
        found.append(np.kron(np.diag(p) - np.outer(p, p), np.outer(h, h)))
    return np.array(found)


def plain(view, goals, size, ridge):
    """Picks by inverses of whole matrices."""
    points, F = fishers(view, view.pool), fishers(view, goals).mean(0)
    M = ridge * np.eye(len(F)) + fishers(view, view.labelled).sum(0)

    def error(M):
        return np.trace(np.linalg.solve(M, F))

    picks = []
    while len(picks) < min(2 * size, len(points)):
        errors = [np.inf if i in picks else error(M + points[i]) for i in range(len(points))]
        picks.append(int(np.argmin(errors)))
        M = M + points[picks[-1]]
    while len(picks) > size:
        errors = [error(M - points[i]) for i in picks]
        M = M - points[picks.pop(int(np.argmin(errors)))]
    return picks


@pytest.mark.parametrize("focus", ["pool", "target"])
@pytest.mark.parametrize("size", [1, 5, 20, 30])
@pytest.mark.parametrize(("c", "d", "ridge"), [(3, 4, 1.0), (2, 3, 0.01), (5, 2, 10.0)])
def test_picks_are_those_of_whole_matrices(monkeypatch, focus, size, c, d, ridge):
    monkeypatch.setattr(bait, "_CHUNK", 7 * c * d)
    view = table(c=c, d=d)
    goals = view.val if focus == "target" else np.concatenate([view.pool, view.labelled])
    picks = Bait(focus=focus, ridge=ridge)(view, size, rng())
    assert picks.dtype == np.int64
    assert picks.tolist() == plain(view, goals, size, ridge)


@pytest.mark.parametrize("focus", ["pool", "target"])
@pytest.mark.parametrize("labelled", [0, 30])
def test_long_embeddings_take_more_digits(focus, labelled):
    view = table(n=40, labelled=labelled)
    held = view.posterior
    held.embeddings, held.probs = 3e3 * held.embeddings, held.probs.astype(np.float32)
    picks = Bait(focus=focus)(view, 6, rng())
    held.probs = held.probs / held.probs.sum(1, keepdims=True, dtype=np.float64)
    goals = view.val if focus == "target" else np.concatenate([view.pool, view.labelled])
    assert picks.tolist() == plain(view, goals, 6, 1.0)
    held.embeddings *= 1e7
    with pytest.raises(InputError, match=r"ridge = 1 is lost beside embeddings as long as"):
        Bait()(replace(view, labelled=view.pool[:9], labels=np.zeros(9)), 2, rng())


def test_nothing_need_be_labelled():
    view = replace(table(), labelled=None, labels=None)
    nobody = replace(view, labelled=view.pool[:0], labels=view.pool[:0])
    assert Bait()(view, 5, rng()).tolist() == plain(nobody, view.pool, 5, 1.0)


def test_factors_make_the_whole():
    view = table(c=4, d=3)
    p, h = view.posterior.probs[:7], view.posterior.embeddings[:7]
    layer = bait._Layer(torch.tensor(p), torch.tensor(h))
    whole = fishers(view, np.arange(7))
    np.testing.assert_allclose(layer.gram(), whole.sum(0), atol=1e-12)
    E = [layer.dense(torch.tensor([i])) for i in range(7)]
    for i in range(7):
        np.testing.assert_allclose(E[i].T @ E[i], whole[i], atol=1e-12)
    Z = torch.tensor(rng(5).standard_normal((12, 5)))
    np.testing.assert_allclose(layer.times(Z), torch.stack([e @ Z for e in E]), atol=1e-12)
    Q = Z @ Z.T
    expected = torch.stack([e @ Q @ e.T for e in E])
    np.testing.assert_allclose(layer.between(Q), expected, atol=1e-12)


def test_sure_predictions_keep_their_digits():
    p = torch.tensor([[1 - 1e-6, 7e-7, 3e-7]], dtype=torch.float64)
    h = torch.tensor(rng().standard_normal((1, 4)))
    Q = torch.tensor(rng(1).standard_normal((12, 12)))
    Q = Q @ Q.T
    exact = bait._Layer(p, h).between(Q)
    rounded = bait._Layer(p, h).along(None, torch.float32).between(Q)
    np.testing.assert_allclose(rounded.diagonal(0, 1, 2), exact.diagonal(0, 1, 2), rtol=1e-3)


def test_after_many_picks_what_is_followed_is_still_what_a_survey_finds(monkeypatch):
    view = table(n=200, c=4, d=6)
    followed = Bait(focus="target")(view, 60, rng())
    monkeypatch.setattr(bait, "_FALL", 2.0)  # a survey before every pick
    assert Bait(focus="target")(view, 60, rng()).tolist() == followed.tolist()


def test_axes_keep_the_longest_part_of_the_embeddings():
    view = table(d=5)
    turned = np.linalg.qr(rng(3).standard_normal((5, 5)))[0]
    flat = view.posterior.embeddings * [1, 1, 1, 1e-3, 1e-3]
    short = replace(view, posterior=replace(view.posterior, embeddings=flat[:, :3]))
    whole = replace(view, posterior=replace(view.posterior, embeddings=flat @ turned))
    assert Bait(axes=3)(whole, 6, rng()).tolist() == Bait()(short, 6, rng()).tolist()
    assert Bait(axes=5)(view, 6, rng()).tolist() == Bait()(view, 6, rng()).tolist()


def test_targets_and_candidates_are_drawn_anew():
    view = table(n=100)
    picks = [set(Bait(candidates=20, targets=8)(view, 5, rng(s)).tolist()) for s in range(10)]
    assert len(set.union(*picks)) > 25


@pytest.mark.parametrize("focus", ["pool", "target"])
def test_laws_of_a_strategy(focus):
    check_strategy(Bait(focus=focus))


def test_what_does_not_fit_is_refused_before_it_is_held():
    view = table()
    needed = 40 * 12**2 + 32 * 30 * 3**2
    assert len(Bait(memory=needed)(view, 2, rng())) == 2
    with pytest.raises(InputError, match=r"c·d = 3 · 4 = 12 rows and 30 of 3 × 3.*axes=64"):
        Bait(memory=needed - 1)(view, 2, rng())


def test_wrong_arguments_are_named():
    for arguments, message in (
        ({"focus": "val"}, 'focus must be "pool" or "target", got \'val\''),
        ({"ridge": 0}, "ridge must be positive and finite, got 0"),
        ({"axes": 0}, "axes must be None or at least 1, got 0"),
        ({"axes": 2.5}, "axes must be a whole number, got 2.5"),
        ({"memory": 1.5}, "memory must be a whole number of bytes"),
    ):
        with pytest.raises(InputError, match=message):
            Bait(**arguments)
    view = table()
    view.posterior.probs = np.log(view.posterior.probs)
    with pytest.raises(InputError, match=r"point\(pool\) holds log-probabilities"):
        Bait()(view, 2, rng())
    with pytest.raises(InputError, match=r"view\.val is None, and this method needs a target"):
        Bait(focus="target")(replace(table(), val=None), 2, rng())
