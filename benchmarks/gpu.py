"""What an NVIDIA GPU makes of foresee, beside its ceilings and plain torch.

    python benchmarks/gpu.py --data DIR [--json benchmarks/gpu.json] [--only kernels,...] [--quick]
    python benchmarks/gpu.py --table benchmarks/gpu.json   # the tables of docs/gpu.md; needs no GPU

**kernels**: the paper's shapes, J = 25 000 points, L = 100 targets, T = 100 draws, its numbers of
classes, and T = 1000 once. Times are medians between CUDA events, the scores of a shape in turns,
and include launches and the preparation of the factors. Ceilings are measured in the same run: a
large float16 matrix product, one logarithm per special-function slot, a large copy. Floor = what
the joint needs of each, overlapped: the longest of product, logarithms and one pass over the input.
Plain = difference of entropies (of maxima, of squares) in float32 by torch, in the best of several
chunk sizes, on a tenth of the points. Draws are those of a linear model, shared by all inputs.
Error / sd (the largest) and the overlap of the top 10 % are against float64 on 2500 points.

**sampling**: MC dropout of VGG16 for 25 000 images of 32 × 32, trunk once, head for every draw.
**selection**: sample, score and select, the methods of the paper in its CIFAR-10 setting: 2500
picks of 40 000, and the share of that round's 46 875 training iterations.
**agreement**: VGG16 trained on 5000 images of MNIST, whose files DIR holds, by eight seeds, one by
one and side by side; accuracy is on its 10 000 test images.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from foresee import Badge, BatchMell, Coreset, GreedyConditioning, promise
from foresee.lab import methods, paper
from foresee.lab.data import load
from foresee.lab.samplers import GPU_BATCH
from foresee.networks import Standardise, vgg16
from foresee.posteriors import mc_dropout
from foresee.recipe import Recipe
from foresee.training import Request, Training, fit_all
from foresee.types import View

N, M, M_ALL = 25_000, 100, 5000
console = Console(width=130)
Score = Callable[..., Tensor]
Row = dict[str, Any]


def milliseconds(work: Callable[[], Any], repeats: int = 7) -> float:
    """Median between CUDA events, after two runs that compile."""
    return medians([work], repeats, 0.1)[0]


def medians(works: Sequence[Callable[[], Any]], repeats: int, least: float) -> list[float]:
    """Median milliseconds of each over ``repeats`` rounds, or more if these take less than so long.

    All take turns: the clocks of a GPU that has waited for a compiler are slow at first, and a
    host's launches are slower at times.
    """

    def once(work: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    for work in works:
        once(work), once(work)
    since = time.perf_counter()
    rounds: list[list[float]] = []
    while len(rounds) < repeats or time.perf_counter() - since < least:
        rounds.append([once(work) for work in works])
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


# --- ceilings ---------------------------------------------------------------------------------


def ceilings() -> dict[str, float]:
    """Operations, logarithms and bytes a second."""
    from gpu_logarithms import logarithms  # triton is only where the GPU is

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    product = 2 * 8192**3 / milliseconds(lambda: a @ b)
    programs, block, rounds = 132 * 16, 1024, 200
    out = torch.empty(programs * block, device="cuda")
    logs = (
        16
        * rounds
        * out.numel()
        / milliseconds(lambda: logarithms[(programs,)](out, rounds, BLOCK=block))
    )
    source = torch.empty(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    copied = 2 * 4 * source.numel() / milliseconds(lambda: target.copy_(source))
    return {"gemm": product * 1e3, "log": logs * 1e3, "copy": copied * 1e3}


# --- straightforward versions -----------------------------------------------------------------


def _joint(pool: Tensor, val: Tensor) -> Tensor:
    """Pr(Y_i = c, Y_j = c') as one product [n c m c']."""
    n, t, c = pool.shape
    product = pool.transpose(1, 2).reshape(n * c, t) @ val.transpose(1, 2).reshape(-1, t).T
    return (product / t).view(n, c, len(val), -1)


def plain_mell(pool: Tensor, val: Tensor) -> Tensor:
    entr = torch.special.entr
    marginal = entr(pool.mean(1)).sum(1) + entr(val.mean(1)).sum(1).mean()
    return marginal - entr(_joint(pool, val)).sum((1, 2, 3)) / len(val)


def plain_cost(pool: Tensor, cost: Tensor) -> Tensor:
    return (cost.mean(1).amin(1).sum() - _joint(pool, cost).amin(3).sum((1, 2))) / len(cost)


def plain_mebl(pool: Tensor, val: Tensor) -> Tensor:
    mean, other = pool.mean(1), val.mean(1)
    difference = _joint(pool, val) - mean[:, :, None, None] * other
    return (difference.square_() / mean[:, :, None, None]).sum((1, 2, 3)) / len(val)


def plain_bald(pool: Tensor, _: Tensor) -> Tensor:
    entr = torch.special.entr
    return entr(pool.mean(1)).sum(1) - entr(pool).sum(2).mean(1)


def by_chunks(score: Callable[..., Tensor], pool: Tensor, val: Tensor, entries: int) -> Tensor:
    points = max(1, entries // (val.shape[0] * val.shape[2] * pool.shape[2]))
    return torch.cat([score(part, val) for part in pool.split(points)])


# --- float64, centred -------------------------------------------------------------------------


def _rows(probs: Tensor) -> tuple[Tensor, Tensor]:
    probs = probs.double()
    mean = probs.mean(1)
    return (probs / mean[:, None].clamp_min(1e-300) - 1).transpose(1, 2).flatten(0, 1), mean


def _phi(u: Tensor) -> Tensor:
    s = (1 + u).clamp_min_(0)
    series = u * u * (1 / 2 - u / 6 + u**2 / 12 - u**3 / 20)
    return torch.where(u.abs() < 1e-3, series, torch.special.xlogy(s, s) - u)


def exact_mell(pool: Tensor, val: Tensor) -> Tensor:
    (a, p), (b, q) = _rows(pool), _rows(val)
    return ((_phi(a @ b.T / pool.shape[1]) @ q.flatten()).view_as(p) * p).sum(1) / len(val)


def exact_mebl(pool: Tensor, val: Tensor) -> Tensor:
    (a, p), (b, q) = _rows(pool), _rows(val)
    u = (a @ b.T / pool.shape[1]).square_()
    return ((u @ q.flatten().square()).view_as(p) * p).sum(1) / len(val)


def exact_cost(pool: Tensor, cost: Tensor) -> Tensor:
    return plain_cost(pool.double(), cost.double())


def exact_bald(pool: Tensor, _: Tensor) -> Tensor:
    a, p = _rows(pool)
    return (_phi(a).mean(1).view_as(p) * p).sum(1)


# --- kernels ----------------------------------------------------------------------------------


def draws(t: int, c: int, *sizes: int, features: int = 8) -> list[Tensor]:
    """Probabilities [n t c] of one linear model for sets of points: draw t is the same for all."""
    weights = torch.randn(t, features, c, device="cuda").mul_(0.7 / math.sqrt(features))
    found = []
    for n in sizes:
        usual = torch.randn(n, 1, c, device="cuda").mul_(2)
        own = torch.einsum("nd,tdc->ntc", torch.randn(n, features, device="cuda"), weights)
        found.append(own.add_(usual).softmax(2))
    return found


def kernels(quick: bool) -> list[Row]:
    """Every fused kernel, 25 000 points; benchmarks/gpu.py says what the columns are."""
    rates = ceilings()
    console.print(
        f"{rates['gemm'] / 1e12:.0f} TFLOP/s float16, {rates['log'] / 1e12:.2f} T log/s, "
        f"{rates['copy'] / 1e12:.2f} TB/s"
    )
    shapes = [(2, 100), (10, 100), (10, 1000), (62, 100), (100, 100), (182, 100)]
    return [
        row for c, t in (shapes[1:3] if quick else shapes) for row in _shape(c, t, rates, quick)
    ]


def _shape(c: int, t: int, rates: dict[str, float], quick: bool) -> list[Row]:
    from foresee.kernels import triton as fused

    pool, val, *rest = draws(t, c, N, M, *([M_ALL] if t == 100 else []))
    everything = rest[0] if rest else val
    cost = val @ torch.rand(c, c, device="cuda").fill_diagonal_(0)
    entries = N * M * c * c
    read = 4 * pool.numel() / rates["copy"]
    gemm = {"joint": 2 * t * entries, "gram": 2 * t * t * c * (N + len(everything)), "none": 0}
    table: list[tuple[str, Score, Score, Score, Tensor, str, int]] = [
        ("MELL", fused.log_loss_reduction, plain_mell, exact_mell, val, "joint", entries),
        ("MEZL", fused.matrix_loss_reduction, plain_cost, exact_cost, 1 - val, "joint", 0),
        ("cost", fused.matrix_loss_reduction, plain_cost, exact_cost, cost, "joint", 0),
        ("MEBL", fused.brier_reduction, plain_mebl, exact_mebl, everything, "gram", 0),
        (
            "BALD",
            lambda pool, _: fused.parameter_information(pool),
            plain_bald,
            exact_bald,
            val,
            "none",
            N * t * c,
        ),
    ]
    times = medians([partial(row[1], pool, row[4]) for row in table], 7, 0.5)
    results = []
    for spent, (name, score, plain, exact, targets, product, logs) in zip(
        times, table, strict=True
    ):
        floor = 1e3 * max(gemm[product] / rates["gemm"], logs / rates["log"], read)
        # The plain versions pay for every target: few are enough to tell what a target costs.
        few, part = targets[:M], pool[: N // 10]
        sizes = [1 << 24, 1 << 28] if quick else [1 << 22, 1 << 25, 1 << 27, 1 << 29]
        slow = min(milliseconds(lambda: by_chunks(plain, part, few, s), 3) for s in sizes)  # noqa: B023
        slow *= N / len(part) * (len(targets) / len(few) if product == "gram" else 1)
        want = by_chunks(exact, part, few, 1 << 27)
        got = score(part, few).double()
        assert float(got.min()) >= 0
        k = len(part) // 10
        top = [set(x.topk(k).indices.tolist()) for x in (got, want)]
        results.append(
            {
                "score": name,
                "c": c,
                "T": t,
                "targets": len(targets),
                "ms": spent,
                "× floor": spent / floor,
                "× faster than plain": slow / spent,
                "error / sd": float((got - want).abs().max() / want.std()),
                "overlap": len(top[0] & top[1]) / k,
            }
        )
    return results


# --- sampling and selection -------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    """Wall clock of one run, the GPU waited for."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _network() -> tuple[nn.Module, Tensor]:
    """An untrained VGG16 for CIFAR-10, and 45 000 random images."""
    body = vgg16(10, 32, 3, seed=0)
    network = nn.Sequential(Standardise((0.5,) * 3, (0.2,) * 3), *body).cuda().eval()
    images = torch.randint(0, 256, (45_000, 3, 32, 32), dtype=torch.uint8, device="cuda")
    return network, images


