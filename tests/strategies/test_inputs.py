"""What people bring to a strategy: containers, generators, posteriors, scores, threads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from foresee import (
    Badge,
    Bait,
    BatchBALD,
    BatchMell,
    Coreset,
    GreedyConditioning,
    InputError,
    MaxHerding,
    MeblPlusPlus,
    PowerMell,
    Random,
    RelevantBadge,
    RetrainingEER,
    TopK,
    TopMell,
    TypiClust,
    UncertaintyHerding,
    bald,
    eer,
    entropy,
    mell,
    mell_top_k,
)
from foresee.strategies import candidates, greedy
from foresee.testing import random_draws, random_view

STRATEGIES = [
    Random(),
    TopK(mell),
    TopK(mell, candidates=30, targets=5),
    TopK(bald, targets=0),
    TopK(entropy, point=True),
    TopMell(),
    PowerMell(),
    MeblPlusPlus(),
    GreedyConditioning(),
    GreedyConditioning(candidates=30, targets=5, classes=2),
    BatchMell(samples=4, shortlist=10),
    BatchBALD(samples=8),
    Coreset(),
    Badge(),
    RelevantBadge(),
    MaxHerding(),
    MaxHerding(cover="target"),
    UncertaintyHerding(),
    UncertaintyHerding(cover="target"),
    TypiClust(),
    Bait(),
    Bait(focus="target"),
    RetrainingEER(LogisticRegression(), candidates=8),
]
WITH_TARGET = [
    s for s in STRATEGIES if type(s) not in (Random, BatchBALD, Coreset, Badge, TypiClust)
]
WITH_TARGET = [s for s in WITH_TARGET if not (type(s) is TopK and (s.targets == 0 or s.point))]
WITH_TARGET = [s for s in WITH_TARGET if "pool" not in vars(s).values()]
# Those that look at what pool and target share draw by draw.
BY_DRAWS = [s for s in WITH_TARGET if type(s) not in (MaxHerding, UncertaintyHerding, Bait)]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)


def rng(seed=0):
    return np.random.default_rng(seed)


class Frame:
    """Rows under labels that are a shuffled range, as those of a frame after a split."""

    def __init__(self, rows):
        self.rows = rows
        self.labels = rng(5).permutation(len(rows))

    @property
    def iloc(self):
        return self.rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, labels):
        return self.rows[np.argsort(self.labels)[labels]]


@dataclass
class Reader:
    """A posterior that reads anything; its answers may be stored in any way."""

    posterior: Any
    store: Any = np.asarray

    def read(self, inputs):
        assert not isinstance(inputs, Frame)  # rows by label would be other rows
        plain = inputs.toarray() if sparse.issparse(inputs) else np.asarray(inputs)
        return np.ascontiguousarray(plain, np.float64)

    def predict(self, inputs):
        return self.store(self.posterior.predict(self.read(inputs)))

    def point(self, inputs):
        return self.store(self.posterior.point(self.read(inputs)))

    def embed(self, inputs):
        return self.store(self.posterior.embed(self.read(inputs)))


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def backwards(values):
    """The same values, stored from the last to the first."""
    return values[::-1].copy()[::-1]


STORED = {
    "reversed": backwards,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": read_only,
    "by columns": np.asfortranarray,
    "tensor": torch.tensor,
}
CONTAINERS = STORED | {"list": list, "frame": Frame, "sparse": sparse.csr_matrix}


@every_strategy
@pytest.mark.parametrize("kind", CONTAINERS)
def test_picks_are_positions_in_any_container(strategy, kind):
    plain = random_view(rng(), n=60)
    contain = CONTAINERS[kind]
    parts = (contain(x) for x in (plain.labelled, plain.pool, plain.val))
    labelled, pool, val = parts
    view = replace(plain, posterior=Reader(plain.posterior), labelled=labelled, pool=pool, val=val)
    assert strategy(view, 6, rng(1)).tolist() == strategy(plain, 6, rng(1)).tolist()


@every_strategy
@pytest.mark.parametrize("kind", [*STORED, "longdouble"])
def test_predictions_may_be_stored_in_any_way(strategy, kind):
    plain = random_view(rng(), n=60)
    stores = STORED | {"longdouble": lambda x: x.astype(np.longdouble)}
    view = replace(plain, posterior=Reader(plain.posterior, stores[kind]))
    assert strategy(view, 6, rng(1)).tolist() == strategy(plain, 6, rng(1)).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "strategy", [*STRATEGIES, UncertaintyHerding(point=True)], ids=lambda s: type(s).__name__
)
def test_predictions_may_be_of_half_precision(strategy, dtype):
    view = random_view(rng(), n=60, c=10)
    half = Reader(view.posterior, lambda x: torch.tensor(x).to(dtype))
    picks = strategy(replace(view, posterior=half), 6, rng(1))
    assert len(set(picks.tolist()) & set(strategy(view, 6, rng(1)).tolist())) >= 4


@pytest.mark.parametrize("strategy", BY_DRAWS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("wide", ["pool", "val"])
def test_pool_and_target_may_be_of_two_kinds_of_floats(strategy, wide):
    view = random_view(rng(), n=60)
    n_val = getattr(strategy, "targets", None) or len(view.val)

    def store(probs):
        is_wide = (len(probs) == n_val) == (wide == "val")
        return probs.astype(np.float64 if is_wide else np.float32)

    picks = strategy(replace(view, posterior=Reader(view.posterior, store)), 6, rng(1))
    assert picks.tolist() == strategy(view, 6, rng(1)).tolist()


@pytest.mark.parametrize("strategy", [Badge(), Bait()], ids=lambda s: type(s).__name__)
def test_point_predictions_may_be_whole_numbers(strategy):
    view, picks = random_view(rng(), n=60), []
    for kind in (np.float32, np.int64):
        model = Reader(view.posterior)
        model.point = lambda x, kind=kind: np.eye(3, dtype=kind)[np.arange(len(x)) % 3]
        picks.append(strategy(replace(view, posterior=model), 6, rng(1)).tolist())
    assert picks[0] == picks[1]


@pytest.mark.parametrize("kind", [*STORED, "longdouble"])
def test_mell_top_k_reads_what_mell_reads(kind):
    stores = STORED | {"longdouble": lambda x: x.astype(np.longdouble)}
    pool, val = random_draws(rng(), 50, 8, 3), random_draws(rng(1), 9, 8, 3)
    best = mell_top_k(stores[kind](pool), stores[kind](val), 5)
    assert best.picks.tolist() == np.argsort(-mell(pool, val))[:5].tolist()


@pytest.mark.parametrize("kinds", [(np.float32, np.float64), (np.float64, np.float32)])
def test_mell_top_k_of_lists_and_of_two_kinds_of_floats(kinds):
    pool, val = random_draws(rng(), 50, 8, 3), random_draws(rng(1), 9, 8, 3)
    expected = mell_top_k(pool, val, 5).picks.tolist()
    assert mell_top_k(pool.tolist(), val.tolist(), 5).picks.tolist() == expected
    pool, val = (x.astype(kind) for x, kind in zip((pool, val), kinds, strict=True))
    best = mell_top_k(pool, val, 5)
    assert best.picks.tolist() == expected
    assert best.scores.dtype == np.float64


def test_a_pool_that_must_be_read_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(candidates, "_PART", 7)
    plain = random_view(rng(), n=60)
    seen = []

    class Counting(Reader):
        def embed(self, inputs):
            seen.append(len(inputs))
            return super().embed(inputs)

    view = replace(plain, posterior=Counting(plain.posterior), pool=list(plain.pool))
    assert Coreset()(view, 9, rng()).tolist() == Coreset()(plain, 9, rng()).tolist()
    assert seen == [7] * 8 + [4, len(plain.labelled)]


@every_strategy
def test_a_seed_is_no_generator(strategy):
    with pytest.raises(InputError, match=r"rng must be a numpy.random.Generator, got 0: pass"):
        strategy(random_view(rng()), 3, 0)


@every_strategy
def test_without_a_target_methods_that_need_one_say_so(strategy):
    view = random_view(rng())
    for val, what in ((None, "None"), (view.val[:0], "empty")):
        without = replace(view, val=val)
        if strategy in WITH_TARGET:
            with pytest.raises(InputError, match=rf"view\.val is {what}, and this method needs a"):
                strategy(without, 3, rng())
        else:
            assert len(strategy(without, 3, rng())) == 3


@every_strategy
def test_without_labels_only_a_model_that_must_be_fitted_says_so(strategy):
    view = random_view(rng())
    no_labels = view.labels[:0]
    for nothing in (None, view.labelled[:0]):
        without = replace(view, labelled=nothing, labels=no_labels)
        if isinstance(strategy, RetrainingEER):
            with pytest.raises(InputError, match=r"view\.labelled is empty"):
                strategy(without, 3, rng())
        else:
            assert len(strategy(without, 3, rng())) == 3


def in_pool(view, broken):
    """Answers that are right for the targets and broken for the pool."""
    return lambda x: broken(x) if len(x) != len(view.val) else x


ANSWERS = {
    "nothing": (lambda x: None, "must hold probabilities as floats|must be real numbers"),
    "words": (lambda x: np.full(x.shape, "a"), "must hold probabilities|must be real numbers"),
    "one row too many": (lambda x: np.concatenate([x, x[:1]]), "a row for each of the|share"),
    "one row too few": (lambda x: x[:-1], "a row for each of the|is empty|finite matrix"),
    "a number": (lambda x: x.mean(), "must"),
    "NaN": (lambda x: x * np.nan, "must be finite|a finite matrix"),
    "complex numbers": (lambda x: x + 0j, "must hold probabilities as floats|must be real numbers"),
}


@every_strategy
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_posterior_that_answers_nonsense_is_named(strategy, answer):
    if isinstance(strategy, Random | RetrainingEER):
        return  # never ask
    view = random_view(rng())
    broken, message = ANSWERS[answer]
    for store in (broken, in_pool(view, broken)):
        with pytest.raises(InputError, match=message):
            strategy(replace(view, posterior=Reader(view.posterior, store)), 3, rng())


BY_EMBEDDINGS = [Coreset(), Badge(), RelevantBadge(), MaxHerding(), TypiClust(), Bait()]


@pytest.mark.parametrize("strategy", BY_EMBEDDINGS, ids=lambda s: type(s).__name__)
def test_embeddings_too_long_for_their_squares_are_named(strategy):
    view = random_view(rng())
    far = Reader(view.posterior, lambda x: x if x.shape[1:] != (5,) else x * np.float32(1e25))
    with pytest.raises(InputError, match=r"embed\(pool\) must be .* none longer than 4e\+18"):
        strategy(replace(view, posterior=far), 5, rng())


@pytest.mark.parametrize("strategy", BY_DRAWS, ids=lambda s: type(s).__name__)
def test_other_draws_for_the_pool_than_for_the_target_are_named(strategy):
    if isinstance(strategy, RetrainingEER):
        return
    view = random_view(rng())
    n_val = strategy.targets or len(view.val)
    fewer = Reader(view.posterior, lambda x: x if len(x) == n_val else x[:, :5])
    with pytest.raises(InputError, match="must share draws t"):
        strategy(replace(view, posterior=fewer), 3, rng())


@pytest.mark.parametrize("strategy", BY_DRAWS, ids=lambda s: type(s).__name__)
def test_random_targets_are_drawn_without_replacement(strategy):
    if isinstance(strategy, RetrainingEER):
        return  # tested by hand
    view = random_view(rng(), n=40, m=11)
    seen = []

    class Noting(Reader):
        def predict(self, inputs):
            seen.append(inputs)
            return super().predict(inputs)

    view = replace(view, posterior=Noting(view.posterior))
    for seed in range(3):
        seen.clear()
        replace(strategy, candidates=30, targets=10)(view, 3, rng(seed))
        assert np.unique(seen[0], axis=0).shape == (10, 5)
        assert all(row in view.val.tolist() for row in seen[0].tolist())
    whole, enough = (replace(strategy, targets=k)(view, 3, rng()).tolist() for k in (None, 11))
    assert whole == enough


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda pool, val: np.full(len(pool), np.nan), "must be finite, got nan for 1 of 1 points"),
        (lambda pool, val: np.full(len(pool), -np.inf), "must be finite, got -inf"),
        (lambda pool, val: np.ones(len(pool)) + 1j, "must return one real number .* complex128"),
        (lambda pool, val: np.ones(len(pool), bool), "must return one real number .* bool"),
        (lambda pool, val: pool.mean(2), r".* for each of the 1 points, got float32 \[1, 8\]"),
        (lambda pool, val: np.ones(len(pool) + 1), r".* got float64 \[2\]"),
        (lambda pool, val: None, "must return one real number"),
    ],
)
@pytest.mark.parametrize("build", [TopK, lambda score: PowerMell(score=score)])
def test_scores_are_one_finite_number_each(build, scores, message):
    with pytest.raises(InputError, match=rf"score <lambda> {message}"):
        build(scores)(random_view(rng()), 2, rng())


@pytest.mark.parametrize(
    ("score", "options", "message"),
    [
        (entropy, {}, r"take \(pool, val\), as point=False has it, got <function entropy .*: "),
        (mell, {"point": True}, r"take \(point\), as point=True has it, got <function mell .*: "),
        (eer, {}, r".* got <function eer .*: .* bind other arguments by functools\.partial"),
        ("mell", {}, r"take \(pool, val\), .* got 'mell'"),
    ],
)
def test_a_score_of_other_arguments_is_refused_at_once(score, options, message):
    with pytest.raises(InputError, match=f"score must {message}"):
        TopK(score, **options)


@pytest.mark.parametrize(("low", "dtype"), [(0, np.uint8), (-128, np.int8)])
def test_scores_may_be_small_whole_numbers(low, dtype):
    def score(pool, val):
        return np.where(pool[:, 0, 0] > 0.5, 127, low).astype(dtype)

    view = random_view(rng())
    likely = view.posterior.predict(view.pool)[:, 0, 0] > 0.5
    assert likely[TopK(score)(view, int(likely.sum()), rng())].all()


def test_a_score_may_keep_its_arguments():
    class Score:
        args = 3

        def __call__(self, pool, val):
            return mell(pool, val)

    view = random_view(rng())
    assert TopK(Score())(view, 5, rng()).tolist() == TopK(mell)(view, 5, rng()).tolist()


def test_a_broken_score_is_called_by_its_name():
    def worst(pool, val, loss):
        return eer(pool, val, loss=loss) * np.nan

    view = random_view(rng())
    with pytest.raises(InputError, match="score worst must be finite"):
        TopK(partial(worst, loss=np.eye(3)))(view, 2, rng())


@every_strategy
def test_called_from_many_threads_at_once(strategy, monkeypatch):
    monkeypatch.setattr(greedy, "FEW", 0)
    view = random_view(rng(), n=100)
    threads, switching = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(2)
    sys.setswitchinterval(1e-5)
    try:
        alone = [strategy(view, 6, rng(seed)).tolist() for seed in range(4)]
        with ThreadPoolExecutor(4) as executor:
            together = executor.map(lambda seed: strategy(view, 6, rng(seed)).tolist(), range(4))
            assert list(together) == alone
            assert torch.get_float32_matmul_precision() == "medium"
            assert executor.submit(torch.get_num_threads).result() == 2
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        sys.setswitchinterval(switching)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")
