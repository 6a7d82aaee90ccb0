"""How fast the fused CUDA kernels are, beside the GPU's ceilings and plain torch.

    python benchmarks/gpu.py [--json FILE] [--quick]

Shapes are the paper's: J = 25 000 points, L = 100 targets, T = 100 draws, its numbers of classes,
and T = 1000 once. Times are medians between CUDA events and include the preparation of the
factors. Ceilings are measured in the same run: a large float16 matrix product, one logarithm per
special-function slot, a large copy. Floor = what the joint needs of each, overlapped: the longest
of product, logarithms and one pass over the input. Plain = difference of entropies (of maxima, of
squares) in float32 by torch, in the best of several chunk sizes, on a tenth of the points.
Error / sd and overlap of the top 10 % are against float64 on 2500 points.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from rich.console import Console
from rich.table import Table
from torch import Tensor

from foresee.kernels import triton as kernels

N, M, M_ALL = 25_000, 100, 5000
console = Console(width=130)
Score = Callable[..., Tensor]


def milliseconds(work: Callable[[], Any], repeats: int = 7) -> float:
    """Median between CUDA events, after two runs that compile and warm up."""
    times = []
    for run in range(2 + repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        if run >= 2:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


# --- ceilings ---------------------------------------------------------------------------------


def _logarithms(out, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = 1.5 + i * 1e-9
    for _ in range(rounds):
        for _ in tl.static_range(16):
            x = tl.inline_asm_elementwise(
                "{ .reg .f32 a; abs.f32 a, $1; lg2.approx.ftz.f32 $0, a; }",
                "=f,f",
                [x],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
    tl.store(out + i, x)


def ceilings() -> dict[str, float]:
    """Operations, logarithms and bytes a second."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    product = 2 * 8192**3 / milliseconds(lambda: a @ b)
    programs, block, rounds = 132 * 16, 1024, 200
    logarithms = triton.jit(_logarithms)
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


# --- the table --------------------------------------------------------------------------------


def draws(n: int, t: int, c: int) -> Tensor:
    noise = torch.randn(n, t, c, device="cuda")
    return noise.mul_(0.7).add_(torch.randn(n, 1, c, device="cuda"), alpha=2).softmax(2)


def fused_bald(pool: Tensor, _: Tensor) -> Tensor:
    return kernels.parameter_information(pool)


def measure(c: int, t: int, rates: dict[str, float], quick: bool) -> list[dict[str, Any]]:
    pool, val = draws(N, t, c), draws(M, t, c)
    everything = draws(M_ALL, t, c) if t == 100 else val
    cost = val @ torch.rand(c, c, device="cuda").fill_diagonal_(0)
    entries = N * M * c * c
    read = 4 * pool.numel() / rates["copy"]
    gemm = {"joint": 2 * t * entries, "gram": 2 * t * t * c * (N + len(everything)), "none": 0}
    table: list[tuple[str, Score, Score, Score, Tensor, str, int]] = [
        ("MELL", kernels.log_loss_reduction, plain_mell, exact_mell, val, "joint", entries),
        ("MEZL", kernels.matrix_loss_reduction, plain_cost, exact_cost, 1 - val, "joint", 0),
        ("cost", kernels.matrix_loss_reduction, plain_cost, exact_cost, cost, "joint", 0),
        ("MEBL", kernels.brier_reduction, plain_mebl, exact_mebl, everything, "gram", 0),
        ("BALD", fused_bald, plain_bald, exact_bald, val, "none", N * t * c),
    ]
    results = []
    for name, score, plain, exact, targets, product, logs in table:
        time = milliseconds(lambda: score(pool, targets))  # noqa: B023
        floor = 1e3 * max(gemm[product] / rates["gemm"], logs / rates["log"], read)
        # The plain versions pay for every target: few are enough to tell what a target costs.
        few, part = targets[:M], pool[: N // 10]
        sizes = [1 << 24, 1 << 28] if quick else [1 << 22, 1 << 25, 1 << 27, 1 << 29]
        slow = min(milliseconds(lambda: by_chunks(plain, part, few, s), 3) for s in sizes)  # noqa: B023
        slow *= N / len(part) * (len(targets) / len(few) if product == "gram" else 1)
        want = by_chunks(exact, part, few, 1 << 27)
        got = score(part, few).double()
        k = len(part) // 10
        top = [set(x.topk(k).indices.tolist()) for x in (got, want)]
        results.append(
            {
                "score": name,
                "n": N,
                "m": len(targets),
                "t": t,
                "c": c,
                "ms": time,
                "floor_ms": floor,
                "plain_ms": slow,
                "rms_error_per_sd": float((got - want).square().mean().sqrt() / want.std()),
                "max_error_per_sd": float((got - want).abs().max() / want.std()),
                "overlap": len(top[0] & top[1]) / k,
                "lowest": float(got.min()),
            }
        )
    return results


def training(models: Sequence[int] = (1, 4, 8, 16)) -> list[dict[str, Any]]:
    """Milliseconds of an iteration and network: VGG16, batches of 64 images of 32×32."""
    from training import Build, milliseconds as iteration

    build = Build("vgg16", 32)
    return [
        {"network": "vgg16", "precision": precision, "models": number, "ms": ms}
        for number in models
        for precision, ms in (
            ("float32", iteration(build, number, "float32")),
            ("bfloat16", iteration(build, number, "bfloat16")),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--quick", action="store_true", help="two class counts, two chunk sizes")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    rates = ceilings()
    device = torch.cuda.get_device_name()
    console.print(
        f"{device}, torch {torch.__version__}, triton {triton.__version__}: "
        f"{rates['gemm'] / 1e12:.0f} TFLOP/s float16, {rates['log'] / 1e12:.2f} T log/s, "
        f"{rates['copy'] / 1e12:.2f} TB/s"
    )
    shapes = [(2, 100), (10, 100), (10, 1000), (62, 100), (100, 100), (182, 100)]
    results = []
    table = Table()
    for heading in ("score", *"ctm", "ms", "floor", "× floor", "plain", "× faster"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for heading in ("error / sd", "max", "overlap"):
        table.add_column(heading, justify="right")
    for c, t in shapes[1:3] if args.quick else shapes:
        for row in measure(c, t, rates, args.quick):
            results.append(row)
            table.add_row(
                row["score"],
                *(str(row[key]) for key in "ctm"),
                f"{row['ms']:.2f}",
                f"{row['floor_ms']:.2f}",
                f"{row['ms'] / row['floor_ms']:.1f}",
                f"{row['plain_ms']:.1f}",
                f"{row['plain_ms'] / row['ms']:.0f}",
                f"{row['rms_error_per_sd']:.0e}",
                f"{row['max_error_per_sd']:.0e}",
                f"{row['overlap']:.4f}",
            )
        table.add_section()
    console.print(table)
    assert all(row["lowest"] >= 0 and math.isfinite(row["ms"]) for row in results)
    if args.json:
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        report = {"device": device, **versions, "rates": rates, "results": results}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
