"""The approximations to which exact Gaussian processes are compared: FITC, PITC and VAR, for regression.

They are the baselines of a comparison, no estimators: what the library promises are answers of the exact model, which
these are not, however long they run.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

from kernelcg.comparison.sparse_prior import LatentPosterior, SparseApproximation, SparseKind
from kernelcg.errors import SolveFailed
from kernelcg.events import Listener
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import CriterionValue, impossible
from kernelcg.planning import Plan
from kernelcg.solvers import Status


@dataclass(frozen=True, eq=False)
class Evidence:
    """An approximate log marginal likelihood, whose graph leads to the hyperparameters."""

    value: Tensor
    status: Status = Status.CONVERGED
    trail: Any = None
    """Results of an evaluation that make the next one nearby cheaper."""


class SparseCriterion(ABC):
    """An approximate log marginal likelihood as a function of the hyperparameters, for `kernelcg.inference.learn`.

    It is learned on all rows from the start, as in Cutajar et al. (2016): a growing part of the data is the way of the
    exact method. Costs O(n m²) time and a few times n m numbers of memory.
    """

    problem: Any
    approximation: SparseApproximation

    def __post_init__(self) -> None:
        if self.problem.mean != MeanKind.ZERO:
            raise ValueError(f"sparse approximations take mean='zero', not {self.problem.mean!r}")
        if self.approximation.U.shape[1] != self.problem.X.shape[1]:
            d, own = self.problem.X.shape[1], self.approximation.U.shape[1]
            raise ValueError(f"the inducing inputs have {own} features but X has {d}; they must be equal")

    @abstractmethod
    def _evidence(self, gp: Any, trail: Any) -> Evidence:
        """Return the evidence, or raise `LinAlgError` where a matrix is not positive definite."""

    @property
    def numerics(self) -> Numerics:
        """Return the defaults: nothing here depends on them."""
        return Numerics()

    @property
    def is_direct(self) -> bool:
        """Whether it is free of noise: the approximate evidence is computed exactly."""
        return True

    @property
    def random_columns(self) -> int:
        """Return how many random columns a gradient rests on: none."""
        return 0

    @property
    def measures_noise(self) -> bool:
        """Whether standard errors must be measured: there is no noise."""
        return False

    @property
    def stage_rows(self) -> tuple[int, ...]:
        """Return n: learning does not begin with fewer rows."""
        return (len(self.problem),)

    @property
    def patience(self) -> float:
        """Return ∞: there is nothing more exact to be taken up."""
        return math.inf

    @property
    def plan(self) -> None:
        """Return None: there is no plan."""
        return None

    def following(self, plan: Plan) -> Self:
        """Return itself, which follows no plan."""
        return self

    def directly(self, why: str) -> Self:
        """Return itself, which is exact."""
        return self

    def knowing(self, gp: Any) -> Self:
        """Return itself: there is nothing to reconsider."""
        return self

    def on(self, rows: Tensor) -> Self:
        """Return the criterion on some of the rows, with the same inducing inputs."""
        return replace(self, problem=self.problem.subset(rows))  # type: ignore[type-var]  # subclasses are dataclasses

    def seeded(self, seed: int) -> Self:
        """Return itself: nothing is drawn."""
        return self

    def lean(self, trail: Any) -> Any:
        """Return a trail as it can be stored."""
        return trail

    def restored(self, trail: Any, gp: Any) -> Any:
        """Return a stored trail as it was."""
        return trail

    def __call__(
        self,
        gp: Any,
        trail: Any = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, Any]:
        """Return the value and its gradient by reverse differentiation, and a trail that helps the next evaluation."""
        theta = gp.log_parameters().detach().requires_grad_()
        try:
            with torch.enable_grad():
                found = self._evidence(gp.with_log_parameters(theta), trail)
                (gradient,) = torch.autograd.grad(found.value, theta, allow_unused=True, materialize_grads=True)
        except LinAlgError:
            return impossible(len(theta), Status.INDEFINITE_OPERATOR), None
        number = found.value.item()
        if not (math.isfinite(number) and bool(gradient.isfinite().all())):
            return impossible(len(theta), Status.NOT_FINITE), None
        exact = torch.zeros_like(gradient)
        return CriterionValue(number, gradient, 0.0, exact, number, number, found.status), found.trail


@dataclass(frozen=True, eq=False)
class SparseObjective(SparseCriterion):
    r"""The approximate log marginal likelihood of a regression with zero mean.

    .. math:: \log \mathcal{N}(y; 0, Q + \Lambda + D)
        - \tfrac12 \operatorname{tr}(D^{-1} (K - Q)) \;\text{(the trace for VAR alone)}

    with Q and Λ of `sparse_prior` and D the noise variances. That of VAR is a lower bound of the exact one. For c
    columns of Y the values are summed.

    Parameters
    ----------
    problem : the data
    approximation : the kind and its inducing inputs

    References
    ----------
    Snelson & Ghahramani (2006); Quiñonero-Candela & Rasmussen (2005); Titsias (2009), equation 9.
    """

    problem: Regression
    approximation: SparseApproximation

    def _noise(self, gp: GaussianProcess) -> Tensor:
        known, own = self.problem.noise_variance, gp.noise.variance.to(self.problem.X)
        return own.expand(len(self.problem)) if known is None else own + known

    def _evidence(self, gp: GaussianProcess, trail: None) -> Evidence:
        Y, D, prior = self.problem.Y, self._noise(gp), self.approximation.prior(gp.kernel, self.problem.X)
        system = prior.system(D)
        (n, c), quadratic, determinant = Y.shape, (Y * system.solve(Y)).sum(), system.log_determinant()
        value = -0.5 * (quadratic + c * determinant + n * c * math.log(2 * math.pi))
        if self.approximation.kind is SparseKind.VARIATIONAL:
            value = value - 0.5 * c * (prior.unexplained / D).sum()
        return Evidence(value)

    @torch.no_grad()
    def condition(self, gp: GaussianProcess) -> "SparsePosterior":
        """Condition the approximate process on the data.

        Raises
        ------
        SolveFailed : if a matrix is not positive definite
        """
        try:
            prior = self.approximation.prior(gp.kernel, self.problem.X)
            system = prior.system(self._noise(gp))
        except LinAlgError as failure:
            raise SolveFailed(str(failure)) from failure
        latent = self.approximation.posterior(gp.kernel, self.problem.X, prior, system, system.solve(self.problem.Y))
        return SparsePosterior(latent, gp.noise.variance.detach().to(self.problem.X))


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """The approximate process given the data, and its noise variance λ.

    Attributes
    ----------
    latent : the process given the data, without noise
    noise : λ, the variance of the noise
    """

    latent: LatentPosterior
    noise: Tensor

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (t, c) and variances (t,) of new observations: V f* + λ."""
        mean, variance = self.latent.predict(X)
        return mean, variance + self.noise
