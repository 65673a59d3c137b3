"""Maximisation by L-BFGS that needs nothing but gradients, and uses values where they are exact enough."""

import math
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from torch import Tensor

from kernelcg.dense import svd
from kernelcg.inference.learning.coordinates import LOGARITHMIC, Coordinates

State = TypeVar("State")
Floats = NDArray[np.float64]

LONGEST_STEP = 1.0
"""Largest change of a log hyperparameter in one step."""

FIRST_STEP = 0.3
"""Largest change in the first step, when nothing or little is known about the curvature."""

GROWTH = 2.0
"""By how much the largest change may grow from one step to the next where the curvature is estimated."""

SUFFICIENT = 1e-4
"""Share of the gain predicted by the slope that a step must bring; the customary value of Armijo's rule."""

OVERSHOT = -0.8
"""A step is too long if the slope at its end is below this multiple of the slope at its beginning."""

ENOUGH_PAIRS = 20
"""Number of pairs after which the curvature is assumed to be known in all directions that matter."""

EXPLORED = 0.01
"""Singular value of the matrix of all steps, relative to the largest, below which a direction counts as unexplored."""

ROUNDING = 1e-10
"""Length of the unexplored part of a gradient, relative to the whole, below which its direction is rounding."""

FEW_PAIRS = 10
"""Pairs from which the curvature is known well enough to predict the gain that pure noise would suggest."""

NEAR = 0.3
"""Longest step, in any coordinate, over which pairs still correct an estimate of the curvature at the present point."""

LEAST_CURVATURE = 1e-3
"""Curvature, in nats, that is assumed in every direction beside an estimate, which may be singular."""

CERTAIN = 1e-3
"""Multiple of the tolerance below which a predicted gain ends the search, whatever the last step was."""

SMALL = 30
"""A predicted gain below the tolerance ends the search only if the last one was below this multiple of it."""

TRIES = 10
"""Steps from one point without a gain after which the search ends: each is at most half as long as the one before."""

ROUNDED_GAIN = 1e-3
"""Predicted gain in nats that rounding of the values may hide: a search that fails to reach it has converged."""


@dataclass(frozen=True, eq=False)
class Point(Generic[State]):
    """A point on the way: value (NaN if unknown) with its standard error, gradient, and what the caller attached."""

    theta: Tensor
    value: float
    error: float
    gradient: Tensor
    state: State
    failed: bool = False
    """Whether a linear solve behind it did not converge."""
    needed_a_factor: bool = False
    """Whether a linear solve behind it ended in a factorisation."""
    information: Tensor | None = None
    """(p, p) an estimate of −∇²f, positive semi-definite, if there is one."""

    def within(self, coordinates: Coordinates) -> Self:
        """Return the point and its derivatives in other coordinates."""
        stretch, known = coordinates.stretch(self.theta), self.information
        return replace(
            self,
            theta=coordinates.of(self.theta),
            gradient=self.gradient * stretch,
            information=None if known is None else known * torch.outer(stretch, stretch),
        )

    @property
    def usable(self) -> bool:
        """Whether the function is finite here."""
        return not math.isinf(self.value) and bool(self.gradient.isfinite().all())


