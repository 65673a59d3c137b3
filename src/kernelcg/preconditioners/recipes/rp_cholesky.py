"""Randomly pivoted Cholesky preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner, checked_count
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots


class RPCholesky(Preconditioner):
    r"""Factor K partially, with pivots drawn in proportion to what is left to explain.

    .. math:: P = S F F^\top S + D, \qquad F F^\top \preceq K

    In the mean it is close to the best approximation of rank m, and it needs m columns of K. Pivots are drawn in
    blocks, so that most of the work is matrix products.

    References
    ----------
    Chen, Epperly, Tropp & Webber (2022); Epperly, Tropp & Webber (2024).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import RPCholesky
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = RPCholesky().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n m²), apply O(n m k)"
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int = 500
    """Largest rank m."""

    tolerance: float = 0.0
    """Stop growing once tr(K − F Fᵀ) ≤ tolerance·tr K."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        rank = checked_count(self.rank, 500, len(K), "rank")
        choose = random_pivots(generator)
        start = no_pivots(K)
        found = extended(start, K, rank=rank, tolerance=self.tolerance, choose=choose)
        return LowRankAndRemainder(found.F, DiagonalRemainder())
