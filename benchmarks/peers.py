"""foresee beside other libraries, in one run: seconds, memory, and whether the picks agree.

    python benchmarks/peers.py [--json benchmarks/peers.json] [--only BALD,BADGE] [--limit 60]
    python benchmarks/peers.py --table benchmarks/peers.json   # the table of docs/speed.md, no more

Nothing is installed: who is not there is named and left out (`pip install '.[peers]'`, or
docs/interop.md where their own wishes stand in the way). Every measurement has a process of its
own, with as many threads as all others; inputs are brought into the layout that each asks for, and
a small call is made, before the clock starts. Sides take turns, and the best time of each counts.
MiB is the peak above what the process held with its inputs. Who needs longer than the limit, or
more memory, gets a smaller task, and so do we.

epig-style: H(Y_i) + H(Y_j) − H(Y_i, Y_j) in float32 by torch, as the equation stands, in the chunks
that suit it best. BatchBALD: as many label vectors for all; the nats that a batch tells about θ are
estimated apart. BADGE is random: the gradients of the picks are compared. Dropout: VGG16, with a
trunk that runs once for all draws, in baal by its cache, in batchbald_redux as we split it.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from batches import Embedded, predictions, view_of
from foresee import Badge, BatchBALD, Coreset, RetrainingEER, bald, mell
from foresee.kernels import reference
from foresee.networks import vgg16
from foresee.posteriors import mc_dropout
from foresee.types import View
from scoring import by_chunks, peak_memory, plain_mell, seconds

THREADS, MEMORY = 2, 12 << 30
T, C, TARGETS, LABELLED = 100, 10, 100, 500
OURS = "foresee"
Row = dict[str, Any]
Work = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    """Points to choose from, and how many are chosen."""

    n: int
    size: int

    def __str__(self) -> str:
        return f"{self.size} of {self.n}"


@dataclass(frozen=True)
class Task:
    """What is compared: who does it how, from which inputs, and how to judge the outcome."""

    shapes: tuple[Shape, ...]  # the paper's, then smaller ones for who cannot
    inputs: Callable[[Shape], Any]
    sides: dict[str, Callable[[Any, Shape], Work]]  # ours first
    judge: Callable[[Any, Shape, Any, Any], str]


# --- scores: the highest of a pool ------------------------------------------------------------


@dataclass(frozen=True)
class Draws:
    """Predictions of the pool [n t c] and of targets [m t c]."""

    pool: Tensor
    val: Tensor


def draws(shape: Shape, spread: float = 0.5) -> Draws:
    return Draws(*predictions(shape.n + TARGETS, T, C, spread).split([shape.n, TARGETS]))


def close_draws(shape: Shape) -> Draws:
    """Of a model that is sure: a label tells some 1e-8 nats."""
    return draws(shape, spread=0.05)


def highest(scores: Any, shape: Shape) -> NDArray[np.int64]:
    return np.argsort(-np.asarray(scores), kind="stable")[: shape.size]


def classes_first(probs: Tensor) -> NDArray[Any]:
    return probs.transpose(1, 2).contiguous().numpy()


def our_mell(x: Draws, shape: Shape) -> Work:
    return lambda: highest(mell(x.pool, x.val), shape)


def epig_mell(x: Draws, shape: Shape) -> Work:
    return lambda: highest(by_chunks(plain_mell, x.pool, x.val), shape)


def baal_mell(x: Draws, shape: Shape) -> Work:
    from baal.active.heuristics import EPIG

    pool, val = classes_first(x.pool), classes_first(x.val)
    return lambda: EPIG()(pool, val)[: shape.size]


def our_bald(x: Draws, shape: Shape) -> Work:
    return lambda: highest(bald(x.pool), shape)


def baal_bald(x: Draws, shape: Shape) -> Work:
    from baal.active.heuristics import BALD

    pool = classes_first(x.pool)
    return lambda: BALD()(pool)[: shape.size]


def redux_bald(x: Draws, shape: Shape) -> Work:
    from batchbald_redux.batchbald import get_bald_batch

    logs = x.pool.log()
    return lambda: get_bald_batch(logs, shape.size).indices


def skactiveml_held(point: Any, members: Any = None) -> Any:
    """A fitted classifier of scikit-activeml that knows its answers [n c], and draws [t n c]."""
    from skactiveml.base import SkactivemlClassifier

    class Held(SkactivemlClassifier):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Held":
            return self

        def predict_proba(self, X: Any) -> Any:
            return point

        def sample_proba(self, X: Any) -> Any:
            return members

    held = Held(classes=range(C))
    held.classes_ = np.arange(C)
    return held


def skactiveml_bald(x: Draws, shape: Shape, kind: str = "GreedyBALD", **settings: Any) -> Work:
    import skactiveml.pool

    members = x.pool.transpose(0, 1).double().contiguous().numpy()  # [t n c]
    query = getattr(skactiveml.pool, kind)(
        sample_predictions_method_name="sample_proba", random_state=0, **settings
    )
    held, X, y = skactiveml_held(None, members), np.zeros((shape.n, 1)), np.full(shape.n, np.nan)
    return lambda: query.query(X, y, held, fit_ensemble=False, batch_size=shape.size)


@dataclass(frozen=True)
class Told:
    """A classifier of small-text that knows its answers, whatever it is asked."""

    probs: Any
    embedding: Any = None

    def predict_proba(self, dataset: Any, dropout_sampling: int = 1) -> Any:
        return self.probs

    def embed(self, dataset: Any, return_proba: bool = False, pbar: Any = None) -> Any:
        return (self.embedding, self.probs) if return_proba else self.embedding


def small_text_bald(x: Draws, shape: Shape) -> Work:
    from small_text import BALD

    told, rows, none = Told(x.pool.numpy()), np.arange(shape.n), np.arange(0)
    return lambda: BALD(T).query(told, rows, rows, none, none, n=shape.size)


def exact_mell(x: Draws) -> NDArray[np.float64]:
    pool, val = (normalised(probs) for probs in (x.pool, x.val))
    parts = np.array_split(pool, max(1, len(pool) // 100))
    return np.concatenate(
        [reference.expected_loss_reduction(part, val, reference.log_risk) for part in parts]
    )


def exact_bald(x: Draws) -> NDArray[np.float64]:
    return reference.bald(normalised(x.pool))


def normalised(probs: Tensor) -> NDArray[np.float64]:
    """In float64, where a difference of entropies is exact as far as rows sum to one."""
    return (probs.double() / probs.double().sum(2, keepdim=True)).numpy()


def shared(ours: Any, theirs: Any) -> float:
    return len({*ours} & {*theirs}) / len(ours)


def against(exact: Callable[[Draws], NDArray[np.float64]]) -> Callable[..., str]:
    """How much of the choice is that of float64, ours and theirs."""

    def judge(x: Draws, shape: Shape, ours: Any, theirs: Any) -> str:
        right = highest(exact(x), shape)
        return f"exact picks: {shared(ours, right):.1%} / {shared(theirs, right):.1%}"

    return judge


# --- BatchBALD --------------------------------------------------------------------------------

VECTORS = 200


def our_batchbald(x: Draws, shape: Shape) -> Work:
    view, choose = view_of(x.pool, shape.n), BatchBALD(samples=VECTORS)
    return lambda: choose(view, shape.size, np.random.default_rng(0))


def redux_batchbald(x: Draws, shape: Shape) -> Work:
    from batchbald_redux.batchbald import get_batchbald_batch

    logs = x.pool.log()
    return lambda: get_batchbald_batch(logs, shape.size, VECTORS).indices


def baal_batchbald(x: Draws, shape: Shape) -> Work:
    from baal.active.heuristics import BatchBALD

    pool = classes_first(x.pool)
    return lambda: BatchBALD(shape.size, num_draw=VECTORS // T)(pool)[: shape.size]


def skactiveml_batchbald(x: Draws, shape: Shape) -> Work:
    return skactiveml_bald(x, shape, "BatchBALD", n_MC_samples=VECTORS)


def information(x: Draws, picks: Any, samples: int = 100_000) -> float:
    """I(θ; Y_B) in nats, the mean of log p(y | θ) / p(y) over sampled θ and y."""
    rng = np.random.default_rng(0)
    probs = x.pool[list(picks)].double().numpy()  # [b t c]
    theta = rng.integers(T, size=samples)
    likelihood = np.zeros((samples, T))
    for point in probs:
        steps = point.cumsum(1)[theta]  # [samples c]
        label = (rng.random((samples, 1)) > steps[:, :-1]).sum(1)
        likelihood += np.log(point[:, label].T)
    given = likelihood[np.arange(samples), theta]
    return float((given - np.logaddexp.reduce(likelihood, 1) + np.log(T)).mean())


def told(x: Draws, shape: Shape, ours: Any, theirs: Any) -> str:
    return f"nats told: {information(x, ours):.2f} / {information(x, theirs):.2f}"


# --- batches from embeddings ------------------------------------------------------------------


@dataclass(frozen=True)
class Embeddings:
    """Point predictions [n c] and embeddings of the pool [n d] and of labelled points [l d]."""

    probs: Tensor
    pool: Tensor
    labelled: Tensor

    def view(self) -> View:
        rows = np.arange(len(self.pool) + len(self.labelled))
        pool, labelled = np.split(rows, [len(self.pool)])
        posterior = Embedded(self.probs, self.probs, torch.cat([self.pool, self.labelled]))
        return View(posterior, labelled, labelled % C, pool, pool)

    def table(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All embeddings, the pool first, and labels beside nan."""
        y = np.full(len(self.pool) + len(self.labelled), np.nan)
        y[len(self.pool) :] = np.arange(len(self.labelled)) % C
        return torch.cat([self.pool, self.labelled]).numpy(), y


