"""The loop: what a round holds, that it can be stopped anywhere, and that its numbers are right."""

import time
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import tiny
from foresee.errors import InputError
from foresee.lab import loop, methods
from foresee.lab.experiment import Method
from foresee.lab.loop import Rows, calibration_error, measure, run
from foresee.scores import bald, entropy, mell, promise
from foresee.strategies import Badge, Coreset, GreedyConditioning, Random, TopK
from foresee.testing import LinearPosterior
from tiny import CLASSES, LINEAR, untimed

pytestmark = pytest.mark.usefixtures("one_thread")

STRATEGIES = {
    "random": Random(),
    "mell": TopK(mell, LINEAR.candidates, LINEAR.targets),
    "bald": TopK(bald, targets=0),
    "entropy": TopK(entropy, point=True),
    "coreset": Coreset(),
    "badge": Badge(),
}


@pytest.fixture(params=STRATEGIES)
def method(request):
    return Method(request.param, tiny.LinearSampler(), STRATEGIES[request.param])


def test_a_round_says_what_share_of_its_picks_is_in_the_target_and_noise(method):
    marks = np.arange(LINEAR.n_pool) % 3
    task = replace(tiny.linear_task(), in_target=marks == 0, scrambled=marks == 1)
    *chosen, last = run(LINEAR, method, 0, task)
    for found in chosen:
        counts = np.bincount(marks[list(found.picks)], minlength=3) / LINEAR.n_query
        assert (found.in_target, found.scrambled) == tuple(counts[:2])
    assert (last.in_target, last.scrambled) == (None, None)
    plain = list(run(LINEAR, method, 0, tiny.linear_task()))
    assert [r.picks for r in plain] == [r.picks for r in (*chosen, last)], "no method sees them"
    assert {(r.in_target, r.scrambled) for r in plain} == {(None, None)}


@dataclass
class Spy:
    """Keeps what a sampler or a strategy was given, and then does as ``inner`` does."""

    inner: object

    def __post_init__(self):
        self.calls = []

    def __call__(self, *args):
        self.calls.append(args)
        return self.inner(*args)


# What a round holds


def test_a_round_says_how_many_draws_it_saw_and_whether_its_batch_can_use_them_up():
    def first(experiment, method, task):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = next(run(experiment, method, 0, task))
        return found.draws, found.exhausted, [str(warning.message) for warning in heard]

    def loud(view, size, rng):
        warnings.warn("another", UserWarning, stacklevel=2)
        return GreedyConditioning()(view, size, rng)

    toy, task = tiny.LinearSampler(), tiny.linear_task()
    few, many = Method("Greedy", toy, loud), Method("Greedy", tiny.LinearSampler(9), loud)
    assert first(LINEAR, few, task) == (4, True, ["another"])
    assert first(LINEAR, many, task) == (9, False, ["another"])
    assert first(LINEAR, tiny.RANDOM, task) == (None, False, [])
    digits = tiny.digits_method("Greedy", tiny.DIGITS)
    assert first(tiny.DIGITS, digits, tiny.digits_task(tiny.DIGITS)) == (300, False, [])


def test_every_round_picks_a_batch_that_was_not_picked_before(method):
    task = tiny.linear_task()
    rounds = list(run(LINEAR, method, 0, task))
    assert [r.number for r in rounds] == [0, 1, 2, 3]
    assert [len(r.picks) for r in rounds] == [4, 4, 4, 0]
    assert [r.n_labelled for r in rounds] == [6, 10, 14, 18]
    picks = [i for r in rounds for i in r.picks]
    assert len(set(picks)) == len(picks)
    assert set(picks) <= set(range(LINEAR.n_pool))
    assert [y for r in rounds for y in r.labels] == task.oracle.answers[picks].tolist()


def test_labels_are_bought_once_and_come_from_the_oracle_alone():
    sampler = Spy(tiny.LinearSampler())
    task = tiny.linear_task()
    lies = 1 - task.oracle.answers.clip(max=1)  # whoever peeks at the truth trains on other labels
    task = replace(task, oracle=tiny.Oracle(lies))
    rounds = list(run(LINEAR, replace(tiny.MELL, sampler=sampler), 0, task))
    picks = [i for r in rounds for i in r.picks]
    assert task.oracle.asked == picks
    inputs, labels, _ = sampler.calls[-1]
    np.testing.assert_array_equal(labels, [*task.seed_labels, *lies[picks]])
    np.testing.assert_array_equal(inputs, np.concatenate([task.seed, task.pool[picks]]))


