"""How far the numbers of a conditioned process may be off, in one record."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.log_evidence import UNKNOWN, log_evidence
from kernelcg.inference.bounds.rounding import STANDARDISED, UNIT_ROUNDOFF, error_of_drift
from kernelcg.inference.bounds.verdict import BY_ROUNDING, Verdict, is_met
from kernelcg.inference.gaussian.brackets import evaluated
from kernelcg.inference.gaussian.model import root_mean_squares
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.solvers import Status

OF_NOISE, OF_SPREAD = 0.01, 1e-4
"""Error of the mean that is small: a hundredth of the standard deviation of the noise, or 1e-4 of that of y."""

ELSEWHERE = 0.1
"""Error of the mean away from the data, in standard deviations of y, beside which a small one at the data counts."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the numbers of a fitted model may be from those of exact arithmetic, at its hyperparameters.

    Attributes
    ----------
    status : of the solve for the weights
    tolerance : the relative residual that was asked for
    relative_residuals : (c,) ‖b − Aa‖ / ‖b‖ of each output, recomputed in float64
    weight_errors : (c,) upper bounds of ‖a − A⁻¹b‖_A
    mean_error : upper bound of the error of the mean, in the units of y, rounding included, wherever k(x, x) and the
        functions of the drift are no larger than at the data; `return_bound` tells of any point
    error_at_data : upper bound of the same at the data, which is less
    rounding_floor : the part of ``mean_error`` that is due to rounding alone
    noise, spread : the standard deviations of the noise and of y, of the output where that is least; in kernel ridge
        regression the root mean square of y, and √(alpha / k(x, x)) of that
    log_marginal_likelihood, standard_error : the value at these hyperparameters, and its error over the probes
    lower, upper : with these probes, exact solves and exact arithmetic it lies in between; −∞ or ∞ where no bound is
        known
    rests_on : why: an exact factor, P ⪯ A, or Ritz values, which gave no sign of an eigenvalue of the preconditioned A
        below 0.1
    """

    status: Status
    tolerance: float
    relative_residuals: Tensor
    weight_errors: Tensor
    mean_error: float
    error_at_data: float
    rounding_floor: float
    noise: float
    spread: float
    log_marginal_likelihood: float
    standard_error: float
    lower: float
    upper: float
    rests_on: str

    @property
    def met(self) -> bool:
        """Whether every solve reached its tolerance; that of 0 asks for as much as float64 has to give."""
        return is_met(self.status, self.tolerance, known=self._is_known)

    @property
    def verdict(self) -> Verdict:
        """Return what is known, in one word.

        Bounds hold for whatever a solve ended with: where rounding came before the tolerance that was asked for, a
        small one is as good.
        """
        if self._is_known and self.status in (Status.CONVERGED, *BY_ROUNDING):
            return Verdict.CERTIFIED
        return Verdict.UNINFORMATIVE if self.met else Verdict.NOT_EXACT

    @property
    def _is_known(self) -> bool:
        """Whether the bound of the error is small, or small at the data and never large."""
        at_data = self._is_small(self.error_at_data) and self.mean_error <= ELSEWHERE * self.spread
        return self._is_small(self.mean_error) or at_data

    def _is_small(self, error: float) -> bool:
        return error <= max(OF_NOISE * self.noise, OF_SPREAD * self.spread)

    @property
    def reason(self) -> str:
        """Say in words what was not reached, or what makes the bound say little."""
        if not self.met:
            return self.status.value.partition(";")[0]
        if self.rounding_floor > 0.5 * self.mean_error:
            return "the noise is so small beside the signal that rounding in float64 may be amplified that much"
        return "the residual that is left may be amplified that much; a smaller rtol helps"

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        first = {
            Verdict.CERTIFIED: f"certified: {self._known()}",
            Verdict.UNINFORMATIVE: f"solved, but the bound says little: {self._known()}, because {self.reason}",
            Verdict.NOT_EXACT: f"NOT exact: {self.reason}; {self._known()}",
        }[self.verdict]
        residual = float(self.relative_residuals.max())
        solve = f"  relative residual {residual:.1e} ({self.tolerance:.0e} was asked for), recomputed"
        return "\n".join([first, solve, *([] if math.isnan(self.log_marginal_likelihood) else [self._evidence()])])

    def _known(self) -> str:
        """Say how well the mean is known: everywhere, or at the data and elsewhere where that differs."""
        if self._is_small(self.mean_error) and self.error_at_data > 0.1 * self.mean_error:
            return f"the mean is exact to {self._amount(self.mean_error)}"
        return (
            f"at the data the mean is exact to {self._amount(self.error_at_data)}, elsewhere to "
            f"{self._amount(self.mean_error)}"
        )

    def _amount(self, error: float) -> str:
        """Return an error in the units of y, and beside the noise or, where it is larger than that, beside y."""
        if error <= self.noise:
            return f"{error:.1g} ({per_cent(error / self.noise)} of the noise)"
        if error <= self.spread:
            return f"{error:.1g} ({per_cent(error / self.spread)} of the spread of y)"
        return f"{error:.1g} ({error / self.spread:.2g} times the spread of y)" if self.spread > 0 else f"{error:.1g}"

    def _evidence(self) -> str:
        value = f"  log marginal likelihood {self.log_marginal_likelihood:.8g}"
        if self.standard_error > 0:
            value += f", standard error {self.standard_error:.2g} from the random probes"
        off = max(self.upper - self.log_marginal_likelihood, self.log_marginal_likelihood - self.lower)
        beside = " beside that" if self.standard_error > 0 else ""
        exact = f"; exact to {off:.1g}{beside}, by {self.rests_on}"
        return value + (exact if math.isfinite(off) else "; how exact it is beside that is not known")


def per_cent(ratio: float) -> str:
    """Return a ratio in per cent, to one digit."""
    return f"{float(f'{100 * ratio:.1g}'):g} %" if ratio >= 1e-5 else "less than 0.001 %"


def certificate(
    posterior: Posterior,
    *,
    probes: int = 8,
    seed: int = 0,
    unit: float = 1.0,
    offset: float = 0.0,
) -> Certificate:
    """Return what is known about the posterior; y is ``unit`` times Y plus something no larger than ``offset``.

    Without ``probes`` the log marginal likelihood is left out (NaN). In kernel ridge, which takes no mean out of y, the
    spread of y is its root mean square.
    """
    weights, problem = posterior.weights, posterior.problem
    right = problem.Y - problem.H @ posterior.beta
    norms = torch.maximum(right.norm(dim=0), 1e-12 * problem.Y.norm(dim=0))  # a drift may explain all
    residuals = (weights.R.norm(dim=0) / norms).where(norms > 0, norms.new_zeros(()))
    everywhere, floors = largest_errors(posterior)
    bounds = (everywhere, errors_at_data(posterior), floors)
    anywhere, at_data, floor = (unit * float(bound.max()) + 2 * UNIT_ROUNDOFF * offset for bound in bounds)
    spreads = root_mean_squares(problem.Y if problem.relative else problem.Y - problem.Y.mean(0))
    evidence = log_evidence(posterior, probes, seed) if probes else UNKNOWN
    solved = posterior.report.status
    return Certificate(
        status=solved if solved is not Status.CONVERGED else evidence.status,
        tolerance=posterior.stopping.rtol,
        relative_residuals=residuals,
        weight_errors=weights.error,
        mean_error=anywhere,
        error_at_data=min(at_data, anywhere),
        rounding_floor=floor,
        noise=unit * float(problem.amplitudes(posterior.A).min()) * math.sqrt(float(posterior.A.diagonal.median())),
        spread=unit * float(spreads[spreads > 0].min()) if bool((spreads > 0).any()) else 0.0,
        log_marginal_likelihood=evidence.value,
        standard_error=evidence.standard_error,
        lower=evidence.lower,
        upper=evidence.upper,
        rests_on=evidence.rests_on,
    )


def largest_errors(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Return (c,) bounds of the error of the mean, and the parts of them that are rounding.

    They hold wherever k(x, x) and ‖h(x)‖_{S⁻¹} are no larger than at the data: the weights contribute
    ‖k‖_{A⁻¹} ‖e‖_A ≤ √k(x, x) ‖e‖_A; drift coefficients that are off by δ contribute ‖h − HᵀA⁻¹k‖_{S⁻¹} ‖δ‖_S, where
    ‖HᵀA⁻¹k‖_{S⁻¹} ≤ ‖k‖_{A⁻¹}. Evaluating kᵀa + hᵀβ in float64 is added.
    """
    weights, problem, drift = posterior.weights, posterior.problem, posterior.drift_bounds()
    largest = math.sqrt(float(posterior.A.kernel_diagonal().max()))
    rest = largest * drift.right + posterior.rounding.of_mean(weights.X.new_full((1,), largest), weights.X)[0]
    errors = largest * weights.error
    if problem.H.shape[1]:
        H_error = error_of_drift(problem.drift, problem.X)
        rest = rest + (H_error @ posterior.beta.abs()).amax(0)
        errors = errors + (float(drift.leverage(problem.H, H_error)[2].max()) + largest) * drift.coefficients
    return errors + rest, errors * weights.floor / weights.error.clamp_min(1e-300) + rest


