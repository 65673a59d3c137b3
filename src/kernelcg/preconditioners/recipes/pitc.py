"""PITC preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.blocks import row_blocks
from kernelcg.preconditioners.inducing import inducing_factor
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder, blocks_of_remainder


class PITC(Preconditioner):
    r"""Nyström with the right diagonal blocks: blocks of training points are independent given those at U.

    .. math:: P = S Q S + S \operatorname{bldiag}(K - Q) S + D, \qquad Q = K_{XU} K_{UU}^{-1} K_{UX}

    References
    ----------
    Quiñonero-Candela & Rasmussen (2005); Cutajar et al. (2016), section 3.1.1 (errata, items 13, 14 and 33).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import PITC
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = PITC().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n m² + n b²), apply O(n (m + b) k) for blocks of b points"
    IN_PAPER: ClassVar[bool] = True
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int | None = None
    """Number of points m; None means 4⌊√n⌋."""

    points: tuple[int, ...] | None = None
    """Row numbers of U; None draws them without repetition."""

    jitter: float = 1e-10
    """Added to K_UU relative to its diagonal; raised if that is not enough."""

    blocks: str = "spatial"
    """"spatial" or "contiguous" (file order, as in the paper)."""

    block_size: int | None = None
    """Points in a block; None means about √n blocks."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        rows = row_blocks(K, self.blocks, self.block_size)
        inducing = inducing_factor(K, generator, self.rank, self.points, self.jitter)
        remainder = blocks_of_remainder(K, rows, inducing.F)
        return LowRankAndRemainder(inducing.F, remainder, notes=inducing.notes)