def test_a_strategy_sees_what_is_left_of_the_pool_and_all_that_is_labelled():
    strategy = Spy(Random())
    task = tiny.linear_task()
    rounds = list(run(LINEAR, replace(tiny.RANDOM, strategy=strategy), 0, task))
    bought = []
    for (view, size, _), found in zip(strategy.calls, rounds, strict=False):
        assert size == LINEAR.n_query
        left = np.setdiff1d(np.arange(LINEAR.n_pool), bought)
        np.testing.assert_array_equal(view.pool[:], task.pool[left])
        np.testing.assert_array_equal(view.labels[LINEAR.n_seed :], task.oracle.answers[bought])
        np.testing.assert_array_equal(view.val, task.val)
        bought += found.picks
    assert len(strategy.calls) == LINEAR.rounds


@pytest.mark.parametrize(
    ("pool", "rounds", "batches"),
    [
        (10, 5, [4, 4, 2, 0]),
        (8, 5, [4, 4, 0]),
        (8, 2, [4, 4, 0]),
        (3, 2, [3, 0]),
        (0, 2, [0]),
        (30, 0, [0]),
    ],
)
def test_a_pool_that_runs_dry_ends_the_trial(pool, rounds, batches):
    experiment = replace(LINEAR, n_pool=pool, rounds=rounds)
    task = tiny.linear_task(experiment)
    found = list(run(experiment, tiny.MELL, 0, task))
    assert [len(r.picks) for r in found] == batches
    assert sorted(task.oracle.asked) == sorted(set(task.oracle.asked))
    assert list(run(experiment, tiny.MELL, 0, task, found)) == []


def test_a_class_that_the_seed_set_lacks(method):
    task = tiny.linear_task()
    rounds = list(run(LINEAR, method, 0, replace(task, seed_labels=np.zeros(6, np.int64))))
    assert len(rounds) == LINEAR.rounds + 1


def test_a_class_that_the_seed_set_lacks_in_a_network():
    task = tiny.digits_task()
    rare = replace(task, seed_labels=task.seed_labels % 3)
    rounds = list(run(tiny.DIGITS, tiny.digits_method("MELL"), 0, rare))
    assert [len(r.picks) for r in rounds] == [5, 5, 0]
    assert all(np.isfinite([r.log_loss, r.brier, r.train_loss]).all() for r in rounds)


# What a method may not do


def picking(function):
    """A method that picks what a function of the size, the pool and its generator returns."""
    return replace(
        tiny.RANDOM, name="mine", strategy=lambda v, k, rng: function(k, len(v.pool), rng)
    )


@pytest.mark.parametrize(
    ("function", "law"),
    [
        (lambda k, n, rng: [0] * k, "each position once, got 3 of 4 again"),
        (lambda k, n, rng: np.arange(k + 3), r"4 positions \[4\], got shape \[7\]"),
        (lambda k, n, rng: np.arange(k - 3), r"4 positions \[4\], got shape \[1\]"),
        (lambda k, n, rng: [[i] for i in range(k)], r"got shape \[4, 1\]"),
        (lambda k, n, rng: np.arange(k) - 1, "positions from 0 to 29, got -1 to 2"),
        (lambda k, n, rng: np.arange(k) + n - 3, "positions from 0 to 29, got 27 to 30"),
        (lambda k, n, rng: np.arange(n) < k, "whole numbers, got bool"),
        (lambda k, n, rng: np.arange(float(k)), "whole numbers, got float64"),
        (lambda k, n, rng: None, "whole numbers, got object"),
        (lambda k, n, rng: 3, r"4 positions \[4\], got shape \[\]"),
    ],
)
def test_a_strategy_that_breaks_its_contract_is_refused_before_anything_is_bought(function, law):
    task = tiny.linear_task()
    with pytest.raises(InputError, match=rf"^strategy mine must return .*{law}.*: mend the strat"):
        next(run(LINEAR, picking(function), 0, task))
    assert task.oracle.asked == []


