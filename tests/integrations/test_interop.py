"""Strategies of other libraries as ours, and ours as theirs, against the real packages."""

import doctest
import inspect
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import skactiveml.pool
import small_text
import torch
from scipy.sparse import coo_matrix, csr_matrix
from skactiveml.base import SingleAnnotatorPoolQueryStrategy
from skactiveml.classifier import SklearnClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from typer.testing import CliRunner

import foresee
import foresee.posteriors
import tiny
from foresee import (
    Coreset,
    InputError,
    Learner,
    TopK,
    View,
    bald,
    entropy,
    interop,
    margin,
    mell,
    seeding,
)
from foresee.cli.app import app
from foresee.interop.models import posterior_of
from foresee.lab import paper
from foresee.lab.store import trials
from foresee.lab.values import plain
from foresee.posteriors import Forest, bootstrap
from foresee.testing import check_strategy, random_view

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages' own dependencies
    import modAL.models
    import modAL.uncertainty
    from baal.active import heuristics
    from batchbald_redux.batchbald import get_bald_batch

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of the packages' own
]

IMAGES, LABELS = load_digits(return_X_y=True)
X, TARGET, KNOWN = IMAGES[:300] / 16, IMAGES[1000:1100] / 16, 40
Y = np.where(np.arange(300) < KNOWN, LABELS[:300], np.nan)


def forest():
    return RandomForestClassifier(30, min_samples_leaf=2, random_state=0)  # few equal scores


def theirs():
    return SklearnClassifier(forest(), classes=list(range(10)))


def view(posterior, val=TARGET):
    return View(posterior, X[:KNOWN], LABELS[:KNOWN], X[KNOWN:], val)


def rng(seed=0):
    return np.random.default_rng(seed)


# Ours as theirs


@pytest.mark.parametrize("score", [bald, mell])
def test_a_score_picks_through_scikit_activeml_what_it_picks_directly(score):
    strategy = TopK(score, targets=0 if score is bald else None)
    direct = strategy(view(Forest(forest().fit(X[:KNOWN], LABELS[:KNOWN]))), 7, rng())
    query = interop.to_skactiveml(strategy, random_state=0)
    assert isinstance(query, SingleAnnotatorPoolQueryStrategy)
    picks = query.query(X, Y, theirs(), X_eval=TARGET, batch_size=7)
    assert picks.tolist() == (direct + KNOWN).tolist()


def test_our_bald_is_their_bald():
    query = interop.to_skactiveml(TopK(bald, targets=0), random_state=0)
    ours, utilities = query.query(X, Y, theirs(), batch_size=5, return_utilities=True)
    same, expected = skactiveml.pool.GreedyBALD(eps=1e-9, random_state=0).query(
        X, Y, theirs(), batch_size=5, return_utilities=True
    )
    assert ours.tolist() == same.tolist()
    np.testing.assert_allclose(utilities, expected, atol=1e-5)
    assert np.isnan(utilities[:, :KNOWN]).all()
    assert np.isnan(utilities[4, ours[:4]]).all()


def test_candidates_are_positions_or_samples():
    query = interop.to_skactiveml(TopK(mell), random_state=0)
    some = np.array([250, 60, 61, 62, 200])
    picks, utilities = query.query(
        X, Y, theirs(), X_eval=TARGET, candidates=some, batch_size=2, return_utilities=True
    )
    assert set(picks) <= set(some)
    assert utilities.shape == (2, 300)
    assert np.isfinite(utilities[0]).nonzero()[0].tolist() == sorted(some)
    among, few = query.query(
        X, Y, theirs(), X_eval=TARGET, candidates=X[some], batch_size=2, return_utilities=True
    )
    assert some[among].tolist() == picks.tolist()
    np.testing.assert_array_equal(few[0], utilities[0, some])