def sampling(quick: bool) -> list[Row]:
    """MC dropout of VGG16 for 25 000 images; how far precision and batches move a probability."""
    network, images = _network()
    few = images[:2000]
    exact = mc_dropout(network, 100, batch=1000).predict(few)
    results = []
    for precision in ("float32", "bfloat16"):
        for t in (100,) if quick else (100, 1000):
            posterior = mc_dropout(network, t, batch=GPU_BATCH, precision=precision)
            posterior.predict(few)
            spent = seconds(lambda: posterior.predict(images[:N]))  # noqa: B023
            moved = float((posterior.predict(few)[:, :100] - exact).abs().max())
            results.append({"precision": precision, "T": t, "s": spent, "moved by": moved})
    return results


def strategies(quick: bool) -> list[Row]:
    """Whole batches, predictions at hand on the GPU, and the most memory taken beside them.

    GreedyConditioning, BatchMell and promise at CIFAR-10's sizes, BADGE and Coreset at those of the
    pools that the paper could not finish (iWildCam and FMoW).
    """
    held, targets = torch.cat(draws(1000, 10, 26_000)), 1000
    pool, known = np.arange(100_000), np.arange(100_000, 105_000)
    results = []

    def note(name: str, picks: int, of: int, t: int, c: int, work: Callable[[int], Any]) -> None:
        work(2)  # loads what is needed
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        spent = seconds(lambda: work(picks))
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
        row = {"strategy": name, "picks": picks, "of": of, "T": t, "c": c, "s": spent, "GiB": peak}
        results.append(row)

    def choose(strategy: Any, n: int, posterior: Any) -> Callable[[int], Any]:
        view = View(posterior, known, known * 0, pool[:n], np.arange(n, n + targets))
        return lambda size: strategy(view, size, np.random.default_rng(0))

    def answers(**functions: Any) -> Any:
        return SimpleNamespace(
            **{k: lambda i, v=v: v[torch.from_numpy(i).cuda()] for k, v in functions.items()}
        )

    sizes = [(4000, 80)] if quick else [(800, 80), (4000, 80), (N, 80), (N, 2500)]
    for n, size in sizes:
        work = choose(GreedyConditioning(), n, answers(predict=held))
        note("Greedy", size, n, 1000, 10, work)
    few = held[:, :100].contiguous()
    note("BatchMELL", 80, N, 100, 10, choose(BatchMell(targets=M), N, answers(predict=few)))
    note("promise", 2500, 2500, 1000, 10, lambda k: promise(held[:k], held[-targets:]))
    del held, few
    for c in (182,) if quick else (182, 62):
        embeddings = torch.randn(100, 4096, device="cuda")[torch.randint(100, (105_000,))]
        embeddings = embeddings.add_(torch.randn(105_000, 4096, device="cuda")).relu_()
        weights = torch.randn(4096, c, device="cuda").div_(16)
        point = answers(point=(embeddings @ weights).softmax(1), embed=embeddings)
        for name, strategy in (("BADGE", Badge()), ("Coreset", Coreset())):
            note(name, 1000, 100_000, 1, c, choose(strategy, 100_000, point))
    return results


