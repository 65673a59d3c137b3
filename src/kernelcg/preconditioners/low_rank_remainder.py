"""What recipes prepare: a low-rank factor of K and a rule for what it leaves."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.backends.memory import require_memory
from kernelcg.operators import ConstantInvertible
from kernelcg.preconditioners.base import checked_count
from kernelcg.preconditioners.rounded_low_rank import RoundedLowRank
from kernelcg.preconditioners.shapes import BlockDiagonal, Diagonal, Factored, LowRankPlus, SparseInverse

LARGEST_JITTER = 1e-2


NUMBERS_PER_NEIGHBOUR = 14
"""Numbers of eight bytes for each entry of G while it is made: values, transpose, their indices, temporaries."""


class Remainder(Protocol):
    """A cheap stand-in for E = K − F Fᵀ, or for K itself if there is no F."""

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> Factored:
        """Return an invertible approximation of S E S + D."""
        ...


@dataclass(frozen=True, eq=False)
class LowRankAndRemainder:
    """P = S F Fᵀ S + (an approximation of S (K − F Fᵀ) S + D), which is D itself if F is in float32."""

    F: Tensor | None
    remainder: Remainder
    setup_products: int = 0
    """Columns that were multiplied with K in the preparation."""
    notes: tuple[str, ...] = ()
    """Changes that were made beside the formula, such as jitter, in words."""

    @property
    def rank(self) -> int:
        """Return the number of columns of F."""
        return 0 if self.F is None else self.F.shape[1]

    @property
    def neighbours(self) -> int:
        """Return the number of neighbours on which the remainder is kept; 0 if it is kept in another way."""
        return self.remainder.neighbours.shape[1] if isinstance(self.remainder, SparseRemainder) else 0

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> ConstantInvertible:
        if self.F is None or self.F.shape[1] == 0:
            return self.remainder.factor(scale, diagonal)
        if self.F.dtype == torch.float32:
            return RoundedLowRank(self.F, diagonal, scale)
        base = self.remainder.factor(scale, diagonal)
        return LowRankPlus(base, self.F if scale is None else scale[:, None] * self.F)


@dataclass(frozen=True, eq=False)
class DiagonalRemainder:
    """Keep the diagonal e of E, or nothing: S² e + D."""

    values: Tensor | None = None

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> Diagonal:
        if self.values is None:
            return Diagonal(diagonal)
        return Diagonal(diagonal + (self.values if scale is None else scale.square() * self.values))


@dataclass(frozen=True, eq=False)
class BlockRemainder:
    """Keep diagonal blocks of E: for each size b, the rows (g, b) of g blocks and their entries (g, b, b)."""

    groups: list[tuple[Tensor, Tensor]]

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> BlockDiagonal:
        factored, largest = [], 0.0
        for rows, E in self.groups:
            B = E.clone() if scale is None else scale[rows][:, :, None] * E * scale[rows][:, None, :]
            B.diagonal(dim1=1, dim2=2).add_(diagonal[rows])
            L, jitter = cholesky_with_jitter(B, 0.0)
            factored.append((rows, L))
            largest = max(largest, jitter)
        return BlockDiagonal(factored, largest)


@dataclass(frozen=True, eq=False)
class SparseRemainder:
    """Approximate the inverse of S E S + D by GᵀG, row i of G supported on a few earlier neighbours of point i."""

    K: KernelMatrix
    F: Tensor | None
    neighbours: Tensor
    order: Tensor

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> SparseInverse:
        values = self.K.local_factors(self.neighbours, self.F, scale, diagonal)
        own = torch.arange(len(self.K), device=self.K.device)[:, None]
        return SparseInverse(torch.cat([self.neighbours, own], dim=1), values, self.order)


def blocks_of_remainder(K: KernelMatrix, blocks: list[NDArray[np.int64]], F: Tensor | None) -> BlockRemainder:
    """Return the diagonal blocks of K − F Fᵀ for these sets of rows, in float64."""
    stored = sum(len(rows) ** 2 for rows in blocks)
    require_memory(8 * stored * 4, K.budget(), f"diagonal blocks of up to {max(map(len, blocks))} rows")
    groups = []
    for size in sorted({len(rows) for rows in blocks}):
        rows = torch.from_numpy(np.stack([rows for rows in blocks if len(rows) == size])).to(K.device)
        E = torch.stack([K.block(one, one, precision=torch.float64) for one in rows])
        if F is not None:
            for i, one in enumerate(rows):
                E[i].addmm_(F[one], F[one].T, alpha=-1)
        groups.append((rows, E))
    return BlockRemainder(groups)


def cholesky_with_jitter(M: Tensor, jitter: float) -> tuple[Tensor, float]:
    """Return the Cholesky factors of M + j·mean(diag M)·I, (…, b, b), and the smallest j ≥ jitter that works.

    j grows tenfold from 1e-15 when rounding makes a positive semi-definite M indefinite.
    """
    mean = M.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None]
    mean = torch.where(mean == 0, 1.0, mean)  # K = 0, as of a linear kernel at the origin, is semi-definite too
    while True:
        shifted = M.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_(jitter * mean)
        L, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed.any()):
            return L, jitter
        jitter = max(10 * jitter, 1e-15)
        if not jitter <= LARGEST_JITTER:
            raise ValueError("the kernel gives a matrix that is not positive semi-definite")


def sparse_remainder(K: KernelMatrix, generator: Generator, neighbours: int, F: Tensor | None) -> SparseRemainder:
    """Order the points at random and find the earlier neighbours of each."""
    count = checked_count(neighbours, 0, max(len(K) - 1, 0), "neighbours")
    needed = 8 * len(K) * (count + 1) * NUMBERS_PER_NEIGHBOUR
    require_memory(needed, K.budget(), f"{count} neighbours of each of {len(K)} rows")
    order = torch.randperm(len(K), generator=generator).to(K.device)
    return SparseRemainder(K, F, K.neighbours(order, count), order)
