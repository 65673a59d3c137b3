"""Maximisation by L-BFGS that needs nothing but gradients, and uses values where they are exact enough."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")

LONGEST_STEP = 1.0
"""Largest change of a log hyperparameter in one step."""

FIRST_STEP = 0.3
"""Largest change in the first step, when nothing is known about the curvature."""

SUFFICIENT = 1e-4
"""Share of the gain promised by the slope that a step must bring."""

OVERSHOT = -0.5
"""A step is too long if the slope at its end is below this multiple of the slope at its beginning."""

TRIES = 10


@dataclass(frozen=True, eq=False)
class Point(Generic[State]):
    """A point on the way: value (NaN if unknown) with its standard error, gradient, and what the caller attached."""

    theta: Tensor
    value: float
    error: float
    gradient: Tensor
    state: State

    @property
    def usable(self) -> bool:
        """Whether the function is finite here."""
        return not math.isinf(self.value) and bool(self.gradient.isfinite().all())


@dataclass(frozen=True, eq=False)
class Curvature:
    """Pairs (s, y): a step and by how much the gradient fell along it, newest last."""

    pairs: tuple[tuple[Tensor, Tensor], ...] = ()
    size: int = 20

    def after(self, step: Tensor, fall: Tensor) -> "Curvature":
        """Return it with one more pair, if the function curves downwards along the step."""
        if float(step @ fall) <= 1e-10 * float(step.norm() * fall.norm()):
            return self
        return replace(self, pairs=(*self.pairs, (step, fall))[-self.size :])

    def scaled(self, factor: float) -> "Curvature":
        """Return the curvature of a function that is ``factor`` times as steep."""
        return replace(self, pairs=tuple((step, factor * fall) for step, fall in self.pairs))

    def direction(self, gradient: Tensor, free: Tensor) -> Tensor | None:
        """Return (−∇²f)⁻¹ g on the free coordinates by the two-loop recursion; None if no pair is usable there."""
        pairs = [(step * free, fall * free) for step, fall in self.pairs]
        pairs = [(step, fall) for step, fall in pairs if float(step @ fall) > 1e-10 * float(step.norm() * fall.norm())]
        if not pairs:
            return None
        q, coefficients = gradient * free, []
        for step, fall in reversed(pairs):
            coefficients.append((step @ q) / (step @ fall))
            q = q - coefficients[-1] * fall
        step, fall = pairs[-1]
        q = q * ((step @ fall) / (fall @ fall))
        for (step, fall), alpha in zip(pairs, reversed(coefficients), strict=True):
            q = q + (alpha - (fall @ q) / (step @ fall)) * step
        return q


@dataclass(frozen=True, eq=False)
class Ascent(Generic[State]):
    """Where the search ended: the point, the curvature seen, what the next step promised, and why it ended."""

    point: Point[State]
    curvature: Curvature
    promised: float
    reason: str
    evaluations: int
    converged: bool


def ascend(
    evaluate: Callable[[Tensor, State | None], Point[State]],
    start: Point[State],
    *,
    lower: Tensor,
    upper: Tensor,
    tolerance: float,
    max_steps: int,
    curvature: Curvature = Curvature(),
    callback: Callable[[Point[State]], None] | None = None,
) -> Ascent[State]:
    """Maximise f within bounds until a step promises a gain below ``tolerance``.

    Where f has a value, a step must bring a share of the gain that the slope promised, up to two standard errors.
    Where only gradients are known, the slope must not have turned by the end of the step.

    References
    ----------
    Nocedal & Wright (2006), Numerical Optimization, algorithms 7.4 and 3.5 and section 16.7 (projection).
    """
    point, evaluations = start, 1
    for steps in range(max_steps + 1):
        free = ~(((point.theta <= lower) & (point.gradient < 0)) | ((point.theta >= upper) & (point.gradient > 0)))
        direction = curvature.direction(point.gradient, free)
        slope = 0.0 if direction is None else float(point.gradient @ direction)
        if direction is None or slope <= 0:
            steepest = point.gradient * free
            direction = steepest * (FIRST_STEP / max(float(steepest.abs().max()), 1e-300))
            slope = float(point.gradient @ direction)
        promised = 0.5 * slope
        if promised <= tolerance:
            reason = f"the next step promises {promised:.2g} nats"
            return Ascent(point, curvature, promised, reason, evaluations, True)
        if steps == max_steps:
            break
        length = min(1.0, LONGEST_STEP / float(direction.abs().max()))
        found, tried = _step(evaluate, point, length * direction, lower, upper)
        evaluations += tried
        if found is None:
            reason = f"no step along the gradient brings a gain, though {promised:.2g} nats were promised"
            return Ascent(point, curvature, promised, reason, evaluations, False)
        curvature = curvature.after(found.theta - point.theta, point.gradient - found.gradient)
        point = found
        if callback:
            callback(point)
    return Ascent(point, curvature, promised, "the limit on steps came first", evaluations, False)


def _step(
    evaluate: Callable[[Tensor, State | None], Point[State]],
    point: Point[State],
    direction: Tensor,
    lower: Tensor,
    upper: Tensor,
) -> tuple[Point[State] | None, int]:
    """Return the first acceptable point along the direction, shortened as needed, and how many were tried."""
    length = 1.0
    for tried in range(1, TRIES + 1):
        theta = (point.theta + length * direction).clamp(lower, upper)
        step = theta - point.theta
        slope = float(point.gradient @ step)
        new = evaluate(theta, point.state)
        if not new.usable:
            length *= 0.25
            continue
        end_slope = float(new.gradient @ step)
        if math.isnan(new.value) or math.isnan(point.value):
            good = end_slope >= OVERSHOT * slope
        else:
            slack = 2 * max(new.error, point.error) + 1e-12 * abs(point.value)
            good = new.value >= point.value + SUFFICIENT * slope - slack
        if good:
            return new, tried
        secant = slope / (slope - end_slope) if end_slope < slope else 0.5
        length *= min(max(secant, 0.1), 0.6)
    return None, TRIES