@pytest.mark.parametrize(
    "kind", [list, tuple, iter, torch.tensor, lambda p: (int(i) for i in p), lambda p: p[::-1]]
)
def test_positions_may_come_in_any_form(kind):
    method = picking(lambda k, n, rng: kind(rng.permutation(n)[:k]))
    rounds = list(run(LINEAR, method, 0, tiny.linear_task()))
    expected = loop.generator(0, 0, "select").permutation(LINEAR.n_pool)[: LINEAR.n_query]
    assert sorted(rounds[0].picks) == sorted(expected)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda p: p * np.nan, r"point\(test\) of method Random\[0, 0\] is nan"),
        (lambda p: p.clip(0.3), r"point\(test\) of method Random\[\d+\] sums to 1"),
        (lambda p: 9 * np.log(p), "look like logits: apply softmax"),
        (lambda p: p[:5], r"must have shape \[n c\] = \[25, 3\], got \[5, 3\]"),
        (lambda p: np.pad(p, [(0, 0), (0, 1)]), r"got \[25, 4\]"),
        (lambda p: p.argmax(1), "must hold probabilities as floats, got int64"),
    ],
)
def test_predictions_that_are_no_probabilities_are_not_measured(change, law):
    class Wrong(LinearPosterior):
        def point(self, inputs):
            return change(super().point(inputs))

    def sampler(*args):
        return Wrong(tiny.LinearSampler()(*args).weights)

    task = tiny.linear_task()
    with pytest.raises(InputError, match=law):
        next(run(LINEAR, replace(tiny.RANDOM, sampler=sampler), 0, task))
    assert task.oracle.asked == []


def in_place(where):
    """A method whose strategy writes to what it is shown."""

    def strategy(view, size, rng):
        where(view)
        return np.arange(size)

    return replace(tiny.RANDOM, name="mine", strategy=strategy)


def write(values):
    values[...] = 0


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(
    ("where", "part"),
    [
        (lambda view: write(view.val), "val"),
        (lambda view: write(view.val[-1:, -1]), "val"),
        (lambda view: write(np.asarray(view.val)), "val"),
        (lambda view: write(view.pool.data), "pool"),
        (lambda view: write(view.pool[3]), "pool"),
    ],
)
def test_data_that_a_strategy_changes_in_place_is_noticed(where, part, kind):
    task = tiny.linear_task()
    parts = {name: kind(getattr(task, name)) for name in ("seed", "pool", "val", "test")}
    task = replace(task, **parts)
    with pytest.raises(InputError, match=f"^method mine changed the task's {part} in place, which"):
        next(run(LINEAR, replace(in_place(where), sampler=constant), 0, task))
    assert task.oracle.asked == []


def constant(inputs, labels, rng):
    class Constant:
        def point(self, inputs):
            return np.full((len(inputs), CLASSES), 1 / CLASSES)

        def predict(self, inputs):
            return np.full((len(inputs), 2, CLASSES), 1 / CLASSES)

    return Constant()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_rows_that_change_places_are_noticed(kind):
    def shuffle(view):
        np.random.default_rng(0).shuffle(np.asarray(view.val))

    task = tiny.linear_task()
    task = replace(task, val=kind(task.val))
    with pytest.raises(InputError, match="changed the task's val"):
        next(run(LINEAR, replace(in_place(shuffle), sampler=constant), 0, task))


def test_positions_are_in_what_is_left_of_the_pool():
    rounds = run(
        LINEAR, picking(lambda k, n, rng: n - np.arange(k) - (n == 30)), 0, tiny.linear_task()
    )
    next(rounds)
    with pytest.raises(InputError, match="positions from 0 to 25, got 23 to 26"):
        next(rounds)


def test_test_data_that_a_model_changes_in_the_last_round_is_noticed():
    class Rude(LinearPosterior):
        def point(self, inputs):
            inputs -= 1
            return super().point(inputs)

    def sampler(*args):
        return Rude(tiny.LinearSampler()(*args).weights)

    method = replace(tiny.RANDOM, sampler=sampler)
    with pytest.raises(InputError, match="method Random changed the task's test in place"):
        next(run(replace(LINEAR, rounds=0), method, 0, tiny.linear_task()))


