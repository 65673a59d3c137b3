"""A low-rank factor that grows while it pays, and what it leaves."""

import math

from torch import Generator, Tensor

from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots
from kernelcg.randomness import child

ENOUGH = 0.01
"""tr(D⁻¹ S (K − F Fᵀ) S) / n below which the low-rank part alone solves in a few iterations."""


class GrowingFactor:
    """Randomly pivoted Cholesky of the kernel of A, grown on demand; ranks once reached are kept."""

    def __init__(self, A: KernelPlusDiagonal, generator: Generator):
        self.A, self.generator = A, generator
        self.factor = no_pivots(A.K)
        squares = 1.0 if A.scale is None else A.scale.square()
        self.weights = squares / A.diagonal
        self.shares = [(1, self.share)]

    @property
    def F(self) -> Tensor:
        """Return the factor (n, m)."""
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
        self.shares.append((self.rank, self.share))

    def slope(self) -> float:
        """Return the exponent s of the remaining trace ~ rank^(−s) over the last growth; 0 if it does not fall."""
        (m0, share0), (m1, share1) = self.shares[-2:]
        if m1 <= m0 or not 0 < share1 < share0:
            return 0.0
        return math.log(share0 / share1) / math.log(m1 / m0)

    def rank_that_suffices(self) -> int:
        """Return the rank at which the remaining trace would be small enough, as it has been falling."""
        n, slope, share = len(self.A), self.slope(), self.share
        if slope * math.log(max(n / max(self.rank, 1), 1.0)) < math.log(share / ENOUGH):
            return n
        return math.ceil(self.rank * (share / ENOUGH) ** (1 / slope))
