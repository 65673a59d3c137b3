"""The log marginal likelihood at the end of a fit, and a bracket of it that counts rounding."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernelcg.inference.bounds.evidence_rounding import determinant_rounding
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.recomputed import LongDouble
from kernelcg.inference.bounds.rounding import Rounding
from kernelcg.inference.gaussian.conditioning import few_rows
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.criterion_value import log_density
from kernelcg.kernels.long_double import reals
from kernelcg.operators import ConstantInvertible, KernelPlusDiagonal
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, log_determinant

VECCHIA_FLOOR = 0.1
"""Smallest eigenvalue of P^-½AP^-½ with neighbours reckoned with; 0.5 was measured. Ritz values may refute it."""

LONG_DOUBLE_ROWS = 600
"""Rows up to which A is factorised in long double where rounding in float64 counts: half a second of one core."""

VISIBLE = 1e-3
"""Rounding of log|A|, in nats, that is not looked at more closely."""


@dataclass(frozen=True)
class Evidence:
    """log p(Y), its standard error, a bracket of it but for that error and what it rests on, and the status."""

    value: float
    standard_error: float
    lower: float
    upper: float
    rests_on: str
    status: Status


UNKNOWN = Evidence(math.nan, math.nan, -math.inf, math.inf, "nothing", Status.CONVERGED)


def log_evidence(posterior: Posterior, probes: int, seed: int) -> Evidence:
    """Return the log marginal likelihood: in the middle of what the residual leaves open, which rounding widens.

    log|A| is that of the factor in the direct method and for few rows; else it comes from Lanczos quadrature,
    preconditioned by the low-rank P ⪯ A, which brackets it, or by a Vecchia preconditioner where one was needed: that
    has the smaller standard error, and its bracket assumes that no eigenvalue of the preconditioned A is below 0.1, as
    far as Ritz values tell.
    """
    bound, (n, c) = posterior.bound, posterior.problem.Y.shape
    A = posterior.problem.system(posterior.gp)
    least, quadratic, most = quadratic_bracket(posterior)
    pivots = bound.P.L.diagonal() if isinstance(bound, Exact) else _pivots_of_few(posterior, A)
    if pivots is not None:
        determinant, off = determinant_of_factor(A, pivots)
        low, high, spread, status = determinant - off, determinant + off, 0.0, Status.CONVERGED
        rests_on = "an exact factor"
    else:
        P, floor = _for_determinant(posterior)
        found = log_determinant(A, max(probes, 2), seeded(seed), preconditioner=P, spectrum_floor=floor)
        off = determinant_rounding(A, posterior.rounding)
        determinant, low, high = found.value, found.lower - off, found.upper + off
        spread, status, rests_on = found.standard_error, found.status, "Ritz values" if floor < 1 else "a P below A"
    return Evidence(
        log_density(n, c, quadratic, determinant),
        0.5 * c * spread,
        log_density(n, c, most, high),
        log_density(n, c, least, low),
        rests_on,
        status,
    )


def _pivots_of_few(posterior: Posterior, A: KernelPlusDiagonal) -> Tensor | None:
    """Return L_ii of A = LLᵀ if there are few rows and rounding leaves A positive definite."""
    if not few_rows(posterior.problem):
        return None
    L, failed = torch.linalg.cholesky_ex(A.dense())
    return None if bool(failed) else L.diagonal()


def quadratic_bracket(posterior: Posterior) -> tuple[float, float, float]:
    """Return a number below the least of (Y − Hβ)ᵀA⁻¹(Y − Hβ) over β, summed over the columns, an estimate, one above.

    `Certified` brackets q = bᵀA⁻¹b of the computed b = Y − Hβ, whose rounding moves √q by no more than its own norm;
    and a β that is off by δ makes q larger than the least by ‖δ‖²_S. The estimate is in the middle of what the residual
    leaves open, without rounding, which may move it either way.
    """
    weights, drift = posterior.weights, posterior.drift_bounds()
    low = (weights.quadratic - weights.quadratic_error).clamp_min(0).sqrt() - drift.right
    high = (weights.quadratic + weights.error.square() + weights.quadratic_error).clamp_min(0).sqrt() + drift.right
    least = (low.clamp_min(0).square() - drift.coefficients.square()).clamp_min(0)
    by_residual = (weights.error - weights.floor).clamp_min(0).square()
    estimate = torch.minimum(torch.maximum(weights.quadratic + 0.5 * by_residual, least), high.square())
    return float(least.sum()), float(estimate.sum()), float(high.square().sum())


def determinant_of_factor(A: KernelPlusDiagonal, pivots: Tensor) -> tuple[float, float]:
    """Return log|A| from the ``pivots`` L_ii of A = LLᵀ in float64, or of one in long double, and its rounding."""
    logarithms, rounding = 2 * pivots.log(), Rounding.of(A)
    value, off = float(logarithms.sum()), determinant_rounding(A, rounding)
    if off > VISIBLE and len(A) <= LONG_DOUBLE_ROWS:
        precise = LongDouble.of(A, len(A))
        found = None if precise is None else _in_long_double(precise)
        if precise is not None and found is not None:
            value, off = found, determinant_rounding(A, precise.rounding)
    return value, off + rounding.gamma * float(logarithms.abs().sum())


def _in_long_double(precise: LongDouble) -> float | None:
    """Return log|A| by Cholesky's algorithm, column by column, or None if rounding makes A indefinite."""
    X = reals(precise.A.X)
    rest, total = precise.entries(X, X) + np.diag(reals(precise.A.diagonal)), 0.0
    for j in range(len(rest)):
        pivot, column = rest[j, j], rest[j + 1 :, j]
        if not pivot > 0:
            return None
        total = total + np.log(pivot)
        rest[j + 1 :, j + 1 :] -= np.outer(column, column / pivot)
    return float(total)


def _for_determinant(posterior: Posterior) -> tuple[ConstantInvertible, float]:
    """Return the preconditioner of the quadrature and the floor of the preconditioned spectrum."""
    prepared = None if posterior.kept is None else posterior.kept.prepared
    has_neighbours = isinstance(prepared, LowRankAndRemainder) and prepared.neighbours > 0
    if has_neighbours and isinstance(posterior.P, ConstantInvertible):
        return posterior.P, VECCHIA_FLOOR
    if not isinstance(posterior.bound, LowerBound):
        raise TypeError("an iterative posterior has a low-rank bound")
    return posterior.bound.P, 1.0
