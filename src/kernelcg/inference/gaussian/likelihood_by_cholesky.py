"""Learning criteria and their gradients by Cholesky factorisation: exact, for n where n³ is affordable."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

from kernelcg.inference.bounds.evidence_rounding import rounding_of_factorised
from kernelcg.inference.gaussian.information import average_information
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import (
    CriterionValue,
    generalised_least_squares,
    groups,
    impossible,
    log_density,
    standard_error,
)
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import CholeskyFactor, Status


@dataclass(frozen=True, eq=False)
class Solved:
    """A = LLᵀ and what follows from it: β, a = A⁻¹(Y − Hβ), log|A| and (Y − Hβ)ᵀ a, summed over the columns."""

    A: KernelPlusDiagonal
    factor: CholeskyFactor
    beta: Tensor
    a: Tensor  # (n, c)
    log_determinant: float
    quadratic: float

    @classmethod
    def of(cls, problem: Regression, gp: GaussianProcess) -> "Solved":
        """Factorise A and solve with it; `LinAlgError` where it is not positive definite."""
        A, c = problem.system(gp), problem.Y.shape[1]
        factor = CholeskyFactor(A.dense())
        solved = factor.solve(torch.cat([problem.centred, problem.H], dim=1))
        beta, a = generalised_least_squares(problem.H, solved[:, :c], solved[:, c:])
        quadratic = float(((problem.centred - problem.H @ beta) * a).sum())
        return cls(A, factor, beta, a, float(factor.log_determinant()), quadratic)

    @property
    def value(self) -> float:
        """Return the log marginal likelihood."""
        n, c = self.a.shape
        return log_density(n, c, self.quadratic, self.log_determinant)


@dataclass(frozen=True, eq=False)
class Factorised:
    """What criteria are made of: a = A⁻¹(Y − Hβ), A⁻¹, and the log marginal likelihood."""

    a: Tensor  # (n, c)
    inverse: Tensor  # (n, n)
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Criterion:
    """A value and W = left rightᵀ + C, with d value = Σ_ij W_ij dA_ij."""

    value: float
    left: Tensor
    right: Tensor
    C: Tensor


class CriterionName(StrEnum):
    """The criteria that can be learned by; the value is what users type."""

    MARGINAL_LIKELIHOOD = "marginal_likelihood"
    LOO = "loo"
    GCV = "gcv"


def direct_estimate(
    problem: Regression,
    gp: GaussianProcess,
    criterion: str = CriterionName.MARGINAL_LIKELIHOOD,
    signs: Tensor | None = None,
    *,
    errors: bool = False,
) -> CriterionValue:
    """Return the criterion and its gradient, by a factorisation of A.

    The gradient is exact, from A⁻¹: n³/2 multiply-adds and 8n² bytes (16n² for the leave-one-out kinds). Or it is that
    of the marginal likelihood with traces from `Signs`: n³/6 multiply-adds and 8n² bytes. The value is exact anyway.

    Parameters
    ----------
    problem : the data
    gp : the process with its hyperparameters
    criterion : "marginal_likelihood", "loo" or "gcv"
    signs : (n, k) random signs from which traces are estimated; None for the exact gradient
    errors : whether standard errors of an estimated gradient are wanted: four more passes
    """
    p = len(gp.log_parameters())
    try:
        solved = Solved.of(problem, gp)
    except LinAlgError:
        return impossible(p, Status.INDEFINITE_OPERATOR)
    A, a, noise = solved.A, solved.a, gp.noise.variance.item()
    is_likelihood = criterion == CriterionName.MARGINAL_LIKELIHOOD
    information = average_information(A, a, noise, solved.factor.whiten) if is_likelihood else None
    if signs is None:
        factorised = Factorised(a, solved.factor.inverse(), solved.value)
        found = CRITERIA[criterion](factorised)
        value, gradient = (math.nan, None) if found is None else (found.value, _exact_gradient(A, found, noise))
    else:
        traces = Traces(A, solved.factor.unwhiten(signs), noise)
        value, gradient = solved.value, traces.gradient(a)
    if gradient is None or not math.isfinite(value):
        return impossible(p, Status.NOT_FINITE)
    error = torch.zeros_like(gradient)
    if signs is not None:
        error = 0.5 * a.shape[1] * traces.standard_error() if errors else torch.full_like(gradient, math.nan)
    rounding = rounding_of_factorised(problem, A, solved.beta, solved.quadratic) if is_likelihood else 0.0
    parts = (value, gradient, 0.0, error, value, value, Status.CONVERGED)
    return CriterionValue(*parts, information=information, rounding=rounding)


def signs_for(problem: Regression, k: int, seed: int) -> Tensor:
    """Return (n, k) the same random signs at all hyperparameters, so that the estimate is a smooth function of them."""
    return rademacher(len(problem), k, child(seeded(seed), "signs"), like=problem.X)


@dataclass(frozen=True, eq=False)
class Traces:
    r"""Estimates of tr(A⁻¹ ∂A) in all log hyperparameters, the noise last, from A = LLᵀ and random signs z.

    .. math:: \operatorname{tr}(A^{-1} \partial A) = \mathrm{E}\, u^\top \partial A\, u, \qquad u = L^{-\top} z

    With :math:`M = L^{-1} \partial A L^{-\top}` the variance is :math:`2 \sum_{i \ne j} M_{ij}^2`: at most
    :math:`2 \operatorname{tr}((A^{-1} \partial A)^2)`, four times the Fisher information, the variance of Au ~ N(0, A).
    Gaussian columns w of any other covariance P, in :math:`w^\top A^{-1} \partial A\, P^{-1} w`, have more. What signs
    leave out is the diagonal, :math:`M_{ii} = 2 \partial \log L_{ii}`. Gradients from k columns hence cost a search at
    most p / 2k nats.
    """

    A: KernelPlusDiagonal
    U: Tensor  # (n, k)
    noise: float

    def gradient(self, a: Tensor) -> Tensor:
        """Return ½ Σ_c a_cᵀ ∂A a_c − ½ c tr(A⁻¹ ∂A), both in one pass over the matrix."""
        share = -0.5 * a.shape[1] / self.U.shape[1]
        return self._pairs(torch.cat([0.5 * a, share * self.U], dim=1), torch.cat([a, self.U], dim=1))

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean over all columns; NaN for one."""
        parts = [self.U[:, some] for some in groups(self.U.shape[1])]
        return standard_error([self._pairs(part / part.shape[1], part) for part in parts])

    def _pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Return Σ_j left_jᵀ ∂A right_j."""
        by_kernel = self.A.kernel_gradient(left, right).cpu()
        return torch.cat([by_kernel, torch.tensor([self.noise * float((left * right).sum())], dtype=torch.float64)])


def _exact_gradient(A: KernelPlusDiagonal, found: Criterion, noise: float) -> Tensor:
    """Return Σ_ij W_ij ∂A_ij in all log hyperparameters, the noise last."""
    by_kernel = A.K.gradient(found.left, found.right, weights=found.C).cpu()
    by_noise = noise * float((found.left * found.right).sum() + found.C.diagonal().sum())
    return torch.cat([by_kernel, torch.tensor([by_noise], dtype=torch.float64)])


def _marginal_likelihood(of: Factorised) -> Criterion:
    r"""Return :math:`-\tfrac12 y^\top a - \tfrac c2 \log|A| - \tfrac{nc}2 \log 2\pi`; W = ½ a aᵀ − ½ c A⁻¹."""
    return Criterion(of.log_likelihood, 0.5 * of.a, of.a, of.inverse.mul_(-0.5 * of.a.shape[1]))


def _leave_one_out(of: Factorised) -> Criterion | None:
    r"""Return :math:`-\tfrac{nc}2 \log \tfrac1{nc} \sum_i e_i^2` of the leave-one-out errors e_i = a_i / [A⁻¹]_ii.

    With u = a/q², v = Σ_c a²/q³, q = diag A⁻¹ and E = Σ e²: W = (nc/E) (A⁻¹u aᵀ − A⁻¹ diag(v) A⁻¹).
    """
    inverse, a = of.inverse, of.a
    q = inverse.diagonal()[:, None]
    squares = float((a / q).square().sum())
    if not squares > 0:
        return None
    factor = a.numel() / squares
    u = inverse @ (a / q.square())
    middle = inverse @ (((a / q).square() / q).sum(1)[:, None] * inverse)
    return Criterion(-0.5 * a.numel() * math.log(squares / a.numel()), factor * u, a, middle.mul_(-factor))


def _generalised_cross_validation(of: Factorised) -> Criterion | None:
    r"""Return :math:`-\tfrac{nc}2 \log` of :math:`\|a\|^2 n / (c\, (\operatorname{tr} A^{-1})^2)`.

    W = nc (A⁻¹a aᵀ / ‖a‖² − A⁻² / tr A⁻¹).
    """
    inverse, a = of.inverse, of.a
    (n, c), squares, trace = a.shape, float(a.square().sum()), float(inverse.diagonal().sum())
    if not squares > 0:
        return None
    left, C = n * c / squares * (inverse @ a), (inverse @ inverse).mul_(-n * c / trace)
    return Criterion(-0.5 * n * c * math.log(squares * n / c / trace**2), left, a, C)


CRITERIA: dict[str, Callable[[Factorised], Criterion | None]] = {
    CriterionName.MARGINAL_LIKELIHOOD: _marginal_likelihood,
    CriterionName.LOO: _leave_one_out,
    CriterionName.GCV: _generalised_cross_validation,
}
