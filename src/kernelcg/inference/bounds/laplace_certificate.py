"""How far the numbers of a latent process in Laplace's approximation may be off, in one record."""

import math
from dataclasses import dataclass, replace

from kernelcg.inference.bounds.verdict import BY_ROUNDING, Verdict, is_met
from kernelcg.inference.laplace.calibration import Calibration
from kernelcg.inference.laplace.evidence import laplace_value
from kernelcg.inference.laplace.posterior import LaplacePosterior
from kernelcg.likelihoods import BernoulliLogit, BernoulliProbit, Softmax
from kernelcg.solvers import Status


@dataclass(frozen=True)
class LaplaceCertificate:
    """How far the numbers of a fitted model may be from those of Laplace's approximation in exact arithmetic.

    How far that approximation is from the exact posterior is another question, which it does not answer.

    Attributes
    ----------
    newton : the status of Newton's method for the mode f̂ = Ka + Hβ
    tolerance : the relative residual that was asked for
    residual : ‖∇log p(y | f̂) − a‖ / ‖∇log p(y | f̂)‖, recomputed in float64
    steps : of Newton's method
    inner : the status of the linear solves on the way: a failed one is harmless if Newton's method converged
    products : columns multiplied with A on the way; 0 in the direct method
    mean_error : upper bound of the error of the latent mean at the data, rounding included
    rests_on : why: the concavity of log p(f | y), in which case it is a bound, or one more Newton step, an estimate
    negative : points where log p(y | f) is not concave, taken into account exactly
    evidence : the status of the log marginal likelihood
    log_marginal_likelihood, standard_error : Laplace's approximation at these hyperparameters, and its error over the
        probes; −∞ where it does not exist
    lower, upper : with these probes it lies in between: what solves, the error of the mode and rounding may change
    deviations : upper bound of the error of the latent mean because the mode is off, at any x, in units of the latent
        standard deviation there; NaN in models of version 0.1
    variance_error : upper bound of the relative error of latent variances because the mode is off
    probability_error : upper bound of the error of predicted probabilities because of both, the factors of their
        calibration being given; None if y is not a class
    calibration : in words, by which factors probabilities are calibrated; empty if they are not
    """

    newton: Status
    tolerance: float
    residual: float
    steps: int
    inner: Status
    products: int
    mean_error: float
    rests_on: str
    negative: int
    evidence: Status
    log_marginal_likelihood: float
    standard_error: float
    lower: float
    upper: float
    deviations: float = math.nan
    variance_error: float = math.nan
    probability_error: float | None = None
    calibration: str = ""

    @property
    def status(self) -> Status:
        """Return the first failure that matters, if there was one."""
        return self.evidence if self._found_the_mode else self.newton

    @property
    def met(self) -> bool:
        """Whether mode and evidence reached their tolerances; that of 0 asks for as much as float64 has to give."""
        return self.evidence is Status.CONVERGED and is_met(self.newton, self.tolerance, known=self._is_known)

    @property
    def verdict(self) -> Verdict:
        """Return what is known, in one word.

        As in regression, a small bound is as good where rounding came before the tolerance that was asked for.
        """
        if self.status is not Status.CONVERGED:
            return Verdict.NOT_EXACT
        return Verdict.UNINFORMATIVE if self.deviations > LARGEST_DEVIATION else Verdict.CERTIFIED

    @property
    def reason(self) -> str:
        """Say in words what was not reached, or what makes the bound say little."""
        if self.status is Status.CONVERGED:
            return (
                f"the latent mean is only known to {self.deviations:.2g} of its standard deviation, since rounding of "
                "the inputs and of products with K is amplified"
            )
        if self._found_the_mode:
            return f"the log marginal likelihood: {words(self.evidence)}"
        inner = "" if self.inner is Status.CONVERGED else f" (a linear solve failed: {_event(self.inner)})"
        return f"Newton's method for the mode: {words(self.newton)}{inner}"

    @property
    def _found_the_mode(self) -> bool:
        """Whether the residual met the tolerance, or rounding came first but the mean is known well."""
        return self.newton is Status.CONVERGED or (self.newton in BY_ROUNDING and self._is_known)

    @property
    def _is_known(self) -> bool:
        """Whether the bound of the error is small beside the uncertainty."""
        return self.deviations <= AS_GOOD

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        verdict = self.verdict
        first = {
            Verdict.CERTIFIED: f"certified, within Laplace's approximation: {self._how_well()}",
            Verdict.UNINFORMATIVE: f"solved, but the bound says little: {self.reason}",
            Verdict.NOT_EXACT: f"NOT exact: {self.reason}",
        }[verdict]
        solves = f", {self.products} columns multiplied" if self.products else ""
        negative = f"  {self.negative} points where log p(y | f) is not concave, taken into account exactly"
        return "\n".join(
            [
                first,
                f"  mode: residual {self.residual:.1e} (asked for {self.tolerance:.1e}), recomputed in float64, after "
                f"{self.steps} Newton steps{solves}",
                f"  at the data the latent mean is within {self.mean_error:.2g} of the exact one, rounding included, "
                f"by {self.rests_on}",
                *([negative] if self.negative else []),
                *([f"  {self.calibration}; their choice is no part of the bound"] if self.calibration else []),
                self._evidence(),
            ]
        )

    def _how_well(self) -> str:
        """Say how well the mean, variances and probabilities are known."""
        if math.isnan(self.deviations):
            return f"the latent mean is within {self.mean_error:.2g} of the exact one"
        known = (
            f"the latent mean to {self.deviations:.1g} of its standard deviation, latent variances to a relative "
            f"{self.variance_error:.1g}"
        )
        if self.probability_error is None:
            return known
        return f"probabilities to {self.probability_error:.1g} ({known}), before tolerances of the prediction itself"

    def _evidence(self) -> str:
        value = (
            f"  approximate log marginal likelihood {self.log_marginal_likelihood:.8g}, standard error "
            f"{self.standard_error:.2g}, "
        )
        certain = math.isfinite(self.lower) and math.isfinite(self.upper)
        return value + (f"solver part within [{self.lower:.8g}, {self.upper:.8g}]" if certain else "not certified")


