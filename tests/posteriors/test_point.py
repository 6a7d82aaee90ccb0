"""A model without draws is enough for BADGE, Coreset and Entropy."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from foresee import Badge, Coreset, InputError, TopK, View, entropy, mell
from foresee.networks import mlp
from foresee.posteriors import point

STRATEGIES = {"badge": Badge(), "coreset": Coreset(), "entropy": TopK(entropy, point=True)}


def data(n=40):
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    return (rng.standard_normal((n, 4)) + labels[:, None]).astype(np.float32), labels


def fitted():
    x, y = data()
    names = np.array(["cat", "dog", "emu"])[y]
    return {
        "network": mlp(4, 3),
        "network of probabilities": nn.Sequential(mlp(4, 3), nn.Softmax(-1)),
        "logistic": LogisticRegression().fit(x, y),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y),
        "forest": RandomForestClassifier(5, random_state=0).fit(x, names),
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", fitted())
def test_strategies_that_need_no_draws(kind, strategy):
    x, y = data()
    posterior = point(fitted()[kind], outputs="probs" if "prob" in kind else "logits")
    view = View(posterior, x[:4], y[:4], pool=x[4:], val=x)
    picks = STRATEGIES[strategy](view, 5, np.random.default_rng(0))
    assert len(set(picks.tolist())) == 5
    assert 0 <= picks.min() < picks.max() < 36


@pytest.mark.parametrize("kind", fitted())
def test_no_draws(kind):
    x, y = data()
    view = View(point(fitted()[kind], outputs="probs"), x, y, pool=x, val=x)
    with pytest.raises(InputError, match=r"has no draws.*use mc_dropout.*Forest.*point=True"):
        TopK(mell)(view, 5, np.random.default_rng(0))


def test_a_network_says_what_it_says_in_eval_mode():
    x, model = torch.from_numpy(data()[0]), mlp(4, 3).train()
    posterior = point(model, batch=7)
    with torch.no_grad():
        model.eval()
        expected, features = model(x).softmax(-1), model[:-1](x)
        model.train()
    torch.testing.assert_close(posterior.point(x), expected)
    torch.testing.assert_close(posterior.embed(x), features)
    assert all(module.training for module in model.modules())
    with pytest.raises(InputError, match="returned 3 classes, expected 4"):
        point(model, classes=4).point(x)


def test_a_classifier_says_what_scikit_learn_says():
    x, _ = data()
    models = fitted()
    for kind in ("logistic", "pipeline", "forest"):
        np.testing.assert_allclose(
            point(models[kind]).point(x), models[kind].predict_proba(x), atol=1e-6
        )
    np.testing.assert_array_equal(point(models["forest"]).embed(x), x)
    np.testing.assert_allclose(
        point(models["pipeline"]).embed(x), models["pipeline"][0].transform(x), atol=1e-6
    )
    wide = point(models["logistic"], classes=5).point(x)
    np.testing.assert_allclose(wide[:, :3], models["logistic"].predict_proba(x), atol=1e-6)
    assert wide[:, 3:].max() == 0
    thin = sparse.csr_matrix(x)
    np.testing.assert_allclose(point(models["logistic"]).point(thin), wide[:, :3], atol=1e-6)
    np.testing.assert_array_equal(point(models["logistic"]).embed(thin), x)


def test_texts():
    texts, y = ["a b", "b c", "c a", "a a", "c c"], [0, 1, 0, 1, 1]
    words = TfidfVectorizer(token_pattern=r"\w")
    model = make_pipeline(words, LogisticRegression()).fit(texts, y)
    view = View(point(model), texts[:2], y[:2], pool=texts[2:], val=texts)
    for strategy in STRATEGIES.values():
        assert len(strategy(view, 2, np.random.default_rng(0))) == 2


def test_what_is_no_classifier():
    x, y = data()
    for model, message in (
        (RidgeClassifier().fit(x, y), "RidgeClassifier has no predict_proba: wrap"),
        (LogisticRegression(), "LogisticRegression has no classes_: call fit first"),
        ("model", "str has no predict_proba"),
    ):
        with pytest.raises(InputError, match=message):
            point(model)
