"""Diagonal preconditioner: the smallest recipe there is, and the example to start a new one from."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class Jacobi(Preconditioner):
    r"""Keep the diagonal of A and forget the rest.

    .. math:: P = \operatorname{diag}(S K S + D)

    It helps only where S or D vary over orders of magnitude.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import Jacobi
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = Jacobi().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n), apply O(n k)"

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        return LowRankAndRemainder(None, DiagonalRemainder(K.diagonal()))