def test_what_may_be_the_ensemble():
    strategy = TopK(bald, targets=0)
    query = interop.to_skactiveml(strategy, random_state=0)
    fitted = forest().fit(X[:KNOWN], LABELS[:KNOWN])
    expected = query.query(X, Y, theirs(), batch_size=3).tolist()
    assert query.query(X, Y, Forest(fitted), batch_size=3).tolist() == expected
    done = theirs().fit(X, Y)
    assert query.query(X, Y, done, fit_ensemble=False, batch_size=3).tolist() == expected

    def sampler(inputs, labels, rng):
        assert labels.dtype == np.int64
        return Forest(forest().fit(inputs, labels))

    assert query.query(X, Y, sampler, batch_size=3).tolist() == expected
    several = [
        SklearnClassifier(model, classes=list(range(10)))
        for model in (GaussianNB(), LogisticRegression(max_iter=500))
    ]
    assert len(query.query(X, Y, several, batch_size=3)) == 3
    with pytest.raises(InputError, match="no draws"):
        query.query(X, Y, several[0], batch_size=3)
    assert query.query(X, Y, fitted, fit_ensemble=False, batch_size=3).tolist() == expected
    with pytest.raises(InputError, match=r"wrap it in SklearnClassifier, or .*fit_ensemble=False"):
        query.query(X, Y, forest(), batch_size=3)
    with pytest.raises(InputError, match="y has no label yet"):
        query.query(X, np.full(300, np.nan), theirs(), batch_size=3)


def test_a_query_strategy_is_cloned_and_repeats_itself():
    query = interop.to_skactiveml(foresee.Default(), random_state=3)
    same = clone(query)
    assert same.get_params()["strategy"] == foresee.Default()
    picks = [q.query(X, Y, theirs(), X_eval=TARGET, batch_size=4).tolist() for q in (query, same)]
    assert picks[0] == picks[1]
    with pytest.raises(InputError, match="return_utilities must be False: Default"):
        query.query(X, Y, theirs(), batch_size=4, return_utilities=True)


def test_labels_may_be_words():
    words = np.array([f"digit {k}" for k in LABELS[:300]], dtype=object)
    words[KNOWN:] = None
    names = sorted({f"digit {k}" for k in LABELS[:300]})
    model = SklearnClassifier(forest(), classes=names, missing_label=None)
    query = interop.to_skactiveml(TopK(bald, targets=0), missing_label=None, random_state=0)
    expected = interop.to_skactiveml(TopK(bald, targets=0), random_state=0)
    picks = query.query(X, words, model, batch_size=4).tolist()
    assert picks == expected.query(X, Y, theirs(), batch_size=4).tolist()


# Theirs as ours

THEIRS = {
    "Badge": {},
    "BatchBALD": {},
    "Clue": {},
    "ContrastiveAL": {},
    "CoreSet": {},
    "Falcun": {},
    "GreedyBALD": {},
    "GreedySamplingX": {},
    "MaxHerding": {},
    "ProbCover": {"n_classes": 3, "deltas": [0.5, 1.0]},
    "QueryByCommittee": {},
    "RandomSampling": {},
    "TypiClust": {},
    "UncertaintySampling": {},
}


@pytest.mark.parametrize("name", THEIRS)
def test_theirs_obey_our_laws(name):
    check_strategy(interop.from_skactiveml(getattr(skactiveml.pool, name), **THEIRS[name]))


def test_their_uncertainty_is_ours_on_the_same_probabilities():
    posterior = Forest(forest().fit(X[:KNOWN], LABELS[:KNOWN]))  # its point is the mean of draws
    kind = skactiveml.pool.UncertaintySampling
    for method, ours in (
        ("entropy", TopK(entropy, point=True)),
        ("margin_sampling", TopK(margin, targets=0)),
    ):
        same = interop.from_skactiveml(kind, features="inputs", method=method)
        # Equal probabilities of trees are often equal: compare scores, not who wins a tie.
        scores = ours.scores(view(posterior), np.arange(260), rng())
        picks = same(view(posterior), 20, rng())
        np.testing.assert_allclose(np.sort(scores)[-20:], np.sort(scores[picks]), atol=1e-6)


