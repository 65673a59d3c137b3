"""What an evaluation of a learning criterion returns."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernelcg.errors import SolveFailed
from kernelcg.solvers import Approach, SolveReport, Status

GROUPS = 4
"""Parts into which the probes are divided to measure standard errors of the gradient."""


IN_VAIN = 15
"""Iterations up to which a solve that ended in a factorisation does not change the plan: the next one may iterate
again."""


@dataclass(frozen=True, eq=False)
class CriterionValue:
    """Value and gradient of a criterion in the log hyperparameters, and how far they may be off.

    Attributes
    ----------
    value : in nats; NaN if it was not asked for, −∞ where A is not positive definite
    gradient : (p,) in the order of ``gp.log_parameters()``
    value_error, gradient_error : standard errors over the probes, 0 in the direct method, NaN where not measured
    lower, upper : with these probes and exact solves the value lies in between; certified where finite
    rounding : how far rounding may move the log marginal likelihood besides, in nats; 0 where it was not reckoned
    status : CONVERGED if every solve met its tolerance
    report : the record of the linear solve, None in the direct method
    information : (p, p) estimate of the negative Hessian, positive semi-definite; None where there is none
    """

    value: float
    gradient: Tensor
    value_error: float
    gradient_error: Tensor
    lower: float
    upper: float
    status: Status
    report: SolveReport | None = None
    information: Tensor | None = None
    rounding: float = 0.0

    @property
    def needed_a_factor(self) -> bool:
        """Whether the linear solve iterated in vain, for more than a trial, and ended in a factorisation."""
        if self.report is None or not any(attempt.approach is Approach.DIRECT for attempt in self.report.attempts):
            return False
        return sum(one.iterations for one in self.report.attempts if one.approach is not Approach.DIRECT) > IN_VAIN

    def raise_if_failed(self) -> "CriterionValue":
        """Return self, or raise `SolveFailed` with the reason."""
        if self.status is not Status.CONVERGED:
            raise SolveFailed(str(self.report) if self.report else self.status.value)
        return self


def impossible(p: int, status: Status) -> CriterionValue:
    """Return the estimate at hyperparameters for which A cannot be solved with."""
    zero = torch.zeros(p, dtype=torch.float64)
    return CriterionValue(-math.inf, zero, 0.0, zero, -math.inf, -math.inf, status)


def groups(k: int) -> list[slice]:
    """Return k probes in a few parts of about the same size, over which standard errors are measured."""
    count = min(GROUPS, k)
    edges = [round(i * k / count) for i in range(count + 1)]
    return [slice(*ends) for ends in pairwise(edges)]


def standard_error(means: list[Tensor]) -> Tensor:
    """Return the standard error of the mean over all probes, from means over groups of them; NaN for one."""
    stacked = torch.stack(means)
    return stacked.std(0) / math.sqrt(len(means)) if len(means) > 1 else torch.full_like(means[0], math.nan)


def log_density(n: int, c: int, quadratic: float, determinant: float) -> float:
    r"""Return :math:`-\tfrac12 q - \tfrac c2 \log|A| - \tfrac{nc}2 \log 2\pi` for q = bᵀA⁻¹b summed over c columns."""
    return -0.5 * (quadratic + c * determinant + n * c * math.log(2 * math.pi))


def generalised_least_squares(H: Tensor, solved_Y: Tensor, solved_H: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\beta = (H^\top A^{-1} H)^{-1} H^\top A^{-1} Y` and :math:`a = A^{-1}(Y - H \beta)`.

    Y may be given without a drift of the same kind; β is then what that lacks. From A⁻¹Y and A⁻¹H as they come from a
    solver: Hᵀa = 0 to rounding even where those are inexact.
    """
    if H.shape[1] == 0:
        return H.new_zeros(0, solved_Y.shape[1]), solved_Y
    beta = drift_coefficients(H.T @ solved_H, H.T @ solved_Y)
    return beta, solved_Y - solved_H @ beta


def drift_coefficients(S: Tensor, right: Tensor) -> Tensor:
    """Return the solution of S β = right for S = HᵀA⁻¹H.

    Where rounding leaves S singular, since the kernel explains a function of the drift as well as the drift does, β is
    the shortest solution in functions that are scaled to the same size.
    """
    beta, singular = torch.linalg.solve_ex(S, right)
    if bool(singular):
        size = S.diagonal().abs().clamp_min(1e-300).sqrt()[:, None]
        beta = torch.linalg.pinv(S / size / size.T) @ (right / size) / size
    return beta
