"""Data and columns in the forms that the GPU kernels read: scaled, padded to whole tiles, split into halves."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.kernels import RBF, Matern

WHOLE = 128
"""Rows are padded to a multiple of this; the length of every tile divides it."""

RANGE = 2000
"""Length of the longest row of whole numbers: its squares and their sums are exact in float32."""

NORMS = 4
"""Features that fixed-point rows have beside their own: two halves of each of two norms, for both factors."""

LARGE = 1024.0
"""Unit of the first of the two halves into which a squared norm is divided."""

MARGIN = 1.25
"""Points may be so many times further from the centre than the furthest row of the data before fixed point ends."""

FIXED_RADIUS = 64.0
"""Largest distance from the centre, in scaled units, at which fixed point serves.

The error of its coordinates is a 2²³rd of this distance for every row; float32 numbers are better on wider data, since
the rows near the centre have smaller errors there.
"""

LARGEST_RADIUS = {torch.float32: 1e15, torch.float64: 1e150}
"""Distances from the centre whose squares still are numbers of this precision."""

FEATURES_AT_ONCE = 64
"""Features that tensor cores take at once; further ones are added in a loop."""

CORRELATION_SHIFT, COLUMN_SHIFT = 15, 14
"""Powers of two by which correlations and columns, at most 1 in size, are multiplied before they become halves."""

MOST_SLOPES = 16
"""Features whose squared differences one program of a gradient sums, at most."""

COLUMNS = {torch.float32: 128, torch.float64: 32}
"""Right-hand sides that one launch takes: more sums than these do not fit the registers."""


def scaling(kernel: RBF | Matern) -> float:
    """Return what x in lengthscales is multiplied by so that correlations are functions of q = |x − y|².

    The RBF then is 2^−q, and the exponent of a Matérn correlation is −√q.
    """
    return math.sqrt(2 * kernel.nu) if isinstance(kernel, Matern) else math.sqrt(0.5 / math.log(2))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Scaled rows in one form: numbers by feature, or fixed-point halves.

    A matrix product of the halves of two sets of rows gives distances if one set comes as left and one as right factor.
    """

    left: Tensor  # (D, padded) floats, or (padded, 2 D) halves
    right: Tensor  # the same floats, or halves with the norms in other places
    count: int  # rows that are not padding
    features: int  # D
    step: float  # of the fixed point; 0 for floats

    @property
    def is_fixed(self) -> bool:
        """Whether they are fixed-point halves."""
        return self.step > 0

    @property
    def padded(self) -> int:
        """Return the rows with padding."""
        return padded(self.count)

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision in which correlations are computed from them."""
        return torch.float32 if self.is_fixed else self.left.dtype


def padded(count: int) -> int:
    """Return the next multiple of `WHOLE`."""
    return -(-count // WHOLE) * WHOLE


def power_of_two(count: int, least: int) -> int:
    """Return the next power of two, at least ``least``."""
    return max(1 << (max(count, 1) - 1).bit_length(), least)


def in_chunks(features: int) -> tuple[int, int]:
    """Return into how many programs the features of a gradient are divided, and how many each of them takes."""
    chunks = -(-features // MOST_SLOPES)
    return chunks, -(-features // chunks)


def by_feature(Z: Tensor, dtype: torch.dtype) -> Coordinates:
    """Return scaled rows Z (n, d) as (d, padded) numbers, and features of zeros after them that fill `in_chunks`."""
    (n, d), (chunks, used) = Z.shape, in_chunks(Z.shape[1])
    numbers = torch.zeros(chunks * used, padded(n), dtype=dtype, device=Z.device)
    numbers[:d, :n] = Z.T
    return Coordinates(numbers, numbers, n, d, 0.0)


def fixed_point(Z: Tensor, step: float) -> Coordinates:
    """Return scaled rows Z (n, d), none longer than ``RANGE * step``, as whole numbers h and fractions l of the step.

    The last four features of a left factor are −a, −b, 1024, 1 in h and −c, −e, 0, 0 in l, where ½|h|² = 1024 a + b and
    h·l + ½|l|² = 1024 c + e; a right factor has the first two and the last two exchanged.
    """
    n, d = Z.shape
    whole = d + NORMS
    D = power_of_two(whole, 16) if whole <= FEATURES_AT_ONCE else -(-whole // FEATURES_AT_ONCE) * FEATURES_AT_ONCE
    units = Z / step
    high = units.round()
    low = (units - high).half().double()  # exactly the fraction that is stored: the norm belongs to it
    half, rest = 0.5 * high.square().sum(1), (high * low).sum(1) + 0.5 * low.square().sum(1)
    a = (half / LARGE).floor()
    c = (rest / LARGE).half().double()
    one, zero = torch.ones_like(half), torch.zeros_like(half)
    own, other = torch.stack([-a, LARGE * a - half], 1), torch.stack([LARGE * one, one], 1)
    small, none = torch.stack([-c, LARGE * c - rest], 1), torch.stack([zero, zero], 1)
    left, right = (torch.zeros(padded(n), 2 * D, dtype=torch.float16, device=Z.device) for _ in range(2))
    for halves, places in ((left, (own, other, small, none)), (right, (other, own, none, small))):
        halves[:n, :d], halves[:n, D - 4 : D - 2], halves[:n, D - 2 : D] = (
            high.half(),
            places[0].half(),
            places[1].half(),
        )
        halves[:n, D : D + d], halves[:n, -4:-2], halves[:n, -2:] = low.half(), places[2].half(), places[3].half()
    return Coordinates(left, right, n, D, step)


def step_for(radius: float) -> float:
    """Return the step of fixed-point numbers for rows up to this length, and somewhat longer ones."""
    return MARGIN * max(radius, 1e-30) / (RANGE - 1)


def columns_for(V: Tensor, dtype: torch.dtype, *, pairs: bool = False) -> Tensor:
    """Return columns V (m, k), entries at most 1 in size, as a kernel reads them for correlations of this precision.

    One column: (padded,) numbers. Several, or any number for ``pairs``: (padded, T) float64 numbers or (padded, 2 T)
    halves times 2^`COLUMN_SHIFT`, T the next power of two from 16 on.
    """
    m, k = V.shape
    if k == 1 and not pairs:
        single = torch.zeros(padded(m), dtype=dtype, device=V.device)
        single[:m] = V[:, 0]
        return single
    T = power_of_two(k, 16)
    if dtype == torch.float64:
        numbers = torch.zeros(padded(m), T, dtype=dtype, device=V.device)
        numbers[:m, :k] = V
        return numbers
    V = V * 2.0**COLUMN_SHIFT
    high = V.half()
    halves = torch.zeros(padded(m), 2 * T, dtype=torch.float16, device=V.device)
    halves[:m, :k], halves[:m, T : T + k] = high, (V - high.double()).half()
    return halves


def powers_of(Z: Tensor, radius: float) -> Tensor:
    """Return (n, 2 d + 1) columns 1, z_r and z_r² for z = Z / radius, which none of the rows exceeds."""
    Z = Z / radius
    return torch.cat([torch.ones_like(Z[:, :1]), Z, Z.square()], 1)
