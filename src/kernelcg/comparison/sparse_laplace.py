"""FITC, PITC and VAR for classification, counts and the like: Laplace's approximation with their prior.

As in GPstuff (``latent_method`` "Laplace"). Baselines of a comparison, as in `kernelcg.comparison.sparse`.
"""

from dataclasses import dataclass, replace

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

from kernelcg.comparison.sparse import Evidence, SparseCriterion
from kernelcg.comparison.sparse_prior import LatentPosterior, SparseApproximation, SparseKind, SparsePrior, SparseSystem
from kernelcg.errors import SolveFailed
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.likelihoods import ONE, Derivatives, Likelihood, Softmax
from kernelcg.solvers import Status

RTOL = 1e-9
"""‖∇log p − a‖ relative to ‖∇log p‖ at which Newton's method has converged."""

ROUNDED = 1e-5
"""The same where a step gains no more, because of rounding: what is left of the evidence's error is of second order."""

MAX_STEPS, HALVINGS = 100, 30
SUFFICIENT = 1e-4

UNDERFLOW = 1e-200
"""Least W, so that √W has a derivative."""


@dataclass(frozen=True, eq=False)
class SparseMode:
    """A point on the way to the mode, or the mode: f = P a, where a = ∇log p(f)."""

    a: Tensor  # (n, 1)
    f: Tensor  # (n, 1)
    psi: float
    at: Derivatives
    """log p and its derivatives at f."""
    status: Status = Status.MAX_ITERATIONS

    @property
    def residual(self) -> float:
        """Return ‖∇log p − a‖ / ‖∇log p‖."""
        gradient = self.at.gradient[:, None]
        return float((gradient - self.a).norm() / gradient.norm().clamp_min(UNDERFLOW))


@dataclass(frozen=True, eq=False)
class LatentModel:
    """Observations of latent values whose prior covariance is P = F Fᵀ + Λ."""

    problem: Observations
    likelihood: Likelihood
    prior: SparsePrior

    def derivatives(self, f: Tensor) -> Derivatives:
        """Return log p(y | f) and its derivatives at f (n, 1), which carry a graph to the likelihood alone."""
        return self.likelihood.derivatives(self.problem.y, f[:, 0], self.problem.exposure)

    def system(self, W: Tensor) -> SparseSystem:
        """Return A = √W P √W + I."""
        return self.prior.system(torch.ones_like(W), W.clamp_min(UNDERFLOW).sqrt())

    def newton(self, a: Tensor, f: Tensor, at: Derivatives) -> Tensor:
        r"""Return the weights after a full Newton step from f (n, 1), where log p is known.

        .. math:: a + (I + WP)^{-1} r, \qquad r = \nabla \log p - a + W (f - P a), \qquad
            (I + WP)^{-1} = I - W^{1/2} A^{-1} W^{1/2} P

        The same for every a; rounding is relative to r, which is 0 at the mode. f, a and W carry no graph; P and
        ∇log p may.
        """
        W = at.curvature.detach().clamp_min(UNDERFLOW)[:, None]
        r = at.gradient[:, None] - a + W * (f - self.prior.product(a))
        return a + r - W.sqrt() * self.system(W[:, 0]).solve(W.sqrt() * self.prior.product(r))

    def at(self, a: Tensor, f: Tensor) -> SparseMode:
        """Return the point f = P a with Ψ = log p(y | f) − ½ aᵀP a."""
        at = self.derivatives(f)
        return SparseMode(a, f, float(at.log_density.sum() - 0.5 * (a * f).sum()), at)

    def higher(self, here: SparseMode) -> SparseMode | None:
        """Return the next point of Newton's method: its step, halved until Ψ rises; None if it does not."""
        step = self.newton(here.a, here.f, here.at) - here.a
        change = self.prior.product(step)
        slope = float((here.at.gradient[:, None] * change).sum() - (here.a * change).sum())
        slack, length = 1e-13 * abs(here.psi), 1.0
        for _ in range(HALVINGS):
            there = self.at(here.a + length * step, here.f + length * change)
            if there.psi >= here.psi + SUFFICIENT * length * slope - slack:
                return there
            length /= 2
        return None

    @torch.no_grad()
    def mode(self, start: Tensor | None = None) -> SparseMode:
        """Maximise Ψ from a = 0, or from one step after ``start``, the f of a mode nearby, if that is better."""
        zero = torch.zeros_like(self.prior.F[:, :1])
        best = self.at(zero, zero)
        if start is not None:
            a = self.newton(zero, start, self.derivatives(start))
            best = max(best, self.at(a, self.prior.product(a)), key=lambda one: one.psi)
        for _ in range(MAX_STEPS):
            if best.residual <= RTOL:
                return replace(best, status=Status.CONVERGED)
            higher = self.higher(best)
            if best.residual <= ROUNDED and (higher is None or higher.residual > 0.5 * best.residual):
                return replace(best, status=Status.CONVERGED)
            if higher is None:
                return replace(best, status=Status.STAGNATED)
            best = higher
        return best