@pytest.mark.parametrize(
    "where",
    [
        lambda view: write(view.labelled),
        lambda view: write(view.labels),
        lambda view: write(view.pool.index),
        lambda view: write(view.pool[:]),
    ],
)
def test_what_is_the_rounds_own_may_be_written_to(where):
    task, plain = tiny.linear_task(), in_place(lambda view: None)
    expected = untimed(run(LINEAR, plain, 0, task))
    assert untimed(run(LINEAR, in_place(where), 0, task)) == expected


def test_words_and_objects_are_data_too():
    task = tiny.linear_task()
    words = {name: getattr(task, name).astype(str) for name in ("seed", "pool")}
    words |= {name: getattr(task, name).astype(object) for name in ("val", "test")}
    task = replace(task, **words)
    rounds = list(run(LINEAR, replace(tiny.RANDOM, sampler=constant), 0, task))
    assert len(rounds) == LINEAR.rounds + 1
    with pytest.raises(InputError, match="changed the task's val"):
        next(run(LINEAR, replace(in_place(lambda v: write(v.val)), sampler=constant), 0, task))


# Randomness


@pytest.mark.parametrize("seed", [0, 1])
def test_a_trial_stopped_after_any_round_ends_like_a_whole_one(method, seed):
    task = tiny.linear_task()
    whole = untimed(run(LINEAR, method, seed, task))
    for done in range(len(whole) + 1):
        assert untimed(run(LINEAR, method, seed, task, whole[:done])) == whole[done:]


def test_a_network_stopped_after_any_round_ends_like_a_whole_one():
    task, method = tiny.digits_task(), tiny.digits_method("BALD")
    whole = untimed(run(tiny.DIGITS, method, 0, task))
    for done in range(1, len(whole)):
        assert untimed(run(tiny.DIGITS, method, 0, task, whole[:done])) == whole[done:]


def test_global_randomness_neither_matters_nor_changes():
    outcomes = []
    for state in (1, 2):
        np.random.seed(state)  # noqa: NPY002
        torch.manual_seed(state)
        before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
        outcomes.append(
            untimed(run(tiny.DIGITS, tiny.digits_method("BADGE"), 0, tiny.digits_task()))
        )
        after = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
        assert before == after
    assert outcomes[0] == outcomes[1]


def test_methods_of_a_seed_draw_the_same_numbers_and_rounds_and_seeds_others():
    def numbers(strategy, seed):
        spies = Spy(tiny.LinearSampler()), Spy(strategy)
        list(run(LINEAR, Method("any", *spies), seed, tiny.linear_task()))
        return [[str(call[2].bit_generator.seed_seq.entropy) for call in s.calls] for s in spies]

    one, other = numbers(Random(), 0), numbers(STRATEGIES["mell"], 0)
    assert one == other
    streams = [stream for part in one + numbers(Random(), 1) for stream in part]
    assert len(set(streams)) == len(streams) == 2 * (2 * LINEAR.rounds + 1)


@pytest.mark.usefixtures("short_chain")
def test_all_methods_of_a_seed_start_from_the_same_model():
    experiment = replace(tiny.DIGITS, loss=tuple(map(tuple, 1 - np.eye(10))))
    task = tiny.digits_task(experiment)
    firsts = {}
    for name in methods.METHODS:
        first = next(run(experiment, tiny.digits_method(name, experiment), 0, task))
        firsts[name] = replace(
            first, seconds=(), picks=(), labels=(), promise=None, promise_pool=None, draws=None
        )
    assert "MELL_MCMC" in firsts
    assert firsts == dict.fromkeys(firsts, firsts["Random"])
    other = next(run(experiment, tiny.digits_method("Random", experiment), 1, task))
    assert other.train_loss != firsts["Random"].train_loss


# Numbers


@pytest.fixture(params=[2, 10])
def predictions(request):
    rng = np.random.default_rng(request.param)
    probs = rng.dirichlet(np.full(request.param, 0.5), 300)
    return probs, rng.integers(request.param, size=300)


def test_metrics_agree_with_plain_computations(predictions):
    probs, labels = predictions
    n, c = probs.shape
    found = measure(probs, labels)
    assert found["accuracy"] == np.mean([probs[i].argmax() == labels[i] for i in range(n)]).round(
        12
    )
    assert found["log_loss"] == pytest.approx(log_loss(labels, probs, labels=range(c)), rel=1e-10)
    brier = sum((probs[i, k] - (labels[i] == k)) ** 2 for i in range(n) for k in range(c))
    assert found["brier"] == pytest.approx(brier / n, rel=1e-10)
    assert found["calibration_error"] == pytest.approx(plain_ece(probs, labels), rel=1e-10)
    assert "cost" not in found


