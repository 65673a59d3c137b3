"""Leave-one-out and generalised cross-validation at sizes where A cannot be factorised."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernelcg import planning
from kernelcg.inference.estimate import Estimate, impossible
from kernelcg.inference.iterative import FATAL, Numerics, Trail
from kernelcg.inference.lower_bound import LowerBound
from kernelcg.inference.model import GaussianProcess, Regression
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning import Kept
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import SolveReport, Status


def diagonal_of_inverse(bound: LowerBound, R: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return an estimate of diag A⁻¹, (n,), and its standard error, from signs R and U = A⁻¹R.

    .. math:: [A^{-1}]_{ii} = [P^{-1}]_{ii} + \mathrm{E}\, r_i\, ((A^{-1} - P^{-1})\, r)_i

    P ⪯ A is the control variate; [A⁻¹]_ii is known to lie between 1/A_ii and the least of [P⁻¹]_ii and 1/D_ii, and
    is kept there.

    References
    ----------
    Bekas, Kokiopoulou & Saad (2007), An estimator for the diagonal of a matrix.
    """
    highest = torch.minimum(bound.P.inverse_diagonal(), 1 / bound.A.diagonal)
    lowest = 1 / (bound.A.kernel_diagonal() + bound.A.diagonal)
    samples = R * (U - bound.P.solve(R))
    estimate = bound.P.inverse_diagonal() + samples.mean(1)
    k = R.shape[1]
    error = samples.std(1) / math.sqrt(k) if k > 1 else torch.full_like(estimate, math.inf)
    return torch.minimum(torch.maximum(estimate, lowest), highest), torch.minimum(error, highest - lowest)


def iterative_cross_validation(
    problem: Regression, gp: GaussianProcess, criterion: str, numerics: Numerics, trail: Trail | None
) -> tuple[Estimate, Trail | None]:
    """Return the criterion, in the units of `direct_estimate`, and its gradient, from a few probes.

    The value is a plug-in estimate without a standard error; the search goes by the gradient.
    """
    A, source = problem.fast_system(gp), seeded(numerics.seed)
    (n, c), k = problem.Y.shape, numerics.probes
    R = rademacher(n, k, child(source, "probes"), like=problem.X)
    report, kept = _solved(A, torch.cat([problem.Y, R], dim=1), numerics, trail)
    if report.status in FATAL:
        return impossible(len(gp.log_parameters()), report.status), None
    a, U = report.solution.split([c, k], dim=1)
    trail = Trail(report.solution, kept, _no_pivots(trail), gp.log_parameters().detach())
    if criterion == "gcv":
        value, left, status = _generalised(A, a, R, U, numerics, trail)
    else:
        value, left, status, pivots = _left_out(A, a, R, U, numerics, trail)
        trail = replace(trail, pivots=pivots)
    right = torch.cat([a, U], dim=1)
    by_kernel = A.kernel_gradient(left, right).cpu()
    by_noise = torch.tensor([gp.noise.variance.item() * float((left * right).sum())], dtype=torch.float64)
    gradient = torch.cat([by_kernel, by_noise])
    unknown = torch.full_like(gradient, math.nan)
    status = status if report.status is Status.CONVERGED else report.status
    return Estimate(value, gradient, math.nan, unknown, math.nan, math.nan, status, report), trail


def _solved(
    A: KernelPlusDiagonal, B: Tensor, numerics: Numerics, trail: Trail | None, start: bool = True
) -> tuple[SolveReport, Kept]:
    return planning.solve_reusing(
        A,
        B,
        None if trail is None else trail.kept,
        start=trail.solutions if trail is not None and start else None,
        stopping=numerics.stopping,
        generator=child(seeded(numerics.seed), "preconditioner"),
        reproducible=True,
    )


def _no_pivots(trail: Trail | None) -> Tensor:
    return torch.zeros(0, dtype=torch.int64) if trail is None else trail.pivots


def _generalised(
    A: KernelPlusDiagonal, a: Tensor, R: Tensor, U: Tensor, numerics: Numerics, trail: Trail
) -> tuple[float, Tensor, Status]:
    """Return the value and the left factors of W = nc (A⁻¹a aᵀ / ‖a‖² − E[U Uᵀ] / tr A⁻¹)."""
    (n, c), k = a.shape, R.shape[1]
    squares, trace = float(a.square().sum()), float((R * U).sum()) / k
    further, _ = _solved(A, a, numerics, trail, start=False)
    left = torch.cat([n * c / squares * further.solution, -n * c / (k * trace) * U], dim=1)
    return -0.5 * n * c * math.log(squares * n / c / trace**2), left, further.status


def _left_out(
    A: KernelPlusDiagonal, a: Tensor, R: Tensor, U: Tensor, numerics: Numerics, trail: Trail
) -> tuple[float, Tensor, Status, Tensor]:
    """Return the value, the left factors of W = (nc/E) (A⁻¹u aᵀ − E[A⁻¹(v ∘ r) Uᵀ]), and the pivots of the bound."""
    (n, c), k, exact = a.shape, R.shape[1], A.with_precision(torch.float64)
    if len(trail.pivots):
        bound = LowerBound.at(exact, trail.pivots)
    else:
        bound = LowerBound.of(exact, child(seeded(numerics.seed), "pivots"))
    q = diagonal_of_inverse(bound, R, U)[0][:, None]
    squares = float((a / q).square().sum())
    v = ((a / q).square() / q).sum(1)[:, None]
    further, _ = _solved(A, torch.cat([a / q.square(), v * R], dim=1), numerics, trail, start=False)
    by_weights, by_diagonal = further.solution.split([c, k], dim=1)
    left = n * c / squares * torch.cat([by_weights, -by_diagonal / k], dim=1)
    return -0.5 * n * c * math.log(squares / (n * c)), left, further.status, bound.pivots