def _iteration(networks: int) -> float:
    """Seconds of a training iteration and network, float32."""
    from training import Build, milliseconds as iteration

    return iteration(Build("vgg16", 32), networks, "float32") / 1e3


def selection(quick: bool) -> list[Row]:
    """2500 of 40 000 (CIFAR-10): sample, score, select, and their share of 46 875 iterations."""
    network, images = _network()
    setup = paper.experiment("cifar10", shift=False)
    labels = np.arange(5000) % 10
    alone, beside = (_iteration(number) for number in (1, 8))
    results = []
    names = [*methods.group("paper"), "MEBL", "Greedy"]
    for name in names[:3] if quick else names:
        t = 1000 if name == "Greedy" else setup.draws
        posterior = mc_dropout(network, t, batch=GPU_BATCH)
        view = View(posterior, images[:5000], labels, images[5000:], images[:5000])
        strategy = methods.METHODS[name].strategy(setup)
        strategy(view, 10, np.random.default_rng(0))
        spent = seconds(lambda: strategy(view, setup.n_query, np.random.default_rng(0)))  # noqa: B023
        shares = [100 * spent / (setup.recipe.iterations * each) for each in (alone, beside)]
        row = {"method": name, "T": t, "s": spent}
        results.append(
            row | dict(zip(("% of training, alone", "with 7 more"), shares, strict=True))
        )
    return results


