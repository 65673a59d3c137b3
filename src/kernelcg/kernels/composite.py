"""Constant and linear kernels, sums and products."""

from typing import ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.stationary import per_feature


class Constant(Kernel):
    """k(x, y) = σ²: a level that all points share and that is not known, or the factor of a product.

    Parameters
    ----------
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Constant
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Constant(2.0)(X, X)
    tensor([[2., 2.],
            [2., 2.]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor

    @property
    def is_stationary(self) -> bool:
        return True

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.variance * X.new_ones(len(X), len(Y))

    def diagonal(self, X: Tensor) -> Tensor:
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        return X[:, :0]

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return X.new_zeros(len(X))

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        return torch.zeros(count, d, dtype=torch.float64)


class Linear(Kernel):
    """k(x, y) = Σ_r σ_r² x_r y_r: linear regression without an intercept.

    Parameters
    ----------
    variance : prior variances of the slopes, one number for all features or one for each

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Linear
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Linear(3.0)(X, X)
    tensor([[0., 0.],
            [0., 3.]])
    """

    variance: Tensor

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        per_feature(self.variance, X.shape[1], "variance")
        return (self.variance * X) @ Y.T

    def diagonal(self, X: Tensor) -> Tensor:
        per_feature(self.variance, X.shape[1], "variance")
        return (self.variance.to(X) * X.square()).sum(1)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return √d, the rounding of a sum of d terms."""
        return X.new_full((len(X),), X.shape[1] ** 0.5)


class Sum(Kernel):
    """Sum of two kernels, k₁(x, y) + k₂(x, y), the kernel of the sum of two independent functions.

    Parameters
    ----------
    left, right : the kernels k₁ and k₂

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Linear, RBF
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> (RBF(1.0) + Linear(3.0))(X, X)
    tensor([[1.0000, 0.6065],
            [0.6065, 4.0000]])
    """

    left: Kernel
    right: Kernel

    @property
    def is_stationary(self) -> bool:
        return self.left.is_stationary and self.right.is_stationary

    @property
    def rounds_well(self) -> bool:
        return self.left.rounds_well and self.right.rounds_well

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.left.covariance(X, Y) + self.right.covariance(X, Y)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.left.diagonal(X) + self.right.diagonal(X)

    def coordinates(self, X: Tensor) -> Tensor:
        return torch.cat([self.left.coordinates(X), self.right.coordinates(X)], dim=1)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return torch.maximum(self.left.rounding_lengths(X), self.right.rounding_lengths(X))

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Draw each frequency from one of the two parts, chosen with probability in proportion to its variance."""
        first, second = (part.sample_frequencies(d, count, generator) for part in (self.left, self.right))
        origin = torch.zeros(1, d, dtype=torch.float64)
        share = self.left.diagonal(origin) / self.diagonal(origin)
        from_left = torch.rand(count, 1, generator=generator, dtype=torch.float64) < share
        return torch.where(from_left, first, second)

    def __repr__(self) -> str:
        return f"{self.left!r} + {_grouped(self.right, Sum)}"


class Product(Kernel):
    """Product of two kernels, k₁(x, y) · k₂(x, y).

    Parameters
    ----------
    left, right : the kernels k₁ and k₂

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Linear, RBF
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> (RBF(1.0) * Linear(3.0))(X, X)
    tensor([[0., 0.],
            [0., 3.]])
    """

    left: Kernel
    right: Kernel

    @property
    def is_stationary(self) -> bool:
        return self.left.is_stationary and self.right.is_stationary

    @property
    def rounds_well(self) -> bool:
        return self.left.rounds_well and self.right.rounds_well

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.left.covariance(X, Y) * self.right.covariance(X, Y)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.left.diagonal(X) * self.right.diagonal(X)

    def coordinates(self, X: Tensor) -> Tensor:
        return torch.cat([self.left.coordinates(X), self.right.coordinates(X)], dim=1)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return self.left.rounding_lengths(X) + self.right.rounding_lengths(X)

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Return sums of independent draws, since the spectral density of a product is a convolution."""
        first, second = (part.sample_frequencies(d, count, generator) for part in (self.left, self.right))
        return first + second

    def __repr__(self) -> str:
        return f"{_grouped(self.left, Sum)} * {_grouped(self.right, Sum, Product)}"


def summands(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernels that add up to this one, with sums in products multiplied out; itself if it is no sum."""
    if isinstance(kernel, Sum):
        return (*summands(kernel.left), *summands(kernel.right))
    if isinstance(kernel, Product):
        pairs = [(left, right) for left in summands(kernel.left) for right in summands(kernel.right)]
        return (kernel,) if len(pairs) == 1 else tuple(Product(left, right) for left, right in pairs)
    return (kernel,)


def _grouped(kernel: Kernel, *kinds: type[Kernel]) -> str:
    """Return the repr of a kernel, in parentheses if it is one of these kinds."""
    return f"({kernel!r})" if isinstance(kernel, kinds) else repr(kernel)
