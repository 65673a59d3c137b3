"""The log marginal likelihood and its gradient by preconditioned conjugate gradients: no n × n matrix, no n³."""

import math
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.events import Listener
from kernelcg.inference.bounds.evidence_rounding import rounding_of_iterated
from kernelcg.inference.bounds.lower_bound import LowerBound
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import (
    CriterionValue,
    generalised_least_squares,
    groups,
    impossible,
    log_density,
    standard_error,
)
from kernelcg.operators import ConstantInvertible, KernelPlusDiagonal
from kernelcg.planning import Kept
from kernelcg.preconditioners import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder
from kernelcg.randomness import child, rademacher, seeded
from kernelcg.solvers import SolveReport, Status, Stopping, log_determinant

NEARBY = 1.0
"""Change of a log hyperparameter over which the rows of the low-rank part are kept, so that the estimate is smooth."""

NO_PIVOTS = torch.zeros(0, dtype=torch.int64)

FATAL = (Status.INDEFINITE_OPERATOR, Status.NOT_FINITE)

FINEST = 1e-10
"""Relative residual of solves for the log marginal likelihood that is as good as none, also where 0 was asked for."""


@dataclass(frozen=True)
class Numerics:
    """How an iterative evaluation works.

    Parameters
    ----------
    probes : number of random columns with which traces are estimated
    stopping : limits of the linear solves; its rtol is that of errors in the norm of A⁻¹, relative to √n, which is
        what data from the model have: see `tolerable`. Laplace's approximation takes 1e-3 at most
    preconditioner : "auto", the name of a recipe or a recipe
    seed : of the probes; the same seed at all hyperparameters makes the estimate a smooth, deterministic function
    rademacher : probes of random signs, as in the paper, instead of those drawn from the low-rank part
    """

    probes: int = 8
    stopping: Stopping = Stopping(rtol=0.03)
    preconditioner: str | Preconditioner | None = "auto"
    seed: int = 0
    rademacher: bool = False

    def __post_init__(self) -> None:
        if self.probes < 1:
            raise ValueError(f"probes must be at least 1, not {self.probes}")


@dataclass(frozen=True, eq=False)
class Trail:
    """What an evaluation leaves to the next one nearby: first guesses, a preconditioner, the origin of its probes."""

    solutions: Tensor
    kept: Kept | None
    pivots: Tensor
    """Rows of the low-rank P ⪯ A."""
    chosen_at: Tensor
    """(p,) the log hyperparameters at which the pivots, or the frozen probes, were chosen."""
    frozen: "Probes | None" = None
    """Probes that do not depend on the hyperparameters."""
    probes: int = 0
    """Columns of the solutions, the last ones, that belong to probes."""
    kept_at: Tensor | None = None
    """(p,) the log hyperparameters at which the preconditioner was built."""

    def lean(self) -> "Trail":
        """Return the trail without the preconditioner, with O(n) numbers a column, to be stored."""
        return self if self.kept is None else replace(self, kept=self.kept.lean())

    def restored(self, problem: Regression, gp: GaussianProcess) -> "Trail":
        """Return the trail with the preconditioner that it had; ``gp`` is of the same kind, at any hyperparameters."""
        device, kept = problem.X.device, self.kept
        if kept is not None and self.kept_at is not None:
            kept = kept.restored(problem.fast_system(gp.with_log_parameters(self.kept_at)))
        frozen = None if self.frozen is None else self.frozen.on(device)
        return replace(self, solutions=self.solutions.to(device), kept=kept, frozen=frozen)

    def without_probes(self) -> "Trail":
        """Return the trail for an evaluation with other probes: first guesses for the old ones are left out."""
        solutions = self.solutions.clone()
        solutions[:, solutions.shape[1] - self.probes :] = 0.0
        return replace(self, solutions=solutions, frozen=None)


