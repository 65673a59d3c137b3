"""The Laplace approximation of the log marginal likelihood and its gradient, by solves with A = SᵀKS + I alone."""

import math
from dataclasses import replace

import torch
from numpy.linalg import LinAlgError

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.adjoint import Adjoint, Sampled, gradient_at
from kernelcg.inference.laplace.evidence_by_pcg import iterative_laplace, with_value
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode, find_mode
from kernelcg.inference.laplace.newton_by_cholesky import DirectSystem, DirectSystems, TracedSystem
from kernelcg.inference.laplace.newton_by_pcg import IterativeSystem
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.inference.laplace.newton_system import NewtonSystem, Spent
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.inference.learning.criterion_value import CriterionValue, impossible
from kernelcg.planning.plan import Method, definite_method
from kernelcg.solvers import Status

LEARNING_RTOL, WARY_RTOL = 1e-3, 1e-6
"""Residual of Newton's method while learning: what it leaves of the gradient is far below the noise of the probes.
Where log p(y | f) is not concave the curvature at the mode may be next to nothing, and f far from it all the same."""

EXACT_RTOL = 1e-9

TIGHT = 1e-10
"""Residual of the solves for points of negative curvature. No bracket counts what they leave, so they leave little: at
1e-6 a bracket missed the evidence of 23 rows by 5e-8."""

NO_FACTOR = (LinAlgError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]  # torch's stubs lack it
"""What is raised where a matrix is not positive definite, or not finite."""

FEW_LATENT_VALUES = 1000
"""Latent values up to which a factor of A is made for its determinant in the iterative method."""


def laplace_estimate(
    problem: Observations,
    gp: LatentProcess,
    method: str = Method.ITERATIVE,
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

    Parameters
    ----------
    problem : the data
    gp : the latent process with its hyperparameters
    method : "direct" or "iterative"
    numerics : how iterative evaluations work
    trail : what an evaluation nearby has left, or None
    value : whether the value is wanted beside the gradient
    errors : whether standard errors of the gradient are wanted
    mode_rtol : of the mode, as in `condition_laplace`; None means what the evaluation needs
    callback : told of every iteration of all solves

    References
    ----------
    Cutajar et al. (2016), supplement (its signs and its divisions by √W: `tests/paper/test_errata.py`, items 8, 10,
    23); Rasmussen & Williams (2006), chapters 3 and 5.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import LatentProcess, Observations, laplace_estimate
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.likelihoods import BernoulliLogit
    >>> X = torch.linspace(0, 6, 60).double()[:, None]
    >>> labels = (torch.sin(X[:, 0]) > 0).double()
    >>> found, trail = laplace_estimate(Observations(X, labels), LatentProcess(RBF(1.0), BernoulliLogit()), "direct")
    >>> found.gradient.shape  # in log lengthscale and log variance
    torch.Size([2])
    """
    gp = gp.with_log_parameters(gp.log_parameters().detach())
    theta, problem = gp.log_parameters(), problem.with_kernel(gp.kernel)
    pivots = trail.pivots if trail and trail.is_near(problem, gp.kernel) else None
    systems = systems_for(problem, gp, method, numerics, pivots, callback)
    start = None if trail is None else trail.f
    enough = LEARNING_RTOL if gp.is_log_concave else WARY_RTOL
    rtol = mode_rtol
    if rtol is None:
        rtol = EXACT_RTOL if definite_method(method) is Method.DIRECT else enough
    try:
        search = find_mode(problem, gp, systems, rtol=rtol, start=start)
        mode, known = search.mode, search.systems
        if mode.status is Status.NOT_FINITE:
            return impossible(len(theta), mode.status), None
        if mode.status is Status.PRECISION_EXHAUSTED and mode_rtol is None and mode.residual <= enough:
            mode = replace(mode, status=Status.CONVERGED)  # rounding came first, but nobody asked for that much
        if isinstance(known, DirectSystems):
            return direct_laplace(problem, gp, mode, known.traced_at(mode.expansion)), LaplaceTrail(mode.f)
        system = known.at(mode.expansion)
    except NO_FACTOR:
        return impossible(len(theta), Status.INDEFINITE_OPERATOR), None
    if not isinstance(system, IterativeSystem):
        raise TypeError("probes are for iterative systems")
    return iterative_laplace(problem, gp, mode, system, numerics, trail, search.spent, value=value, errors=errors)


def direct_laplace(problem: Observations, gp: LatentProcess, mode: Mode, system: TracedSystem) -> CriterionValue:
    """Return value and gradient at the mode with exact traces."""
    N, apart = problem.size, IndefinitePoints.of(problem, gp, system, TIGHT)
    if not apart.exists:
        return impossible(len(gp.log_parameters()), mode.blamed)
    RH = system.unbent(mode.a, TIGHT, problem.H).RH
    blocks = torch.eye(problem.classes, dtype=torch.float64, device=RH.device).repeat(len(problem), 1)
    L = blocks - system.own.reshape(N, -1)  # the diagonal blocks of I − A⁻¹
    sampled = Sampled(L * problem.classes, blocks, RH)
    solved = Adjoint.of(problem, gp, system, apart, sampled, TIGHT)
    pairs = [(0.5 * mode.a - 0.5 * solved.v, mode.a), (-0.5 * apart.N @ apart.B, apart.N)]
    gradient = gradient_at(problem, gp, mode, solved, pairs, -0.5 * system.total)
    value = mode.psi - 0.5 * (system.log_determinant + apart.log_determinant)
    if not math.isfinite(value):
        return impossible(len(gradient), mode.blamed)
    return CriterionValue(value, gradient, 0.0, torch.zeros_like(gradient), value, value, mode.status)


def laplace_value(
    problem: Observations, gp: LatentProcess, mode: Mode, system: NewtonSystem, numerics: Numerics
) -> tuple[CriterionValue, Spent]:
    """Return the value alone, at a mode that is known, and what it took.

    The determinant is exact in the direct method, and for few latent values in the other one, too: there a factor takes
    no time, whereas few probes of few rows may have a standard error that is far too small.
    """
    apart, p = IndefinitePoints.of(problem, gp, system, TIGHT), len(gp.log_parameters())
    if not apart.exists:
        return impossible(p, mode.blamed), apart.spent
    unknown = torch.full((p,), math.nan, dtype=torch.float64)
    if isinstance(system, IterativeSystem) and not _is_small(problem):
        blank = CriterionValue(math.nan, unknown, math.nan, unknown, math.nan, math.nan, mode.status)
        return with_value(blank, mode, system, apart, numerics), apart.spent
    if not isinstance(system, DirectSystem):
        system = DirectSystems(problem, gp).at(mode.expansion)
    value = mode.psi - 0.5 * (system.log_determinant + apart.log_determinant)
    return CriterionValue(value, unknown, 0.0, unknown, value, value, mode.status), apart.spent


def _is_small(problem: Observations) -> bool:
    """Say whether A may be formed and factorised beside everything else."""
    N = problem.size
    share = problem.pricing.sizes.for_columns * problem.points.budget()
    return N <= FEW_LATENT_VALUES and share >= 3 * 8 * N**2
