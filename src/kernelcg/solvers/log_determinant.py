"""log|A| by stochastic Lanczos quadrature."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student_t
from torch import Generator, Tensor

from kernelcg.dense import eigh, eigvalsh
from kernelcg.operators import ConstantInvertible, Counting, Identity, as_operator, in_best_precision
from kernelcg.randomness import rademacher
from kernelcg.solvers.lanczos import TridiagonalLanczos
from kernelcg.solvers.reading import Floats
from kernelcg.solvers.report import Status


@dataclass(frozen=True, eq=False)
class LogDeterminant:
    """An estimate of log|A| and how far it may be off.

    Attributes
    ----------
    value : the estimate, in nats
    standard_error : of the mean over probes; 0 if P = A, infinite for a single probe
    lower, upper : what the same probes would give with exact quadrature lies in between; ``lower`` is −∞ if no
        lower bound of the spectrum is known
    per_probe : (k,) estimates whose mean is ``value``
    tried : what was done beyond the plain process, and why
    status : CONVERGED if the quadrature error met its tolerance
    iterations : steps of the Lanczos processes
    products, columns : passes over the matrix, and columns multiplied in them
    seconds : how long it took
    """

    value: float
    standard_error: float
    lower: float
    upper: float
    per_probe: Tensor
    status: Status
    iterations: int
    products: int
    columns: int
    seconds: float
    tried: tuple[str, ...] = ()

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval: the quadrature bracket widened by Student's t over the probes."""
        degrees = len(self.per_probe) - 1
        margin = float(student_t.ppf(0.5 + confidence / 2, degrees)) * self.standard_error if degrees else math.inf
        return self.lower - margin, self.upper + margin


def log_determinant(
    A: Any,
    probes: int,
    generator: Generator,
    *,
    preconditioner: ConstantInvertible | None = None,
    spectrum_floor: float | None = None,
    tolerance: float | None = None,
    max_iterations: int = 500,
) -> LogDeterminant:
    r"""Estimate :math:`\log|A| = \log|P| + \operatorname{tr} \log M`, :math:`M = L^{-1} A L^{-\top}`, P = LLᵀ.

    Probes w ~ N(0, P), rescaled so that :math:`w^\top P^{-1} w = n` (uniform on a sphere: unbiased, with less
    variance), each give :math:`n\, e_1^\top \log(T) e_1` with the tridiagonal T of their own Lanczos process; without
    P the probes are random signs ±1.

    Parameters
    ----------
    A : symmetric positive definite, in any form that `kernelcg.operators.as_operator` takes
    probes : number of random columns
    generator : source of randomness: the same state gives the same numbers
    preconditioner : P, whose log-determinant is known; None means the identity
    max_iterations : steps after which it ends
    spectrum_floor : a number known to be below every eigenvalue of M: 1 if P ⪯ A (low rank from Cholesky
        pivots plus the whole diagonal), for A = S K S + D without P the smallest entry of D, which is the
        default then. Gauss quadrature is above the truth and Gauss–Radau with a node at the floor below it, for
        each probe. A floor that a Ritz value proves wrong is dropped; one that is wrong and not found out makes
        the bracket wrong, so give none for other preconditioners.
    tolerance : stop when the quadrature error, the bracket's width or else the change over the last steps, is
        below this many nats; None means a twentieth of the standard error

    Returns
    -------
    LogDeterminant : the estimate in nats, its standard error, and a bracket of its quadrature

    References
    ----------
    Ubaru, Chen & Saad (2017), Fast estimation of tr(f(A)); Golub & Meurant (2010), Matrices, Moments and
    Quadrature, chapter 6; Wenger et al. (2022), Preconditioning for scalable Gaussian process hyperparameter
    optimization.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from kernelcg.solvers import log_determinant
    >>> estimate = log_determinant(np.diag([1.0, 2.0, 4.0]), 16, torch.Generator().manual_seed(0))
    >>> round(estimate.value, 3), round(float(np.log(8)), 3)
    (2.079, 2.079)
    """
    if probes < 1:
        raise ValueError(f"probes must be at least 1, not {probes}")
    if spectrum_floor is not None and not 0 < spectrum_floor < math.inf:
        raise ValueError(f"spectrum_floor must be positive and finite or None, not {spectrum_floor!r}")
    began, operator = time.perf_counter(), in_best_precision(as_operator(A))
    n, counted = len(operator), Counting(operator)
    like = torch.zeros((), dtype=torch.float64, device=operator.device)
    P: ConstantInvertible = Identity(n, like) if preconditioner is None else preconditioner
    if not isinstance(P, ConstantInvertible):
        raise TypeError("preconditioner must have solve, log_determinant and sample")
    if preconditioner is None and spectrum_floor is None:
        spectrum_floor = operator.spectrum_floor()
    W = rademacher(n, probes, generator, like) if preconditioner is None else P.sample(generator, probes).double()
    lanczos = TridiagonalLanczos(counted, W, P)
    quadrature = _run(lanczos, spectrum_floor, tolerance, n, max_iterations)
    shift = float(P.log_determinant())
    return LogDeterminant(
        value=shift + float(quadrature.values.mean()),
        standard_error=_standard_error(quadrature.values),
        lower=shift + quadrature.lower,
        upper=shift + quadrature.upper,
        per_probe=torch.from_numpy(shift + quadrature.values).to(like.device),
        status=quadrature.status,
        iterations=len(lanczos.alphas),
        products=counted.tally.products,
        columns=counted.tally.columns,
        seconds=time.perf_counter() - began,
        tried=quadrature.tried,
    )