@dataclass(frozen=True, eq=False)
class Probes:
    """(n, k) columns w and z with E[w zᵀ] = I, and the P ⪯ A that serves as control variate if w ~ N(0, P)."""

    W: Tensor
    Z: Tensor
    bound: LowerBound | None = None

    def on(self, device: torch.device) -> "Probes":
        """Return the columns on another device."""
        return replace(self, W=self.W.to(device), Z=self.Z.to(device))

    @classmethod
    def signs(cls, problem: Regression, k: int, generator: Generator) -> Self:
        """Return random signs for both."""
        R = rademacher(len(problem), k, generator, like=problem.X)
        return cls(R, R)

    @classmethod
    def drawn(cls, P: ConstantInvertible, k: int, generator: Generator, bound: LowerBound | None = None) -> Self:
        """Return w ~ N(0, P), put on a sphere, and z = P⁻¹w."""
        W = P.sample(generator, k)
        Z = P.solve(W)
        radius = ((W * Z).sum(0) / len(W)).sqrt()
        return cls(W / radius, Z / radius, bound)


def iterative_estimate(
    problem: Regression,
    gp: GaussianProcess,
    numerics: Numerics = Numerics(),
    trail: Trail | None = None,
    *,
    value: bool = True,
    errors: bool = False,
    callback: Listener | None = None,
) -> tuple[CriterionValue, Trail | None]:
    r"""Return the log marginal likelihood, its gradient, and what helps the next evaluation.

    .. math:: g_i = \tfrac12 a^\top \partial_i A\, a - \tfrac12 \operatorname{tr}(A^{-1} \partial_i A)

    with a = A⁻¹(y − Hβ) and the trace from `Traces`. One block solve with y, H and the probes, one pass for the
    gradient in all hyperparameters, and if the ``value`` is wanted a Lanczos process of its own; ``errors`` asks for
    standard errors of the gradient, four more passes.

    Parameters
    ----------
    problem : the data
    gp : the process with its hyperparameters
    numerics : how the evaluation works
    trail : what an evaluation nearby has left, or None
    value : whether the value is wanted beside the gradient
    errors : whether standard errors of the gradient are wanted
    callback : told of every iteration of the solve

    References
    ----------
    Cutajar et al. (2016), section 3.3 (signs of its gradient: `tests/paper/test_errata.py`); Wenger et al. (2022).

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Regression, iterative_estimate
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 60).double()[:, None]
    >>> found, trail = iterative_estimate(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.01))
    >>> found.gradient.shape  # in log lengthscale, log variance and log noise
    torch.Size([3])
    """
    theta = gp.log_parameters().detach()
    gp = gp.with_log_parameters(theta)  # what is built here can be built again from theta, to the last bit
    A = problem.fast_system(gp)
    c, b, k, sizes = problem.Y.shape[1], problem.H.shape[1], numerics.probes, problem.pricing.sizes
    while True:  # once, or twice where the first solve shows that other probes are better
        near = trail is not None and float((theta - trail.chosen_at).abs().max()) <= NEARBY
        probes = _probes(problem, A, numerics, trail if near else None, None if value else sizes.bound_rank)
        B, start = torch.cat([problem.centred, problem.H, probes.W], dim=1), None if trail is None else trail.solutions
        report, kept, kept_at = solve_nearby(problem, A, B, numerics, trail, theta, start=start, callback=callback)
        if report.status in FATAL or not bool(report.solution.isfinite().all()):
            return impossible(len(theta), report.status), None
        pivots = probes.bound.pivots if probes.bound else trail.pivots if trail else NO_PIVOTS
        chosen_at = trail.chosen_at if trail and near else theta
        after = Trail(report.solution, kept, pivots, chosen_at, trail.frozen if trail and near else None, k, kept_at)
        trail = None if near or numerics.rademacher else _frozen(after, A, numerics)
        if trail is None:
            break
    solved_Y, solved_H, U = report.solution.split([c, b, k], dim=1)
    beta, a = generalised_least_squares(problem.H, solved_Y, solved_H)
    exact = A.with_precision(torch.float64)
    traces = Traces(exact, probes, gp.noise.variance.item(), U)
    gradient = traces.gradient(a)
    unknown = torch.full_like(gradient, math.nan)
    error = 0.5 * c * traces.standard_error() if errors else unknown
    estimate = CriterionValue(math.nan, gradient, math.nan, error, math.nan, math.nan, report.status, report)
    if value:
        bound = probes.bound or LowerBound.of(exact, child(seeded(numerics.seed), "pivots"), sizes=sizes)
        estimate = with_value(estimate, problem, gp, a, beta, bound, numerics)
    return estimate, after


