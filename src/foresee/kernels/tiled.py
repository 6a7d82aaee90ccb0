"""Expected loss reductions by tiles: one matrix product, then one pass over it, bounded memory.

The pool is cut into tiles of points and the validation set into blocks of targets; a tile times a
block is small enough for the cache (on the CPU) and for the cap on scratch memory (anywhere).

With a row of t numbers for each class of a point, A_ic = P_ic / p̄_ic − 1, and of a target,
B_jc' = Q_jc' / q̄_jc' − 1 (see `elementwise`), and their product u = A_ic·B_jc' / t, equation 1 of
the paper, divided by m, is a sum of terms that are never negative:

    log loss     mean_j I(Y_i; Y_j) = (1/m) Σ_j Σ_cc' p̄_ic q̄_jc' φ(u),  φ(u) = (1+u) log(1+u) − u
    Brier loss   (1/m) Σ_j Σ_cc' p̄_ic q̄_jc'² u² = Σ_c p̄_ic ‖A_ic F / t‖²,  F Fᵀ = Σ_jc' q̄² Bᵀ B / m
    any matrix   (1/m) Σ_j Σ_c p̄_ic max_a (D̄_ja + A_ic·D_ja / t)⁺
    I(Y_i; θ)    Σ_c p̄_ic mean_t φ(A_ict)

D_ja [t] is what action a would save on target j: by each draw, the expected cost of the action that
is best now less that of a.
"""

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from foresee.kernels import elementwise
from foresee.kernels.elementwise import relative as relative

X = TypeVar("X")
Y = TypeVar("Y")

# Bytes of scratch memory a kernel may use unless told otherwise.
SCRATCH = 256 << 20

_CACHE_ENTRIES = 1 << 20  # products of 4 MiB and 2048 columns are the fastest on the CPU
_COLUMNS = 2048
# A product has a multiple of so many rows, and as many columns at least: in a smaller one a CPU may
# round a row by its place, and a score is to be the same, to the bit, in any tile.
_SIDE = 16
_TEMPORARIES = 8  # products' worth of memory that the functions of `elementwise` hold at once

_lock = threading.Lock()  # of torch's settings, which all threads share
_inside: list[None] = []
_chosen: list[tuple["_Switch", Any]] = []


def log_loss_reduction(
    pool: Float[Tensor, "n t c"],
    val: Float[Tensor, "m t c"],
    scratch: int = SCRATCH,
    binary: bool | None = None,
) -> Float[Tensor, "n"]:
    """mean_j I(Y_i; Y_j).

    ``binary``: the classes are two, and one probability tells the other, as they sum to one. None:
    wherever they are two. False: they are some of many classes, and need not sum to one.
    """
    if binary is None and (fused := _fused(pool)):
        return fused.log_loss_reduction(pool, val, scratch)
    ops, tiles = _ops(pool), _Tiles(pool, val, scratch)
    binary = pool.shape[2] == 2 if binary is None else binary
    prepare = ops.standardised if binary else ops.deviations
    blocks = []
    for targets in val.split(tiles.targets):
        rows, mean = _prepared(prepare, targets, rows=1 if binary else targets.shape[2])
        weight = mean / len(val)
        blocks.append(_Block(rows, (weight if binary else weight.view(-1),)))
    reduce = ops.binary_information if binary else ops.information
    return _sweep(pool, tiles, prepare, blocks, reduce, rows=1 if binary else pool.shape[2])


