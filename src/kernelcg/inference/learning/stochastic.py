"""Stochastic gradient ascent: unbiased gradients with fresh probes at every step, on all data."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelcg.inference.learning.criterion import Request, Search, method_of
from kernelcg.inference.learning.lbfgs import Point
from kernelcg.inference.learning.optimizer import Optimizer
from kernelcg.inference.learning.state import Outcome, Stage, Step, StochasticState, TrainingState
from kernelcg.randomness import child

STEP_SIZES = {Optimizer.ADAGRAD: 1.0, Optimizer.ADAM: 0.1}
"""Default step sizes: the factors by which the steps of the rules are multiplied."""


def adagrad(g: Tensor, moments: tuple[Tensor, ...], t: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Return the step :math:`g / (\sqrt{G} + 10^{-6})` and G, the sum of the squares of all gradients so far.

    References
    ----------
    Duchi, Hazan & Singer (2011); Cutajar et al. (2016), section 4.
    """
    G = (moments[0] if moments else 0.0) + g.square()
    return g / (G.sqrt() + 1e-6), (G,)


def adam(g: Tensor, moments: tuple[Tensor, ...], t: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""Return the step number t, :math:`\hat m / (\sqrt{\hat v} + 10^{-8})`, and the means m of g and v of g².

    References
    ----------
    Kingma & Ba (2015), algorithm 1.
    """
    m, v = moments or (torch.zeros_like(g), torch.zeros_like(g))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.square()
    return (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8), (m, v)


RULES = {Optimizer.ADAGRAD: adagrad, Optimizer.ADAM: adam}


@dataclass(frozen=True, eq=False)
class Stochastic:
    """A given number of steps by one of `RULES`."""

    search: Search
    optimizer: Optimizer
    step_size: float
    max_steps: int
    generator: Generator

    @property
    def parts(self) -> str:
        """Return how much of the data it learns from, in words."""
        return f"{len(self.search.objective.problem)} rows, {method_of(self.search.objective)}"

    def first(self) -> StochasticState:
        """Return where it begins."""
        return StochasticState(self.search.start, ())

    def stage(self, at: StochasticState) -> Stage | None:
        """Return what begins here, if anything does."""
        objective = self.search.objective
        return None if at.number else Stage(len(objective.problem), method_of(objective), 1, 1)

    def outcome(self, at: StochasticState) -> Outcome | None:
        """Return where it led to once it is over."""
        if at.reason:
            return Outcome(at.theta, False, at.reason)
        if at.number < self.max_steps:
            return None
        return Outcome(at.theta, True, f"{at.number} steps of {self.optimizer}, as asked")

    def best_so_far(self, at: StochasticState) -> Tensor:
        """Return where it is: what an earlier point was worth is not known."""
        return at.theta

    def lean(self, at: StochasticState) -> StochasticState:
        """Return the place as it can be stored."""
        return at if at.trail is None else replace(at, trail=self.search.objective.lean(at.trail))

    def restored(self, at: StochasticState) -> StochasticState:
        """Return a stored place as it was."""
        if at.trail is None:
            return at
        return replace(at, trail=self.search.objective.restored(at.trail, self.search.gp))

    def next(self, at: StochasticState) -> Request:
        """Return what is to be evaluated next: the criterion where the search is, with fresh probes."""
        seed = child(self.generator, f"step {at.number}").initial_seed()
        return Request(self.search.objective.seeded(seed), at.theta, at.trail)

    def after(self, state: TrainingState, at: StochasticState, request: Request, point: Point[Any]) -> TrainingState:
        """Return the state after one step."""
        search, number = self.search, at.number
        if not point.usable:
            reason = f"A could not be solved with at step {number}"
            return state.moved(StochasticState(at.theta, at.moments, None, number, reason), 1, int(point.failed))
        direction, moments = RULES[self.optimizer](point.gradient, at.moments, number + 1)
        theta = search.clamped(at.theta + self.step_size * direction)
        trail = point.state and point.state.without_probes()
        moved = state.moved(StochasticState(theta, moments, trail, number + 1), 1, int(point.failed))
        rows = len(request.objective.problem)
        gain = float(point.gradient @ (theta - at.theta))
        method = method_of(request.objective)
        return moved.stepped(Step(rows, method, point.value, search.seconds, tuple(theta.tolist()), gain))
