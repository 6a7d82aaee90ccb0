"""The smallest budget at which networks leave their plateau, on the first labels and on the last.

Sixteen networks are trained side by side for each budget of a ladder, from the random numbers that
trials of seeds 0 to 15 have in their first round and, after picks of Random, in their last.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresee import files, networks
from foresee.lab import data, methods, runner
from foresee.lab.experiment import Experiment
from foresee.seeding import generator
from foresee.training import Training, fit_all

SEEDS, ENOUGH = 16, 15


def search(ladder: Sequence[Experiment], place: runner.Place, kept: Path) -> float | None:
    """Go up a ladder of experiments that differ in their budget until one is enough, which returns.

    What ``kept`` has of it, as JSON, is not trained again; every outcome is added at once.
    """
    found: list[dict[str, Any]] = json.loads(kept.read_text())["found"] if kept.exists() else []
    images = None
    for setup in ladder:
        here: list[dict[str, Any]] = []
        for number in (0, setup.rounds):
            known = [f for f in found if (f["budget"], f["round"]) == (setup.budget, number)]
            if not known:
                images = images or data.load(setup.dataset, place.data)
                known = [trained(setup, images, number, place.device)]
                found += known
            here += known
            shown = {key: value for key, value in here[-1].items() if key != "train_accuracy"}
            print(shown, flush=True)
            enough = all(f["left"] >= ENOUGH for f in here)
            chosen = setup.budget if enough and number else None
            outcome = {"experiment": setup.name, "network": setup.network, "seeds": SEEDS}
            outcome |= {"precision": setup.recipe.precision, "enough": ENOUGH, "chosen": chosen}
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.write(kept, (json.dumps({**outcome, "found": found}, indent=1) + "\n").encode())
            if not enough:
                break  # the last round cannot mend the first
        else:
            print(f"budget {setup.budget} is enough")
            return setup.budget
    print("no budget of the ladder is enough: make it longer")
    return None


def trained(setup: Experiment, images: data.Images, number: int, device: str) -> dict[str, Any]:
    """Train the networks of a round, and tell how many left their plateau at once."""
    pixels = networks.statistics(images.pixels)
    method = methods.method("Random", setup, *pixels, torch.device(device).type)
    requests = [
        next(method.sampler.steps(*_labelled(setup, images, seed, number, device)))
        for seed in range(SEEDS)
    ]
    start = time.perf_counter()
    outcomes = fit_all(requests)
    seconds = time.perf_counter() - start
    for outcome in outcomes:
        if not isinstance(outcome, Training):
            raise outcome
    return {
        "budget": setup.budget,
        "iterations": setup.recipe.iterations,
        "round": number,
        "labels": setup.n_seed + number * setup.n_query,
        "left": sum(not outcome.stuck for outcome in outcomes),
        "of": SEEDS,
        "seconds": round(seconds, 1),
        "train_accuracy": [round(outcome.accuracy, 4) for outcome in outcomes],
    }


def _labelled(
    setup: Experiment, images: data.Images, seed: int, number: int, device: str
) -> tuple[Tensor, Any, np.random.Generator]:
    """What Random has labelled at a round, and the round's generator."""
    task = data.task(images, data.split(images, setup, seed))
    picks = generator(seed, "picks").permutation(len(task.pool))[: number * setup.n_query]
    inputs = torch.cat([task.seed, task.pool[picks]]).to(device)
    labels = np.concatenate([task.seed_labels, task.oracle(picks)])
    return inputs, labels, generator(seed, number, "train")