def test_their_bald_is_ours_on_the_same_draws():
    given = random_view(rng())
    same = interop.from_skactiveml(skactiveml.pool.GreedyBALD, eps=1e-9)
    assert same(given, 6, rng()).tolist() == TopK(bald, targets=0)(given, 6, rng()).tolist()


def test_their_core_set_is_ours():
    given = random_view(rng())
    same = interop.from_skactiveml(skactiveml.pool.CoreSet)(given, 12, rng())
    assert same.tolist() == foresee.Coreset()(given, 12, rng()).tolist()


def test_which_of_their_strategies_can_be_taken():
    """All but those for regression, with a model of their own kind, or that fit it anew."""
    kinds = [
        kind
        for kind in vars(skactiveml.pool).values()
        if inspect.isclass(kind) and issubclass(kind, SingleAnnotatorPoolQueryStrategy)
    ]
    assert len(kinds) > 25
    refused = set()
    for kind in kinds:
        try:
            interop.from_skactiveml(kind)
        except InputError:
            refused.add(kind.__name__)
    assert {"DiscriminativeAL", "ExpectedModelChangeMaximization"} <= refused
    assert not refused & set(THEIRS)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (skactiveml.pool.TypiClust(), {}, "pass the class itself"),
        (dict, {}, "must be a class of skactiveml.pool"),
        (skactiveml.pool.TypiClust, {"neighbours": 3}, "settings of TypiClust do not fit"),
        (skactiveml.pool.TypiClust, {"random_state": 0}, "random_state follows from the view"),
        (skactiveml.pool.TypiClust, {"features": "pixels"}, "features must be"),
        (skactiveml.pool.ExpectedModelOutputChange, {}, "asks for a reg"),
        (skactiveml.pool.MonteCarloEER, {}, "take foresee.RetrainingEER"),
    ],
)
def test_what_cannot_be_taken_is_refused_at_once(kind, settings, said):
    with pytest.raises(InputError, match=said):
        interop.from_skactiveml(kind, **settings)


def test_what_a_view_cannot_answer_is_refused():
    with pytest.raises(InputError, match="neither labelled nor in the pool"):
        interop.from_skactiveml(skactiveml.pool.DropQuery)(random_view(rng()), 2, rng())
    given = view(Forest(forest().fit(X[:KNOWN], LABELS[:KNOWN])))
    with pytest.raises(InputError, match=r'no embedding.*or pass features="inputs"'):
        interop.from_skactiveml(skactiveml.pool.TypiClust)(given, 2, rng())
    posterior = random_view(rng()).posterior
    flat = type("Flat", (), {"point": posterior.point, "embed": lambda self, x: 0 * x})()
    given = random_view(rng())
    with pytest.raises(InputError, match="the same embedding and other predictions"):
        interop.from_skactiveml(skactiveml.pool.Badge)(
            View(flat, given.labelled, given.labels, given.pool, None), 2, rng()
        )


def test_a_first_batch_without_labels():
    given = View(random_view(rng()).posterior, None, None, random_view(rng()).pool, None)
    strategy = interop.from_skactiveml(skactiveml.pool.TypiClust, features="inputs")
    assert len(strategy(given, 5, rng())) == 5


def test_images_and_words_for_labels():
    posterior = bootstrap(GaussianNB(), X[:KNOWN], LABELS[:KNOWN], 5, rng=rng())
    flat = view(posterior)
    words = np.array([f"digit {k}" for k in LABELS[:KNOWN]])
    images = View(
        posterior, X[:KNOWN].reshape(-1, 8, 8), words, torch.tensor(X[KNOWN:]).view(-1, 8, 8), None
    )
    strategy = interop.from_skactiveml(skactiveml.pool.Falcun, features="inputs")
    assert strategy(flat, 5, rng()).tolist() == strategy(images, 5, rng()).tolist()


def test_a_strategy_is_described_for_the_store():
    assert plain(interop.from_skactiveml(skactiveml.pool.TypiClust, k=3)) == {
        "type": "SkactivemlStrategy",
        "kind": "skactiveml.pool._typi_clust.TypiClust",
        "settings": {"k": 3},
        "features": "embedding",
    }
    assert plain(interop.from_baal(heuristics.BALD))["kind"].endswith("heuristics.BALD")


