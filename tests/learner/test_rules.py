"""The rules of asking and telling, each as it is stated."""

import math
from decimal import Decimal

import frames
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import foresee
from foresee import SKIP, UNSURE, GreedyConditioning, InputError, Learner, View
from foresee.learner import Card

N = 60
X = np.random.default_rng(0).normal(size=(N, 2))
NAMES = [f"photo {i}" for i in range(N)]


def truth(name):
    i = name if isinstance(name, int) else NAMES.index(name)
    return "left" if X[i, 0] < 0 else "right"


class Table(list):
    columns = ("label",)


def learner(**options):
    options = {"ids": NAMES, "draws": 20} | options
    return Learner(LogisticRegression(), X, **options)


def warm(**options):
    """A learner that knows four labels."""
    found = learner(**options)
    names = found._desk.pool.ids[:4] if "ids" in options else NAMES[:4]
    found.tell(names, [truth(i) for i in range(4)])
    assert len(set(found.told.values())) == 2
    return found


def test_batches_have_ids_scores_and_a_promise():
    found = warm()
    batch = found.ask(5)
    assert len(batch) == len(set(batch.ids)) == len(batch.scores) == 5
    assert set(batch.ids) <= set(NAMES[4:])
    assert all(score > 0 for score in batch.scores)
    # Together they promise more than the best alone, and less than all.
    assert max(batch.scores) < batch.promise < sum(batch.scores)
    assert found.promise() > batch.promise
    assert batch.held == ()


def test_scores_and_promise_are_those_of_the_draws():
    found = warm()
    batch = found.ask(5)
    places = [NAMES.index(name) for name in batch.ids]
    posterior = found.fit()._last.posterior
    draws, goals = posterior.predict(X[places]), posterior.predict(X)
    np.testing.assert_allclose(batch.scores, foresee.mebl(draws, goals), rtol=1e-5)
    np.testing.assert_allclose(batch.promise, foresee.promise(draws, goals), rtol=1e-5)


def test_a_sample_tells_what_all_promise():
    x = np.tile(X[:2], (40, 1))

    def promised(candidates):
        found = Learner(LogisticRegression(), x, draws=50, candidates=candidates)
        found.tell(range(4), ["a", "b"] * 2)
        return found.promise()

    np.testing.assert_allclose(promised(10), promised(None), rtol=0.1)


def test_asking_again_gives_the_same_batch_until_something_is_told():
    found = warm()
    batch = found.ask(5)
    assert found.ask(5) == batch
    found.tell(batch.ids[:1], [truth(batch.ids[0])])
    assert found.ask(5) != batch


def test_what_is_out_is_not_handed_out_again():
    found = warm()
    first = found.ask(5)
    other = found.ask(6)  # nothing was told, but this is another batch
    found.tell(first.ids[:2], [truth(name) for name in first.ids[:2]])
    third = found.ask(5)
    assert len({*first.ids, *other.ids, *third.ids}) == 16
    assert found.out == [*first.ids[2:], *other.ids, *third.ids]


def test_what_is_released_may_be_asked_for_again():
    found = warm()
    batch = found.ask(5)
    found.release(batch.ids[:2])
    assert found.out == list(batch.ids[2:])
    found.release()
    assert found.out == []
    assert found.ask(N - 4).size == N - 4
    with pytest.raises(InputError, match="'photo 0' is not out for labelling"):
        found.release(["photo 0"])


def test_what_was_held_out_and_is_released_is_held_out_again():
    found = warm(holdout=0.5)
    held = found.ask(10).held
    found.release()
    assert found.ask(10).held == held
    found.tell(held, ["left"] * 5)
    assert len({*found.ask(10).held} - {*held}) == 5


def test_late_labels_and_labels_that_nobody_asked_for_count():
    found = warm()
    batch = found.ask(5)
    found.ask(4)
    found.release()
    found.tell(batch.ids, [truth(name) for name in batch.ids])
    found.tell("photo 59", truth(59))
    assert len(found.told) == 10
    assert "photo 59" not in found.ask(N).ids


