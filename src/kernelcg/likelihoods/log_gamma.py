"""Differences of log Γ at large arguments, where the two terms nearly cancel.

Everything follows from log Γ(x) = (x − ½) log x − x + ½ log 2π + δ(x) with the Stirling series δ(x) = 1/(12x) − …
"""

import math

import torch
from torch import Tensor

LARGE = 10.0
"""Argument from which on the series is accurate to 15 digits."""
BERNOULLI = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def log_rising(x: Tensor, y: Tensor | float) -> Tensor:
    """Return log Γ(x + y) − log Γ(x) for one number x and y ≥ 0."""
    if x.detach().item() < LARGE:
        return torch.lgamma(x + y) - torch.lgamma(x)
    return y * x.log() + (x + y - 0.5) * torch.log1p(y / x) - y + _delta(x + y) - _delta(x)


def log_power_over_gamma(x: Tensor) -> Tensor:
    """Return x log x − x − log Γ(x) for every x > 0."""
    small, large = x.clamp_max(LARGE), x.clamp_min(LARGE)
    series = 0.5 * (large / (2 * math.pi)).log() - _delta(large)
    return torch.where(x < LARGE, small * small.log() - small - torch.lgamma(small), series)


def log_factorial_excess(y: Tensor) -> Tensor:
    """Return log y! − (y log y − y) for every y ≥ 0: what is left when the large terms have cancelled."""
    positive = torch.where(y > 0, y, 1.0)
    return torch.where(y > 0, positive.log() - log_power_over_gamma(positive), 0.0)


def _delta(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for coefficient in reversed(BERNOULLI):
        total = total / x.square() + coefficient
    return total / x
