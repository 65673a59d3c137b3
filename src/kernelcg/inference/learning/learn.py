"""Learning the hyperparameters: from a subset by Cholesky to all data by conjugate gradients."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Generator, Tensor

from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.objective import log_prior
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.lbfgs import Ascent, Curvature, Point, ascend
from kernelcg.parameters import Parametric
from kernelcg.randomness import child
from kernelcg.solvers import Status

OPTIMIZERS = ("lbfgs", "adagrad", "adam")

logger = logging.getLogger("kernelcg")

GROWTH, LAST_GROWTH = 4, 2
SMALLEST_STAGE = 200
"""Rows below which a subset says too little."""

WIDEST = 5 * math.log(10)
"""A hyperparameter without bounds stays within five orders of magnitude of its start."""

STAGE_REACH = math.log(20)
"""On a part of the data a lengthscale grows to 20 times its start at most. What a few rows call irrelevant would run
off to where the criterion is flat, and all rows could not call it back."""

EXACT_GAIN = 1e-5
"""Gain in nats that is still worth a step of the exact method on all data."""

STAGE_GAIN = 0.05
"""The same on a subset: its optimum is not that of all data, but steps are cheaper here than later."""

NOISE_GAIN = 0.25
"""Part of the loss p / 2N that N probes cost anyway, below which a gain is inside the noise."""


class Criterion(Protocol):
    """What can be maximised: `Objective` and `LaplaceObjective`."""

    @property
    def problem(self) -> Any:
        """Return the data; it has a length."""

    @property
    def numerics(self) -> Numerics:
        """Return how an iterative evaluation works."""

    @property
    def is_direct(self) -> bool:
        """Whether it is exact."""

    @property
    def measures_noise(self) -> bool:
        """Whether standard errors of the gradient say when to stop; otherwise their number of probes does."""

    @property
    def rows_to_learn_from(self) -> int:
        """Return how many rows learning ends with."""

    @property
    def learns_in_stages(self) -> bool:
        """Whether L-BFGS begins with a part of these rows."""

    def on(self, rows: Tensor) -> Self:
        """Return the criterion on some of the rows."""

    def seeded(self, seed: int) -> Self:
        """Return the criterion with other probes."""

    def __call__(
        self, gp: Any, trail: Any = None, *, value: bool = True, errors: bool = False
    ) -> tuple[CriterionValue, Any]:
        """Return value and gradient, and a trail that helps the next evaluation."""


@dataclass(frozen=True)
class Step:
    """One accepted step."""

    rows: int
    method: str
    value: float
    seconds: float
    log_parameters: tuple[float, ...] = field(repr=False)
    """Where it led to, in the order of ``gp.log_parameters()``."""


@dataclass(frozen=True, eq=False)
class Learned:
    """The hyperparameters found, the way there, and whether the search ended by itself."""

    gp: Any
    """Of the type that learning started with."""
    steps: tuple[Step, ...]
    evaluations: int
    converged: bool
    reason: str
    seconds: float
    failures: int = 0
    """Evaluations whose linear solves did not converge."""


def learn(
    objective: Criterion,
    gp: Parametric,
    *,
    optimizer: str | None = "lbfgs",
    max_steps: int = 100,
    step_size: float | None = None,
    restarts: int = 0,
    generator: Generator,
    callback: Callable[[Step], bool | None] | None = None,
) -> Learned:
    """Return the hyperparameters that maximise the criterion plus their log prior, from those of ``gp``.

    Parameters
    ----------
    optimizer : "lbfgs": the criterion with the same probes everywhere, a smooth function, maximised on a growing
        part of the data. "adagrad": the paper's stochastic gradient ascent, fresh probes at every step, all data.
        "adam": the same with momentum. None: nothing is learned
    step_size : of adagrad (1) and adam (0.1)
    restarts : further random starts, on the smallest part of the data
    callback : called after every step; learning ends there if it returns True
    """
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)} or None, not {optimizer!r}")
    began = time.perf_counter()
    lower, upper = _bounds(gp)
    if optimizer is None or bool((lower == upper).all()):
        return Learned(gp, (), 0, True, "nothing to learn", 0.0)
    search = _Search(objective, gp, lower, upper, began, callback)
    try:
        if optimizer == "lbfgs":
            return search.grown(max_steps, restarts, generator)
        return search.stochastic(optimizer, max_steps, step_size, generator)
    except _Stopped:
        return search.stopped()


class _Stopped(Exception):
    """The callback wants no further step."""


def _bounds(gp: Parametric) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds of the log hyperparameters; equal where they are fixed."""
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