def test_the_last_answer_counts():
    found = warm()
    found.tell(["photo 0"], ["right"])
    found.tell(["photo 0"], ["left"])
    assert found.told["photo 0"] == "left"
    found.tell(["photo 0"], [SKIP])
    assert "photo 0" not in found.told
    found.tell(["photo 0"], [UNSURE])
    found.tell(["photo 0"], ["left"])
    assert found.told["photo 0"] == "left"
    assert found._desk.state.aside == {}


def test_two_answers_in_one_breath_are_refused():
    found = learner()
    with pytest.raises(InputError, match="'photo 0' has both 'left' and 'right'"):
        found.tell(["photo 1", "photo 0", "photo 0"], ["left", "left", "right"])
    assert found.told == {}
    found.tell(["photo 0", "photo 0"], ["left", "left"])
    assert found.told == {"photo 0": "left"}


def test_skipped_points_never_return_and_unsure_ones_when_nothing_else_is_left():
    found = warm()
    found.tell(["photo 10", "photo 11"], [SKIP, UNSURE])
    batch = found.ask(N)
    assert len(batch) == N - 6
    assert not {"photo 10", "photo 11"} & set(batch.ids)
    found.tell(batch.ids, [truth(name) for name in batch.ids])
    assert found.ask(5).ids == ("photo 11",)
    found.tell("photo 11", UNSURE)
    assert found.ask(5).ids == ("photo 11",)
    found.tell("photo 11", "left")
    assert found.ask(5).ids == ()


def test_what_is_unsure_and_out_is_not_handed_out_again():
    found = warm(ids=NAMES)
    found.tell(NAMES, [truth(i) for i in range(N - 3)] + [UNSURE] * 3)
    asked = [found.ask(size).ids for size in (1, 2)]
    assert sorted(sum(asked, ())) == NAMES[-3:]
    assert found.ask(1).ids == ()
    assert found.promise() == 0


def test_unsure_points_are_held_out_again_when_no_other_is_left():
    found = warm(holdout=0.5, target=X[:4] + 0.01)
    held = found.ask(4).held
    found.tell([*held, "photo 50"], [SKIP, UNSURE, UNSURE])
    others = found.ask(4).held
    assert len({*held, *others}) == 4
    assert found.ask(6).held == held[1:]
    assert len(found.ask(8)) == 8  # it is out
    found = warm(holdout=0.5)
    found.ask(N - 4)
    found.tell(NAMES, [UNSURE] * N)
    assert len(found.ask(N - 4)) == N - 4


def test_an_unknown_id_keeps_nothing_of_the_call():
    found = learner()
    with pytest.raises(InputError, match=r"no 'photo 60' in the pool: use the ids of the batch"):
        found.tell(["photo 0", "photo 60"], ["left", "left"])
    assert found.told == {}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([None], "'photo 5' has None: leave out"),
        ([math.nan], "nan is no label"),
        ([("a", math.nan)], "nan. is no label"),
        ([["a", "b"]], "labels must be hashable, got .* tuples in place of lists"),
        (np.zeros((1, 2)), "labels must be hashable"),
        ({"left"}, "must be a sequence"),
        ([np.datetime64("NaT")], "is no label"),
        ([Decimal("NaN")], "is no label"),
        ([("a", "b")], "of one kind: 'photo 5' has .*, and there is 'right'"),
        (["a", "b"], "one for each of the 1 ids, got 2"),
        ("cat", "must be a sequence"),
        ([3], "of one kind: 'photo 5' has 3, and there is 'right': write all alike, or pass"),
        ([b"left"], "of one kind"),
        ([torch.ones(2)], "labels must be hashable"),
        (Table(["label"]), "labels must be a sequence, got Table: pass one column of it"),
    ],
)
def test_bad_labels(labels, words):
    with pytest.raises(InputError, match=words):
        warm().tell(["photo 5"], labels)


def test_one_and_true_are_not_one_class():
    found = learner()
    with pytest.raises(InputError, match="of one kind"):
        found.tell(NAMES[:2], [1, True])
    with pytest.raises(InputError, match="of one kind"):
        found.tell(NAMES[:2], [1, 1.0])


