"""Low rank plus Vecchia preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner, checked_count
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder, sparse_remainder
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots
from kernelcg.randomness import child


class LowRankVecchia(Preconditioner):
    r"""Randomly pivoted Cholesky for what is global, a Vecchia factor of the remainder for what is local.

    .. math:: P = S F F^\top S + (G^\top G)^{-1}, \qquad G^\top G \approx \bigl(S (K - F F^\top) S + D\bigr)^{-1}

    F represents long lengthscales, G short ones. Block PCG suits it best.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import LowRankVecchia
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = LowRankVecchia().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n (m² + q² m + q³)) and a neighbour search, apply O(n (m + q) k)"
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int = 500
    """Largest rank m of the global part."""

    neighbours: int = 60
    """Earlier neighbours of each point, q."""

    tolerance: float = 0.0
    """Stop growing the rank once tr(K − F Fᵀ) ≤ tolerance·tr K."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        rank = checked_count(self.rank, 500, len(K), "rank")
        choose = random_pivots(child(generator, "pivots"))
        start = no_pivots(K)
        found = extended(start, K, rank=rank, tolerance=self.tolerance, choose=choose)
        order = child(generator, "order")
        return LowRankAndRemainder(found.F, sparse_remainder(K, order, self.neighbours, found.F))