@dataclass(frozen=True, eq=False)
class _Quadrature:
    values: Floats
    lower: float
    upper: float
    status: Status
    tried: tuple[str, ...] = ()


def _run(
    lanczos: TridiagonalLanczos, floor: float | None, tolerance: float | None, n: int, max_iterations: int
) -> _Quadrature:
    """Step until the quadrature error is small beside the standard error."""
    unknown = np.full(lanczos.q.shape[1], np.nan)
    failed = _Quadrature(unknown, -math.inf, math.inf, Status.INDEFINITE_PRECONDITIONER)
    if lanczos.indefinite:
        return failed
    result, before, next_check = failed, unknown, 1
    tried: tuple[str, ...] = ()
    for steps in range(1, max_iterations + 1):
        lanczos.step()
        if steps < min(next_check, max_iterations):
            continue
        next_check = steps + 1 + steps // 5
        T, beta = lanczos.matrices()
        if not np.isfinite(T).all():
            return replace(failed, status=Status.NOT_FINITE)
        lowest = float(eigvalsh(T).min())
        if not lowest > 0:
            return replace(failed, status=Status.INDEFINITE_OPERATOR)
        if floor is not None and lowest < (1 - 1e-8) * floor:
            tried = (f"spectrum_floor={floor:.3g} was dropped: a Ritz value of {lowest:.3g} proves it wrong",)
            floor = None
        result = _evaluate(T, beta, floor, n, tried)
        gap = float(abs(result.values - before).max()) if floor is None else (result.upper - result.lower) / 2
        allowed = _standard_error(result.values) / 20 if tolerance is None else tolerance
        exhausted = bool((beta == 0).all())
        if exhausted or gap <= max(allowed if math.isfinite(allowed) else 1e-6 * n, 1e-13 * n):
            return replace(result, status=Status.CONVERGED)
        before = result.values
    return result


def _evaluate(T: Floats, beta: Floats, floor: float | None, n: int, tried: tuple[str, ...]) -> _Quadrature:
    """Return Gauss quadrature, or with a floor the middle between it and Gauss–Radau, of every probe."""
    gauss = n * _log_moment(T)
    if floor is None:
        return _Quadrature(gauss, -math.inf, float(gauss.mean()), Status.MAX_ITERATIONS, tried)
    radau = n * _log_moment(_with_node(T, beta, floor))
    middle, lower, upper = (gauss + radau) / 2, float(radau.mean()), float(gauss.mean())
    return _Quadrature(middle, lower, upper, Status.MAX_ITERATIONS, tried)


def _log_moment(T: Floats) -> Floats:
    """Return e₁ᵀ log(T) e₁ of each matrix."""
    values, vectors = eigh(T)
    moments: Floats = (vectors[:, 0] ** 2 * np.log(values)).sum(1)
    return moments


def _with_node(T: Floats, beta: Floats, node: float) -> Floats:
    """Return T extended by one row such that ``node`` is an eigenvalue: the Gauss–Radau rule.

    The new corner is node + β² e_mᵀ(T − node I)⁻¹ e_m (Golub & Meurant 2010, section 6.2.2).
    """
    k, m, _ = T.shape
    values, vectors = eigh(T)
    gaps = np.maximum(values - node, 1e-14 * values[:, -1:])  # rounding may put a Ritz value below the floor
    extended = np.zeros((k, m + 1, m + 1))
    extended[:, :m, :m] = T
    extended[:, m, m] = node + beta**2 * (vectors[:, -1] ** 2 / gaps).sum(1)
    extended[:, m, m - 1] = extended[:, m - 1, m] = beta
    return extended


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