def brier_reduction(
    pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t c"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """Expected reduction of the Brier loss; the validation set enters as one t×t matrix only."""
    if fused := _fused(pool):
        return fused.brier_reduction(pool, val, scratch)
    ops, tiles = _ops(pool), _Tiles(pool, pool[:1], scratch)
    gram = partial(_gram, ops, tiles.points)
    # A square root of the Gram matrix makes every score a sum of squares: never negative.
    grams = _on_threads(gram, val.chunk(tiles.workers), tiles.workers)
    axes = root(torch.stack(grams).sum(0) / len(val)).T.to(pool.dtype)
    return _sweep(pool, tiles, ops.deviations, [_Block(axes)], ops.squares, rows=pool.shape[2])


def _gram(ops: ModuleType, points: int, val: Float[Tensor, "m t c"]) -> Float[Tensor, "t t"]:
    """Σ_jc' q̄² Bᵀ B in float64, of so many points at a time."""
    t, c = val.shape[1:]
    total = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    for targets in val.split(points):
        rows, mean = _prepared(ops.deviations, targets, rows=c)
        rows *= mean.view(-1, 1)
        total += rows.T @ rows
    return total


def matrix_loss_reduction(
    pool: Float[Tensor, "n t c"], cost: Float[Tensor, "m t a"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """Expected reduction of the cost of the best action; ``cost`` is E[ℓ(Y_j, a) | θ_t]."""
    if fused := _fused(pool):
        return fused.matrix_loss_reduction(pool, cost, scratch)
    ops, tiles = _ops(pool), _Tiles(pool, cost, scratch)
    t, c = pool.shape[1:]
    blocks = []
    for targets in cost.split(tiles.targets):
        best = targets.mean(1).argmin(1)[:, None, None].expand(-1, t, 1)
        saved = (targets.gather(2, best) - targets) / len(cost)  # D / m [j t a]
        mean = saved.mean(1)  # [j a]
        rows = (saved - mean[:, None]).permute(2, 0, 1).reshape(-1, t)  # action by action
        blocks.append(_Block(rows, (mean.T.contiguous(),)))
    return _sweep(pool, tiles, ops.deviations, blocks, ops.savings, rows=c)


def parameter_information(
    pool: Float[Tensor, "n t c"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """I(Y_i; θ): how far the draws diverge from their mean."""
    if fused := _fused(pool):
        return fused.parameter_information(pool)
    ops, tiles = _ops(pool), _Tiles(pool, pool[:1], scratch)
    t, c = pool.shape[1:]
    mean_over_draws = _Block(None, (pool.new_full((t,), 1 / t),))
    return _sweep(pool, tiles, ops.deviations, [mean_over_draws], ops.information, rows=c)


def weighted_information(
    pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t c"], weight: Float[Tensor, "t"]
) -> Float[Tensor, "n"]:
    """mean_j I(Y_i; Y_j) where draw t has probability ``weight``; n·m·c² numbers are held."""
    (A, p), (B, q) = (_weighted_rows(probs, weight) for probs in (pool, val))
    out = pool.new_zeros(len(pool))
    u, q = A @ B.T, (q / len(val)).flatten()
    _ops(pool).information(*map(_view(pool), (u, q, p, out)))
    return out


def _weighted_rows(
    probs: Float[Tensor, "n t c"], weight: Float[Tensor, "t"]
) -> tuple[Float[Tensor, "r t"], Float[Tensor, "n c"]]:
    """Rows (P/p̄ − 1) √w, whose products are u, and p̄."""
    rows, mean = relative(probs, weight)
    return (rows * weight.sqrt()[:, None]).transpose(1, 2).flatten(0, 1), mean


def root(gram: Float[Tensor, "t t"]) -> Float[Tensor, "t t"]:
    """R with R Rᵀ = gram, columns along its principal axes, the last the largest."""
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp_min(0).sqrt()


def are_probabilities(probs: Float[Tensor, "*rows c"], tolerance: float) -> bool:
    """Whether no value is negative and the last axis sums to one; false for NaN."""
    ops, view = _ops(probs), _view(probs)
    workers = 1 if ops is elementwise else torch.get_num_threads()
    shares = map(view, probs.contiguous().chunk(workers))
    return all(
        _on_threads(lambda share: ops.are_probabilities(share, tolerance), [*shares], workers)
    )


class _Block:
    """Some targets: ``columns``, B / t [t k], by which A is multiplied to give u, and ``extra``.

    These are what the pass over u needs beside. Without rows of B, u is A itself.
    """

    def __init__(self, rows: Float[Tensor, "k t"] | None, extra: tuple[Tensor, ...] = ()) -> None:
        self.extra = extra
        self.width, self.columns = 0, None
        if rows is not None:
            self.width, t = rows.shape
            padding = rows.new_zeros(max(0, _SIDE - self.width), t)
            self.columns = torch.cat([rows / t, padding]).T


class _Tiles:
    """How many points and targets a tile holds, and how many threads work on tiles."""

    def __init__(
        self, pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t a"], scratch: int
    ) -> None:
        t, c = pool.shape[1:]
        a = val.shape[2]
        plain = _ops(pool) is elementwise
        self.workers = 1 if plain else torch.get_num_threads()
        copies = _TEMPORARIES if plain else 2
        entries = scratch // (pool.element_size() * copies * self.workers)
        if pool.device.type == "cpu":
            entries = min(entries, _CACHE_ENTRIES)
        columns = _COLUMNS if pool.device.type == "cpu" else max(_COLUMNS, int(entries**0.5))
        self.targets = max(1, min(len(val), columns // a))
        self.points = max(1, entries // (c * max(self.targets * a, t)))


def _sweep(
    pool: Float[Tensor, "n t c"],
    tiles: _Tiles,
    prepare: Callable[..., None],
    blocks: Sequence[_Block],
    reduce: Callable[..., None],
    rows: int,
) -> Float[Tensor, "n"]:
    """Prepare each tile (``rows`` rows a point), multiply it by each block, reduce the product.

    Compiled functions take NumPy views, made once: every torch call gives up the GIL, and taking
    it back costs two threads more than the arithmetic between.
    """
    n, view, scores = len(pool), _view(pool), pool.new_zeros(len(pool))
    seen = view(pool), view(scores), [(block, [*map(view, block.extra)]) for block in blocks]
    score = partial(_score_tile, _Buffers(pool, blocks, rows), prepare, reduce, *seen)
    starts = range(0, n, tiles.points)
    _on_threads(score, [slice(i, min(i + tiles.points, n)) for i in starts], tiles.workers)
    return scores


class _Buffers(threading.local):
    """A thread's own, kept from tile to tile: fresh pages for each would cost a tenth of the time.

    For ``size`` points: their rows A, padded, and as `_view` sees them; their means; then by width
    of a block the padded product, the part of it that is u (the same memory where all is), and u as
    `_view` sees it.
    """

    def __init__(self, pool: Float[Tensor, "n t c"], blocks: Sequence[_Block], rows: int) -> None:
        self.pool, self.rows, self.size = pool, rows, 0
        self.widths = {block.width for block in blocks if block.width}

    def of(self, size: int) -> tuple[Any, ...]:
        if self.size != size:
            (_, t, c), view, new = self.pool.shape, _view(self.pool), self.pool.new_zeros
            rows = size * self.rows
            factor, mean = new(-(-rows // _SIDE) * _SIDE, t), new(size, c)
            products = {k: new(len(factor), max(k, _SIDE)) for k in self.widths}
            u = {k: product[:rows, :k].contiguous() for k, product in products.items()}
            u_seen = {k: view(product) for k, product in {**u, 0: factor[:rows]}.items()}
            self.size, self.kept = size, (factor, u_seen[0], view(mean), products, u, u_seen)
        return self.kept


def _score_tile(
    buffers: _Buffers,
    prepare: Callable[..., None],
    reduce: Callable[..., None],
    points: Any,
    scores: Any,
    blocks: Any,
    tile: slice,
) -> None:
    factor, factor_seen, mean, products, u, u_seen = buffers.of(tile.stop - tile.start)
    prepare(points[tile], factor_seen, mean)
    for block, extra in blocks:
        if block.columns is not None:
            product = torch.mm(factor, block.columns, out=products[block.width])
            if block.width < _SIDE:
                u[block.width].copy_(product[: len(u[block.width]), : block.width])
        reduce(u_seen[block.width], *extra, mean, scores[tile])


def _on_threads(work: Callable[[X], Y], items: Sequence[X], workers: int) -> list[Y]:
    """Map on threads that use one core each and take the next item when they are done."""
    results: dict[int, Y] = {}
    keep = results.__setitem__  # no argument that a check reads while another thread writes
    todo = iter(list(enumerate(items)))
    with full_precision():
        if workers == 1:
            _work_off(todo, work, keep)
        else:
            threads = one_core_each(workers)
            running = [threads.submit(_work_off, todo, work, keep) for _ in range(workers)]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                for _ in todo:  # after an error or Ctrl-C, threads find nothing more to do
                    pass
                wait(running)
            for done in running:
                done.result()
    return [results[position] for position in range(len(items))]


def _work_off(
    todo: Iterator[tuple[int, X]], work: Callable[[X], Y], keep: Callable[[int, Y], None]
) -> None:
    for position, item in todo:
        keep(position, work(item))


@functools.cache
def one_core_each(workers: int) -> ThreadPoolExecutor:
    """Threads on which torch uses one core, kept for the life of the process."""
    return ThreadPoolExecutor(workers, "foresee", use_one_core)


# A fork takes no thread along but the one that forks: the child starts its own.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(after_in_child=one_core_each.cache_clear)


def use_one_core() -> None:
    """Let torch use one core on this thread, a new one, and on no other.

    Torch makes a thread's choice the default of threads to come: another, which ends with it, takes
    that back. Done at every call it would sometimes undo what others chose in the meantime.
    """
    with _lock:
        default = torch.get_num_threads()
        torch.set_num_threads(1)
        aside = threading.Thread(target=torch.set_num_threads, args=(default,))
        aside.start()
        aside.join()


def _prepared(
    prepare: Callable[..., None], probs: Float[Tensor, "n t c"], rows: int
) -> tuple[Float[Tensor, "r t"], Float[Tensor, "n c"]]:
    n, t, c = probs.shape
    space, mean = probs.new_empty(n * rows, t), probs.new_empty(n, c)
    prepare(*map(_view(probs), (probs, space, mean)))
    return space, mean


def _ops(pool: Tensor) -> ModuleType:
    if pool.device.type == "cpu" and pool.dtype == torch.float32:
        return _compiled() or elementwise
    return elementwise


def _view(pool: Tensor) -> Callable[[Tensor], Any]:
    """What the functions of `_ops` take: NumPy arrays if compiled, tensors if not."""
    return (lambda x: x) if _ops(pool) is elementwise else Tensor.numpy


def _fused(pool: Tensor) -> ModuleType | None:
    """The kernels that are cut to Hopper GPUs; float64 stays on the exact path."""
    return fused_on(pool.device) if pool.is_cuda and pool.dtype == torch.float32 else None


def fused_on(device: torch.device) -> ModuleType | None:
    """The fused kernels, if this GPU is one that they are cut to and triton is installed."""
    return _triton() if torch.cuda.get_device_capability(device) >= (9, 0) else None


@functools.cache
def _triton() -> ModuleType | None:
    try:
        from foresee.kernels import triton
    except ImportError:  # not installed: slower, and the product in float32
        return None
    return triton


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        from foresee.kernels import compiled
    except ImportError:  # numba has no build for this Python: slower, same numbers
        return None
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        warnings.warn(
            "scores run slower, as no folder for compiled kernels can be written: set "
            "NUMBA_CACHE_DIR to one that can",
            stacklevel=2,
        )
        return None
    return compiled


class _Switch(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], None]
    full: Any


def _switch(owner: Any, name: str, full: Any) -> _Switch:
    return _Switch(partial(getattr, owner, name), partial(setattr, owner, name), full)


def _switches() -> list[_Switch]:
    """What decides on the precision of float32 products and convolutions."""
    backends: Any = torch.backends
    matmul = _Switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    )
    convolution = _switch(backends.cudnn, "allow_tf32", False)
    try:
        matmul.read(), convolution.read()
    except RuntimeError:  # set by newer switches (torch 2.9), which these cannot read
        owners = backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv
        return [_switch(owner, "fp32_precision", "ieee") for owner in owners]
    return [matmul, convolution]


@contextmanager
def full_precision() -> Iterator[None]:
    """Undo a caller's choice of TF32 or bfloat16 for float32: it would rank wrongly.

    Torch has one choice for the process, but for autocast. Of threads that are here at once the
    first undoes it and the last restores it, unless somebody has chosen anew.
    """
    with _lock:
        if not _inside:
            _chosen[:] = [(switch, switch.read()) for switch in _switches()]
            for switch, choice in _chosen:
                if choice != switch.full:
                    switch.write(switch.full)
        _inside.append(None)
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        with _lock:
            _inside.pop()
            for switch, choice in _chosen if not _inside else ():
                if switch.read() == switch.full != choice:
                    switch.write(choice)
