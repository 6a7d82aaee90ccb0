"""What happens to one tile, compiled by numba: float32 NumPy arrays.

The functions, their arguments and their meaning are those of `elementwise`. They release the GIL,
so `tiled` runs a tile on each core. Nothing is compiled on import; numba keeps what it compiled
on disk.
"""

import math

import numba
import numpy as np
from numba import float32, int32
from numba.extending import intrinsic

from foresee.kernels.elementwise import TINY

# Sums may be reordered and multiply-adds fused, which is what lets loops run in vector registers;
# NaN and infinity keep their meaning.
_compile = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}
)
_inline = numba.njit(inline="always", error_model="numpy")

_ZERO, _ONE, _TINY = np.float32(0), np.float32(1), np.float32(TINY)
_EXPONENT = np.int32(-(1 << 23))  # mask of a float's sign and exponent
_BIAS = np.int32(127 << 23)
_SQRT_HALF = np.int32(0x3F3504F3)  # bits of √½
_LOG2_PER_EXPONENT = np.float32(math.log(2) / (1 << 23))
# φ(f) / f² on [√½ − 1, √2 − 1] by a Chebyshev fit; relative error 3.5e-8.
_P0, _P1, _P2, _P3 = map(np.float32, (0.5, -0.16666703, 0.08333504, -0.04996966))
_P4, _P5, _P6, _P7 = map(np.float32, (0.03323517, -0.024405537, 0.019763948, -0.011298547))


@intrinsic
def _bits(typingctx, x):
    def bitcast(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(int32))

    return int32(float32), bitcast


@intrinsic
def _float(typingctx, x):
    def bitcast(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(float32))

    return float32(int32), bitcast


@_inline
def _phi(u):
    """φ(u) = (1+u) log(1+u) − u without a branch.

    Write 1 + u = 2^k (1 + f) with 1 + f in [√½, √2). Then
    φ(u) = 2^k φ(f) + (1+u) k log 2 + 1 − 2^k, and where k = 0, f is u itself: no digit is lost.
    """
    s = max(_ONE + u, _ZERO)
    bits = _bits(s)
    k = np.int32(np.int32(bits - _SQRT_HALF) & _EXPONENT)
    f = u if k == np.int32(0) else _float(np.int32(bits - k)) - _ONE
    power = _float(np.int32(k + _BIAS))
    poly = ((((((_P7 * f + _P6) * f + _P5) * f + _P4) * f + _P3) * f + _P2) * f + _P1) * f + _P0
    return power * (f * f * poly) + (s * (np.float32(k) * _LOG2_PER_EXPONENT) + (_ONE - power))


@_compile
def are_probabilities(probs, tolerance):
    """See `elementwise.are_probabilities`."""
    rows = probs.reshape(-1, probs.shape[-1])
    for r in range(len(rows)):
        total, lowest = _ZERO, _ZERO
        for k in range(rows.shape[1]):
            total += rows[r, k]
            lowest = min(lowest, rows[r, k])
        if not abs(total - _ONE) <= tolerance or lowest < _ZERO:
            return False
    return True


@_compile
def deviations(probs, rows, mean):
    """See `elementwise.deviations`."""
    n, t, c = probs.shape
    total = np.empty(c, np.float64)
    for i in range(n):
        total[:] = 0
        for d in range(t):
            for k in range(c):
                total[k] += probs[i, d, k]
        for k in range(c):
            p = np.float32(total[k] / t)
            mean[i, k] = p
            scale = _ONE / p if p > _TINY else _ZERO
            for d in range(t):
                rows[i * c + k, d] = (probs[i, d, k] - p) * scale


@_compile
def standardised(probs, rows, pair):
    """See `elementwise.standardised`."""
    n, t, _ = probs.shape
    for i in range(n):
        zero, one = 0.0, 0.0
        for d in range(t):
            zero += probs[i, d, 0]
            one += probs[i, d, 1]
        rare = 0 if zero <= one else 1
        p, rest = np.float32(min(zero, one) / t), np.float32(max(zero, one) / t)
        pair[i, 0], pair[i, 1] = p, rest
        scale = _ONE / np.sqrt(p * rest) if p > _TINY else _ZERO
        for d in range(t):
            rows[i, d] = (probs[i, d, rare] - p) * scale


@_compile
def information(u, weight, mean, out):
    """See `elementwise.information`."""
    n, c = mean.shape
    for i in range(n):
        score = 0.0
        for k in range(c):
            row, total = u[i * c + k], _ZERO
            for b in range(len(weight)):
                total += weight[b] * _phi(row[b])
            score += mean[i, k] * total
        out[i] += np.float32(score)


@_compile
def binary_information(corr, val, pair, out):
    """See `elementwise.binary_information`."""
    n, m = corr.shape
    odds = np.sqrt(val[:, 1] / np.maximum(val[:, 0], _TINY))
    inverse = _ONE / odds
    q, not_q = val[:, 0].copy(), val[:, 1].copy()
    for i in range(n):
        up = np.sqrt(pair[i, 1] / max(pair[i, 0], _TINY))
        down = _ONE / up
        rare, usual = _ZERO, _ZERO
        for j in range(m):
            high, low = corr[i, j] * odds[j], corr[i, j] * inverse[j]
            rare += q[j] * _phi(high * up) + not_q[j] * _phi(-low * up)
            usual += q[j] * _phi(-high * down) + not_q[j] * _phi(low * down)
        out[i] += pair[i, 0] * rare + pair[i, 1] * usual


@_compile
def squares(u, mean, out):
    """See `elementwise.squares`."""
    n, c = mean.shape
    for i in range(n):
        score = 0.0
        for k in range(c):
            row, total = u[i * c + k], _ZERO
            for b in range(len(row)):
                total += row[b] * row[b]
            score += mean[i, k] * total
        out[i] += np.float32(score)


@_compile
def savings(u, saving, mean, out):
    """See `elementwise.savings`."""
    n, c = mean.shape
    actions, targets = saving.shape
    best = np.empty(targets, np.float32)
    for i in range(n):
        score = 0.0
        for k in range(c):
            best[:] = _ZERO
            for a in range(actions):
                row = u[i * c + k, a * targets : (a + 1) * targets]
                for j in range(targets):
                    best[j] = max(best[j], saving[a, j] + row[j])
            total = _ZERO
            for j in range(targets):
                total += best[j]
            score += mean[i, k] * total
        out[i] += np.float32(score)
