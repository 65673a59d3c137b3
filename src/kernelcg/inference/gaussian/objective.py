"""What is maximised: a criterion on data, by the method that suits their number, plus the priors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.gaussian.cross_validation import iterative_cross_validation
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.likelihood_by_cholesky import CRITERIA, CriterionName, direct_estimate, signs_for
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Trail, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.planned_criterion import PlannedCriterion
from kernelcg.parameters import Parametric
from kernelcg.planning.plan import UNPLANNED, Method, Plan, method_named
from kernelcg.planning.planner import Options, Resources, planned


@dataclass(frozen=True, eq=False)
class Objective(PlannedCriterion):
    """A learning criterion on data, "marginal_likelihood", "loo" or "gcv", as a function of the hyperparameters.

    Leave-one-out errors need the diagonal of A⁻¹, whose estimates enter as reciprocals: few probes would bias them, so
    that criterion is always computed exactly, and learned on as many rows as that allows.

    Parameters
    ----------
    problem : the data
    criterion : "marginal_likelihood", "loo" or "gcv"
    method : "direct", "iterative" or "auto"
    numerics : how iterative evaluations work
    """

    problem: Regression
    criterion: str = CriterionName.MARGINAL_LIKELIHOOD
    method: str = Method.AUTO
    numerics: Numerics = Numerics()
    learns_in_stages: bool = True
    """Whether learning begins with a part of the rows: a subset shows the way at a fraction of the cost."""
    plan: Plan = UNPLANNED
    """How each part of the rows is evaluated; if it is not given, it is made for these data, ``method`` and stages."""

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise ValueError(f"the criterion must be one of {', '.join(CRITERIA)}, not {self.criterion!r}")
        if self.criterion != CriterionName.MARGINAL_LIKELIHOOD and self.problem.mean != MeanKind.ZERO:
            raise ValueError(f"{self.criterion} is for kernel ridge regression: it takes mean='zero'")
        if self.plan is UNPLANNED:
            object.__setattr__(self, "plan", self._planned())
        object.__setattr__(self, "problem", self.problem.storing(self.stage.storage))

    @property
    def measures_noise(self) -> bool:
        """Whether standard errors must be measured: no, k probes drawn from P ⪯ A are known to cost p / 2k nats."""
        return False

    def relative_noise(self, gp: GaussianProcess) -> float:
        """Return the learned variance of the noise relative to the mean variance of the process at the data."""
        return relative_noise(gp, self.problem.X)

    def lean(self, trail: Trail) -> Trail:
        """Return a trail as it can be stored."""
        return trail.lean()

    def restored(self, trail: Trail, gp: GaussianProcess) -> Trail:
        """Return a stored trail as it was."""
        return trail.restored(self.problem, gp)

    def __call__(
        self,
        gp: GaussianProcess,
        trail: Trail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, Trail | None]:
        """Return value and gradient, and what helps the next evaluation; the exact method gives all it can anyway."""
        if self.is_direct:
            k = self.random_columns
            signs = signs_for(self.problem, k, self.numerics.seed) if k else None
            return direct_estimate(self.problem, gp, self.criterion, signs, errors=errors), None
        if self.criterion != CriterionName.MARGINAL_LIKELIHOOD:
            return iterative_cross_validation(self.problem, gp, self.numerics, trail, callback)
        return iterative_estimate(self.problem, gp, self.numerics, trail, value=value, errors=errors, callback=callback)

    def _planned(self) -> Plan:
        problem, numerics = self.problem, self.numerics
        work = problem.workload(
            in_stages=self.learns_in_stages,
            exact_only=self.criterion == CriterionName.LOO,
            needs_inverse=self.criterion != CriterionName.MARGINAL_LIKELIHOOD,
        )
        options = Options(method_named(self.method), probes=numerics.probes, seed=numerics.seed)
        return planned(work, options, Resources.of(problem.backend, problem.X.device, problem.pricing))


def relative_noise(gp: GaussianProcess, X: Tensor) -> float:
    """Return the variance of the noise relative to the mean variance of the process at X; 1 where that is zero."""
    signal = float(gp.kernel.diagonal(X).detach().mean())
    return gp.noise.variance.item() / signal if signal > 0 else 1.0


def log_prior(gp: Parametric) -> tuple[float, Tensor]:
    """Return Σ log N(log θ; log median, spread²), up to a constant, and its gradient in log θ."""
    theta, restrictions = gp.log_parameters().detach(), gp.restrictions()
    if all(one.median is None for one in restrictions):
        return 0.0, torch.zeros_like(theta)
    known = torch.tensor([one.median is not None for one in restrictions])
    medians = torch.tensor([math.log(one.median or 1.0) for one in restrictions], dtype=torch.float64)
    spreads = torch.tensor([one.spread for one in restrictions], dtype=torch.float64)
    scores = torch.where(known, (theta - medians) / spreads, 0.0)
    return -0.5 * float(scores.square().sum()), -scores / spreads


def prior_precision(gp: Parametric) -> Tensor:
    """Return (p,) the negative second derivatives of `log_prior`."""
    return torch.tensor([0.0 if one.median is None else one.spread**-2 for one in gp.restrictions()]).double()
