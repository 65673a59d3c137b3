"""The Laplace approximation of the log marginal likelihood and its gradient, by solves with A = SᵀKS + I alone."""

import math
from dataclasses import dataclass, replace

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Probes
from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion, ScalarExpansion
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode, find_mode
from kernelcg.inference.laplace.newton_systems import DirectSystems, IterativeSystems, NewtonSystems
from kernelcg.inference.learning.criterion_value import CriterionValue, groups, impossible, standard_error
from kernelcg.kernels import Kernel
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import Status, log_determinant

LEARNING_RTOL, WARY_RTOL = 1e-3, 1e-6
"""Residual of Newton's method while learning: what it leaves of the gradient is far below the noise of the probes.
Where log p(y | f) is not concave the curvature at the mode may be next to nothing, and f far from it all the same."""

SOLVE_RTOL = 1e-3
"""Residual of the probes' solves, relative to the probes, at most. From the solutions of hyperparameters nearby
it points where these have moved to: what it leaves of the gradient is up to N times as much, and is no noise. At 0.03
a search could stand still far from the optimum."""

EXACT_RTOL = 1e-9

TIGHT = 1e-10

CHANGED = 0.5
"""Change of K, relative to itself on a few rows, after which probes and pivots are chosen anew: they stay unbiased, but
the noise grows. Lengthscales of irrelevant features move far without consequence."""

FEW_ROWS = 200