def embeddings(shape: Shape, d: int = 512) -> Embeddings:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(200, d, generator=generator)
    total = shape.n + LABELLED
    rows = centres[torch.randint(200, (total,), generator=generator)]
    rows += torch.randn(total, d, generator=generator)
    logits = rows[: shape.n] @ torch.randn(d, C, generator=generator) * (2 / d**0.5)
    return Embeddings(logits.softmax(1), rows[: shape.n], rows[shape.n :])


def our_badge(x: Embeddings, shape: Shape) -> Work:
    view = x.view()
    return lambda: Badge()(view, shape.size, np.random.default_rng(0))


def skactiveml_badge(x: Embeddings, shape: Shape) -> Work:
    from skactiveml.pool import Badge

    held, (X, y) = skactiveml_held(x.probs.double().numpy()), x.table()
    query = Badge(random_state=0)
    return lambda: query.query(X, y, held, fit_clf=False, batch_size=shape.size)


def small_text_badge(x: Embeddings, shape: Shape) -> Work:
    from small_text.integrations.pytorch.query_strategies.strategies import BADGE

    (X, _), rows = x.table(), np.arange(shape.n + LABELLED)
    known = np.full((LABELLED, C), 1 / C, np.float32)
    answers = Told(np.concatenate([x.probs.numpy(), known]), X)
    pool, labelled = np.split(rows, [shape.n])
    return lambda: BADGE(C).query(answers, rows, pool, labelled, labelled % C, n=shape.size)


