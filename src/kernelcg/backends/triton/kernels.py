"""Fused GPU kernels: products, gradients and blocks of RBF and Matérn correlations that are never stored.

Lengths are padded by the caller to whole tiles with zeros, so that no load needs a mask. Coordinates are scaled so that
q = |x − y|² is all a correlation needs (`forms.scaling`), and come in one of two forms.

Direct: (D, rows) numbers, one feature after the other, from which q is summed by differences.

Fixed point: x = step · (h + l) with whole numbers h, |h|₂ ≤ 2000, and fractions l, both exact in float16. Tensor cores
multiply such halves exactly and add them up in float32, and the sums of h hᵀ are whole numbers below 2²³: in

    −½ |x − y|² / step² = (h hᵀ − ½|h_x|² − ½|h_y|²) + (h lᵀ + l hᵀ + l lᵀ − r_x − r_y),    r = h·l + ½|l|²,

the first bracket has no rounding at all, and the second is a thousand times smaller than |x|². So nothing is lost by
cancellation, as it is in |x|² + |y|² − 2xy in float32: entries are as accurate as by differences of float32 numbers.
The norms are four more features (`forms.fixed_point`), so that the whole is four matrix products.

Columns V for tensor cores are pairs of halves, v = high + low, to 22 bits; correlations are split likewise. Both are
multiplied by powers of two before, so that low halves are no subnormal numbers.

References
----------
Ootomo & Yokota (2022), Int. J. High Perform. Comput. Appl. 36, for products of split halves.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

UNROLLED = tl.constexpr(32)
"""Features up to which sums of squared differences are unrolled."""


@triton.jit
def correlation(q, SCALE: tl.constexpr, PROFILE: tl.constexpr):
    """Return SCALE times the correlation: 0 is the RBF, 1, 2, 3 are Matérn 1/2, 3/2, 5/2.

    A power of two multiplies without rounding; added to the exponent it would take digits from it.
    """
    if PROFILE == 0:
        k = tl.exp2(-q) * SCALE
    else:
        r = tl.sqrt(q)
        e = tl.exp2(-r * LOG2E) * SCALE
        if PROFILE == 1:
            k = e
        elif PROFILE == 2:
            k = (1.0 + r) * e
        else:
            k = (1.0 + r + q / 3.0) * e
    return k


@triton.jit
def correlation_and_slope(q, SCALE: tl.constexpr, PROFILE: tl.constexpr):
    """Return the same and SCALE times what (x_r − y_r)² is multiplied by for ∂k/∂log l_r.

    A factor 2 ln 2 of the slope of the RBF is left out.
    """
    if PROFILE == 0:
        k = tl.exp2(-q) * SCALE
        slope = k
    else:
        r = tl.sqrt(q)
        e = tl.exp2(-r * LOG2E) * SCALE
        if PROFILE == 1:
            k = e
            slope = tl.where(q > 0.0, e / tl.where(q > 0.0, r, 1.0), 0.0)
        elif PROFILE == 2:
            k = (1.0 + r) * e
            slope = e
        else:
            slope = (1.0 + r) * e * (1.0 / 3.0)
            k = (1.0 + r + q * (1.0 / 3.0)) * e
    return k, slope


@triton.jit
def direct_squares(A, B, i, j, rows, columns, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, F64: tl.constexpr):
    """Return |x_i − y_j|² by differences."""
    q = tl.zeros((BM, BN), tl.float64 if F64 else tl.float32)
    if D <= UNROLLED:
        for r in tl.static_range(D):
            u = tl.load(A + r * rows + i)[:, None] - tl.load(B + r * columns + j)[None, :]
            q += u * u
    else:
        for r in range(D):
            u = tl.load(A + r * rows + i)[:, None] - tl.load(B + r * columns + j)[None, :]
            q += u * u
    return q


@triton.jit
def halves(A, i, first, D: tl.constexpr, STEP: tl.constexpr):
    """Return high and low halves of STEP numbers of each row i, (rows, STEP) each, of a (n, 2 D) matrix."""
    at = A + i.to(tl.int64)[:, None] * (2 * D) + (first + tl.arange(0, STEP))[None, :]
    return tl.load(at), tl.load(at + D)


@triton.jit
def fixed_squares(
    A, B, i, j, high_i, low_i, unit, D: tl.constexpr, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Return |x_i − y_j|² from fixed-point halves; ``unit`` is −2 step², high_i and low_i are used if D = STEP."""
    if D == STEP:
        high_j, low_j = halves(B, j, 0, D, STEP)
        q = tl.dot(high_i, tl.trans(high_j))
        q = tl.dot(high_i, tl.trans(low_j), q)
        q = tl.dot(low_i, tl.trans(high_j), q)
        q = tl.dot(low_i, tl.trans(low_j), q)
    else:
        q = tl.zeros((BM, BN), tl.float32)
        for first in range(0, D, STEP):  # whole numbers first: their sum is exact
            high_a, low_a = halves(A, i, first, D, STEP)
            high_j, low_j = halves(B, j, first, D, STEP)
            q = tl.dot(high_a, tl.trans(high_j), q)
        for first in range(0, D, STEP):
            high_a, low_a = halves(A, i, first, D, STEP)
            high_j, low_j = halves(B, j, first, D, STEP)
            q = tl.dot(high_a, tl.trans(low_j), q)
            q = tl.dot(low_a, tl.trans(high_j), q)
            q = tl.dot(low_a, tl.trans(low_j), q)
    return q * unit


