"""The mode of p(f | y) by Newton's method with inexact steps and a line search: it never diverges."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.laplace.expansion import Expansion
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_systems import NewtonSystems
from kernelcg.solvers import Status

FIRST_FORCING = 0.1
"""Relative tolerance of the first inner solve; later ones follow the convergence of Newton's method."""

WARM_FORCING = 1e-3
"""The same for the first step from a mode nearby: it is relative to W f, of which little is left."""

SUFFICIENT = 1e-4
HALVINGS = 30
STALLS = 3
"""Steps without progress, near the level of rounding, after which that is to blame."""

LENIENT = 1000.0
"""Times its estimate that rounding may be."""

LARGEST_ROUNDING = 1e-3
"""Residual above which something else is to blame."""

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


def find_mode(
    problem: Observations,
    gp: LatentProcess,
    systems: NewtonSystems,
    *,
    rtol: float,
    start: Tensor | None = None,
    max_steps: int = 100,
) -> Mode:
    r"""Maximise Ψ(a, β) = log p(y | Ka + Hβ) − ½ aᵀKa.

    With r = ∇log p − a, a Newton step is :math:`\delta = (I + WK)^{-1}(r - W H\, \delta\beta)`, and

    .. math:: (I + WK)^{-1} = I - S A^{-1} S^\top K, \qquad A = S^\top K S + I

    is solved to a tolerance relative to r that shrinks with it (Eisenstat & Walker, 1996), so that neither Newton nor
    CG is the weak link. f moves along a line, where Ψ costs O(n): steps are halved until it rises. Where W < 0 the
    direction uses 0 far from the mode, and the whole W near it if K⁻¹ + W is positive definite.
    """
    state = _State.at(problem, gp, *_first(problem, gp))
    if start is not None:
        state = max(state, _from_nearby(problem, gp, systems, start), key=lambda one: one.psi)
    forcing, best, stalls, steps, status = FIRST_FORCING, math.inf, 0, 0, Status.MAX_ITERATIONS
    for steps in range(max_steps + 1):
        residual = state.residual(problem.H)
        if not math.isfinite(residual):
            status = Status.NOT_FINITE
            break
        if residual <= rtol:
            state = _State.at(problem, gp, state.a, state.beta)  # f was updated, not computed
            residual = state.residual(problem.H)
            if residual <= rtol:
                status = Status.CONVERGED
                break
        stalls = stalls + 1 if residual > 0.9 * best else 0
        if stalls > STALLS and residual <= state.rounding(gp, problem):
            status = Status.PRECISION_EXHAUSTED
            break
        forcing = min(FIRST_FORCING, max(0.9 * (residual / best) ** 2, 0.3 * rtol / residual)) if steps else forcing
        best = min(best, residual)
        if steps < max_steps:
            moved = _step(problem, gp, systems, state, forcing, residual)
            if moved is None:
                status = Status.STAGNATED
                break
            state = moved
    fresh = _State.at(problem, gp, state.a, state.beta)
    return Mode(
        fresh.a,
        fresh.beta,
        fresh.f,
        fresh.expansion,
        fresh.psi,
        fresh.residual(problem.H),
        steps,
        status,
        systems.status,
    )


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


def newton_step(
    problem: Observations,
    systems: NewtonSystems,
    a: Tensor,
    r: Tensor,
    forcing: float,
    apart: IndefinitePoints | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return δa = (I + WK)⁻¹(r − WHδβ) with Hᵀ(a + δa) = 0, δβ, and RH, to a tolerance relative to r.

    W is 0 where it would be negative, unless ``apart`` knows of these points.
    """
    delta, RH = systems.unbent(r, forcing, problem.H)
    if apart is not None:
        delta = delta - apart.N @ (apart.B @ (apart.T.T @ r))
        RH = RH + apart.N @ (apart.B @ (apart.N.T @ problem.H))
    if problem.H.shape[1] == 0:
        return delta, r[:0], RH
    dbeta = torch.linalg.lstsq(problem.H.T @ RH, problem.H.T @ (a + delta)).solution
    return delta - RH @ dbeta, dbeta, RH


def _from_nearby(problem: Observations, gp: LatentProcess, systems: NewtonSystems, f: Tensor) -> "_State":
    """Return the Newton iterate that follows f, which need not be of the form Ka + Hβ: (I + WK) a = ∇log p + W(f − Hβ).

    The mode hardly moves with the hyperparameters, whereas K⁻¹ does.
    """
    expansion = problem.expansion(gp, f)
    systems.at(expansion)
    r = expansion.gradient + expansion.half(expansion.half_transposed(f))
    a, beta, _ = newton_step(problem, systems, torch.zeros_like(f), r, WARM_FORCING)
    return _State.at(problem, gp, a, beta)


def _step(
    problem: Observations,
    gp: LatentProcess,
    systems: NewtonSystems,
    state: _State,
    forcing: float,
    residual: float,
) -> _State | None:
    """Return the next point, or None if Ψ does not rise along the step."""
    expansion = state.expansion
    systems.at(expansion)
    r = expansion.gradient - state.a
    if residual < NEAR and len(expansion.apart):
        apart = IndefinitePoints.of(problem, gp, systems, min(forcing, WARM_FORCING))
        if apart.exists:
            moved = _moved(problem, gp, state, *newton_step(problem, systems, state.a, r, forcing, apart)[:2])
            if moved is not None:
                return moved
    return _moved(problem, gp, state, *newton_step(problem, systems, state.a, r, forcing)[:2])


def _moved(problem: Observations, gp: LatentProcess, state: _State, delta: Tensor, dbeta: Tensor) -> _State | None:
    """Return the point at the end of a step, halved until Ψ rises; None if it never does."""
    Kdelta = problem.product(gp.kernel, delta)
    df = Kdelta + problem.H @ dbeta
    crossed, squared = float((state.a * Kdelta).sum()), float((delta * Kdelta).sum())
    slope = float((state.expansion.gradient * df).sum()) - crossed
    slack = 1e-13 * (abs(state.psi) + abs(state.expansion.log_density))
    length = 1.0
    for _ in range(HALVINGS):
        a, beta, f = state.a + length * delta, state.beta + length * dbeta, state.f + length * df
        quadratic = state.quadratic + 2 * length * crossed + length**2 * squared
        psi = problem.log_density(gp, f) - 0.5 * quadratic
        if psi >= state.psi + SUFFICIENT * length * slope - slack:
            return _State.of(problem, gp, a, beta, f, quadratic)
        length /= 2
    return None