def _probes(
    problem: Regression, A: KernelPlusDiagonal, numerics: Numerics, trail: Trail | None, rank: int | None
) -> Probes:
    """Return the probes of the trail, for the present hyperparameters, or new ones from a low-rank P ⪯ A."""
    source = seeded(numerics.seed)
    if numerics.rademacher:
        return Probes.signs(problem, numerics.probes, child(source, "probes"))
    if trail and trail.frozen:
        return trail.frozen
    exact = A.with_precision(torch.float64)
    if trail and len(trail.pivots):
        bound = LowerBound.at(exact, trail.pivots)
    else:
        bound = LowerBound.of(exact, child(source, "pivots"), rank, problem.pricing.sizes)
    return Probes.drawn(bound.P, numerics.probes, child(source, "probes"), bound)


def _frozen(trail: Trail, A: KernelPlusDiagonal, numerics: Numerics) -> Trail | None:
    """Return the trail with probes drawn once and for all from its preconditioner, if that has neighbours.

    Where lengthscales are short no low-rank P is near A, and probes from it are hardly better than signs.
    """
    prepared = trail.kept.prepared if trail.kept else None
    if not isinstance(prepared, LowRankAndRemainder) or prepared.neighbours == 0:
        return None
    generator = child(seeded(numerics.seed), "frozen probes")
    probes = Probes.drawn(prepared.factor(A.scale, A.diagonal), numerics.probes, generator)
    return replace(trail.without_probes(), frozen=probes)


def tolerable(A: KernelPlusDiagonal, B: Tensor, stopping: Stopping) -> Stopping:
    """Return the stopping rule that resolves the noise: rᵀA⁻¹r ≤ ‖r‖²/λ ≤ rtol² n for every column, λ the least of D.

    The gradient's own error is then ε (∂A a)ᵀA⁻¹r, small beside the √n of its statistical error, however large y is
    beside the noise. A column is never solved less well than rtol of itself.
    """
    largest = float(B.norm(dim=0).max())
    resolved = math.sqrt(A.spectrum_floor() * len(A)) / largest if largest > 0 else 1.0
    return replace(stopping, rtol=stopping.rtol * min(resolved, 1.0))


def solve_nearby(
    problem: Regression,
    A: KernelPlusDiagonal,
    B: Tensor,
    numerics: Numerics,
    trail: Trail | None,
    theta: Tensor,
    *,
    start: Tensor | None,
    callback: Listener | None,
) -> tuple[SolveReport, Kept | None, Tensor | None]:
    """Solve A X = B as an evaluation at θ needs it, with the preconditioner of the last one while that pays.

    Returned are the report, the preconditioner to keep, and the log hyperparameters at which it was built.
    """
    stopping, generator = tolerable(A, B, numerics.stopping), child(seeded(numerics.seed), "preconditioner")
    if numerics.preconditioner == "auto":
        kept = None if trail is None else trail.kept
        report, after = planning.solve_reusing(
            A, B, kept, start=start, stopping=stopping, callback=callback, generator=generator, pricing=problem.pricing
        )
        is_old = trail is not None and kept is not None and after.prepared is kept.prepared
        return report, after, trail.kept_at if trail is not None and is_old else theta
    chosen = numerics.preconditioner
    report = planning.solve(
        A, B, preconditioner=chosen, start=start, stopping=stopping, callback=callback, generator=generator
    )
    return report, None, None


