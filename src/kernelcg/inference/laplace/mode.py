"""The mode of p(f | y) by Newton's method with inexact steps and a line search: it never diverges."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.laplace.expansion import Expansion
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_system import NewtonSystem, NewtonSystems, Spent
from kernelcg.solvers import Status
from kernelcg.solvers.least_squares import least_squares

FIRST_FORCING = 0.1
"""Relative tolerance of the first inner solve; later ones follow the convergence of Newton's method."""

WARM_FORCING = 1e-3
"""Relative tolerance of the first inner solve from a mode nearby. It is smaller because it is relative to W f, most of
which cancels."""

SUFFICIENT = 1e-4
HALVINGS = 30
STALLS = 3
"""Steps without progress, at residuals near those that rounding makes, after which rounding is named as the reason."""

NEGLIGIBLE_GAIN = 1e-26
"""Gain of a step, in units of Ψ, after which there is nothing left but rounding, whatever the residual: where a drift
explains all of y the gradient is 0, and no residual is small beside it."""

LENIENT = 1000.0
"""Factor by which rounding may exceed its estimate."""

LARGEST_ROUNDING = 1e-3
"""Residual above which rounding is not named as the reason of a search that makes no progress."""

NEAR = 0.1
"""Residual below which a step takes W into account where it is negative, too: without it convergence is linear."""


@dataclass(frozen=True, eq=False)
class Mode:
    """Where Newton's method ended: f = K a + Hβ, a = ∇log p(f) up to the residual, Hᵀa = 0.

    Attributes
    ----------
    psi : log p(y | f) − ½ aᵀK a
    residual : ‖∇log p(f) − a‖ / ‖∇log p(f)‖, recomputed with f = K a + Hβ in float64
    status : CONVERGED if the residual is within the tolerance
    inner : the status of the linear solves: a failed one is harmless if Newton's method converged all the same
    """

    a: Tensor  # (N, 1)
    beta: Tensor  # (b, 1)
    f: Tensor  # (N, 1)
    expansion: Expansion
    psi: float
    residual: float
    steps: int
    status: Status
    inner: Status

    @property
    def quadratic(self) -> float:
        """Return aᵀK a."""
        return 2 * (self.expansion.log_density - self.psi)

    @property
    def blamed(self) -> Status:
        """Return why there is no evidence: f is not at a mode yet, or at a stationary point that is none."""
        return self.status if self.status is not Status.CONVERGED else Status.INDEFINITE_OPERATOR


@dataclass(frozen=True, eq=False)
class ModeSearch:
    """The mode, the systems with what was prepared for them on the way, and what their solves took."""

    mode: Mode
    systems: NewtonSystems
    spent: Spent


def find_mode(
    problem: Observations,
    gp: LatentProcess,
    systems: NewtonSystems,
    *,
    rtol: float,
    start: Tensor | None = None,
    max_steps: int = 100,
) -> ModeSearch:
    r"""Maximise Ψ(a, β) = log p(y | Ka + Hβ) − ½ aᵀKa.

    With r = ∇log p − a, a Newton step is :math:`\delta = (I + WK)^{-1}(r - W H\, \delta\beta)`, and

    .. math:: (I + WK)^{-1} = I - S A^{-1} S^\top K, \qquad A = S^\top K S + I

    is solved to a tolerance relative to r that shrinks with it (Eisenstat & Walker, 1996), so that neither Newton nor
    CG is the weak link. f moves along a line, where Ψ costs O(n): steps are halved until it rises. Where W < 0 the
    direction uses 0 far from the mode, and the whole W near it if K⁻¹ + W is positive definite. Where log p is nearly
    straight, as in tails far from y, steps are so long that no halving helps: `Expansion.cautious` makes shorter ones.
    """
    here = _Iterate(_State.at(problem, gp, *_first(problem, gp)), systems, Spent())
    if start is not None and math.isfinite(problem.expansion(gp, start).norm()):
        nearby = _from_nearby(problem, gp, here, start)
        here = nearby if nearby.state.psi > here.state.psi else replace(nearby, state=here.state)
    forcing, best, stalls, steps, status = FIRST_FORCING, math.inf, 0, 0, Status.MAX_ITERATIONS
    for steps in range(max_steps + 1):
        residual = here.state.residual(problem.H)
        if not (math.isfinite(residual) and math.isfinite(here.state.expansion.norm())):
            status = Status.NOT_FINITE
            break
        if residual <= rtol:
            here = replace(here, state=here.state.recomputed(problem, gp))  # f was updated, not computed
            residual = here.state.residual(problem.H)
            if residual <= rtol:
                status = Status.CONVERGED
                break
        stalls = stalls + 1 if residual > 0.9 * best else 0
        nothing_left = here.gain <= NEGLIGIBLE_GAIN
        if nothing_left or (stalls > STALLS and residual <= here.state.rounding(gp, problem)):
            status = Status.PRECISION_EXHAUSTED
            break
        forcing = min(FIRST_FORCING, max(0.9 * (residual / best) ** 2, 0.3 * rtol / residual)) if steps else forcing
        best = min(best, residual)
        if steps < max_steps:
            before, here = here, _step(problem, gp, here, forcing, residual)
            if here.state is before.state:
                status = Status.STAGNATED
                break
    mode = here.state.recomputed(problem, gp).mode(problem.H, steps, status, here.spent.status)
    return ModeSearch(mode, here.systems, here.spent)


