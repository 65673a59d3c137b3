"""Regularised preconditioner, applied by inner conjugate gradients."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners.base import Preconditioner, checked_count
from kernelcg.preconditioners.shapes import InnerSolve
from kernelcg.solvers import Stopping


class Regularized(Preconditioner):
    r"""Add more noise to A and solve with that by inner conjugate gradients.

    .. math:: P = S K S + D + \delta I

    Every inner step is a product with K, and is counted as one.

    References
    ----------
    Srinivasan et al. (2014); Cutajar et al. (2016), section 3.3, with δ = 100 λ.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.preconditioners import Regularized
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> P = Regularized().build(A, torch.Generator().manual_seed(0))
    >>> P.solve(torch.ones(40, 1).double()).shape
    torch.Size([40, 1])
    """

    COST: ClassVar[str] = "build nothing, apply one inner solve with K"
    IN_PAPER: ClassVar[bool] = True

    multiple: float = 100.0
    """δ as a multiple of the mean of D."""

    delta: float | None = None
    """δ itself; overrides ``multiple``."""

    inner_tolerance: float = 1e-3
    """Relative residual of the inner solves."""

    inner_iterations: int = 1000
    """Largest number of iterations of an inner solve."""

    def prepare(self, K: KernelMatrix, generator: Generator) -> "PreparedRegularized":
        for name, value in (("multiple", self.multiple), ("delta", 0.0 if self.delta is None else self.delta)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be non-negative and finite, not {value!r}")
        if not 0 < self.inner_tolerance < 1:
            raise ValueError(f"inner_tolerance must be between 0 and 1, not {self.inner_tolerance!r}")
        if checked_count(self.inner_iterations, 1, 2, "inner_iterations") == 0:
            raise ValueError("inner_iterations must be at least 1, not 0")
        stopping = Stopping(rtol=self.inner_tolerance, max_iterations=self.inner_iterations)
        return PreparedRegularized(self, K, stopping)


@dataclass(frozen=True, eq=False)
class PreparedRegularized:
    """The kernel matrix alone: nothing can be prepared before S and D are known."""

    recipe: Regularized
    K: KernelMatrix
    stopping: Stopping
    setup_products: int = 0
    notes: tuple[str, ...] = ()

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> InnerSolve:
        delta = self.recipe.multiple * float(diagonal.mean()) if self.recipe.delta is None else self.recipe.delta
        return InnerSolve(KernelPlusDiagonal(self.K, diagonal + delta, scale), self.stopping)
