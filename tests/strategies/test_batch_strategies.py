"""BatchMell, BatchBALD, PowerMell and MeblPlusPlus against brute force over label vectors."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import chisquare

from foresee import BatchBALD, BatchMell, InputError, MeblPlusPlus, PowerMell, bald, mebl, mell
from foresee.strategies import batch, diverse
from foresee.testing import check_strategy, random_draws
from foresee.types import View

pytestmark = pytest.mark.usefixtures("one_thread")

STRATEGIES = [
    BatchMell(samples=4),
    BatchMell(candidates=50, targets=5, shortlist=12),
    BatchBALD(samples=8),
    PowerMell(),
    PowerMell(candidates=50, targets=5, power=3.0),
    MeblPlusPlus(),
    MeblPlusPlus(candidates=50, memory=1000),
]


@dataclass(frozen=True)
class Table:
    """A posterior that knows its predictions by heart; inputs are row numbers."""

    draws: np.ndarray

    def predict(self, inputs):
        return self.draws[np.asarray(inputs, int)]

    def point(self, inputs):
        return self.predict(inputs).mean(1)

    def embed(self, inputs):
        return self.point(inputs)


def view(pool, val):
    both = np.concatenate([pool, val])
    rows = np.arange(len(both))
    return View(Table(both), rows[:1], np.zeros(1, int), rows[: len(pool)], rows[len(pool) :])


def some(n=6, m=4, t=7, c=3, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    return random_draws(rng, n, t, c, spread), random_draws(rng, m, t, c, spread)


def told(pool, others, chosen):
    """mean_v I(Y_v; Y_B) over all label vectors; ``others`` [v t k] may be targets or draws."""
    t, c = pool.shape[1:]
    total = 0.0
    for other in others:
        joint = np.array(
            [
                np.prod([pool[b, :, y] for b, y in zip(chosen, ys, strict=True)], axis=0)
                @ other
                / t
                for ys in itertools.product(range(c), repeat=len(chosen))
            ]
        )
        apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        seen = joint > 0
        total += (joint[seen] * np.log(joint[seen] / apart[seen])).sum()
    return total / len(others)


def greedily(gain, n, size):
    chosen = []
    while len(chosen) < size:
        left = [i for i in range(n) if i not in chosen]
        chosen.append(max(left, key=lambda i: gain([*chosen, i])))
    return chosen


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_obeys_the_laws(strategy):
    check_strategy(strategy)


@pytest.mark.parametrize("seed", range(5))
def test_with_all_label_vectors_the_batch_is_the_greedy_optimum(seed):
    pool, val = some(seed=seed)
    rng = np.random.default_rng(seed)
    ours = BatchMell(samples=3**3, shortlist=None)(view(pool, val), 4, rng)
    assert ours.tolist() == greedily(lambda b: told(pool, val, b), len(pool), 4)
    # Every draw is a certain target: what is told about it is what is told about the parameters.
    draws = np.eye(pool.shape[1])[None]
    ours = BatchBALD(samples=3**3)(view(pool, val), 4, rng)
    assert ours.tolist() == greedily(lambda b: told(pool, draws, b), len(pool), 4)


def test_the_first_gains_are_mell_and_bald():
    pool, val = map(torch.from_numpy, some(30, 9, 12, 4))
    beliefs = batch.prior(pool)
    told = batch.divergence(pool)
    torch.testing.assert_close(batch.target_information(pool, val, beliefs), mell(pool, val))
    torch.testing.assert_close(batch.parameter_information(pool, told, beliefs), bald(pool))


@pytest.mark.parametrize(("c", "labels"), [(2, 9), (3, 6)])
def test_sampled_label_vectors_are_unbiased_and_converge(c, labels):
    pool, val = map(torch.from_numpy, some(10, 5, 10, c, spread=1.0))

    def beliefs(samples, seed):
        found = batch.prior(pool)
        for i in range(labels):
            found = batch.after(found, pool[i], samples, np.random.default_rng([seed, i]))
        assert found.sampled == (samples < c**labels)
        return found

    def gains(found):
        """E_y mean_v I_w(Y_v; Y_i), of all label vectors at once."""
        joint = torch.einsum("st,itc,vtd->sivcd", found.weight, pool, val)
        apart = joint.sum(4, keepdim=True) * joint.sum(3, keepdim=True)
        told = (joint * (joint / apart).log()).sum((3, 4)).mean(2)  # [s i]
        return found.chance @ told

    exact = gains(beliefs(c**labels, 0))
    variances = []
    # Powers of c are where all vectors are kept to the last, and then drawn by their chances.
    for samples in (c**2, c**2 + 1, 8 * c**2):
        found = beliefs(samples, 0)
        torch.testing.assert_close(batch.target_information(pool, val, found), gains(found))
        runs = torch.stack([gains(beliefs(samples, seed)) for seed in range(80)])
        variances.append(runs.var(0))
        z = (runs.mean(0) - exact) / (runs.var(0) / len(runs)).sqrt()
        assert z.abs().max() < 4.5
    assert 4 < float((variances[0] / variances[2]).mean()) < 16


def test_impossible_label_vectors_do_not_count_as_samples():
    pool = torch.eye(5)[torch.tensor([[0, 1], [2, 3], [4, 0]])]  # two draws, whose labels differ
    beliefs = batch.prior(pool)
    for probs in pool:
        beliefs = batch.after(beliefs, probs, 6, np.random.default_rng(0))
    assert not beliefs.sampled
    possible = beliefs.chance > 0
    assert beliefs.chance[possible].tolist() == [0.5, 0.5]
    assert sorted(beliefs.weight[possible].tolist()) == [[0, 1], [1, 0]]


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(2, 6))
def test_gains_are_never_negative_and_beliefs_are_distributions(seed, c, t):
    rng = np.random.default_rng(seed)
    pool, val = map(torch.from_numpy, some(5, 3, t, c, seed, spread=5.0))
    beliefs = batch.prior(pool)
    for i in (0, 1, 1, 2):
        beliefs = batch.after(beliefs, pool[i], 6, rng)
        assert float(batch.target_information(pool, val, beliefs).min()) >= 0
        torch.testing.assert_close(beliefs.weight.sum(1), torch.ones(len(beliefs.weight)).double())
        torch.testing.assert_close(beliefs.chance.sum(), torch.tensor(1.0).double())


def xor(n_bits):
    """Every draw is a string of bits; the target is their parity, the pool shows bits and noise."""
    bits = np.array(list(itertools.product([0, 1], repeat=n_bits + 2)))
    parity = bits[:, :n_bits].sum(1) % 2
    return np.eye(2)[bits.T], np.eye(2)[parity][None]


def test_two_labels_that_tell_nothing_alone_are_found_in_pairs_only():
    pool, val = xor(2)
    assert mell(pool, val).max() == 0
    pair = BatchMell(shortlist=None, lookahead=2)(view(pool, val), 2, np.random.default_rng(0))
    assert set(pair.tolist()) == {0, 1}
    found = [
        set(BatchMell(shortlist=None)(view(pool, val), 2, np.random.default_rng(k)).tolist())
        for k in range(20)
    ]
    assert found.count({0, 1}) < 10  # greedy has nothing to go by
    pool, val = xor(3)
    triples = [
        BatchMell(shortlist=None, lookahead=2)(view(pool, val), 3, np.random.default_rng(k))
        for k in range(10)
    ]
    assert any(set(triple.tolist()) != {0, 1, 2} for triple in triples)


def test_a_copy_is_not_picked_while_something_else_tells_more():
    pool, val = some(5, 20, 40, 3, spread=6.0)
    certain = np.eye(3)[pool.argmax(2)]
    copies = np.concatenate([certain[:1], certain])
    picks = BatchMell(shortlist=None, samples=9)(view(copies, val), 3, np.random.default_rng(0))
    assert not {0, 1} <= set(picks.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_the_best_of_all_pairs(seed):
    pool, val = some(7, seed=seed)
    picks = BatchMell(shortlist=None, lookahead=2, samples=3**4)(
        view(pool, val), 5, np.random.default_rng(0)
    )
    expected = []
    for _ in range(2):
        left = [i for i in range(7) if i not in expected]
        pairs = itertools.combinations(left, 2)
        expected += max(pairs, key=lambda pair: told(pool, val, [*expected, *pair]))
    left = [i for i in range(7) if i not in expected]
    expected.append(max(left, key=lambda i: told(pool, val, [*expected, i])))
    assert [set(picks[:2]), set(picks[2:4]), picks[4]] == [
        set(expected[:2]),
        set(expected[2:4]),
        expected[4],
    ]


@pytest.mark.parametrize("lookahead", [1, 2])
def test_an_exhausted_batch_goes_on_with_a_new_layer(lookahead):
    rng = np.random.default_rng(0)
    certain = np.eye(3)[rng.integers(3, size=(30, 4))]  # four draws: two labels tell them apart
    alone = mell(certain, certain[:9])
    strategy = BatchMell(shortlist=None, lookahead=lookahead)
    picks = strategy(view(certain, certain[:9]), 16, rng)
    assert len(set(picks.tolist())) == 16
    told_all = told(certain, certain[:9], list(range(6)))
    first = next(
        k for k in range(1, 16) if told(certain, certain[:9], picks[:k]) > 0.999 * told_all
    )
    assert first < 5
    # A layer begins where the one before has told all, with what tells most of what is left.
    left = np.delete(np.arange(30), picks[:first])
    if lookahead == 1:
        assert alone[picks[first]] == pytest.approx(alone[left].max(), rel=1e-5)
    else:
        pairs = itertools.combinations(left, 2)
        best = max(told(certain, certain[:9], list(pair)) for pair in pairs)
        assert told(certain, certain[:9], picks[first : first + 2]) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("strategy", [BatchMell(samples=8), BatchBALD(samples=8)])
def test_a_batch_is_exhausted_by_what_is_left_whatever_a_second_look_at_a_pick_tells(strategy):
    # Draws are two coins. The first label, a noisy one, tells the first coin, of which the second
    # tells a little, more than the third tells of the other coin; after the first, less than that.
    heads = np.array([[1, 1, -1, -1], [1, -1, 1, -1]])
    likely = 0.5 + np.array([[0.4], [0.03], [0.025]]) * heads[[0, 0, 1]]
    pool, val = np.stack([likely, 1 - likely], 2), np.stack([heads > 0, heads < 0], 2).astype(float)
    assert strategy(view(pool, val), 2, np.random.default_rng(0)).tolist() == [0, 1]


@pytest.mark.parametrize("lookahead", [1, 2])
def test_every_layer_is_a_batch_of_its_own(lookahead):
    # Four draws are two coins. Four points show each; three targets the first, two the second.
    coins = np.eye(2)[np.array(list(itertools.product([0, 1], repeat=2))).T]
    pool, val = np.repeat(coins, 4, axis=0), np.repeat(coins, [3, 2], axis=0)
    strategy = BatchMell(shortlist=None, lookahead=lookahead)
    picks = strategy(view(pool, val), 8, np.random.default_rng(0))
    assert (picks // 4).tolist() == [0, 1] * 4


@pytest.mark.parametrize("lookahead", [1, 2])
def test_the_last_of_an_odd_number_may_begin_a_layer(lookahead):
    # Two coins, each shown by two points, and what a fifth barely shows of a third.
    bits = np.array(list(itertools.product([0, 1], repeat=3))).T
    coins, faint = np.eye(2)[bits[:2]], (np.eye(2) + 15)[bits[2:]] / 31
    pool = np.concatenate([np.repeat(coins, 2, axis=0), faint])
    val = np.concatenate([np.repeat(coins, [3, 2], axis=0), faint])
    strategy = BatchMell(shortlist=None, lookahead=lookahead)
    picks = strategy(view(pool, val), 3, np.random.default_rng(0))
    assert (picks // 2).tolist() == [0, 1, 0]
    assert len(set(picks.tolist())) == 3


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_takes_any_float_type(strategy, dtype):
    pool, val = (x.astype(dtype) for x in some(60, 10, 12, 5, spread=8.0))
    assert len(set(strategy(view(pool, val), 9, np.random.default_rng(0)).tolist())) == 9


def test_power_draws_in_proportion_to_the_score():
    pool, val = some(5, 6, 10, 3)
    any_score = PowerMell(score=lambda pool, val: pool[:, 0, 0])  # there and then: MELL takes time
    first = [int(any_score(view(pool, val), 1, np.random.default_rng(k))[0]) for k in range(400)]
    counts, scores = np.bincount(first, minlength=5), pool[:, 0, 0]
    assert chisquare(counts, 400 * scores / scores.sum()).pvalue > 1e-3
    assert chisquare(counts, np.full(5, 80)).pvalue < 1e-9  # the test can tell them apart
    blind = PowerMell(power=0)
    first = [int(blind(view(pool, val), 1, np.random.default_rng(k))[0]) for k in range(400)]
    assert chisquare(np.bincount(first, minlength=5)).pvalue > 1e-3
    sharp = PowerMell(power=1e6)(view(pool, val), 5, np.random.default_rng(0))
    assert sharp.tolist() == np.argsort(-mell(pool, val)).tolist()


def test_scores_of_zero_come_last_and_negative_ones_are_refused():
    pool, val = some(6, 6, 10, 3)
    pool[:4] = pool[:4, :1]  # certain draws: nothing to learn
    for k in range(20):
        picks = PowerMell()(view(pool, val), 4, np.random.default_rng(k))
        assert set(picks[:2].tolist()) == {4, 5}

    def negative(pool, val):
        return -np.ones(len(pool))

    with pytest.raises(InputError, match="score must not be negative, got -1"):
        PowerMell(score=negative)(view(pool, val), 2, np.random.default_rng(0))


def test_mebl_plus_plus_starts_in_proportion_to_mebl_and_skips_copies():
    pool, val = some(5, 6, 10, 3)
    scores = mebl(pool, val)
    ours = MeblPlusPlus()
    first = [int(ours(view(pool, val), 1, np.random.default_rng(k))[0]) for k in range(400)]
    counts = np.bincount(first, minlength=5)
    assert chisquare(counts, 400 * scores / scores.sum()).pvalue > 1e-3
    copies = np.concatenate([pool, pool])
    for k in range(10):
        picks = ours(view(copies, val), 5, np.random.default_rng(k))
        assert sorted(p % 5 for p in picks.tolist()) == list(range(5))


def embedding(pool, val):
    """Whose squared lengths are MEBL, in float64 and class by class."""
    t = pool.shape[1]
    mean = pool.mean(1, keepdims=True)
    deviations = (val - val.mean(1, keepdims=True)).transpose(0, 2, 1).reshape(-1, t)
    values, vectors = np.linalg.eigh(deviations.T @ deviations / len(val) / t)
    rows = ((pool - mean) / np.sqrt(t * mean)).transpose(0, 2, 1)
    return (rows @ (vectors * np.sqrt(values.clip(0)))).reshape(len(pool), -1)


@pytest.mark.parametrize("c", [3, 40])
def test_distances_of_mebl_plus_plus_are_those_of_the_embedding(monkeypatch, c):
    pool, val = some(12, 6, 10, c)
    seen = []

    def first(vectors, size, rng, from_origin):
        seen.append(vectors)
        return np.arange(size)

    monkeypatch.setattr(diverse, "kmeanspp", first)
    rows = MeblPlusPlus()(view(pool, val), 12, np.random.default_rng(0))
    explicit = embedding(pool, val)[rows]
    squared = ((explicit[:, None] - explicit) ** 2).sum(2)
    every = slice(None)
    np.testing.assert_allclose(seen[0].squared(every, every), squared, atol=1e-5 * squared.max())
    assert not seen[0].squared(every, every).diagonal().any()  # nor between copies
    np.testing.assert_allclose(seen[0].squares, mebl(pool, val)[rows], rtol=1e-4)
    MeblPlusPlus(memory=4 * 12 * c * 5)(view(pool, val), 12, np.random.default_rng(0))
    assert seen[1].rows.shape == (12, 5 * c)
    assert (seen[1].squares <= seen[0].squares * 1.00001).all()
    assert seen[1].squares.sum() > 0.7 * seen[0].squares.sum()


@pytest.mark.parametrize("c", [2, 3, 5])
def test_batchbald_in_float32_keeps_its_digits(c):
    pool = torch.from_numpy(some(20, 2, 12, c, spread=0.01)[0])
    beliefs = batch.prior(pool)
    rng = np.random.default_rng(0)
    for i in range(4):
        exact = []
        for probs in pool.numpy():
            given = beliefs.weight.numpy() @ probs
            own = (beliefs.chance.numpy() @ beliefs.weight.numpy()) @ (probs * np.log(probs)).sum(1)
            exact.append(own - beliefs.chance.numpy() @ (given * np.log(given)).sum(1))
        single = batch.Beliefs(*(x.float() for x in beliefs))
        rows = pool.float()
        got = batch.parameter_information(rows, batch.divergence(rows), single).numpy()
        assert np.abs(got - exact).max() < 1e-3 * np.max(exact) < 1e-5
        beliefs = batch.after(beliefs, pool[i], 7, rng)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BatchMell(samples=0), "samples must be at least 1, got 0"),
        (lambda: BatchMell(lookahead=3), "lookahead must be 1 or 2, got 3"),
        (lambda: BatchMell(shortlist=9.0), r"shortlist must be a whole number, got 9\.0"),
        (lambda: BatchMell(shortlist=0), "shortlist must be None or at least 1, got 0"),
        (lambda: BatchBALD(candidates=0), "candidates must be None or at least 1, got 0"),
        (lambda: PowerMell(power=-1.0), "power must be at least 0 and finite, got -1"),
        (lambda: MeblPlusPlus(memory=0), "memory must be a whole number of bytes"),
    ],
)
def test_bad_options_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
