"""Expected loss reductions on CUDA, fused: the joint is born and summed up in registers.

The formulas are those of `tiled`: with rows A_ic = P_ic / p̄_ic − 1 of the pool, columns
B_jc' = Q_jc' / q̄_jc' − 1 of the targets (or savings D_ja), all of length t, and u = A·B / t,

    log loss     Σ_c p̄_ic Σ_jc' q̄_jc'/m φ(u),  φ(u) = (1+u) log(1+u) − u
    Brier loss   Σ_c p̄_ic ‖A_ic F / t‖²,  F Fᵀ = Σ_jc' q̄² B Bᵀ / m
    any matrix   Σ_c p̄_ic Σ_j/m max_a (D̄_ja + A_ic·D_ja / t)⁺
    I(Y_i; θ)    Σ_c p̄_ic mean_t φ(A_ict)

The kernels:

    _deviations              writes rows A and means p̄, or columns B and weights q̄/m
    _savings                 writes columns D and means D̄ of the targets of a loss matrix
    _sweep                   multiplies a tile of rows by one tile of columns after the other,
                             reduces each product in the registers where the tensor cores left it,
                             and writes one number a row: its share of the sum over c
    _parameter_information   I(Y_i; θ), which needs no product

Where columns are few, a launch takes longer than a sweep: then `_sweep` makes its rows itself.

Factors are float16, products and sums float32. |A| ≤ t − 1, so A times a power of two that keeps
t below 65 504 cannot overflow; and with the powers chosen what rounds to zero is a deviation below
3e-10 for t ≤ 255 and 4e-9 for t = 4000, less than float32 probabilities can express. The power is
undone for free in the first multiply-add of the reduction.

A saving is a difference of costs that nearly cancel, and shows the rounding of the factors most. So
where columns are few, A = A' + A" and D = D' + D" are sums of two float16 numbers each (``high``
and ``low`` below), and A'D' + A"D' + A'D" has the digits of float32.

float64 is not for here. Scores are float32. `TRITON_INTERPRET=1` runs all of it on the CPU.
"""

import math
import os
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from foresee.kernels.elementwise import TINY

SCRATCH = 1 << 30  # bytes of factors held at once unless told otherwise

_APPROX = os.environ.get("TRITON_INTERPRET", "0") != "1"  # the interpreter knows no assembly

_HALF_MAX = 65504.0  # float16's largest number
_RESIDENT = 128  # draws up to which a tile's rows stay in shared memory for the whole sweep
_BLOCK_K = 64
_BLOCK = 32  # columns P_i·c a program prepares

# φ(u) / (e log 2) = v log₂ v + 1 / (e log 2) with v = (1+u) / e: two multiply-adds and a logarithm.
_UNIT = math.e * math.log(2)
_INVERSE_E = 0.36787954  # 1/e and an ulp or three more, so that 1 + u = 0 does not meet log 0
_OFFSET = 0.53073782  # 1 / (e log 2) rounded down to a float
# Mean error of v log₂ v + _OFFSET around u = 0: that of lg2.approx, measured on an H200, and the
# rounding of _OFFSET. It is flat to 5e-9 over |u| < 0.3, so it is taken off the sum.
_BIAS = _UNIT * ((4.5e-8 if _APPROX else 0.0) + (0.5307378172874451 - 1 / _UNIT))
_GUARDED_OFFSET = 0.5307377  # so much less that v log₂ v + it never exceeds φ near u = 0
_PLENTY = 5e-5  # nats; a score above it has relative error below 1e-3 without care for small u
_FEW_ENTRIES = 1 << 31  # joint entries below which one careful sweep costs less than two
_FEW_COLUMNS = 256  # up to which a sweep makes its rows, and savings have float32's digits


# --- factors ----------------------------------------------------------------------------------


@triton.jit
def _columns(probs, stride_n, stride_c, total, c_total, BLOCK: tl.constexpr):
    """A program's share of the n·c columns P_i·c: numbers q, which there are, where they start."""
    q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i = q // c_total
    return q, q < total, probs + i * stride_n + (q - i * c_total) * stride_c


@triton.jit
def _draws(column, known, start, t_total, stride_t, WIDE: tl.constexpr, BLOCK_T: tl.constexpr):
    """BLOCK_T draws of these columns from ``start`` on [q t], in float32, and which there are.

    Columns come first, so that neighbouring lanes read neighbouring columns.
    """
    t = start + tl.arange(0, BLOCK_T)
    step = t.to(tl.int64) * stride_t if WIDE else t * stride_t
    seen = known[:, None] & (t < t_total)[None, :]
    p = tl.load(column[:, None] + step[None, :], mask=seen, other=0.0)
    return p.to(tl.float32), seen


