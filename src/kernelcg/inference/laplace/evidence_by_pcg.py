"""Laplace's evidence and its gradient at a mode from random columns, by preconditioned conjugate gradients."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Probes
from kernelcg.inference.laplace.adjoint import Adjoint, Sampled, gradient_at
from kernelcg.inference.laplace.expansion import Expansion
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode
from kernelcg.inference.laplace.newton_by_pcg import IterativeSystem
from kernelcg.inference.laplace.newton_system import Spent
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.inference.learning.criterion_value import CriterionValue, groups, impossible, standard_error
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import Status, log_determinant

SOLVE_RTOL = 1e-3
"""Residual of the probes' solves, relative to the probes, at most. From the solutions of hyperparameters nearby
it points where these have moved to: what it leaves of the gradient is up to N times as much, and is no noise. At 0.03
a search could stand still far from the optimum."""


@dataclass(frozen=True, eq=False)
class Traces:
    """What tr(R₊∂K) and the diagonal of A⁻¹ are sampled with; see `iterative_laplace`."""

    R: Tensor  # (N, k) signs
    Q: Tensor  # (N, m), P⁻¹ = I − QQᵀ, or no columns
    W: Tensor  # (N, k) draws and Z = P⁻¹W, or no columns
    Z: Tensor
    known: Tensor  # P⁻¹R
    own: Tensor | float  # the diagonal of I − P⁻¹

    @classmethod
    def of(
        cls, problem: Observations, system: IterativeSystem, numerics: Numerics, drawn: Probes | None
    ) -> tuple["Traces", Probes | None]:
        """Return it, and the draws to be kept nearby: those given, or new ones where they are needed."""
        k, source = numerics.probes, seeded(numerics.seed)
        R = rademacher(problem.size, k, child(source, "probes"), like=problem.X)
        none = R[:, :0]
        if numerics.rademacher:
            return cls(R, none, none, none, R, 0.0), None
        Q = system.captured()
        if Q.shape[1] == 0:
            drawn = drawn or system.drawn(k, child(source, "drawn"))
        W, Z = (drawn.W, drawn.Z) if drawn and Q.shape[1] == 0 else (none, none)
        return cls(R, Q, W, Z, *system.guessed(R)), drawn

    def pairs(self, expansion: Expansion, U: Tensor, U_drawn: Tensor, some: slice) -> list[tuple[Tensor, Tensor]]:
        """Return pairs whose sum of leftᵀ∂K right is −½ tr(R₊∂K), up to the diagonal that goes with Q."""
        left, right = (U_drawn, self.Z) if self.W.shape[1] else (U, self.R)
        if self.Q.shape[1]:
            left = U - self.R + self.Q @ (self.Q.T @ self.R)
        left, right, SQ = expansion.half(left[:, some]), expansion.half(right[:, some]), expansion.half(self.Q)
        return [(-0.5 / right.shape[1] * left, right), (0.5 * SQ, SQ)]


@dataclass(frozen=True, eq=False)
class _Solved:
    """The solutions for the probes and the drift at a mode, from which the gradient follows."""

    problem: Observations
    gp: LatentProcess
    mode: Mode
    system: IterativeSystem
    traces: Traces
    drawn: Probes | None
    solutions: Tensor  # (N, k) A⁻¹ times the signs, the draws and SᵀH
    apart: IndefinitePoints
    rtol: float
    spent: Spent

    @classmethod
    def of(
        cls,
        problem: Observations,
        gp: LatentProcess,
        mode: Mode,
        system: IterativeSystem,
        numerics: Numerics,
        near: LaplaceTrail | None,
    ) -> "_Solved":
        """Solve for the probes, from the solutions of an evaluation nearby if there was one."""
        rtol = min(numerics.stopping.rtol, SOLVE_RTOL)
        traces, drawn = Traces.of(problem, system, numerics, near.drawn if near else None)
        B = torch.cat([traces.R, traces.W, mode.expansion.half_transposed(problem.H)], dim=1)
        known = near.solutions if near else None
        start = known if known is not None and known.shape == B.shape else None
        tolerance = replace(numerics.stopping, rtol=0.0, atol=rtol * math.sqrt(problem.size))  # A ⪰ I
        solved = system.solve(B, tolerance, start)
        apart = IndefinitePoints.of(problem, gp, system, 1e-2 * rtol)
        spent = solved.spent + apart.spent
        return cls(problem, gp, mode, system, traces, drawn, solved.solution, apart, rtol, spent)

    def gradient(self, some: slice) -> tuple[Tensor, Spent]:
        """Return the gradient from some of the probes, and what its solve took."""
        problem, gp, mode, traces, apart = self.problem, self.gp, self.mode, self.traces, self.apart
        widths = [part.shape[1] for part in (traces.R, traces.W, problem.H)]
        U, U_drawn, solved_H = self.solutions.split(widths, dim=1)
        RH = mode.expansion.half(solved_H)
        sampled = Sampled((traces.known - U)[:, some], traces.R[:, some], RH, traces.own)
        solved = Adjoint.of(problem, gp, self.system, apart, sampled, self.rtol)
        pairs = [(0.5 * mode.a - 0.5 * solved.v, mode.a), (-0.5 * apart.N @ apart.B, apart.N)]
        pairs += traces.pairs(mode.expansion, U, U_drawn, some)
        found = gradient_at(problem, gp, mode, solved, pairs)
        if traces.Q.shape[1]:
            by_diagonal = problem.diagonal_gradient(gp.kernel, mode.expansion.trace())
            found[: len(by_diagonal)] -= 0.5 * by_diagonal
        return found, solved.spent


def iterative_laplace(
    problem: Observations,
    gp: LatentProcess,
    mode: Mode,
    system: IterativeSystem,
    numerics: Numerics,
    trail: LaplaceTrail | None,
    spent: Spent,
    *,
    value: bool,
    errors: bool,
) -> tuple[CriterionValue, LaplaceTrail | None]:
    r"""Return value and gradient at the mode with traces from probes.

    With signs r and P⁻¹ = I − QQᵀ, the preconditioner, as control variate

    .. math:: \operatorname{tr}(R_+ \partial K) = \operatorname{tr}(W_+ \partial K)
        - \operatorname{tr}(Q^\top S^\top \partial K\, S Q)
        + \mathrm{E}\, r^\top (A^{-1} - P^{-1}) S^\top \partial K\, S r,

    and likewise for the diagonal of A⁻¹. Where P is not of that form, or leaves much of K, w ~ N(0, P) and P⁻¹w take
    the place of r in the trace, though not in the diagonal, which signs give with less noise.
    ``spent`` is what the mode took: a solve that failed on the way counts.
    """
    near = trail if trail is not None and trail.is_near(problem, gp.kernel) else None
    solved = _Solved.of(problem, gp, mode, system, numerics, near)
    if not solved.apart.exists:
        return impossible(len(gp.log_parameters()), mode.blamed), None
    found, taken = solved.gradient(slice(None))
    if not bool(found.isfinite().all()):
        return impossible(len(found), mode.blamed), None
    parts = [solved.gradient(some) for some in groups(numerics.probes)] if errors else []
    spread = standard_error([part for part, _ in parts]) if errors else torch.full_like(found, math.nan)
    spent = sum((part for _, part in parts), spent + solved.spent + taken)
    status = mode.status if mode.status is not Status.CONVERGED else spent.status
    estimate = CriterionValue(math.nan, found, math.nan, spread, math.nan, math.nan, status, spent.report)
    if value:
        estimate = with_value(estimate, mode, system, solved.apart, numerics)
    chosen_at = near.chosen_at if near else gp.kernel.log_parameters()
    return estimate, LaplaceTrail(mode.f, solved.solutions, solved.drawn, system.systems.pivots, chosen_at)


def with_value(
    estimate: CriterionValue, mode: Mode, system: IterativeSystem, apart: IndefinitePoints, numerics: Numerics
) -> CriterionValue:
    """Return the estimate with its value: log|A| by Lanczos quadrature, bracketed where P ⪯ A is known."""
    generator = child(seeded(numerics.seed), "log determinant")
    P = system.sampler()
    floor = 1.0 if P is None or P is system.below() else None
    A = system.A.with_precision(torch.float64)
    found = log_determinant(A, max(numerics.probes, 2), generator, preconditioner=P, spectrum_floor=floor)
    rest = mode.psi - 0.5 * apart.log_determinant
    return replace(
        estimate,
        value=rest - 0.5 * found.value,
        value_error=0.5 * found.standard_error,
        lower=rest - 0.5 * found.upper,
        upper=rest - 0.5 * found.lower,
        status=estimate.status if found.status is Status.CONVERGED else found.status,
    )
