"""How far the numbers of a latent process in Laplace's approximation may be off, in one record."""

import math
from dataclasses import dataclass

from kernelcg.inference.laplace.evidence import laplace_value
from kernelcg.inference.laplace.posterior import STRONG_CONCAVITY, LaplacePosterior
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
    mean_error : upper bound of the error of the latent mean
    rests_on : why: the strong concavity of log p(f | y), good wherever k(x, x) is no larger than at the data, or what
        one more Newton step would change at the data, twice
    negative : points where log p(y | f) is not concave, taken into account exactly
    evidence : the status of the log marginal likelihood
    log_marginal_likelihood, standard_error : Laplace's approximation at these hyperparameters, and its error over the
        probes; −∞ where it does not exist
    lower, upper : with these probes and exact solves it lies in between
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

    @property
    def status(self) -> Status:
        """Return the first failure that matters, if there was one."""
        return self.newton if self.newton is not Status.CONVERGED else self.evidence

    @property
    def met(self) -> bool:
        """Whether the mode and the evidence reached their tolerances."""
        return self.status is Status.CONVERGED

    @property
    def reason(self) -> str:
        """Say in words what was not reached."""
        if self.newton is Status.CONVERGED:
            return f"the log marginal likelihood: {words(self.evidence)}"
        inner = "" if self.inner is Status.CONVERGED else f" (a linear solve failed: {_event(self.inner)})"
        return f"Newton's method for the mode: {words(self.newton)}{inner}"

    def __str__(self) -> str:
        verdict = "exact to tolerance, within Laplace's approximation" if self.met else f"NOT CONVERGED: {self.reason}"
        solves = f", {self.products} columns multiplied" if self.products else ""
        where = "wherever k(x, x) is no larger than at the data" if self.rests_on == STRONG_CONCAVITY else "at the data"
        negative = f"  {self.negative} points where log p(y | f) is not concave, taken into account exactly"
        certain = math.isfinite(self.lower) and math.isfinite(self.upper)
        within = f"[{self.lower:.8g}, {self.upper:.8g}]"
        return "\n".join(
            [
                verdict,
                f"  mode: residual {self.residual:.1e} (asked for {self.tolerance:.1e}), recomputed in float64, after "
                f"{self.steps} Newton steps{solves}",
                f"  the latent mean is within {self.mean_error:.2g} of the exact one {where}, by {self.rests_on}",
                *([negative] if self.negative else []),
                f"  approximate log marginal likelihood {self.log_marginal_likelihood:.8g}, standard error "
                f"{self.standard_error:.2g}, solver part {'within ' + within if certain else 'not certified'}",
            ]
        )


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
    found, spent = laplace_value(posterior.problem, posterior.gp, mode, system, posterior.numerics)
    exists = math.isfinite(found.value)
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
        lower=found.lower if exists else -math.inf,
        upper=found.upper if exists else -math.inf,
    )
