"""Spectral preconditioner by random Fourier features."""

import math
from typing import ClassVar

import torch
from torch import Generator

from kernelcg.backends import KernelMatrix
from kernelcg.preconditioners.base import Preconditioner, checked_count, require_rank_memory
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class Spectral(Preconditioner):
    r"""Approximate a stationary K by m random Fourier features.

    .. math:: P = S \Phi \Phi^\top S + D, \qquad
        \Phi = \sqrt{k(0) / m}\, [\cos X \Omega^\top, \sin X \Omega^\top], \quad \Omega \sim \text{spectral density}

    Φ has 2m columns, twice the rank of the other recipes at the same m (errata, item 15). Works for every
    stationary kernel that can draw its frequencies: RBF, Matérn, rational quadratic, periodic, sums, products.

    References
    ----------
    Rahimi & Recht (2007); Lázaro-Gredilla et al. (2010); Cutajar et al. (2016), section 3.2.1.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import Spectral
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = Spectral().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build O(n m²), apply O(n m k)"
    IN_PAPER: ClassVar[bool] = True

    frequencies: int | None = None
    """Number of frequencies m; None means 2⌊√n⌋."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> LowRankAndRemainder:
        n, d = K.X.shape
        m = max(checked_count(self.frequencies, 2 * math.isqrt(n), n, "frequencies"), 1)
        require_rank_memory(n, 2 * m, K.budget())
        frequencies = K.kernel.sample_frequencies(d, m, generator).to(K.device, torch.float64)
        angles = K.X.double() @ frequencies.T
        amplitude = (K.kernel.diagonal(K.X[:1].double()).detach() / m).sqrt()
        return LowRankAndRemainder(amplitude * torch.cat([angles.cos(), angles.sin()], dim=1), DiagonalRemainder())
