"""How far rounding in float64 may move the log marginal likelihood."""

import math

from torch import Tensor

from kernelcg.inference.bounds.rounding import (
    STANDARDISED,
    UNIT_ROUNDOFF,
    EnergyBound,
    Rounding,
    certified,
    error_of_drift,
)
from kernelcg.inference.gaussian.model import Regression
from kernelcg.operators import KernelPlusDiagonal


def rounding_of_factorised(problem: Regression, A: KernelPlusDiagonal, beta: Tensor, quadratic: float) -> float:
    r"""Return how far the value may be off that comes from a factor of A, in nats.

    The factor is that of A + E with ‖A^-½ E A^-½‖ ≤ μ, μ as in `part_of_inverse`, so that the quadratic form q is off
    by a part μ / (1 − μ) of itself. The rounding of b = Y − Hβ moves √q by its norm.
    """
    rounding, c = Rounding.of(A), problem.Y.shape[1]
    mu = part_of_inverse(rounding)
    of_factor = quadratic * mu / (1 - mu) if mu < 1 else math.inf
    return 0.5 * (of_factor + _of_right(problem, rounding, beta, quadratic) + c * determinant_rounding(A, rounding))


def rounding_of_iterated(
    problem: Regression, A: KernelPlusDiagonal, beta: Tensor, a: Tensor, bound: EnergyBound
) -> float:
    """Return the same for the value from weights a and their residual, by what `certified` says of that."""
    rounding, c = Rounding.of(A), problem.Y.shape[1]
    found = certified(A, problem.centred - problem.H @ beta, a, bound, rounding)
    of_residual = found.quadratic_error + found.error.square() - (found.error - found.floor).square()
    of_right = _of_right(problem, rounding, beta, float(found.quadratic.clamp_min(0).sum()))
    return 0.5 * (float(of_residual.sum()) + of_right + c * determinant_rounding(A, rounding))


def _of_right(problem: Regression, rounding: Rounding, beta: Tensor, quadratic: float) -> float:
    """Return how far q may be moved by the rounding of Y − Hβ, β beyond ordinary least squares."""
    sizes = 2 * problem.ordinary.abs() + beta.abs()
    off = UNIT_ROUNDOFF * problem.Y.abs() + error_of_drift(problem.drift, problem.X) @ sizes
    norm = STANDARDISED * float(rounding.norm(off).norm())
    return 2 * math.sqrt(max(quadratic, 0.0)) * norm + norm * norm


def part_of_inverse(rounding: Rounding) -> float:
    """Return μ = √n γ max(a_ii / D_ii): the part of itself by which rounding may change a quadratic form with A⁻¹.

    For independent errors |E_ij| ≤ γ √(a_ii a_jj), ‖D^-½ E D^-½‖ is below that.
    """
    entries = 1 + rounding.root.square() / rounding.diagonal
    return math.sqrt(len(entries)) * rounding.gamma * float(entries.max())


def determinant_rounding(A: KernelPlusDiagonal, rounding: Rounding) -> float:
    r"""Return how far log|A + E| may be from log|A| for the rounding E of entries and factor, in nats.

    |E_ij| ≤ γ √(a_ii a_jj) makes :math:`\mu = \gamma \sum_i a_{ii} / D_{ii}` a bound of ‖M‖_F, M = A^-½ E A^-½, and
    log|I + M| is tr M up to half of ‖M‖_F². With independent errors tr M grows as their root mean square and is below
    2μ with overwhelming probability, by the argument of Higham & Mary (2019). In any case Π D_ii ≤ |A| ≤ Π a_ii.
    """
    entries = rounding.root.square() + rounding.diagonal
    mu = rounding.gamma * float((entries / rounding.diagonal).sum())
    return min(2 * mu + mu * mu, float((entries.log() - A.diagonal.log()).sum())) + rounding.gamma * len(A)
