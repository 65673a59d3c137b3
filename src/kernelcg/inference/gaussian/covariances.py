"""Covariances of a process given the data between all of some points, and whether they are known to the tolerance."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernelcg.backends.binding import block_beside
from kernelcg.backends.memory import require_memory
from kernelcg.inference.bounds.rounding import Certified, DriftBounds
from kernelcg.inference.gaussian.brackets import (
    NEGLIGIBLE,
    covariance_in_long_double,
    evaluated,
    prior_at,
    tightened,
    within,
)
from kernelcg.inference.learning.criterion_value import drift_coefficients
from kernelcg.solvers import Status

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior


def joint_covariance(posterior: "Posterior", X: Tensor, copies: int, latent: bool) -> tuple[Tensor, Status]:
    """Return the (t, t) covariance of the latent values, if ``copies`` of it fit the memory, and the status.

    With V ≈ A⁻¹K* and R = K* − AV, K*ᵀA⁻¹K* is K*ᵀV + VᵀR up to the product of their errors, as accurate as the
    variance; the drift adds R*ᵀS⁻¹R*. Where rounding may be visible in a variance, long double is used if affordable.
    """
    A, (t, n) = posterior.A, (len(X), len(posterior.problem))
    needed = 8 * ((3 + copies) * t * t + 3 * n * t)
    require_memory(needed, A.memory_budget(), f"the covariance of {t} points (use return_std for the diagonal)")
    K = A.K.cross_block(X, precision=torch.float64).T.contiguous()
    prior = prior_at(posterior, X)
    noise = posterior.visible_noise(prior, latent)
    V, R, error, status = _solved(posterior, K, prior, noise)
    explained = K.T @ V + V.T @ R
    C = block_beside(A.K, X) - 0.5 * (explained + explained.T)
    of_drift, error_of_drift = _of_drift(posterior, X, V, error)

    def is_known() -> bool:
        variance = C.diagonal().clamp_min(0.0) + of_drift.diagonal()
        return bool(within(posterior.variance_tolerance, variance, error + error_of_drift, noise).all())

    known = is_known()
    precise = None if known else covariance_in_long_double(posterior, X, V, prior, noise)
    if precise is not None:
        C, error = precise, torch.zeros_like(error)
        known = is_known()
    if known:
        status = Status.CONVERGED
    elif status is Status.CONVERGED:
        status = Status.PRECISION_EXHAUSTED
    C = C + of_drift
    C.diagonal().clamp_min_(0.0)
    return C, status


def _solved(posterior: "Posterior", K: Tensor, prior: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Status]:
    """Return V ≈ A⁻¹K, K − AV, estimated errors of the variances (t,), and the status.

    Rounding changes kᵀA⁻¹k by about γ (k** + Σ a_ii v_i²), as it does a factor of A.
    """
    rounding, sizes = posterior.rounding, posterior.rounding.root.square() + posterior.rounding.diagonal
    V, R, error, status = torch.empty_like(K), torch.empty_like(K), torch.empty_like(prior), Status.CONVERGED
    for some in torch.arange(len(prior), device=K.device).split(posterior.columns_at_once()):
        columns = K[:, some].contiguous()
        first = posterior.solved(columns, posterior.stopping).solution
        solved, found = tightened(posterior, columns, prior[some], noise=noise[some], start=first)
        V[:, some], R[:, some] = solved.X, solved.R
        rounded = rounding.gamma * (prior[some] + (sizes[:, None] * solved.X.square()).sum(0))
        error[some] = posterior.certifier().energy(solved.R) + rounded
        status = found if status is Status.CONVERGED else status
    return V, R, error, status


def _of_drift(posterior: "Posterior", X: Tensor, V: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return (t, t) what the drift adds, ρᵀS⁻¹ρ with ρ = h − HᵀA⁻¹k, and how far its diagonal may be off."""
    G: Certified = posterior.drift_weights
    b, t = G.X.shape[1], len(X)
    if b == 0:
        return X.new_zeros(t, t), X.new_zeros(t)
    drift: DriftBounds = posterior.drift_bounds()
    negligible = NEGLIGIBLE * math.sqrt(posterior.A.spectrum_floor()) * G.quadratic.clamp_min(0).sqrt()
    explained, off = evaluated(posterior, X, G, -torch.eye(b, dtype=X.dtype, device=X.device), negligible)
    left = -explained - V.T @ G.R
    least, _, most = drift.leverage(left, off + error.clamp_min(0).sqrt()[:, None] * drift.error)
    added = left @ drift_coefficients(posterior.drift_information(), left.T)
    return 0.5 * (added + added.T), (most - least) * (most + least)
