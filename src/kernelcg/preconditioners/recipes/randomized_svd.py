"""Randomised truncated eigendecomposition."""

import math
from typing import ClassVar

import torch
from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner, checked_count, require_rank_memory
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder
from kernelcg.randomness import normal


class RandomizedSVD(Preconditioner):
    r"""Keep the m leading eigenvectors of K, found by products with random vectors.

    With an orthonormal basis Q of the range of :math:`K^{1 + p} \Omega` and :math:`Q^\top K Q = V \Lambda V^\top`,

    .. math:: P = S F F^\top S + D, \qquad F = Q V_m \Lambda_m^{1/2}.

    It is symmetric by construction, unlike U Σ Vᵀ of a general randomised SVD, which is what the paper's section 3.2.2
    amounts to (errata, item 16). K is never stored; its set-up products are counted.

    References
    ----------
    Halko, Martinsson & Tropp (2011), algorithms 4.4 and 5.3.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import RandomizedSVD
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = RandomizedSVD().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build (2 + p) products of m + oversampling columns and O(n m²), apply O(n m k)"
    IN_PAPER: ClassVar[bool] = True
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    rank: int | None = None
    """Number of eigenvectors m; None means ⌊√n⌋."""

    oversampling: int = 10
    """Random vectors beyond m."""

    power: int = 0
    """Extra products that sharpen the basis, p."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        n = len(K)
        m = max(checked_count(self.rank, math.isqrt(n), n, "rank"), 1)
        width = min(m + checked_count(self.oversampling, 0, n, "oversampling"), n)
        passes = 2 + checked_count(self.power, 0, n, "power")
        require_rank_memory(n, width, K.budget())
        Q = normal(n, width, generator, like=K.X.new_empty(0, dtype=torch.float64))
        for _ in range(passes - 1):
            Q = torch.linalg.qr(K.product(Q, precision=torch.float64)).Q
        T = Q.T @ K.product(Q, precision=torch.float64)
        values, V = torch.linalg.eigh((T + T.T) / 2)
        F = Q @ (V[:, -m:] * values[-m:].clamp_min(0.0).sqrt())
        return LowRankAndRemainder(F, DiagonalRemainder(), setup_products=passes * width)