@pytest.mark.parametrize("kind", [int, float, bool, str, np.int64, np.bool_, np.str_])
def test_labels_of_any_plain_kind(kind, tmp_path):
    found = learner(path=tmp_path / "state")
    found.tell(NAMES, [kind(X[i, 0] < 0) for i in range(N)])
    answers = found.predict(X).tolist()
    assert np.mean([a == b for a, b in zip(answers, found.told.values(), strict=True)]) > 0.9
    before = found.told
    found.close()
    again = learner(path=tmp_path / "state").told
    assert again == before
    assert {type(label) for label in again.values()} == {
        type(kind(1).item() if hasattr(kind(1), "item") else kind(1))
    }


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_labels_and_ids_without_an_axis(kind):
    found = learner(ids=[kind(i) for i in range(N)])
    found.tell([kind(i) for i in range(4)], [kind(i % 2) for i in range(4)])
    assert found.told == {0: 0, 1: 1, 2: 0, 3: 1}
    assert {type(value) for pair in found.told.items() for value in pair} == {int}
    rows = learner()
    rows.tell(NAMES[:4], [tuple(torch.tensor([i % 2, 3])) for i in range(4)])
    assert rows.classes_ == [(0, 3), (1, 3)]


def test_classes_grow_or_are_known():
    found = learner()
    found.tell(NAMES[:4], ["b", "b", "a", "b"])
    assert found.classes_ == ["a", "b"]
    assert found.predict_proba(X).shape == (N, 2)
    found.tell(NAMES[5], "0")
    assert found.classes_ == ["0", "a", "b"]
    assert found.predict_proba(X).shape == (N, 3)

    known = learner(classes=["z", "b", "a"])
    known.tell(NAMES[:4], ["b", "b", "a", "b"])
    assert known.classes_ == ["z", "b", "a"]
    probs = known.predict_proba(X)
    assert (probs[:, 0] == 0).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert set(known.predict(X)) <= {"a", "b"}
    with pytest.raises(InputError, match="'c', which is none of the classes"):
        known.tell(NAMES[0], "c")


@pytest.mark.parametrize(
    "classes",
    [["a"], ["a", "a"], "ab", [1, True], [math.nan, 1], [[1], [2]], {"a", "b"}, [SKIP, "a"]],
)
def test_bad_classes(classes):
    with pytest.raises(InputError):
        learner(classes=classes)


def test_no_model_without_two_classes():
    found = learner()
    for act in (lambda: found.predict(X), found.promise):
        with pytest.raises(InputError, match="labels of two classes are needed"):
            act()
    found.tell(NAMES[:2], ["a", "a"])
    with pytest.raises(InputError, match="labels of two classes are needed"):
        found.predict_proba(X)
    batch = found.ask(3)
    assert batch.promise is None
    assert batch.scores == (None, None, None)


def test_the_order_of_telling_does_not_matter():
    one, two = learner(), learner()
    labels = [truth(i) for i in range(8)]
    one.tell(NAMES[:8], labels)
    for i in reversed(range(8)):
        two.tell(NAMES[i], labels[i])
    assert one.ask(5) == two.ask(5)


