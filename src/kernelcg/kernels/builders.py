"""Kernels made of others: waves and spectral mixtures, additive kernels, warped inputs."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.arguments import positive
from kernelcg.kernels.base import Kernel
from kernelcg.kernels.composite import Sum
from kernelcg.kernels.stationary import RBF, parts_of_periods, per_feature


class Wave(Kernel):
    r"""A wave through all features, :math:`\sigma^2 \cos(2\pi \sum_r (x_r - y_r) / p_r)`.

    Parameters
    ----------
    period : length of the wave along each feature, in its units; one number for all features or one for each
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Wave
    >>> X = torch.tensor([[0.0], [2.0]])
    >>> Wave(4.0)(X, X)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    period: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    @property
    def is_stationary(self) -> bool:
        return True

    @property
    def rounds_well(self) -> bool:
        return False

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.variance * torch.cos(2 * torch.pi * (self._turns(X)[:, None] - self._turns(Y)))

    def diagonal(self, X: Tensor) -> Tensor:
        per_feature(self.period, X.shape[1], "period")
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        angle = 2 * torch.pi * self._beside(X)._turns(X).detach()
        return torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return π d (d + 4) / 2: however many periods passed, d parts of one are rounded, added and subtracted."""
        d = X.shape[1]
        per_feature(self.period, d, "period")
        return X.new_full((len(X),), 0.5 * torch.pi * d * (d + 4))

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        per_feature(self.period, d, "period")
        return (2 * torch.pi / self.period.detach()).expand(d).repeat(count, 1)

    def _turns(self, X: Tensor) -> Tensor:
        per_feature(self.period, X.shape[1], "period")
        return parts_of_periods(X, self.period).sum(1)


class Warped(Kernel):
    r"""A kernel of inputs in [0, 1] after :math:`w(x) = 1 - (1 - x^a)^b` (Kumaraswamy), with a and b learned.

    It suits functions that change faster at one end of the range, as those of learning rates do.

    Parameters
    ----------
    part : the kernel of w(x)
    a, b : one number for all features or one for each; a = b = 1 leaves the inputs as they are

    References
    ----------
    Snoek, Swersky, Zemel & Adams (2014), Input warping for Bayesian optimization of non-stationary functions, ICML.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import RBF, Warped
    >>> X = torch.tensor([[0.1], [0.9]])
    >>> bool(Warped(RBF(1.0), 1.0, 1.0)(X, X).allclose(RBF(1.0)(X, X)))  # a = b = 1 bends nothing
    True
    """

    part: Kernel
    a: Tensor = torch.tensor(1.0, dtype=torch.float64)
    b: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.part.covariance(self._bent(X), self._bent(Y))

    def diagonal(self, X: Tensor) -> Tensor:
        return self.part.diagonal(self._beside(X)._bent(X))

    def coordinates(self, X: Tensor) -> Tensor:
        return self.part.coordinates(self._beside(X)._bent(X).detach())

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return eight times that of the part at the far corner: bent inputs are up to 1 and known to some units."""
        corner = torch.ones(1, X.shape[1], dtype=torch.float64, device=X.device)
        return (8 * self.part.rounding_lengths(corner)).to(X).expand(len(X))

    def _bent(self, X: Tensor) -> Tensor:
        """Return w(x) from logarithms, which keep the digits of x^a next to 0 and of 1 − x^a next to 0."""
        per_feature(self.a, X.shape[1], "a")
        per_feature(self.b, X.shape[1], "b")
        if len(X) and bool(((X.detach() < 0) | (X.detach() > 1)).any()):
            raise ValueError("Warped needs inputs between 0 and 1; scale them, for example by MinMaxScaler")
        at_end = (X == 0) | (X == 1)  # where logarithms and their derivatives are infinite
        log_power = self.a * torch.where(at_end, 0.5, X).log()
        return torch.where(at_end, X, -torch.expm1(self.b * _log_of_rest(log_power)))


def _log_of_rest(t: Tensor) -> Tensor:
    """Return log(1 − eᵗ) for t < 0, by each formula where the other one loses digits, and safe where it is not used."""
    near = t > -math.log(2)
    smallest = torch.finfo(t.dtype).tiny
    by_difference = torch.log(-torch.expm1(torch.where(near, t.clamp_max(-smallest), -1.0)))
    return torch.where(near, by_difference, torch.log1p(-torch.exp(torch.where(near, -1.0, t))))


def spectral_mixture(periods: Sequence[Any], lengthscales: Sequence[Any], variances: Sequence[float]) -> Kernel:
    r"""Return Σ_q σ_q² cos(2π Σ_r (x_r − y_r) / p_qr) exp(−½ Σ_r (x_r − y_r)² / l_qr²), all of it learned.

    Each part q is a peak of the spectral density at the frequency 1 / p_q, of width 1 / (2π l_q).

    Parameters
    ----------
    periods : p_q, in the units of the features: for each part one number or one for each feature
    lengthscales : l_q, likewise
    variances : σ_q², one number for each part

    References
    ----------
    Wilson & Adams (2013), Gaussian process kernels for pattern discovery and extrapolation, ICML.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import spectral_mixture
    >>> kernel = spectral_mixture(periods=[1.0, 7.0], lengthscales=[10.0, 30.0], variances=[1.0, 0.5])
    >>> float(kernel(torch.zeros(1, 1), torch.zeros(1, 1)))
    1.5
    """
    if not len(periods) == len(lengthscales) == len(variances) > 0:
        raise ValueError("a spectral mixture needs as many periods as lengthscales and variances, and one at least")
    parts: list[Kernel] = [
        RBF(positive(scale, "lengthscale"), positive(variance, "variance"))
        * Wave(positive(period, "period")).fixed("variance")
        for period, scale, variance in zip(periods, lengthscales, variances, strict=True)
    ]
    return reduce(Sum, parts)


def additive(kernel: Callable[[int], Kernel], features: int, *, order: int = 1) -> Kernel:
    """Return the sum of kernels of single features, and with ``order=2`` also of pairs of them.

    Parameters
    ----------
    kernel : makes the kernel of so many features, such as ``lambda d: RBF([1.0] * d)``
    features : the number of features
    order : 1 for single features, 2 for pairs as well

    Examples
    --------
    >>> from kernelcg.kernels import RBF, additive
    >>> kernel = additive(lambda d: RBF([1.0] * d, 0.3), features=3, order=2)  # 3 features and 3 pairs
    >>> str(kernel).count("RBF")
    6
    """
    if features < 1 or order not in (1, 2):
        raise ValueError(f"additive needs one feature at least and order 1 or 2, not {features} and {order}")
    groups = [group for size in range(1, order + 1) for group in combinations(range(features), size)]
    parts: list[Kernel] = [kernel(len(group)).on(list(group)) for group in groups]
    return reduce(Sum, parts)
