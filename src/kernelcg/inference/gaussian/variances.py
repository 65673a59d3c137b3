"""Estimates of predicted variances with estimates of their errors, at the least cost."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.bounds.rounding import DriftBounds, error_of_drift
from kernelcg.inference.gaussian.brackets import prior_at, within
from kernelcg.inference.gaussian.explained import Explained, Task
from kernelcg.inference.gaussian.local_variances import explained_iteratively
from kernelcg.inference.gaussian.prediction import Prediction
from kernelcg.solvers import CholeskyFactor, Status

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior

FACTOR_BLOCKS, FACTOR_GROUPS = 6, 4
"""Blocks of n numbers a column that a triangular solve and its check hold at once, and the number of columns of such a
solve in units of the columns that the plan allows at once."""

LOCAL_BLOCKS, LOCAL_GROUPS = 24, 1
"""Blocks and columns, in the same units, of trials from neighbours, with the columns that wait for iterations and those
that are iterated."""

AFFORDABLE = 1e10
"""Entries of K, those of all points together, up to which rigorous brackets are computed where estimates of errors miss
the tolerance: they use long double for what float64 does not tell."""


def estimated(
    posterior: "Posterior", X: Tensor, drift: DriftBounds, *, latent: bool, callback: Listener | None
) -> Prediction:
    """Return the mean and the variances k(x, x) − kᵀA⁻¹k, with the drift's part, and estimates of their errors.

    Where an estimated error misses the tolerance, a rigorous bracket takes its place, if that is affordable.
    """
    prior = prior_at(posterior, X)
    noise = posterior.visible_noise(prior, latent)
    bound = posterior.certifier()
    size = (FACTOR_BLOCKS, FACTOR_GROUPS) if isinstance(bound, Exact) else (LOCAL_BLOCKS, LOCAL_GROUPS)
    task = Task(posterior, X, prior, noise, posterior.columns_at_once(*size), callback)
    found = explained_by_factor(task, bound.P) if isinstance(bound, Exact) else explained_iteratively(task)
    G = posterior.drift_weights
    off = found.distance[:, None] * drift.error + error_of_drift(posterior.problem.drift, X)
    off = off + posterior.rounding.of_mean(prior.sqrt(), G.X)
    least, middle, most = drift.leverage(posterior.problem.drift(X) - found.drift, off)
    of_drift = (most - least) * (most + least) + posterior.rounding.gamma * most.square()
    variance, error = (prior - found.energy).clamp_min(0.0) + middle.square(), found.error + of_drift
    missed = ~within(posterior.variance_tolerance, variance, error, noise)
    if bool(missed.any()) and len(posterior.problem) ** 2 * int(missed.sum()) <= AFFORDABLE:
        variance[missed], error[missed] = _closer(posterior, X[missed], variance[missed], error[missed], latent)
        missed = ~within(posterior.variance_tolerance, variance, error, noise)
    failed = found.status if found.status is not Status.CONVERGED else Status.PRECISION_EXHAUSTED
    status = failed if bool(missed.any()) else Status.CONVERGED
    return Prediction(posterior.mean(X), None, variance, error, status=status)


def _closer(posterior: "Posterior", X: Tensor, variance: Tensor, error: Tensor, latent: bool) -> tuple[Tensor, Tensor]:
    """Return the variances from their rigorous brackets with the errors these leave, where that is less."""
    found, left = posterior.predict(X, variance=True, bound=True, latent=latent).known_variance()
    better = left < error
    return torch.where(better, found, variance), torch.where(better, left, error)


def explained_by_factor(task: Task, factor: CholeskyFactor) -> Explained:
    """Return kᵀA⁻¹k = ‖L⁻¹k‖² with A = LLᵀ, and estimates of its rounding error: one triangular solve a point."""
    parts: list[Explained] = []
    for points in torch.arange(len(task.X), device=task.X.device).split(task.columns):
        parts.append(_by_factor(task, factor, points))
        task.tell_of(parts)
    return Explained.joined(parts)


def _by_factor(task: Task, factor: CholeskyFactor, points: Tensor) -> Explained:
    """Return what the data explain at some points.

    L is the exact factor of A + E. Where the entries of E are independent and of the size γ √(a_ii a_jj), kᵀA⁻¹k
    changes by vᵀEv, v = A⁻¹k, of the size γ Σ a_ii v_i², which is at most γ max(a_ii) kᵀA⁻¹k / λ. Only where that is
    too much for the tolerance, v is computed.
    """
    K = task.kernel(points)
    energy = factor.whiten(K).square().sum(0)
    rounding, prior = task.posterior.rounding, task.prior[points]
    sizes = rounding.root.square() + rounding.diagonal
    error = rounding.gamma * (prior + sizes.max() / rounding.diagonal.min() * energy)
    unsure = error > task.allowed(points, energy, error)
    if bool(unsure.any()):
        V = factor.solve(K[:, unsure])
        error[unsure] = rounding.gamma * (prior[unsure] + (sizes[:, None] * V.square()).sum(0))
    drift = K.T @ task.posterior.drift_weights.X
    return Explained(points, energy, error, drift, energy.clamp_min(0).sqrt())
