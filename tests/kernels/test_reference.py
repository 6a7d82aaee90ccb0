"""The specification against the paper: labels enumerated one by one, in plain Python."""

import ast
import inspect
import math

import numpy as np
import pytest
import torch

from foresee.kernels import compiled, elementwise, reference, tiled
from foresee.testing import random_draws


def brute_force(pool, val, losses):
    """Equation 1: observe each label, reweight the draws by it, predict again, take the loss.

    ``losses(probs)`` lists E[ℓ(Y, a)] for the actions a worth considering.
    """
    scores = []
    for point in pool:
        reduction = 0.0
        for target in val:
            draws = [1 / len(target)] * len(target)
            reduction += min(losses(predict(draws, target)))
            for label in range(point.shape[1]):
                evidence = sum(w * p for w, p in zip(draws, point[:, label], strict=True))
                if evidence > 0:
                    after = [w * p / evidence for w, p in zip(draws, point[:, label], strict=True)]
                    reduction -= evidence * min(losses(predict(after, target)))
        scores.append(reduction / len(val))
    return np.array(scores)


def predict(weights, draws):
    return [
        sum(w * draw[label] for w, draw in zip(weights, draws, strict=True))
        for label in range(draws.shape[1])
    ]


def log_losses(probs):
    # The best prediction is the distribution itself (the paper's appendix); a few others, which
    # must never be better, are offered too.
    actions = [probs, [1 / len(probs)] * len(probs), [0.9 * p + 0.1 / len(probs) for p in probs]]
    return [sum(-p * math.log(a) for p, a in zip(probs, act, strict=True) if p) for act in actions]


def zero_one_losses(probs):
    return [1 - p for p in probs]


def brier_losses(probs):
    actions = [probs, [1 / len(probs)] * len(probs), [0.9 * p + 0.1 / len(probs) for p in probs]]
    return [
        sum(
            p * sum((a - (label == k)) ** 2 for k, a in enumerate(act))
            for label, p in enumerate(probs)
        )
        for act in actions
    ]


COSTS = np.array([[0.0, 1.0, 0.3], [5.0, 0.0, 0.3], [1.0, 2.0, 0.3]])


def matrix_losses(probs):
    return [sum(p * COSTS[y, a] for y, p in enumerate(probs)) for a in range(3)]


@pytest.mark.parametrize(
    ("losses", "risk"),
    [
        (log_losses, reference.log_risk),
        (zero_one_losses, reference.zero_one_risk),
        (brier_losses, reference.brier_risk),
        (matrix_losses, reference.matrix_risk(COSTS)),
    ],
)
def test_expected_loss_reduction_is_equation_1(losses, risk):
    rng = np.random.default_rng(0)
    pool, val = random_draws(rng, 6, 5, 3, 3.0), random_draws(rng, 4, 5, 3, 3.0)
    pool[0, 0] = [1, 0, 0]
    pool[1] = [0.5, 0.5, 0]
    expected = brute_force(pool, val, losses)
    assert expected.max() > 1e-3
    np.testing.assert_allclose(
        reference.expected_loss_reduction(pool, val, risk), expected, rtol=0, atol=1e-14
    )


def test_the_papers_scores_are_affine_in_ours():
    rng = np.random.default_rng(1)
    pool, val = random_draws(rng, 9, 7, 4, 3.0), random_draws(rng, 5, 7, 4, 3.0)
    m = len(val)
    mell = reference.expected_loss_reduction(pool, val, reference.log_risk)
    entropies = reference.log_risk(val.mean(1)).sum()
    np.testing.assert_allclose((reference.paper_mell(pool, val) + entropies) / m, mell, atol=1e-14)
    mezl = reference.expected_loss_reduction(pool, val, reference.zero_one_risk)
    errors = reference.zero_one_risk(val.mean(1)).sum()
    np.testing.assert_allclose((reference.paper_mezl(pool, val) + errors) / m, mezl, atol=1e-14)


def test_information_splits_into_relevant_and_irrelevant():
    rng = np.random.default_rng(2)
    pool, val = random_draws(rng, 9, 7, 3, 3.0), random_draws(rng, 5, 7, 3, 3.0)
    val[0, :, 0], val[0, :, 1] = 0, val[0, :, 0] + val[0, :, 1]
    relevant = reference.expected_loss_reduction(pool, val, reference.log_risk)
    irrelevant = reference.irrelevant_information(pool, val)
    np.testing.assert_allclose(relevant + irrelevant, reference.bald(pool), atol=1e-14)


@pytest.mark.parametrize("module", [elementwise, reference, tiled])
def test_no_kernel_defines_functions_as_it_runs(module):
    # Their shapes are checked in tests: a function within another would be prepared for that at
    # every call, for a millisecond, which was half of the time that the tests of strategies took.
    functions = [n for n in ast.walk(ast.parse(inspect.getsource(module))) if is_function(n)]
    assert len(functions) > 5
    assert [f.name for f in functions if sum(map(is_function, ast.walk(f))) > 1] == []


def is_function(node):
    return isinstance(node, ast.FunctionDef)


@pytest.mark.parametrize("kernels", [compiled, elementwise])
def test_a_change_of_mind_that_costs_is_not_made(kernels):
    """By hand: one point of two classes, two other actions, three targets."""
    saving = [[-1.0, -1.0, -1.0], [-2.0, -2.0, 0.0]]
    u = [[0.5, 2.0, 0.0, 0.0, 5.0, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]]  # saves 0, 3, 0.5; none
    given = [np.array(values, np.float32) for values in (u, saving, [[0.25, 0.75]], [1.0])]
    out = given[-1]
    kernels.savings(*(given if kernels is compiled else map(torch.from_numpy, given)))
    assert out.tolist() == [1 + 0.25 * 3.5]
