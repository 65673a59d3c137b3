"""Rigorous bounds on the errors of predicted means, and brackets of predicted variances."""

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.bounds.recomputed import LongDouble
from kernelcg.inference.bounds.rounding import (
    ENTRY_ERROR,
    UNIT_ROUNDOFF,
    Certified,
    DriftBounds,
    certified,
    error_of_drift,
)
from kernelcg.inference.gaussian.gaps import MOST_STEPS
from kernelcg.inference.gaussian.prediction import Prediction
from kernelcg.solvers import Status
from kernelcg.solvers.energy_descent import energy_descent

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior

TIGHTENINGS = 5
"""Solves, each to a smaller residual than the one before, after which a bracket is not narrowed any more."""

NEGLIGIBLE = 1e-4
"""Rounding error of a mean, in standard deviations of the noise, up to which it is not recomputed in long double."""

OPERATIONS = 2e8
"""Operations in long double for one block of points, about two seconds of one core."""

MOST_POINTS = 1000
"""Points up to which their covariance may be computed in long double: 16 MB, and three seconds of one core."""


def bounded_mean(posterior: "Posterior", X: Tensor, drift: DriftBounds) -> Prediction:
    """Return the mean at some points and a bound of its error, without any solve.

    With β̂ and â for the drift and the weights, ρ = h − HᵀA⁻¹k and e = A⁻¹(Y − Hβ̂) − â, the mean is off by
    ρᵀ(β̂ − β) − kᵀe. The first part is at most ‖ρ‖_{S⁻¹} ‖β̂ − β‖_S, the second (kᵀA⁻¹k)^½ ‖e‖_A. What rounding may do is
    added to each.
    """
    at = _AtPoints(posterior, X, drift)
    rounded = posterior.rounding.norm_of_residual_error(torch.zeros_like(at.K), at.root)
    explained = torch.minimum(at.most, posterior.certifier().energy(at.K).sqrt() + rounded)
    high = drift.leverage(at.h_left, at.h_error + explained[:, None] * drift.error)[2]
    bound = explained[:, None] * at.error + high[:, None] * drift.coefficients + at.evaluation
    return Prediction(at.mean, bound)


def bracketed(
    posterior: "Posterior", X: Tensor, drift: DriftBounds, *, latent: bool, callback: Listener | None
) -> Prediction:
    """Return mean and variance at some points, with a bound of the one's error and a bracket of the other.

    With v ≈ A⁻¹k, 2 kᵀv − vᵀAv ≤ kᵀA⁻¹k ≤ the same + ‖v − A⁻¹k‖²_A, and beside the bound of `bounded_mean` the mean has
    |vᵀ(Y − Hβ̂ − Aâ)| + ‖v − A⁻¹k‖_A ‖e‖_A for its second part.
    """
    at, noise = _AtPoints(posterior, X, drift), posterior.visible_noise(prior_at(posterior, X), latent)
    V, status = tightened(posterior, at.K, at.prior, noise=noise, callback=callback)
    V, of_prior = _narrowed(posterior, X, V, at.prior, noise)
    least, rounded = V.quadratic, V.quadratic_error + of_prior
    explained = torch.minimum(at.most, (least + V.error.square() + rounded).clamp_min(0).sqrt())
    length = (explained + V.error)[:, None]  # ≥ ‖v‖_A
    h_left = at.h_left - V.X.T @ posterior.drift_weights.R
    h_error = at.h_error + length * drift.floor + V.error[:, None] * drift.error
    drift_low, drift_middle, drift_high = drift.leverage(h_left, h_error)
    rounding = posterior.rounding.of_projections(V.X, posterior.weights)
    by_solution = (V.X.T @ posterior.weights.R).abs() + V.error[:, None] * at.error
    by_solution = by_solution + torch.minimum(rounding, length * posterior.weights.floor) + length * drift.right
    bound = torch.minimum(by_solution, explained[:, None] * at.error)
    bound = bound + drift_high[:, None] * drift.coefficients + at.evaluation
    low = (at.prior - least - V.error.square() - rounded).clamp_min(0.0) + drift_low.square()
    high = (at.prior - least + rounded).clamp_min(0.0) + drift_high.square()
    middle = 0.5 * (low + high)
    known = within(posterior.variance_tolerance, middle, 0.5 * (high - low), noise)
    likely = (at.prior - least - 0.5 * V.error.square()).clamp_min(0.0) + drift_middle.square()
    variance = torch.where(known, middle, likely)
    error = torch.maximum(high - variance, variance - low)
    if bool(known.all()):
        status = Status.CONVERGED
    elif status is Status.CONVERGED:
        status = Status.PRECISION_EXHAUSTED
    return Prediction(at.mean, bound, variance, error, low, high, status)


