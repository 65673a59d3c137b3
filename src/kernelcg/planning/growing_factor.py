"""A low-rank factor that grows while it pays, and what it leaves."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder, sparse_remainder
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots
from kernelcg.randomness import child, seeded


@dataclass(frozen=True)
class Construction:
    """How a preconditioner of the automatic choice was built, from which it is built again to the same bits.

    Attributes
    ----------
    seed : of the generator of the choice
    ranks : that its low-rank factor was grown to, one after the other
    rank : columns of the factor that are used
    neighbours : on which the remainder is kept
    """

    seed: int
    ranks: tuple[int, ...]
    rank: int
    neighbours: int


ENOUGH = 0.01
"""tr(D⁻¹ S (K − F Fᵀ) S) / n below which the low-rank part alone solves in a few iterations."""


class GrowingFactor:
    """Randomly pivoted Cholesky of the kernel of A, grown on demand; ranks once reached are kept."""

    def __init__(self, A: KernelPlusDiagonal, generator: Generator):
        self.A, self.generator = A, generator
        self.factor = no_pivots(A.K, A.precision)  # where K may be rounded, so may what approximates it
        squares = 1.0 if A.scale is None else A.scale.square()
        self.weights = squares / A.diagonal
        self.shares = [(1, self.share)]
        self.ranks: tuple[int, ...] = ()

    @property
    def F(self) -> Tensor:
        """Return the factor (n, m), in the precision of products with A."""
        return self.factor.F

    @property
    def rank(self) -> int:
        """Return m."""
        return self.factor.rank

    @property
    def share(self) -> float:
        """Return tr(D⁻¹ S (K − F Fᵀ) S) / n: what the factor leaves, in units of the noise."""
        return float((self.weights * self.factor.remainder).mean())

    @property
    def suffices(self) -> bool:
        """Whether it leaves next to nothing."""
        return self.share <= 2 * ENOUGH or self.rank == len(self.A)

    def grow(self, rank: int) -> None:
        """Raise the rank, or stop before it when next to nothing is left."""
        A, total = self.A, float(self.weights.mean()) * self.factor.trace
        tolerance = min(ENOUGH * len(A) / total, 1.0) if total > 0 else 1.0
        choose = random_pivots(child(self.generator, f"from rank {self.rank}"))
        self.factor = extended(self.factor, A.K, rank=rank, tolerance=tolerance, choose=choose)
        self.ranks = (*self.ranks, rank)
        self.shares.append((self.rank, self.share))

    def slope(self) -> float:
        """Return the exponent s of the remaining trace ~ rank^(−s) over the last growth; 0 if it does not fall."""
        (m0, share0), (m1, share1) = self.shares[-2:]
        if m1 <= m0 or not 0 < share1 < share0:
            return 0.0
        return math.log(share0 / share1) / math.log(m1 / m0)

    @property
    def is_rounded(self) -> bool:
        """Whether it is stored in float32."""
        return self.factor.F.dtype == torch.float32

    def rank_that_suffices(self) -> int:
        """Return the rank at which the remaining trace would be small enough, as it has been falling."""
        n, slope, share = len(self.A), self.slope(), self.share
        if slope * math.log(max(n / max(self.rank, 1), 1.0)) < math.log(share / ENOUGH):
            return n
        return math.ceil(self.rank * (share / ENOUGH) ** (1 / slope))

    def beside(self, rank: int, neighbours: int, generator: Generator) -> LowRankAndRemainder:
        """Return the first columns of the factor, and what they leave on so many neighbours."""
        A, F = self.A, self.F
        F = F[:, :rank].clone() if rank < F.shape[1] else F
        if neighbours == 0:
            return LowRankAndRemainder(F, DiagonalRemainder())
        F = F.double()
        order = child(generator, "order")
        return LowRankAndRemainder(F, sparse_remainder(A.K, order, neighbours, F))


def first_factor(A: KernelPlusDiagonal, generator: Generator) -> GrowingFactor:
    """Return the factor of rank 0 with which an automatic choice begins."""
    return GrowingFactor(A, child(generator, "pivots"))


def constructed(A: KernelPlusDiagonal, how: Construction) -> LowRankAndRemainder:
    """Build a preconditioner again, by the same steps, for the A that it was built for."""
    generator = seeded(how.seed)
    factor = first_factor(A, generator)
    for rank in how.ranks:
        factor.grow(rank)
    return factor.beside(how.rank, how.neighbours, generator)
