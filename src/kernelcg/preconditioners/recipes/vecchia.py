"""Vecchia preconditioner."""

from typing import ClassVar

from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder, sparse_remainder


class Vecchia(Preconditioner):
    r"""Condition each point on its nearest earlier neighbours: a sparse factor of the inverse.

    In a random order, with :math:`J = N(i) \cup \{i\}` for the q nearest points N(i) before point i,

    .. math:: P^{-1} = G^\top G, \qquad g_i = A_{JJ}^{-1} e_i / \sqrt{e_i^\top A_{JJ}^{-1} e_i}

    (the other order, G Gᵀ, is no preconditioner). Strong where the lengthscale is short, which is where every
    low-rank approximation fails.

    References
    ----------
    Vecchia (1988); Kolotilina & Yeremin (1993), FSAI; Schäfer, Katzfuss & Owhadi (2021).

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import Vecchia
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = Vecchia().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n q³) and a neighbour search, apply O(n q k)"
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    neighbours: int = 30
    """Earlier neighbours of each point, q."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        return LowRankAndRemainder(None, sparse_remainder(K, generator, self.neighbours, None))
