"""The criterion of several outputs: the sum of their log marginal likelihoods, and the gradients in their places."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate, signs_for
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Trail, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.objective import relative_noise
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.planned_criterion import PlannedCriterion
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, first_failure
from kernelcg.planning.plan import Method, Plan
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Status


@dataclass(frozen=True, eq=False)
class OutputsTrail:
    """What an evaluation leaves to the next one nearby: the trail of each output that was iterated for."""

    each: tuple[Trail | None, ...]


@dataclass(frozen=True, eq=False)
class OutputsObjective(PlannedCriterion):
    """The log marginal likelihood of several outputs as a function of all hyperparameters.

    The outputs are independent given those, so that it is a sum; their matrices A_j = K_j + D_j are factorised or
    iterated with one after the other. An output without observations on these rows adds nothing.
    """

    problem: Outputs
    numerics: Numerics
    plan: Plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.storing(self.stage.storage))

    @property
    def measures_noise(self) -> bool:
        """Whether it has to be: as for one output, k probes are known to cost p / 2k nats."""
        return False

    def relative_noise(self, gp: OutputProcesses) -> float:
        """Return the least noise of an output, relative to the mean variance of its process at the data."""
        return min(relative_noise(gp.output(j), self.problem.X) for j in range(len(gp)))

    def lean(self, trail: OutputsTrail) -> OutputsTrail:
        """Return a trail as it can be stored."""
        return OutputsTrail(tuple(None if one is None else one.lean() for one in trail.each))

    def restored(self, trail: OutputsTrail, gp: OutputProcesses) -> OutputsTrail:
        """Return a stored trail as it was."""
        return OutputsTrail(
            tuple(
                None if one is None else one.restored(self.problem.output(j), gp.output(j))
                for j, one in enumerate(trail.each)
            )
        )

    def __call__(
        self,
        gp: OutputProcesses,
        trail: OutputsTrail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, OutputsTrail | None]:
        """Return value and gradient, and what helps the next evaluation."""
        found, trails = dict[int, CriterionValue](), list[Trail | None]()
        for j, problem in enumerate(self.problem.each):
            after = None
            if problem is not None:
                before = None if trail is None else trail.each[j]
                evaluate = self._evaluation(j, problem, before, value=value, errors=errors, callback=callback)
                found[j], after = evaluate(gp.output(j))
            trails.append(after)
        left = OutputsTrail(tuple(trails)) if any(one is not None for one in trails) else None
        return _summed(gp, found), left

    def _evaluation(
        self,
        j: int,
        problem: Regression,
        trail: Trail | None,
        *,
        value: bool,
        errors: bool,
        callback: Listener | None,
    ) -> Callable[[GaussianProcess], tuple[CriterionValue, Trail | None]]:
        """Return how output j is evaluated: as planned for all rows, or exactly where that is planned for as few."""
        own = numerics_of(self.numerics, j)
        if self.is_direct or self.plan.stage(len(problem)).method is Method.DIRECT:
            k = self.stage.random_columns
            signs = signs_for(problem, k, own.seed) if k else None
            return lambda gp: (direct_estimate(problem, gp, signs=signs, errors=errors), None)
        return lambda gp: iterative_estimate(problem, gp, own, trail, value=value, errors=errors, callback=callback)


def numerics_of(numerics: Numerics, j: int) -> Numerics:
    """Return the numerics of output j: probes of its own, so that the errors of the outputs do not add up."""
    return replace(numerics, seed=child(seeded(numerics.seed), f"output {j}").initial_seed())


def _summed(gp: OutputProcesses, found: dict[int, CriterionValue]) -> CriterionValue:
    """Return the sum of the criteria, with each gradient in its place; errors of the outputs are independent."""
    gradient = torch.zeros(len(gp.log_parameters()), dtype=torch.float64)
    squares = gradient.clone()
    for j, one in found.items():
        places = gp.positions(j)
        gradient[places] += one.gradient
        squares[places] += one.gradient_error.square()
    several = list(found.values())
    impossible = any(one.value == -math.inf for one in several)
    in_vain = [one.report for one in several if one.needed_a_factor]
    return CriterionValue(
        -math.inf if impossible else sum(one.value for one in several),
        torch.zeros_like(gradient) if impossible else gradient,
        math.hypot(*(one.value_error for one in several)),
        squares.sqrt(),
        sum(one.lower for one in several),
        sum(one.upper for one in several),
        first_failure([one.status for one in several], Status.CONVERGED),
        in_vain[0] if in_vain else next((one.report for one in several if one.report is not None), None),
    )