def plain_ece(probs, labels):
    error = 0.0
    for k in range(15):
        low, high = k / 15, (k + 1) / 15
        inside = [
            (p.max(), p.argmax() == y)
            for p, y in zip(probs, labels, strict=True)
            if low <= p.max() < high or (p.max() == high == 1)
        ]
        if inside:
            confidence, right = np.mean(inside, axis=0)
            error += len(inside) / len(labels) * abs(confidence - right)
    return error


def test_cost_is_that_of_the_cheapest_action(predictions):
    probs, labels = predictions
    c = probs.shape[1]
    loss = np.random.default_rng(0).random((c, c + 2))  # more actions than classes: to ask a doctor
    cost = 0.0
    for p, y in zip(probs, labels, strict=True):
        expected = [sum(p[k] * loss[k, a] for k in range(c)) for a in range(c + 2)]
        cost += loss[y, int(np.argmin(expected))]
    found = measure(probs, labels, tuple(map(tuple, loss)))
    assert found["cost"] == pytest.approx(cost / len(labels), rel=1e-10)
    assert measure(probs, labels, 1 - np.eye(c))["cost"] == pytest.approx(1 - found["accuracy"])


def test_a_round_reports_the_health_of_its_training():
    def sampler(*args):
        posterior = constant(*args)
        posterior.training = SimpleNamespace(loss=0.5, accuracy=0.75)
        return posterior

    first = next(run(LINEAR, replace(tiny.RANDOM, sampler=sampler), 0, tiny.linear_task()))
    assert (first.train_loss, first.train_accuracy) == (0.5, 0.75)


def test_a_round_counts_the_costs_of_its_experiment():
    loss = ((0.0, 5.0, 1.0), (2.0, 0.0, 1.0), (9.0, 1.0, 0.0))
    task = tiny.linear_task()
    costly = next(run(replace(LINEAR, loss=loss), tiny.RANDOM, 0, task))
    model = tiny.LinearSampler()(task.seed, task.seed_labels, loop.generator(0, 0, "train"))
    assert costly.cost == measure(model.point(task.test), task.test_labels, loss)["cost"]
    assert next(run(LINEAR, tiny.RANDOM, 0, task)).cost is None


def test_tensors_and_arrays_measure_alike(predictions):
    probs, labels = predictions
    exact = measure(probs.astype(np.float32), labels)
    assert measure(torch.from_numpy(probs).float(), labels) == exact


def test_a_certain_error_costs_a_finite_log_loss():
    found = measure(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1, 0]))
    assert found["log_loss"] == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2)
    assert (found["brier"], found["accuracy"], found["calibration_error"]) == (1.0, 0.5, 0.5)


def test_confidence_of_one_falls_in_the_last_bin():
    assert calibration_error(np.ones(4), np.array([True] * 3 + [False])) == pytest.approx(0.25)


def test_confidence_of_one_shares_the_last_bin():
    found = calibration_error(np.array([1.0, 0.95]), np.array([False, True]))
    assert found == pytest.approx((1.0 - 0.05) / 2)


@pytest.mark.parametrize("sample", [10**6, 7])
def test_promises_are_of_the_picks_and_of_all_that_is_left(monkeypatch, sample):
    monkeypatch.setattr(loop, "_SAMPLE", sample)
    task, bought = tiny.linear_task(), []
    for found in list(run(LINEAR, tiny.MELL, 0, task))[:-1]:
        left = np.setdiff1d(np.arange(LINEAR.n_pool), bought)
        inputs = np.concatenate([task.seed, task.pool[bought]])
        labels = np.concatenate([task.seed_labels, task.oracle.answers[bought]])
        model = tiny.LinearSampler()(inputs, labels, loop.generator(0, found.number, "train"))
        rng = loop.generator(0, found.number, "promise")
        some = left[rng.permutation(len(left))[:sample]]
        val = model.predict(task.val[rng.permutation(len(task.val))[:sample]])
        picks = promise(model.predict(task.pool[list(found.picks)]), val)
        pool = promise(model.predict(task.pool[some]), val, times=len(left) / len(some))
        assert (found.promise, found.promise_pool) == (round(picks, 12), round(pool, 12))
        assert found.promise_pool != round(promise(model.predict(task.pool[some]), val), 12) or (
            len(some) == len(left)
        )
        bought += found.picks