def gradients(x: Embeddings, shape: Shape, ours: Any, theirs: Any) -> str:
    """The picks are drawn in proportion to squared distances, and so are long: how long?"""
    r = x.probs - nn.functional.one_hot(x.probs.argmax(1), C)
    squares = (r.square().sum(1) * x.pool.square().sum(1)).numpy()
    mine, other = (squares[list(picks)].mean() for picks in (ours, theirs))
    return f"mean ‖g‖² of picks: {mine:.0f} / {other:.0f}"


def our_coreset(x: Embeddings, shape: Shape) -> Work:
    view = x.view()
    return lambda: Coreset()(view, shape.size, np.random.default_rng(0))


def skactiveml_coreset(x: Embeddings, shape: Shape) -> Work:
    from skactiveml.pool import CoreSet

    X, y = x.table()
    query = CoreSet(random_state=0)
    return lambda: query.query(X, y, batch_size=shape.size)


def small_text_coreset(x: Embeddings, shape: Shape) -> Work:
    from small_text import GreedyCoreset

    (X, _), rows = x.table(), np.arange(shape.n + LABELLED)
    pool, labelled = np.split(rows, [shape.n])
    query = GreedyCoreset(normalize=False, batch_size=2000)
    return lambda: query.query(
        Told(None, X), rows, pool, labelled, labelled % C, n=shape.size, embeddings=X
    )


