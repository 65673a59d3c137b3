"""Diagonal preconditioner: the smallest recipe there is, and the example to start a new one from."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class Jacobi(Preconditioner):
    r"""Keep the diagonal of A and forget the rest.

    .. math:: P = \operatorname{diag}(S K S + D)

    Of use only where S or D vary over orders of magnitude.
    """

    COST: ClassVar[str] = "build O(n), apply O(n k)"

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        return LowRankAndRemainder(None, DiagonalRemainder(K.diagonal()))
