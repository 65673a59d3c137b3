"""One run: learn by one method within a time budget, then see what predictions were worth along the way.

Nothing is evaluated while the clock of training runs. Afterwards the process is conditioned on all training rows at a
few of the hyperparameters that learning went through. The clock of such a point is the training time up to it plus the
time of its conditioning: what one would have waited had one stopped there. Both are the method's own work; predictive
variances and scores are not charged, nor are imports and first calls of libraries: every method takes a step on a few
rows before its clock starts. Products with K are counted by `kernelcg.backends.Backend.counting`, while training only.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kernelcg.comparison.methods import Method, conditioned_by, criterion_of, learned_by, unsuited
from kernelcg.comparison.tasks import Scores, Task
from kernelcg.errors import MemoryBudgetExceeded, SolveFailed
from kernelcg.events import Event, EventKind, Listener, tell
from kernelcg.parameters import Parametric
from kernelcg.planning import Plan

POINTS = 25
"""Points of a path that are evaluated, at most."""

WARM_UP_ROWS = 64

NO_ROOM = (MemoryBudgetExceeded, torch.cuda.OutOfMemoryError)

FINISHED, OUT_OF_TIME, ENDED, TOO_LARGE = "finished", "out of time", "ended early", "does not fit"
"""How a run may end: converged, by its budget, by itself without having converged, or before it began."""


@dataclass(frozen=True)
class Place:
    """Where learning was at some time: after ``step`` steps, 0 being the start; approximations multiply with no K."""

    step: int
    seconds: float
    products: float
    log_parameters: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Evaluation:
    """How good the predictions with one set of hyperparameters are.

    Attributes
    ----------
    step : number of the step of learning that led there
    training_seconds : time of training up to it
    seconds : the same and the time of conditioning
    products : columns multiplied with K in training so far; NaN for sparse approximations
    error : RMSE in units of the training sd of y, or the share of wrong labels
    nll : mean negative log density of a test row, in nats
    """

    step: int
    training_seconds: float
    seconds: float
    products: float
    error: float
    nll: float


@dataclass(frozen=True, eq=False)
class Run:
    """The result of one method on one split.

    Attributes
    ----------
    method : what was run
    status : "finished", "out of time", "ended early" or "does not fit"
    reason : why it ended, in words
    path : every place that learning went through
    curve : how good the predictions were at some of them
    gp : the last process that was learned within the budget
    """

    method: Method
    status: str
    reason: str
    path: tuple[Place, ...]
    curve: tuple[Evaluation, ...]
    gp: Parametric
    plan: Plan | None = None
    """What was planned before it began; approximations by inducing inputs have no plan."""

    @property
    def last(self) -> Evaluation | None:
        """Return the evaluation at the last step within the budget; conditioning may end after it."""
        return self.curve[-1] if self.curve else None


def run(
    method: Method,
    task: Task,
    X_test: Tensor,
    y_test: Tensor,
    *,
    budget: float,
    seed: int = 0,
    points: int = POINTS,
    callback: Listener | None = None,
) -> Run:
    """Learn for at most ``budget`` seconds, or until the callback returns True, then evaluate the way there.

    A step that ends after the budget does not count: the run ends where it was when the time was up.

    Parameters
    ----------
    method : one of `METHODS`
    task : the training rows and the process from which learning starts
    X_test, y_test : (t, d) and (t,) rows on which predictions are scored
    budget : seconds of training
    seed : of everything random
    points : places of the path, at most, at which predictions are scored
    callback : told of every event of learning; where it returns True, learning ends

    Returns
    -------
    Run : the path, the scores along it, and how it ended

    Examples
    --------
    >>> import torch
    >>> from kernelcg.comparison import METHODS, RegressionTask, run
    >>> from kernelcg.inference import GaussianProcess, Regression
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 40).double()[:, None]
    >>> task = RegressionTask(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.1))
    >>> found = run(METHODS["CHOL"], task, X[::5] + 0.05, torch.sin(X[::5, 0] + 0.05), budget=1.0, points=2)
    >>> found.curve[-1].error < 0.1
    True
    """
    reason = unsuited(method, task)
    if reason:
        return Run(method, reason, reason, (), (), task.start)
    plan, began = None, time.perf_counter()
    try:
        if method.sparse is None:
            plan = criterion_of(method, task, seed).plan
            tell(callback, EventKind.PLAN, plan, began)
        warm_up(method, task, seed)
        path, status, reason = walked(method, task, budget=budget, seed=seed, callback=callback)
    except NO_ROOM as error:
        return Run(method, TOO_LARGE, str(error), (), (), task.start, plan)
    kept = tuple(place for place in path if place.seconds <= budget)
    curve = tuple(evaluated(method, task, place, X_test, y_test, seed) for place in chosen(kept, points))
    status = status if len(kept) == len(path) else OUT_OF_TIME
    return Run(method, status, reason, kept, curve, process_at(task, kept[-1]), plan)


def warm_up(method: Method, task: Task, seed: int = 0) -> None:
    """Take one step on a few rows and condition on them, so that little is done for the first time on the clock."""
    rows = torch.arange(min(WARM_UP_ROWS, len(task.problem)), device=task.problem.X.device)
    few, method = task.on(rows), replace(method, solver=task.plan(method.solver).method)
    with suppress(SolveFailed):
        conditioned_by(method, few, learned_by(method, few, seed=seed, max_steps=1).gp, seed=seed)


def walked(
    method: Method, task: Task, *, budget: float, seed: int = 0, callback: Listener | None = None
) -> tuple[list[Place], str, str]:
    """Return every place that learning went through, how it ended, and why; a callback may end it early."""
    began, before = clock(task), task.products
    path = [Place(0, 0.0, 0.0, tuple(task.start.log_parameters().tolist()))]

    def note(event: Event) -> bool:
        if callback is not None and callback(event):
            return True
        if event.kind is not EventKind.STEP:
            return False
        seconds = clock(task) - began
        products = math.nan if method.sparse else task.products - before
        path.append(Place(len(path), seconds, products, event.payload.step.log_parameters))
        return seconds >= budget

    learned = learned_by(method, task, seed=seed, seconds=max(budget, 1e-9), callback=note)
    over = path[-1].seconds >= budget or (not learned.converged and clock(task) - began >= budget)
    return path, OUT_OF_TIME if over else FINISHED if learned.converged else ENDED, learned.reason


def clock(task: Task) -> float:
    """Return the time in seconds once all that was asked of the device is done."""
    if task.problem.X.device.type == "cuda":
        torch.cuda.synchronize(task.problem.X.device)
    return time.perf_counter()


def chosen(path: Sequence[Place], most: int) -> list[Place]:
    """Return at most so many places, evenly spaced in the logarithm of time, the first and the last among them."""
    if len(path) <= most:
        return list(path)
    seconds = np.array([place.seconds for place in path[1:]])
    wanted = np.geomspace(max(seconds[-1], 1e-9), max(seconds[0], 1e-9), most - 1)
    nearest = np.abs(np.log(np.maximum(seconds, 1e-9)) - np.log(wanted)[:, None]).argmin(axis=1)
    return [path[0], *(path[i] for i in sorted({*(nearest + 1).tolist(), len(path) - 1}))]


def process_at(task: Task, place: Place) -> Parametric:
    """Return the process with the hyperparameters of a place."""
    return task.start.with_log_parameters(torch.tensor(place.log_parameters, dtype=torch.float64))


def evaluated(method: Method, task: Task, place: Place, X_test: Tensor, y_test: Tensor, seed: int = 0) -> Evaluation:
    """Condition on all training rows at these hyperparameters, timed, and score the predictions; NaN if that fails."""
    gp, began = process_at(task, place), clock(task)
    try:
        posterior = conditioned_by(method, task, gp, seed=seed)
        conditioning = clock(task) - began
        scores = task.scores(posterior, X_test, y_test)
    except (SolveFailed, *NO_ROOM):
        conditioning, scores = clock(task) - began, Scores(math.nan, math.nan)
    seconds = place.seconds + conditioning
    return Evaluation(place.step, place.seconds, seconds, place.products, scores.error, scores.nll)
