"""Two classes, or successes among trials, by the logit."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood, require
from kernelcg.likelihoods.log_gamma import log_factorial_excess
from kernelcg.likelihoods.special import beta_cumulative


class Logit(Likelihood):
    """y successes among N trials, each with probability σ(f) = 1 / (1 + e⁻ᶠ)."""

    log_concave: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    least: ClassVar[float] = 0.0
    _limit: ClassVar[str] = "the number of trials"

    @abstractmethod
    def trials(self, exposure: Tensor) -> Tensor:
        """Return N."""

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        """Return log p with log (N choose y) and the largest value of the rest taken together: both may be huge."""
        N, y = self.trials(exposure).to(f), y.to(f)
        excess = log_factorial_excess(N) - log_factorial_excess(y) - log_factorial_excess(N - y)
        return log_odds_density(y, N - y, f) + excess

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        N = self.trials(exposure).to(f)
        return log_odds_derivatives(y, N - y, f, self.log_density(y, f, exposure))

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        return (torch.zeros_like(y),)

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

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return I_q(N − ⌊y⌋, ⌊y⌋ + 1), q = σ(−f)."""
        N, count = self.trials(exposure).to(f), y.floor()
        some = count.clamp_min(0).minimum(N - 1)
        found = beta_cumulative(N - some, some + 1, (-f).sigmoid())
        return torch.where(count < 0, 0.0, torch.where(count >= N, 1.0, found))


class BernoulliLogit(Logit):
    """P(y = 1) = σ(f), y is 0 or 1.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, BernoulliLogit
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(BernoulliLogit().log_density(y, f, ONE)), 4)
    -0.6931
    """

    _limit: ClassVar[str] = "1"

    def trials(self, exposure: Tensor) -> Tensor:
        return ONE


class Binomial(Logit):
    """y successes among N = exposure trials: log p = y log σ(f) + (N − y) log σ(−f) + log (N choose y).

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import Binomial
    >>> f, successes, trials = (torch.tensor([v], dtype=torch.float64) for v in (0.0, 1.0, 2.0))
    >>> round(float(Binomial().log_density(successes, f, trials)), 4)  # one of two, each as likely as not
    -0.6931
    """

    def trials(self, exposure: Tensor) -> Tensor:
        return exposure


def log_odds_density(a: Tensor, b: Tensor, f: Tensor) -> Tensor:
    r"""Return a log σ(f) + b log σ(−f) minus its largest value, which it has at log(a / b): a number ≤ 0.

    With p = a / (a + b), q = 1 − p and h = f − log(a / b) it is
    :math:`-a \log(1 + q (e^{-h} - 1)) - b \log(1 + p (e^h - 1))`, which keeps its digits near h = 0 however large a and
    b are.
    """
    some_a, some_b = torch.where(a > 0, a, 1.0), torch.where(b > 0, b, 1.0)
    log_p, log_q = -torch.log1p(b / some_a), -torch.log1p(a / some_b)
    h = f - (some_a.log() - some_b.log())
    is_near, near_h = (h.abs() < 1) & (a > 0) & (b > 0), h.clamp(-1, 1)
    near = a * torch.log1p(log_q.exp() * torch.expm1(-near_h)) + b * torch.log1p(log_p.exp() * torch.expm1(near_h))
    far = a * (log_p - logsigmoid(f)) + b * (log_q - logsigmoid(-f))
    return -torch.where(is_near, near, far)


def log_odds_derivatives(a: Tensor, b: Tensor, f: Tensor, log_density: Tensor) -> Derivatives:
    """Return the derivatives of a log σ(f) + b log σ(−f) beside a given log p."""
    p, q = f.sigmoid(), (-f).sigmoid()
    W = (a + b) * p * q
    return Derivatives(log_density, a * q - b * p, W, -W * torch.tanh(f / 2))