@dataclass(frozen=True, eq=False)
class Curvature:
    """Pairs (s, y): a step and by how much the gradient fell along it, newest last."""

    pairs: tuple[tuple[Tensor, Tensor], ...] = ()
    size: int = 60

    @classmethod
    def of(cls, information: Tensor) -> Self:
        """Return pairs along the eigenvectors of −∇²f, from which BFGS builds it again."""
        values, vectors = torch.linalg.eigh(information)
        known = values.clamp_min(LEAST_CURVATURE)
        return cls(tuple((vector, value * vector) for value, vector in zip(known, vectors.T.contiguous(), strict=True)))

    def after(self, step: Tensor, fall: Tensor) -> "Curvature":
        """Return it with one more pair, if the function curves downwards along the step."""
        if float(step @ fall) <= 1e-10 * float(step.norm() * fall.norm()):
            return self
        return replace(self, pairs=(*self.pairs, (step, fall))[-self.size :])

    def scaled(self, factor: float) -> "Curvature":
        """Return the curvature of a function that is ``factor`` times as steep."""
        return replace(self, pairs=tuple((step, factor * fall) for step, fall in self.pairs))

    def inverse(self, information: Tensor | None = None) -> Tensor | None:
        """Return (−∇²f)⁻¹, a dense (p, p) matrix, as BFGS builds it from the pairs, or from the newest and an estimate.

        None if there are neither pairs nor ``information``, the estimate of −∇²f.
        """
        pairs = [(step.numpy(), fall.numpy()) for step, fall in self.pairs]  # calls of NumPy cost less than torch's
        if information is not None:
            known = information + LEAST_CURVATURE * torch.eye(len(information), dtype=information.dtype)
            pairs, H = _recent(pairs), torch.linalg.inv(known).numpy()  # in a fit torch takes one thread, NumPy several
        elif pairs:
            step, fall = pairs[-1]
            H = np.eye(len(step)) * ((step @ fall) / (fall @ fall))
        else:
            return None
        for step, fall in pairs:
            slope, Hy = step @ fall, H @ fall
            across = np.outer(step, Hy / slope)  # (I − syᵀ/sᵀy) H (I − ysᵀ/sᵀy) + ssᵀ/sᵀy
            H = H - across - across.T + np.outer(step, step * ((1 + fall @ Hy / slope) / slope))
        return torch.from_numpy(H).clone()

    def unexplored(self, gradient: Tensor, free: Tensor) -> Tensor:
        """Return the part of the gradient along which no step has gone; 0 once there are enough of them."""
        moves = [step * free for step, _ in self.pairs if bool((step * free).any())]
        if not moves or len(moves) >= ENOUGH_PAIRS:
            return gradient * free * (not moves)
        steps = np.stack([step / np.linalg.norm(step) for step in (move.numpy() for move in moves)])
        _, lengths, along = svd(steps)
        known = torch.from_numpy(along[lengths > EXPLORED * lengths[0]]).clone()
        left = gradient * free - known.T @ (known @ (gradient * free))
        return left * (float(left.norm()) > ROUNDING * float(gradient.norm()))


@dataclass(frozen=True, eq=False)
class Rule:
    """Within which bounds to stay, the gain in nats that is not worth a step any more, and how many steps to take.

    The search goes by other ``coordinates`` than log hyperparameters where its points come with their information: only
    then it knows how long a step in them should be.
    """

    lower: Tensor
    upper: Tensor
    tolerance: float
    max_steps: int
    coordinates: Coordinates = LOGARITHMIC

    def coordinates_at(self, point: Point[State]) -> Coordinates:
        """Return the coordinates in which the search goes on from a point."""
        return LOGARITHMIC if point.information is None else self.coordinates


@dataclass(frozen=True, eq=False)
class Ascent(Generic[State]):
    """A search under way or at its end: all that decides what it does next.

    Attributes
    ----------
    noise : (p,) standard errors of the gradient; None where the values say when to end
    steps, evaluations, failures : accepted steps, evaluations, and those of them whose solves did not converge
    needed_a_factor : whether a linear solve ended in a factorisation
    longest : largest change of a log hyperparameter in the next step
    foreseen : whether the last predicted gain was small and its step used up the slope along it, so that the next
        predicted gain can be trusted
    tries : steps from the present point that brought no gain
    promised : gain in nats that was predicted for the last step
    reason : why the search ended; empty while it is under way
    """

    point: Point[State]
    curvature: Curvature = Curvature()
    noise: Tensor | None = None
    steps: int = 0
    evaluations: int = 1
    failures: int = 0
    needed_a_factor: bool = False
    longest: float = LONGEST_STEP
    foreseen: bool = False
    tries: int = 0
    promised: float = math.nan
    reason: str = ""
    converged: bool = False

    @property
    def ended(self) -> bool:
        """Whether the search is over."""
        return self.reason != ""

    def _end(self, promised: float, reason: str, converged: bool) -> "Ascent[State]":
        return replace(self, promised=promised, reason=reason, converged=converged)


