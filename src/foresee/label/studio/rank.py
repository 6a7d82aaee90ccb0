"""The process that fits, for Label Studio: of the labels there are it makes an order of the rest.

    python -m foresee.label.studio.rank

It is the page's process (`foresee.label.work`) with another question. Each answer is a function of
what is asked alone, so that whatever happened before, the same labels give the same order.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foresee.label import work
from foresee.label.items import Spec
from foresee.learner.pool import subset
from foresee.reading import sources, tables
from foresee.reading.sources import Source
from foresee.seeding import generator

# Tasks that are scored for one order, drawn anew for each: fewer images, as draws of these cost.
IMAGES, TEXTS = 2000, 20_000


def ranker(spec: Spec) -> work.Answer:
    """A function that answers what is asked, of the pool in the backend's folder.

    It is asked with labels by id (``told``), ids to leave out (``skip``), and the ``size`` of the
    batch that is chosen as a whole. It returns the ``queue``, triples of an id, the likeliest label
    and its probability, and the ``promise`` of all labels that remain; before labels of two classes
    are told, labels, probabilities and promise are None.
    """
    import torch

    from foresee.learner import Frozen

    torch.set_num_threads(1)
    pool = _pool(spec)
    chosen = work.model_of(spec, pool.inputs)
    if isinstance(chosen["model"], Frozen):  # a learner lives for one answer; features need not
        cache = Path(spec.pool).parent / "features"
        chosen["model"] = replace(chosen["model"], cache=cache)
    target = None if spec.target is None else _target(spec)
    return partial(_rank, spec, chosen, pool, target)


def _rank(
    spec: Spec, chosen: dict[str, Any], pool: Source, target: Any, asked: dict[str, Any]
) -> dict[str, Any]:
    from foresee.learner import SKIP, Learner

    is_image = len(getattr(pool.inputs, "shape", ())) == 4
    told, skip = asked["told"], set(asked["skip"])
    learner = Learner(pool=pool, target=target, seed=spec.seed, **chosen)
    learner.tell([*told, *skip], [*told.values(), *[SKIP] * len(skip)])
    left = [name for name in pool.ids if name not in told and name not in skip]
    if not left:
        return {"queue": [], "promise": None}
    warm = len(set(told.values())) > 1
    learner.candidates, learner.targets = work.looked_at(pool.inputs, warm)
    first = learner.propose(min(asked["size"], len(left))).ids
    rest = [name for name in left if name not in set(first)]
    if not warm:
        order = generator(spec.seed, "rest").permutation(len(rest)).tolist()
        queue = [(name, None, None) for name in (*first, *(rest[i] for i in order))]
        return {"queue": queue, "promise": None}
    rng = generator(spec.seed, len(told), "rest")
    scored = subset(np.arange(len(rest)), IMAGES if is_image else TEXTS, rng)
    order = np.argsort(-learner.worth([rest[i] for i in scored]), kind="stable")
    others = np.setdiff1d(np.arange(len(rest)), scored)
    sure = learner.proba_of([rest[i] for i in others]).max(1) if len(others) else []
    places = [*scored[order].tolist(), *others[np.argsort(sure, kind="stable")].tolist()]
    names = [*first, *(rest[i] for i in places)]
    probs, classes = learner.proba_of(names), learner.classes_
    labels = [classes[i] for i in probs.argmax(1).tolist()]
    shares = probs.max(1).astype(np.float64).round(4).tolist()
    queue = list(zip(names, labels, shares, strict=True))
    return {"queue": queue, "promise": learner.promise()}


def _pool(spec: Spec) -> Source:
    if Path(spec.pool).is_dir():
        return spec.read(spec.pool)
    texts = json.loads(Path(spec.pool).read_bytes())
    return Source(list(texts.values()), list(texts))


def _target(spec: Spec) -> Any:
    """Images of a folder, or texts of a table: of the column of the tasks, or the only one."""
    assert spec.target is not None
    path = Path(spec.target)
    if path.is_dir():
        return spec.read(spec.target)
    column = (spec.inputs or ("",))[0]
    there = tables.names(path, ()) or ()
    return sources.read(path, inputs=column if column in there else None)


if __name__ == "__main__":
    work.main(ranker)
