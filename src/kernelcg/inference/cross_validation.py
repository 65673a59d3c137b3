"""Leave-one-out and generalised cross-validation at sizes where A cannot be factorised."""

import math

import torch
from torch import Tensor

from kernelcg import planning
from kernelcg.inference.estimate import Estimate, impossible
from kernelcg.inference.iterative import FATAL, Numerics, Trail
from kernelcg.inference.lower_bound import LowerBound
from kernelcg.inference.model import GaussianProcess, Regression
from kernelcg.randomness import child, rademacher, seeded


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
    start = None if trail is None else trail.solutions
    kept = None if trail is None else trail.kept

    def solve(B: Tensor, start: Tensor | None) -> Tensor:
        nonlocal kept, report
        report, kept = planning.solve_reusing(
            A, B, kept, start=start, stopping=numerics.stopping, generator=child(source, "preconditioner")
        )
        return report.solution

    report = None
    solutions = solve(torch.cat([problem.Y, R], dim=1), start)
    if report is None or report.status in FATAL:
        return impossible(len(gp.log_parameters()), report.status), None  # type: ignore[union-attr]
    a, U = solutions.split([c, k], dim=1)
    if criterion == "gcv":
        squares, trace = float(a.square().sum()), float((R * U).sum()) / k
        value = -0.5 * n * c * math.log(squares * n / c / trace**2)
        left = torch.cat([n * c / squares * solve(a, None), -n * c / (k * trace) * U], dim=1)
        right = torch.cat([a, U], dim=1)
        pivots = torch.zeros(0, dtype=torch.int64) if trail is None else trail.pivots
    else:
        exact = A.with_precision(torch.float64)
        bound = LowerBound.of(exact, child(source, "pivots")) if trail is None else LowerBound.at(exact, trail.pivots)
        q = diagonal_of_inverse(bound, R, U)[0][:, None]
        squares = float((a / q).square().sum())
        value = -0.5 * n * c * math.log(squares / (n * c))
        v = ((a / q).square() / q).sum(1)[:, None]
        further = solve(torch.cat([a / q.square(), v * R], dim=1), None)
        left = n * c / squares * torch.cat([further[:, :c], -further[:, c:] / k], dim=1)
        right = torch.cat([a, U], dim=1)
        pivots = bound.pivots
    by_kernel = A.kernel_gradient(left, right).cpu()
    by_noise = torch.tensor([gp.noise.variance.item() * float((left * right).sum())], dtype=torch.float64)
    gradient = torch.cat([by_kernel, by_noise])
    unknown = torch.full_like(gradient, math.nan)
    estimate = Estimate(value, gradient, math.nan, unknown, math.nan, math.nan, report.status, report)
    return estimate, Trail(solutions, kept, pivots, gp.log_parameters().detach())
