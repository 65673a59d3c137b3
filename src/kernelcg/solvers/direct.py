"""Direct solution by Cholesky factorisation."""

import torch
from numpy.linalg import LinAlgError
from torch import Generator, Tensor

from kernelcg.backends.memory import require_memory
from kernelcg.dense import solve_from_the_left
from kernelcg.randomness import normal
from kernelcg.solvers.blocked_cholesky import factorise_in_place, invert_in_place, work_bytes
from kernelcg.solvers.monitor import Monitor
from kernelcg.solvers.pcg import pcg
from kernelcg.solvers.report import Status

IN_PLACE_ROWS = 700
"""Rows above which the matrix is factorised in its own place, a block at a time, by several threads. Up to so many rows
torch's LAPACK is faster, on one thread, and the copies that it makes are small, below 4 MB each."""


def factor_bytes(n: int, *, on_gpu: bool = False) -> int:
    """Return the bytes of an n × n matrix and of what its factorisation takes: work space, or the factor beside it."""
    return 8 * n * n + (work_bytes(n, on_gpu=on_gpu) if n > IN_PLACE_ROWS else 8 * n * n)


def direct(monitor: Monitor) -> Tensor:
    """Solve A X = B by A = LLᵀ in float64, refined by PCG with the factor as its preconditioner.

    Costs n³/6 multiply-adds and `factor_bytes` of memory; one or two products check the result.
    """
    A = monitor.exact
    needed = factor_bytes(len(A), on_gpu=A.device.type == "cuda")
    require_memory(needed, A.memory_budget(), f"the Cholesky factor of the {len(A)} x {len(A)} matrix")
    monitor.spectrum.enabled = False
    try:
        monitor.preconditioner = CholeskyFactor(A.dense())
    except LinAlgError:
        X, _ = monitor.begin()
        monitor.retire(monitor.active, Status.INDEFINITE_OPERATOR)
        monitor.wants_more()
        return X
    monitor.A = A
    return pcg(monitor)


class CholeskyFactor:
    """A dense matrix P = LLᵀ, given by its factor L with zeros above the diagonal.

    The factor of more than `IN_PLACE_ROWS` rows takes the place of the argument, which must not be used any more.

    Parameters
    ----------
    P : (n, n) symmetric positive definite

    Examples
    --------
    >>> import torch
    >>> from kernelcg.solvers import CholeskyFactor
    >>> CholeskyFactor(torch.diag(torch.tensor([4.0, 9.0]))).solve(torch.ones(2, 1)).T
    tensor([[0.2500, 0.1111]])
    """

    is_constant = True

    def __init__(self, P: Tensor):
        self.in_place = len(P) > IN_PLACE_ROWS
        if self.in_place:
            self.L = P if P.is_contiguous() else P.mT.contiguous()  # P is symmetric, and its transpose row-major
            factorise_in_place(self.L)
            return
        self.L, failed = torch.linalg.cholesky_ex(P)
        if bool(failed):
            raise LinAlgError("the matrix is not positive definite")

    def whiten(self, R: Tensor) -> Tensor:
        """Return L⁻¹ R: the columns have the identity as covariance if those of R have P. Allocates n k numbers."""
        Z = R.clone(memory_format=torch.contiguous_format)
        solve_from_the_left(self.L, Z)
        return Z

    def unwhiten(self, R: Tensor) -> Tensor:
        """Return L⁻ᵀ R: the columns have P⁻¹ as covariance if those of R have the identity. Allocates n k numbers."""
        Z = R.clone(memory_format=torch.contiguous_format)
        solve_from_the_left(self.L.mT, Z, upper=True)
        return Z

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R. Allocates n k numbers, and up to `IN_PLACE_ROWS` rows a copy of L."""
        if not self.in_place:
            return torch.cholesky_solve(R, self.L)
        Z = self.whiten(R)
        solve_from_the_left(self.L.mT, Z, upper=True)
        return Z

    def inverse(self) -> Tensor:
        """Return P⁻¹, row-major, which takes the place of the factor: this object must not be used any more."""
        if not self.in_place:
            return torch.cholesky_inverse(self.L).mT  # it is symmetric, and its transpose is row-major
        invert_in_place(self.L)
        return self.L

    def dense(self) -> Tensor:
        """Return P."""
        return self.L @ self.L.T

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        return 2 * self.L.diagonal().log().sum()

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) draws L z from N(0, P)."""
        return self.L @ normal(len(self.L), k, generator, like=self.L)
