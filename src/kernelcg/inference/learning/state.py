"""Where learning is: one frozen record, from which it goes on to the same numbers."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from kernelcg.inference.learning.lbfgs import Ascent, Curvature
from kernelcg.inference.learning.origin import Origin
from kernelcg.planning import Method, Plan


@dataclass(frozen=True)
class Stage:
    """A part of the data that learning goes on with, and the start that comes next, of so many."""

    rows: int
    method: Method
    start: int
    starts: int


@dataclass(frozen=True)
class Step:
    """One accepted step.

    Attributes
    ----------
    rows : of the data that it learned from
    method : "direct" or "iterative"
    value : of the criterion plus the log prior, in nats; NaN where it is not known
    seconds : since learning began
    """

    rows: int
    method: Method
    value: float
    seconds: float
    log_parameters: tuple[float, ...] = field(repr=False)
    """Log hyperparameters after the step, in the order of ``gp.log_parameters()``."""
    gain: float = math.nan
    """Gain in nats that the search predicted for the step; NaN where it predicts nothing."""


@dataclass(frozen=True, eq=False)
class StagedState:
    """Where L-BFGS on growing parts of the data is.

    Attributes
    ----------
    starts : log hyperparameters from which this stage is searched, one after the other
    curvature : what earlier stages know of it
    stage : number of the part of the data, the smallest being 0; their count once learning has ended
    plan : the plan in force, if what was found out has revised the one that learning began with
    ended : the searches of this stage that have ended, without their trails
    ascent : the one under way; None before it has begun
    """

    starts: tuple[Tensor, ...]
    curvature: Curvature = Curvature()
    stage: int = 0
    plan: Plan | None = None
    ended: tuple[Ascent[Any], ...] = ()
    ascent: Ascent[Any] | None = None


@dataclass(frozen=True, eq=False)
class StochasticState:
    """Where stochastic gradient ascent is: steps taken, θ, the moments of its rule, and why it ended, if it failed."""

    theta: Tensor
    moments: tuple[Tensor, ...]
    trail: Any = None
    number: int = 0
    reason: str = ""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """All that decides what learning does next, and what it did so far.

    One that comes with an event holds no preconditioner: that is built again, to the same bits, when learning goes on.

    Attributes
    ----------
    origin : what it belongs to: the data, the process and the options
    at : where the search is
    steps : those that were accepted so far
    evaluations : of the criterion so far
    """

    origin: Origin
    at: StagedState | StochasticState
    steps: tuple[Step, ...] = ()
    evaluations: int = 0
    failures: int = 0
    """Evaluations whose linear solves did not converge."""

    def moved(self, at: StagedState | StochasticState, evaluations: int = 0, failures: int = 0) -> "TrainingState":
        """Return it at another place, after so many more evaluations."""
        return replace(self, at=at, evaluations=self.evaluations + evaluations, failures=self.failures + failures)

    def stepped(self, step: Step) -> "TrainingState":
        """Return it with one more step."""
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, eq=False)
class StepTaken:
    """A step of learning, and the state from which learning can go on after it."""

    step: Step
    state: TrainingState


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where a search led to, whether it converged, why it ended, and whether a listener ended it."""

    theta: Tensor
    converged: bool
    reason: str
    stopped: bool = False
    plan: Plan | None = None
    """The plan as learning revised it, if it did."""
    interrupted: bool = False
    """Whether the listener that ended it was the user's Ctrl-C."""
