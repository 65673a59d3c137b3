"""Nyström preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.inducing import inducing_factor
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class Nystrom(Preconditioner):
    r"""Project K on m data points U drawn at random.

    .. math:: P = S K_{XU} K_{UU}^{-1} K_{UX} S + D

    References
    ----------
    Williams & Seeger (2001); Cutajar et al. (2016), section 3.1, whose printed inverse lacks a factor λ before
    K_UU (`tests/paper/test_errata.py`, item 6).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import Nystrom
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = Nystrom().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n m²), apply O(n m k)"
    IN_PAPER: ClassVar[bool] = True
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int | None = None
    """Number of points m; None means 4⌊√n⌋, the paper's choice for learning."""

    points: tuple[int, ...] | None = None
    """Row numbers of U; None draws them without repetition."""

    jitter: float = 1e-10
    """Added to K_UU relative to its diagonal; raised if that is not enough."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        inducing = inducing_factor(K, generator, self.rank, self.points, self.jitter)
        return LowRankAndRemainder(inducing.F, DiagonalRemainder(), notes=inducing.notes)