@triton.jit
def add_split(k, V, j, total, T: tl.constexpr):
    """Return total + k V for k (BM, BN) and the rows j of columns V (n, 2 T) in halves.

    Tensor cores cut off what an addition leaves beyond their digits, always towards zero, so that a long sum in them
    loses more the longer it is. They sum one tile; tiles are added up in float32, which rounds.
    """
    high_k = k.to(tl.float16)
    low_k = (k - high_k.to(tl.float32)).to(tl.float16)
    high_v, low_v = halves(V, j, 0, T, T)
    tile = tl.dot(low_k, high_v)
    tile = tl.dot(high_k, low_v, tile)
    return total + tl.dot(high_k, high_v, tile)


@triton.jit
def product(
    A,
    B,
    V,
    out,
    rows,
    columns,
    first_row,
    span,
    unit,
    D: tl.constexpr,
    STEP: tl.constexpr,
    T: tl.constexpr,
    SCALE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PROFILE: tl.constexpr,
    FIXED: tl.constexpr,
    F64: tl.constexpr,
):
    """Write to out (parts, rows of this launch, T) the sums SCALE Σ_j k(x_i, y_j) v_j over each part of the columns.

    One program sums one block of rows over one part, in the order of the columns.
    """
    block, part = tl.program_id(0), tl.program_id(1)
    own = block * BM + tl.arange(0, BM)
    i = first_row + own
    start = part * span
    stop = tl.minimum(start + span, columns)
    t = tl.arange(0, T)
    if FIXED and D == STEP:
        high_i, low_i = halves(A, i, 0, D, STEP)
    else:
        high_i, low_i = 0, 0
    if T == 1:
        total = tl.zeros((BM,), tl.float64 if F64 else tl.float32)
    else:
        total = tl.zeros((BM, T), tl.float64 if F64 else tl.float32)
    for j0 in range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        if FIXED:
            q = fixed_squares(A, B, i, j, high_i, low_i, unit, D, STEP, BM, BN)
            if PROFILE != 0:
                q = tl.maximum(q, 0.0)
        else:
            q = direct_squares(A, B, i, j, rows, columns, D, BM, BN, F64)
        k = correlation(q, SCALE, PROFILE)
        if T == 1:
            total += tl.sum(k * tl.load(V + j)[None, :], axis=1)
        elif F64:
            v = tl.load(V + j.to(tl.int64)[:, None] * T + t[None, :])
            total = tl.dot(k, v, total, out_dtype=tl.float64)
        else:
            total = add_split(k, V, j, total, T)
    row = part.to(tl.int64) * tl.num_programs(0) * BM + own
    if T == 1:
        tl.store(out + row, total)
    else:
        tl.store(out + row[:, None] * T + t[None, :], total)


@triton.jit
def pairs_of(left, right, i, j, high_left, low_left, T: tl.constexpr, F64: tl.constexpr):
    """Return w_ij = left_i · right_j, (BM, BN), for columns in halves, or in float64."""
    if F64:
        t = tl.arange(0, T)
        left_i = tl.load(left + i.to(tl.int64)[:, None] * T + t[None, :])
        right_j = tl.load(right + j.to(tl.int64)[:, None] * T + t[None, :])
        w = tl.dot(left_i, tl.trans(right_j), out_dtype=tl.float64)
    else:
        high_right, low_right = halves(right, j, 0, T, T)
        w = tl.dot(low_left, tl.trans(high_right))
        w = tl.dot(high_left, tl.trans(low_right), w)
        w = tl.dot(high_left, tl.trans(high_right), w)
    return w


