"""The drift: functions of x whose coefficients are fitted, and the spread of data that they are measured by."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class MeanKind(StrEnum):
    """The functions that are added to a process of mean zero; the value is what users type."""

    ZERO = "zero"
    CONSTANT = "constant"
    LINEAR = "linear"


DRIFTS = tuple(MeanKind)

CONSTANT = 1e-12
"""Standard deviation of a column, relative to its largest entry, that is rounding."""

CENTRAL = 2.563
"""Width of the central four fifths of a normal distribution, in standard deviations."""

SINGULAR = 1e-10
"""Singular value of the standardised inputs, relative to the largest, below which a direction is constant."""

ROUNDED = 8 * 2.0**-53
"""Relative rounding of an input: columns that were computed from each other are collinear but for that."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The functions h(x) = [1, x − centre] T whose coefficients β are fitted by generalised least squares."""

    centre: Tensor  # (d,)
    T: Tensor  # (1 + d, b)

    def __call__(self, X: Tensor) -> Tensor:
        """Return h(x_i) as an (n, b) tensor."""
        if self.T.shape[1] == 0:
            return X.new_zeros(len(X), 0)
        return torch.cat([X.new_ones(len(X), 1), X - self.centre], dim=1) @ self.T


def spread_of(X: Tensor) -> Tensor:
    """Return (d,) the standard deviation of each column, at whatever scale; 0 where it is nothing but rounding."""
    largest = X.abs().amax(0)
    unit = torch.where(largest > 0, largest, 1.0)
    spread = (X / unit).std(0, correction=0)
    return torch.where(spread > CONSTANT, spread * unit, 0.0)


def central_spread_of(X: Tensor) -> Tensor:
    """Return (d,) the same without the outer fifth of each column, if that is less and not 0."""
    ordered, cut, spread = X.sort(0).values, len(X) // 10, spread_of(X)
    central = (ordered[len(X) - 1 - cut] - ordered[cut]) / CENTRAL
    return torch.where(central > 0, torch.minimum(central, spread), spread)


def drift(kind: str, X: Tensor) -> Drift:
    """Return the drift "zero", "constant" or "linear" for these inputs; its columns are independent on them."""
    if kind not in DRIFTS:
        raise ValueError(f"mean must be one of {', '.join(DRIFTS)}, not {kind!r}")
    d, centre = X.shape[1], X.mean(0)
    T = X.new_zeros(1 + d, 1)
    T[0] = 1.0
    if kind == MeanKind.ZERO:
        return Drift(centre, T[:, :0])
    if kind == MeanKind.LINEAR:
        slopes = _slopes(X, centre)
        T = torch.cat([T, torch.cat([slopes.new_zeros(1, slopes.shape[1]), slopes])], dim=1)
    return Drift(centre, T)


def _slopes(X: Tensor, centre: Tensor) -> Tensor:
    """Return (d, b) directions in which the standardised inputs Z vary, scaled so that each varies by 1.

    A perturbation E of Z moves no singular value by more than ‖E‖_F: those that rounding of X may account for are left
    out, since their directions are made of nothing but rounding.
    """
    spread = spread_of(X)
    scale = torch.where(spread > 0, 1 / spread, 0.0)
    _, S, V = torch.linalg.svd((X - centre) * scale, full_matrices=False)
    by_rounding = ROUNDED * (X.abs() * scale).norm()
    kept = torch.maximum(SINGULAR * S.max().clamp_min(1e-300), by_rounding) < S
    slopes: Tensor = scale[:, None] * V[kept].T / S[kept] * len(X) ** 0.5
    return slopes