@dataclass(frozen=True, eq=False)
class Proposal:
    """Where f is to be evaluated next, and the gain in nats that the slope and the curvature predict."""

    theta: Tensor
    promised: float


def proposed(ascent: Ascent[State], rule: Rule) -> Proposal | Ascent[State]:
    """Return the next point to evaluate, or the search at its end where no further step is worth while.

    With the standard errors of the gradient as ``noise`` the search ends where pure noise would predict as much gain. A
    small predicted gain ends the search only after a step whose predicted gain was small too and which used up the
    slope along it, as a right curvature makes it do.
    """
    coordinates, curvature, tolerance = rule.coordinates_at(ascent.point), ascent.curvature, rule.tolerance
    point = ascent.point.within(coordinates)
    direction = _direction(point, curvature, coordinates.of(rule.lower), coordinates.of(rule.upper))
    promised = 0.5 * float(point.gradient @ direction)
    if ascent.noise is not None and promised <= _promised_by_noise(ascent.noise, curvature):
        uncertain = 0.5 * float((ascent.noise > 0).sum())  # nats by which the data leave the parameters open anyway
        reason = f"the next step promises {promised:.2g} nats, no more than noise would"
        return ascent._end(promised, reason, promised <= max(uncertain, tolerance))
    if promised <= (tolerance if ascent.foreseen else CERTAIN * tolerance):
        return ascent._end(promised, f"the next step promises {promised:.2g} nats", True)
    if ascent.steps == rule.max_steps:
        return ascent._end(promised, "the limit on steps came first", False)
    is_first = ascent.evaluations == 1 and point.information is not None
    longest = min(ascent.longest, FIRST_STEP) if is_first else ascent.longest
    length = min(1.0, longest / float(direction.abs().max()))
    theta = coordinates.theta(point.theta + length * direction)
    return Proposal(theta.clamp(rule.lower, rule.upper), promised)


def advanced(ascent: Ascent[State], new: Point[State], promised: float, rule: Rule) -> Ascent[State]:
    """Return the search after f was evaluated at a proposed point.

    Where f has a value, a step must bring a share of the gain that the slope predicted, up to two standard errors.
    Where only gradients are known, the slope must not have turned by the end of the step. A step that fails still
    teaches the curvature along it: the next one starts from the same point, at most half as long.

    References
    ----------
    Nocedal & Wright (2006), Numerical Optimization, algorithms 7.4 and 3.5 and section 16.7 (projection).
    """
    coordinates, curvature, tolerance = rule.coordinates_at(ascent.point), ascent.curvature, rule.tolerance
    point, end = ascent.point.within(coordinates), new.within(coordinates)
    if new.usable:
        curvature = curvature.after(end.theta - point.theta, point.gradient - end.gradient)
    counted = replace(
        ascent,
        curvature=curvature,
        evaluations=ascent.evaluations + 1,
        failures=ascent.failures + new.failed,
        needed_a_factor=ascent.needed_a_factor or new.needed_a_factor,
        promised=promised,
    )
    if new.usable and _is_gain(point, end):
        foreseen = promised <= SMALL * tolerance and _was_foreseen(point, end)
        longest = LONGEST_STEP if new.information is None else _longer(end.theta - point.theta)
        return replace(counted, point=new, steps=ascent.steps + 1, longest=longest, foreseen=foreseen, tries=0)
    if ascent.tries + 1 == TRIES:
        reason = f"no step along the gradient brings a gain, though {promised:.2g} nats were promised"
        return counted._end(promised, reason, promised <= ROUNDED_GAIN)
    longest = (0.5 if new.usable else 0.25) * float((end.theta - point.theta).abs().max())
    return replace(counted, longest=longest, tries=ascent.tries + 1)