@dataclass(frozen=True, eq=False)
class Traces:
    r"""Estimates of tr(A⁻¹ ∂A) in all log hyperparameters, the noise last, from U = A⁻¹W and Z with E[W Zᵀ] = I.

    .. math:: \operatorname{tr}(A^{-1} \partial A) = \operatorname{tr}(P^{-1} \partial P)
        + \mathrm{E}\, [(A^{-1} w)^\top \partial A\, z - z^\top \partial P\, z], \qquad w \sim N(0, P),\; z = P^{-1} w

    or, without P as a control variate, the mean of (A⁻¹w)ᵀ ∂A z alone. Both are unbiased. Drawing from P makes the
    matrix whose trace is sampled nearly symmetric: its variance is then the Fisher information, which signs may exceed
    by the condition number of A; where P is close to A the difference takes out most of the rest.
    """

    A: KernelPlusDiagonal
    probes: Probes
    noise: float
    U: Tensor

    @property
    def bound(self) -> LowerBound | None:
        """Return the control variate P."""
        return self.probes.bound

    def gradient(self, a: Tensor) -> Tensor:
        """Return ½ Σ_c a_cᵀ ∂A a_c − ½ c tr(A⁻¹ ∂A), both in one pass over the matrix."""
        Z, half = self.probes.Z, 0.5 * a.shape[1]
        share = -half / Z.shape[1]
        found = self.pairs(torch.cat([0.5 * a, share * self.U], dim=1), torch.cat([a, Z], dim=1))
        if self.bound is None:
            return found
        exact = torch.cat([self.bound.trace_gradient(), self._by_noise(self.bound.trace_of_inverse())])
        return found - half * (exact - self._by_bound(Z))

    def standard_error(self) -> Tensor:
        """Return the standard error of tr(A⁻¹ ∂A) over all probes; NaN for one."""
        return standard_error([self._sampled(some) for some in groups(self.U.shape[1])])

    def _sampled(self, probes: slice) -> Tensor:
        """Return the part that varies from probe to probe."""
        U, Z = self.U[:, probes], self.probes.Z[:, probes]
        sampled = self.pairs(U / Z.shape[1], Z)
        return sampled if self.bound is None else sampled - self._by_bound(Z)

    def _by_bound(self, Z: Tensor) -> Tensor:
        """Return the mean of zᵀ ∂P z."""
        bound, scaled = cast(LowerBound, self.bound), Z / Z.shape[1]
        return torch.cat([bound.gradient(scaled, Z), self._by_noise((scaled * Z).sum())])

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Return Σ_j left_jᵀ ∂A right_j."""
        by_kernel = self.A.kernel_gradient(left, right).cpu()
        return torch.cat([by_kernel, self._by_noise((left * right).sum())])

    def _by_noise(self, trace: Tensor | float) -> Tensor:
        return torch.tensor([self.noise * float(trace)], dtype=torch.float64)


def with_value(
    estimate: CriterionValue,
    problem: Regression,
    gp: GaussianProcess,
    a: Tensor,
    beta: Tensor,
    bound: LowerBound,
    numerics: Numerics,
) -> CriterionValue:
    """Return the estimate with its value, `log_density` of b = Y − Hβ.

    With r = b − Aa in float64, bᵀA⁻¹b lies between bᵀa + aᵀr and that plus rᵀP⁻¹r.
    """
    (n, c), A = problem.Y.shape, problem.system(gp)
    b = problem.centred - problem.H @ beta
    r = b - A @ a
    least = float((b * a + a * r).sum())
    width = float(bound.energy(r).sum())
    generator = child(seeded(numerics.seed), "log determinant")
    found = log_determinant(A, max(numerics.probes, 2), generator, preconditioner=bound.P, spectrum_floor=1.0)
    return replace(
        estimate,
        value=log_density(n, c, least, found.value),
        value_error=0.5 * c * found.standard_error,
        lower=log_density(n, c, least + width, found.upper),
        upper=log_density(n, c, least, found.lower),
        rounding=rounding_of_iterated(problem, A, beta, a, bound),
        status=estimate.status if found.status is Status.CONVERGED else found.status,
    )