def within(tolerance: float, variance: Tensor, error: Tensor, noise: Tensor) -> Tensor:
    """Return for each point whether the error is within the tolerance relative to variance and noise."""
    return error <= tolerance * ((variance - error).clamp_min(0.0) + noise)


def prior_at(posterior: "Posterior", X: Tensor) -> Tensor:
    """Return k(x, x), (t,)."""
    return posterior.A.kernel.diagonal(X).detach().clamp_min(0)


def _narrowed(
    posterior: "Posterior", X: Tensor, V: Certified, prior: Tensor, noise: Tensor
) -> tuple[Certified, Tensor]:
    """Return V with residuals in long double where those of float64 leave too wide a bracket, if that is affordable.

    Beside it is how far k(x, x) may be off, which is compared with one in long double at the same points.
    """
    of_prior = (ENTRY_ERROR + X.shape[1]) * UNIT_ROUNDOFF * prior
    width = V.error.square() + 2 * (V.quadratic_error + of_prior)
    wide = ~within(posterior.variance_tolerance, prior - V.quadratic, width, noise)
    precise = LongDouble.of(posterior.problem.system(posterior.gp), int(wide.sum()), OPERATIONS)
    if precise is None or not bool(wide.any()):
        return V, of_prior
    found = precise.certified(V.R[:, wide], V.X[:, wide], posterior.certifier(), points=X[wide])
    parts = {}
    for name in (field.name for field in fields(V) if field.name not in ("gamma", "tail")):
        parts[name] = getattr(V, name).clone()
        parts[name][..., wide] = getattr(found, name)
    of_prior[wide] = torch.minimum(of_prior[wide], precise.error_of_diagonal(X[wide], prior[wide]))
    return replace(V, **parts), of_prior


def covariance_in_long_double(
    posterior: "Posterior", X: Tensor, V: Tensor, prior: Tensor, noise: Tensor
) -> Tensor | None:
    """Return K** − K*ᵀA⁻¹K* from V ≈ A⁻¹K*, if that is affordable and the variances then meet the tolerance."""
    precise = LongDouble.of(posterior.problem.system(posterior.gp), len(X), OPERATIONS)
    if precise is None or len(X) > MOST_POINTS:
        return None
    found = precise.certified(V, V, posterior.certifier(), points=X)
    error = found.error.square() + found.quadratic_error + precise.error_of_diagonal(X, prior)
    met = bool(within(posterior.variance_tolerance, prior - found.quadratic, error, noise).all())
    return precise.unexplained(X, V) if met else None


