"""How fast MC dropout draws are, beside whole passes with the same masks and with baal's.

    python benchmarks/sampling.py [--quick] [--device cuda] [--threads 1]

Whole passes are timed on a few draws, in turns with `predict`, and scaled to all of them; the ratio
is the median over turns, as machines are noisy. Where other work shares the cores, threads wait for
each other: --threads 1 is then the fairer clock. baal (if installed) replaces dropout layers by its
own, which draw a mask for each input; its network is built before the clock starts.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from foresee.networks import vgg16
from foresee.posteriors.dropout import McDropout, mc_dropout

T, CLASSES = 100, 10
console = Console(width=110)


def seconds(work: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def whole_pass(model: nn.Module, posterior: McDropout, x: Tensor, draw: int) -> Tensor:
    """Run one draw through the whole network, in the plainest way [n c]."""
    hooks = []
    for name, kept in posterior.masks().items():
        layer: Any = model.get_submodule(name)
        gain = kept[draw].to(x) / (1 - layer.p)
        hooks.append(layer.register_forward_hook(lambda _, x, __, gain=gain: x[0] * gain))
    with torch.no_grad():
        out: Tensor = model.eval()(x).softmax(-1)
    for hook in hooks:
        hook.remove()
    return out


def compare(n: int, passes: int, repeats: int, device: str) -> None:
    torch.manual_seed(0)
    model, x = vgg16(CLASSES, 32).to(device), torch.randn(n, 3, 32, 32, device=device)
    posterior = mc_dropout(model, T)
    probs = posterior.predict(x)  # warm-up: finds the plan of this network

    def plain() -> Tensor:
        return torch.stack([whole_pass(model, posterior, x, k) for k in range(passes)], 1)

    difference = float((plain() - probs[:, :passes]).abs().max())
    rivals = {f"{T} whole passes, same masks ({passes} timed)": (plain, f"{difference:.1e}")}
    if importlib.util.find_spec("baal"):
        baal = baal_draws(model, x, passes)
        assert float(baal().std(1).max()) > 0, "baal's draws do not differ"
        rivals[f"{T} whole passes of baal ({passes} timed)"] = baal, "other masks"
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        ours.append(seconds(lambda: posterior.predict(x), device))
        for name, (draw, _) in rivals.items():
            theirs[name].append(seconds(draw, device) * T / passes)

    table = Table(title=f"VGG16, {n} inputs 32×32, T = {T}, {device}")
    for column in ("", "seconds", "times slower", "largest difference"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("mc_dropout", f"{statistics.median(ours):.2f}", "1", "")
    for name, (_, remark) in rivals.items():
        ratio = statistics.median(b / a for a, b in zip(ours, theirs[name], strict=True))
        table.add_row(name, f"{statistics.median(theirs[name]):.2f}", f"{ratio:.1f}", remark)
    console.print(table)
    if not importlib.util.find_spec("baal"):
        console.print("baal is not installed: pip install baal")


def baal_draws(model: nn.Module, x: Tensor, draws: int) -> Callable[[], Tensor]:
    """Return what draws with baal, whose masks differ from input to input [n draws c]."""
    from baal.bayesian.dropout import patch_module  # type: ignore[import-not-found, unused-ignore]

    patched = patch_module(model, inplace=False).eval()

    @torch.no_grad()
    def draw() -> Tensor:
        return torch.stack([patched(x).softmax(-1) for _ in range(draws)], 1)

    return draw


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer inputs and repeats")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare(
        n=256 if arguments.quick else 512,
        passes=2 if arguments.quick else 5,
        repeats=2 if arguments.quick else 5,
        device=arguments.device,
    )