def test_the_seed_governs_all():
    assert warm(seed=1).ask(5) == warm(seed=1).ask(5)
    assert learner(seed=1, candidates=30).ask(5) != learner(seed=2, candidates=30).ask(5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be"),
        ({"holdout": 1.0}, "holdout must be a share"),
        ({"draws": 1}, "draws must be"),
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"targets": 0}, "targets must be at least 1"),
        ({"ids": NAMES[:3]}, "ids must be one for each of the 60 rows of pool, got 3"),
        ({"ids": NAMES[:-1] + NAMES[:1]}, "'photo 0' is there twice"),
        ({"ids": [None] * N}, "ids must be texts or whole numbers"),
        ({"ids": Table(NAMES)}, "ids must be a sequence, got Table: pass one column of it"),
        ({"ids": range(1, N)}, "ids must be one for each of the 60 rows of pool, got 59"),
        ({"costs": np.zeros(N)}, "costs must be positive"),
        ({"costs": np.ones(3)}, "costs must be positive"),
        ({"costs": dict.fromkeys(NAMES, 1.0)}, "costs must be positive, .* got {'photo 0': 1.0"),
        ({"costs": np.ones(N), "strategy": foresee.Random()}, "leave one out"),
        ({"strategy": "bald"}, "strategy must be a function"),
        ({"strategy": foresee.bald}, r"strategy must be .* a score as TopK\(mell\)"),
        ({"strategy": foresee.BatchMell}, r"strategy must be .* as in BatchMell\(\)"),
        ({"target": X[:0]}, "target is empty"),
        ({"target": X[:, :1]}, r"target must have the columns of pool \[60, 2\], got \[60, 1\]"),
        ({"target": X[:, 0]}, "target must have the columns of pool"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        learner(**options)


def test_bad_sizes():
    for size in (0, 2.5, True):
        with pytest.raises(InputError, match="size must be"):
            learner().ask(size)


@pytest.mark.parametrize("seed", range(6))
def test_a_pool_of_copies_does_not_fill_a_batch(seed):
    x = np.concatenate([np.repeat([[0.0, 2.5]], 8, axis=0), X])  # nothing is in more doubt
    found = Learner(LogisticRegression(), x, draws=50, seed=seed)
    assert sum(i < 8 for i in found.ask(6).ids) <= 1
    found.release()
    found.tell(range(8, 20), [truth(i) for i in range(12)])
    copies = sum(i < 8 for i in found.ask(6).ids)
    assert copies <= 1
    priced = Learner(LogisticRegression(), x, draws=50, seed=seed, costs=np.ones(68))
    priced.tell(range(8, 20), [truth(i) for i in range(12)])
    assert sum(i < 8 for i in priced.ask(6).ids) == copies


def test_copies_are_handed_out_where_there_is_nothing_else():
    found = Learner(LogisticRegression(), np.repeat(X[:4], 3, axis=0), draws=20)
    found.tell([0, 3, 6, 9], [truth(i) for i in range(4)])
    assert len(set(found.ask(8).ids)) == 8


def test_a_cold_start_stands_for_the_target():
    rng = np.random.default_rng(1)
    pool = np.concatenate([rng.normal(size=(200, 3)) - 9, rng.normal(size=(20, 3)) + 9])
    target = rng.normal(size=(40, 3)) + 9
    batch = Learner(LogisticRegression(), pool, target).ask(6)
    assert all(i >= 200 for i in batch.ids)
    batch = Learner(LogisticRegression(), pool).ask(6)
    assert any(i >= 200 for i in batch.ids)
    assert any(i < 200 for i in batch.ids)


def test_without_a_target_the_pool_is_the_target():
    assert warm().ask(4) == warm(target=X, target_ids=None).ask(4)


# Held out


def test_held_out_labels_are_a_share_of_all_and_never_trained_on():
    found = warm(holdout=0.2)
    held = []
    for size in (1, 2, 3, 4, 10):
        batch = found.ask(size)
        assert len(batch) == size
        held += batch.held
        assert batch.scores[len(batch) - len(batch.held) :] == (None,) * len(batch.held)
        found.tell(batch.ids, [truth(name) for name in batch.ids])
    assert len(held) == 4
    places = found._desk.now().places
    assert len(places) == 4 + 20 - 4
    assert not {NAMES.index(name) for name in held} & set(places)


def test_held_out_points_are_drawn_before_any_is_picked():
    """Else they would be a sample of what the strategy leaves over."""

    def greedy_to_the_right(view, size, rng):
        return np.argsort(-view.pool[:][:, 0])[:size]

    means = []
    for seed in range(30):
        found = learner(seed=seed, holdout=0.25, strategy=greedy_to_the_right, classes=["a", "b"])
        held = []
        found.tell(NAMES[:2], ["a", "b"])
        for _ in range(5):
            batch = found.ask(8)
            held += batch.held
            found.tell(batch.ids, ["a"] * len(batch))
        assert len(held) == 10
        means.append(np.mean([X[NAMES.index(name), 0] for name in held]))
    error = X[:, 0].std() / np.sqrt(10 * 30)
    assert abs(np.mean(means) - X[:, 0].mean()) < 4 * error


@pytest.mark.parametrize(("n", "holdout", "size"), [(3, 0.1, 1), (15, 0.1, 1), (23, 0.3, 4)])
def test_all_are_asked_for_in_the_end_those_held_out_too(n, holdout, size):
    found, asked = Learner(LogisticRegression(), X[:n], holdout=holdout), []
    while batch := found.ask(size):
        asked += batch.ids
        found.tell(batch.ids[:1], [UNSURE])  # it comes again, and is no new one
        found.tell(batch.ids, [truth(name) for name in batch.ids])
    assert sorted(set(asked)) == list(range(n))
    assert len(found._desk.state.held) == math.ceil(n * holdout)


def test_the_card_counts_held_out_labels_alone():
    found = warm(holdout=0.5)
    assert found.card() == Card(found.card().accuracy, 0.0, 1.0, 0, 4)
    assert math.isnan(found.card().accuracy)
    batch = found.ask(20)
    found.tell(batch.ids, [truth(name) for name in batch.ids])
    card = found.card()
    right = np.mean([found.predict(X[[NAMES.index(n)]])[0] == truth(n) for n in batch.held])
    assert (card.n, card.trained, card.accuracy) == (10, 14, right)
    # Wilson's interval, by its formula.
    z, n, p = 1.959964, 10, card.accuracy
    middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    expected = [(middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)]
    np.testing.assert_allclose([card.low, card.high], expected, atol=1e-6)


def test_a_target_of_its_own_is_held_out_by_its_ids():
    found = warm(holdout=0.5, target=X[:20] + 0.01)
    batch = found.ask(8)
    assert len(batch.held) == 4
    assert all(name.startswith("target/") for name in batch.held)
    found.tell(batch.held, ["left"] * 4)
    assert found.card().n == 4
    assert len(found._desk.now().places) == 4
    with pytest.raises(InputError, match="no 'target/9"):
        found.tell("target/99", "left")


def test_ranges_are_names_too():
    found = learner(ids=range(1, N + 1), target=X[:9], target_ids=range(100, 109), holdout=0.5)
    found.tell([1, N], ["left", "right"])
    batch = found.ask(6)
    assert {*batch.held} < {*range(100, 109)}
    assert {*batch.ids} - {*batch.held} < {*range(2, N)}
    assert learner(ids=range(N))._desk.pool.numbered


def test_what_is_held_out_must_not_be_in_the_pool():
    with pytest.raises(InputError, match="target_ids: 'photo 3' is in the pool too"):
        learner(holdout=0.5, target=X[3:5], target_ids=NAMES[3:5])
    learner(target=X[3:5], target_ids=NAMES[3:5])


# Prices


def test_a_price_makes_it_gain_per_price():
    dear = np.where(X[:, 0] > 0, 1000.0, 1.0)
    batch = warm(costs=dear).ask(8)
    assert all(X[NAMES.index(name), 0] <= 0 for name in batch.ids)
    alike = warm(strategy=GreedyConditioning(aleatoric=False)).ask(5).ids
    assert warm(costs=np.full(N, 3.0)).ask(5).ids == alike


# A citizen


def test_clone_and_params():
    model = LogisticRegression(C=3.0)
    found = Learner(model, X, seed=4, holdout=0.1)
    params = found.get_params()
    assert params["model"] is model
    assert params["pool"] is X
    assert params["seed"] == 4
    assert "path" not in params
    found.tell(range(4), [truth(i) for i in range(4)])
    fresh = clone(found)
    assert fresh.told == {}
    assert fresh.model is not model
    assert fresh.model.C == 3.0
    assert fresh.get_params().keys() == params.keys()


def test_any_strategy_and_what_it_sees():
    seen = []

    def strategy(view, size, rng):
        seen.append(view)
        return np.arange(size)

    found = warm(strategy=strategy, candidates=10, targets=7)
    batch = found.ask(3)
    view = seen[0]
    assert isinstance(view, View)
    assert (len(view.pool), len(view.val), len(view.labelled)) == (10, 7, 4)
    np.testing.assert_array_equal(view.pool[:][:3], X[[NAMES.index(n) for n in batch.ids]])
    np.testing.assert_array_equal(view.labels, [truth(i) == "right" for i in range(4)])
    found.tell(batch.ids, [truth(name) for name in batch.ids])
    found.ask(3)
    first, second = ({tuple(row) for row in view.pool[:]} for view in seen)
    assert len(first & second) < 8  # drawn anew, from all
    assert max(NAMES.index(name) for name in batch.ids) > 13
    with pytest.raises(InputError, match="function must return 3 positions"):
        warm(strategy=lambda view, size, rng: [0]).ask(3)


def test_a_large_pool_is_never_read_whole():
    class Spy(list):
        rows = 0

        def __getitem__(self, key):
            Spy.rows += 1
            return super().__getitem__(key)

    texts = Spy([["good fine", "bad dull"][i % 2] + f" {i % 7}" for i in range(20_000)])
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    found = Learner(model, texts, draws=10, candidates=100, targets=50)
    found.tell(range(6), ["+", "-"] * 3)
    assert len(found.ask(5)) == 5
    assert Spy.rows < 1000
    assert found.predict(["fine", "dull"]).tolist() == ["+", "-"]


def test_a_fit_that_fails_fails_again():
    def sampler(inputs, labels, rng):
        raise ZeroDivisionError

    found = Learner(sampler, X)
    found.tell(range(4), [truth(i) for i in range(4)])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            found.ask(3)
    assert found.out == []


def test_rows_that_a_model_refuses():
    x = X.copy()
    x[50] = math.nan
    found = Learner(LogisticRegression(), x, draws=5)
    found.tell(range(4), [truth(i) for i in range(4)])
    words = r"LogisticRegression cannot read the rows \(Input .*contains NaN\): mend them"
    acts = [lambda: found.ask(3), lambda: found.predict(x), found.promise]
    for act in (*acts, lambda: found.worth([50]), lambda: found.why(50)):
        with pytest.raises(InputError, match=words):
            act()
    found.tell(50, "left")
    with pytest.raises(InputError, match="cannot read the rows"):
        found.fit()


def test_rows_of_a_target_that_are_longer_or_shorter():
    for rows in (list(X), frames.Table(X, ["a", "b"])):
        found = Learner(LogisticRegression(), rows, frames.Table(X[:, :1], ["a"]))
        with pytest.raises(InputError, match=r"target must have the columns of pool, got .* 1 and"):
            found.ask(3)


@pytest.mark.parametrize("text", ["good", "good " * 99, "a\0b"])
def test_a_text_alone_is_no_file(text):
    found = warm()
    with pytest.raises(InputError, match=r"inputs: there is no file 'g?.*or pass texts as a list"):
        found.predict(text)
    with pytest.raises(InputError, match="target: there is no file"):
        Learner(LogisticRegression(), ["good"], text)


def test_a_model_gives_a_row_for_each_input():
    class One:  # as a vectoriser of texts that is given a frame of one column
        def point(self, x):
            return np.array([[0.4, 0.6]])

        predict = point

    found = Learner(lambda inputs, labels, rng: One(), X)
    found.tell(range(4), [truth(i) for i in range(4)])
    with pytest.raises(InputError, match="1 rows of probabilities for 60 inputs: pass texts as"):
        found.predict(X)


def test_of_an_empty_batch_nothing_is_said():
    found = warm()
    assert found.why([]) == {}
    assert found.worth([]).shape == (0,)
    assert found.proba_of([]).shape == (0, 2)


def test_nothing_told_is_nothing():
    found = warm()
    batch = found.ask(3)
    found.tell([], [])
    assert found.ask(3) == batch


def test_it_shows_itself():
    assert repr(warm()) == "Learner(LogisticRegression, pool of 60: 4 labels, 0 out)"