def same(x: Any, shape: Shape, ours: Any, theirs: Any) -> str:
    return f"same picks: {shared(ours, theirs):.1%}"


# --- expected error reduction by retraining ---------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Images as rows, and the labels of those that are labelled."""

    labelled: NDArray[Any]
    labels: NDArray[Any]
    pool: NDArray[Any]
    val: NDArray[Any]


def digits(shape: Shape) -> Digits:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Digits(x[:200], y[:200], x[300 : 300 + shape.n], x[200:300])


def naive_bayes() -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB(var_smoothing=1e-2)


def our_retraining(x: Digits, shape: Shape) -> Work:
    view = View(None, x.labelled, x.labels, x.pool, x.val)  # type: ignore[arg-type]
    choose = RetrainingEER(naive_bayes())
    return lambda: choose(view, shape.size, np.random.default_rng(0))


def skactiveml_retraining(x: Digits, shape: Shape) -> Work:
    from skactiveml.classifier import SklearnClassifier
    from skactiveml.pool import MonteCarloEER

    X = np.concatenate([x.pool, x.labelled])
    y = np.concatenate([np.full(len(x.pool), np.nan), x.labels])
    model = SklearnClassifier(naive_bayes(), classes=range(C))
    query = MonteCarloEER(method="log_loss", random_state=0)
    return lambda: query.query(X, y, model, X_eval=x.val, batch_size=shape.size)


# --- MC dropout -------------------------------------------------------------------------------

BATCH = 32


@dataclass(frozen=True)
class Images:
    """A network and inputs, the last of which is the first again, in another batch."""

    network: nn.Sequential
    x: Tensor