@dataclass(frozen=True, eq=False)
class SparseLaplaceObjective(SparseCriterion):
    r"""The approximate log marginal likelihood for a log-concave likelihood of one latent value a point.

    With P = Q + Λ of `sparse_prior` in the place of K, at the mode f̂ = P a of log p(y | f) − ½ fᵀP⁻¹f,

    .. math:: \log p(y | \hat f) - \tfrac12 a^\top P a - \tfrac12 \log|I + W^{1/2} P W^{1/2}|
        - \tfrac12 \operatorname{tr}(W (K - Q)) \;\text{(the trace for VAR alone, as in GPstuff)}.

    The mode is found without a graph. One more Newton step, which changes nothing, ties it to the hyperparameters:

    .. math:: \hat f = P a, \qquad a = (I + WP)^{-1} (W \hat f + \nabla \log p),

    where f̂ and W on the right are held fixed, has the derivative that the implicit function theorem gives f̂.

    Parameters
    ----------
    problem : the data
    approximation : the kind and its inducing inputs

    References
    ----------
    Rasmussen & Williams (2006), chapters 3 and 5; Vanhatalo et al. (2013), GPstuff, JMLR 14, for the sparse priors.
    """

    problem: Observations
    approximation: SparseApproximation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.problem.classes > 1:
            raise ValueError(f"sparse approximations take one latent value a point, not {self.problem.classes} classes")

    def _model(self, gp: LatentProcess) -> LatentModel:
        """Return the model, or raise `LinAlgError` where its prior is not positive definite."""
        likelihood = gp.likelihood
        if isinstance(likelihood, Softmax) or not likelihood.log_concave:
            raise TypeError(f"sparse approximations take a log-concave likelihood of one value, not {likelihood!r}")
        return LatentModel(self.problem, likelihood, self.approximation.prior(gp.kernel, self.problem.X))

    def _evidence(self, gp: LatentProcess, trail: LaplaceTrail | None) -> Evidence:
        model = self._model(gp)
        mode = model.mode(None if trail is None else trail.f)
        at = model.derivatives(mode.f)
        a = model.newton(mode.a, mode.f, at)
        f = model.prior.product(a)
        moved = (f - mode.f)[:, 0]  # 0, but for its derivative
        W = at.curvature + at.slope.detach() * moved
        psi = (at.log_density + at.gradient.detach() * moved).sum() - 0.5 * (a * f).sum()
        value = psi - 0.5 * model.system(W).log_determinant()
        if self.approximation.kind is SparseKind.VARIATIONAL:
            value = value - 0.5 * (W * model.prior.unexplained).sum()
        return Evidence(value, mode.status, LaplaceTrail(mode.f))

    @torch.no_grad()
    def condition(self, gp: LatentProcess) -> "SparseLaplacePosterior":
        """Condition the approximate process on the data.

        Raises
        ------
        SolveFailed : if a matrix is not positive definite or Newton's method does not end
        """
        try:
            model = self._model(gp)
            mode = model.mode()
            system = model.system(mode.at.curvature)
        except LinAlgError as failure:
            raise SolveFailed(str(failure)) from failure
        if mode.status is not Status.CONVERGED:
            raise SolveFailed(f"Newton's method left a residual of {mode.residual:.1e}: {mode.status.value}")
        latent = self.approximation.posterior(gp.kernel, self.problem.X, model.prior, system, mode.a)
        return SparseLaplacePosterior(latent, model.likelihood.detached())


@dataclass(frozen=True, eq=False)
class SparseLaplacePosterior:
    """The approximate latent process given the data, and the likelihood through which it is seen.

    Attributes
    ----------
    latent : the latent process given the data
    likelihood : through which it is seen
    """

    latent: LatentPosterior
    likelihood: Likelihood

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of the latent values, (t,) each."""
        mean, variance = self.latent.predict(X)
        return mean[:, 0], variance

    def predict_observations(self, X: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return means and variances of new observations, (t,) each; the mean of a class is its probability."""
        return self.likelihood.predict(*self.predict(X), exposure)

    def log_predictive(self, X: Tensor, y: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return log p(y) of new observations, (t,)."""
        return self.likelihood.log_predictive(y, *self.predict(X), exposure)
