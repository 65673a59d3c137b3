"""FITC preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.inducing import inducing_factor, remaining_diagonal
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class FITC(Preconditioner):
    r"""Nyström with the right diagonal: the training latents are independent given those at U.

    .. math:: P = S Q S + S \operatorname{diag}(K - Q) S + D, \qquad Q = K_{XU} K_{UU}^{-1} K_{UX}

    References
    ----------
    Snelson & Ghahramani (2006); Cutajar et al. (2016), section 3.1.1 (errata, items 13 and 14).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import FITC
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = FITC().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n m²), apply O(n m k)"
    IN_PAPER: ClassVar[bool] = True
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int | None = None
    """Number of points m; None means 4⌊√n⌋."""

    points: tuple[int, ...] | None = None
    """Row numbers of U; None draws them without repetition."""

    jitter: float = 1e-10
    """Added to K_UU relative to its diagonal; raised if that is not enough."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        inducing = inducing_factor(K, generator, self.rank, self.points, self.jitter)
        remainder = DiagonalRemainder(remaining_diagonal(K, inducing.F))
        return LowRankAndRemainder(inducing.F, remainder, notes=inducing.notes)
