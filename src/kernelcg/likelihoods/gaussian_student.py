"""Real observations, each the sum of the latent value and an error."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood
from kernelcg.likelihoods.log_gamma import log_rising
from kernelcg.likelihoods.special import student_cumulative


class Gaussian(Likelihood):
    """y ~ N(f, variance).

    Parameters
    ----------
    variance : of the noise, in squared units of y

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, Gaussian
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(Gaussian(1.0).log_density(y, f, ONE)), 4)
    -1.4189
    """

    log_concave: ClassVar[bool] = True
    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor = torch.tensor(0.1, dtype=torch.float64)

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        return _log_normal_density(y - f, self.variance)

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        u = y - f
        log_density = self.log_density(y, f, exposure)
        return Derivatives(log_density, u / self.variance, torch.ones_like(u) / self.variance, torch.zeros_like(u))

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        return ()

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        return y.mean().item()

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        return f, torch.zeros_like(f) + self.variance.detach()

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        return torch.special.ndtr((y - f) / self.variance.detach().sqrt())

    def predict(self, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        return mean, variance + self.variance.detach()

    def quantile(self, level: float, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return the quantile of N(mean, variance of f and of the error): exact."""
        standard = torch.special.ndtri(torch.full_like(mean, level))
        return mean + (variance + self.variance.detach()).sqrt() * standard

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> Tensor:
        return _log_normal_density(y - mean, variance + self.variance.detach())


class StudentT(Likelihood):
    r"""Errors with heavy tails, ν = degrees of freedom, s = scale, :math:`w = (y - f) / (s \sqrt{\nu})`.

    .. math:: \log p = -\tfrac{\nu + 1}{2} \log(1 + w^2) + \log \Gamma(\tfrac{\nu + 1}{2})
                       - \log \Gamma(\tfrac{\nu}{2}) - \tfrac12 \log(\pi \nu s^2)

    W is negative where \|w\| > 1: outliers are given up. The variance is infinite for ν ≤ 2; there is no mean for
    ν ≤ 1, the centre stands for it.

    Parameters
    ----------
    scale : s, in the units of y
    degrees : ν, degrees of freedom: the smaller, the heavier the tails

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, StudentT
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(StudentT(1.0, 4.0).log_density(y, f, ONE)), 4)
    -1.5387
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("scale", "degrees")

    scale: Tensor = torch.tensor(0.3, dtype=torch.float64)
    degrees: Tensor = torch.tensor(4.0, dtype=torch.float64)

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        nu, w = self.degrees, (y - f) / self._width
        constant = log_rising(nu / 2, 0.5) - 0.5 * math.log(math.pi) - self._width.log()
        return constant - (nu + 1) / 2 * torch.log1p(w.square())

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        """Return (ν + 1) wh / a, (ν + 1) (1 − w²) h² / a², 2 (ν + 1) w (3 − w²) h³ / a³; h = 1 / (1 + w²), a = s√ν."""
        a, w = self._width, (y - f) / self._width
        square = w.square()
        h, factor = 1 / (1 + square), (self.degrees + 1) / a
        W = factor / a * ((1 - square) * h) * h
        slope = 2 * factor / a.square() * (w * h) * ((3 - square) * h) * h
        return Derivatives(self.log_density(y, f, exposure), factor * (w * h), W, slope)

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        """Return w = 0, where W is largest, and w = ±√3, where it is least."""
        away = math.sqrt(3) * self._width.detach()
        return y - away, y, y + away

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        return y.median().item()

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        return f, torch.full_like(f, self._variance)

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        return student_cumulative(self.degrees.detach(), (y - f) / self.scale.detach())

    def predict(self, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        return mean, variance + self._variance

    @property
    def _width(self) -> Tensor:
        return self.scale * self.degrees.sqrt()

    @property
    def _variance(self) -> float:
        scale, nu = self.scale.item(), self.degrees.item()
        return scale**2 * nu / (nu - 2) if nu > 2 else math.inf


def _log_normal_density(u: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (u.square() / variance + (2 * math.pi * variance).log())
