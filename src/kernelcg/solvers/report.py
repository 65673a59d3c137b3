"""Stopping rules, the reasons why a solve ends, and the record that every solver returns."""

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from kernelcg.errors import SolveFailed


class Status(Enum):
    """Why a solve ended. The value is the sentence shown to the user."""

    CONVERGED = "every column met its tolerance on the recomputed residual"
    MAX_ITERATIONS = "the iteration limit came first; raise it or strengthen the preconditioner"
    TIME_LIMIT = "the time limit came first; raise it or strengthen the preconditioner"
    STOPPED = "the callback asked to stop"
    STAGNATED = "the residual stopped falling; strengthen the preconditioner, raise the noise or solve directly"
    PRECISION_EXHAUSTED = "rounding keeps the true residual above the tolerance; raise the noise or the tolerance"
    INDEFINITE_OPERATOR = "A is singular or not positive definite (dᵀAd ≤ 0); raise the noise or use float64"
    INDEFINITE_PRECONDITIONER = "the preconditioner is not positive definite (rᵀP⁻¹r ≤ 0)"
    UNSYMMETRIC_PRECONDITIONER = "P⁻¹ is not symmetric or changes between calls; mend it or use flexible_pcg"
    NOT_FINITE = "NaN or infinite numbers appeared in B, the start, a product or the preconditioner"


@dataclass(frozen=True)
class Stopping:
    """Stop a column once its recomputed residual has ‖b − Ax‖ ≤ max(atol, rtol ‖b‖), or at a limit.

    Parameters
    ----------
    rtol, atol : relative and absolute tolerance of every column
    max_iterations : number of iterations after which the solve ends
    max_seconds : seconds after which it ends
    patience : number of iterations without a gain of 1 %, in any column's best residual or in the energy xᵀb − ½xᵀAx
        that CG maximises, after which the solve is called stagnated
    """

    rtol: float = 1e-6
    atol: float = 0.0
    max_iterations: int = 1000
    max_seconds: float = math.inf
    patience: int = 250

    def __post_init__(self) -> None:
        if not 0 <= self.rtol < 1:
            raise ValueError(f"rtol must be in [0, 1), not {self.rtol!r}: at 1 the zero vector would pass")
        if not 0 <= self.atol < math.inf:
            raise ValueError(f"atol must be non-negative and finite, not {self.atol!r}")
        if self.max_iterations < 0 or self.patience < 1 or not self.max_seconds > 0:
            raise ValueError(
                "max_iterations must not be negative, patience and max_seconds must be positive, not "
                f"{self.max_iterations}, {self.patience} and {self.max_seconds}"
            )


@dataclass(frozen=True, eq=False)
class Progress:
    """One iteration of a solve: what an event of the kind ITERATION tells.

    Attributes
    ----------
    iteration : counted from 0, the start
    relative_residuals : (k,) ‖r‖ / ‖b‖ of each column, on the CPU wherever the solve runs
    seconds : since the solve began
    """

    iteration: int
    relative_residuals: Tensor
    seconds: float


class Approach(Enum):
    """The kind of an attempt. The value is the sentence shown to the user."""

    PLAIN = "conjugate gradients without a preconditioner"
    LOW_RANK = "a low-rank factor, with or without neighbours, that the automatic choice built"
    NAMED = "the preconditioner that the user named"
    KEPT = "the preconditioner of an earlier system"
    DIRECT = "a Cholesky factorisation"
    UNKNOWN = "an attempt from a model file of version 0.1, which does not say"


