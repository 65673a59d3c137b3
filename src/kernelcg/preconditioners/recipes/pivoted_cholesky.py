"""Pivoted Cholesky preconditioner."""

from typing import ClassVar

from torch import Generator, Tensor

from kernelcg.backends import Backend
from kernelcg.kernels import Kernel
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

    def prepare(self, kernel: Kernel, X: Tensor, backend: Backend, generator: Generator) -> LowRankAndRemainder:
        rank = checked_count(self.rank, 100, len(X), "rank")
        start = no_pivots(kernel, X)
        found = extended(start, kernel, X, backend, rank=rank, tolerance=self.tolerance, choose=greedy)
        return LowRankAndRemainder(found.F, DiagonalRemainder())
