"""The average information: a curvature of the log marginal likelihood that costs a few products and solves."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelcg.kernels import Stationary
from kernelcg.operators import KernelPlusDiagonal

OUTPUTS = 4
"""Columns of Y, the first ones, from which the curvature is estimated: the others would change it little."""


def average_information(
    A: KernelPlusDiagonal, a: Tensor, noise: float, whiten: Callable[[Tensor], Tensor]
) -> Tensor | None:
    r"""Return (p, p) an estimate of the negative Hessian in the log hyperparameters; None for kernels without formula.

    .. math:: \tfrac12 \sum_c a_c^\top\, \partial_i A\, A^{-1}\, \partial_j A\, a_c

    is positive semi-definite. Its mean over data from the model is the Fisher information, and for an A that is linear
    in its parameters it is the mean of that and of the negative Hessian itself. For each of the columns it takes 2d + 2
    products with n × n matrices and, with A = LLᵀ, one substitution L⁻¹ for p right-hand sides.

    Parameters
    ----------
    a : (n, c) weights A⁻¹(Y − Hβ)
    noise : the learned variance of the noise, the last hyperparameter
    whiten : returns L⁻¹R for R of shape (n, k)

    References
    ----------
    Gilmour, Thompson & Cullis (1995), Biometrics 51: 1440-1450.
    """
    kernel = A.kernel
    if A.scale is not None or not isinstance(kernel, Stationary) or kernel.slope() is None:
        return None
    count = min(a.shape[1], OUTPUTS)
    found = [whiten(_derivative_products(A, kernel, a[:, column : column + 1], noise)) for column in range(count)]
    return 0.5 * a.shape[1] / count * sum((U.T @ U for U in found), torch.zeros(())).cpu()


def _derivative_products(A: KernelPlusDiagonal, kernel: Stationary, a: Tensor, noise: float) -> Tensor:
    r"""Return (n, p) the columns ∂_i A a, with i for the lengthscales, σ² and the noise.

    With x in lengthscales and w the slope of the kernel,
    :math:`\sum_j w_{ij} (x_{ir} - x_{jr})^2 a_j = x_{ir}^2 (Wa)_i - 2 x_{ir} (W x_r a)_i + (W x_r^2 a)_i`.
    """
    slope, d = kernel.slope(), A.X.shape[1]
    if slope is None:
        raise TypeError(f"{kernel!r} has no slope")
    x = A.K.points.centred / kernel.lengthscale.detach().to(A.X.device)
    W = A.K.with_kernel(slope).product(torch.cat([a, x * a, x.square() * a], dim=1), precision=torch.float64)
    zeroth, first, second = W.split([1, d, d], dim=1)
    by_lengthscale = x.square() * zeroth - 2 * x * first + second
    if kernel.lengthscale.numel() == 1:
        by_lengthscale = by_lengthscale.sum(1, keepdim=True)
    return torch.cat([by_lengthscale, A.K.product(a, precision=torch.float64), noise * a], dim=1)
