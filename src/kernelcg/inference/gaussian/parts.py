"""The summands of a process given the data: mean and variance of each part of a sum kernel, and of the drift."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelcg.inference.gaussian.brackets import evaluated, tightened
from kernelcg.inference.gaussian.model import GaussianProcess
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.criterion_value import drift_coefficients
from kernelcg.kernels import Kernel
from kernelcg.solvers import Status


def part(
    posterior: Posterior, kernel: Kernel, X: Tensor, *, variance: bool = True
) -> tuple[Tensor, Tensor | None, Status]:
    """Return (t, c) means and, if asked for, (t,) variances of the summand with this kernel, and the status.

    With k = kernel(X, x) and A, a, H, S of the whole process: kᵀa, and k(x, x) − kᵀA⁻¹k + (HᵀA⁻¹k)ᵀS⁻¹HᵀA⁻¹k. The
    variances are known to the tolerance of the posterior, relative to themselves and the noise.
    """
    X, G = posterior.checked_inputs(X), posterior.drift_weights
    mean, status = _mean(posterior, kernel, X)
    if not variance:
        return mean, None, status
    bound, variances = posterior.problem.points.bind(kernel.detached()), []
    for some in X.split(posterior.columns_at_once()):
        K = bound.cross_block(some, precision=torch.float64).T.contiguous()  # (n, t)
        prior = kernel.diagonal(some).detach().clamp_min(0)
        V, found = tightened(posterior, K, prior, noise=posterior.visible_noise(prior, latent=False))
        left_over = prior - V.quadratic
        if posterior.problem.H.shape[1]:
            left = (K.T @ G.X + V.X.T @ G.R).T  # HᵀA⁻¹k, (b, t)
            left_over = left_over + (left * drift_coefficients(posterior.drift_information(), left)).sum(0)
        variances.append(left_over.clamp_min(0.0))
        status = found if status is Status.CONVERGED else status
    return mean, torch.cat(variances), status


def _mean(posterior: Posterior, kernel: Kernel, X: Tensor) -> tuple[Tensor, Status]:
    """Return kᵀa, in long double where rounding in float64 might be visible, and whether it then still might."""
    own = replace(posterior, gp=GaussianProcess(kernel.detached(), posterior.gp.noise))
    visible = posterior.visible_error()
    mean, off = evaluated(own, X, posterior.weights, torch.zeros_like(posterior.beta), visible)
    return mean, Status.PRECISION_EXHAUSTED if bool((off > visible).any()) else Status.CONVERGED


def drift_part(posterior: Posterior, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return (t, c) means and (t,) variances of the drift: h(x)ᵀβ and h(x)ᵀS⁻¹h(x), S = HᵀA⁻¹H."""
    h = posterior.problem.drift(posterior.checked_inputs(X)).T  # (b, t)
    variance = (h * drift_coefficients(posterior.drift_information(), h)).sum(0)
    return h.T @ posterior.beta, variance.clamp_min(0.0)
