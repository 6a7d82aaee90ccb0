"""The law of posteriors, run on all of them; and that it can be broken."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from foresee.demo import digits
from foresee.posteriors import Forest
from foresee.testing import LinearPosterior, check_sampler, random_view
from uncertainty import SAMPLERS, measure

VIEW = random_view(np.random.default_rng(0))


def test_linear_posterior():
    check_sampler(lambda: VIEW.posterior, VIEW.pool)


def test_forest():
    task = digits(shift=False, seed=0)
    model = RandomForestClassifier(9, random_state=0).fit(task.seed, task.seed_labels)
    check_sampler(lambda: Forest(model, 10), task.pool[:20])


class FreshMasks(LinearPosterior):
    """What most MC-dropout code does: other weights at every call."""

    def predict(self, inputs):
        noise = np.random.default_rng().standard_normal(self.weights.shape)
        return LinearPosterior(self.weights + noise).predict(inputs)


class MasksByPosition(LinearPosterior):
    """Weights that depend on the place in the batch."""

    def predict(self, inputs):
        probs = super().predict(inputs)
        return np.stack([np.roll(p, i, axis=0) for i, p in enumerate(probs)])


class OneDraw(LinearPosterior):
    def predict(self, inputs):
        return super().predict(inputs)[:, :1]


class Unanimous(LinearPosterior):
    def predict(self, inputs):
        probs = super().predict(inputs)
        return np.repeat(probs[:, :1], probs.shape[1], axis=1)


@pytest.mark.parametrize(
    ("posterior", "law"),
    [
        (FreshMasks, "two calls give the same draws"),
        (MasksByPosition, "batches of 1 give the same draws"),
        (OneDraw, "at least two draws"),
        (Unanimous, "draws disagree"),
    ],
)
def test_broken_samplers_are_caught(posterior, law):
    with pytest.raises(AssertionError, match=law):
        check_sampler(lambda: posterior(VIEW.posterior.weights), VIEW.pool)


@pytest.mark.filterwarnings("ignore:By default `link_approx`")  # laplace-torch's own
@pytest.mark.parametrize("name", SAMPLERS)
def test_uncertainty_is_sane(name):
    sanity = measure(SAMPLERS[name]())
    assert sanity.mean >= sanity.point - 2 * sanity.error
    assert sanity.unseen > 1.2 * sanity.known  # it never saw an 8 or a 9
