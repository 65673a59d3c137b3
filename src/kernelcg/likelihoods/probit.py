"""Two classes by the probit."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood, require

FAR, LEVELS = 3, 60
"""From z = −t with which t on a continued fraction is evaluated, and its levels: at t = 3 they give 15 digits."""


class BernoulliProbit(Likelihood):
    """P(y = 1) = Φ(f), y is 0 or 1.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import ONE, BernoulliProbit
    >>> f, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> round(float(BernoulliProbit().log_density(y, f, ONE)), 4)
    -0.6931
    """

    log_concave: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    least: ClassVar[float] = 0.0

    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        return torch.special.log_ndtr((2 * y - 1) * f)

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        sign = 2 * y - 1
        r, W, slope = hazard(sign * f)
        return Derivatives(self.log_density(y, f, exposure), sign * r, W, sign * slope)

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...]:
        return ()

    def check(self, y: Tensor, exposure: Tensor = ONE) -> None:
        super().check(y, exposure)
        require((y == 0) | (y == 1), y, "y must be 0 or 1")

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        successes = y.sum().clamp(0.5, len(y) - 0.5)
        return torch.special.ndtri(successes / len(y)).item()

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        p, q = torch.special.log_ndtr(f).exp(), torch.special.log_ndtr(-f).exp()
        return p, p * q

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        return torch.where(y < 0, 0.0, torch.where(y >= 1, 1.0, torch.special.ndtr(-f)))

    def predict(self, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return the moments at mean / √(1 + variance): exact."""
        return self.moments(mean / (1 + variance).sqrt(), exposure)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return log Φ((2y − 1) mean / √(1 + variance)): exact."""
        return self.log_density(y, mean / (1 + variance).sqrt(), exposure)


def hazard(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return r = φ(z) / Φ(z), W = −r' = r (r + z) and W' = r (1 − (r + z)(2r + z)), without cancellation.

    For z = −t ≪ 0 these are nearly t, 1 and 0. From the continued fraction

    .. math:: r = t + c_2, \qquad c_j = 1 / (t + j c_{j+1})

    follow W = r c₂ and W' = −2 r c₂² c₃² c₄ (t + 9c₄ − 8c₅), sums of like signs up to the last.

    References
    ----------
    Abramowitz & Stegun (1964), equation 26.2.14, for the fraction.
    """
    near = z.clamp(-FAR, 40)
    r = math.sqrt(2 / math.pi) / torch.special.erfcx(-near / math.sqrt(2))
    plus = r + near
    found = r, r * plus, r * (1 - plus * (r + plus))
    far = z < -FAR
    if not bool(far.any()):
        return found
    there = _far_hazard(-z[far])
    return (
        found[0].masked_scatter(far, there[0]),
        found[1].masked_scatter(far, there[1]),
        found[2].masked_scatter(far, there[2]),
    )


def _far_hazard(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three numbers at z = −t by the continued fraction."""
    c5 = c4 = c3 = c2 = torch.zeros_like(t)
    for j in range(LEVELS, 1, -1):
        c5, c4, c3, c2 = c4, c3, c2, (t + j * c2).reciprocal()
    r = t + c2
    return r, r * c2, -2 * (r * c2) * (c2 * c3) * (c3 * c4) * (t + 9 * c4 - 8 * c5)
