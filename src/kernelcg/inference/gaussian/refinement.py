"""Weights refined and certified further, where rounding or the residual left might be visible beside the noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.bounds.recomputed import LongDouble, divided, in_full
from kernelcg.inference.bounds.rounding import Certified, EnergyBound, Rounding, certified
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.learning.criterion_value import drift_coefficients, generalised_least_squares
from kernelcg.kernels.long_double import reals
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.solvers import Stopping, solve

NEGLIGIBLE = 1e-4
"""Error of the mean, in standard deviations of the noise, up to which the weights are not refined."""

REFINEMENTS = 3

LARGEST_ERROR, LARGEST_ELSEWHERE = 0.01, 0.03
"""Errors above which a solve that met its tolerance goes on: of the mean at the data, |r_i| + √D_ii ‖e‖_A, in standard
deviations of the noise, and elsewhere, ‖e‖_A √k(x, x), in standard deviations of Y."""

INNER = Stopping(rtol=1e-2)
"""Solves of the refinement: each step makes the residual a hundred times smaller."""

WORTHWHILE = 0.7
"""A refinement that leaves more than this part of the error was the last."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Coefficients β of the drift, beyond those of ordinary least squares, with the weights a and G they go with."""

    beta: Tensor  # (b, c)
    weights: Certified  # of A a = Y − Hβ
    drift_weights: Certified  # of A G = H

    def visible(self, problem: Regression, A: KernelPlusDiagonal, *, rounding: bool = False) -> float:
        """Return the largest error, or the part of it that is rounding, in parts of what it would be seen beside.

        An error ε of a makes one of up to ε √k(x, x) in the mean; errors ε_j of G_j make one of up to
        √k(x, x) Σ_j ε_j / ‖G_j‖_A in the drift's part of a standard deviation. Both are seen beside the noise.
        """
        of_a, of_G = (part.floor if rounding else part.error for part in (self.weights, self.drift_weights))
        lengths = self.drift_weights.quadratic.clamp_min(1e-300).sqrt()
        unit = math.sqrt(float(A.kernel_diagonal().max()) / A.spectrum_floor())
        return unit * max(float((of_a / problem.amplitudes(A)).max()), float((of_G / lengths).sum()))


def refined(
    problem: Regression,
    A: KernelPlusDiagonal,
    fitted: Fitted,
    bound: EnergyBound,
    rounding: Rounding,
    P: Invertible | None,
) -> Fitted:
    """Return the weights with smaller errors, or with errors that are known better, where they might be visible.

    Residuals are computed in long double where rounding in float64 counts and that is affordable; with a factor of A
    a ← a + A⁻¹(b − Aa) is iterated, which costs O(n²) a step, and without one by further solves with the preconditioner
    P, where the error would leave little to say about the mean.
    """
    if fitted.visible(problem, A) <= NEGLIGIBLE:
        return fitted
    factor = bound.P if isinstance(bound, Exact) else None
    seen, precise, columns = fitted.visible(problem, A, rounding=True), None, _solution(fitted).shape[1]
    if seen > NEGLIGIBLE and (factor is not None or seen > 0.3 * fitted.visible(problem, A)):
        precise = LongDouble.of(A, columns)
    if precise is not None:
        fitted = _certified(problem, A, fitted.beta, _solution(fitted), bound, precise)
    if factor is not None:
        return _iterated(problem, A, fitted, bound, factor.solve, precise or rounding)
    if not says_little(problem, A, fitted.weights):
        return fitted

    def solved(B: Tensor) -> Tensor:
        return solve(A, B, preconditioner=P, stopping=INNER).solution

    fitted = _iterated(problem, A, fitted, bound, solved, precise or rounding)
    if (
        precise is None
        and fitted.visible(problem, A, rounding=True) > NEGLIGIBLE
        and says_little(problem, A, fitted.weights)
    ):
        precise = LongDouble.of(A, columns)
        fitted = fitted if precise is None else _certified(problem, A, fitted.beta, _solution(fitted), bound, precise)
    return fitted


