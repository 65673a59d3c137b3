"""L-BFGS on a growing part of the data: from a subset by Cholesky to all data by conjugate gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelcg.inference.learning.coordinates import FAR, Coordinates
from kernelcg.inference.learning.criterion import Criterion, Request, Search, method_of
from kernelcg.inference.learning.lbfgs import Ascent, Curvature, Point, Rule, advanced, proposed
from kernelcg.inference.learning.state import Outcome, Stage, StagedState, Step, TrainingState
from kernelcg.randomness import child

STAGE_REACH = math.log(20)
"""On a part of the data a lengthscale grows to 20 times its start at most. Few rows may call a feature irrelevant that
matters; a larger lengthscale would be where the criterion is flat, and a search on all rows would not find back."""

EXACT_GAIN = 1e-5
"""Gain in nats that is still worth a step of the exact method on all data. Where the criterion is flat, smaller steps
can go on for a hundred evaluations."""

STAGE_GAIN = 0.05
"""Gain in nats that is still worth a step on a part of the data. The optimum there is not that of all data, but a step
is cheaper than one on all data."""

HOPELESS = "iterating took, or promised to take, longer than factorising"
"""The reason that a revised plan states."""

NOISE_GAIN = 0.25
"""Part of the loss p / 2N that N probes cost anyway, below which a gain is inside the noise."""


@dataclass(frozen=True, eq=False)
class Staged:
    """L-BFGS on each part of the data in turn; the smallest is searched from several starts, curvature is carried over.

    Attributes
    ----------
    objectives : the criterion on each part, the smallest first
    starts : log hyperparameters from which the smallest part is searched
    max_steps : on each part
    """

    search: Search
    objectives: tuple[Criterion, ...]
    starts: tuple[Tensor, ...]
    max_steps: int
    lengthscales: Tensor
    """(p,) which log hyperparameters are lengthscales."""
    coordinates: Coordinates
    """Coordinates in which the search moves where it has an estimate of the curvature."""

    @classmethod
    def of(cls, search: Search, max_steps: int, restarts: int, generator: Generator) -> "Staged":
        """Return the stages that the criterion allows, and so many further random starts."""
        objective, source = search.objective, child(generator, "restarts")
        n = len(objective.problem)
        order = torch.randperm(n, generator=child(generator, "subset"))
        parts = tuple(objective if size == n else objective.on(order[:size]) for size in objective.stage_rows)
        theta = search.gp.log_parameters().detach()
        drawn = (torch.randn(len(theta), generator=source, dtype=theta.dtype) for _ in range(restarts))
        starts = (search.start, *(search.clamped(theta + one) for one in drawn))
        lengthscales = torch.tensor(["lengthscale" in name for name in search.gp.parameter_names()])
        ends = torch.where(lengthscales, search.start + math.log(FAR), math.inf)
        return cls(search, parts, starts, max_steps, lengthscales, Coordinates(ends))

    @property
    def parts(self) -> str:
        """Return the parts of the data and their methods, in words."""
        return ", ".join(f"{len(one.problem)} rows, {method_of(one)}" for one in self.objectives)

    def first(self) -> StagedState:
        """Return where it begins."""
        return StagedState(self.starts)

    def stage(self, at: StagedState) -> Stage | None:
        """Return what begins here, if anything does."""
        if at.ascent is not None or at.stage == len(self.objectives):
            return None
        objective = self.objective(at)
        return Stage(len(objective.problem), method_of(objective), len(at.ended) + 1, len(at.starts))

    def objective(self, at: StagedState) -> Criterion:
        """Return the criterion of this stage, evaluated by the plan in force."""
        objective = self.objectives[at.stage]
        return objective if at.plan is None else objective.following(at.plan)

    def outcome(self, at: StagedState) -> Outcome | None:
        """Return where it led to once all stages are done."""
        if at.stage < len(self.objectives):
            return None
        best = at.ended[0]
        return Outcome(best.point.theta, best.converged, best.reason, plan=at.plan)

    def best_so_far(self, at: StagedState) -> Tensor:
        """Return the best point of this stage where values are known, else the last; before any, its start."""
        found = [*at.ended, *(() if at.ascent is None else (at.ascent,))]
        usable = [ascent.point for ascent in found if ascent.point.usable]
        if not usable:
            return at.starts[0]
        known = not any(math.isnan(point.value) for point in usable)
        return max(usable, key=lambda point: point.value).theta if known else usable[-1].theta

    def next(self, at: StagedState) -> Request | StagedState:
        """Return what is to be evaluated next, or where the next search or stage begins."""
        if at.ascent is None:
            start = at.starts[len(at.ended)].clamp(self.search.lower, self._upper(at.stage))
            return Request(self.objective(at), start, None)
        if at.ascent.ended:
            return self._beyond(at)
        proposal = proposed(at.ascent, self._rule(at))
        if isinstance(proposal, Ascent):
            return self._noted(at, proposal)
        return Request(self.objective(at), proposal.theta, at.ascent.point.state, proposal.promised)

    def after(self, state: TrainingState, at: StagedState, request: Request, point: Point[Any]) -> TrainingState:
        """Return the state after the evaluation that was asked for."""
        before, objective = at.ascent, request.objective
        if before is None:
            ascent = self._begun(at, point)
            return state.moved(self._noted(at, ascent), 1, ascent.failures)
        ascent = advanced(before, point, request.promised, self._rule(at))
        moved = state.moved(self._noted(at, ascent), 1, ascent.failures - before.failures)
        if ascent.steps == before.steps:
            return moved
        rows, theta = len(objective.problem), tuple(point.theta.tolist())
        return moved.stepped(
            Step(rows, method_of(objective), point.value, self.search.seconds, theta, request.promised)
        )

    def _noted(self, at: StagedState, ascent: Ascent[Any]) -> StagedState:
        """Return the place after an evaluation; where it needed a factor, the search begins again with exact ones.

        It goes on from the same point with the same curvature. Where the memory allows no exact evaluation, it goes on
        as it did.
        """
        objective = self.objective(at)
        hopeless = ascent.needed_a_factor or (ascent.evaluations >= objective.patience and not ascent.ended)
        if not hopeless or objective.is_direct:
            return replace(at, ascent=ascent)
        exact = objective.directly(HOPELESS)
        if not exact.is_direct:
            return replace(at, ascent=ascent)
        number = len(at.ended)
        starts = (*at.starts[:number], ascent.point.theta, *at.starts[number + 1 :])
        return replace(at, starts=starts, curvature=ascent.curvature, plan=exact.plan, ascent=None)

    def lean(self, at: StagedState) -> StagedState:
        """Return the place as it can be stored."""
        return self._with_trail(at, lambda objective, trail: objective.lean(trail))

    def restored(self, at: StagedState) -> StagedState:
        """Return a stored place as it was."""
        return self._with_trail(at, lambda objective, trail: objective.restored(trail, self.search.gp))

    def _with_trail(self, at: StagedState, change: Callable[[Criterion, Any], Any]) -> StagedState:
        if at.ascent is None or at.ascent.point.state is None:
            return at
        point = at.ascent.point
        trail = change(self.objectives[at.stage], point.state)
        return replace(at, ascent=replace(at.ascent, point=replace(point, state=trail)))

    def _begun(self, at: StagedState, first: Point[Any]) -> Ascent[Any]:
        """Return the search that begins with this first point."""
        objective, search = self.objective(at), self.search
        curvature = at.curvature if first.information is None else Curvature()
        ascent = Ascent(first, curvature, failures=int(first.failed), needed_a_factor=first.needed_a_factor)
        if not first.usable:
            return replace(ascent, reason="the criterion is not finite at the start")
        return replace(ascent, noise=search.noise(objective, first)) if objective.measures_noise else ascent

    def _beyond(self, at: StagedState) -> StagedState:
        """Return where it goes on after the end of a search: with the next start, or the next part of the data."""
        ended = (*at.ended, *(() if at.ascent is None else (_without_trail(at.ascent),)))
        if len(ended) < len(at.starts):
            return replace(at, ended=ended, ascent=None)
        usable = [ascent for ascent in ended if ascent.point.usable] or [ended[0]]
        here, stage = self.objective(at), at.stage + 1
        best = usable[0]
        if len(usable) > 1:
            best = max(usable, key=lambda ascent: self.search.height(here, ascent.point))
        if stage == len(self.objectives):
            return replace(at, stage=stage, ended=(best,), ascent=None)
        theta, following = best.point.theta, self.objective(replace(at, stage=stage))
        known = best.curvature if best.point.information is None else Curvature.of(best.point.information)
        curvature = known.scaled(len(following.problem) / len(here.problem))
        plan = following.knowing(self.search.gp.with_log_parameters(theta)).plan
        return StagedState((theta,), curvature, stage, plan)

    def _rule(self, at: StagedState) -> Rule:
        objective, search, stage = self.objective(at), self.search, at.stage
        columns = objective.random_columns
        tolerance = NOISE_GAIN * search.free / (2 * columns) if columns else EXACT_GAIN
        if stage + 1 < len(self.objectives):
            tolerance = max(STAGE_GAIN, tolerance)
        return Rule(search.lower, self._upper(stage), tolerance, self.max_steps, self.coordinates)

    def _upper(self, stage: int) -> Tensor:
        """Return the upper bounds; on a part of the data lengthscales stay within reach of their start."""
        upper = self.search.upper
        if stage + 1 == len(self.objectives):
            return upper
        return torch.where(self.lengthscales, torch.minimum(upper, self.search.start + STAGE_REACH), upper)


def _without_trail(ascent: Ascent[Any]) -> Ascent[Any]:
    return replace(ascent, point=replace(ascent.point, state=None))