def tightened(
    posterior: "Posterior",
    K: Tensor,
    prior: Tensor,
    *,
    noise: Tensor,
    start: Tensor | None = None,
    callback: Listener | None = None,
) -> tuple[Certified, Status]:
    """Solve A V = K until the variance is known to the tolerance, relative to itself and the noise, or no better.

    The first iterations end where the bound of rᵀA⁻¹r that their own residuals give is small enough. If recomputed
    residuals show that it is not, solves to smaller and smaller residuals follow.
    """
    A, tolerance = posterior.problem.system(posterior.gp), posterior.variance_tolerance
    root, status = prior.clamp_min(0).sqrt(), Status.CONVERGED
    X = _descended(posterior, K, prior, noise, callback) if start is None else start
    for attempt in range(TIGHTENINGS + 1):
        V = certified(A, K, X, posterior.certifier(), posterior.rounding, root)
        known = (prior - V.quadratic - V.error.square()).clamp_min(0.0) + noise
        excess = float((V.error.square() / known.clamp_min(1e-300)).max()) / tolerance
        if excess <= 1:
            return V, Status.CONVERGED
        exhausted = float(V.floor.max()) > 0.5 * float(V.error.max())
        if status is not Status.CONVERGED or exhausted or attempt == TIGHTENINGS:
            break
        atol = 0.5 * float(V.R.norm(dim=0).max()) / math.sqrt(excess)
        report = posterior.solved(K, replace(posterior.stopping, rtol=0.0, atol=atol), X, callback)
        X, status = report.solution, report.status
    return V, status if status is not Status.CONVERGED else Status.PRECISION_EXHAUSTED


def _descended(posterior: "Posterior", K: Tensor, prior: Tensor, noise: Tensor, callback: Listener | None) -> Tensor:
    """Return V ≈ A⁻¹K from P⁻¹K by block PCG, until the bound of rᵀA⁻¹r is below half of what is allowed."""
    A, P, bound = posterior.A, posterior.constant_preconditioner(), posterior.certifier()
    V = P.solve(K)
    if isinstance(bound, Exact):
        return V
    R = K - A @ V
    upper = prior - (K * V + V * R).sum(0)

    def wants_more(columns: Tensor, R: Tensor, energies: Tensor, gains: Tensor) -> Tensor:
        error = bound.energy(R)
        known = (upper[columns] - gains - error).clamp_min(0.0) + noise[columns]
        return error > 0.5 * posterior.variance_tolerance * known

    return energy_descent(A, P, V, R, wants_more, max_steps=MOST_STEPS, callback=callback).V


class _AtPoints:
    """What the bounds at some points have in common: the kernel, the mean, and what rounding does to it."""

    def __init__(self, posterior: "Posterior", X: Tensor, drift: DriftBounds):
        A, rounding, weights = posterior.A, posterior.rounding, posterior.weights
        self.K = A.K.cross_block(X, precision=torch.float64).T.contiguous()  # (n, t)
        self.prior = prior_at(posterior, X)
        self.root = self.prior.sqrt()
        self.most = (1 + rounding.gamma) * self.root  # ≥ (kᵀA⁻¹k)^½
        negligible, G = NEGLIGIBLE * math.sqrt(A.spectrum_floor()), posterior.drift_weights
        self.mean, self.evaluation = evaluated(posterior, X, weights, posterior.beta, negligible)
        one = torch.eye(G.X.shape[1], dtype=X.dtype, device=X.device)
        explained, self.h_error = evaluated(posterior, X, G, -one, negligible * G.quadratic.clamp_min(0).sqrt())
        self.h_left = -explained  # h − Gᵀk
        self.error = weights.error + drift.right  # ≥ ‖e‖_A, (c,)


def evaluated(
    posterior: "Posterior", X: Tensor, weights: Certified, beta: Tensor, negligible: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return (t, c) k(x, X)a + h(x)β for weights a, and how far rounding may move that.

    It comes from float64, or where that leaves more than what is ``negligible`` from long double, if affordable.
    """
    problem, root = posterior.problem, prior_at(posterior, X).sqrt()
    off = posterior.rounding.of_mean(root, weights.X) + error_of_drift(problem.drift, X) @ beta.abs()
    if bool((off > negligible).any()):
        precise = LongDouble.of(problem.system(posterior.gp), weights.X.shape[1], OPERATIONS, rows=len(X))
        if precise is not None:
            return precise.mean(X, weights, problem.drift, beta, root)
    return problem.system(posterior.gp).K.cross(X, weights.X) + problem.drift(X) @ beta, off