@triton.jit(do_not_specialize=["n"])
def gradient(
    A,
    B,
    left,
    right,
    pair_unit,
    weights,
    weights_factor,
    out,
    n,
    rows,
    columns,
    span,
    D: tl.constexpr,
    T: tl.constexpr,
    CHUNK: tl.constexpr,
    USED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PROFILE: tl.constexpr,
    F64: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Write to out (parts, blocks, chunks of features, 2, CHUNK) what one program sums over its pairs (i, j).

    With w_ij = pair_unit left_i · right_j (+ weights_ij weights_factor): Σ w slope (x_ir − y_jr)² for the USED features
    r of a chunk, or if USED is 0 Σ w slope q, which is their sum over all features; beside it Σ w k. Everything comes
    from direct differences.
    """
    block, part, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = block * BM + tl.arange(0, BM)
    start = part * span
    stop = tl.minimum(start + span, columns)
    c = tl.arange(0, CHUNK)
    slopes = tl.zeros((BM, CHUNK), tl.float64 if F64 else tl.float32)
    values = tl.zeros((BM,), tl.float64 if F64 else tl.float32)
    if F64:
        high_left, low_left = 0, 0
    else:
        high_left, low_left = halves(left, i, 0, T, T)
    for j0 in range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        w = pairs_of(left, right, i, j, high_left, low_left, T, F64) * pair_unit
        if WEIGHTED:
            inside = (i < n)[:, None] & (j < n)[None, :]
            given = tl.load(weights + i.to(tl.int64)[:, None] * n + j[None, :], mask=inside, other=0.0)
            w += (given * tl.load(weights_factor)).to(w.dtype)
        q = direct_squares(A, B, i, j, rows, columns, D, BM, BN, F64)
        k, slope = correlation_and_slope(q, 1.0, PROFILE)
        values += tl.sum(w * k, axis=1)
        w = w * slope
        if USED == 0:
            slopes += tl.sum(w * q, axis=1)[:, None]
        else:
            for r in tl.static_range(USED):
                feature = chunk * USED + r
                u = tl.load(A + feature * rows + i)[:, None] - tl.load(B + feature * columns + j)[None, :]
                slopes += tl.where(c[None, :] == r, tl.sum(w * u * u, axis=1)[:, None], 0.0)
    place = ((part * tl.num_programs(0) + block) * tl.num_programs(2) + chunk) * (2 * CHUNK)
    tl.store(out + place + c, tl.sum(slopes, axis=0))
    tl.store(out + place + CHUNK + c, tl.sum(values, axis=0) + tl.zeros((CHUNK,), slopes.dtype))


@triton.jit
def moments(
    A,
    B,
    left,
    right,
    pair_unit,
    powers,
    out,
    values_out,
    rows,
    columns,
    first_row,
    span,
    unit,
    D: tl.constexpr,
    STEP: tl.constexpr,
    T: tl.constexpr,
    P: tl.constexpr,
    SCALE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PROFILE: tl.constexpr,
):
    """Write to out (parts, rows of this launch, P) SCALE Σ_j w_ij slope_ij p_j, to values_out Σ_j w_ij k_ij likewise.

    w_ij = pair_unit left_i · right_j is at most 1 in size; ``powers`` p (columns, 2 P) in halves hold 1, y_r and y_r²,
    of which a gradient for all lengthscales is made: (x_r − y_r)² = x_r² − 2 x_r y_r + y_r².
    """
    block, part = tl.program_id(0), tl.program_id(1)
    own = block * BM + tl.arange(0, BM)
    i = first_row + own
    start = part * span
    stop = tl.minimum(start + span, columns)
    p = tl.arange(0, P)
    total = tl.zeros((BM, P), tl.float32)
    values = tl.zeros((BM,), tl.float32)
    high_left, low_left = halves(left, i, 0, T, T)
    if D == STEP:
        high_i, low_i = halves(A, i, 0, D, STEP)
    else:
        high_i, low_i = 0, 0
    for j0 in range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        w = pairs_of(left, right, i, j, high_left, low_left, T, False) * pair_unit
        q = fixed_squares(A, B, i, j, high_i, low_i, unit, D, STEP, BM, BN)
        if PROFILE != 0:
            q = tl.maximum(q, 0.0)
        k, slope = correlation_and_slope(q, SCALE, PROFILE)
        values += tl.sum(w * k, axis=1)
        total = add_split(w * slope, powers, j, total, P)
    row = part.to(tl.int64) * tl.num_programs(0) * BM + own
    tl.store(out + row[:, None] * P + p[None, :], total)
    tl.store(values_out + row, values)


@triton.jit(do_not_specialize=["n", "m"])
def block(
    A,
    B,
    variance,
    out,
    n,
    m,
    rows,
    columns,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PROFILE: tl.constexpr,
    F64: tl.constexpr,
):
    """Write the entries σ² k(x_i, y_j) of an (n, m) block."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = correlation(direct_squares(A, B, i, j, rows, columns, D, BM, BN, F64), 1.0, PROFILE)
    inside = (i < n)[:, None] & (j < m)[None, :]
    tl.store(out + i.to(tl.int64)[:, None] * m + j[None, :], k * tl.load(variance), mask=inside)
