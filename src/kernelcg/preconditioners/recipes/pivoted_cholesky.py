"""Pivoted Cholesky preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner, checked_count
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder
from kernelcg.preconditioners.partial_cholesky import extended, greedy, no_pivots


class PivotedCholesky(Preconditioner):
    r"""Factor K partially, taking the point that is explained worst as the next pivot.

    .. math:: P = S F F^\top S + D, \qquad F F^\top \preceq K

    References
    ----------
    Harbrecht, Peters & Schneider (2012); Gardner et al. (2018).
    """

    COST: ClassVar[str] = "build O(n m²), apply O(n m k)"
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int = 100
    """Largest rank m."""

    tolerance: float = 0.0
    """Stop growing once tr(K − F Fᵀ) ≤ tolerance·tr K."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        rank = checked_count(self.rank, 100, len(K), "rank")
        start = no_pivots(K)
        found = extended(start, K, rank=rank, tolerance=self.tolerance, choose=greedy)
        return LowRankAndRemainder(found.F, DiagonalRemainder())
