"""The Laplacian kernel: exponential in the sum of absolute differences."""

import math
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.distances import LARGEST
from kernelcg.kernels.stationary import per_feature


class Laplacian(Kernel):
    r"""k(x, y) = :math:`\sigma^2 \exp(-\sum_r |x_r - y_r| / l_r)`.

    It is the product of Matérn kernels with ν = 1/2 of one feature each. Its spectral density is a product of
    Cauchy densities, one for each feature.

    Parameters
    ----------
    lengthscale : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Laplacian
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Laplacian(1.0)(X, X)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    lengthscale: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    @property
    def is_stationary(self) -> bool:
        return True

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        rates = self.lengthscale.reciprocal().expand(X.shape[1])
        total: Tensor = _AbsoluteDistances.apply(X, Y, rates)  # type: ignore[no-untyped-call]
        return self.variance * torch.exp(-total)

    def diagonal(self, X: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return X / self.lengthscale.detach().to(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return Σ_r |x_ir| in lengthscales."""
        return self.coordinates(X).abs().sum(1)

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Draw independent Cauchy frequencies tan(π (u − 1/2)) / l_r with u uniform in [0, 1)."""
        per_feature(self.lengthscale, d, "lengthscale")
        u = torch.rand(count, d, generator=generator, dtype=torch.float64)
        return torch.tan(math.pi * (u - 0.5)) / self.lengthscale


class _AbsoluteDistances(torch.autograd.Function):
    """Σ_r c_r |x_ir − y_jr| for rates c, feature by feature, forwards and backwards, with derivative 0 at 0.

    One (n, m) scratch tile is used whatever the number of features, and none is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Y: Tensor, rates: Tensor) -> Tensor:
        ctx.save_for_backward(X, Y, rates)
        total = X.new_zeros(len(X), len(Y))
        difference = torch.empty_like(total)
        for x, y, rate in zip(X.T, Y.T, rates.tolist(), strict=True):
            torch.sub(x[:, None], y, out=difference)
            total.add_(difference.abs_(), alpha=rate)
        return total.clamp_(max=LARGEST[total.dtype])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (weights,) = gradients
        X, Y, rates = ctx.saved_tensors
        by_X, by_Y, by_rates = X.new_zeros(X.shape), Y.new_zeros(Y.shape), rates.new_zeros(rates.shape)
        points_move = any(ctx.needs_input_grad[:2])
        for r, rate in enumerate(rates.tolist()):
            difference = X[:, r, None] - Y[:, r]
            by_rates[r] = difference.abs().mul_(weights).sum()
            if points_move:
                pull = difference.sign_().mul_(weights)
                by_X[:, r] = rate * pull.sum(1)
                by_Y[:, r] = -rate * pull.sum(0)
        return by_X, by_Y, by_rates
