"""Launch the GPU kernels on data in the right form, and add up what their programs leave."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from kernelcg.backends.triton import kernels
from kernelcg.backends.triton.forms import (
    COLUMN_SHIFT,
    CORRELATION_SHIFT,
    FEATURES_AT_ONCE,
    WHOLE,
    Coordinates,
    columns_for,
    in_chunks,
    power_of_two,
    powers_of,
)

Arguments = ParamSpec("Arguments")

LARGEST_SPAN = 16_384
"""Columns that are summed in the precision of the entries before they are added up in float64."""

PARTS, SMALLEST_SPAN = 16, 512
"""Parts into which fewer columns are divided, for enough programs to keep a GPU busy, and the least worth one."""

PARTIAL_SUMS = 2**26
"""Numbers of partial sums that are held at once."""

MOMENTS = 63
"""Features whose moments 1, y_r, y_r² one launch sums, at most."""


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a tile, and how many warps and stages of a pipeline work on it."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2

    def __post_init__(self) -> None:
        if any(length < 16 or WHOLE % length for length in (self.rows, self.columns)):
            raise ValueError(f"rows and columns of a tile must be powers of two from 16 to {WHOLE}: {self}")
        if self.warps not in (1, 2, 4, 8, 16) or not 1 <= self.stages <= 8:
            raise ValueError(f"a tile has 1, 2, 4, 8 or 16 warps and up to 8 stages: {self}")


def _where_the_data_are(
    launch: Callable[Concatenate[Coordinates, Arguments], Tensor],
) -> Callable[Concatenate[Coordinates, Arguments], Tensor]:
    """Make the device of the first argument the current one meanwhile: Triton launches there, whatever it is given."""

    @wraps(launch)
    def run(A: Coordinates, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Tensor:
        with torch.cuda.device_of(A.left):
            return launch(A, *arguments, **named)

    return run


@_where_the_data_are
def product(A: Coordinates, B: Coordinates, V: Tensor, profile: int, tile: Tile) -> Tensor:
    """Return (n, k) Σ_j k(a_i, b_j) v_j in float64, for entries of V (m, k) that are at most 1 in size, k ≤ 128."""
    k, wide = V.shape[1], A.dtype == torch.float64
    split = k > 1 and not wide
    columns = columns_for(V, A.dtype)
    T = 1 if k == 1 else power_of_two(k, 16)
    parts, span = _parts(B.padded, tile.columns)
    result = torch.empty(A.padded, T, dtype=torch.float64, device=V.device)
    for first, rows in _launches(A.padded, parts * T, tile):
        sums = torch.empty(parts, rows, T, dtype=A.dtype, device=V.device)
        kernels.product[(rows // tile.rows, parts)](
            A.left,
            B.right,
            columns,
            sums,
            A.padded,
            B.padded,
            first,
            span,
            -2.0 * A.step**2,
            D=A.features,
            STEP=_features_at_once(A),
            T=T,
            SCALE=2.0**CORRELATION_SHIFT if split else 1.0,
            BM=tile.rows,
            BN=tile.columns,
            PROFILE=profile,
            FIXED=A.is_fixed,
            F64=wide,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        torch.sum(sums, 0, dtype=torch.float64, out=result[first : first + rows])
    result = result[: A.count, :k]
    return result.mul_(2.0 ** -(CORRELATION_SHIFT + COLUMN_SHIFT)) if split else result


@_where_the_data_are
def gradient(
    A: Coordinates,
    B: Coordinates,
    pairs: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor] | None,
    profile: int,
    tile: Tile,
    *,
    per_feature: bool,
) -> Tensor:
    """Return Σ_ij w_ij slope_ij (a_ir − b_jr)² for every feature r or summed over them, then Σ_ij w_ij k_ij, float64.

    w_ij = Σ_c left_ic right_jc for the ``pairs`` left, right, plus weights_ij times a number for ``weights`` of both.
    The coordinates are floats by feature.
    """
    left, right = pairs
    device, wide, T = left.device, A.dtype == torch.float64, power_of_two(left.shape[1], 16)
    chunks, used = in_chunks(A.features) if per_feature else (1, 0)
    chunk = power_of_two(used, 1)
    parts, span = _parts(B.padded, tile.columns)
    blocks = A.padded // tile.rows
    sums = torch.empty(parts, blocks, chunks, 2, chunk, dtype=A.dtype, device=device)
    given, factor = (sums, sums) if weights is None else weights
    kernels.gradient[(blocks, parts, chunks)](
        A.left,
        B.right,
        columns_for(left, A.dtype, pairs=True),
        columns_for(right, A.dtype, pairs=True),
        1.0 if wide else 2.0 ** (-2 * COLUMN_SHIFT),
        given,
        factor,
        sums,
        A.count,
        A.padded,
        B.padded,
        span,
        D=A.features,
        T=T,
        CHUNK=chunk,
        USED=used,
        BM=tile.rows,
        BN=tile.columns,
        PROFILE=profile,
        F64=wide,
        WEIGHTED=weights is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    total = sums.sum((0, 1), dtype=torch.float64)  # (chunks, 2, chunk)
    return torch.cat([total[:, 0, : max(used, 1)].flatten()[: A.features], total[0, 1, :1]])


@_where_the_data_are
def gradient_by_moments(
    A: Coordinates,
    B: Coordinates,
    rows: tuple[Tensor, Tensor],
    pairs: tuple[Tensor, Tensor],
    profile: int,
    tile: Tile,
    radius: float,
) -> Tensor:
    """Return the gradient for every feature as `gradient` does, from fixed-point coordinates of scaled rows (n, d).

    No row is longer than ``radius``. A launch takes as many features as its moments 1, y_r, y_r² have columns.
    """
    (X, Y), T, device = rows, power_of_two(pairs[0].shape[1], 16), A.left.device
    halves = [columns_for(V, torch.float32, pairs=True) for V in pairs]
    parts, span = _parts(B.padded, tile.columns)
    found, value = [], torch.zeros((), dtype=torch.float64, device=device)
    for first_feature in range(0, X.shape[1], MOMENTS):
        own, other = (powers_of(Z[:, first_feature : first_feature + MOMENTS], radius) for Z in (X, Y))
        powers = columns_for(other, torch.float32, pairs=True)
        P = powers.shape[1] // 2
        slopes, value = torch.zeros(own.shape[1] // 2, dtype=torch.float64, device=device), torch.zeros_like(value)
        for first, count in _launches(A.padded, parts * P, tile):
            sums = torch.empty(parts, count, P, dtype=torch.float32, device=device)
            values = torch.empty(parts, count, dtype=torch.float32, device=device)
            kernels.moments[(count // tile.rows, parts)](
                A.left,
                B.right,
                *halves,
                2.0 ** (-2 * COLUMN_SHIFT) / T,
                powers,
                sums,
                values,
                A.padded,
                B.padded,
                first,
                span,
                -2.0 * A.step**2,
                D=A.features,
                STEP=_features_at_once(A),
                T=T,
                P=P,
                SCALE=2.0**CORRELATION_SHIFT,
                BM=tile.rows,
                BN=tile.columns,
                PROFILE=profile,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
            some = own[first : first + count]
            moment = sums.sum(0, dtype=torch.float64)[: len(some), : own.shape[1]]
            slopes += _squares_of_moments(some, moment)
            value += values.sum(dtype=torch.float64)
        found.append(slopes * (radius**2 * 2.0**-COLUMN_SHIFT))
    return torch.cat([*found, value[None]]) * (T * 2.0**-CORRELATION_SHIFT)


def _squares_of_moments(own: Tensor, moment: Tensor) -> Tensor:
    """Return Σ_i x_ir² m_i − 2 x_ir m_ir + m'_ir for powers 1, x, x² of rows and their moments m, m_r, m'_r."""
    (_, x, squares), (total, first, second) = (M.split([1, M.shape[1] // 2, M.shape[1] // 2], 1) for M in (own, moment))
    return (squares * total - 2 * x * first + second).sum(0)


@_where_the_data_are
def block(A: Coordinates, B: Coordinates, variance: Tensor, profile: int, tile: Tile) -> Tensor:
    """Return (n, m) σ² k(a_i, b_j) of coordinates by feature, in their precision, which ``variance`` (1,) has too."""
    result = A.left.new_empty(A.count, B.count)
    grid = (-(-A.count // tile.rows), -(-B.count // tile.columns))
    kernels.block[grid](
        A.left,
        B.right,
        variance,
        result,
        A.count,
        B.count,
        A.padded,
        B.padded,
        D=A.features,
        BM=tile.rows,
        BN=tile.columns,
        PROFILE=profile,
        F64=A.dtype == torch.float64,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return result


def _features_at_once(A: Coordinates) -> int:
    return min(A.features, FEATURES_AT_ONCE)


def _launches(rows: int, each: int, tile: Tile) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of every launch, if each row leaves so many partial sums."""
    at_once = max(PARTIAL_SUMS // each // tile.rows, 1) * tile.rows
    for first in range(0, rows, at_once):
        yield first, min(at_once, rows - first)


def _parts(columns: int, width: int) -> tuple[int, int]:
    """Return the number of parts of so many columns and the columns of each, whole tiles, whatever the rows are."""
    span = min(max(columns // PARTS, SMALLEST_SPAN), LARGEST_SPAN)
    span = -(-span // width) * width
    return -(-columns // span), span
