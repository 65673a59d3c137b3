"""Weights refined and certified further, where rounding or the residual left might be visible beside the noise."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.bounds.recomputed import LongDouble
from kernelcg.inference.bounds.rounding import Certified, EnergyBound, Rounding, certified
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.solvers import CholeskyFactor

NEGLIGIBLE = 1e-4
"""Part of the noise's standard deviation, and of the length of A⁻¹H_j, up to which an error needs no closer look."""

REFINEMENTS = 3

WORTHWHILE = 0.7
"""A refinement that leaves more than this part of the error was the last."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Coefficients β of the drift, beyond those of ordinary least squares, with the weights a and G they go with."""

    beta: Tensor  # (b, c)
    weights: Certified  # of A a = Y − Hβ
    drift_weights: Certified  # of A G = H

    def visible(self, A: KernelPlusDiagonal, *, rounding: bool = False) -> float:
        """Return the largest error, or the part of it that is rounding, in parts of what it would be seen beside.

        An error ε of a makes one of up to ε √k(x, x) in the mean, beside the noise; one of G changes the drift's part
        of a variance relative to ‖G_j‖_A.
        """
        of_a, of_G = (part.floor if rounding else part.error for part in (self.weights, self.drift_weights))
        in_mean = math.sqrt(float(A.kernel_diagonal().max()) / A.spectrum_floor()) * float(of_a.max())
        lengths = self.drift_weights.quadratic.clamp_min(1e-300).sqrt()
        return max(in_mean, float((of_G / lengths).sum()))


def refined(
    problem: Regression, A: KernelPlusDiagonal, fitted: Fitted, bound: EnergyBound, rounding: Rounding
) -> Fitted:
    """Return the weights with smaller errors, or with errors that are known better, where they might be visible.

    Residuals are computed in long double where rounding in float64 counts and that is affordable; with a factor of A
    a ← a + A⁻¹(b − Aa) is iterated, which costs O(n²) a step.
    """
    if fitted.visible(A) <= NEGLIGIBLE:
        return fitted
    factor = bound.P if isinstance(bound, Exact) else None
    seen, precise = fitted.visible(A, rounding=True), None
    if seen > NEGLIGIBLE and (factor is not None or seen > 0.3 * fitted.visible(A)):
        precise = LongDouble.of(A, fitted.weights.X.shape[1] + fitted.drift_weights.X.shape[1])
    if precise is not None:
        fitted = _certified(problem, A, fitted.beta, _solution(fitted), bound, precise)
    return fitted if factor is None else _iterated(problem, A, fitted, bound, factor, precise or rounding)


def _iterated(
    problem: Regression,
    A: KernelPlusDiagonal,
    fitted: Fitted,
    bound: EnergyBound,
    factor: CholeskyFactor,
    arithmetic: LongDouble | Rounding,
) -> Fitted:
    """Return the weights after some steps of iterative refinement, as long as they pay."""
    c = fitted.weights.X.shape[1]
    for _ in range(REFINEMENTS):
        if fitted.visible(A) <= NEGLIGIBLE:
            break
        X = _solution(fitted) + factor.solve(torch.cat([fitted.weights.R, fitted.drift_weights.R], dim=1))
        change, a = generalised_least_squares(problem.H, X[:, :c], X[:, c:])
        X = torch.cat([a, X[:, c:]], dim=1)
        better = _certified(problem, A, fitted.beta + change, X, bound, arithmetic)
        if not better.visible(A) < WORTHWHILE * fitted.visible(A):
            break
        fitted = better
    return fitted


def _solution(fitted: Fitted) -> Tensor:
    return torch.cat([fitted.weights.X, fitted.drift_weights.X], dim=1)


def _certified(
    problem: Regression,
    A: KernelPlusDiagonal,
    beta: Tensor,
    X: Tensor,
    bound: EnergyBound,
    arithmetic: LongDouble | Rounding,
) -> Fitted:
    """Return certified weights X = [a, G] for these coefficients, with residuals in long double or in float64."""
    B, c = torch.cat([problem.centred - problem.H @ beta, problem.H], dim=1), problem.Y.shape[1]
    if isinstance(arithmetic, LongDouble):
        found = arithmetic.certified(B, X, bound)
    else:
        found = certified(A, B, X, bound, arithmetic)
    return Fitted(beta, found.columns(slice(0, c)), found.columns(slice(c, None)))
