"""Functions of A times vectors as sums of preconditioned shifted solves."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kernelcg.dense import eigvalsh
from kernelcg.operators import Counting, Identity, Invertible, LinearOperator, as_operator, in_best_precision
from kernelcg.randomness import normal, seeded
from kernelcg.solvers.lanczos import BlockLanczos
from kernelcg.solvers.matrix_functions import FUNCTIONS, FunctionReport, apply_function, columns_for
from kernelcg.solvers.rational import Array, Numerator, PartialFractions, partial_fractions
from kernelcg.solvers.report import SolveReport, Status, Stopping
from kernelcg.solvers.solve import solve


@dataclass(frozen=True, eq=False)
class Shifted(LinearOperator):
    """The matrix A + tI."""

    operator: LinearOperator
    shift: float

    def __len__(self) -> int:
        return len(self.operator)

    def __matmul__(self, V: Tensor) -> Tensor:
        return self.operator @ V + self.shift * V

    @property
    def device(self) -> torch.device:
        return self.operator.device

    @property
    def precision(self) -> torch.dtype:
        return self.operator.precision

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, operator=self.operator.with_precision(precision))

    def memory_budget(self) -> int:
        return self.operator.memory_budget()

    def spectrum_floor(self) -> float | None:
        floor = self.operator.spectrum_floor()
        return None if floor is None else floor + self.shift


def apply_function_rational(
    A: Any,
    V: Any,
    function: str,
    *,
    preconditioner: Callable[[float], Invertible] | None = None,
    interval: tuple[float, float] | None = None,
    rtol: float = 1e-6,
    stopping: Stopping = Stopping(),
) -> FunctionReport:
    """Return f(A) V for f = "sqrt", "inverse_sqrt" or "log" as a sum of shifted solves Σ w_i (A + t_i I)⁻¹ V.

    Products are in float64. The error estimate adds the error of the fractions on the interval to the bound
    ‖r_i‖ / (low + t_i) of each solve.

    Parameters
    ----------
    A : symmetric positive definite, in any form that `kernelcg.operators.as_operator` takes
    V : (n, k)
    function : "sqrt", "inverse_sqrt" or "log"
    preconditioner : a function of t that builds one for A + tI; for a low-rank recipe the same factor with t added to
        the diagonal
    interval : encloses the spectrum of A; None means that of `spectral_interval`
    rtol : estimated error of each column relative to its norm
    stopping : limits of each solve, whose tolerance follows from rtol

    References
    ----------
    Hale, Higham & Trefethen (2008), Computing A^α, log(A) and related matrix functions by contour integrals.

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.solvers import apply_function_rational
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> half = apply_function_rational(A, torch.ones(40, 1).double(), "sqrt").value
    >>> whole = apply_function_rational(A, half, "sqrt").value
    >>> bool((whole - A @ torch.ones(40, 1).double()).norm() < 1e-4 * whole.norm())
    True
    """
    if function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, not {function!r}")
    began, counted = time.perf_counter(), Counting(in_best_precision(as_operator(A)))
    block = columns_for(counted, V)
    low, high = spectral_interval(counted) if interval is None else interval
    if not 0 < low <= high:
        raise ValueError(f"interval must be positive and ordered, not ({low}, {high}): A must be positive definite")
    fractions = partial_fractions(function, low, high, rtol / 10)
    right = block if fractions.numerator is not Numerator.SHIFTED else counted @ block - fractions.centre * block
    stopping = replace(stopping, rtol=_solve_tolerance(fractions, low, counted, block, right, function, rtol))
    total, reports = torch.zeros_like(block), []
    for shift, weight in zip(fractions.shifts.tolist(), fractions.weights.tolist(), strict=True):
        P = None if preconditioner is None else preconditioner(shift)
        reports.append(solve(Shifted(counted, shift), right, preconditioner=P, stopping=stopping))
        total += weight * reports[-1].solution
    if fractions.numerator is Numerator.IDENTITY:
        total = counted @ total
    total += fractions.constant * block
    error = _error(fractions, low, block, total, reports)
    return FunctionReport(
        value=total,
        error_estimates=error,
        status=_verdict(total, error, rtol, reports),
        iterations=sum(int(report.iterations.max()) for report in reports),
        products=counted.tally.products,
        columns=counted.tally.columns,
        seconds=time.perf_counter() - began,
        solves=tuple(reports),
    )


def spectral_interval(A: LinearOperator, steps: int = 20) -> tuple[float, float]:
    """Return an interval that encloses the spectrum of A.

    The lower end is what the operator knows for certain: for A = S K S + D the smallest entry of D. An operator that
    knows nothing is refused, since small eigenvalues are what no estimate finds. The upper end comes from a few
    Lanczos steps, with a margin of 10 %.

    Parameters
    ----------
    A : an operator that knows a lower bound of its spectrum
    steps : of the Lanczos process

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.solvers import spectral_interval
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> low, high = spectral_interval(A)
    >>> low, high > 30
    (0.1, True)
    """
    low = A.spectrum_floor()
    if low is None:
        raise ValueError("A knows no lower bound of its spectrum; give interval=(low, high)")
    like = torch.zeros((), dtype=torch.float64, device=A.device)
    krylov = BlockLanczos(A, normal(len(A), min(4, len(A)), seeded(0), like), Identity(len(A), like))
    for _ in range(steps):
        if not krylov.exhausted:
            krylov.step()
    return low, 1.1 * float(eigvalsh(krylov.T)[-1])


def _solve_tolerance(
    fractions: PartialFractions,
    low: float,
    A: LinearOperator,
    V: Tensor,
    right: Tensor,
    function: str,
    rtol: float,
) -> float:
    """Return the relative residual that keeps the sum of all solve errors below rtol / 2 of f(A) V.

    The size of f(A) V, which is all that is missing, comes from ten Lanczos steps.
    """
    size = torch.linalg.vector_norm(apply_function(A, V, function, max_iterations=10).value, dim=0)
    ratio = torch.linalg.vector_norm(right, dim=0) / size
    worst = float(torch.where(size > 0, ratio, 0.0).nan_to_num(0.0).max())
    total = float((abs(fractions.weights) * _amplification(fractions, low)).sum())
    return min(0.1, max(1e-14, rtol / (2 * total * worst) if worst > 0 else rtol))


def _amplification(fractions: PartialFractions, low: float) -> Array:
    """Return the bound of ‖(A + t_i)⁻¹‖, or of ‖A (A + t_i)⁻¹‖ where the sum is multiplied by A."""
    inverse: Array = 1 / (low + fractions.shifts)
    return np.ones_like(inverse) if fractions.numerator is Numerator.IDENTITY else inverse


def _error(fractions: PartialFractions, low: float, V: Tensor, value: Tensor, reports: list[SolveReport]) -> Tensor:
    error = fractions.error * torch.linalg.vector_norm(V if fractions.numerator is Numerator.SHIFTED else value, dim=0)
    factors = abs(fractions.weights) * _amplification(fractions, low)
    for factor, report in zip(factors.tolist(), reports, strict=True):
        error = error + factor * report.true_residual_norms
    return error


def _verdict(value: Tensor, error: Tensor, rtol: float, reports: list[SolveReport]) -> Status:
    """Say CONVERGED if the error is within rtol, whatever the single solves claim; otherwise why not."""
    if bool((error <= rtol * torch.linalg.vector_norm(value, dim=0)).all()):
        return Status.CONVERGED
    failed = [report.status for report in reports if report.status is not Status.CONVERGED]
    return failed[0] if failed else Status.PRECISION_EXHAUSTED
