"""The methods that are compared: each a name and its settings, all on the same kernels, starts and optimisers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Generator

from kernelcg.comparison.tasks import ClassificationTask, Task
from kernelcg.estimators.settings import STEPS, generator_from
from kernelcg.events import Event, EventKind, Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.learning.criterion import Criterion
from kernelcg.inference.learning.learn import Learned, learn
from kernelcg.inference.learning.optimizer import Optimizer
from kernelcg.inference.learning.state import Step
from kernelcg.randomness import child

ENDLESS = 10**9
"""Steps of a method that goes on until it converges or the time is up."""

RMS_OF_PAPER = 1e-5
"""Residual at which the paper ends a linear solve: ‖r‖² < 1e-10 n."""


@dataclass(frozen=True)
class Method:
    """How hyperparameters are learned, and how the process is conditioned afterwards.

    Parameters
    ----------
    name : as in tables and pictures
    about : what it is, in a sentence
    solver : "direct" (Cholesky), "iterative" (conjugate gradients) or "auto"
    preconditioner : of the iterative solver: "auto", the name of a recipe, or None
    rms : root mean square of the residual that ends a solve; None means the library's own rule
    probes : random columns of the iterative gradient; signs, drawn afresh, with Adagrad; None means the default of the
        estimators
    optimizer : as in `kernelcg.inference.learn`
    growing : whether L-BFGS begins with a part of the rows
    batch : steps after which L-BFGS is begun afresh, its curvature forgotten; None means never
    sparse : "fitc", "pitc" or "var" in the place of the exact process, n^⅔ inducing inputs drawn from the rows; None
        means exact
    """

    name: str
    about: str
    solver: str = "auto"
    preconditioner: str | None = "auto"
    rms: float | None = None
    probes: int | None = None
    optimizer: Optimizer = Optimizer.LBFGS
    growing: bool = True
    batch: int | None = None
    sparse: str | None = None

    @property
    def settings(self) -> str:
        """Return what differs from the library's defaults, in words."""
        own = (one for one in fields(self) if one.name not in ("name", "about"))
        changed = {one.name: getattr(self, one.name) for one in own if getattr(self, one.name) != one.default}
        return " ".join(f"{name}={value}" for name, value in changed.items())

    @property
    def limit(self) -> int:
        """Return the largest number of steps: that of the estimators on each part of growing data."""
        return STEPS[Optimizer.LBFGS] if self.growing and self.optimizer is Optimizer.LBFGS else ENDLESS


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("kernelcg", "what GPRegressor and GPClassifier do by default, with mean zero"),
        Method("CHOL", "Cholesky, one L-BFGS run on all rows", solver="direct", growing=False),
        Method(
            "CHOL-restarted",
            "Cholesky, L-BFGS begun afresh every 3 steps, as in the paper",
            solver="direct",
            growing=False,
            batch=3,
        ),
        Method(
            "PCG",
            "the paper's: Nyström with 4√n points, Adagrad, 4 probes",
            solver="iterative",
            preconditioner="nystrom",
            rms=RMS_OF_PAPER,
            probes=4,
            optimizer=Optimizer.ADAGRAD,
        ),
        Method(
            "CG",
            "the paper's: no preconditioner, Adagrad, 4 probes",
            solver="iterative",
            preconditioner=None,
            rms=RMS_OF_PAPER,
            probes=4,
            optimizer=Optimizer.ADAGRAD,
        ),
        Method("FITC", "fully independent training conditional, n^⅔ inducing inputs", growing=False, sparse="fitc"),
        Method("PITC", "partially independent training conditional, the same", growing=False, sparse="pitc"),
        Method("VAR", "variational (Titsias), the same", growing=False, sparse="var"),
    )
}
"""The methods by name, in the order of tables and figures."""


def unsuited(method: Method, task: Task) -> str:
    """Return why a method is not for this task, or nothing."""
    several = isinstance(task, ClassificationTask) and task.problem.classes > 1
    if several and (method.sparse or method.preconditioner not in ("auto", None)):
        return "not for more than two classes"
    return ""


def numerics_of(method: Method, task: Task, seed: int, seconds: float = math.inf) -> Numerics:
    """Return how iterative evaluations of this method work; no solve takes longer than ``seconds``."""
    first = generator_from(seed).initial_seed()
    found = Numerics(
        task.probes if method.probes is None else method.probes,
        preconditioner=method.preconditioner,
        seed=first,
        rademacher=method.optimizer is not Optimizer.LBFGS,
    )
    stopping = found.stopping if method.rms is None else task.resolved(method.rms)
    return replace(found, stopping=replace(stopping, max_seconds=seconds))


def criterion_of(method: Method, task: Task, seed: int, seconds: float = math.inf) -> Criterion:
    """Return what a method maximises; raise `MemoryBudgetExceeded` if it does not fit."""
    if method.sparse:
        return task.approximation(method.sparse, child(generator_from(seed), "inducing inputs"))
    return task.criterion(method.solver, numerics_of(method, task, seed, seconds), method.growing)


def learned_by(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    seconds: float = math.inf,
    max_steps: int | None = None,
    callback: Listener | None = None,
) -> Learned:
    """Return the hyperparameters that a method finds from the start of the task.

    Parameters
    ----------
    seconds : longest time of one linear solve
    max_steps : None means the method's own limit
    callback : as in `kernelcg.inference.learn`
    """
    criterion = criterion_of(method, task, seed, seconds)
    generator = child(generator_from(seed), "learning")
    limit = method.limit if max_steps is None else max_steps
    if method.batch is not None:
        return _learned_in_batches(criterion, task, method.batch, limit, generator, callback)
    return learn(
        criterion,
        task.start,
        optimizer=method.optimizer,
        step_size=1.0 if method.optimizer is Optimizer.ADAGRAD else None,
        max_steps=limit,
        generator=generator,
        callback=callback,
    )


def _learned_in_batches(
    criterion: Criterion,
    task: Task,
    batch: int,
    limit: int,
    generator: Generator,
    callback: Listener | None,
) -> Learned:
    """Run L-BFGS for a few steps at a time, its curvature forgotten in between."""
    gp, steps, evaluations, failures, seconds = task.start, list[Step](), 0, 0, 0.0

    def later(event: Event) -> bool | None:
        """Tell the callback, its seconds counted from the first batch."""
        payload = event.payload
        if event.kind is EventKind.STEP:
            payload = replace(payload, step=replace(payload.step, seconds=seconds + payload.step.seconds))
        return callback(replace(event, seconds=seconds + event.seconds, payload=payload)) if callback else None

    while True:
        at_most = min(batch, limit - len(steps))
        found = learn(criterion, gp, max_steps=at_most, generator=generator, callback=later)
        gp = found.gp
        steps += [replace(step, seconds=seconds + step.seconds) for step in found.steps]
        evaluations, failures = evaluations + found.evaluations, failures + found.failures
        seconds += found.seconds
        if found.stopped or found.converged or not found.steps or len(steps) >= limit:
            return replace(found, steps=tuple(steps), evaluations=evaluations, failures=failures, seconds=seconds)


def conditioned_by(method: Method, task: Task, gp: Any, *, seed: int = 0, rtol: float = 1e-6) -> Any:
    """Return the process conditioned on all training rows as this method does it."""
    if method.sparse:
        return task.approximation(method.sparse, child(generator_from(seed), "inducing inputs")).condition(gp)
    own = rtol if method.rms is None else method.rms
    return task.condition(gp, method.solver, numerics_of(method, task, seed), own, generator_from(seed))