def says_little(problem: Regression, A: KernelPlusDiagonal, weights: Certified) -> bool:
    """Whether the error of the mean may be visible beside the noise at the data, or beside Y elsewhere."""
    spread, largest = problem.Y.std(0, correction=0), math.sqrt(float(A.kernel_diagonal().max()))
    at_data = torch.maximum(weights.error, (weights.R.abs() / A.diagonal.sqrt()[:, None]).amax(0))
    at_data = at_data / problem.amplitudes(A)
    elsewhere = largest * weights.error > LARGEST_ELSEWHERE * spread
    return bool((at_data > LARGEST_ERROR).any()) or bool((elsewhere & (spread > 0)).any())


def _iterated(
    problem: Regression,
    A: KernelPlusDiagonal,
    fitted: Fitted,
    bound: EnergyBound,
    inverse: Callable[[Tensor], Tensor],
    arithmetic: LongDouble | Rounding,
) -> Fitted:
    """Return the weights after some steps of iterative refinement, as long as they pay.

    What can become less is the part of the error that is no rounding. In long double, weights keep the digits that
    float64 has no room for in their tails.
    """

    def left(one: Fitted) -> float:
        return one.visible(problem, A) - one.visible(problem, A, rounding=True)

    for _ in range(REFINEMENTS):
        before = left(fitted)
        if before <= NEGLIGIBLE:
            break
        correction = inverse(torch.cat([fitted.weights.R, fitted.drift_weights.R], dim=1))
        beta, X, tail = _corrected(problem, fitted, correction, in_long_double=isinstance(arithmetic, LongDouble))
        better = _certified(problem, A, beta, X, bound, arithmetic, tail)
        after = left(better)
        if better.visible(problem, A) < fitted.visible(problem, A):
            fitted = better
        if not after < WORTHWHILE * before:
            break
    return fitted


def _corrected(
    problem: Regression, fitted: Fitted, correction: Tensor, *, in_long_double: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return β and [a, G] with its tail, after a correction of [a, G] and with Hᵀa = 0."""
    c, X = fitted.weights.X.shape[1], _solution(fitted)
    if not in_long_double:
        X = X + correction
        change, a = generalised_least_squares(problem.H, X[:, :c], X[:, c:])
        return fitted.beta + change, torch.cat([a, X[:, c:]], dim=1), None
    tails = (fitted.weights.tail, fitted.drift_weights.tail)
    tail = None if tails[0] is None or tails[1] is None else torch.cat([tails[0], tails[1]], dim=1)
    exact, H = in_full(X, tail) + reals(correction), reals(problem.H)
    S, right = (torch.from_numpy(M.astype(float)).to(X) for M in (H.T @ exact[:, c:], H.T @ exact[:, :c]))
    change = drift_coefficients(S, right)
    exact[:, :c] -= exact[:, c:] @ reals(change)
    return fitted.beta + change, *divided(exact, X)


def _solution(fitted: Fitted) -> Tensor:
    return torch.cat([fitted.weights.X, fitted.drift_weights.X], dim=1)


def _certified(
    problem: Regression,
    A: KernelPlusDiagonal,
    beta: Tensor,
    X: Tensor,
    bound: EnergyBound,
    arithmetic: LongDouble | Rounding,
    tail: Tensor | None = None,
) -> Fitted:
    """Return certified weights X = [a, G] for these coefficients, with residuals in long double or in float64."""
    B, c = torch.cat([problem.centred - problem.H @ beta, problem.H], dim=1), problem.Y.shape[1]
    if isinstance(arithmetic, LongDouble):
        found = arithmetic.certified(B, X, bound, tail=tail)
    else:
        found = certified(A, B, X, bound, arithmetic)
    return Fitted(beta, found.columns(slice(0, c)), found.columns(slice(c, None)))
