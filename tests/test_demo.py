import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from foresee import InputError, demo
from foresee.posteriors import Forest


def test_digits_with_a_dark_seed_set():
    task = demo.digits(shift=True, seed=0)
    assert len(task.seed) == demo.N_SEED
    rest = np.concatenate([task.pool, task.val, task.test])
    assert task.seed.mean(1).max() <= rest.mean(1).min()
    assert len(rest) + len(task.seed) == 1797
    plain = demo.digits(shift=False, seed=0)
    assert plain.seed.mean() > 1.2 * task.seed.mean()


def test_the_oracle_knows_the_labels_of_the_pool():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    task = demo.digits(shift=False, seed=1)
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    picks = np.array([5, 3, 100])
    assert [known[task.pool[i].tobytes()] for i in picks] == task.oracle(picks).tolist()


def test_a_small_run_and_its_picture(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "SEEDS", 2)
    monkeypatch.setattr(demo, "ROUNDS", 2)
    ticks = []
    trials = demo.run(lambda: ticks.append(None))
    assert len(trials) == len(ticks) == demo.n_trials() == 12
    first = {(t.shift, t.seed): set() for t in trials}
    for trial in trials:
        sizes = [r.n_labelled for r in trial.rounds]
        assert sizes == [20, 30, 40]
        picks = [p for r in trial.rounds for p in r.picks]
        assert len(set(picks)) == 20
        assert 0 < trial.auc < 1
        first[trial.shift, trial.seed].add(trial.rounds[0].accuracy)
    assert all(len(accuracies) == 1 for accuracies in first.values())  # trials are paired
    again = demo.learn(demo.digits(False, 0), demo.METHODS["MELL"], 0)
    assert [r.picks for r in again] == [r.picks for r in trials[0].rounds]
    demo.plot(trials, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_forest_aligns_classes_it_never_saw():
    task = demo.digits(shift=False, seed=0)
    keep = np.isin(task.seed_labels, (2, 5, 7))
    model = RandomForestClassifier(7, random_state=0).fit(task.seed[keep], task.seed_labels[keep])
    forest = Forest(model, 10)
    probs = forest.predict(task.pool[:20])
    assert probs.shape == (20, 7, 10)
    np.testing.assert_allclose(probs.sum(2), 1, atol=1e-6)
    assert probs[..., [0, 1, 3, 4, 6, 8, 9]].max() == 0
    np.testing.assert_allclose(probs.mean(1), forest.point(task.pool[:20]), atol=1e-6)
    assert (model.predict(task.pool[:20]) == forest.point(task.pool[:20]).argmax(1)).all()


def test_forest_errors():
    with pytest.raises(InputError, match="without estimators_: call fit first"):
        Forest(RandomForestClassifier(), 10)
    with pytest.raises(InputError, match="LogisticRegression"):
        Forest(LogisticRegression(), 2)
    model = RandomForestClassifier(3).fit([[0.0], [1.0]], [1, 3])
    with pytest.raises(InputError, match="expected integers from 0 to 2"):
        Forest(model, 3)
    with pytest.raises(InputError, match="a forest has no embedding"):
        Forest(model, 4).embed(np.zeros((1, 1)))
