"""Two classes, or successes among trials, by the logit."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood, require


class Logit(Likelihood):
    """y successes among N trials, each with probability σ(f) = 1 / (1 + e⁻ᶠ)."""

    log_concave: ClassVar[bool] = True
    _limit: ClassVar[str] = "the number of trials"

    @abstractmethod
    def trials(self, exposure: Tensor) -> Tensor:
        """Return N."""

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        N = self.trials(exposure).to(f)
        return log_odds_density(y, N - y, f) + log_binomial(N, y.to(f))

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        N = self.trials(exposure).to(f)
        return log_odds_derivatives(y, N - y, f, self.log_density(y, f, exposure))

    def check(self, y: Tensor, exposure: Tensor = ONE) -> None:
        super().check(y, exposure)
        N = self.trials(exposure)
        require(N.round() == N, N, "exposure is the number of trials and must hold whole numbers")
        possible = (y >= 0) & (y <= N) & (y == y.round())
        require(possible, y, f"y must be a whole number from 0 to {self._limit}")

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        N = self.trials(exposure).to(y).expand_as(y).sum()
        successes = y.sum().clamp_min(0.5).minimum(N - 0.5)
        return (successes / (N - successes)).log().item()

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        N = self.trials(exposure).to(f)
        return N * f.sigmoid(), N * f.sigmoid() * (-f).sigmoid()


class BernoulliLogit(Logit):
    """P(y = 1) = σ(f), y is 0 or 1."""

    _limit: ClassVar[str] = "1"

    def trials(self, exposure: Tensor) -> Tensor:
        return ONE


class Binomial(Logit):
    """y successes among N = exposure trials: log p = y log σ(f) + (N − y) log σ(−f) + log (N choose y)."""

    def trials(self, exposure: Tensor) -> Tensor:
        return exposure


def log_odds_density(a: Tensor, b: Tensor, f: Tensor) -> Tensor:
    """Return a log σ(f) + b log σ(−f)."""
    return a * logsigmoid(f) + b * logsigmoid(-f)


def log_odds_derivatives(a: Tensor, b: Tensor, f: Tensor, log_density: Tensor) -> Derivatives:
    """Return the derivatives of a log σ(f) + b log σ(−f) beside a given log p."""
    p, q = f.sigmoid(), (-f).sigmoid()
    W = (a + b) * p * q
    return Derivatives(log_density, a * q - b * p, W, -W * torch.tanh(f / 2))


def log_binomial(N: Tensor, y: Tensor) -> Tensor:
    """Return log (N choose y)."""
    return torch.lgamma(N + 1) - torch.lgamma(y + 1) - torch.lgamma(N - y + 1)