# --- training ---------------------------------------------------------------------------------


def training(quick: bool) -> list[Row]:
    """Milliseconds of an iteration and network: VGG16 on batches of 64 images of 32 × 32."""
    from training import Build, milliseconds as iteration

    build = Build("vgg16", 32)
    return [
        {"precision": precision, "networks": number, "ms": iteration(build, number, precision)}
        for precision in ("float32", "bfloat16")
        for number in ((1, 8) if quick else (1, 4, 8, 16))
    ]


def agreement(quick: bool, data: Path | None = None) -> list[Row]:
    """Test accuracy (%) of VGG16 on MNIST, one network after the other and all side by side."""
    images = load("mnist", data)
    x, y = torch.from_numpy(images.pixels).cuda(), torch.from_numpy(images.labels).cuda()
    seeds, iterations = (2, 200) if quick else (8, 2000)
    results = []
    for precision in ("float32", "bfloat16"):
        recipe = Recipe(iterations, precision=precision)

        def wanted(seed: int) -> Request:
            body = vgg16(10, 32, 1, seed=seed)
            network = nn.Sequential(Standardise((0.1,), (0.28,)), *body).cuda()
            rng = np.random.default_rng(seed)
            return Request(network, x[:5000], y[:5000], recipe, rng)  # noqa: B023

        apart = [_tested(fit_all([wanted(seed)])[0], x, y) for seed in range(seeds)]
        trained = fit_all([wanted(seed) for seed in range(seeds)])
        beside = [_tested(outcome, x, y) for outcome in trained]
        results.append(
            {
                "precision": precision,
                "networks": seeds,
                "iterations": iterations,
                "one by one": statistics.mean(apart),
                "side by side": statistics.mean(beside),
                "mean difference": statistics.mean(map(abs, np.subtract(apart, beside).tolist())),
            }
        )
    return results