@dataclass(eq=False)
class _Search:
    """One run of learning, with its diary."""

    objective: Criterion
    gp: Parametric
    lower: Tensor
    upper: Tensor
    began: float
    callback: Callable[[Step], bool | None] | None
    steps: list[Step] = field(default_factory=list)
    evaluations: int = 0
    failures: int = 0

    def grown(self, max_steps: int, restarts: int, generator: Generator) -> Learned:
        """Climb on a growing part of the data, if the criterion allows it; curvature is carried over."""
        n, most = len(self.objective.problem), self.objective.rows_to_learn_from
        order = torch.randperm(n, generator=child(generator, "subset"))
        sizes, size = [most], most // LAST_GROWTH
        while self.objective.learns_in_stages and size >= SMALLEST_STAGE:
            sizes.append(size)
            size //= GROWTH
        starts = [self._clamped(self.gp.log_parameters().detach()), *self._random_starts(restarts, generator)]
        ascent: Ascent[Any] | None = None
        previous_size = 0
        for size in reversed(sizes):
            objective = self.objective if size == n else self.objective.on(order[:size])
            curvature = Curvature()
            if ascent is not None:
                starts = [ascent.point.theta]
                curvature = ascent.curvature.scaled(size / previous_size)
            upper = self.upper if size == most else self._stage_upper()
            ascent = self._climb(objective, starts, curvature, upper, max_steps, last=size == most)
            previous_size = size
        if ascent is None:
            raise ValueError("there are no data to learn from")
        return self._learned(ascent.point.theta, ascent.converged, ascent.reason)

    def _climb(
        self,
        objective: Criterion,
        starts: list[Tensor],
        curvature: Curvature,
        upper: Tensor,
        max_steps: int,
        last: bool,
    ) -> Ascent[Any]:
        """Return the best of the ascents from these starts."""
        free = int((self.lower < self.upper).sum())
        tolerance = EXACT_GAIN if objective.is_direct else NOISE_GAIN * free / (2 * objective.numerics.probes)
        rows, method = len(objective.problem), "direct" if objective.is_direct else "iterative"

        def note(point: Point[Any]) -> None:
            self._note(rows, method, point.value, point.theta)

        def evaluate(theta: Tensor, trail: Any) -> Point[Any]:
            return self._evaluated(objective, theta, trail)

        ascents = []
        for start in starts:
            first = evaluate(start.clamp(self.lower, upper), None)
            if not first.usable:
                logger.debug("the criterion is not finite at a start; it is skipped")
                continue
            noise = self._noise(objective, first) if objective.measures_noise else None
            ascents.append(
                ascend(
                    evaluate,
                    first,
                    noise=noise,
                    lower=self.lower,
                    upper=upper,
                    tolerance=tolerance if last else max(STAGE_GAIN, tolerance),
                    max_steps=max_steps,
                    curvature=curvature,
                    callback=note,
                )
            )
        if not ascents:
            unusable = evaluate(starts[0], None)
            return Ascent(unusable, curvature, math.nan, "the criterion is not finite at the start", 1, False)
        return ascents[0] if len(ascents) == 1 else max(ascents, key=lambda ascent: self._height(objective, ascent))

    def _stage_upper(self) -> Tensor:
        """Return the upper bounds on a part of the data: lengthscales within reach of their start."""
        start, names = self._clamped(self.gp.log_parameters().detach()), self.gp.parameter_names()
        far = torch.tensor(["lengthscale" in name for name in names])
        return torch.where(far, torch.minimum(self.upper, start + STAGE_REACH), self.upper)

    def _noise(self, objective: Criterion, point: Point[Any]) -> Tensor:
        """Return the standard errors of the gradient; 0 for what is not learned."""
        gp = self.gp.with_log_parameters(point.theta)
        estimate, _ = objective(gp, point.state, value=False, errors=True)
        return torch.where(self.lower < self.upper, estimate.gradient_error.nan_to_num(0.0), 0.0)

    def _height(self, objective: Criterion, ascent: Ascent[Any]) -> float:
        """Return the value at the end of an ascent, computed if it was not on the way."""
        if not math.isnan(ascent.point.value):
            return ascent.point.value
        gp = self.gp.with_log_parameters(ascent.point.theta)
        return objective(gp, value=True)[0].value + log_prior(gp)[0]

    def stochastic(self, optimizer: str, max_steps: int, step_size: float | None, generator: Generator) -> Learned:
        """Follow unbiased gradients with fresh probes for a given number of steps."""
        theta = self._clamped(self.gp.log_parameters().detach()).clone()
        if optimizer == "adagrad":
            rule: torch.optim.Optimizer = torch.optim.Adagrad(
                [theta], lr=1.0 if step_size is None else step_size, eps=1e-6, maximize=True
            )
        else:
            rule = torch.optim.Adam([theta], lr=0.1 if step_size is None else step_size, maximize=True)
        method, trail = "direct" if self.objective.is_direct else "iterative", None
        for number in range(max_steps):
            seed = child(generator, f"step {number}").initial_seed()
            objective = self.objective.seeded(seed)
            point = self._evaluated(objective, theta.clone(), trail)
            if not point.usable:
                return self._learned(theta, False, f"A could not be solved with at step {number}")
            theta.grad, trail = point.gradient, point.state and point.state.without_probes()
            rule.step()
            theta.copy_(self._clamped(theta))
            self._note(len(objective.problem), method, point.value, theta)
        return self._learned(theta, True, f"{max_steps} steps of {optimizer}, as asked")

    def _evaluated(self, objective: Criterion, theta: Tensor, trail: Any) -> Point[Any]:
        gp = self.gp.with_log_parameters(theta)
        estimate, trail = objective(gp, trail, value=False)
        prior, slope = log_prior(gp)
        self.evaluations += 1
        self.failures += estimate.status is not Status.CONVERGED
        gradient = torch.where(self.lower < self.upper, estimate.gradient + slope, 0.0)
        value = estimate.value + prior if objective.is_direct or math.isinf(estimate.value) else math.nan
        return Point(theta, value, 0.0, gradient, trail)

    def _random_starts(self, count: int, generator: Generator) -> list[Tensor]:
        theta, source = self.gp.log_parameters().detach(), child(generator, "restarts")
        return [
            self._clamped(theta + torch.randn(len(theta), generator=source, dtype=theta.dtype)) for _ in range(count)
        ]

    def _clamped(self, theta: Tensor) -> Tensor:
        return theta.clamp(self.lower, self.upper)

    def _note(self, rows: int, method: str, value: float, theta: Tensor) -> None:
        step = Step(rows, method, value, time.perf_counter() - self.began, tuple(theta.tolist()))
        self.steps.append(step)
        known = "" if math.isnan(value) else f", criterion {value:.6g}"
        logger.info("step %d: %d rows, %s%s, %.1f s", len(self.steps), rows, method, known, step.seconds)
        if self.callback and self.callback(step):
            raise _Stopped

    def stopped(self) -> Learned:
        """Return what the last step led to."""
        theta = torch.tensor(self.steps[-1].log_parameters, dtype=torch.float64)
        return self._learned(theta, False, "stopped by the callback")

    def _learned(self, theta: Tensor, converged: bool, reason: str) -> Learned:
        gp = self.gp.with_log_parameters(theta.clone())
        stuck = (self.lower < self.upper) & ((theta <= self.lower) | (theta >= self.upper))
        names = [name for name, at in zip(gp.parameter_names(), stuck.tolist(), strict=True) if at]
        reason += f"; at a bound: {', '.join(names)}" if names else ""
        seconds = time.perf_counter() - self.began
        return Learned(gp, tuple(self.steps), self.evaluations, converged, reason, seconds, self.failures)
