"""Leave-one-out residuals and densities without leaving anything out."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.inference.bounds.evidence_rounding import part_of_inverse
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.recomputed import LongDouble
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, error_of_drift
from kernelcg.inference.gaussian.conditioning import condition, few_rows
from kernelcg.inference.gaussian.cross_validation import diagonal_of_inverse
from kernelcg.inference.gaussian.likelihood_by_pcg import FATAL
from kernelcg.inference.gaussian.local_inverse import refined_by_neighbours
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.really_left_out import really_left_out, surely_unknown
from kernelcg.planning.plan import Method
from kernelcg.randomness import child, rademacher
from kernelcg.solvers import Status

SATURATED = 1e-10
"""Part of [A⁻¹]_ii that is rounding once the drift is taken out: nothing is left of that observation."""

TOLERANCE = 0.1
"""Relative error, beside that of the probes, above which leave-one-out has not reached its tolerance."""

NEGLIGIBLE = 1e-3
"""Relative rounding error of [A⁻¹]_ii up to which it is not recomputed in long double."""

PROBES = 64
"""Random columns, unless another number is asked for. Their estimates are off by a few hundredths to a few tenths."""

OPERATIONS = 5e8
"""Operations in long double for all of diag A⁻¹, about five seconds of one core: a thousand rows."""


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """For every observation, what the others say about it; in the units of Y.

    Attributes
    ----------
    residuals : (n, c) y_i minus its mean given the others
    variances : (n,) predictive variance given the others, noise included
    log_densities : (n, c) log p(y_i | the others)
        NaN where the others say nothing about it, since the drift needs it
    relative_errors : (n,) e such that variances are off by e of themselves, and residuals by e of themselves plus e
        standard deviations: bounds that count rounding and, in the iterative method, a standard error of the probes or
        the estimated error of what neighbours say
    status : PRECISION_EXHAUSTED where more than a tenth of that is no standard error
    """

    residuals: Tensor
    variances: Tensor
    log_densities: Tensor
    relative_errors: Tensor
    status: Status = Status.CONVERGED


def leave_one_out(posterior: Posterior, *, probes: int | None = None, generator: Generator) -> LeaveOneOut:
    r"""Return residuals and densities from :math:`B = A^{-1} - A^{-1} H (H^\top A^{-1} H)^{-1} H^\top A^{-1}`:

    .. math:: y_i - \mu_{-i} = a_i / B_{ii}, \qquad \sigma^2_{-i} = 1 / B_{ii}

    The diagonal of A⁻¹ comes from a factor in the direct method and for few rows, whose probes would say little about
    their own error. Else it is estimated by probes with the low-rank part as control variate, and where their standard
    error is above the tolerance of variances from the neighbours of the row, see `refined_by_neighbours`. An error of a
    in the norm of A, and one of the drift's coefficients in that of S, change a_i by no more than that times
    [A⁻¹]_ii^½.

    Parameters
    ----------
    posterior : the process given the data
    probes : random columns by which the diagonal of A⁻¹ is estimated where there is no factor, and by nothing else;
        None means a few, and neighbours where these leave too much uncertain
    generator : source of randomness: the same state gives the same numbers

    References
    ----------
    Dubrule (1983), Cross validation of kriging in a unique neighborhood; Rasmussen & Williams (2006), section 5.4.2.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Regression, condition, leave_one_out
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 30).double()[:, None]
    >>> seed = torch.Generator().manual_seed(0)
    >>> posterior = condition(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.01), generator=seed)
    >>> len(leave_one_out(posterior, generator=seed).residuals)
    30
    """  # noqa: D400
    problem = posterior.problem
    if not isinstance(posterior.bound, Exact) and few_rows(problem):
        direct = condition(
            problem, posterior.gp, method=Method.DIRECT, stopping=posterior.stopping, generator=generator
        )
        posterior = direct if isinstance(direct.bound, Exact) else posterior
    return _left_out(posterior, probes, generator)


def _left_out(posterior: Posterior, probes: int | None, generator: Generator) -> LeaveOneOut:
    """Return residuals and densities from the factor of the posterior, or by probes where it has none."""
    bound, weights, drift = posterior.bound, posterior.weights, posterior.drift_bounds()
    if isinstance(bound, Exact):
        diagonal, off = _by_factor(posterior, bound)
        sampled, status = torch.zeros_like(off), Status.CONVERGED
    else:
        low_rank = (
            bound if isinstance(bound, LowerBound) else LowerBound.of(posterior.A, generator, sizes=posterior.sizes)
        )
        diagonal, sampled, status = _estimated(posterior, low_rank, probes or PROBES, generator)
        if probes is None and status not in FATAL:
            diagonal, sampled = refined_by_neighbours(posterior, diagonal, sampled)
        broken = status in FATAL or posterior.report.status in FATAL  # rounding made A singular: nothing is known
        off = torch.full_like(diagonal, math.inf if broken else 0.0)
    sizes = posterior.rounding.root.square() + posterior.rounding.diagonal
    of_inverse = diagonal = torch.maximum(torch.minimum(diagonal, 1 / posterior.rounding.diagonal), 1 / sizes)
    if posterior.drift_weights.X.shape[1]:
        low, middle, high = drift.leverage(posterior.drift_weights.X, diagonal.sqrt()[:, None] * drift.error)
        left, off = diagonal - middle.square(), off + high.square() - low.square()
        diagonal = torch.where(left > SATURATED * diagonal, left, 0.0)
        cancelled = isinstance(bound, Exact) and bool((off > NEGLIGIBLE * diagonal).any())
        if cancelled and few_rows(posterior.problem):
            diagonal, off = _beside_the_drift(posterior, of_inverse, diagonal, off)
    of_weights = float((weights.error + drift.right + drift.coefficients).max())
    known = off / diagonal + (of_inverse / diagonal).sqrt() * of_weights
    residuals, variances = weights.X / diagonal[:, None], 1 / diagonal
    missing = (diagonal == 0) | ~(known <= TOLERANCE)
    if posterior.problem.H.shape[1] and few_rows(posterior.problem) and bool(missing.any()):
        for one in really_left_out(posterior, missing.nonzero()[:, 0], generator):
            residuals[one.row], variances[one.row], known[one.row] = one.residual, one.variance, one.relative_error
    if status is Status.CONVERGED and bool(_unsettled(posterior, variances, known).any()):
        status = Status.PRECISION_EXHAUSTED
    densities = -0.5 * (residuals.square() / variances[:, None] + variances.log()[:, None] + math.log(2 * math.pi))
    return LeaveOneOut(residuals, variances, densities, known + sampled * variances, status)


def _unsettled(posterior: Posterior, variances: Tensor, known: Tensor) -> Tensor:
    """Return (n,) flags of what missed the tolerance, and of infinite variances that may be finite ones."""
    infinite = variances.isinf()
    if not bool(infinite.any()):
        return known > TOLERANCE
    return torch.where(infinite, ~surely_unknown(posterior.problem), known > TOLERANCE)


def _by_factor(posterior: Posterior, bound: Exact) -> tuple[Tensor, Tensor]:
    """Return diag A⁻¹ from A = LLᵀ, (n,), and how far it may be off.

    L is the factor of A + E with |E_ij| ≤ γ √(a_ii a_jj). For independent errors ‖D^-½ED^-½‖ is below
    √n γ max(a_ii / D_ii), and each entry of the diagonal is off by that part of itself. Where that is too much,
    e_iᵀA⁻¹e_i is bracketed from a residual e_i − Av_i in long double, if that is affordable.
    """
    A, rounding, n = bound.A, posterior.rounding, len(bound.A)
    one = torch.eye(n, dtype=torch.float64, device=A.device)
    diagonal = bound.P.whiten(one).square().sum(0)
    part = part_of_inverse(rounding)
    precise = LongDouble.of(A, n, OPERATIONS) if part > NEGLIGIBLE else None
    if precise is None:
        return diagonal, part / max(1 - part, 1e-300) * diagonal
    found = precise.certified(one, bound.P.solve(one), bound)
    return found.quadratic, found.error.square() + found.quadratic_error


def _beside_the_drift(posterior: Posterior, of_inverse: Tensor, diagonal: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return diag B and how far it may be off, each from the better of two computations, one of which is given.

    With an orthonormal basis N of the vectors orthogonal to H, :math:`B = N (N^\top A N)^{-1} N^\top`: nothing cancels
    where the drift explains nearly all of an observation. Rounding of A changes an entry by a part μ of itself, as in
    `_by_factor`. A basis that is off by F, ‖F‖ ≤ φ, changes the root of an entry by φ (1 + √(B_ii λ)) / √min D, λ the
    largest eigenvalue of A.
    """
    problem, rounding = posterior.problem, posterior.rounding
    A, H, n = problem.system(posterior.gp), problem.H, len(problem)
    H_error = error_of_drift(problem.drift, problem.X).norm() + n * UNIT_ROUNDOFF * H.norm()
    phi = 2 * float(H_error / torch.linalg.svdvals(H)[-1])
    N = torch.linalg.qr(H, mode="complete").Q[:, H.shape[1] :]
    L, failed = torch.linalg.cholesky_ex(N.T @ A.dense() @ N)
    mu = 2 * part_of_inverse(rounding)
    if bool(failed) or not mu < 1:
        return diagonal, off
    found = torch.linalg.solve_triangular(L, N.T, upper=False).square().sum(0)
    largest = rounding.root.square().sum() + rounding.diagonal.max()
    of_basis = phi * (1 + (found * largest).sqrt()) / math.sqrt(A.spectrum_floor())
    error = mu / (1 - mu) * found + of_basis * (2 * found.sqrt() + of_basis)
    found = torch.where((found > error) | (found > SATURATED * of_inverse), found, 0.0)
    better = (error * diagonal < off * found) | (found == 0)
    return torch.where(better, found, diagonal), torch.where(better, error, off)


def _estimated(
    posterior: Posterior, bound: LowerBound, probes: int, generator: Generator
) -> tuple[Tensor, Tensor, Status]:
    """Return diag A⁻¹ from probes, (n,), and its error: one standard error, and estimates of what else is wrong.

    The solutions U for the probes are improved by P⁻¹ times their residuals, recomputed in float64, whose size says how
    far the rest may be off; what rounding does to these residuals is as in a factor.
    """
    R = rademacher(len(posterior.problem), probes, child(generator, "loo"), like=posterior.problem.X)
    report = posterior.solved(R, posterior.stopping)
    change = bound.P.solve(R - bound.A.with_precision(torch.float64) @ report.solution)
    diagonal, error = diagonal_of_inverse(bound, R, report.solution + change)
    rounded = min(part_of_inverse(posterior.rounding), 1.0) * diagonal
    return diagonal, error + change.square().mean(1).sqrt() + rounded, report.status