def test_a_round_reports_the_model_of_its_start():
    task = tiny.linear_task()
    sampler = Spy(tiny.LinearSampler())
    first, second, *_ = run(LINEAR, replace(tiny.RANDOM, sampler=sampler), 0, task)
    seen = zip(sampler.calls, (first, second), strict=False)
    for (inputs, labels, _), found in seen:
        rng = loop.generator(0, found.number, "train")
        model = tiny.LinearSampler()(inputs, labels, rng)
        assert found.accuracy == np.mean(model.point(task.test).argmax(1) == task.test_labels)
        assert found.n_labelled == len(labels)


# Time


def test_seconds_of_a_stage_are_its_own(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    @dataclass(frozen=True)
    class Slow(LinearPosterior):
        seconds: float = 30.0  # of the sampler's hundred were spent on draws

        def predict(self, inputs):
            clock.now += 0.25
            return super().predict(inputs)

        def point(self, inputs):
            clock.now += 2.0
            return super().point(inputs)

    def sampler(inputs, labels, rng):
        clock.now += 100.0
        return Slow(tiny.LinearSampler()(inputs, labels, rng).weights)

    def score(pool, val):
        clock.now += 8.0
        return mell(pool, val)

    class SlowTopK(TopK):
        def __call__(self, *args):
            picks = super().__call__(*args)
            clock.now += 4.0
            return picks

    def oracle(picks):
        clock.now += 1000.0  # people take their time, and it is none of ours
        return task.oracle(picks)

    # One chunk of a single candidate, then one of the rest: two predictions, two scores.
    strategy = SlowTopK(score, LINEAR.candidates, LINEAR.targets)
    task = tiny.linear_task()
    method = Method("slow", sampler, strategy)
    rounds = list(run(LINEAR, method, 0, replace(task, oracle=oracle)))
    for found in rounds[:-1]:
        stages = dict(found.seconds)
        promise = stages.pop("promise")
        assert promise % 0.25 == 0
        assert stages == {"train": 70.0, "sample": 30.75, "test": 2.0, "select": 20.0}
    assert dict(rounds[-1].seconds) == {"train": 70.0, "sample": 30.0, "test": 2.0}
    total = sum(seconds for r in rounds for _, seconds in r.seconds)
    assert total == clock.now - 1000 * len(rounds)


def test_seconds_add_up_to_no_more_than_the_whole():
    task, method = tiny.digits_task(), tiny.digits_method("MELL")
    start = time.perf_counter()
    rounds = list(run(tiny.DIGITS, method, 0, task))
    whole = time.perf_counter() - start
    seconds = [value for r in rounds for _, value in r.seconds]
    assert min(seconds) >= 0
    assert sum(seconds) <= whole


# Rows


def test_a_model_sees_plain_arrays_and_never_the_whole_pool(monkeypatch):
    monkeypatch.setattr(loop, "_PART", 7)
    seen = []

    class Watched(LinearPosterior):
        def embed(self, inputs):
            seen.append((type(inputs), len(inputs)))
            return super().embed(inputs)

    def strategy(view, size, rng):
        np.testing.assert_array_equal(view.posterior.embed(view.pool), np.float32(task.pool))
        return np.arange(size)

    def sampler(*args):
        return Watched(tiny.LinearSampler()(*args).weights)

    task = tiny.linear_task()
    next(run(LINEAR, Method("mine", sampler, strategy), 0, task))
    assert seen == [(np.ndarray, n) for n in (7, 7, 7, 7, 2)]


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_rows_are_the_pool_without_what_was_bought(kind):
    pool = np.arange(24.0).reshape(6, 4)
    rows = Rows(kind(pool), np.array([5, 0, 3]))
    assert len(rows) == 3
    np.testing.assert_array_equal(rows[1:], pool[[0, 3]])
    np.testing.assert_array_equal(rows[np.array([2, 0])], pool[[3, 5]])
    np.testing.assert_array_equal(np.asarray(rows), pool[[5, 0, 3]])
    assert type(rows[:]) is type(kind(pool))