# baal and batchbald_redux

BAAL = ["BALD", "BatchBALD", "Certainty", "Entropy", "EPIG", "Margin", "Random", "Variance"]


@pytest.mark.parametrize("name", BAAL)
def test_heuristics_of_baal_obey_our_laws(name):
    check_strategy(interop.from_baal(getattr(heuristics, name)))


def test_heuristics_of_baal_are_our_scores():
    given = random_view(rng())
    for kind, ours in (
        (heuristics.BALD, TopK(bald, targets=0)),
        (heuristics.EPIG, TopK(mell)),
        (heuristics.Margin, TopK(margin, targets=0)),
    ):
        picks = interop.from_baal(kind)(given, 6, rng())
        assert picks.tolist() == ours(given, 6, rng()).tolist(), kind


def test_heuristics_of_baal_that_cannot_be_taken():
    with pytest.raises(InputError, match="pass the class itself"):
        interop.from_baal(heuristics.BALD())
    with pytest.raises(InputError, match="settings of BALD do not fit"):
        interop.from_baal(heuristics.BALD, nothing=1)


def test_batchbald_redux_obeys_our_laws_and_agrees(monkeypatch):
    monkeypatch.setattr("gc.collect", lambda: 0)  # its loops collect at every step
    check_strategy(interop.from_batchbald_redux(200))
    given = random_view(rng(), t=30)
    picks = interop.from_batchbald_redux()(given, 3, rng())
    assert picks.tolist() == foresee.BatchBALD(samples=64)(given, 3, rng()).tolist()
    logs = torch.from_numpy(given.posterior.predict(given.pool)).double().log()
    best = get_bald_batch(logs, 5).indices
    assert best == TopK(bald, targets=0)(given, 5, rng()).tolist()


def test_batchbald_redux_takes_probabilities_of_zero(monkeypatch):
    monkeypatch.setattr("gc.collect", lambda: 0)
    given = view(Forest(forest().fit(X[:KNOWN], LABELS[:KNOWN])))
    picks = interop.from_batchbald_redux(200)(given, 3, rng())
    assert picks[0] == TopK(bald, targets=0)(given, 1, rng())[0] > 2


# modAL


def test_a_query_function_of_modal():
    strategy = TopK(mell)
    fitted = forest().fit(X[:KNOWN], LABELS[:KNOWN])
    direct = strategy(view(Forest(fitted)), 5, rng())
    query = interop.to_modal(strategy, TARGET)
    positions, rows = query(fitted, X[KNOWN:], 5)
    assert positions.tolist() == direct.tolist()
    np.testing.assert_array_equal(rows, X[KNOWN:][positions])
    positions, rows = query(fitted, coo_matrix(X[KNOWN:]), 5)  # which has no rows to read
    np.testing.assert_array_equal(rows.toarray(), X[KNOWN:][positions])

    learner = modAL.models.ActiveLearner(forest(), query, X[:KNOWN], LABELS[:KNOWN])
    for n in (1, 2, 5):  # two positions are not taken for positions and metrics
        positions, rows = learner.query(X[KNOWN:], n_instances=n)
        assert positions.tolist() == direct[:n].tolist()
        np.testing.assert_array_equal(rows, X[KNOWN:][positions])


def test_a_committee_of_modal_is_a_posterior():
    query = interop.to_modal(TopK(bald, targets=0))
    learners = [
        modAL.models.ActiveLearner(model, X_training=X[:KNOWN], y_training=LABELS[:KNOWN])
        for model in (GaussianNB(), LogisticRegression(max_iter=500), forest())
    ]
    committee = modAL.models.Committee(learners, query)
    positions, _ = committee.query(X[KNOWN:], n_instances=4)
    draws = np.stack([learner.predict_proba(X[KNOWN:]) for learner in learners], 1)
    assert positions.tolist() == np.argsort(-bald(draws), kind="stable")[:4].tolist()


