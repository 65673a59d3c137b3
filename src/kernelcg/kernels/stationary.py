"""Stationary kernels: functions of the distance in units of the lengthscale."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from scipy.special import ive
from torch import Generator, Tensor

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.distances import distances, squared_distances
from kernelcg.randomness import normal


class Stationary(Kernel):
    r"""k(x, y) = σ² profile(s) with :math:`s = \sum_r (x_r - y_r)^2 / l_r^2`; l is one number or one per feature.

    Parameters
    ----------
    lengthscale : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import RBF, Stationary
    >>> isinstance(RBF([0.5, 2.0]), Stationary)  # one lengthscale for each of two features
    True
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance", "alpha")

    lengthscale: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    @abstractmethod
    def profile(self, s: Tensor) -> Tensor:
        """Return the correlation at squared scaled distance s; 1 at s = 0."""

    @abstractmethod
    def precision_factors(self, count: int, generator: Generator) -> Tensor:
        """Draw (count,) factors c with profile(s) = E exp(−½ c s): every such kernel is a mixture of RBF kernels."""

    def slope(self) -> "Stationary | None":
        """Return the kernel w with ∂k / ∂ log l_r = w(x, y) (x_r − y_r)² / l_r², if it is one of the library."""
        return None

    @property
    def is_stationary(self) -> bool:
        return True

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return self.variance * self.profile(squared_distances(X / self.lengthscale, Y / self.lengthscale))

    def diagonal(self, X: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return X / self.lengthscale.detach().to(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return ‖x_i‖ in lengthscales, since no profile falls faster than by 1 per lengthscale."""
        return self.coordinates(X).norm(dim=1)

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        per_feature(self.lengthscale, d, "lengthscale")
        factors = self.precision_factors(count, generator)
        return normal(count, d, generator, like=factors) * factors.sqrt()[:, None] / self.lengthscale


class RBF(Stationary):
    r"""Squared exponential kernel, :math:`\sigma^2 e^{-s/2}` with the squared scaled distance s of `Stationary`.

    Parameters
    ----------
    lengthscale : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import RBF
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> RBF(1.0)(X, X)
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """

    def profile(self, s: Tensor) -> Tensor:
        return torch.exp(-0.5 * s)

    def slope(self) -> Stationary:
        return self

    def precision_factors(self, count: int, generator: Generator) -> Tensor:
        return torch.ones(count, dtype=torch.float64)


class Matern(Stationary):
    r"""Matérn kernel with ν = 1/2, 3/2 or 5/2.

    With :math:`q = \sqrt{2\nu s}` and the squared scaled distance s of `Stationary`, the three are

    .. math:: \sigma^2 e^{-q}, \qquad \sigma^2 (1 + q) e^{-q}, \qquad \sigma^2 (1 + q + q^2/3) e^{-q}.

    Parameters
    ----------
    lengthscale : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function
    nu : 0.5, 1.5 or 2.5; functions have derivatives of every order below it

    References
    ----------
    Rasmussen & Williams (2006), equation 4.17. Its spectral density is a Student t with 2ν degrees of freedom.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Matern
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Matern(1.0, nu=1.5)(X, X)
    tensor([[1.0000, 0.4834],
            [0.4834, 1.0000]])
    """

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern.nu must be 0.5, 1.5 or 2.5, not {self.nu!r}; for ν → ∞ use RBF")

    def profile(self, s: Tensor) -> Tensor:
        q = distances(2 * self.nu * s)
        if self.nu == 0.5:
            return torch.exp(-q)
        polynomial = 1 + q if self.nu == 1.5 else 1 + q + q.square() / 3
        return polynomial * torch.exp(-q)

    def slope(self) -> Stationary | None:
        r"""Return :math:`2\nu / (2\nu - 2)` times the Matérn kernel of ν − 1 with the same q; none for ν = 1/2."""
        if self.nu == 0.5:
            return None
        lower = 2 * self.nu - 2
        return Matern(
            self.lengthscale * math.sqrt(lower / (2 * self.nu)), self.variance * (2 * self.nu / lower), self.nu - 1
        )

    def precision_factors(self, count: int, generator: Generator) -> Tensor:
        chi_squared = normal(int(2 * self.nu), count, generator, like=self.variance).square().sum(0)
        return 2 * self.nu / chi_squared


class RationalQuadratic(Stationary):
    r"""Mixture of RBF kernels of many lengthscales, :math:`\sigma^2 (1 + s / (2\alpha))^{-\alpha}`.

    s is the squared scaled distance of `Stationary`. For large α it is the RBF kernel.

    Parameters
    ----------
    lengthscale : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function
    alpha : the smaller, the more the lengthscales differ

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import RationalQuadratic
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> RationalQuadratic(1.0, alpha=2.0)(X, X)
    tensor([[1.0000, 0.6400],
            [0.6400, 1.0000]])
    """

    alpha: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def profile(self, s: Tensor) -> Tensor:
        return torch.exp(-self.alpha * torch.log1p(s / (2 * self.alpha)))

    def precision_factors(self, count: int, generator: Generator) -> Tensor:
        shape = self.alpha.expand(count)
        return torch._standard_gamma(shape, generator=generator) / self.alpha


class Periodic(Kernel):
    r"""Periodic kernel, :math:`\sigma^2 \exp(-2 \sum_r \sin^2(\pi (x_r - y_r) / p_r) / l_r^2)`.

    It is evaluated as an RBF kernel between points on circles, since |e(x) − e(y)|² = 4 sin²(π (x − y) / p) for
    e(x) = (cos 2πx/p, sin 2πx/p).

    Parameters
    ----------
    lengthscale : one number for all features or one for each, relative to circles of radius 1
    period : one number for all features or one for each, in the units of the features
    variance : k(x, x), in squared units of the function

    References
    ----------
    MacKay (1998), Introduction to Gaussian processes, equation 47.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Periodic
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> Periodic(1.0, period=2.0)(X, X)
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    lengthscale: Tensor
    period: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    @property
    def is_stationary(self) -> bool:
        return True

    @property
    def rounds_well(self) -> bool:
        return False

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        self._check(X.shape[1])
        return self.variance * torch.exp(-0.5 * squared_distances(self._circles(X), self._circles(Y)))

    def diagonal(self, X: Tensor) -> Tensor:
        self._check(X.shape[1])
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        self._check(X.shape[1])
        return self._beside(X)._circles(X).detach()

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return twice the length of a period in lengthscales.

        However many periods a point is away, its phase is off by at most 4u of one period.
        """
        periods = (4 * math.pi / self.lengthscale.detach()).expand(X.shape[1])
        return periods.to(X).norm().expand(len(X))

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Draw harmonics j of each feature with probability I_j(1/l²) exp(−1/l²), its Fourier coefficient."""
        self._check(d)
        columns = []
        for inverse_square in self.lengthscale.detach().pow(-2).expand(d).tolist():
            highest = 10 + int(12 * math.sqrt(inverse_square) + 2 * math.log1p(inverse_square))
            weights = torch.from_numpy(ive(range(-highest, highest + 1), inverse_square))
            columns.append(torch.multinomial(weights, count, replacement=True, generator=generator) - highest)
        return torch.stack(columns, 1) * (2 * math.pi / self.period)

    def _check(self, d: int) -> None:
        per_feature(self.lengthscale, d, "lengthscale")
        per_feature(self.period, d, "period")

    def _circles(self, X: Tensor) -> Tensor:
        """Return points on circles."""
        angle = 2 * math.pi * parts_of_periods(X, self.period)
        return torch.cat([angle.cos() / self.lengthscale, angle.sin() / self.lengthscale], dim=1)


def parts_of_periods(X: Tensor, period: Tensor) -> Tensor:
    """Return x / p without the whole periods, which are taken out without rounding, in (−1, 1).

    The derivative is that of x / p, since `torch.fmod` and its own derivative count different numbers of periods where
    x is next to a whole number of them.
    """
    turns = X / period
    return (torch.fmod(X, period) / period).detach() + (turns - turns.detach())


def per_feature(parameter: Tensor, d: int, name: str) -> None:
    """Raise unless ``parameter`` is one number or has one entry for each of d features."""
    if parameter.ndim == 1 and len(parameter) not in (1, d):
        raise ValueError(f"{name} has {len(parameter)} entries but X has {d} features")
