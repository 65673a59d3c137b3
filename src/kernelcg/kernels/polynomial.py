"""Kernels made of inner products: polynomial and cosine; and powers of any kernel."""

import math
from typing import ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.arguments import tensor
from kernelcg.kernels.base import Kernel


class Polynomial(Kernel):
    """k(x, y) = (γ xᵀy + c)^degree: regression on all monomials up to this degree, or of it alone if c = 0.

    Parameters
    ----------
    gamma : γ, the only hyperparameter that is learned
    coef0 : c ≥ 0, which stays as it is
    degree : a whole number ≥ 1

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Polynomial
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Polynomial(1.0, degree=2)(X, X)
    tensor([[1., 1.],
            [1., 4.]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("gamma",)

    gamma: Tensor
    coef0: float = 1.0
    degree: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "coef0", _not_negative(self.coef0, "Polynomial.coef0"))
        object.__setattr__(self, "degree", _whole(self.degree, "Polynomial.degree"))

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return ((self.gamma * X) @ Y.T + self.coef0) ** self.degree

    def diagonal(self, X: Tensor) -> Tensor:
        return (self.gamma.to(X) * X.square().sum(1) + self.coef0) ** self.degree

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return the degree times √d, the rounding of a sum of d terms."""
        return X.new_full((len(X),), self.degree * X.shape[1] ** 0.5)


class Power(Kernel):
    """k(x, y)^exponent: a product of equal kernels whose hyperparameters are the same.

    Parameters
    ----------
    kernel : k
    exponent : a whole number ≥ 1

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Linear, Power
    >>> X = torch.tensor([[1.0], [2.0]])
    >>> Power(Linear(1.0), 2)(X, X)
    tensor([[ 1.,  4.],
            [ 4., 16.]])
    """

    kernel: Kernel
    exponent: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exponent", _whole(self.exponent, "Power.exponent"))

    @property
    def is_stationary(self) -> bool:
        return self.kernel.is_stationary

    @property
    def rounds_well(self) -> bool:
        return self.kernel.rounds_well

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.kernel.covariance(X, Y) ** self.exponent

    def diagonal(self, X: Tensor) -> Tensor:
        return self.kernel.diagonal(X) ** self.exponent

    def coordinates(self, X: Tensor) -> Tensor:
        return self.kernel.coordinates(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return self.exponent * self.kernel.rounding_lengths(X)

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Return sums of independent draws, since the spectral density of a product is a convolution."""
        draws = [self.kernel.sample_frequencies(d, count, generator) for _ in range(self.exponent)]
        return torch.stack(draws).sum(0)


class Cosine(Kernel):
    """k(x, y) = σ² xᵀy / (|x| |y|), and 0 if x or y is 0: the linear kernel of the directions of x and y.

    Parameters
    ----------
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Cosine
    >>> X = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> Cosine()(X, X)
    tensor([[1.0000, 0.7071],
            [0.7071, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return (self.variance * _directions(X)) @ _directions(Y).T

    def diagonal(self, X: Tensor) -> Tensor:
        return self.variance.to(X) * X.ne(0).any(1)

    def coordinates(self, X: Tensor) -> Tensor:
        return _directions(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return √d, the rounding of a sum of d terms."""
        return X.new_full((len(X),), X.shape[1] ** 0.5)


def _directions(X: Tensor) -> Tensor:
    """Return x_i / |x_i|, or 0 where x_i = 0, without squares that overflow or become 0."""
    largest = X.abs().amax(1, keepdim=True)
    X = X / torch.where(largest > 0, largest, 1.0)
    return X / X.norm(dim=1, keepdim=True).clamp_min(1.0)  # at least 1, but for rows of zeros


def _not_negative(value: object, label: str) -> float:
    number = _number(value, label)
    if not 0 <= number < math.inf:
        raise ValueError(f"{label} must be finite and at least 0, not {value!r}: K need not be positive semidefinite")
    return number


def _whole(value: object, label: str) -> int:
    number = _number(value, label)
    if not (number >= 1 and number.is_integer()):
        raise ValueError(
            f"{label} must be a whole number of at least 1, not {value!r}: K need not be positive semidefinite"
        )
    return int(number)


def _number(value: object, label: str) -> float:
    number = tensor(value, label)  # type: ignore[arg-type]  # refuses what holds no numbers
    if number.ndim != 0:
        raise ValueError(f"{label} must be one number, not {value!r}")
    return float(number)