def _first(problem: Observations, gp: LatentProcess) -> tuple[Tensor, Tensor]:
    """Return a = 0 and the constant that suits the data best."""
    zero = problem.X.new_zeros(problem.size, 1)
    beta = problem.X.new_zeros(problem.H.shape[1], 1)
    if len(beta):
        beta[0] = gp.likelihood.start(problem.y, problem.exposure)  # type: ignore[union-attr]
    return zero, beta


@dataclass(frozen=True, eq=False)
class _State:
    """A point on the way."""

    a: Tensor
    beta: Tensor
    f: Tensor
    quadratic: float
    psi: float
    expansion: Expansion

    @classmethod
    def at(cls, problem: Observations, gp: LatentProcess, a: Tensor, beta: Tensor) -> "_State":
        Ka = problem.product(gp.kernel, a)
        return cls.of(problem, gp, a, beta, Ka + problem.H @ beta, float((a * Ka).sum()))

    @classmethod
    def of(
        cls, problem: Observations, gp: LatentProcess, a: Tensor, beta: Tensor, f: Tensor, quadratic: float
    ) -> "_State":
        expansion = problem.expansion(gp, f)
        return cls(a, beta, f, quadratic, expansion.log_density - 0.5 * quadratic, expansion)

    def recomputed(self, problem: Observations, gp: LatentProcess) -> "_State":
        """Return the same point with f = Ka + Hβ computed from a and β."""
        return _State.at(problem, gp, self.a, self.beta)

    def mode(self, H: Tensor, steps: int, status: Status, inner: Status) -> Mode:
        """Return this point as the mode that the search ended with."""
        residual = self.residual(H)
        return Mode(self.a, self.beta, self.f, self.expansion, self.psi, residual, steps, status, inner)

    def residual(self, H: Tensor) -> float:
        g = self.expansion.gradient
        size = float(g.norm())
        slope = float((H.T @ g).norm()) / len(H) ** 0.5
        return max(float((g - self.a).norm()), slope) / size if size > 0 else float(self.a.norm())

    def rounding(self, gp: LatentProcess, problem: Observations) -> float:
        """Return what rounding of f = Ka + Hβ may make of the residual, generously."""
        product = float(self.a.abs().sum()) * float(gp.kernel.diagonal(problem.X).detach().max())
        entry = UNIT_ROUNDOFF * (product + float(self.f.abs().max()))
        size = max(float(self.expansion.gradient.norm()), 1e-300)
        found = self.expansion.norm() ** 2 * entry * math.sqrt(problem.size) / size + UNIT_ROUNDOFF
        return min(LENIENT * found, LARGEST_ROUNDING)


@dataclass(frozen=True, eq=False)
class _Iterate:
    """A point on the way, the systems with what was prepared until then, and what their solves took until then."""

    state: _State
    systems: NewtonSystems
    spent: Spent
    gain: float = math.inf
    """Twice the gain in Ψ that was predicted for the step that led here: the squared error of f in standard
    deviations."""


@dataclass(frozen=True, eq=False)
class NewtonStep:
    """δa, δβ and RH, and what they took: see `newton_step`."""

    da: Tensor  # (N, 1)
    dbeta: Tensor  # (b, 1)
    RH: Tensor  # (N, b)
    spent: Spent