@dataclass(frozen=True, eq=False)
class LaplaceTrail:
    """What an evaluation leaves to the next one nearby: the mode, solutions for the probes."""

    f: Tensor
    solutions: Tensor | None = None
    drawn: Probes | None = None
    pivots: Tensor | None = None
    """Probes, and rows of the low-rank part, that stay the same nearby, so that the estimate is smooth."""
    chosen_at: Tensor | None = None
    """Log hyperparameters of the kernel for which these were chosen."""

    def is_near(self, problem: Observations, kernel: Kernel) -> bool:
        """Say whether its choices still suit this kernel."""
        if self.chosen_at is None:
            return False
        X = problem.X[:: max(len(problem) // FEW_ROWS, 1)]
        before, now = (one(X, X).detach() for one in (kernel.with_log_parameters(self.chosen_at), kernel))
        return float((now - before).norm()) <= CHANGED * float(before.norm())

    def on(self, device: torch.device) -> "LaplaceTrail":
        """Return it on another device."""
        solutions = None if self.solutions is None else self.solutions.to(device)
        drawn = None if self.drawn is None else self.drawn.on(device)
        return replace(self, f=self.f.to(device), solutions=solutions, drawn=drawn)

    def without_probes(self) -> "LaplaceTrail":
        """Return it for an evaluation with other probes."""
        return LaplaceTrail(self.f)


def systems_for(
    problem: Observations,
    gp: LatentProcess,
    method: str,
    numerics: Numerics,
    pivots: Tensor | None = None,
    callback: Listener | None = None,
) -> NewtonSystems:
    """Return what solves the systems of a Newton step by this method."""
    if method == "direct":
        return DirectSystems(problem, gp, numerics.stopping)
    return IterativeSystems(
        problem, gp, numerics.preconditioner, numerics.seed, numerics.stopping, pivots, callback=callback
    )


def laplace_estimate(
    problem: Observations,
    gp: LatentProcess,
    method: str = "iterative",
    numerics: Numerics = Numerics(),
    trail: LaplaceTrail | None = None,
    *,
    value: bool = True,
    errors: bool = False,
    mode_rtol: float | None = None,
    callback: Listener | None = None,
) -> tuple[CriterionValue, LaplaceTrail | None]:
    r"""Return the approximate log marginal likelihood and its gradient in the log hyperparameters.

    .. math:: \log q = \log p(y | \hat f) - \tfrac12 a^\top K a - \tfrac12 \log|I + KW|

    at the mode f̂ = Ka + Hβ, β being plugged in. With R = W(I+KW)⁻¹, Σ = (K⁻¹ + W)⁻¹ and u = diag(Σ) ∂W/∂f,

    .. math:: \partial \log q = \tfrac12 a^\top \partial K\, a - \tfrac12 \operatorname{tr}(R\, \partial K)
        - \tfrac12 v^\top \partial K\, a, \qquad v = (I + WK)^{-1} u - R H (H^\top R H)^{-1} H^\top (I + WK)^{-1} u,

    for a hyperparameter φ of the likelihood
    :math:`\sum \partial_\phi \log p - \tfrac12 \operatorname{diag}(\Sigma)^\top \partial_\phi W
    - \tfrac12 t^\top \partial_\phi \nabla \log p` with t = K v + H c, c = (HᵀRH)⁻¹Hᵀ(I + WK)⁻¹u. One adjoint solve
    serves all hyperparameters, and the probes of the trace give diag(Σ) too, since SᵀΣS = I − A⁻¹.

    References
    ----------
    Cutajar et al. (2016), supplement (its signs and its divisions by √W: `tests/paper/test_errata.py`, items 8, 10,
    23); Rasmussen & Williams (2006), chapters 3 and 5.
    """
    gp = gp.with_log_parameters(gp.log_parameters().detach())
    theta, problem = gp.log_parameters(), problem.with_kernel(gp.kernel)
    pivots = trail.pivots if trail and trail.is_near(problem, gp.kernel) else None
    systems = systems_for(problem, gp, method, numerics, pivots, callback)
    start = None if trail is None else trail.f
    enough = LEARNING_RTOL if gp.is_log_concave else WARY_RTOL
    rtol = mode_rtol or (EXACT_RTOL if method == "direct" else enough)
    try:
        mode = find_mode(problem, gp, systems, rtol=rtol, start=start)
        if mode.status is Status.NOT_FINITE:
            return impossible(len(theta), mode.status), None
        if mode.status is Status.PRECISION_EXHAUSTED and mode_rtol is None and mode.residual <= enough:
            mode = replace(mode, status=Status.CONVERGED)  # rounding came first, but nobody asked for that much
        systems.at(mode.expansion)
        if isinstance(systems, DirectSystems):
            return direct_laplace(problem, gp, mode, systems), LaplaceTrail(mode.f)
    except LinAlgError:
        return impossible(len(theta), Status.INDEFINITE_OPERATOR), None
    return _iterative_laplace(problem, gp, mode, systems, numerics, trail, value=value, errors=errors)


def direct_laplace(problem: Observations, gp: LatentProcess, mode: Mode, systems: DirectSystems) -> CriterionValue:
    """Return value and gradient at the mode with exact traces; N³ multiply-adds and 24N² bytes."""
    expansion, N = mode.expansion, problem.size
    apart = IndefinitePoints.of(problem, gp, systems, TIGHT)
    if not apart.exists:
        return impossible(len(gp.log_parameters()), _blamed(mode))
    _, RH = systems.unbent(mode.a, TIGHT, problem.H)
    log_det = float(systems.factor.log_determinant())
    inverse = systems.inverted()
    blocks = torch.eye(problem.classes, dtype=torch.float64, device=inverse.device).repeat(len(problem), 1)
    own = inverse.reshape(len(problem), problem.classes, len(problem), problem.classes)
    L = blocks - own.diagonal(dim1=0, dim2=2).permute(2, 0, 1).reshape(N, -1)  # the diagonal blocks of I − A⁻¹
    R = expansion.half(expansion.half(inverse).T)
    if problem.classes > 1:
        R = R.reshape(own.shape).diagonal(dim1=1, dim2=3).sum(-1)
    sampled = Sampled(L * problem.classes, blocks, RH)
    solved = Adjoint.of(problem, gp, systems, apart, sampled, TIGHT)
    pairs = [(0.5 * mode.a - 0.5 * solved.v, mode.a), (-0.5 * apart.N @ apart.B, apart.N)]
    gradient = _gradient(problem, gp, mode, solved, pairs, -0.5 * R)
    value = mode.psi - 0.5 * (log_det + apart.log_determinant)
    if not math.isfinite(value):
        return impossible(len(gradient), _blamed(mode))
    return CriterionValue(value, gradient, 0.0, torch.zeros_like(gradient), value, value, mode.status)


@dataclass(frozen=True, eq=False)
class Sampled:
    """L and R with mean(L Rᵀ) + diag(own) ≈ I − A⁻¹, in its diagonal blocks at least, and R₊H."""

    L: Tensor
    R: Tensor
    RH: Tensor
    own: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class Adjoint:
    """v and t of the implicit term and diag Σ; see `laplace_estimate`."""

    v: Tensor  # (N, 1)
    t: Tensor  # (N, 1)
    variances: Tensor  # (n,); nothing for classes

    @classmethod
    def of(
        cls,
        problem: Observations,
        gp: LatentProcess,
        systems: NewtonSystems,
        apart: IndefinitePoints,
        sampled: Sampled,
        rtol: float,
    ) -> "Adjoint":
        """Solve for it, from what was sampled."""
        expansion = systems.expansion
        if isinstance(expansion, ClassExpansion):
            variances, u = sampled.L.new_zeros(0), expansion.slope(sampled.L, sampled.R)
        elif isinstance(expansion, ScalarExpansion):
            correction = ((apart.T @ apart.B) * apart.T).sum(1)
            diagonal = (sampled.L * sampled.R).mean(1) + sampled.own
            variances = expansion.variances(diagonal, correction, apart.own)
            u = (variances * expansion.derivatives.slope)[:, None]
        v, _ = systems.unbent(u, rtol)
        v = v - apart.N @ (apart.B @ (apart.T.T @ u))
        H, RH = problem.H, sampled.RH + apart.N @ (apart.B @ (apart.N.T @ problem.H))
        c = torch.linalg.lstsq(H.T @ RH, H.T @ v).solution if H.shape[1] else H.new_zeros(0, 1)
        v = v - RH @ c
        needs_t = len(gp.likelihood.log_parameters()) > 0
        t = problem.product(gp.kernel, v) + H @ c if needs_t else torch.zeros_like(v)
        return cls(v, t, variances)


def _gradient(
    problem: Observations,
    gp: LatentProcess,
    mode: Mode,
    solved: Adjoint,
    pairs: list[tuple[Tensor, Tensor]],
    weights: Tensor | None = None,
) -> Tensor:
    """Return the gradient in the kernel's and the likelihood's log hyperparameters."""
    left, right = (torch.cat(parts, dim=1) for parts in zip(*pairs, strict=True))
    by_kernel = problem.gradient(gp.kernel, left, right, weights)
    if isinstance(mode.expansion, ClassExpansion):
        return by_kernel
    d = gp.likelihood.parameter_derivatives(problem.y, mode.f[:, 0], problem.exposure)  # type: ignore[union-attr]
    by_likelihood = d.log_density.sum(0) - 0.5 * solved.variances @ d.curvature - 0.5 * solved.t[:, 0] @ d.gradient
    return torch.cat([by_kernel, by_likelihood.cpu()])


@dataclass(frozen=True, eq=False)
class Traces:
    """What tr(R₊∂K) and the diagonal of A⁻¹ are sampled with; see `_iterative_laplace`."""

    R: Tensor  # (N, k) signs
    Q: Tensor  # (N, m), P⁻¹ = I − QQᵀ, or no columns
    W: Tensor  # (N, k) draws and Z = P⁻¹W, or no columns
    Z: Tensor
    known: Tensor  # P⁻¹R
    own: Tensor | float  # the diagonal of I − P⁻¹

    @classmethod
    def of(
        cls, problem: Observations, systems: IterativeSystems, numerics: Numerics, drawn: Probes | None
    ) -> tuple["Traces", Probes | None]:
        """Return it, and the draws to be kept nearby: those given, or new ones where they are needed."""
        k, source = numerics.probes, seeded(numerics.seed)
        R = rademacher(problem.size, k, child(source, "probes"), like=problem.X)
        none = R[:, :0]
        if numerics.rademacher:
            return cls(R, none, none, none, R, 0.0), None
        Q = systems.captured()
        if Q.shape[1] == 0:
            drawn = drawn or systems.drawn(k, child(source, "drawn"))
        W, Z = (drawn.W, drawn.Z) if drawn and Q.shape[1] == 0 else (none, none)
        return cls(R, Q, W, Z, *systems.guessed(R)), drawn

    def pairs(self, expansion: Expansion, U: Tensor, U_drawn: Tensor, some: slice) -> list[tuple[Tensor, Tensor]]:
        """Return pairs whose sum of leftᵀ∂K right is −½ tr(R₊∂K), up to the diagonal that goes with Q."""
        left, right = (U_drawn, self.Z) if self.W.shape[1] else (U, self.R)
        if self.Q.shape[1]:
            left = U - self.R + self.Q @ (self.Q.T @ self.R)
        left, right, SQ = expansion.half(left[:, some]), expansion.half(right[:, some]), expansion.half(self.Q)
        return [(-0.5 / right.shape[1] * left, right), (0.5 * SQ, SQ)]


def _iterative_laplace(
    problem: Observations,
    gp: LatentProcess,
    mode: Mode,
    systems: NewtonSystems,
    numerics: Numerics,
    trail: LaplaceTrail | None,
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
    """
    if not isinstance(systems, IterativeSystems):
        raise TypeError("probes are for iterative systems")
    expansion, before = mode.expansion, trail or LaplaceTrail(mode.f)
    rtol = min(numerics.stopping.rtol, SOLVE_RTOL)
    near = before.is_near(problem, gp.kernel)
    traces, drawn = Traces.of(problem, systems, numerics, before.drawn if near else None)
    B = torch.cat([traces.R, traces.W, expansion.half_transposed(problem.H)], dim=1)
    start = before.solutions if near and before.solutions is not None and before.solutions.shape == B.shape else None
    tolerance = replace(numerics.stopping, rtol=0.0, atol=rtol * math.sqrt(problem.size))  # A ⪰ I
    solutions = systems.solve(B, tolerance, start)
    U, U_drawn, solved_H = solutions.split([part.shape[1] for part in (traces.R, traces.W, problem.H)], dim=1)
    RH, apart = expansion.half(solved_H), IndefinitePoints.of(problem, gp, systems, 1e-2 * rtol)
    if not apart.exists:
        return impossible(len(gp.log_parameters()), _blamed(mode)), None

    def gradient(some: slice) -> Tensor:
        sampled = Sampled((traces.known - U)[:, some], traces.R[:, some], RH, traces.own)
        solved = Adjoint.of(problem, gp, systems, apart, sampled, rtol)
        pairs = [(0.5 * mode.a - 0.5 * solved.v, mode.a), (-0.5 * apart.N @ apart.B, apart.N)]
        found = _gradient(problem, gp, mode, solved, [*pairs, *traces.pairs(expansion, U, U_drawn, some)])
        if traces.Q.shape[1]:
            by_diagonal = problem.diagonal_gradient(gp.kernel, expansion.trace())
            found[: len(by_diagonal)] -= 0.5 * by_diagonal
        return found

    found = gradient(slice(None))
    if not bool(found.isfinite().all()):
        return impossible(len(found), _blamed(mode)), None
    unknown = torch.full_like(found, math.nan)
    spread = standard_error([gradient(some) for some in groups(numerics.probes)]) if errors else unknown
    status = mode.status if mode.status is not Status.CONVERGED else systems.status
    estimate = CriterionValue(math.nan, found, math.nan, spread, math.nan, math.nan, status, systems.report)
    if value:
        estimate = _with_value(estimate, mode, systems, apart, numerics)
    chosen_at = before.chosen_at if near else gp.kernel.log_parameters()
    return estimate, LaplaceTrail(mode.f, solutions, drawn, systems.pivots, chosen_at)


def _blamed(mode: Mode) -> Status:
    """Return why there is no value: f is not at a mode yet, or at a stationary point that is none."""
    return mode.status if mode.status is not Status.CONVERGED else Status.INDEFINITE_OPERATOR


def laplace_value(
    problem: Observations, gp: LatentProcess, mode: Mode, systems: NewtonSystems, numerics: Numerics
) -> CriterionValue:
    """Return the value alone, at a mode that is known: its error is of second order in that of the mode."""
    systems.at(mode.expansion)
    apart, p = IndefinitePoints.of(problem, gp, systems, 1e-6), len(gp.log_parameters())
    if not apart.exists:
        return impossible(p, _blamed(mode))
    unknown = torch.full((p,), math.nan, dtype=torch.float64)
    if isinstance(systems, IterativeSystems):
        blank = CriterionValue(math.nan, unknown, math.nan, unknown, math.nan, math.nan, mode.status)
        return _with_value(blank, mode, systems, apart, numerics)
    if not isinstance(systems, DirectSystems):
        raise TypeError(f"unknown systems {systems!r}")
    value = mode.psi - 0.5 * (float(systems.factor.log_determinant()) + apart.log_determinant)
    return CriterionValue(value, unknown, 0.0, unknown, value, value, mode.status)


def _with_value(
    estimate: CriterionValue, mode: Mode, systems: IterativeSystems, apart: IndefinitePoints, numerics: Numerics
) -> CriterionValue:
    """Return the estimate with its value: log|A| by Lanczos quadrature, bracketed where P ⪯ A is known."""
    generator = child(seeded(numerics.seed), "log determinant")
    P = systems.sampler()
    floor = 1.0 if P is None or P is systems.below() else None
    A = systems.A.with_precision(torch.float64)
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