def _direction(point: Point[State], curvature: Curvature, lower: Tensor, upper: Tensor) -> Tensor:
    """Return where to go: a quasi-Newton step within the bounds, and a short one where nothing is known yet."""
    g, H = point.gradient, curvature.inverse(point.information)
    low, high = lower - point.theta, upper - point.theta
    free = ~(((low >= 0) & (g < 0)) | ((high <= 0) & (g > 0)))
    direction = None if H is None else _bounded_newton(g, H, low, high)
    if direction is None or float(g @ direction) <= 0:
        return _short(g * free).clamp(low, high)
    if point.information is not None:
        return direction
    unexplored = _short(curvature.unexplored(g, free)).clamp(low, high)
    return unexplored if float(g @ unexplored) > float(g @ direction) else direction


def _longer(step: Tensor) -> float:
    """Return how long the next step may be after one that was a gain: far from a maximum the curvature misleads."""
    return min(LONGEST_STEP, max(FIRST_STEP, GROWTH * float(step.abs().max())))


def _recent(pairs: list[tuple[Floats, Floats]]) -> list[tuple[Floats, Floats]]:
    """Return the pairs since the last long step, and that of it: older ones tell of other points."""
    short = 0
    while short < len(pairs) and np.abs(pairs[-1 - short][0]).max() <= NEAR:
        short += 1
    return pairs[-1 - short :]


def _bounded_newton(g: Tensor, H: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
    """Return the s within [low, high] that maximises gᵀs − ½ sᵀH⁻¹s; None if H is singular.

    Clamping the step H g would not do: where coordinates stop at a bound the others have to make up for it. With
    H = M Mᵀ it is the least-squares problem ‖M⁻¹s − Mᵀg‖² with bounds.
    """
    newton = H @ g
    if bool(((low <= newton) & (newton <= high)).all()):
        return newton
    M, failed = torch.linalg.cholesky_ex(H)
    if bool(failed) or not bool(M.isfinite().all()):
        return None
    A = torch.linalg.solve_triangular(M, torch.eye(len(g), dtype=g.dtype), upper=False)
    movable = low < high  # what is fixed stays, and scipy wants bounds that are apart
    found = lsq_linear(
        A[:, movable].numpy(), (M.T @ g).numpy(), (low[movable].numpy(), high[movable].numpy()), method="bvls"
    )
    step = torch.zeros_like(g)
    step[movable] = torch.from_numpy(found.x)
    return step.clamp(low, high)


def _promised_by_noise(noise: Tensor, curvature: Curvature) -> float:
    """Return the mean of ½ gᵀ(−∇²f)⁻¹g over gradients that are nothing but noise; 0 if little is known."""
    learned, H = int((noise > 0).sum()), curvature.inverse()
    if H is None or len(curvature.pairs) < min(learned, FEW_PAIRS):
        return 0.0
    return 0.5 * float(noise.square() @ H.diagonal())


def _short(g: Tensor) -> Tensor:
    """Return a step up the gradient of a length that can do little harm."""
    return g * (FIRST_STEP / max(float(g.abs().max()), 1e-300))


def _was_foreseen(point: Point[State], new: Point[State]) -> bool:
    """Say whether the step used up at least half of the slope along it."""
    step = new.theta - point.theta
    return float(new.gradient @ step) <= 0.5 * float(point.gradient @ step)


def _is_gain(point: Point[State], new: Point[State]) -> bool:
    """Say whether the step was a gain, by the values or else by the slopes at its two ends."""
    step = new.theta - point.theta
    slope, end_slope = float(point.gradient @ step), float(new.gradient @ step)
    if math.isnan(new.value) or math.isnan(point.value):
        return end_slope >= OVERSHOT * slope
    slack = 2 * max(new.error, point.error) + 1e-12 * abs(point.value)
    return new.value >= point.value + SUFFICIENT * slope - slack