@dataclass(frozen=True)
class Attempt:
    """One method that was tried on the way to a solution.

    Attributes
    ----------
    what : the method
    why : the reason of the choice
    expected_iterations, expected_seconds : what the choice went by; NaN where nothing was expected
    build_seconds : time of building the preconditioner
    iterations, solve_seconds : what the solve took
    status : how it ended
    approach : the kind of the method
    """

    what: str
    why: str
    expected_iterations: float
    expected_seconds: float
    build_seconds: float
    iterations: int
    solve_seconds: float
    status: Status
    approach: Approach = Approach.UNKNOWN

    def __str__(self) -> str:
        expected = (
            f"expected {self.expected_iterations:.0f} iterations, {self.expected_seconds:.2g} s; "
            if math.isfinite(self.expected_seconds)
            else ""
        )
        built = f"built in {self.build_seconds:.2g} s, " if self.build_seconds else ""
        outcome = self.status.name.lower().replace("_", " ")
        return (
            f"{self.what} ({self.why}): {expected}{built}took {self.iterations} iterations, "
            f"{self.solve_seconds:.2g} s, {outcome}"
        )


@dataclass(frozen=True, eq=False)
class SolveReport:
    """The solution and everything one may want to know about how it was reached.

    Attributes
    ----------
    solution : (n, k), float64
    status : CONVERGED only if every column is; otherwise the reason of the first column that failed
    column_status : the reason of each column
    iterations : (k,) steps taken by each column
    residual_norms : (steps + 1, k) ‖r‖ as the solver saw it, recomputed wherever it was checked
    true_residual_norms : (k,) ‖b − Ax‖ of the returned solution, recomputed in the best precision
    thresholds : (k,) what they had to reach
    products, columns : passes over the matrix, checks included, and columns multiplied in them
    inner_columns : columns multiplied in inner solves of the preconditioner
    condition_operator : lower estimate of κ(A) from Rayleigh quotients and Ritz values; NaN if unknown
    condition_preconditioned : the same of κ(P⁻¹A)
    tried : what was done beyond the plain iteration, and why, in order
    attempts : the methods of an automatic choice, in order
    right_hand_norms : (k,) ‖b‖
    seconds : how long the solve took
    method : name of the algorithm
    precision : dtype of the products
    """

    solution: Tensor
    status: Status
    column_status: tuple[Status, ...]
    iterations: Tensor
    residual_norms: Tensor
    true_residual_norms: Tensor
    right_hand_norms: Tensor
    thresholds: Tensor
    products: int
    columns: int
    inner_columns: int
    seconds: float
    method: str
    precision: torch.dtype
    condition_operator: float
    condition_preconditioned: float
    tried: tuple[str, ...]
    attempts: tuple[Attempt, ...] = ()

    @property
    def converged(self) -> Tensor:
        """Return which columns met their tolerance."""
        return torch.tensor([status is Status.CONVERGED for status in self.column_status])

    @property
    def relative_residuals(self) -> Tensor:
        """Return ‖b − Ax‖ / ‖b‖ of each column; 0 for a zero column solved by zero."""
        return torch.where(self.true_residual_norms == 0, 0.0, self.true_residual_norms / self.right_hand_norms)

    def raise_if_failed(self) -> "SolveReport":
        """Return self, or raise `SolveFailed` with the reason."""
        if self.status is not Status.CONVERGED:
            raise SolveFailed(str(self))
        return self

    def _conditions(self) -> list[str]:
        known = {"A": self.condition_operator, "the preconditioned A": self.condition_preconditioned}
        words = [f"{name} at least {value:.3g}" for name, value in known.items() if not math.isnan(value)]
        return [f"  condition number of {', of '.join(words)}"] if words else []

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        done = int(self.converged.sum())
        inner = f" and {self.inner_columns} in inner solves" if self.inner_columns else ""
        lines = [
            f"{self.method}: {self.status.name.lower().replace('_', ' ')}: {self.status.value}",
            f"  {done} of {len(self.column_status)} columns converged; worst relative residual "
            f"{float(self.relative_residuals.max()):.2e}",
            f"  {int(self.iterations.max())} iterations, {self.products} products with A ({self.columns} columns)"
            f"{inner}, {self.seconds:.3g} s, products in {str(self.precision).removeprefix('torch.')}",
            *self._conditions(),
            *(f"  {attempt}" for attempt in self.attempts),
            *(f"  {note}" for note in self.tried),
        ]
        return "\n".join(lines)
