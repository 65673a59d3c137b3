"""Functions of A times vectors, and draws from N(0, A)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from kernelcg.arguments import matrix
from kernelcg.backends.memory import require_memory
from kernelcg.dense import eigh
from kernelcg.errors import SolveFailed
from kernelcg.operators import (
    ConstantInvertible,
    Counting,
    Identity,
    Invertible,
    LinearOperator,
    as_operator,
    in_best_precision,
)
from kernelcg.solvers.lanczos import BlockLanczos
from kernelcg.solvers.reading import Floats
from kernelcg.solvers.report import SolveReport, Status

Function = Callable[[Floats], Floats]
"""A function that returns f of the eigenvalues of a small matrix."""

FUNCTIONS: dict[str, Function] = {"sqrt": np.sqrt, "inverse_sqrt": lambda values: values**-0.5, "log": np.log}


@dataclass(frozen=True, eq=False)
class FunctionReport:
    """f(A) V, with estimates of its error, and how it was reached.

    Attributes
    ----------
    value : (n, k) f(A) V
    error_estimates : (k,) of the 2-norm of the error of each column
    status : CONVERGED only if every estimate is below rtol times the norm of its column
    iterations : steps of the process
    products, columns : passes over the matrix, and columns multiplied in them
    seconds : how long it took
    solves : reports of the shifted systems if there were any
    """

    value: Tensor
    error_estimates: Tensor
    status: Status
    iterations: int
    products: int
    columns: int
    seconds: float
    solves: tuple[SolveReport, ...] = ()

    @property
    def relative_errors(self) -> Tensor:
        """Return the error estimate of each column relative to its norm."""
        norms = torch.linalg.vector_norm(self.value, dim=0)
        return torch.where(self.error_estimates == 0, 0.0, self.error_estimates / norms)

    def raise_if_failed(self) -> "FunctionReport":
        """Return self, or raise `SolveFailed` with the reason."""
        if self.status is not Status.CONVERGED:
            worst = float(self.relative_errors.max())
            raise SolveFailed(f"a function of A times {self.value.shape[1]} columns: {self.status.value} ({worst:.1e})")
        return self


def apply_function(A: Any, V: Any, function: str, *, rtol: float = 1e-6, max_iterations: int = 500) -> FunctionReport:
    """Return f(A) V for f = "sqrt", "inverse_sqrt" or "log" by block Lanczos.

    Costs m products with A, always in float64, O(n k² m²) time and O(n k m) memory for m steps. The error estimate
    extrapolates the change between successive approximations geometrically. Where A is too ill-conditioned for
    that, see `apply_function_rational`, which can be preconditioned.

    Parameters
    ----------
    A : symmetric positive definite, in any form that `kernelcg.operators.as_operator` takes
    V : (n, k)
    function : "sqrt", "inverse_sqrt" or "log"
    rtol : estimated error of each column relative to its norm
    max_iterations : steps after which it ends

    References
    ----------
    Frommer, Lund & Szyld (2017), Block Krylov subspace methods for functions of matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.solvers import apply_function
    >>> apply_function(np.diag([1.0, 4.0]), np.ones((2, 1)), "sqrt").value[:, 0].numpy().round(6).tolist()
    [1.0, 2.0]
    """
    operator = in_best_precision(as_operator(A))
    block = columns_for(operator, V)
    return _krylov(operator, block, Identity(len(operator), block), _named(function), rtol, max_iterations)


def sample(
    A: Any,
    count: int,
    generator: Generator,
    *,
    preconditioner: ConstantInvertible | None = None,
    rtol: float = 1e-6,
    max_iterations: int = 500,
) -> FunctionReport:
    r"""Return ``count`` draws from N(0, A).

    With :math:`P = L L^\top` and :math:`w = L z \sim N(0, P)` a draw is :math:`L M^{1/2} z`,
    :math:`M = L^{-1} A L^{-\top}`, computed as :math:`(A P^{-1})^{1/2} w` without ever forming L. This is not
    :math:`A^{1/2} z`, but it has the same distribution, and needs few steps when P is close to A.

    Parameters
    ----------
    A : symmetric positive definite, in any form that `kernelcg.operators.as_operator` takes
    count : number of draws
    generator : source of randomness: the same state gives the same numbers
    preconditioner : P, which must not change between calls; None means the identity
    rtol : estimated error of each draw relative to its norm
    max_iterations : steps after which it ends

    References
    ----------
    Chow & Saad (2014), Preconditioned Krylov subspace methods for sampling multivariate Gaussian distributions.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from kernelcg.solvers import sample
    >>> sample(np.diag([1.0, 4.0]), 5, torch.Generator().manual_seed(0)).value.shape
    torch.Size([2, 5])
    """
    operator = in_best_precision(as_operator(A))
    like = torch.zeros((), dtype=torch.float64, device=operator.device)
    P = Identity(len(operator), like) if preconditioner is None else preconditioner
    return _krylov(operator, P.sample(generator, count).double(), P, np.sqrt, rtol, max_iterations)


def _krylov(
    A: LinearOperator,
    W: Tensor,
    P: Invertible,
    function: Function,
    rtol: float,
    max_iterations: int,
) -> FunctionReport:
    """Return f(A P⁻¹) W, checking the change of the approximation at growing intervals."""
    began, counted = time.perf_counter(), Counting(A)
    if not bool(W.isfinite().all()):
        return _ended(W.new_full(W.shape, torch.nan), Status.NOT_FINITE, 0, counted, began)
    krylov = BlockLanczos(counted, W, P)
    error = Extrapolation()
    steps, next_check, status = 0, 1, Status.MAX_ITERATIONS
    coefficients = krylov.S
    budget = A.memory_budget()
    while steps < max_iterations and not krylov.exhausted and status is Status.MAX_ITERATIONS:
        require_memory(4 * 8 * krylov.Q.numel(), budget, f"the Krylov basis of {krylov.Q.shape[1]} columns")
        krylov.step()
        steps += 1
        if steps < next_check and not krylov.exhausted:
            continue
        next_check = steps + 1 + steps // 8
        if krylov.indefinite or not np.isfinite(krylov.T).all():
            reason = Status.INDEFINITE_PRECONDITIONER if krylov.indefinite else Status.NOT_FINITE
            return _ended(W.new_full(W.shape, torch.nan), reason, steps, counted, began)
        values, vectors = eigh(krylov.T)
        if not values[0] > 0:
            return _ended(W.new_full(W.shape, torch.nan), Status.INDEFINITE_OPERATOR, steps, counted, began)
        coefficients = krylov.coefficients(function(values), vectors)
        error.update(coefficients, condition=float(values[-1] / values[0]), exact=krylov.exhausted)
        if (error.estimate <= rtol * np.linalg.norm(coefficients, axis=0)).all():
            status = Status.CONVERGED
    value = krylov.Q[:, : len(coefficients)] @ torch.from_numpy(coefficients).to(W.device)
    if krylov.exhausted and steps == 0:  # there is nothing to multiply: all columns are zero, or P⁻¹ makes them zero
        status = Status.INDEFINITE_PRECONDITIONER if krylov.indefinite else Status.CONVERGED
        value = W.new_full(W.shape, torch.nan) if krylov.indefinite else value
        error.estimate = np.zeros(())
    return _ended(value, status, steps, counted, began, error.estimate)


class Extrapolation:
    """Estimates the error of a converging sequence of coefficient blocks from its last two changes.

    If changes shrink by a factor ρ, what is still missing is about ρ / (1 − ρ) times the last change. As long as
    there is no trend, the change itself counts tenfold.
    """

    def __init__(self) -> None:
        self.coefficients: Floats | None = None
        self.change: Floats | None = None
        self.estimate: Floats = np.array(np.inf)

    def update(self, coefficients: Floats, *, condition: float, exact: bool) -> None:
        """Take the next approximation; ``exact`` if the Krylov space is invariant and only rounding is left."""
        if self.coefficients is not None:
            change_of = coefficients.copy()
            change_of[: len(self.coefficients)] -= self.coefficients
            change = np.linalg.norm(change_of, axis=0)
            if self.change is not None:
                rate = (change / self.change.clip(1e-300)).clip(0.5, 10 / 11)
                self.estimate = change * rate / (1 - rate)
            self.change = change
        rounding = 1e-14 * condition**0.5 * np.linalg.norm(coefficients, axis=0)
        self.estimate = rounding if exact else np.maximum(self.estimate, rounding)
        self.coefficients = coefficients


def columns_for(A: LinearOperator, V: Any) -> Tensor:
    """Return V as a float64 block with as many rows as A."""
    block = matrix(V, "V", finite=False).detach().double()
    if len(block) != len(A):
        raise ValueError(f"V has {len(block)} rows but A is {len(A)} x {len(A)}")
    return block


def _named(function: str) -> Function:
    if function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, not {function!r}")
    return FUNCTIONS[function]


def _ended(
    value: Tensor, status: Status, steps: int, counted: Counting, began: float, estimate: Floats | None = None
) -> FunctionReport:
    estimates = np.broadcast_to(np.inf if estimate is None else estimate, value.shape[1]).copy()
    error = torch.from_numpy(estimates).to(value.device)
    tally = counted.tally
    return FunctionReport(value, error, status, steps, tally.products, tally.columns, time.perf_counter() - began)
