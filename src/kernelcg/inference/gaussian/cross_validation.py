"""Cross-validation at sizes where A cannot be factorised."""

import math

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import LowerBound
from kernelcg.inference.gaussian.likelihood_by_pcg import FATAL, NO_PIVOTS, Numerics, Trail, solve_nearby
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import CriterionValue, impossible
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import Status


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
    problem: Regression,
    gp: GaussianProcess,
    numerics: Numerics,
    trail: Trail | None,
    callback: Listener | None = None,
) -> tuple[CriterionValue, Trail | None]:
    r"""Return the generalised cross-validation criterion of `direct_estimate` and its gradient, from a few probes.

    With a = A⁻¹Y, signs R and U = A⁻¹R, the trace of A⁻¹ is the mean of RᵀU and

    .. math:: W = nc \left( A^{-1} a\, a^\top / \|a\|^2 - \mathrm{E}[U U^\top] / \operatorname{tr} A^{-1} \right)

    is the derivative in A. The value is a plug-in estimate without a standard error; the search goes by the gradient.
    """
    theta = gp.log_parameters().detach()
    gp = gp.with_log_parameters(theta)  # what is built here can be built again from theta, to the last bit
    A, source = problem.fast_system(gp), seeded(numerics.seed)
    (n, c), k = problem.Y.shape, numerics.probes
    R = rademacher(n, k, child(source, "probes"), like=problem.X)
    start = None if trail is None else trail.solutions
    B = torch.cat([problem.Y, R], dim=1)
    report, kept, kept_at = solve_nearby(problem, A, B, numerics, trail, theta, start=start, callback=callback)
    a, U = report.solution.split([c, k], dim=1)
    squares, trace = float(a.square().sum()), float((R * U).sum()) / k
    if report.status in FATAL or not (squares > 0 and trace > 0):
        status = report.status if report.status in FATAL else Status.NOT_FINITE
        return impossible(len(theta), status), None
    trail = Trail(report.solution, kept, NO_PIVOTS, theta, probes=k, kept_at=kept_at)
    further, _, _ = solve_nearby(problem, A, a, numerics, trail, theta, start=None, callback=callback)
    left = torch.cat([n * c / squares * further.solution, -n * c / (k * trace) * U], dim=1)
    right = torch.cat([a, U], dim=1)
    by_kernel = A.with_precision(torch.float64).kernel_gradient(left, right).cpu()
    by_noise = torch.tensor([gp.noise.variance.item() * float((left * right).sum())], dtype=torch.float64)
    gradient = torch.cat([by_kernel, by_noise])
    value, unknown = -0.5 * n * c * math.log(squares * n / c / trace**2), torch.full_like(gradient, math.nan)
    status = further.status if report.status is Status.CONVERGED else report.status
    return CriterionValue(value, gradient, math.nan, unknown, math.nan, math.nan, status, report), trail