LARGEST_DEVIATION = 0.1
"""Error of the latent mean, in units of its standard deviation, up to which it is called certified."""

AS_GOOD = 0.01
"""The same where rounding came before the tolerance that was asked for, as in regression of the noise."""

TOTAL_VARIATION = 0.4, 0.25
"""By how much a probability changes if a mean moves by one standard deviation, and per dimension if a covariance does
by its own size, at most: the densities of the two Gaussians differ by no more."""

WORDS = {
    Status.MAX_ITERATIONS: "its steps ran out",
    Status.STAGNATED: "no step along its direction raised log p(f | y)",
    Status.PRECISION_EXHAUSTED: "rounding keeps the residual above the tolerance",
    Status.INDEFINITE_OPERATOR: "K⁻¹ + W is not positive definite: the point found is no maximum",
    Status.NOT_FINITE: "NaN or infinite numbers appeared",
}
"""What a status means to Newton's method; its own words are about a linear solve."""


def words(status: Status) -> str:
    """Say what a status means to Newton's method and what follows it."""
    return WORDS.get(status) or _event(status)


def _event(status: Status) -> str:
    """Return what happened, without the advice for those who call a solver themselves."""
    return status.value.partition(";")[0]


def laplace_certificate(posterior: LaplacePosterior, *, tolerance: float) -> LaplaceCertificate:
    """Return what is known about the posterior, whose mode was asked for to ``tolerance``; it must have its factors."""
    mode, (system, _) = posterior.mode, posterior.at_hand()
    reached = replace(mode, status=Status.CONVERGED)  # what the search did not reach is said by `newton`
    found, spent = laplace_value(posterior.problem, posterior.gp, reached, system, posterior.numerics)
    exists, error = math.isfinite(found.value), posterior.error
    either = error.psi_rounding + 0.5 * error.determinant
    return LaplaceCertificate(
        newton=mode.status,
        tolerance=tolerance,
        residual=mode.residual,
        steps=mode.steps,
        inner=mode.inner,
        products=(posterior.spent + spent).products,
        mean_error=float(posterior.mean_bound(posterior.problem.X).max()) if exists else math.inf,
        rests_on=posterior.rests_on,
        negative=len(mode.expansion.apart),
        evidence=found.status if exists else Status.INDEFINITE_OPERATOR,
        log_marginal_likelihood=found.value if exists else -math.inf,
        standard_error=found.value_error,
        lower=found.lower - either if exists else -math.inf,
        upper=found.upper + either + error.psi if exists else -math.inf,
        deviations=error.deviations,
        variance_error=error.widening - 1,
        probability_error=probability_error(posterior),
    )


def probability_error(posterior: LaplacePosterior, factors: Calibration = Calibration()) -> float | None:
    """Return how far probabilities with these factors may be off because the mode is; None if there are none.

    A mean that is off by δ standard deviations σ ≤ √k(x, x) moves N(a μ, b σ²) by a δ / √b of its own, and any
    probability by no more than half of a δ σ.
    """
    if not isinstance(posterior.gp.likelihood, BernoulliLogit | BernoulliProbit | Softmax):
        return None
    by_mean, by_variance = TOTAL_VARIATION
    a, b, error = factors.mean, factors.covariance, posterior.error
    largest = math.sqrt(float(posterior.gp.kernel.diagonal(posterior.problem.X).detach().max()))
    slope = min(by_mean / math.sqrt(b) if b > 0 else math.inf, 0.5 * largest)
    spread = by_variance * posterior.problem.classes * (error.widening - 1) if b > 0 else 0.0
    return min(a * slope * error.deviations + spread, 1.0)
