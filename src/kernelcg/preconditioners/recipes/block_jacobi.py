"""Block Jacobi preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.blocks import row_blocks
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder, blocks_of_remainder


class BlockJacobi(Preconditioner):
    r"""Keep diagonal blocks of A and forget the rest.

    .. math:: P = \operatorname{bldiag}(S K S + D)

    One block of n points is the exact Cholesky factor. Cutajar et al. (2016), section 3.3, print a second λI
    (errata, item 11).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import BlockJacobi
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = BlockJacobi().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n b²), apply O(n b k) for blocks of b points"
    IN_PAPER: ClassVar[bool] = True

    block_size: int | None = None
    """Points in a block; None means about √n blocks."""

    blocks: str = "spatial"
    """"spatial" or "contiguous" (file order, as in the paper)."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        rows = row_blocks(K, self.blocks, self.block_size)
        return LowRankAndRemainder(None, blocks_of_remainder(K, rows, None))