def test_what_a_committee_knows_is_labelled():
    def learner(c, x, y):
        return modAL.models.ActiveLearner(LogisticRegression(C=c), X_training=x, y_training=y)

    x, y = X[:KNOWN], LABELS[:KNOWN]
    query = interop.to_modal(Coreset())
    expected = learner(1, x, y)
    for half in (KNOWN, KNOWN // 2):  # of the same, or each of its own
        learners = [learner(1, x[:half], y[:half]), learner(9, x[-half:], y[-half:])]
        committee = modAL.models.Committee(learners, query)
        assert (query(committee, X[KNOWN:], 5)[0] == query(expected, X[KNOWN:], 5)[0]).all()


def test_their_entropy_is_ours_in_modal():
    learner = modAL.models.ActiveLearner(
        GaussianNB(), X_training=X[:KNOWN], y_training=LABELS[:KNOWN]
    )
    picks = interop.to_modal(TopK(entropy, point=True))(learner, X[KNOWN:], 6)[0]
    expected = modAL.uncertainty.classifier_entropy(learner, X[KNOWN:])
    np.testing.assert_allclose(np.sort(expected)[::-1][:6], expected[picks], atol=1e-6)


def test_modal_cannot_teach_under_this_scikit_learn():
    """As docs/interop.md says: when this fails, mend that page."""
    learner = modAL.models.ActiveLearner(forest(), X_training=X[:KNOWN], y_training=LABELS[:KNOWN])
    with pytest.raises(TypeError, match="force_all_finite"):
        learner.teach(X[KNOWN:50], LABELS[KNOWN:50])


# small-text


def texts(model, rows=X):
    """What makes a learner of small-text with a query strategy, and its first labels."""
    data = small_text.SklearnDataset(rows, LABELS[: len(X)])
    factory = small_text.SklearnClassifierFactory(model, 10)

    def learner(query):
        found = small_text.PoolBasedActiveLearner(factory, query, data)
        found.initialize_data(np.arange(KNOWN), LABELS[:KNOWN])
        return found

    return learner


@pytest.mark.parametrize("strategy", [TopK(mell), TopK(bald, targets=0), foresee.Default()])
def test_a_query_strategy_of_small_text(strategy):
    query = interop.to_small_text(strategy, csr_matrix(TARGET))
    learner = texts(forest(), csr_matrix(X))(query)
    picks = learner.query(num_samples=5)
    fitted = forest().fit(csr_matrix(X[:KNOWN]), LABELS[:KNOWN])
    rng = seeding.generator(0, KNOWN, "query")
    direct = View(Forest(fitted), X[:KNOWN], LABELS[:KNOWN], X[KNOWN:], TARGET)
    assert sorted(picks) == sorted(strategy(direct, 5, rng) + KNOWN)
    learner.update(LABELS[picks])
    assert not {*picks} & {*learner.query(num_samples=5)}


def test_their_entropy_is_ours_in_small_text():
    learner = texts(GaussianNB(var_smoothing=0.1))
    ours, theirs = (
        learner(query).query(num_samples=6)
        for query in (
            interop.to_small_text(TopK(entropy, point=True)),
            small_text.PredictionEntropy(),
        )
    )
    assert {*ours} == {*theirs}


def test_a_sampler_draws_for_small_text():
    def sampler(inputs, labels, rng):
        return bootstrap(LogisticRegression(max_iter=500), inputs, labels, 8, rng=rng)

    query = interop.to_small_text(
        TopK(mell), small_text.SklearnDataset(TARGET, np.zeros(100, int)), seed=1
    )
    learner = texts(LogisticRegression(max_iter=500))
    with pytest.raises(InputError, match="no draws"):
        learner(query).query(num_samples=3)
    drawing = replace(query, sampler=sampler)
    first, again = (learner(drawing).query(num_samples=3) for _ in range(2))
    assert first.tolist() == again.tolist()


def test_what_small_text_cannot_bring():
    query, rows = interop.to_small_text(TopK(bald, targets=0)), np.arange(len(X))
    known, rest = rows[:KNOWN], rows[KNOWN:]
    network = small_text.KimCNNClassifier(10, embedding_matrix=torch.rand(5, 3))
    with pytest.raises(InputError, match=r"KimCNNClassifier.*pass sampler="):
        query.query(network, X, rest, known, LABELS[:KNOWN])
    words = small_text.TextDataset(["a", "b"], np.zeros(2, int))
    with pytest.raises(InputError, match="got TextDataset"):
        query.query(network, words, rest, known, LABELS[:KNOWN])
    with pytest.raises(InputError, match="several labels"):
        query.query(network, X, rest, known, csr_matrix(np.eye(KNOWN, 10)))


# What all share


def test_posteriors_of_models():
    fitted = forest().fit(X[:KNOWN], LABELS[:KNOWN])
    assert isinstance(posterior_of(fitted), Forest)
    assert posterior_of(Forest(fitted)) == Forest(fitted)
    with pytest.raises(InputError, match="no draws"):
        posterior_of(GaussianNB().fit(X[:KNOWN], LABELS[:KNOWN])).predict(X)
    with pytest.raises(InputError, match="GaussianNB has no classes_: call fit first"):
        posterior_of([GaussianNB(), forest()])


@pytest.mark.parametrize("bridge", [interop.to_skactiveml, interop.to_modal, interop.to_small_text])
def test_a_score_is_no_strategy(bridge):
    for given in (mell, TopK, "mell", None):
        with pytest.raises(InputError, match=r"strategy must be a function .* as TopK\(mell\)"):
            bridge(given)


def test_what_stands_beside_a_model_is_not_taken_for_it():
    inner = forest().fit(X[:KNOWN], LABELS[:KNOWN])
    for kind in (CalibratedClassifierCV(FrozenEstimator(inner)), AdaBoostClassifier(inner)):
        model = kind.fit(X[:200], LABELS[:200])
        np.testing.assert_allclose(
            posterior_of(model).point(X), model.predict_proba(X), rtol=1e-5, atol=1e-7
        )


def test_without_scikit_activeml_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "foresee.interop.skactiveml", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "skactiveml"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skactiveml", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "foresee\[interop\]"'):
        interop.from_skactiveml  # noqa: B018
    assert callable(interop.to_modal)
    with pytest.raises(AttributeError, match="no attribute 'from_nowhere'"):
        interop.from_nowhere  # noqa: B018


# The page


PAGE = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_page_runs():
    whole = {}
    for block in blocks("python"):
        exec(block, whole)
    assert isinstance(whole["query"](whole["model"], whole["X"][50:], 5), tuple)


def test_the_lab_takes_theirs_by_file_and_name(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "NARROW", tiny.NARROW)  # digits of few points
    monkeypatch.chdir(tmp_path)
    Path("neighbours.py").write_text(blocks("python")[1])
    run, report = blocks("sh")[0].splitlines()
    for line in (run.replace("--seeds 3", "--seeds 1"), report):
        done = CliRunner().invoke(app, line.split()[1:])
        assert done.exit_code == 0, done.output
    found = [(t.method, t.finished) for t in trials(Path("runs"))]
    assert found == [("MELL", True), ("falcun", True), ("typiclust", True)]
    assert Path("report/index.html").exists()


def test_the_table_names_what_is_there():
    rows = [
        line.split("|")[3] for line in PAGE.partition("## Coming")[2].splitlines() if "|" in line
    ]
    called = re.findall(r"(\w+)\(", " ".join(rows))
    assert len(set(called)) > 15
    homes = (foresee, foresee.posteriors, Learner, np.ndarray)
    assert [name for name in called if not any(hasattr(home, name) for home in homes)] == []


def test_the_examples_of_the_module_run():
    from foresee.interop import skactiveml as module

    assert doctest.testmod(module) == (0, doctest.testmod(module).attempted)
    assert doctest.testmod(module).attempted > 5