def errors_at_data(posterior: Posterior) -> Tensor:
    """Return (c,) bounds of the error of the mean at all of the data.

    Ke = r − De and |e_i| ≤ [A⁻¹]_ii^½ ‖e‖_A ≤ ‖e‖_A / √D_ii, so that the weights contribute |r_i| + √D_ii ‖e‖_A. The
    drift's h − HᵀA⁻¹k is D_ii e_iᵀA⁻¹H there, no longer than D_ii [A⁻¹]_ii^½ ≤ √D_ii in the norm of S⁻¹: coefficients
    that are off by δ contribute √D_ii ‖δ‖_S.
    """
    weights, problem, rounding = posterior.weights, posterior.problem, posterior.rounding
    noise, drift = posterior.A.diagonal.sqrt()[:, None], posterior.drift_bounds()
    errors = noise * (weights.error + drift.right + drift.coefficients)
    errors = errors + weights.R.abs() + rounding.of_residual(weights)
    sizes = posterior.beta.abs() + problem.ordinary.abs()
    of_Y = STANDARDISED * (UNIT_ROUNDOFF * problem.Y.abs() + error_of_drift(problem.drift, problem.X) @ sizes)
    return (errors + of_Y + _evaluation_at_data(posterior, of_Y)).amax(0)


def _evaluation_at_data(posterior: Posterior, of_Y: Tensor) -> Tensor:
    """Return (n, c) how far rounding may move the mean at the data, Ka + Hβ = Y − r − Da.

    Where the general bound is visible beside the noise, the two sides are compared.
    """
    weights, problem, rounding = posterior.weights, posterior.problem, posterior.rounding
    bound = rounding.of_mean(rounding.root, weights.X)
    if bool((bound.amax(0) <= 1e-3 * problem.amplitudes(posterior.A) * math.sqrt(posterior.A.spectrum_floor())).all()):
        return bound
    scaled = posterior.A.diagonal[:, None] * weights.X
    in_float64, _ = evaluated(posterior, problem.X, weights, posterior.beta, math.inf)
    off = (in_float64 - (problem.Y - weights.R - scaled)).abs()
    off = off + rounding.of_residual(weights) + of_Y + 4 * UNIT_ROUNDOFF * (weights.R.abs() + scaled.abs())
    return torch.minimum(bound, off)
