"""Estimates of predicted variances with estimates of their errors, at the least cost."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.bounds.rounding import DriftBounds, error_of_drift
from kernelcg.inference.gaussian.brackets import tightened, within
from kernelcg.solvers import CholeskyFactor, Status

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior

FACTOR_BLOCKS, FACTOR_COLUMNS = 6, 512
"""Blocks of n numbers a column that a triangular solve and its check hold at once, and columns of one such solve."""

Estimate = tuple[Tensor, Tensor, Status]
"""Variances (t,), their estimated errors (t,), and whether these meet the tolerance."""


def estimated_variances(
    posterior: "Posterior", X: Tensor, drift: DriftBounds, *, latent: bool, callback: Listener | None
) -> Estimate:
    """Return the variances of the latent values at some points: k(x, x) − kᵀA⁻¹k, and the drift's part."""
    A = posterior.A
    K = A.K.cross_block(X, precision=torch.float64).T.contiguous()  # (n, t)
    prior = A.kernel.diagonal(X).detach().clamp_min(0)
    noise, h, G = posterior.visible_noise(prior, latent), posterior.problem.drift(X), posterior.drift_weights
    if isinstance(posterior.bound, Exact):
        explained, error = explained_by_factor(posterior, posterior.bound.P, K, prior, noise)
        left, status = h - K.T @ G.X, Status.CONVERGED
        off = explained.clamp_min(0).sqrt()[:, None] * drift.error
    else:
        V, status = tightened(posterior, K, prior, latent=latent, callback=callback)
        explained, error = (K * V.X + V.X * V.R).sum(0), V.error.square()
        left, off = h - K.T @ G.X - V.X.T @ G.R, V.error[:, None] * drift.error
    off = off + error_of_drift(posterior.problem.drift, X) + posterior.rounding.of_mean(prior.sqrt(), G.X)
    least, middle, most = drift.leverage(left, off)
    of_drift = (most - least) * (most + least) + posterior.rounding.gamma * most.square()
    variance, error = (prior - explained).clamp_min(0.0) + middle.square(), error + of_drift
    if status is Status.CONVERGED and not bool(within(posterior.variance_tolerance, variance, error, noise).all()):
        status = Status.PRECISION_EXHAUSTED
    return variance, error, status


def explained_by_factor(
    posterior: "Posterior", factor: CholeskyFactor, K: Tensor, prior: Tensor, noise: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return kᵀA⁻¹k = ‖L⁻¹k‖² with A = LLᵀ, and an estimate of its rounding error. Costs one triangular solve.

    L is the exact factor of A + E. Where the entries of E are independent and those of row i and column j have the size
    γ √(a_ii a_jj), kᵀA⁻¹k changes by vᵀEv, v = A⁻¹k, of the size γ Σ a_ii v_i², which is at most
    γ max(a_ii) kᵀA⁻¹k / λ. Only where that is too much for the tolerance, v is computed.
    """
    rounding = posterior.rounding
    W = factor.whiten(K)
    explained = W.square().sum(0)
    sizes = rounding.root.square() + rounding.diagonal
    of_sums = rounding.gamma * prior
    error = of_sums + rounding.gamma * sizes.max() / rounding.diagonal.min() * explained
    unsure = ~within(posterior.variance_tolerance, prior - explained, error, noise)
    if bool(unsure.any()):
        V = factor.solve(K[:, unsure])
        error[unsure] = of_sums[unsure] + rounding.gamma * (sizes[:, None] * V.square()).sum(0)
    return explained, error
