"""How far the numbers of a conditioned process may be off, in one record."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.criterion_value import log_density
from kernelcg.operators import ConstantInvertible
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, log_determinant

VECCHIA_FLOOR = 0.1
"""Smallest eigenvalue of P^-½AP^-½ with neighbours reckoned with; 0.5 was measured. Ritz values may refute it."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the numbers of a fitted model may be from those of exact arithmetic, at its hyperparameters.

    Attributes
    ----------
    status : of the solve for the weights
    tolerance : the relative residual that was asked for
    relative_residuals : (c,) ‖b − Aa‖ / ‖b‖ of each output, recomputed in float64
    weight_errors : (c,) upper bounds of ‖a − A⁻¹b‖_A
    mean_error : upper bound of the error of k(x, X)a, in the units of y, wherever k(x, x) is no larger than at the data
    rounding_floor : the part of it that rounding in float64 alone may account for
    log_marginal_likelihood, standard_error : the value at these hyperparameters, and its error over the probes
    lower, upper : with these probes and exact solves it lies in between; −∞ or ∞ where no bound is known
    rests_on : why: an exact factor, P ⪯ A, or Ritz values, which gave no sign of an eigenvalue of the preconditioned A
        below 0.1
    """

    status: Status
    tolerance: float
    relative_residuals: Tensor
    weight_errors: Tensor
    mean_error: float
    rounding_floor: float
    log_marginal_likelihood: float
    standard_error: float
    lower: float
    upper: float
    rests_on: str

    @property
    def met(self) -> bool:
        """Whether every solve reached its tolerance."""
        return self.status is Status.CONVERGED

    def __str__(self) -> str:
        residual = float(self.relative_residuals.max())
        verdict = "exact to tolerance" if self.met else f"NOT CONVERGED: {self.status.value}"
        certain = math.isfinite(self.lower) and math.isfinite(self.upper)
        within = f"solver part within [{self.lower:.8g}, {self.upper:.8g}] by {self.rests_on}"
        solver = within if certain else "solver part not certified"
        value = (
            f"  log marginal likelihood {self.log_marginal_likelihood:.8g}, standard error "
            f"{self.standard_error:.2g}, {solver}"
        )
        return "\n".join(
            [
                verdict,
                f"  relative residual {residual:.1e} (asked for {self.tolerance:.1e}), recomputed in float64",
                f"  apart from its drift the mean is within {self.mean_error:.2g} of the exact one wherever k(x, x) is "
                f"no larger than at the data ({self.rounding_floor:.1g} of it is rounding); see also return_bound",
                *([] if math.isnan(self.log_marginal_likelihood) else [value]),
            ]
        )


def certificate(
    posterior: Posterior, *, probes: int = 8, seed: int = 0, unit: float = 1.0, offset: float = 0.0
) -> Certificate:
    """Return what is known about the posterior; y is ``unit`` times Y plus something no larger than ``offset``.

    Without ``probes`` the log marginal likelihood is left out (NaN).
    """
    weights, problem = posterior.weights, posterior.problem
    right = problem.Y - problem.H @ posterior.beta
    norms = torch.maximum(right.norm(dim=0), 1e-12 * problem.Y.norm(dim=0))  # a drift may explain all
    residuals = (weights.R.norm(dim=0) / norms).where(norms > 0, norms.new_zeros(()))
    largest = math.sqrt(float(posterior.A.kernel_diagonal().max()))
    evaluated = posterior.rounding.of_mean(weights.X.new_full((1,), largest), weights.X)[0]
    rounded = 2 * UNIT_ROUNDOFF * offset
    evidence = log_evidence(posterior, probes, seed) if probes else UNKNOWN
    solved = posterior.report.status
    return Certificate(
        status=solved if solved is not Status.CONVERGED else evidence.status,
        tolerance=posterior.stopping.rtol,
        relative_residuals=residuals,
        weight_errors=weights.error,
        mean_error=unit * float((largest * weights.error + evaluated).max()) + rounded,
        rounding_floor=unit * float((largest * weights.floor + evaluated).max()) + rounded,
        log_marginal_likelihood=evidence.value,
        standard_error=evidence.standard_error,
        lower=evidence.lower,
        upper=evidence.upper,
        rests_on=evidence.rests_on,
    )


@dataclass(frozen=True)
class Evidence:
    """log p(Y), its standard error, a bracket of the solver's part and what that rests on, and the status."""

    value: float
    standard_error: float
    lower: float
    upper: float
    rests_on: str
    status: Status


UNKNOWN = Evidence(math.nan, math.nan, -math.inf, math.inf, "nothing", Status.CONVERGED)


def log_evidence(posterior: Posterior, probes: int, seed: int) -> Evidence:
    """Return the log marginal likelihood.

    With b = Y − Hβ, r = b − Aa and ε the certified error of a, bᵀA⁻¹b lies between bᵀa + aᵀr and the same plus ε².
    log|A| is exact in the direct method; else it comes from Lanczos quadrature, preconditioned by the low-rank P ⪯ A,
    which brackets it, or by a Vecchia preconditioner where one was needed: that has the smaller standard error, and
    its bracket assumes that no eigenvalue of the preconditioned A is below 0.1, as far as Ritz values tell.
    """
    problem, weights, bound = posterior.problem, posterior.weights, posterior.bound
    n, c = problem.Y.shape
    b = problem.Y - problem.H @ posterior.beta
    least = float((b * weights.X + weights.X * weights.R).sum())
    most = least + float(weights.error.square().sum())
    if isinstance(bound, Exact):
        determinant = float(bound.P.log_determinant())
        value, lower = (log_density(n, c, quadratic, determinant) for quadratic in (least, most))
        return Evidence(value, 0.0, lower, value, "an exact factor", Status.CONVERGED)
    P, floor = _for_determinant(posterior)
    A = problem.system(posterior.gp)
    found = log_determinant(A, max(probes, 2), seeded(seed), preconditioner=P, spectrum_floor=floor)
    return Evidence(
        log_density(n, c, least, found.value),
        0.5 * c * found.standard_error,
        log_density(n, c, most, found.upper),
        log_density(n, c, least, found.lower),
        "Ritz values" if floor < 1 else "a P below A",
        found.status,
    )


def _for_determinant(posterior: Posterior) -> tuple[ConstantInvertible, float]:
    """Return the preconditioner of the quadrature and the floor of the preconditioned spectrum."""
    prepared = None if posterior.kept is None else posterior.kept.prepared
    has_neighbours = isinstance(prepared, LowRankAndRemainder) and prepared.neighbours > 0
    if has_neighbours and isinstance(posterior.P, ConstantInvertible):
        return posterior.P, VECCHIA_FLOOR
    if not isinstance(posterior.bound, LowerBound):
        raise TypeError("an iterative posterior has a low-rank bound")
    return posterior.bound.P, 1.0
