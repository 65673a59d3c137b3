"""What is maximised when the likelihood is not Gaussian: Laplace's log marginal likelihood."""

import math
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.planning.plan import UNPLANNED, Method, Plan, Stage, method_named
from kernelcg.planning.planner import Options, Resources, planned


@dataclass(frozen=True, eq=False)
class LaplaceObjective:
    """The approximate log marginal likelihood of data as a function of the hyperparameters; as `Objective`."""

    problem: Observations
    method: str = "auto"
    numerics: Numerics = Numerics()
    learns_in_stages: bool = True
    """Whether learning begins with a part of the rows: a subset shows the way at a fraction of the cost."""
    plan: Plan = UNPLANNED
    """As in `Objective`."""

    def __post_init__(self) -> None:
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
        """Whether there is any: the noise of probes has no known relation to the information in the data here."""
        return not self.is_direct

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

    def lean(self, trail: LaplaceTrail) -> LaplaceTrail:
        """Return a trail as it can be stored: it is lean already."""
        return trail

    def restored(self, trail: LaplaceTrail, gp: LatentProcess) -> LaplaceTrail:
        """Return a stored trail as it was."""
        return trail.on(self.problem.X.device)

    def __call__(
        self,
        gp: LatentProcess,
        trail: LaplaceTrail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, LaplaceTrail | None]:
        """Return value and gradient, and what helps the next evaluation; the exact method gives all it can anyway."""
        return laplace_estimate(
            self.problem, gp, self.stage.method, self.numerics, trail, value=value, errors=errors, callback=callback
        )

    def _planned(self) -> Plan:
        problem, numerics = self.problem, self.numerics
        options = Options(method_named(self.method), probes=numerics.probes, seed=numerics.seed)
        resources = Resources.of(problem.backend, problem.X.device, problem.pricing)
        return planned(problem.workload(in_stages=self.learns_in_stages), options, resources)