def newton_step(
    problem: Observations,
    system: NewtonSystem,
    a: Tensor,
    r: Tensor,
    forcing: float,
    apart: IndefinitePoints | None = None,
) -> NewtonStep:
    """Return δa = (I + WK)⁻¹(r − WHδβ) with Hᵀ(a + δa) = 0, δβ, and RH, to a tolerance relative to r.

    W is 0 where it would be negative, unless ``apart`` knows of these points.
    """
    unbent = system.unbent(r, forcing, problem.H)
    delta, RH = unbent.V, unbent.RH
    if apart is not None:
        delta = delta - apart.N @ (apart.B @ (apart.T.T @ r))
        RH = RH + apart.N @ (apart.B @ (apart.N.T @ problem.H))
    if problem.H.shape[1] == 0:
        return NewtonStep(delta, r[:0], RH, unbent.spent)
    dbeta = least_squares(problem.H.T @ RH, problem.H.T @ (a + delta))
    return NewtonStep(delta - RH @ dbeta, dbeta, RH, unbent.spent)


def _from_nearby(problem: Observations, gp: LatentProcess, here: _Iterate, f: Tensor) -> _Iterate:
    """Return the Newton iterate that follows f, which need not be of the form Ka + Hβ: (I + WK) a = ∇log p + W(f − Hβ).

    The mode hardly moves with the hyperparameters, whereas K⁻¹ does.
    """
    expansion = problem.expansion(gp, f)
    system = here.systems.at(expansion)
    r = expansion.gradient + expansion.half(expansion.half_transposed(f))
    step = newton_step(problem, system, torch.zeros_like(f), r, WARM_FORCING)
    return _Iterate(_State.at(problem, gp, step.da, step.dbeta), system.systems, here.spent + step.spent)


def _step(problem: Observations, gp: LatentProcess, here: _Iterate, forcing: float, residual: float) -> _Iterate:
    """Return the next point, or the same one if Ψ rises along no step."""
    state, spent = here.state, here.spent
    system = here.systems.at(state.expansion)
    r = state.expansion.gradient - state.a
    if residual < NEAR and len(state.expansion.apart):
        apart = IndefinitePoints.of(problem, gp, system, min(forcing, WARM_FORCING))
        spent = spent + apart.spent
        if apart.exists:
            step = newton_step(problem, system, state.a, r, forcing, apart)
            spent, (moved, gain) = spent + step.spent, _moved(problem, gp, state, step)
            if moved is not state:
                return _Iterate(moved, system.systems, spent, gain)
    step = newton_step(problem, system, state.a, r, forcing)
    spent, (moved, gain) = spent + step.spent, _moved(problem, gp, state, step)
    if moved is state and residual > LARGEST_ROUNDING:
        system = system.systems.at(state.expansion.cautious())
        step = newton_step(problem, system, state.a, r, forcing)
        spent, (moved, gain) = spent + step.spent, _moved(problem, gp, state, step, is_rough=True)
    return _Iterate(moved, system.systems, spent, gain)


def _moved(
    problem: Observations, gp: LatentProcess, state: _State, step: NewtonStep, *, is_rough: bool = False
) -> tuple[_State, float]:
    """Return the point at the end of a step, or the same if Ψ rises at none of its lengths; and its slope.

    The step is halved until Ψ rises, and then as long as it rises more: a step that goes too far leads to the other
    side of the mode, as far away as before. A full one is only halved if it ``is_rough``, not Newton's.
    """
    delta, dbeta = step.da, step.dbeta
    Kdelta = problem.product(gp.kernel, delta)
    df = Kdelta + problem.H @ dbeta
    crossed, squared = float((state.a * Kdelta).sum()), float((delta * Kdelta).sum())
    slope = float((state.expansion.gradient * df).sum()) - crossed
    slack = 1e-13 * (abs(state.psi) + abs(state.expansion.log_density))
    best = state
    for halvings in range(HALVINGS):
        length = 0.5**halvings
        a, beta, f = state.a + length * delta, state.beta + length * dbeta, state.f + length * df
        quadratic = state.quadratic + 2 * length * crossed + length**2 * squared
        psi = problem.log_density(gp, f) - 0.5 * quadratic
        if best is not state and not psi > best.psi:
            break
        if psi >= state.psi + SUFFICIENT * length * slope - slack:
            best = _State.of(problem, gp, a, beta, f, quadratic)
            if halvings == 0 and not is_rough:
                break
    return best, abs(slope)
