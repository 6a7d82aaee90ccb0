"""The process that fits: it follows the page's events line by line, and proposes what to ask next.

    python -m foresee.label.work

It reads lines of JSON, the first of which says what to label (`items.Spec`), and answers each of
the others in one line. It is nice to the page and to everybody else: lowest priority, one thread.
"""

import json
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from foresee.errors import DrawsWarning, InputError
from foresee.label import extract
from foresee.label.items import Spec
from foresee.learner.cold import WORD

# Rows that are looked at before there is a model: few, as somebody waits for the first item.
COLD = 256
# What a batch is chosen from: fewer images, as those that are new must be decoded first.
IMAGES, CANDIDATES = 1000, 4000
_TARGETS = 500
_WHY = 4  # target items that explain an item

# From what is asked, a line, to what is answered in another.
Answer: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def main(make: Callable[[Spec], Answer]) -> None:
    """Serve whoever started this process, until they are gone; ``make`` makes what answers."""
    os.nice(19)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is no answer
    warnings.simplefilter("ignore", DrawsWarning)  # nobody at the page could do anything about it
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=[lines], daemon=True).start()
    spec = Spec(**json.loads(lines.get()))
    try:
        answer = make(spec)
    except Exception as error:  # whatever a stranger's model or data do, labelling goes on
        answer = partial(_refuse, error)
    while True:
        asked = json.loads(lines.get())
        try:
            found = answer(asked)
        except Exception as error:
            found = _refuse(error, asked)
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def _refuse(error: Exception, asked: dict[str, Any]) -> dict[str, Any]:
    return {"error": str(error) if isinstance(error, InputError) else repr(error)}


def _listen(lines: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # in the middle of a fit too: nobody waits for it


def worker(spec: Spec) -> Answer:
    """A function that answers what is asked, of a learner that follows the page's.

    It is told ``events`` that are new and the ``size`` of the next batch, and returns the ``batch``
    as the fields of `foresee.Batch`; for each of its ids that is not held out ``why``, the target
    ids it tells most about, and ``guess``, its likeliest label; ``card`` and ``promise``; and how
    many ``seconds`` it took.
    """
    import torch

    from foresee.learner import Learner

    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):  # the process of the page says the same
        pool = spec.read(spec.pool)
        target = None if spec.target is None else spec.read(spec.target)
    learner = Learner(
        pool=pool,
        target=target,
        seed=spec.seed,
        holdout=spec.holdout,
        **model_of(spec, pool.inputs),
    )
    return partial(_answer, learner, pool.inputs)


def _answer(learner: Any, inputs: Any, asked: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    learner.follow(asked["events"])
    warm = len(learner.classes_) > 1
    learner.candidates, learner.targets = looked_at(inputs, warm)
    batch = learner.propose(asked["size"])
    fields = ("ids", "scores", "promise", "held", "size", "seen")
    found: dict[str, Any] = {"batch": {name: getattr(batch, name) for name in fields}}
    found |= {"why": [], "guess": [], "card": None, "promise": None, "trained": 0}
    if warm:
        picked = [name for name in batch.ids if name not in batch.held]
        card = learner.card()
        found["promise"], found["trained"] = learner.promise(), card.trained
        if card.n:
            found["card"] = [card.accuracy, card.low, card.high, card.n]
        if picked:
            told = learner.why(picked, _WHY)
            found["why"] = [told[name] for name in picked]
            likeliest, classes = learner.proba_of(picked).argmax(1), learner.classes_
            found["guess"] = [str(classes[place]) for place in likeliest]
    found["seconds"] = time.perf_counter() - start
    return found


def looked_at(inputs: Any, warm: bool) -> tuple[int, int]:
    """Of how many points of the pool, and of the target, a batch is chosen."""
    is_image = len(getattr(inputs, "shape", ())) == 4
    return (IMAGES if is_image else CANDIDATES, _TARGETS) if warm else (COLD, COLD)


def model_of(spec: Spec, inputs: Any) -> dict[str, Any]:
    """The arguments ``model`` and ``recipe`` of a `foresee.Learner` that suits the inputs.

    >>> [name for name, _ in model_of(Spec("reviews.csv"), ["good", "bad"])["model"].steps]
    ['tfidfvectorizer', 'logisticregression']
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from foresee import networks
    from foresee.recipe import Recipe

    recipe = Recipe(iterations=300, batch=32, optimiser="adam", learning_rate=1e-3)
    if spec.model is not None and (extract.package(spec.model) or Path(spec.model).is_dir()):
        from foresee.learner import Frozen

        features = extract.extractor(spec.model)
        return {"model": Frozen(features, LogisticRegression(max_iter=1000))}
    if spec.model is not None:
        return _own(spec.model, recipe)
    shape: tuple[int, ...] = getattr(inputs, "shape", ())
    if len(shape) == 4:
        build = partial(networks.slim_cnn, image_size=shape[2], channels=shape[1])
        return {"model": build, "recipe": recipe}
    if len(shape) < 2:
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
        return {"model": make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))}
    return {"model": RandomForestClassifier(200)}


def _own(name: str, recipe: Any) -> dict[str, Any]:
    """What file.py:function brings: a sampler, an estimator, or a network to be trained."""
    import inspect

    from foresee.lab.methods import load

    found = load(name, "model")
    fits = hasattr(found, "fit") and not isinstance(found, type)
    if fits or {"inputs", "labels"} <= set(inspect.signature(found).parameters):
        return {"model": found}
    return {"model": found, "recipe": recipe}


if __name__ == "__main__":
    main(worker)