@triton.jit
def _first_and_shift(column, known, t_total, stride_t, WIDE: tl.constexpr, BLOCK_T: tl.constexpr):
    """The first draw of each column, and how far the mean is from it.

    Everything is measured from the first draw: where all draws agree, nothing is left of it.
    """
    first = tl.load(column, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros([column.shape[0], BLOCK_T], tl.float32)
    for start in range(0, t_total, BLOCK_T):
        p, seen = _draws(column, known, start, t_total, stride_t, WIDE, BLOCK_T)
        total += tl.where(seen, p - first[:, None], 0.0)
    return first, tl.sum(total, 1) / t_total


@triton.jit
def _deviations(
    probs,
    stride_n,
    stride_t,
    stride_c,
    rows,
    mean,
    total,
    t_total,
    c_total,
    padded,
    row_length,
    scale,
    share,
    RELATIVE: tl.constexpr,
    TINY: tl.constexpr,
    WIDE: tl.constexpr,
    ONCE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write rows (P/p̄ − 1)·scale where RELATIVE, else (P − p̄)·scale, and the means p̄·share.

    Zeros fill up every row to ``row_length`` numbers, and the rows to ``padded`` of them.
    ONCE: all draws fit into registers, so they are read once; else once for the mean, then again.
    """
    q, known, column = _columns(probs, stride_n, stride_c, total, c_total, BLOCK)
    if ONCE:
        p, seen = _draws(column, known, 0, t_total, stride_t, WIDE, BLOCK_T)
        first = tl.load(column, mask=known, other=0.0).to(tl.float32)
        p = tl.where(seen, p - first[:, None], 0.0)
        shift = tl.sum(p, 1) / t_total
    else:
        first, shift = _first_and_shift(column, known, t_total, stride_t, WIDE, BLOCK_T)
    average = first + shift
    factor = tl.full([BLOCK], scale, tl.float32)
    if RELATIVE:
        factor = tl.where(average > TINY, scale / average, 0.0)
    wanted = q < padded
    tl.store(mean + q, average * share, mask=wanted)
    out = (rows + q * row_length)[:, None]
    if ONCE:
        t = tl.arange(0, BLOCK_T)[None, :]
        value = tl.where(seen, (p - shift[:, None]) * factor[:, None], 0.0)
        inside = wanted[:, None] & (t < row_length)
        tl.store(out + t, value.to(rows.dtype.element_ty), mask=inside)
    else:
        for start in range(0, row_length, BLOCK_T):
            t = start + tl.arange(0, BLOCK_T)[None, :]
            p, seen = _draws(column, known, start, t_total, stride_t, WIDE, BLOCK_T)
            value = tl.where(seen, (p - first[:, None] - shift[:, None]) * factor[:, None], 0.0)
            inside = wanted[:, None] & (t < row_length)
            tl.store(out + t, value.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def _actions(cost, start_a, a_total, stride_a, BLOCK_A: tl.constexpr):
    """BLOCK_A actions from ``start_a`` on, and where their costs start; the last is repeated."""
    a = start_a + tl.arange(0, BLOCK_A)
    return a, cost + tl.minimum(a, a_total - 1).to(tl.int64) * stride_a


@triton.jit
def _saved(column, cheapest, start, t_total, stride_t, BLOCK_T: tl.constexpr):
    """Cost of the cheapest action less that of others [t a], BLOCK_T draws from ``start`` on."""
    t = start + tl.arange(0, BLOCK_T)[:, None]
    step = t.to(tl.int64) * stride_t
    x = tl.load(column[None, :] + step, mask=t < t_total, other=0.0).to(tl.float32)
    y = tl.load(cheapest + step, mask=t < t_total, other=0.0).to(tl.float32)
    return y - x, t


@triton.jit
def _savings(
    cost,
    stride_m,
    stride_t,
    stride_a,
    columns,
    mean,
    unit,
    m_total,
    t_total,
    a_total,
    a_padded,
    row_length,
    scale,
    share,
    GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_A: tl.constexpr,
    LOW: tl.constexpr,
):
    """What action a would save on target j: D = cost of the best action − cost of a.

    One target a program, in three passes over its costs: which action is best on average; unit_j,
    the widest range of a D_ja over draws; then columns (D − D̄)/unit·scale and means D̄/unit ≤ 0.

    Targets go in groups, and in a group action by action, so that a tile of columns holds some
    actions on all targets of a group: column ((j // GROUP)·a_padded + a)·GROUP + j % GROUP. Groups
    are filled up with the last action, which changes no maximum, and with the last target at no
    weight; columns with zeros. LOW: each is followed by what float16 leaves over of it.
    """
    j = tl.program_id(0).to(tl.int64)
    cost += tl.minimum(j, m_total - 1) * stride_m
    best_mean = tl.full([], float("inf"), tl.float32)
    best = tl.full([], 0, tl.int32)
    for start_a in range(0, a_total, BLOCK_A):
        _, column = _actions(cost, start_a, a_total, stride_a, BLOCK_A)
        total = tl.zeros([BLOCK_A], tl.float32)
        for start in range(0, t_total, BLOCK_T):
            t = start + tl.arange(0, BLOCK_T)[:, None]
            at = column[None, :] + t.to(tl.int64) * stride_t
            total += tl.sum(tl.load(at, mask=t < t_total, other=0.0).to(tl.float32), 0)
        lowest = tl.min(total, 0)
        where = tl.minimum(start_a + tl.argmin(total, 0), a_total - 1)
        best = tl.where(lowest < best_mean, where, best)
        best_mean = tl.minimum(lowest, best_mean)
    cheapest = cost + best.to(tl.int64) * stride_a
    widest = tl.zeros([], tl.float32)
    for start_a in range(0, a_total, BLOCK_A):
        _, column = _actions(cost, start_a, a_total, stride_a, BLOCK_A)
        high = tl.full([BLOCK_A], float("-inf"), tl.float32)
        low = tl.full([BLOCK_A], float("inf"), tl.float32)
        for start in range(0, t_total, BLOCK_T):
            d, t = _saved(column, cheapest, start, t_total, stride_t, BLOCK_T)
            high = tl.maximum(high, tl.max(tl.where(t < t_total, d, float("-inf")), 0))
            low = tl.minimum(low, tl.min(tl.where(t < t_total, d, float("inf")), 0))
        widest = tl.maximum(widest, tl.max(high - low, 0))
    widest = tl.where(widest > 0, widest, 1.0)
    tl.store(unit + j, tl.where(j < m_total, widest * share, 0.0))
    for start_a in range(0, a_padded, BLOCK_A):
        a, column = _actions(cost, start_a, a_total, stride_a, BLOCK_A)
        wanted = a < a_padded
        start_d = tl.load(cheapest).to(tl.float32) - tl.load(column).to(tl.float32)
        total = tl.zeros([BLOCK_A], tl.float32)
        for start in range(0, t_total, BLOCK_T):
            d, t = _saved(column, cheapest, start, t_total, stride_t, BLOCK_T)
            total += tl.sum(tl.where(t < t_total, d - start_d[None, :], 0.0), 0)
        shift = total / t_total
        k = ((j // GROUP) * a_padded + a) * GROUP + j % GROUP
        # No action beats the best one on average, whatever rounding says.
        tl.store(mean + k, tl.minimum(start_d + shift, 0.0) / widest, mask=wanted)
        length = 2 * row_length if LOW else row_length
        out = (columns + k * length)[None, :]
        for start in range(0, row_length, BLOCK_T):
            d, t = _saved(column, cheapest, start, t_total, stride_t, BLOCK_T)
            centred = (d - start_d[None, :] - shift[None, :]) * (scale / widest)
            centred = tl.where(t < t_total, centred, 0.0)
            inside = wanted[None, :] & (t < row_length)
            high = centred.to(tl.float16)
            tl.store(out + t, high, mask=inside)
            if LOW:
                tl.store(out + row_length + t, (centred - high).to(tl.float16), mask=inside)


# --- the product and its reduction ------------------------------------------------------------


@triton.jit
def _log2(v, APPROX: tl.constexpr):
    """log₂ |v|. The special-function unit's own: tl.log2 spends ten more instructions on it."""
    if APPROX:
        log = tl.inline_asm_elementwise(
            "{ .reg .f32 a; abs.f32 a, $1; lg2.approx.ftz.f32 $0, a; }",
            "=f,f",
            [v],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        log = tl.log2(tl.abs(v))
    return log


@triton.jit
def _measured(column, known, first, start, t_total, stride_t, WIDE: tl.constexpr, K: tl.constexpr):
    """K draws from ``start`` on, measured from the first one; zeros where there are none."""
    p, seen = _draws(column, known, start, t_total, stride_t, WIDE, K)
    return tl.where(seen, p - first[:, None], 0.0)


@triton.jit
def _relative(p, shift, factor, start, t_total, K: tl.constexpr):
    """Measured draws as P/p̄ − 1: in float16, and what that leaves over."""
    t = start + tl.arange(0, K)
    value = tl.where((t < t_total)[None, :], (p - shift[:, None]) * factor[:, None], 0.0)
    high = value.to(tl.float16)
    return high, (value - high).to(tl.float16)


@triton.jit
def _rows_of(
    probs,
    r,
    inside,
    stride_n,
    stride_t,
    stride_c,
    t_total,
    c_total,
    scale,
    TINY: tl.constexpr,
    WIDE: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    K3: tl.constexpr,
):
    """Rows r as `_deviations` writes them, in three pieces; what float16 leaves over; the means."""
    i = r // c_total
    column = probs + i * stride_n + (r - i * c_total) * stride_c
    first = tl.load(column, mask=inside, other=0.0).to(tl.float32)
    p1 = _measured(column, inside, first, 0, t_total, stride_t, WIDE, K1)
    total = tl.sum(p1, 1)
    if K2 > 0:
        p2 = _measured(column, inside, first, K1, t_total, stride_t, WIDE, K2)
        total += tl.sum(p2, 1)
    if K3 > 0:
        p3 = _measured(column, inside, first, K1 + K2, t_total, stride_t, WIDE, K3)
        total += tl.sum(p3, 1)
    shift = total / t_total
    average = first + shift
    factor = tl.where(average > TINY, scale / average, 0.0)
    h1, l1 = _relative(p1, shift, factor, 0, t_total, K1)
    h2, l2, h3, l3 = 0, 0, 0, 0
    if K2 > 0:
        h2, l2 = _relative(p2, shift, factor, K1, t_total, K2)
    if K3 > 0:
        h3, l3 = _relative(p3, shift, factor, K1 + K2, t_total, K3)
    return (h1, h2, h3), (l1, l2, l3), average


@triton.jit
def _prepared(at, inside, start, K: tl.constexpr, HELD: tl.constexpr):
    """K entries from ``start`` on of prepared rows.

    The compiler has the tensor cores take what was loaded from shared memory and what was computed
    from registers. So where HELD, an idle selection: 3 % faster as long as registers suffice.
    """
    a = tl.load(at + (start + tl.arange(0, K))[None, :])
    if HELD:
        a = tl.where(inside[:, None], a, 0.0).to(tl.float16)
    return a


@triton.jit
def _along(a, there, x, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr):
    """x + a tile of rows, in three pieces, times the tile of columns that begins at ``there``."""
    x = tl.dot(a[0], tl.load(there + tl.arange(0, K1)[:, None]), x)
    if K2 > 0:
        x = tl.dot(a[1], tl.load(there + (K1 + tl.arange(0, K2))[:, None]), x)
    if K3 > 0:
        x = tl.dot(a[2], tl.load(there + (K1 + K2 + tl.arange(0, K3))[:, None]), x)
    return x


@triton.jit
def _product(
    at,
    high,
    low,
    here,
    row_length,
    K1: tl.constexpr,
    K2: tl.constexpr,
    K3: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RESIDENT: tl.constexpr,
    LOW: tl.constexpr,
):
    """A tile of rows [m k] times the tile of columns [n k] that starts at ``here``: x [m n].

    RESIDENT: the rows are ``high`` and ``low``, in pieces; else they are read from ``at`` on.
    """
    x = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    there = here + tl.arange(0, BLOCK_N)[None, :] * row_length
    if RESIDENT:
        x = _along(high, there, x, K1, K2, K3)
        if LOW:
            x = _along(low, there, x, K1, K2, K3)
            x = _along(high, there + row_length // 2, x, K1, K2, K3)
    else:
        k1 = tl.arange(0, K1)
        for start in range(0, row_length, K1):
            a = tl.load(at + (start + k1)[None, :])
            x = tl.dot(a, tl.load(there + (start + k1)[:, None]), x)
    return x


@triton.jit
def _sweep(
    rows,
    stride_n,
    stride_t,
    stride_c,
    columns,
    weight,
    offset,
    mean,
    scores,
    out,
    n_rows,
    t_total,
    c_total,
    groups,
    tiles,
    length,
    scale,
    slope,
    d2,
    d3,
    d4,
    d5,
    enough,
    REDUCE: tl.constexpr,
    SELECT: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    K3: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    INVERSE_E: tl.constexpr,
    OFFSET: tl.constexpr,
    TINY: tl.constexpr,
    APPROX: tl.constexpr,
    RESIDENT: tl.constexpr,
    FRESH: tl.constexpr,
    LOW: tl.constexpr,
    HELD: tl.constexpr,
    WIDE: tl.constexpr,
):
    """out_r = p̄_r · (the reduction of row r's products x with every column).

        REDUCE   "information", "careful"   Σ_k weight_k φ(u) / (e log 2),  u / e = x·slope
                 "squares"                  Σ_k weight_k x²
                 "savings"                  Σ_j weight_j max_a (x_ja·slope + offset_ja)⁺

    "careful" has φ by its series, Σ_k d_k x^k, where that is nearer.

    Where RESIDENT, rows have K1 + K2 + K3 entries (powers of two: 100 draws need 64 + 32 + 16, not
    128) and stay in shared memory; else every tile of columns walks along them by K1.
    Where FRESH, ``rows`` are probabilities of which rows and means are made here.
    Where SELECT, tiles whose points all have ``scores`` that are ``enough`` are left as they are.
    """
    r = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = r < n_rows
    if SELECT:
        lowest = tl.min(tl.load(scores + r // c_total, mask=inside, other=float("inf")), 0)
        if lowest >= enough:
            return
    row_length = length
    if RESIDENT:
        row_length = 2 * (K1 + K2 + K3) if LOW else K1 + K2 + K3
    at = rows + r[:, None] * row_length
    high, low = (0, 0, 0), (0, 0, 0)
    if FRESH:
        high, low, average = _rows_of(
            rows, r, inside, stride_n, stride_t, stride_c, t_total, c_total, scale,
            TINY, WIDE, K1, K2, K3,
        )  # fmt: skip
    else:
        average = tl.load(mean + r, mask=inside, other=0.0)
        if RESIDENT:
            a1 = _prepared(at, inside, 0, K1, HELD)
            a2, a3 = 0, 0
            if K2 > 0:
                a2 = _prepared(at, inside, K1, K2, HELD)
            if K3 > 0:
                a3 = _prepared(at, inside, K1 + K2, K3, HELD)
            high = (a1, a2, a3)
    n = tl.arange(0, BLOCK_N)
    j = tl.arange(0, GROUP)
    here = columns
    total = tl.zeros([BLOCK_M, GROUP], tl.float32)
    if REDUCE == "savings":
        for group in range(0, groups):
            best = tl.zeros([BLOCK_M, GROUP], tl.float32)
            for tile in range(0, tiles):
                x = _product(
                    at, high, low, here, row_length,
                    K1, K2, K3, BLOCK_M, BLOCK_N, RESIDENT, LOW,
                )  # fmt: skip
                saved = x * slope + tl.load(offset + (group * tiles + tile) * BLOCK_N + n)[None, :]
                saved = tl.reshape(saved, [BLOCK_M, BLOCK_N // GROUP, GROUP])
                best = tl.maximum(best, tl.max(saved, 1))
                here += BLOCK_N * row_length
            total += best * tl.load(weight + group * GROUP + j)[None, :]
    else:
        for tile in range(0, tiles):
            x = _product(
                at, high, low, here, row_length,
                K1, K2, K3, BLOCK_M, BLOCK_N, RESIDENT, LOW,
            )  # fmt: skip
            if REDUCE == "squares":
                y = x * x
            else:
                v = x * slope + INVERSE_E
                y = v * _log2(v, APPROX) + OFFSET
                if REDUCE == "careful":
                    # u²/2 − u³/6 + u⁴/12 − u⁵/20 is below φ for every u, but nearer to it than y
                    # where |u| < 0.1: there y loses digits, and OFFSET keeps it below as well. So
                    # the larger is the better one; NaN, from v = 0, loses too.
                    y = tl.maximum(y, x * x * (x * (x * (x * d5 + d4) + d3) + d2))
            y *= tl.load(weight + tile * BLOCK_N + n)[None, :]
            # Lanes hold two of eight neighbouring columns: nothing is exchanged before the end.
            total += tl.sum(tl.reshape(y, [BLOCK_M, BLOCK_N // GROUP, GROUP]), 1)
            here += BLOCK_N * row_length
    tl.store(out + r, tl.sum(total, 1) * average, mask=inside)


@triton.jit
def _phi(u, APPROX: tl.constexpr):
    """φ(u), to a relative 1e-5: a series where the closed form would cancel."""
    series = 1 / 6 - u * (1 / 12 - u * (1 / 20 - u * (1 / 30 - u * (1 / 42 - u * (1 / 56)))))
    s = tl.maximum(1 + u, 1e-37)
    closed = s * (_log2(s, APPROX) * 0.6931471805599453) - u
    return tl.where(tl.abs(u) < 0.15, u * u * (0.5 - u * series), closed)


@triton.jit
def _parameter_information(
    probs,
    stride_n,
    stride_t,
    stride_c,
    out,
    total,
    t_total,
    c_total,
    APPROX: tl.constexpr,
    TINY: tl.constexpr,
    WIDE: tl.constexpr,
    ONCE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out_ic = p̄_c mean_t φ(P_tc/p̄_c − 1)."""
    q, known, column = _columns(probs, stride_n, stride_c, total, c_total, BLOCK)
    if ONCE:
        p, seen = _draws(column, known, 0, t_total, stride_t, WIDE, BLOCK_T)
        first = tl.load(column, mask=known, other=0.0).to(tl.float32)
        p = tl.where(seen, p - first[:, None], 0.0)
        shift = tl.sum(p, 1) / t_total
    else:
        first, shift = _first_and_shift(column, known, t_total, stride_t, WIDE, BLOCK_T)
    average = first + shift
    inverse = tl.where(average > TINY, 1.0 / average, 0.0)
    if ONCE:
        value = _phi((p - shift[:, None]) * inverse[:, None], APPROX)
        divergence = tl.sum(tl.where(seen, value, 0.0), 1)
    else:
        sums = tl.zeros([BLOCK, BLOCK_T], tl.float32)
        for start in range(0, t_total, BLOCK_T):
            p, seen = _draws(column, known, start, t_total, stride_t, WIDE, BLOCK_T)
            value = _phi((p - first[:, None] - shift[:, None]) * inverse[:, None], APPROX)
            sums += tl.where(seen, value, 0.0)
        divergence = tl.sum(sums, 1)
    tl.store(out + q, average * divergence / t_total, mask=known)


# --- scores -----------------------------------------------------------------------------------


def log_loss_reduction(
    pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t c"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """mean_j I(Y_i; Y_j).

    Large problems are swept twice. The first time φ comes from its closed form, whose error of
    1e-8 nats a score matters to few points. Those are swept again with care for small u.
    """
    n, t, c = pool.shape
    with torch.cuda.device_of(pool):
        tile = _Tile(t, len(val) * c, "information")
        columns = pool.new_empty(tile.columns, tile.row_length, dtype=torch.float16)
        weight = pool.new_empty(tile.columns, dtype=torch.float32)
        _relative_rows(val, columns, weight, _UNIT / len(val))
        unit = 1 / (t * _scale(t) ** 2)  # u = x · unit
        series = ((-unit) ** k / (k * (k - 1) * _UNIT) for k in range(2, 6))
        shape = {"slope": unit / math.e, "series": tuple(series)}
        twice = n * len(val) * c * c > _FEW_ENTRIES

        def reduce(rows: Tensor, mean: Tensor, part: Tensor) -> Tensor:
            if not twice:
                _reduce("careful", tile, rows, columns, weight, mean, part, **shape)
                return part.sum(1)
            _reduce("information", tile, rows, columns, weight, mean, part, **shape)
            scores = part.sum(1).sub_(_BIAS)
            _reduce("careful", tile, rows, columns, weight, mean, part, scores, True, **shape)
            return torch.where(scores < _PLENTY, part.sum(1), scores)

        return _over_pool(pool, tile, scratch, reduce)


def brier_reduction(
    pool: Float[Tensor, "n t c"], val: Float[Tensor, "m t c"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """Expected reduction of the Brier loss; the validation set enters as one t×t matrix only."""
    t = pool.shape[1]
    with torch.cuda.device_of(pool):
        gram = _gram(val, scratch)
        # S + εI = L Lᵀ makes every score a sum of squares. In float64 there is room for an ε far
        # below what float32 can see, so no eigenvalues are needed.
        jitter = gram.diagonal().mean() * 1e-12 + 1e-290
        eye = torch.eye(t, dtype=gram.dtype, device=gram.device)
        root, _ = torch.linalg.cholesky_ex(gram + jitter * eye)
        tile = _Tile(t, t, "squares")
        unit = root.abs().amax(0)  # columns of very different size: each in a unit of its own
        columns = pool.new_zeros(tile.columns, tile.row_length, dtype=torch.float16)
        columns[:t, :t] = (root / unit * 2.0**15).T
        weight = pool.new_zeros(tile.columns, dtype=torch.float32)
        weight[:t] = (unit / (2.0**15 * _scale(t) * t)).square()

        def reduce(rows: Tensor, mean: Tensor, part: Tensor) -> Tensor:
            _reduce("squares", tile, rows, columns, weight, mean, part)
            return part.sum(1)

        return _over_pool(pool, tile, scratch, reduce)


def matrix_loss_reduction(
    pool: Float[Tensor, "n t c"], cost: Float[Tensor, "m t a"], scratch: int = SCRATCH
) -> Float[Tensor, "n"]:
    """Expected reduction of the cost of the best action; ``cost`` is E[ℓ(Y_j, a) | θ_t]."""
    t = pool.shape[1]
    m, _, actions = cost.shape
    with torch.cuda.device_of(pool):
        tile = _Tile(t, m * actions, "savings")
        # A tile of columns is so many actions by so many targets: pad as little as possible.
        group = min((8, 16, 32, 64), key=lambda g: _up(m, g) * _up(actions, tile.block_n // g))
        groups, padded = -(-m // group), _up(actions, tile.block_n // group)
        size = groups * group
        length = tile.row_length * (2 if tile.low else 1)
        columns = pool.new_empty(size * padded, length, dtype=torch.float16)
        offset = pool.new_empty(size * padded, dtype=torch.float32)
        weight = pool.new_empty(size, dtype=torch.float32)
        block_a = min(64, triton.next_power_of_2(actions))
        _savings[(size,)](
            cost,
            *cost.stride(),
            columns,
            offset,
            weight,
            m,
            t,
            actions,
            padded,
            tile.row_length,
            2.0**15,
            1 / m,
            GROUP=group,
            BLOCK_T=min(max(64, triton.next_power_of_2(t)), 4096 // block_a),
            BLOCK_A=block_a,
            LOW=tile.low,
        )

        def reduce(rows: Tensor, mean: Tensor, part: Tensor) -> Tensor:
            _reduce(
                "savings",
                tile,
                rows,
                columns,
                weight,
                mean,
                part,
                offset=offset,
                group=group,
                groups=groups,
                slope=1 / (t * _scale(t) * 2.0**15),
            )
            return part.sum(1)

        return _over_pool(pool, tile, scratch, reduce)


def parameter_information(pool: Float[Tensor, "n t c"]) -> Float[Tensor, "n"]:
    """I(Y_i; θ): how far the draws diverge from their mean."""
    n, t, c = pool.shape
    out = pool.new_empty(n, c, dtype=torch.float32)
    with torch.cuda.device_of(pool):
        if n:
            _parameter_information[(triton.cdiv(n * c, _BLOCK),)](
                pool,
                *pool.stride(),
                out,
                n * c,
                t,
                c,
                APPROX=_APPROX,
                TINY=TINY,
                **_cut(pool, t),
            )
        return out.sum(1)


# --- launching --------------------------------------------------------------------------------


class _Tile:
    """How a sweep is cut: rows by columns a program, and the pieces of K. Sizes found by trying."""

    def __init__(self, t: int, columns: int, how: str) -> None:
        self.resident = t <= _RESIDENT
        # Squares have few columns for any targets, and so many rows that prepared ones are faster.
        self.fresh = self.resident and columns <= _FEW_COLUMNS and how != "squares"
        self.low = self.fresh and how == "savings"
        self.held = False
        if self.resident:
            self.row_length = _up(t, 16)
            bits = [1 << k for k in range(7, 3, -1) if self.row_length >> k & 1]
            self.pieces = (*bits, 0, 0)[:3]
            self.block_m, self.block_n, self.warps, self.stages = 256, 64, 8, 2
            if self.fresh or how == "squares":
                self.block_m, self.block_n = 128, 128
            elif how == "information" and self.row_length < _RESIDENT:
                self.held, self.stages = True, 3
        else:
            self.row_length = _up(t, _BLOCK_K)
            self.pieces = (_BLOCK_K, 0, 0)
            self.block_m, self.block_n, self.warps, self.stages = 128, 128, 8, 4
        self.columns = _up(columns, self.block_n)


def _reduce(
    how: str,
    tile: _Tile,
    rows: Tensor,
    columns: Float[Tensor, "q k"],
    weight: Float[Tensor, "q"],
    mean: Float[Tensor, "n c"],
    out: Float[Tensor, "n c"],
    scores: Float[Tensor, "n"] | None = None,
    select: bool = False,
    offset: Float[Tensor, "q"] | None = None,
    group: int = 8,
    groups: int = 1,
    slope: float = 0.0,
    series: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),
) -> None:
    """Sweep ``rows``: probabilities [n t c] if they are to be fresh, else [r k] beside ``mean``."""
    k1, k2, k3 = tile.pieces
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    if _APPROX and tile.resident and not tile.low:
        options["maxnreg"] = 128  # two programs on a multiprocessor: one multiplies, one reduces
    t, strides = (rows.shape[1], rows.stride()) if tile.fresh else (1, (0, 0, 0))
    _sweep[(triton.cdiv(out.numel(), tile.block_m),)](
        rows,
        *strides,
        columns,
        weight,
        weight if offset is None else offset,
        mean,
        mean if scores is None else scores,
        out,
        out.numel(),
        t,
        out.shape[1],
        groups,
        len(columns) // tile.block_n // groups,
        tile.row_length,
        _scale(t),
        slope,
        *series,
        _PLENTY,
        REDUCE=how,
        SELECT=select,
        K1=k1,
        K2=k2,
        K3=k3,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        GROUP=group,
        INVERSE_E=_INVERSE_E,
        OFFSET=_GUARDED_OFFSET if how == "careful" else _OFFSET,
        TINY=TINY,
        APPROX=_APPROX,
        RESIDENT=tile.resident,
        FRESH=tile.fresh,
        LOW=tile.low,
        HELD=tile.held,
        WIDE=tile.fresh and _is_wide(rows),
        **options,
    )


def _over_pool(
    pool: Float[Tensor, "n t c"],
    tile: _Tile,
    scratch: int,
    reduce: Callable[[Tensor, Float[Tensor, "b c"], Float[Tensor, "b c"]], Float[Tensor, "b"]],
) -> Float[Tensor, "n"]:
    """Reduce all points, or as many at a time as ``scratch`` holds the rows of."""
    n, _, c = pool.shape
    if n == 0:
        return pool.new_empty(0, dtype=torch.float32)
    if tile.fresh:
        part = pool.new_empty(n, c, dtype=torch.float32)
        return reduce(pool, part, part)
    points = min(n, max(1, scratch // (2 * tile.row_length * c)))
    rows = pool.new_empty(_up(points * c, tile.block_m), tile.row_length, dtype=torch.float16)
    scores = []
    for some in pool.split(points):
        mean, part = (pool.new_empty(len(some), c, dtype=torch.float32) for _ in range(2))
        _relative_rows(some, rows, mean, 1.0)
        scores.append(reduce(rows, mean, part))
    return scores[0] if len(scores) == 1 else torch.cat(scores)


def _relative_rows(
    probs: Float[Tensor, "n t c"], rows: Float[Tensor, "r k"], mean: Tensor, share: float
) -> None:
    """Set rows and means p̄·share; as many as there are means, zeros beyond the columns."""
    n, t, c = probs.shape
    length = rows.shape[1]
    _deviations[(triton.cdiv(mean.numel(), _BLOCK),)](
        probs,
        *probs.stride(),
        rows,
        mean,
        n * c,
        t,
        c,
        mean.numel(),
        length,
        _scale(t),
        share,
        RELATIVE=True,
        TINY=TINY,
        **_cut(probs, length),
    )


def _gram(val: Float[Tensor, "m t c"], scratch: int) -> Float[Tensor, "t t"]:
    """Σ_jc (Q − q̄)(Q − q̄)ᵀ / m in float64."""
    m, t, c = val.shape
    total = torch.zeros(t, t, dtype=torch.float64, device=val.device)
    for part in val.split(max(1, scratch // (8 * t * c))):
        # Many short products and a sum: one long product of t×t would keep few cores busy.
        splits = min(64, len(part))
        rows = total.new_empty(splits, -(-len(part) // splits) * c, t)
        padded = splits * rows.shape[1]
        mean = val.new_empty(padded, dtype=torch.float32)
        _deviations[(triton.cdiv(padded, _BLOCK),)](
            part,
            *part.stride(),
            rows,
            mean,
            len(part) * c,
            t,
            c,
            padded,
            t,
            1.0,
            1.0,
            RELATIVE=False,
            TINY=TINY,
            **_cut(part, t),
        )
        total += torch.bmm(rows.mT, rows).sum(0)
    return total / m


def _cut(probs: Float[Tensor, "n t c"], length: int) -> dict[str, int]:
    """How the kernels that take columns one by one cut their draws."""
    once = length <= 128
    block_t = max(16, triton.next_power_of_2(length)) if once else 64
    return {"WIDE": _is_wide(probs), "ONCE": once, "BLOCK_T": block_t, "BLOCK": _BLOCK}


def _is_wide(probs: Float[Tensor, "n t c"]) -> bool:
    """Tell whether steps along the draws need 64 bits."""
    return probs.shape[1] * probs.stride(1) >= 1 << 31


def _scale(t: int) -> float:
    """A power of two for deviations, at most t − 1. Beyond 2⁸ powers of u would leave float32."""
    return 2.0 ** min(8, math.floor(math.log2(_HALF_MAX / t)))


def _up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple
