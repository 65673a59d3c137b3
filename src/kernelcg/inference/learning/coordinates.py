"""Coordinates of a search in which an infinite lengthscale is not infinitely far away."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FAR = 30.0
"""Lengthscale, in units of its start, beyond which the coordinate hardly changes any more."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    r"""A coordinate for each log hyperparameter θ that ends at c as θ → ∞.

    .. math:: \varphi = -\tfrac12 \log(e^{-2\theta} + e^{-2c})

    A feature that does not matter asks for a lengthscale without end, and in θ the criterion becomes flat on the way.
    The criterion is a smooth function of 1 / l², and so of φ, up to the very end: a search can go there in a few steps,
    and back.

    Attributes
    ----------
    ends : (p,) or one number c; ∞ where φ = θ
    """

    ends: Tensor

    def of(self, theta: Tensor) -> Tensor:
        """Return φ."""
        return -0.5 * torch.logaddexp(-2 * theta, -2 * self.ends)

    def theta(self, phi: Tensor) -> Tensor:
        """Return θ; ∞ from the end on."""
        return phi - 0.5 * torch.log1p(-(2 * (phi - self.ends)).exp().clamp_max(1.0))

    def stretch(self, theta: Tensor) -> Tensor:
        """Return dθ / dφ."""
        return 1 + (2 * (theta - self.ends)).exp()


LOGARITHMIC = Coordinates(torch.tensor(math.inf, dtype=torch.float64))
"""φ = θ."""
