"""Leave-one-out residuals and densities without leaving anything out."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.gaussian.cross_validation import diagonal_of_inverse
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.randomness import child, rademacher
from kernelcg.solvers import Status

SATURATED = 1e-10
"""Part of [A⁻¹]_ii that is rounding once the drift is taken out: nothing is left of that observation."""


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """For every observation, what the others say about it; in the units of Y.

    Attributes
    ----------
    residuals : (n, c) y_i minus its mean given the others
    variances : (n,) predictive variance given the others, noise included
    log_densities : (n, c) log p(y_i | the others)
        NaN where the others say nothing about it, since the drift needs it
    relative_errors : (n,) standard error of variances and residuals relative to them; 0 in the direct method
    """

    residuals: Tensor
    variances: Tensor
    log_densities: Tensor
    relative_errors: Tensor
    status: Status = Status.CONVERGED


def leave_one_out(posterior: Posterior, *, probes: int = 64, generator: Generator) -> LeaveOneOut:
    r"""Return residuals and densities from :math:`B = A^{-1} - A^{-1} H (H^\top A^{-1} H)^{-1} H^\top A^{-1}`:

    .. math:: y_i - \mu_{-i} = a_i / B_{ii}, \qquad \sigma^2_{-i} = 1 / B_{ii}

    The diagonal of A⁻¹ is exact in the direct method, else estimated by probes with the low-rank part as control
    variate.

    References
    ----------
    Dubrule (1983), Cross validation of kriging in a unique neighborhood; Rasmussen & Williams (2006), section 5.4.2.
    """  # noqa: D400
    problem, bound, status = posterior.problem, posterior.bound, Status.CONVERGED
    if isinstance(bound, Exact):
        n = len(problem)
        L_inverse = bound.P.whiten(torch.eye(n).to(bound.P.L))
        diagonal, error = L_inverse.square().sum(0), torch.zeros(n, dtype=torch.float64, device=problem.X.device)
    else:
        low_rank = bound if isinstance(bound, LowerBound) else LowerBound.of(posterior.A, generator)
        diagonal, error, status = _estimated(posterior, low_rank, probes, generator)
    G = posterior.drift_weights.X
    if G.shape[1]:
        explained = (G * torch.linalg.solve(posterior.drift_information(), G.T).T).sum(1)
        left = diagonal - explained
        diagonal = torch.where(left > SATURATED * diagonal, left, 0.0)
    residuals = posterior.weights.X / diagonal[:, None]
    variances = 1 / diagonal
    densities = -0.5 * (residuals.square() / variances[:, None] + variances.log()[:, None] + math.log(2 * math.pi))
    return LeaveOneOut(residuals, variances, densities, error / diagonal, status)


def _estimated(
    posterior: Posterior, bound: LowerBound, probes: int, generator: Generator
) -> tuple[Tensor, Tensor, Status]:
    R = rademacher(len(posterior.problem), probes, child(generator, "loo"), like=posterior.problem.X)
    report = posterior.solved(R, posterior.stopping)
    diagonal, error = diagonal_of_inverse(bound, R, report.solution)
    return diagonal, error, report.status
