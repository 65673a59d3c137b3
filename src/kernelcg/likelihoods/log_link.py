"""Counts and positive amounts whose mean is an exponential of the latent value."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood, require
from kernelcg.likelihoods.log_gamma import log_factorial_excess, log_power_over_gamma
from kernelcg.likelihoods.logit import log_odds_density, log_odds_derivatives
from kernelcg.likelihoods.special import beta_cumulative, gamma_cumulative

LARGE = 1e9
"""Counts from which on a Poisson variable is as good as its mean: its relative spread is 3e-5 there."""


class LogLink(Likelihood):
    """Mean μ = e^(log_mean) and variance aμ + bμ² of y given f."""

    log_concave: ClassVar[bool] = True
    least: ClassVar[float] = 0.0

    @abstractmethod
    def variance_coefficients(self) -> tuple[float, float]:
        """Return a and b."""

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        return ()

    def log_mean(self, f: Tensor, exposure: Tensor) -> Tensor:
        """Return log μ."""
        return f + exposure.log()

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        """Return the f at which the expected total is the observed one, taken as ½ where it is 0."""
        total, expected = y.sum().item(), self.log_mean(torch.zeros_like(y), exposure).exp().sum()
        return ((total or 0.5) / expected).log().item()

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        (a, b), mu = self.variance_coefficients(), self.log_mean(f, exposure).exp()
        return mu, a * mu + b * mu.square()

    def predict(self, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return M = E μ = e^(log_mean(mean) + v/2) and aM + M² ((1 + b) eᵛ − 1), v = variance: exact."""
        a, b = self.variance_coefficients()
        log_M = self.log_mean(mean, exposure) + variance / 2
        return log_M.exp(), a * log_M.exp() + (2 * log_M + variance + (b - torch.expm1(-variance)).log()).exp()


class Count(LogLink):
    """y is a count."""

    counts: ClassVar[bool] = True

    def check(self, y: Tensor, exposure: Tensor = ONE) -> None:
        super().check(y, exposure)
        require((y >= 0) & (y == y.round()), y, "y must be a count, a non-negative whole number")


class Poisson(Count):
    """Counts with μ = exposure · eᶠ: log p = y log μ − μ − log y!.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, Poisson
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(Poisson().log_density(y, f, ONE)), 4)
    -1.0
    """

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        """Return −y (eˢ − 1 − s) − (log y! − y log y + y), s = log μ − log y: large counts keep their digits."""
        log_mu, y = self.log_mean(f, exposure), y.to(f)
        s = log_mu - torch.where(y > 0, y, 1.0).log()
        return -torch.where(y > 0, y * (torch.expm1(s) - s), s.exp()) - log_factorial_excess(y)

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        mu = self.log_mean(f, exposure).exp()
        return Derivatives(self.log_density(y, f, exposure), y - mu, mu, mu)

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return Q(⌊y⌋ + 1, μ), a regularised incomplete gamma function."""
        mu, count = self.log_mean(f, exposure).exp(), y.floor()
        return torch.where(count >= 0, 1 - gamma_cumulative(count.clamp_min(0) + 1, mu), 0.0)

    def variance_coefficients(self) -> tuple[float, float]:
        return 1.0, 0.0


class NegativeBinomial(Count):
    """Counts more varied than Poisson's: μ = exposure · eᶠ, variance μ + φμ² with φ = dispersion.

    With r = 1/φ and h = log φμ, log p = y log σ(h) + r log σ(−h) + log Γ(y + r) − log Γ(r) − log y!, log-concave in f.

    Parameters
    ----------
    dispersion : φ; towards 0 the counts are Poisson's

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, NegativeBinomial
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(NegativeBinomial(1.0).log_density(y, f, ONE)), 4)
    -1.3863
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("dispersion",)

    dispersion: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        r, y = 1 / self.dispersion, y.to(f)
        excess = log_power_over_gamma(r) - log_power_over_gamma(y + r) - log_factorial_excess(y)
        return log_odds_density(y, r, self._log_odds(f, exposure)) + excess

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        log_density = self.log_density(y, f, exposure)
        return log_odds_derivatives(y, 1 / self.dispersion, self._log_odds(f, exposure), log_density)

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        return (-self._log_odds(torch.zeros_like(y), exposure).detach(),)

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return I_p(r, ⌊y⌋ + 1), p = 1 / (1 + φμ); counts beyond `LARGE` are those of the gamma mixture itself."""
        r, count, mu = 1 / self.dispersion.detach(), y.floor(), self.log_mean(f, exposure).exp()
        some = count.clamp(0, LARGE)
        exact = beta_cumulative(r, some + 1, 1 / (1 + self.dispersion.detach() * mu))
        found = torch.where(count <= LARGE, exact, gamma_cumulative(r, r * (count.clamp_min(0) / mu)))
        return torch.where(count >= 0, found, 0.0)

    def variance_coefficients(self) -> tuple[float, float]:
        return 1.0, self.dispersion.item()

    def _log_odds(self, f: Tensor, exposure: Tensor) -> Tensor:
        return self.log_mean(f, exposure) + self.dispersion.log()


class Gamma(LogLink):
    """Positive amounts with mean μ = eᶠ and variance μ² / k, k = shape; the exposure plays no part.

    With s = log y − f, log p = −k (eˢ − 1 − s) − log y + k log k − k − log Γ(k).

    Parameters
    ----------
    shape : k, one over the squared coefficient of variation

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, Gamma
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(Gamma(2.0).log_density(y, f, ONE)), 4)
    -0.6137
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("shape",)

    shape: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        s = y.log() - f
        return -self.shape * (torch.expm1(s) - s) - y.log() + log_power_over_gamma(self.shape)

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        s = y.log() - f
        W = self.shape * s.exp()
        return Derivatives(self.log_density(y, f, exposure), self.shape * torch.expm1(s), W, -W)

    def check(self, y: Tensor, exposure: Tensor = ONE) -> None:
        super().check(y, exposure)
        require(y > 0, y, "y must be positive")

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        shape = self.shape.detach()
        return gamma_cumulative(shape, shape * (y.clamp_min(0) * (-f).exp()))

    def variance_coefficients(self) -> tuple[float, float]:
        return 0.0, 1 / self.shape.item()

    def log_mean(self, f: Tensor, exposure: Tensor) -> Tensor:
        return f
