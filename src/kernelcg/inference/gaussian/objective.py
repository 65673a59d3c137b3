"""What is maximised: a criterion on data, by the method that suits their number, plus the priors."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.gaussian.cross_validation import iterative_cross_validation
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.likelihood_by_cholesky import CRITERIA, CriterionName, direct_estimate
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Trail, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.parameters import Parametric
from kernelcg.planning.plan import UNPLANNED, Method, Plan, Stage, method_named
from kernelcg.planning.planner import Options, Resources, planned


@dataclass(frozen=True, eq=False)
class Objective:
    """A learning criterion on data, "marginal_likelihood", "loo" or "gcv", as a function of the hyperparameters.

    Leave-one-out errors need the diagonal of A⁻¹, whose estimates enter as reciprocals: few probes would bias them, so
    that criterion is always computed exactly, and learned on as many rows as that allows.
    """

    problem: Regression
    criterion: str = CriterionName.MARGINAL_LIKELIHOOD
    method: str = "auto"
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
    def stage(self) -> Stage:
        """Return how these rows are evaluated."""
        return self.plan.stage(len(self.problem))

    @property
    def is_direct(self) -> bool:
        """Whether it is exact, by Cholesky factorisation."""
        return self.stage.method is Method.DIRECT

    @property
    def measures_noise(self) -> bool:
        """Whether it has to be: drawn from P ⪯ A, k probes are known to cost p / 2k nats."""
        return False

    @property
    def stage_rows(self) -> tuple[int, ...]:
        """Return the rows of the parts on which it is learned, one after the other."""
        return tuple(stage.rows for stage in self.plan.stages)

    def on(self, rows: Tensor) -> Self:
        """Return the objective on some of the rows, by the method planned for so many."""
        return replace(self, problem=self.problem.subset(rows))

    @property
    def patience(self) -> float:
        """Return after how many evaluations by iteration exact ones are taken up."""
        return math.inf if self.stage.patience is None else self.stage.patience

    def directly(self, why: str) -> Self:
        """Return the objective with exact evaluations from so many rows on, as far as the memory allows."""
        return replace(self, plan=self.plan.revised(len(self.problem), why))

    def seeded(self, seed: int) -> Self:
        """Return the objective with other probes."""
        return replace(self, numerics=replace(self.numerics, seed=seed))

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
            return direct_estimate(self.problem, gp, self.criterion), None
        if self.criterion != CriterionName.MARGINAL_LIKELIHOOD:
            return iterative_cross_validation(self.problem, gp, self.numerics, trail, callback)
        return iterative_estimate(self.problem, gp, self.numerics, trail, value=value, errors=errors, callback=callback)

    def _planned(self) -> Plan:
        problem, numerics = self.problem, self.numerics
        work = problem.workload(in_stages=self.learns_in_stages, exact_only=self.criterion == CriterionName.LOO)
        options = Options(method_named(self.method), probes=numerics.probes, seed=numerics.seed)
        return planned(work, options, Resources.of(problem.backend, problem.X.device, problem.pricing))


def log_prior(gp: Parametric) -> tuple[float, Tensor]:
    """Return Σ log N(log θ; log median, spread²), up to a constant, and its gradient in log θ."""
    theta, restrictions = gp.log_parameters().detach(), gp.restrictions()
    known = torch.tensor([one.median is not None for one in restrictions])
    medians = torch.tensor([math.log(one.median or 1.0) for one in restrictions], dtype=torch.float64)
    spreads = torch.tensor([one.spread for one in restrictions], dtype=torch.float64)
    scores = torch.where(known, (theta - medians) / spreads, 0.0)
    return -0.5 * float(scores.square().sum()), -scores / spreads