def images(shape: Shape) -> Images:
    x = torch.randn(shape.n, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x[-1] = x[0]
    return Images(vgg16(C, 32).eval(), x)


def our_draws(x: Images, shape: Shape) -> Work:
    posterior = mc_dropout(x.network, shape.size)
    return lambda: posterior.predict(x.x)


def baal_draws(x: Images, shape: Shape) -> Work:
    from baal.bayesian.caching_utils import MCCachingModule
    from baal.bayesian.dropout import MCDropoutModule
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    network = MCCachingModule(MCDropoutModule(x.network))
    settings = TrainingArgs(batch_size=BATCH, use_cuda=False, workers=0, replicate_in_memory=False)
    model = ModelWrapper(network, settings)
    rows = [(row, 0) for row in x.x]

    def predict() -> Tensor:
        found = model.predict_on_dataset(rows, iterations=shape.size, verbose=False)
        return torch.from_numpy(found).softmax(1).transpose(1, 2)

    return predict


def redux_draws(x: Images, shape: Shape) -> Work:
    from batchbald_redux.consistent_mc_dropout import BayesianModule, ConsistentMCDropout

    layers = [
        ConsistentMCDropout(layer.p) if isinstance(layer, nn.Dropout) else layer
        for layer in x.network
    ]
    first = next(k for k, layer in enumerate(layers) if isinstance(layer, ConsistentMCDropout))
    trunk, rest = nn.Sequential(*layers[:first]), nn.Sequential(*layers[first:])

    class Head(BayesianModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rest = rest

        def mc_forward_impl(self, features: Tensor) -> Tensor:
            return self.rest(features)

    head = Head().eval()

    @torch.no_grad()
    def predict() -> Tensor:
        parts = [head(trunk(part), shape.size).softmax(-1) for part in x.x.split(BATCH)]
        return torch.cat(parts)

    return predict


def one_parameter(x: Images, shape: Shape, ours: Any, theirs: Any) -> str:
    return f"one θ_t for all inputs: {ours} / {theirs}"


# --- the tasks --------------------------------------------------------------------------------

POOL = Shape(25_000, 2500)  # of CIFAR-10
TASKS = {
    "MELL": Task(
        (POOL,),
        draws,
        {OURS: our_mell, "epig-style": epig_mell, "baal": baal_mell},
        against(exact_mell),
    ),
    "MELL of a sure model": Task(
        (POOL,),
        close_draws,
        {OURS: our_mell, "epig-style": epig_mell, "baal": baal_mell},
        against(exact_mell),
    ),
    "BALD": Task(
        (POOL,),
        draws,
        {
            OURS: our_bald,
            "baal": baal_bald,
            "batchbald_redux": redux_bald,
            "scikit-activeml": skactiveml_bald,
            "small-text": small_text_bald,
        },
        against(exact_bald),
    ),
    "BatchBALD": Task(
        (Shape(25_000, 10), Shape(800, 10)),
        draws,
        {
            OURS: our_batchbald,
            "baal": baal_batchbald,
            "batchbald_redux": redux_batchbald,
            "scikit-activeml": skactiveml_batchbald,
        },
        told,
    ),
    "BADGE": Task(
        (POOL, Shape(25_000, 100), Shape(25_000, 10)),
        embeddings,
        {OURS: our_badge, "scikit-activeml": skactiveml_badge, "small-text": small_text_badge},
        gradients,
    ),
    "Coreset": Task(
        (POOL, Shape(25_000, 100), Shape(25_000, 10)),
        embeddings,
        {
            OURS: our_coreset,
            "scikit-activeml": skactiveml_coreset,
            "small-text": small_text_coreset,
        },
        same,
    ),
    "EER by retraining": Task(
        (Shape(800, 80), Shape(80, 8)),
        digits,
        {OURS: our_retraining, "scikit-activeml": skactiveml_retraining},
        same,
    ),
    "MC dropout": Task(
        (Shape(256, T), Shape(64, T)),
        images,
        {OURS: our_draws, "baal": baal_draws, "batchbald_redux": redux_draws},
        one_parameter,
    ),
}
SMALL = Shape(40, 4)  # of the call before the clock starts


# --- one measurement, in a process of its own -------------------------------------------------


def measure(task: Task, side: str, shape: Shape, limit: int) -> Row:
    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    task.sides[side](task.inputs(SMALL), SMALL)()
    work = task.sides[side](task.inputs(shape), shape)
    results, times = [], []
    signal.alarm(limit)  # whose default is the end of the process
    memory = peak_memory(lambda: times.append(seconds(lambda: results.append(work()))), "cpu")
    signal.alarm(0)
    return {"s": times[0], "MiB": memory, "result": plain(results[0])}


def plain(result: Any) -> Any:
    """Picks as they are; of draws [n t c] whether the first input's are those of its copy."""
    found = np.asarray(result)
    if found.ndim == 3:
        return "yes" if np.allclose(found[0], found[-1], atol=1e-4) else "no"
    return found.tolist()


def cell(task: str, side: str, shape: Shape, limit: int) -> Row:
    """Run it apart; a run that did not come to its end says why."""
    request = json.dumps([task, side, shape.n, shape.size, limit])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(THREADS))
    done = subprocess.run(
        [sys.executable, __file__, "--cell", request],
        env=os.environ | threads,
        capture_output=True,
        text=True,
    )
    if done.returncode == -signal.SIGALRM:
        return {"s": f"> {limit} s", "MiB": ""}
    if "MemoryError" in done.stderr or "can't allocate memory" in done.stderr:
        return {"s": f"> {MEMORY >> 30} GiB", "MiB": ""}
    if done.returncode:
        raise RuntimeError(f"{task} by {side}, {shape}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the report -------------------------------------------------------------------------------


def compare(name: str, sides: list[str], limit: int, repeats: int) -> list[Row]:
    """One row for each of the sides beside ours, at the largest shape that both can do."""
    task, rows, tried = TASKS[name], list[Row](), ""
    for shape in task.shapes:
        best = in_turns(name, [OURS, *sides], shape, limit, repeats)
        x, last = task.inputs(shape), shape == task.shapes[-1]
        for side in list(sides):
            pair = [best[OURS], best[side]]
            done = all("result" in one for one in pair)
            if done or last:
                rows.append(
                    {
                        "task": name,
                        "shape": f"{shape}{tried}",
                        "beside": side,
                        "s": [one["s"] for one in pair],
                        "MiB": [one["MiB"] for one in pair],
                        "agreement": task.judge(x, shape, *(one["result"] for one in pair))
                        if done
                        else "",
                    }
                )
                sides.remove(side)
        if not sides:
            break
        why = next(one["s"] for one in best.values() if "result" not in one)
        tried = f" ({shape}: {why})"
    return rows


def in_turns(name: str, sides: list[str], shape: Shape, limit: int, repeats: int) -> dict[str, Row]:
    """The best run of each, one after the other, and again; what takes long is run once."""
    best = {side: cell(name, side, shape, limit) for side in sides}
    for _ in range(repeats - 1):
        for side in sides:
            if "result" in best[side] and best[side]["s"] < limit / 4:
                found = cell(name, side, shape, limit)
                if "result" in found and found["s"] < best[side]["s"]:
                    best[side] = found
    return best


def version(side: str) -> str:
    """Of a package that is there, or nothing."""
    try:
        return metadata.version(side)
    except metadata.PackageNotFoundError:
        return ""


def table(rows: list[Row]) -> str:
    """Where two figures stand, ours / theirs."""
    from gpu import markdown, shown

    def ratio(ours: Any, theirs: Any) -> Any:
        return theirs / ours if isinstance(ours, float) and isinstance(theirs, float) else ""

    return markdown(
        [
            {
                "task": row["task"],
                "shape": row["shape"],
                "beside": row["beside"],
                "seconds": " / ".join(map(shown, row["s"])),
                "× faster": ratio(*row["s"]),
                "MiB": " / ".join(x if isinstance(x, str) else f"{x:.0f}" for x in row["MiB"]),
                "agreement": row["agreement"],
            }
            for row in rows
        ]
    )


def page(report: Row) -> str:
    """How docs/speed.md ends: the table, on which machine, and whether it was ours alone."""
    names = ", ".join(f"{name} {number}" for name, number in report["versions"].items() if number)
    about = f"{report['device']}, {report['threads']} threads; {names}."
    if report["load"] > report["threads"] + 0.5:
        about += f" Other work ran on the machine (load {report['load']:.1f}): ratios are rough."
    return f"{table(report['rows'])}\n{about}\n"


def processor() -> str:
    """What Linux calls it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(": ")[2] for x in lines if "model name" in x), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the numbers here, beside what is there")
    parser.add_argument("--only", help="tasks, separated by commas; the others stay as they are")
    parser.add_argument("--limit", type=int, default=60, help="seconds of one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="of what is done in a quarter of it")
    parser.add_argument("--table", type=Path, help="print the table of this file, no more")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        task, side, n, size, limit = json.loads(args.cell)
        print(json.dumps(measure(TASKS[task], side, Shape(n, size), limit)))
        return
    if args.table:
        print(page(json.loads(args.table.read_text())), end="")
        return
    names = args.only.split(",") if args.only else [*TASKS]
    if unknown := sorted({*names} - {*TASKS}):
        parser.error(f"--only knows {', '.join(TASKS)}; got {', '.join(unknown)}")
    known = sorted({side for task in TASKS.values() for side in task.sides} - {OURS, "epig-style"})
    versions = {side: version(side) for side in known}
    there = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    there = {"rows": [], "load": 0.0} | there
    absent = [side for side in known if not versions[side]]
    if absent:
        print(f"not installed, so left out: {', '.join(absent)}")
    report = {
        "device": processor(),
        "threads": THREADS,
        "versions": {"torch": torch.__version__, **versions},
        "load": there["load"] if args.only else 0.0,  # the highest seen
        "rows": there["rows"] if args.only else [],
    }
    for name in names:
        sides = [side for side in TASKS[name].sides if side != OURS and side not in absent]
        if not sides:
            continue
        rows = compare(name, sides, args.limit, args.repeats)
        every = [row for row in report["rows"] if row["task"] != name] + rows
        report["rows"] = sorted(every, key=lambda row: [*TASKS].index(row["task"]))
        report["load"] = max(report["load"], os.getloadavg()[0])
        print(table(rows))
        if args.json:
            args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
