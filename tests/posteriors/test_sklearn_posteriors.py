"""Posteriors of scikit-learn models against sklearn, hand loops and numerical derivatives."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.special import expit, log_softmax, softmax
from sklearn.datasets import load_digits
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from foresee import arrays, bald, posteriors
from foresee.errors import InputError
from foresee.posteriors.sklearn import (
    Forest,
    _hessian,
    bootstrap,
    class_probs,
    laplace_logistic,
    members,
)
from foresee.types import more_draws


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):  # the matrices are tiny: threads would only wait for each other
        yield


def blobs(seed=0, rows=60, d=4, classes=(0, 1, 2)):
    rng = np.random.default_rng(seed)
    labels = np.resize(classes, rows)
    return rng.standard_normal((rows, d)) + labels[:, None] * np.linspace(-1, 1, d), labels


def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / 16, labels[order]
    return images[:500], labels[:500], images[500:], labels[500:]


def logistic(**options):
    return LogisticRegression(tol=1e-10, max_iter=5000, **options)


def assert_sane(posterior, inputs, t, c):
    probs, point = posterior.predict(inputs), posterior.point(inputs)
    assert probs.shape == (len(inputs), t, c)
    assert point.shape == (len(inputs), c)
    assert probs.dtype == point.dtype == np.float32
    np.testing.assert_allclose(probs.sum(2), 1, atol=1e-6)
    np.testing.assert_allclose(point.sum(1), 1, atol=1e-6)
    assert probs.std(1).max() > 0  # the draws differ
    order = np.random.default_rng(0).permutation(len(inputs))
    for batch in (1, 4):  # one parameter vector for every input, batch and call
        some = [order[i : i + batch] for i in range(0, len(order), batch)]
        parts = [posterior.predict(inputs[rows]) for rows in some]
        np.testing.assert_allclose(np.concatenate(parts), probs[order], atol=1e-6)
    np.testing.assert_array_equal(posterior.predict(torch.from_numpy(inputs)), probs)


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_trees_are_draws_and_classes_are_aligned(kind):
    x, y = blobs(classes=(1, 4, 6))
    model = kind(5, max_depth=3, random_state=0).fit(x, y)
    posterior = Forest(model, 8)
    assert_sane(posterior, x[:9], 5, 8)
    probs = posterior.predict(x)
    for k, tree in enumerate(model.estimators_):
        np.testing.assert_allclose(probs[:, k, [1, 4, 6]], tree.predict_proba(x), atol=1e-7)
    assert probs[..., [0, 2, 3, 5, 7]].max() == 0
    np.testing.assert_allclose(posterior.point(x)[:, [1, 4, 6]], model.predict_proba(x), atol=1e-7)
    np.testing.assert_allclose(probs.mean(1), posterior.point(x), atol=1e-6)


def test_bagging_with_subsets_of_features_and_of_classes():
    x, y = blobs(classes=(1, 4, 6, 7))
    base = KNeighborsClassifier(3)
    model = BaggingClassifier(base, 20, max_samples=4, max_features=2, random_state=0).fit(x, y)
    assert min(len(member.classes_) for member in model.estimators_) < 4  # some classes are missed
    assert len({tuple(f) for f in model.estimators_features_}) > 1
    posterior = Forest(model, 9)
    assert_sane(posterior, x[:9], 20, 9)
    np.testing.assert_allclose(
        posterior.predict(x).mean(1)[:, [1, 4, 6, 7]], model.predict_proba(x), atol=1e-6
    )
    np.testing.assert_allclose(posterior.predict(x).mean(1), posterior.point(x), atol=1e-6)
    with pytest.raises(InputError, match=r"inputs must have shape \[n 4\]"):
        posterior.predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="features"):
        posterior.point(np.zeros((2, 5)))


def test_members_equal_a_loop():
    x, y = blobs(classes=(0, 1, 3))
    some = y != 1
    models = [
        GaussianNB().fit(x, y),
        make_pipeline(StandardScaler(), DecisionTreeClassifier(max_depth=2)).fit(x[some], y[some]),
        LogisticRegression().fit(x[~some | (y == 3)], y[~some | (y == 3)]),
    ]
    posterior = members(models, 5)
    assert_sane(posterior, x[:9], 3, 5)
    probs = posterior.predict(x)
    for i in range(0, len(x), 7):
        for k, model in enumerate(models):
            expected = dict(zip(model.classes_, model.predict_proba(x[i : i + 1])[0], strict=True))
            for c in range(5):
                assert probs[i, k, c] == np.float32(expected.get(c, 0.0))
    np.testing.assert_allclose(posterior.point(x), probs.mean(1), atol=1e-7)


def test_bootstrap_refits_to_resamples():
    x, y = blobs(rows=12)
    posterior = bootstrap(GaussianNB(), x, y, draws=50, classes=4, rng=np.random.default_rng(0))
    assert_sane(posterior, x, 50, 4)
    expected = GaussianNB().fit(x, y).predict_proba(x)
    np.testing.assert_allclose(posterior.point(x)[:, :3], expected, atol=1e-6)
    counts = np.array([m.class_count_.sum() for m in posterior.models])
    assert (counts == 12).all()
    missed = [m for m in posterior.models if len(m.classes_) < 3]
    shares = [m.class_count_[0] for m in posterior.models if 0 in m.classes_]
    # Class 0 is drawn Binomial(12, 1/3) times: variance 8/3, within 4 standard errors.
    assert abs(np.var(shares) - 8 / 3) < 4 * (8 / 3) * np.sqrt(2 / 50)
    again = bootstrap(GaussianNB(), x, y, draws=50, classes=4, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(again.predict(x), posterior.predict(x))
    assert len(missed) < 25


def test_bootstrap_of_few_labels_misses_classes_but_never_all_but_one():
    x, y = blobs(rows=3)
    posterior = bootstrap(
        LogisticRegression(), x, y, draws=40, classes=3, rng=np.random.default_rng(0)
    )
    known = [len(m.classes_) for m in posterior.models]
    assert set(known) == {2, 3}
    assert_sane(posterior, x, 40, 3)
    one = bootstrap(
        GaussianNB(), x, np.zeros(3, int), draws=2, classes=2, rng=np.random.default_rng(0)
    )
    assert (one.predict(x)[..., 0] == 1).all()


def test_bootstrap_takes_all_randomness_from_rng():
    x, y = blobs()
    model = make_pipeline(StandardScaler(), DecisionTreeClassifier(splitter="random"))
    first, second, other = (
        bootstrap(model, x, y, draws=5, classes=3, rng=np.random.default_rng(s)).predict(x)
        for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()
    assert not hasattr(model, "classes_")  # the caller's model is left as it was


def negative_log_posterior(model, x, y, weight, flat):
    """As sklearn documents it, written without the library: C · Σ loss + |w|² / 2, over C."""
    k, d = model.coef_.shape
    w = flat.reshape(k, -1)
    logits = x @ w[:, :d].T + (w[:, d] if model.fit_intercept else 0)
    if k == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    rows = np.searchsorted(model.classes_, y)
    fit = -(weight * log_softmax(logits, 1)[np.arange(len(y)), rows]).sum()
    return fit + (w[:, :d] ** 2).sum() / (2 * model.C)


def mode(model):
    parts = [model.coef_, model.intercept_[:, None]] if model.fit_intercept else [model.coef_]
    return np.hstack(parts).ravel()


@pytest.mark.parametrize("classes", [(0, 3), (0, 1, 4)])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, {0: 1.0, 1: 2.0, 3: 0.5, 4: 3.0}])
def test_hessian_is_that_of_sklearn_s_objective(classes, fit_intercept, class_weight):
    x, y = blobs(d=3, classes=classes)
    model = logistic(C=0.7, fit_intercept=fit_intercept, class_weight=class_weight).fit(x, y)
    weight = np.array([1.0 if class_weight is None else class_weight[c] for c in y])
    at = mode(model)
    size, h = len(at), 1e-3
    unit = np.eye(size) * h

    def f(step):
        return negative_log_posterior(model, x, y, weight, at + step)

    gradient = np.array([(f(e) - f(-e)) / (2 * h) for e in unit])
    assert np.abs(gradient).max() < 1e-4  # the fitted weights are the mode of this objective
    numerical = np.array(
        [[f(a + b) - f(a - b) - f(b - a) + f(-a - b) for b in unit] for a in unit]
    ) / (4 * h * h)
    exact = _hessian(model, x, model.predict_proba(x), y).reshape(size, size)
    # Central differences err by about h² plus 1e-16 f / h².
    np.testing.assert_allclose(exact, numerical, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)])
def test_laplace_draws_have_the_inverse_hessian_as_covariance(classes):
    x, y = blobs(d=2, classes=classes)
    model = logistic(C=2.0).fit(x, y)
    t, c = 20_000, len(classes)
    posterior = laplace_logistic(model, x, y, t)
    weights = np.array([mode(m) for m in posterior.models])
    hessian = _hessian(model, x, model.predict_proba(x), y).reshape(weights.shape[1], -1)
    free = np.eye(len(hessian))
    if c > 2:  # the intercepts' common shift is free: leave it out
        shift = np.tile([0.0, 0.0, 1.0], 3) / np.sqrt(3)
        np.testing.assert_allclose(hessian @ shift, 0, atol=1e-9)
        free -= np.outer(shift, shift)
    expected = np.linalg.pinv(hessian, rcond=1e-10)
    found = free @ np.cov(weights.T) @ free
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / t)
    assert (np.abs(found - expected) < 4.5 * error).all()
    centre = free @ (weights.mean(0) - mode(model))
    assert (np.abs(centre) < 4.5 * np.sqrt(variance / t)).all()


def test_laplace_predicts_with_its_weights_and_leaves_the_model_alone():
    x, y = blobs(classes=(1, 2, 5))
    for some in (y > 0, y > 1):  # three classes, and two
        model = logistic().fit(x[some], y[some])
        before = model.coef_.copy(), model.intercept_.copy()
        posterior = laplace_logistic(model, x[some], y[some], 6, classes=7)
        assert_sane(posterior, x[:9], 6, 7)
        np.testing.assert_array_equal(model.coef_, before[0])
        np.testing.assert_array_equal(model.intercept_, before[1])
        for k, drawn in enumerate(posterior.models):
            logits = x @ drawn.coef_.T + drawn.intercept_
            if len(drawn.coef_) == 1:
                logits = np.hstack([np.zeros_like(logits), logits])
            probs = posterior.predict(x)[:, k, model.classes_]
            np.testing.assert_allclose(probs, np.exp(log_softmax(logits, 1)), atol=1e-6)
        np.testing.assert_allclose(
            posterior.point(x)[:, model.classes_], model.predict_proba(x), atol=1e-7
        )
        np.testing.assert_array_equal(posterior.embed(x), x.astype(np.float32))


def test_laplace_narrows_with_data_and_with_the_prior():
    x, y = blobs(rows=400)

    def spread(rows, C):
        model = logistic(C=C).fit(x[:rows], y[:rows])
        posterior = laplace_logistic(model, x[:rows], y[:rows])
        return posterior.predict(x).std(1).mean()

    assert spread(30, 1.0) > 1.5 * spread(400, 1.0)
    assert spread(30, 1.0) > 1.5 * spread(30, 0.01)


# --- sets that are read in batches --------------------------------------------------------------


def images(n=600):
    """Images [n 1 2 2] with labels; 600 are three batches."""
    x, y = blobs(rows=n)
    return torch.from_numpy(x.astype(np.float32)).reshape(n, 1, 2, 2), torch.from_numpy(y)


def fitted_to_flat():
    x, y = images()
    x, y = x.flatten(1).numpy(), y.numpy()
    forest = RandomForestClassifier(5, max_depth=3, random_state=0).fit(x, y)
    bagging = BaggingClassifier(GaussianNB(), 4, max_features=2, random_state=0).fit(x, y)
    naive = make_pipeline(StandardScaler(), GaussianNB()).fit(x, y)
    linear = laplace_logistic(logistic().fit(x, y), x, y, 4)
    return [Forest(forest, 3), Forest(bagging, 3), members([naive, forest], 3), linear]


@pytest.mark.parametrize("which", range(4))
def test_images_datasets_and_loaders_are_their_flat_rows(which):
    posterior, (x, y) = fitted_to_flat()[which], images()
    flat = x.flatten(1).numpy()
    probs, point = posterior.predict(flat), posterior.point(flat)
    data = TensorDataset(x, y)
    for same in (x, x.numpy(), x.requires_grad_(), data, DataLoader(data, 7), DataLoader(x, 256)):
        assert isinstance(posterior.predict(same), np.ndarray)
        np.testing.assert_allclose(posterior.predict(same), probs, atol=1e-6)
        np.testing.assert_allclose(posterior.point(same), point, atol=1e-6)
        if which == 3:
            np.testing.assert_array_equal(posterior.embed(same), flat)
    tables = (flat, TensorDataset(torch.from_numpy(flat)), [(row, 0) for row in flat])
    for same in (*tables[:2], DataLoader(tables[2], 9)):
        np.testing.assert_allclose(posterior.predict(same), probs, atol=1e-6)


class Widest(GaussianNB):
    """Notes the most rows that it was ever asked about."""

    rows = 0

    def predict_proba(self, x):
        Widest.rows = max(Widest.rows, len(x))
        return super().predict_proba(x)


def test_a_dataset_is_never_held_whole():
    x, y = images(1500)
    posterior = members([Widest().fit(x.flatten(1).numpy(), y.numpy())] * 2, 3)
    for inputs, most in ((TensorDataset(x), 256), (DataLoader(x, 30), 30)):
        for method in (posterior.predict, posterior.point):
            Widest.rows = 0
            assert len(method(inputs)) == 1500
            assert Widest.rows == most


@pytest.mark.parametrize("which", range(4))
def test_sets_that_cannot_be_read(which):
    posterior, (x, _) = fitted_to_flat()[which], images(12)
    batched = BatchSampler(RandomSampler(x), 4, drop_last=False)
    short = BatchSampler(range(12), 5, drop_last=True)
    for inputs, message in (
        (DataLoader(x, 4, shuffle=True), "inputs is a DataLoader that shuffles.*shuffle=False"),
        (DataLoader(x, 4, sampler=SubsetRandomSampler(range(12))), "shuffle=False"),
        (DataLoader(x, batch_sampler=batched), "shuffle=False"),
        (DataLoader(x, 5, drop_last=True), "pass drop_last=False"),
        (DataLoader(x, batch_sampler=short), "pass drop_last=False"),
        (TensorDataset(x[:0]), "inputs are empty: pass at least one row"),
        (DataLoader(TensorDataset(x[:0]), 4), "inputs are empty"),
        (x[:0], "inputs are empty"),
        (x[:0].numpy(), "inputs are empty"),
        (x[:, :, :1], r"inputs must have shape \[n 4\].*4 features, got \[12, 1, 1, 2\]: prepare"),
        (TensorDataset(x[:, :, 0]), r"\[n 4\].*got \[12, 1, 2\]"),
        (DataLoader(x[..., 0], 5), r"\[n 4\].*got \[5, 1, 2\]"),
        (np.zeros(4), r"\[n 4\].*got \[4\]"),
        (np.zeros((2, 5)), r"\[n 4\].*got \[2, 5\]"),
    ):
        for method in (posterior.predict, posterior.point, *[posterior.embed] * (which == 3)):
            with pytest.raises(InputError, match=message):
                method(inputs)


def test_what_is_no_array_is_left_to_the_model():
    """A pipeline of words knows no number of features; a frame is checked by the model itself."""
    texts, y = ["a b", "b c", "c a", "a a"], [0, 1, 0, 1]
    pipeline = make_pipeline(CountVectorizer(token_pattern=r"\w"), MultinomialNB()).fit(texts, y)
    posterior = members([pipeline, pipeline], 2)
    np.testing.assert_allclose(posterior.point(texts), pipeline.predict_proba(texts), atol=1e-6)
    expected = posterior.predict(texts)
    pairs = list(zip(texts, y, strict=True))
    for same in (np.array(texts), DataLoader(texts, 2), DataLoader(pairs, 2)):
        np.testing.assert_array_equal(posterior.predict(same), expected)


def test_models_are_fitted_to_datasets_and_loaders_as_to_arrays():
    x, y = blobs()
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    naive, fitted = GaussianNB(), logistic().fit(x, y)
    for fit in (
        lambda x: bootstrap(naive, x, y, 3, rng=np.random.default_rng(0)),
        lambda x: laplace_logistic(fitted, x, y, 3),
    ):
        expected = fit(x).predict(x)
        for same in (data, DataLoader(data, 7), arrays.rows("x", x.tolist())):
            np.testing.assert_allclose(fit(same).predict(x), expected, atol=1e-6)


# --- what the models know, and what they read ----------------------------------------------------


def test_classes_are_those_that_the_models_know():
    x, y = blobs()
    names = np.array(["cat", "dog", "emu"])[y]
    forest = RandomForestClassifier(5, max_depth=3, random_state=0)
    bagging = BaggingClassifier(KNeighborsClassifier(2), 4, max_samples=5, random_state=0)
    for model in (forest, bagging):
        by_number = Forest(model.fit(x, y)).predict(x)
        np.testing.assert_array_equal(Forest(model, 3).predict(x), by_number)
        np.testing.assert_array_equal(Forest(model.fit(x, names)).predict(x), by_number)
        with pytest.raises(InputError, match=r"knows the classes .*cat.*integers from 0 to 2"):
            Forest(model, 3)
    some = y != 1
    apart = members([GaussianNB().fit(x, names), GaussianNB().fit(x[some], names[some])])
    assert apart.predict(x).shape == (60, 2, 3)
    assert apart.predict(x)[:, 1, 1].max() == 0
    assert apart.predict(x)[:, 0, 1].min() > 0
    drawn = laplace_logistic(logistic().fit(x, names), x, names, 4)
    assert drawn.predict(x).shape == (60, 4, 3)
    few = bootstrap(GaussianNB(), x[:4], names[:4], 30, rng=np.random.default_rng(0))
    assert few.predict(x).shape == (60, 30, 3)  # though some resamples miss a class
    with pytest.raises(InputError, match="expected one label for each row"):
        Forest(RandomForestClassifier(2).fit(x, np.stack([y, y], 1)))


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array"])
def test_sparse_inputs(kind):
    x, y = blobs()
    x[x < 0.5] = 0
    thin = getattr(sparse, kind)(x)
    forest = RandomForestClassifier(5, random_state=0).fit(x, y)
    bagging = BaggingClassifier(MultinomialNB(), 4, max_features=2, random_state=0).fit(x, y)
    linear = logistic().fit(x, y)
    for posterior in (
        Forest(forest),
        Forest(bagging),
        members([forest, linear]),
        laplace_logistic(linear, x, y, 4),
    ):
        for said in ("predict", "point"):
            expected = getattr(posterior, said)(x)
            np.testing.assert_allclose(getattr(posterior, said)(thin), expected, atol=1e-6)
            rows = arrays.rows("pool", thin)
            np.testing.assert_allclose(getattr(posterior, said)(rows), expected, atol=1e-6)
        with pytest.raises(InputError, match=r"inputs must have shape \[n 4\].*got \[60, 3\]"):
            posterior.predict(thin.tocsr()[:, :3])
    np.testing.assert_allclose(
        laplace_logistic(linear, thin, y, 4).predict(x), posterior.predict(x), atol=1e-5
    )
    np.testing.assert_array_equal(posterior.embed(thin), x.astype(np.float32))
    refits = bootstrap(MultinomialNB(), thin.tocsr(), y, 4, rng=np.random.default_rng(0))
    dense = bootstrap(MultinomialNB(), x, y, 4, rng=np.random.default_rng(0))
    np.testing.assert_allclose(refits.predict(thin), dense.predict(x), atol=1e-6)


def test_frames():
    pandas = pytest.importorskip("pandas")
    x, y = blobs()
    frame = pandas.DataFrame(
        x, columns=list("abcd"), index=np.random.default_rng(0).permutation(60)
    )
    model = RandomForestClassifier(5, random_state=0).fit(frame, y)
    for posterior in (Forest(model), members([model, GaussianNB().fit(frame, y)])):
        expected = posterior.predict(frame)
        assert expected.shape[0] == 60
        pool = arrays.rows("pool", frame)
        np.testing.assert_array_equal(posterior.predict(pool), expected)
        np.testing.assert_array_equal(posterior.predict(pool[10:20]), expected[10:20])


def test_columns_of_frames_are_those_of_the_fit():
    pandas = pytest.importorskip("pandas")
    x, y = blobs()
    frame = pandas.DataFrame(x, columns=list("abcd"))
    linear = LogisticRegression().fit(frame, y)
    for said in (
        Forest(RandomForestClassifier(5).fit(frame, y)).predict,
        laplace_logistic(linear, frame, y, 4).embed,
        posteriors.point(linear).embed,
    ):
        assert len(said(frame)) == 60
        with pytest.raises(InputError, match=r"columns \['d', .*fitted to \['a', .*this order"):
            said(frame[list("dcba")])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("classes", [(0, 3), (0, 1, 4)])
def test_fewer_labels_than_features_leave_the_prior_where_no_input_looks(classes, fit_intercept):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 9)), np.array(classes * 6)[:6]
    model = logistic(C=0.7, fit_intercept=fit_intercept).fit(x, y)
    posterior = laplace_logistic(model, x, y, draws=40_000, seed=1)
    drawn = np.stack([m.coef_ - model.coef_ for m in posterior.models])  # [t k d]
    if fit_intercept:
        shifts = np.stack([m.intercept_ - model.intercept_ for m in posterior.models])
        drawn = np.concatenate([drawn, shifts[..., None]], 2)
    k, d = drawn.shape[1:]
    hessian = _hessian(model, x, model.predict_proba(x), y)
    if k > 1 and fit_intercept:
        hessian[:, -1, :, -1] += 1 / model.C
    exact = np.linalg.inv(hessian.reshape(k * d, k * d))
    found = np.cov(drawn.reshape(len(drawn), -1).T)
    error = np.sqrt(np.outer(np.diag(exact), np.diag(exact)) / len(drawn))
    assert np.abs((found - exact) / error).max() < 6


def test_many_logistic_regressions_are_one_product():
    for classes in ((0, 3), (0, 1, 4)):
        x, y = blobs(d=3, classes=classes)
        posterior = bootstrap(logistic(), x, y, 7, classes=5, rng=np.random.default_rng(0))
        names = np.arange(5)
        each = np.stack([class_probs(m, x, names) for m in posterior.models], 1)
        for rows in (x, x.tolist(), sparse.csr_matrix(x)):
            np.testing.assert_allclose(posterior.predict(rows), each, atol=1e-7)
        with pytest.raises(ValueError, match="contains NaN"):
            posterior.predict(np.full_like(x, np.nan))


@pytest.mark.parametrize(
    ("multi_class", "solver", "classes"),
    [("multinomial", "lbfgs", (0, 1)), ("auto", "newton-cholesky", (0, 1, 2))],
)
def test_older_logistic_regressions_speak_for_themselves(monkeypatch, multi_class, solver, classes):
    def then(model, x):
        logits = model.decision_function(x)
        if multi_class == "multinomial":
            return softmax(np.column_stack([-logits, logits]), axis=1)
        return expit(logits) / expit(logits).sum(1, keepdims=True)

    monkeypatch.setattr(LogisticRegression, "predict_proba", then)
    x, y = blobs(classes=classes)
    models = [LogisticRegression(solver=solver, C=c).fit(x, y) for c in (0.1, 1, 10)]
    for model in models:
        model.multi_class = multi_class
    each = np.stack([then(model, x) for model in models], 1)
    np.testing.assert_allclose(members(models).predict(x), each, atol=1e-7)
    with pytest.raises(InputError, match="fit a LogisticRegression with an L2 penalty"):
        laplace_logistic(models[0], x, y)


def test_a_hessian_beyond_memory_is_refused_before_it_is_made():
    rng = np.random.default_rng(0)
    x = sparse.random(60, 20_000, 0.001, random_state=0, format="csr")
    y = rng.integers(3, size=60)
    model = LogisticRegression().fit(x, y)
    assert laplace_logistic(model, x, y, draws=5).predict(x).shape == (60, 5, 3)
    model.coef_ = np.zeros((3, 6_000_000), order="C")  # never touched, so never in memory
    with pytest.raises(InputError, match=r"3 · 60 weights.*4\d\.\d GiB.*TruncatedSVD.*bootstrap"):
        laplace_logistic(model, x, y)


POSTERIORS = {
    "naive Bayes": lambda x, y: bootstrap(
        GaussianNB(var_smoothing=1e-2), x, y, draws=50, classes=10, rng=np.random.default_rng(0)
    ),
    "logistic": lambda x, y: laplace_logistic(
        LogisticRegression(max_iter=1000).fit(x, y), x, y, classes=10
    ),
    "forest": lambda x, y: Forest(RandomForestClassifier(50, random_state=0).fit(x, y), 10),
}


@pytest.mark.parametrize("name", POSTERIORS)
def test_digits(name):
    x, y, test, truth = digits()
    posterior = POSTERIORS[name](x, y)
    mean = (posterior.predict(test).mean(1).argmax(1) == truth).astype(float)
    point = (posterior.point(test).argmax(1) == truth).astype(float)
    error = np.sqrt(point.mean() * (1 - point.mean()) / len(truth))
    assert point.mean() > 0.8
    assert mean.mean() >= point.mean() - 2 * error
    # Draws disagree more on digits that were never shown.
    old = y < 7
    some = POSTERIORS[name](x[old], y[old])
    assert some.predict(test)[..., 7:].max() == 0
    disagreement = bald(some.predict(test))
    assert disagreement[truth >= 7].mean() > 1.3 * disagreement[truth < 7].mean()


def test_embed_where_it_makes_sense():
    x, y = blobs()
    linear = bootstrap(LogisticRegression(), x, y, draws=3, classes=3, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(linear.embed(x), x.astype(np.float32))
    with pytest.raises(InputError, match=r"no embedding.*use a score from draws"):
        members([GaussianNB().fit(x, y)] * 2, 3).embed(x)
    with pytest.raises(InputError, match="a forest has no embedding: use a score from draws"):
        Forest(RandomForestClassifier(2).fit(x, y), 3).embed(x)


def test_errors_of_ensembles():
    x, y = blobs()
    fitted, rng = GaussianNB().fit(x, y), np.random.default_rng(0)
    with pytest.raises(InputError, match="without estimators_: call fit first; got Bagging"):
        Forest(BaggingClassifier(), 3)
    with pytest.raises(InputError, match=r"random forest, extra trees or bagging.*got AdaBoost"):
        Forest(AdaBoostClassifier(n_estimators=3).fit(x, y), 3)
    with pytest.raises(InputError, match="at least 2, got 1"):
        Forest(RandomForestClassifier(1).fit(x, y), 3)
    with pytest.raises(InputError, match="at least 2, got 1"):
        members([fitted], 3)
    for one in (fitted, RandomForestClassifier(2).fit(x, y + 4)):  # of which the trees know 0 to 2
        with pytest.raises(InputError, match=f"got one, a {type(one).__name__}: .* take Forest"):
            members(one, 7)
    with pytest.raises(InputError, match="GaussianNB has no classes_: call fit first"):
        members([fitted, GaussianNB()], 3)
    with pytest.raises(InputError, match="Pipeline has no classes_: call fit first"):
        members([make_pipeline(StandardScaler(), GaussianNB())] * 2, 3)
    for ridge in (members, lambda m, c: Forest(BaggingClassifier(m[0], 2).fit(x, y), c)):
        with pytest.raises(InputError, match="RidgeClassifier has no predict_proba: wrap"):
            ridge([RidgeClassifier().fit(x, y)] * 2, 3)
    with pytest.raises(InputError, match="Linear has no predict_proba: wrap it in ensemble"):
        members([torch.nn.Linear(4, 3)] * 2, 3)
    with pytest.raises(InputError, match="the classes 0, 1, 2, expected integers from 0 to 1"):
        members([fitted, fitted], 2)
    for classes, message in ((3.0, "a whole number, got 3.0"), (0, "at least 1, got 0")):
        with pytest.raises(InputError, match=f"classes must be {message}"):
            members([fitted, fitted], classes)
    with pytest.raises(InputError, match="expected integers from 0 to 2"):
        members([GaussianNB().fit(x, np.array(list("abc"))[y])] * 2, 3)
    with pytest.raises(InputError, match="expected integers from 0 to 2"):
        Forest(RandomForestClassifier(2).fit(x, np.stack([y, y], 1)), 3)
    with pytest.raises(ValueError, match="features"):
        members([fitted, fitted], 3).predict(np.zeros((2, 9)))
    with pytest.raises(InputError, match="at least 2, got 1"):
        bootstrap(GaussianNB(), x, y, draws=1, classes=3, rng=rng)
    with pytest.raises(InputError, match="expected integers from 0 to 2"):
        bootstrap(GaussianNB(), x, y - 1, classes=3, rng=rng)
    with pytest.raises(InputError, match="no predict_proba"):
        bootstrap(RidgeClassifier(), x, y, rng=rng)


def test_errors_of_laplace():
    x, y = blobs()
    model = LogisticRegression().fit(x, y)
    with pytest.raises(InputError, match="at least 2, got 0"):
        laplace_logistic(model, x, y, draws=0)
    with pytest.raises(InputError, match="seed must be a whole number, at least 0, got None"):
        laplace_logistic(model, x, y, seed=None)
    with pytest.raises(InputError, match="LogisticRegression has no classes_: call fit first"):
        laplace_logistic(LogisticRegression(), x, y)
    with pytest.raises(InputError, match="expected integers from 0 to 1"):
        laplace_logistic(model, x, y, classes=2)
    for labels in (y % 2, y[1:]):
        with pytest.raises(InputError, match="pass the data it was fitted to"):
            laplace_logistic(model, x, labels)
    two = y < 2
    for other in (
        GaussianNB(),
        LogisticRegression(solver="liblinear"),
        LogisticRegression(C=np.inf),
        LogisticRegression(solver="saga", l1_ratio=1, max_iter=5000),
        LogisticRegressionCV(Cs=2, l1_ratios=(0,), use_legacy_attributes=False, scoring="accuracy"),
    ):
        other.fit(x[two], y[two])
        with pytest.raises(InputError, match="an L2 penalty, a finite C and lbfgs, or use boot"):
            laplace_logistic(other, x[two], y[two])
    apart = np.array([[-1e3], [-1e3], [1e3], [1e3]])
    saturated = LogisticRegression(C=1e6).fit(apart, [0, 0, 1, 1])
    with pytest.raises(InputError, match="fit it with a smaller C"):
        laplace_logistic(saturated, apart, [0, 0, 1, 1])


def test_only_gaussian_weights_are_drawn_anew(monkeypatch):
    x, y = blobs()
    posterior = laplace_logistic(logistic().fit(x, y), x, y, 4)
    assert more_draws(posterior, 9).predict(x).shape[1] == 9
    assert more_draws(posterior, 3) is posterior
    refits = bootstrap(logistic(), x, y, 4, rng=np.random.default_rng(0))
    assert more_draws(refits, 9) is refits
    monkeypatch.setattr(posteriors.sklearn, "_MOST", 1e-4)
    posterior = laplace_logistic(logistic().fit(x, y), x, y, 4)
    t = len(more_draws(posterior, 10**9).models)
    assert 100 < t == len(laplace_logistic(logistic().fit(x, y), x, y, t).models)
    with pytest.raises(InputError, match=f"{t + 1} draws"):
        laplace_logistic(logistic().fit(x, y), x, y, t + 1)
    monkeypatch.undo()
    huge = more_draws(posterior, 3000).predict(x).mean(1)
    np.testing.assert_allclose(huge, more_draws(posterior, 4000).predict(x).mean(1), atol=0.03)
