"""Direct solution by Cholesky factorisation."""

import numpy as np
import torch
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.lapack import dpotri
from torch import Generator, Tensor

from kernelcg.backends.base import available_memory, require_memory
from kernelcg.randomness import normal
from kernelcg.solvers.monitor import Monitor
from kernelcg.solvers.pcg import pcg
from kernelcg.solvers.report import Status

MIRRORED_ROWS = 512

IN_PLACE_ROWS = 3000
"""Rows above which memory counts and SciPy's LAPACK, which works in place, is called. Below, torch's is: the threads of
both libraries would hinder each other in quick succession (three times the time of a fit at n = 1000)."""


def direct(monitor: Monitor) -> Tensor:
    """Solve A X = B by A = LLᵀ in float64, refined by PCG with the factor as its preconditioner.

    Costs n³/3 multiply-adds and 8n² bytes, factored in place on the CPU; one or two products check the result.
    """
    A = monitor.exact
    budget = A.memory_budget() or available_memory()
    require_memory(8 * len(A) ** 2, budget, f"the Cholesky factor of the {len(A)} x {len(A)} matrix")
    monitor.spectrum.enabled = False
    try:
        monitor.preconditioner = CholeskyFactor(A.dense())
    except LinAlgError:
        X, _ = monitor.begin()
        monitor.retire(monitor.active, Status.INDEFINITE_OPERATOR)
        monitor.wants_more()
        return X
    monitor.counted = A
    return pcg(monitor)


class CholeskyFactor:
    """A dense matrix P = LLᵀ, given by its factor. A large one on the CPU takes the place of the argument."""

    is_constant = True

    def __init__(self, P: Tensor):
        self.in_place = P.device.type == "cpu" and len(P) > IN_PLACE_ROWS
        if self.in_place:
            # the transpose of a row-major symmetric matrix is itself in the column-major order LAPACK works in
            lower = cholesky(P.numpy().T, lower=True, overwrite_a=True, check_finite=False)
            self.L = torch.from_numpy(lower)
        else:
            self.L, failed = torch.linalg.cholesky_ex(P)
            if bool(failed):
                raise LinAlgError("the matrix is not positive definite")

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R."""
        if not self.in_place:
            return torch.cholesky_solve(R, self.L)
        solved = cho_solve((self.L.numpy(), True), R.numpy(), check_finite=False)
        return torch.from_numpy(np.ascontiguousarray(solved))

    def inverse(self) -> Tensor:
        """Return P⁻¹, which takes the place of the factor: this object must not be used any more."""
        if not self.in_place:
            return torch.cholesky_inverse(self.L).mT  # symmetric, and row-major so
        lower, failed = dpotri(self.L.numpy(), lower=1, overwrite_c=1)
        if failed:
            raise LinAlgError("the matrix is singular")
        inverse = torch.from_numpy(lower.T)  # row-major, upper triangle valid
        for start in range(0, len(inverse), MIRRORED_ROWS):
            rows = slice(start, start + MIRRORED_ROWS)
            above = inverse[rows, rows].triu(1)
            inverse[rows, rows] = above + above.T + torch.diag(inverse[rows, rows].diagonal())
            inverse[start + MIRRORED_ROWS :, rows] = inverse[rows, start + MIRRORED_ROWS :].T
        return inverse

    def dense(self) -> Tensor:
        """Return P."""
        return self.L @ self.L.T

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        return 2 * self.L.diagonal().log().sum()

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) draws L z from N(0, P)."""
        return self.L @ normal(len(self.L), k, generator, like=self.L)
