"""Both columns of the table for those who come from elsewhere run, line by line."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import foresee
from foresee import Learner, posteriors
from foresee.networks import mlp
from foresee.testing import random_view

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of the packages' own
]
PAGE = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
X, LABELS = load_digits(return_X_y=True)
X = (X[:120] / 16).astype(np.float32)
LABELS = LABELS[:120]


def table():
    """(library, what it is called there, what it is called here), each a list of code."""
    library = ""
    for line in PAGE.partition("## Coming")[2].splitlines():
        if line.startswith("| ") and "`" in line:
            first, *columns = (cell.strip() for cell in line.strip("|").split(" | "))
            library = first.strip() or library
            yield library, *(re.findall("`([^`]+)`", column) for column in columns)


def draws(n):
    probs = torch.rand(n, 12, 3, generator=torch.Generator().manual_seed(n)).double()
    return (probs / probs.sum(2, keepdim=True)).numpy()  # [n t c]


def forest():
    return RandomForestClassifier(10, random_state=0)


def of_baal():
    from baal.active import ActiveLearningDataset, heuristics
    from baal.active.active_loop import ActiveLearningLoop
    from baal.active.heuristics.stochastics import PowerSampling
    from baal.bayesian.dropout import patch_module
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    net, data = mlp(64, 10), list(zip(torch.from_numpy(X), LABELS.tolist(), strict=True))
    dataset = ActiveLearningDataset(data)
    dataset.label(list(range(10)))
    arguments = TrainingArgs(workers=0, use_cuda=False)
    loop = ActiveLearningLoop(
        dataset,
        ModelWrapper(patch_module(net, inplace=False), arguments).predict_on_dataset,
        heuristics.BALD(),
        query_size=3,
        iterations=4,
    )
    return {
        **vars(heuristics),
        **locals(),
        "PowerSampling": PowerSampling,
        "probs": draws(30).swapaxes(1, 2),
        "target": draws(9).swapaxes(1, 2),
        "i": 5,
        "y": 1,
    }


def of_modal():
    import modAL
    from modAL.uncertainty import uncertainty_sampling

    def expected_error_reduction(learner, X):
        from modAL.expected_error import expected_error_reduction as theirs

        return theirs(learner, X)

    def learner_of(model):
        return modAL.ActiveLearner(model, uncertainty_sampling, X[:20], LABELS[:20])

    a, b, c = (learner_of(forest()) for _ in range(3))
    learner, model, X_pool = learner_of(LogisticRegression()), forest(), X[30:]
    return {**vars(modAL), **locals(), "X": X[:20], "y": LABELS[:20]}


def of_skactiveml():
    import skactiveml.pool
    from skactiveml.classifier import SklearnClassifier

    clf = SklearnClassifier(LogisticRegression(), classes=range(10))
    y = np.full(len(X), np.nan)
    y[:20] = LABELS[:20]
    given = {"X": X, "y": y, "clf": clf, "indices": [30], "labels": [1], "target": X[90:]}
    return {**vars(skactiveml.pool), **given}


def of_small_text():
    import small_text

    data = small_text.SklearnDataset(X, LABELS)
    factory = small_text.SklearnClassifierFactory(LogisticRegression(), 10)
    strategy = small_text.PredictionEntropy()
    learner = small_text.PoolBasedActiveLearner(factory, strategy, data)
    given = {"data": data, "factory": factory, "strategy": strategy, "learner": learner}
    return {**vars(small_text), **given, "indices": np.arange(30), "y": LABELS[:30]}


# What a line leaves out, or calls by another name than the object that stands for it.
THEIRS = {
    "baal": {
        "ModelWrapper(net, …)": "ModelWrapper(net, arguments)",
        "ActiveLearningDataset.": "dataset.",
        "ActiveLearningLoop.": "loop.",
    },
    "modAL": {},
    "scikit-activeml": {"query(…, X_eval": "query(X[:24], y[:24], clf, X_eval"},
    "small-text": {
        "initialize_data(": "learner.initialize_data(",
        "query(num": "learner.query(num",
        "update(y)": "learner.update(LABELS[learner.indices_queried])",
        "save(file)": "save(str(file))",
    },
}
BROKEN = {  # and the page says so: when this fails, mend it
    "learner.teach(X, y)": (TypeError, "force_all_finite"),
    "expected_error_reduction(learner, X)": (AttributeError, "np.float"),
}
SPACES = {
    "baal": of_baal,
    "modAL": of_modal,
    "scikit-activeml": of_skactiveml,
    "small-text": of_small_text,
}


@pytest.mark.parametrize("library", SPACES)
def test_their_calls_run(library, tmp_path):
    names = {**SPACES[library](), "file": tmp_path / "kept", "LABELS": LABELS}
    lines = [line for line in table() if line[0] == library]
    assert len(lines) > 4
    for _, theirs, _ in lines:
        for code in theirs:
            for short, whole in THEIRS[library].items():
                code = code.replace(short, whole)
            if code in BROKEN:
                error, said = BROKEN[code]
                assert f"`{said}`" in PAGE
                with pytest.raises(error, match=said.replace(".", r"\.")):
                    exec(code, names)
            else:
                exec(code, names)


def test_our_calls_run(tmp_path):
    given = draws(30)
    learner = Learner(forest(), X, X[90:], seed=0)
    learner.tell(range(20), LABELS[:20])
    fitted = [forest().fit(X, LABELS) for _ in range(3)]
    names = {
        **{name: getattr(foresee, name) for name in foresee.__all__},
        **vars(posteriors),
        **SimpleNamespace(net=mlp(64, 10), data=X, probs=given.swapaxes(1, 2)).__dict__,
        **{"pool": given, "val": draws(9), "learner": learner, "model": forest(), "clf": forest()},
        **dict(zip("abc", fitted, strict=True)),
        **{"ids": [40, 41], "labels": [1, 2], "target": draws(9)},
    }
    view = random_view(np.random.default_rng(0), n=20)
    ran = 0
    for _, _, ours in table():
        for code in ours:
            if re.match(r"draws=\d+$", code):
                continue  # an argument
            rows = {"pool": X, "target": X[90:]} if code.startswith("Learner(") else {}
            if "file" in code:
                code = code.replace("…", "model, pool")
            found = eval(code, {**names, **rows, "file": tmp_path / f"{ran}.state"})
            if callable(found) and not isinstance(found, Learner):
                rng = np.random.default_rng(0)
                assert len(found(view, 2, rng)) == 2, code
            ran += 1
    assert ran > 25