@torch.no_grad()
def _tested(outcome: Training | Exception, x: Tensor, y: Tensor) -> float:
    """Per cent of MNIST's last 10 000 images, its test set, that a network knows."""
    assert isinstance(outcome, Training), outcome
    found = [outcome.model(part.float()).argmax(1) for part in x[-10_000:].split(2000)]
    return 100 * (torch.cat(found) == y[-10_000:]).double().mean().item()


# --- the report -------------------------------------------------------------------------------


SECTIONS: dict[str, Callable[..., list[Row]]] = {
    "kernels": kernels,
    "sampling": sampling,
    "strategies": strategies,
    "training": training,
    "selection": selection,
    "agreement": agreement,
}


def shown(value: Any) -> str:
    """Three digits of a number.

    >>> shown(0.34217), shown(1740.2), shown(0.00031), shown("MELL")
    ('0.342', '1740', '3.1e-04', 'MELL')
    """
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 1e-2:
        return f"{value:.1e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value) or 1)))}f}"


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table of a page."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([shown(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(report: Row) -> str:
    """What docs/gpu.md shows: every section, under what it measures."""
    parts = [f"{report['device']}, torch {report['torch']}, triton {report['triton']}.\n"]
    for name, section in SECTIONS.items():
        about = (section.__doc__ or "").strip().split("\n")[0]
        parts.append(f"## {name.capitalize()}\n\n{about}\n\n{markdown(report[name])}")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the numbers here, beside what is there")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--data", type=Path, help="folder of MNIST, for the section agreement")
    parser.add_argument("--quick", action="store_true", help="a few rows of each")
    parser.add_argument("--table", type=Path, help="print the tables of this file, no more")
    args = parser.parse_args()
    if args.table:
        print(page(json.loads(args.table.read_text())), end="")
        return
    names = args.only.split(",")
    if "agreement" in names and args.data is None:
        parser.error("agreement trains on MNIST: pass --data, or --only other sections")
    import triton

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    there = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    report = {
        **there,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    for name in names:
        more = {"data": args.data} if name == "agreement" else {}
        rows = report[name] = SECTIONS[name](args.quick, **more)
        table = Table(*rows[0], title=name)
        for row in rows:
            table.add_row(*map(shown, row.values()))
        console.print(table)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
