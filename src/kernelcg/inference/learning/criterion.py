"""What can be maximised, and one evaluation of it as a search sees it."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from kernelcg.events import EventKind, Listener, tell
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.objective import log_prior, prior_precision
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.default_priors import Priors
from kernelcg.inference.learning.lbfgs import Point
from kernelcg.parameters import Parametric
from kernelcg.planning import Method, Plan
from kernelcg.solvers import Status

NOISY_GAIN = 1.0
"""Loss in nats that a step along a gradient from random columns may bring near the maximum, in units of p / k for p
hyperparameters and k columns: twice the mean, p / 2k, of the whole loss that such a gradient causes."""


class Criterion(Protocol):
    """A function of the hyperparameters that learning maximises, such as `Objective` and `LaplaceObjective`."""

    @property
    def problem(self) -> Any:
        """Return the data; it has a length."""

    @property
    def numerics(self) -> Numerics:
        """Return how an iterative evaluation works."""

    @property
    def is_direct(self) -> bool:
        """Whether it is exact."""

    @property
    def random_columns(self) -> int:
        """Return how many random columns a gradient rests on; 0 where it is exact."""

    @property
    def measures_noise(self) -> bool:
        """Whether standard errors of the gradient say when to stop; otherwise their number of probes does."""

    @property
    def stage_rows(self) -> tuple[int, ...]:
        """Return the rows of the parts on which L-BFGS learns, one after the other."""

    def on(self, rows: Tensor) -> Self:
        """Return the criterion on some of the rows."""

    @property
    def patience(self) -> float:
        """Return after how many evaluations by iteration exact ones are taken up."""

    @property
    def plan(self) -> Plan | None:
        """Return the plan that it follows, if there is one."""

    def following(self, plan: Plan) -> Self:
        """Return the criterion by another plan."""

    def directly(self, why: str) -> Self:
        """Return the criterion with exact evaluations from so many rows on, as far as the memory allows."""

    def knowing(self, gp: Any) -> Self:
        """Return the criterion with its plan reconsidered: a part of the rows has led to these hyperparameters."""

    def seeded(self, seed: int) -> Self:
        """Return the criterion with other probes."""

    def lean(self, trail: Any) -> Any:
        """Return a trail as it can be stored."""

    def restored(self, trail: Any, gp: Any) -> Any:
        """Return a stored trail as it was; ``gp`` is of the same kind, at any hyperparameters."""

    def __call__(
        self,
        gp: Any,
        trail: Any = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, Any]:
        """Return value and gradient, and a trail that helps the next evaluation; tell of the iterations of solves."""


def method_of(objective: Criterion) -> Method:
    """Return how the criterion is evaluated."""
    return Method.DIRECT if objective.is_direct else Method.ITERATIVE


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a criterion and its gradient; the value is NaN where it is not known."""

    rows: int
    method: Method
    value: float
    status: Status
    log_parameters: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Request:
    """An evaluation that learning needs next: of which criterion, where, and with the trail of which evaluation.

    ``promised`` is the gain in nats that the search predicts for the step; NaN where it predicts none.
    """

    objective: Criterion
    theta: Tensor
    trail: Any
    promised: float = math.nan


@dataclass(frozen=True, eq=False)
class Search:
    """What a search maximises, from where, within which bounds, and whom it tells.

    Attributes
    ----------
    gp : the process from which learning starts; the log hyperparameters of all points are in its order
    lower, upper : (p,) bounds, equal where a hyperparameter is fixed
    began : time, by ``time.perf_counter``, from which the seconds of steps are counted
    """

    objective: Criterion
    gp: Parametric
    lower: Tensor
    upper: Tensor
    began: float
    callback: Listener | None = None
    priors: Priors | None = None
    """Priors of hyperparameters for which the user gave neither bounds nor priors; None for no such priors."""

    @property
    def start(self) -> Tensor:
        """Return the first log hyperparameters, within the bounds."""
        return self.clamped(self.gp.log_parameters().detach())

    @property
    def free(self) -> int:
        """Return how many hyperparameters are learned."""
        return int((self.lower < self.upper).sum())

    @property
    def seconds(self) -> float:
        """Return the time since it began."""
        return time.perf_counter() - self.began

    def clamped(self, theta: Tensor) -> Tensor:
        """Return θ within the bounds."""
        return theta.clamp(self.lower, self.upper)

    def log_prior(self, gp: Parametric) -> tuple[float, Tensor]:
        """Return the log priors of the user and the default ones, up to a constant, and their gradient."""
        density, slope = log_prior(gp)
        if self.priors is None:
            return density, slope
        default, default_slope = self.priors.log_density(gp)
        return density + default, slope + default_slope

    def information(self, gp: Parametric, estimate: CriterionValue) -> Tensor | None:
        """Return the negative Hessian of criterion plus log prior, positive semi-definite, as far as it is estimated.

        A default prior is log p = −½ r² for some r: its part is ∇r ∇rᵀ = ∇log p (∇log p)ᵀ / (−2 log p).
        """
        if estimate.information is None:
            return None
        default, slope = (0.0, None) if self.priors is None else self.priors.log_density(gp)
        found = estimate.information + prior_precision(gp).diag()
        if slope is not None and default < 0:
            found = found + torch.outer(slope, slope / (-2 * default))
        free = self.lower < self.upper
        return torch.where(free & free[:, None], found, 0.0)

    def point(self, request: Request, gp: Parametric, estimate: CriterionValue, trail: Any) -> Point[Any]:
        """Return criterion plus log prior and their gradient, 0 for what is not learned, and tell the listener.

        ``gp`` is the process with the hyperparameters of the request, at which the criterion was estimated.
        """
        objective, theta = request.objective, request.theta
        prior, slope = self.log_prior(gp)
        gradient = torch.where(self.lower < self.upper, estimate.gradient + slope, 0.0)
        value = estimate.value + prior if objective.is_direct or math.isinf(estimate.value) else math.nan
        seen = Evaluation(len(objective.problem), method_of(objective), value, estimate.status, tuple(theta.tolist()))
        tell(self.callback, EventKind.EVALUATION, seen, self.began)
        failed = estimate.status is not Status.CONVERGED
        information = self.information(gp, estimate)
        error = NOISY_GAIN * self.free / objective.random_columns if objective.random_columns else 0.0
        return Point(theta, value, error, gradient, trail, failed, estimate.needed_a_factor, information)

    def noise(self, objective: Criterion, point: Point[Any]) -> Tensor:
        """Return the standard errors of the gradient; 0 for what is not learned."""
        gp = self.gp.with_log_parameters(point.theta)
        estimate, _ = objective(gp, point.state, value=False, errors=True, callback=self.callback)
        return torch.where(self.lower < self.upper, estimate.gradient_error.nan_to_num(0.0), 0.0)

    def height(self, objective: Criterion, point: Point[Any]) -> float:
        """Return the value at a point, computed if it was not on the way."""
        if not math.isnan(point.value):
            return point.value
        gp = self.gp.with_log_parameters(point.theta)
        return objective(gp, value=True, callback=self.callback)[0].value + self.log_prior(gp)[0]
