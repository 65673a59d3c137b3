"""What criteria that follow a plan have in common, whatever they compute."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

from torch import Tensor

from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.planning.plan import Method, Plan, Stage
from kernelcg.planning.planner import reconsidered


class PlannedCriterion(ABC):
    """A frozen record of data, numerics and a plan that says how each part of the rows is evaluated."""

    problem: Any
    numerics: Numerics
    plan: Plan

    @property
    def stage(self) -> Stage:
        """Return how these rows are evaluated."""
        return self.plan.stage(len(self.problem))

    @property
    def is_direct(self) -> bool:
        """Whether it is exact, by Cholesky factorisation."""
        return self.stage.method is Method.DIRECT

    @property
    def random_columns(self) -> int:
        """Return how many random columns a gradient rests on; 0 where it is exact."""
        return self.stage.random_columns if self.is_direct else self.numerics.probes

    @property
    def stage_rows(self) -> tuple[int, ...]:
        """Return the rows of the parts on which it is learned, one after the other."""
        return tuple(stage.rows for stage in self.plan.stages)

    @property
    def patience(self) -> float:
        """Return after how many evaluations by iteration exact ones are taken up."""
        return math.inf if self.stage.patience is None else self.stage.patience

    def on(self, rows: Tensor) -> Self:
        """Return the criterion on some of the rows, by the method planned for so many."""
        return replace(self, problem=self.problem.subset(rows))  # type: ignore[type-var]  # subclasses are dataclasses

    def following(self, plan: Plan) -> Self:
        """Return the criterion by another plan."""
        return replace(self, plan=plan)  # type: ignore[type-var]

    def directly(self, why: str) -> Self:
        """Return the criterion with exact evaluations from so many rows on, as far as the memory allows."""
        return self.following(self.plan.revised(len(self.problem), why))

    def knowing(self, gp: Any) -> Self:
        """Return the criterion with its plan reconsidered: a part of the rows has led to these hyperparameters."""
        return self.following(reconsidered(self.plan, len(self.problem), self.relative_noise(gp)))

    @abstractmethod
    def relative_noise(self, gp: Any) -> float | None:
        """Return the variance of the noise relative to that of the process; None where there is no such number."""

    def seeded(self, seed: int) -> Self:
        """Return the criterion with other probes."""
        return replace(self, numerics=replace(self.numerics, seed=seed))  # type: ignore[type-var]
