"""Learning the hyperparameters: one loop that advances a state, tells of it, and can end after every event."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from kernelcg.errors import Interrupted, StateMismatch, StopRequested
from kernelcg.events import EventKind, Listener, insisting, tell, timed
from kernelcg.inference.learning.criterion import Criterion, Request, Search
from kernelcg.inference.learning.default_priors import Priors
from kernelcg.inference.learning.given_optimizer import Evaluations, GivenOptimizer, minimised
from kernelcg.inference.learning.lbfgs import Point
from kernelcg.inference.learning.optimizer import Optimizer
from kernelcg.inference.learning.origin import Origin
from kernelcg.inference.learning.stages import Staged
from kernelcg.inference.learning.state import (
    Outcome,
    Stage,
    StagedState,
    Step,
    StepTaken,
    StochasticState,
    TrainingState,
)
from kernelcg.inference.learning.stochastic import STEP_SIZES, Stochastic
from kernelcg.parameters import Parametric
from kernelcg.planning import Plan

WIDEST = 5 * math.log(10)
"""A hyperparameter without bounds stays within five orders of magnitude of its start."""


@dataclass(frozen=True, eq=False)
class Learned:
    """The hyperparameters found, the way there, and whether the search ended by itself.

    Attributes
    ----------
    steps : those that were accepted
    evaluations : of the criterion and its gradient
    converged : whether the search ended by itself
    reason : why it ended, in words
    seconds : how long it took
    """

    gp: Any
    """The process with the hyperparameters found, of the same type as the one that learning started with."""
    steps: tuple[Step, ...]
    evaluations: int
    converged: bool
    reason: str
    seconds: float
    failures: int = 0
    """Evaluations whose linear solves did not converge."""
    stopped: bool = False
    """Whether a listener ended it."""
    plan: Plan | None = None
    """The plan as learning revised it, if it did."""
    default_log_prior: float | None = None
    """Log density of the default priors here, relative to where they are flat; None if there were none."""
    findings: tuple[str, ...] = ()
    """Where default priors decided, and features without visible effect, in words."""
    interrupted: bool = False
    """Whether it was the user who ended it, by Ctrl-C."""

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = f"{len(self.steps)} steps, {self.evaluations} evaluations, {self.seconds:.1f} s: {self.reason}"
        cost = self.default_log_prior
        priors = "there were no default priors" if cost is None else f"log density of the default priors {cost:.3g}"
        return "\n  ".join([head, str(self.gp), priors, *self.findings])

    def revised(self, plan: Plan) -> Plan:
        """Return the plan with what learning found out."""
        return self.plan or plan


class Way(Protocol):
    """How the state of learning advances; the place where it is belongs to the way."""

    @property
    def search(self) -> Search:
        """Return what is maximised."""

    @property
    def parts(self) -> str:
        """Return the parts of the data that it learns from, in words."""

    def first(self) -> Any:
        """Return the place where it begins."""

    def stage(self, at: Any) -> Stage | None:
        """Return what begins at this place, if anything does."""

    def outcome(self, at: Any) -> Outcome | None:
        """Return where it led to, once it is over."""

    def best_so_far(self, at: Any) -> Tensor:
        """Return the log hyperparameters to keep if it ends at this place."""

    def next(self, at: Any) -> Request | StagedState | StochasticState:
        """Return what is to be evaluated next, or the place where learning goes on without an evaluation."""

    def after(self, state: TrainingState, at: Any, request: Request, point: Point[Any]) -> TrainingState:
        """Return the state after the evaluation that was asked for."""

    def lean(self, at: Any) -> Any:
        """Return the place as it can be stored."""

    def restored(self, at: Any) -> Any:
        """Return a stored place as it was."""


def learn(
    objective: Criterion,
    gp: Parametric,
    *,
    optimizer: str | GivenOptimizer | None = Optimizer.LBFGS,
    max_steps: int = 100,
    step_size: float | None = None,
    restarts: int = 0,
    generator: Generator,
    callback: Listener | None = None,
    resume: TrainingState | None = None,
    priors: Priors | None = None,
) -> Learned:
    """Return the hyperparameters that maximise the criterion plus their log prior, from those of ``gp``.

    Parameters
    ----------
    objective : the criterion, such as `Objective`
    gp : the process from whose hyperparameters learning starts
    max_steps : steps after which it ends
    generator : source of randomness: the same state gives the same numbers
    optimizer : "lbfgs": the criterion with the same probes everywhere, a smooth function, maximised on a growing
        part of the data. "adagrad": the paper's stochastic gradient ascent, fresh probes at every step, all data.
        "adam": the same with momentum. A function: a `GivenOptimizer`, all data. None: nothing is learned
    step_size : of adagrad (1) and adam (0.1)
    restarts : further random starts, on the smallest part of the data
    callback : told of every stage, evaluation, step and iteration of a solve; learning ends there, with the best
        hyperparameters so far, if it returns True or raises `StopRequested`
    resume : the state that came with a step of an earlier call: learning goes on from there, to the same numbers. Steps
        and seconds of the earlier call count
    priors : of hyperparameters that carry neither bounds nor priors; None supposes nothing of them, beyond that they
        stay within five orders of magnitude of their start

    Raises
    ------
    StateMismatch : if the state to resume from is of other data, another process or other options

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Objective, Regression, learn
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 40).double()[:, None]
    >>> start = GaussianProcess(RBF(0.3), 0.1)
    >>> learned = learn(Objective(Regression(X, torch.sin(X))), start, generator=torch.Generator().manual_seed(0))
    >>> float(learned.gp.kernel.lengthscale) > 0.3
    True
    """
    now = time.perf_counter()
    search = _search(objective, gp, optimizer, now, callback, resume, priors)
    if search is None or optimizer is None:
        return Learned(gp, (), 0, True, "nothing to learn", 0.0)
    if callable(optimizer):
        return _told(_learned_by_function(search, optimizer, restarts, generator), timed(callback, now), now)
    way, state = _begun(search, Optimizer(optimizer), max_steps, step_size, restarts, generator, resume)
    try:
        while (outcome := way.outcome(state.at)) is None:
            if stage := way.stage(state.at):
                tell(search.callback, EventKind.STAGE, stage, search.began)
            request = way.next(state.at)
            if not isinstance(request, Request):
                state = state.moved(request)
                continue
            at, known = gp.with_log_parameters(request.theta), len(state.steps)
            estimate, trail = request.objective(at, request.trail, value=False, callback=search.callback)
            state = way.after(state, state.at, request, search.point(request, at, estimate, trail))
            if len(state.steps) > known:
                taken = StepTaken(state.steps[-1], replace(state, at=way.lean(state.at)))
                tell(search.callback, EventKind.STEP, taken, search.began)
    except StopRequested as stop:
        revised = state.at.plan if isinstance(state.at, StagedState) else None
        outcome = Outcome(way.best_so_far(state.at), False, str(stop), True, revised, isinstance(stop, Interrupted))
    learned = _learned(search, outcome, state.steps, state.evaluations, state.failures)
    return _told(learned, timed(callback, now), now)


def _search(
    objective: Criterion,
    gp: Parametric,
    optimizer: str | GivenOptimizer | None,
    now: float,
    callback: Listener | None,
    resume: TrainingState | None,
    priors: Priors | None,
) -> Search | None:
    """Return what is to be maximised, from ``now`` on; None where nothing is to be learned."""
    if not (optimizer is None or callable(optimizer) or optimizer in tuple(Optimizer)):
        raise ValueError(f"optimizer must be one of {', '.join(Optimizer)} or None, not {optimizer!r}")
    lower, upper = _bounds(gp, priors)
    nothing = optimizer is None or bool((lower == upper).all())
    if resume is not None and (nothing or callable(optimizer)):
        why = "nothing is learned here" if nothing else "a function of the caller learns"
        raise StateMismatch(f"learning cannot go on from a state: {why}")
    if nothing:
        return None
    spent = resume.steps[-1].seconds if resume is not None and resume.steps else 0.0
    return Search(objective, gp, lower, upper, now - spent, insisting(timed(callback, now)), priors)


def _told(learned: Learned, callback: Listener | None, began: float) -> Learned:
    """Tell of the end of learning, which a listener may call an early one."""
    try:
        tell(callback, EventKind.LEARNED, learned, began)
    except StopRequested as stop:
        by_user = learned.interrupted or isinstance(stop, Interrupted)
        return replace(learned, converged=False, reason=str(stop), stopped=True, interrupted=by_user)
    return learned


def _learned_by_function(search: Search, optimizer: GivenOptimizer, restarts: int, generator: Generator) -> Learned:
    """Return what an optimizer of the caller finds."""
    evaluations = Evaluations(search)
    try:
        outcome = minimised(evaluations, optimizer, restarts, generator)
    except StopRequested as stop:
        best = search.start if evaluations.best is None else evaluations.best
        outcome = Outcome(best, False, str(stop), True, None, isinstance(stop, Interrupted))
    return _learned(search, outcome, tuple(evaluations.steps), evaluations.count, evaluations.failures)


def _way(
    search: Search, optimizer: Optimizer, max_steps: int, step_size: float | None, restarts: int, generator: Generator
) -> Way:
    """Return how the state advances with this optimizer."""
    if optimizer == Optimizer.LBFGS:
        return Staged.of(search, max_steps, restarts, generator)
    size = STEP_SIZES[optimizer] if step_size is None else step_size
    return Stochastic(search, optimizer, size, max_steps, generator)


def _begun(
    search: Search,
    optimizer: Optimizer,
    max_steps: int,
    step_size: float | None,
    restarts: int,
    generator: Generator,
    resume: TrainingState | None,
) -> tuple[Way, TrainingState]:
    """Return how the state advances with this optimizer, and the first state or the one to go on from."""
    seed, priors = generator.initial_seed(), search.priors
    options = {"optimizer": optimizer, "step_size": step_size, "restarts": restarts, "seed": seed, "priors": priors}
    way = _way(search, optimizer, max_steps, step_size, restarts, generator)
    origin = Origin.of(search.objective, search.gp, options, way.parts)
    if resume is None:
        return way, TrainingState(origin, way.first())
    origin.require(resume.origin)
    return way, replace(resume, at=way.restored(resume.at))


def _learned(search: Search, outcome: Outcome, steps: tuple[Step, ...], evaluations: int, failures: int) -> Learned:
    theta, lower, upper = outcome.theta, search.lower, search.upper
    gp = search.gp.with_log_parameters(theta.clone())
    stuck = (lower < upper) & ((theta <= lower) | (theta >= upper))
    if search.priors is not None:  # its ends are among the findings
        stuck = stuck & (theta > search.priors.lower) & (theta < search.priors.upper)
    names = [name for name, at in zip(gp.parameter_names(), stuck.tolist(), strict=True) if at]
    bound = f"; at a bound: {', '.join(names)}" if names and not outcome.stopped else ""
    converged, stopped = outcome.converged, outcome.stopped
    reason = outcome.reason + bound
    priors = search.priors
    return Learned(
        gp,
        steps,
        evaluations,
        converged,
        reason,
        search.seconds,
        failures,
        stopped,
        outcome.plan,
        default_log_prior=None if priors is None else priors.log_density(gp)[0],
        findings=() if priors is None else priors.findings(gp),
        interrupted=outcome.interrupted,
    )


def _bounds(gp: Parametric, priors: Priors | None) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds of the log hyperparameters; equal where they are fixed."""
    own_lower, own_upper = _own_bounds(gp)
    if priors is None:
        return own_lower, own_upper
    default_lower, default_upper = priors.lower, priors.upper
    return (
        torch.where(default_lower.isfinite(), default_lower, own_lower),
        torch.where(default_upper.isfinite(), default_upper, own_upper),
    )


def _own_bounds(gp: Parametric) -> tuple[Tensor, Tensor]:
    """Return the bounds that the process carries, or else five orders of magnitude around the start."""
    theta, lower, upper = gp.log_parameters().detach(), [], []
    for value, restriction in zip(theta.tolist(), gp.restrictions(), strict=True):
        if restriction.fixed:
            low = high = value
        else:
            least = math.log(restriction.lower) if restriction.lower > 0 else -math.inf
            most = math.log(restriction.upper) if math.isfinite(restriction.upper) else math.inf
            start = min(max(value, least), most)
            low = least if math.isfinite(least) else start - WIDEST
            high = most if math.isfinite(most) else start + WIDEST
        lower.append(low)
        upper.append(high)
    return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)
