"""Hugging Face's own classifiers, from a configuration: nothing is downloaded."""

import copy

import numpy as np
import pytest
import torch

from foresee import Badge, Coreset, InputError, TopK, View, entropy, mell
from foresee.posteriors import ensemble, mc_dropout, point
from foresee.testing import check_sampler

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def bert(seed=0, **settings):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=50, intermediate_size=32, max_position_embeddings=16, num_labels=3,
        **sizes | settings,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight)  # its own are too small to tell draws apart
    return model


def encoded(n=12):
    rng = torch.Generator().manual_seed(0)
    mask = (torch.arange(8) < torch.randint(2, 9, (n, 1), generator=rng)).long()
    ids = torch.randint(50, (n, 8), generator=rng)
    return transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})


def truth(posterior, columns):
    """Draws through forward hooks with the posterior's masks [n t c]."""
    model, draws = copy.deepcopy(posterior.model).eval(), []
    for k in range(posterior.draws):
        hooks = [
            model.get_submodule(name).register_forward_hook(
                lambda layer, x, _, kept=kept[k]: x[0] * kept / (1 - layer.p)
            )
            for name, kept in posterior.masks().items()
        ]
        with torch.no_grad():
            draws.append(model(**columns).logits.softmax(-1))
        for hook in hooks:
            hook.remove()
    return torch.stack(draws, 1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_dropout_is_refused_with_the_setting_to_change(attention):
    model = bert(attn_implementation=attention)
    with pytest.raises(InputError, match=r"load the model with attention_probs_dropout_prob=0\.0"):
        mc_dropout(model, 4).predict(encoded())
    distil = transformers.DistilBertConfig(
        vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=32, attn_implementation=attention
    )
    with pytest.raises(InputError, match=r"load the model with attention_dropout=0\.0"):
        mc_dropout(transformers.DistilBertForSequenceClassification(distil), 4).predict(encoded())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_draws_are_thinned_networks(attention):
    model = bert(attention_probs_dropout_prob=0.0, attn_implementation=attention)
    columns = encoded()
    posterior = mc_dropout(model, 4, batch=5)
    probs = posterior.predict(columns)
    assert len(posterior.masks()) == 6  # embeddings, two for each layer, the head
    torch.testing.assert_close(probs, truth(posterior, columns))
    assert probs.std(1).max() > 1e-2
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(**columns).logits.softmax(-1)
    torch.testing.assert_close(posterior.point(columns), expected)
    assert posterior.embed(columns).shape == (12, 16)
    rows = [{key: value[i].tolist() for key, value in columns.items()} for i in range(12)]
    torch.testing.assert_close(posterior.predict(rows), probs)
    view = View(posterior, rows[:2], [0, 1], pool=columns, val=rows)
    check_sampler(lambda: mc_dropout(model, 4), view.pool, model=model)


def test_strategies_run_on_what_a_tokeniser_returns():
    columns, rng = encoded(), torch.Generator().manual_seed(1)
    models = [bert(0), bert(1)]
    for posterior, strategies in (
        (ensemble(models), [TopK(mell)]),
        (point(models[0]), [Badge(), Coreset(), TopK(entropy, point=True)]),
    ):
        view = View(posterior, columns, torch.randint(3, (12,), generator=rng), columns, columns)
        for strategy in strategies:
            assert len(set(strategy(view, 4, np.random.default_rng(0)).tolist())) == 4


@pytest.mark.filterwarnings("ignore")  # of the library's own dependencies
def test_rows_of_datasets():
    datasets = pytest.importorskip("datasets")
    columns = encoded()
    table = {key: value.tolist() for key, value in columns.items()}
    data = datasets.Dataset.from_dict(table | {"text": ["words"] * 12, "label": [0] * 12})
    posterior = ensemble([bert(0), bert(1)])
    for rows in (data, data.with_format("torch")):
        torch.testing.assert_close(posterior.predict(rows), posterior.predict(columns))
