"""What an evaluation of a learning criterion returns."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelcg.errors import SolveFailed
from kernelcg.parameters import Parametric
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

    def differentiable(self, gp: Parametric) -> Tensor:
        """Return the value as a scalar tensor, for training loops of one's own.

        Its ``backward()`` gives the gradient that was computed along with the value to the tensors that the
        hyperparameters of ``gp`` were made of.

        Parameters
        ----------
        gp : the process at whose hyperparameters this was computed

        Raises
        ------
        SolveFailed : if A could not be solved with
        RuntimeError : in a second derivative

        Examples
        --------
        >>> import torch
        >>> from kernelcg.inference import GaussianProcess, evidence
        >>> from kernelcg.kernels import RBF
        >>> theta = torch.zeros(3, requires_grad=True, dtype=torch.float64)
        >>> gp = GaussianProcess(RBF(1.0), 0.1).with_log_parameters(theta)
        >>> X, y = torch.zeros(4, 1).double(), torch.ones(4, 1).double()
        >>> loss = -evidence(gp, X, y, errors=False).differentiable(gp)
        >>> loss.backward()
        >>> theta.grad.shape
        torch.Size([3])
        """
        found = self.raise_if_failed()
        value: Tensor = _Value.apply(gp.log_parameters(), found.value, found.gradient)  # type: ignore[no-untyped-call]
        return value


class _Value(torch.autograd.Function):
    """A number whose gradient is known; another derivative is refused, since it would be taken for 0."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, value: float, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return theta.new_tensor(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        return outer[0] * ctx.gradient, None, None


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
