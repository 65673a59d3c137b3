"""Rational approximations: f(λ) ≈ Σ_i w_i / (λ + t_i) with positive shifts t_i."""

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import ellipj, ellipkm1

Array = NDArray[np.float64]

MOST_NODES = 200


class Numerator(Enum):
    """The factor of a sum of partial fractions, as a function of λ."""

    ONE = "1"
    IDENTITY = "λ"
    SHIFTED = "λ − centre"


@dataclass(frozen=True)
class PartialFractions:
    """λ ↦ constant + numerator(λ) Σ_i w_i / (λ + t_i) on an interval.

    ``error`` is the largest one on the interval, relative for the roots, absolute for the logarithm, whose numerator is
    shifted.
    """

    shifts: Array
    weights: Array
    constant: float
    numerator: Numerator
    centre: float
    error: float

    def __call__(self, values: Array) -> Array:
        total = (self.weights / (values[:, None] + self.shifts)).sum(1)
        result: Array = self.constant + self._factor(values) * total
        return result

    def _factor(self, values: Array) -> Array:
        match self.numerator:
            case Numerator.ONE:
                return np.ones_like(values)
            case Numerator.IDENTITY:
                return values
            case Numerator.SHIFTED:
                return values - self.centre


def partial_fractions(function: str, low: float, high: float, rtol: float) -> PartialFractions:
    """Return partial fractions for "sqrt", "inverse_sqrt" or "log" on [low, high], accurate to rtol.

    The error is relative for the roots and, since the logarithm has a zero, relative to its largest value there.
    The number of terms grows like log(high / low) · log(1 / rtol); the error is measured on a fine grid.
    """
    grid = np.geomspace(low, high, 1000)
    exact = np.log(grid) if function == "log" else np.sqrt(grid) if function == "sqrt" else 1 / np.sqrt(grid)
    scale = np.full_like(grid, np.abs(exact).max()) if function == "log" else np.abs(exact)
    nodes = 4
    while True:
        candidate = _logarithm(low, high, nodes) if function == "log" else _root(function, low, high, nodes)
        error = float((np.abs(candidate(grid) - exact) / scale).max())
        if error <= rtol or nodes >= MOST_NODES:
            worst = float(np.abs(candidate(grid) - exact).max()) if function == "log" else error
            return replace(candidate, error=worst)
        nodes += max(1, nodes // 4)


def _root(function: str, low: float, high: float, nodes: int) -> PartialFractions:
    """λ^-½ by the trapezium rule in the elliptic coordinate of Hale, Higham & Trefethen (2008), method 3."""
    modulus = 1 - low / high
    quarter = ellipkm1(low / high)
    sn, cn, dn, _ = ellipj((np.arange(nodes) + 0.5) * quarter / nodes, modulus)
    shifts = low * (sn / cn) ** 2
    weights = 2 * quarter * math.sqrt(low) / (math.pi * nodes) * dn / cn**2
    numerator = Numerator.IDENTITY if function == "sqrt" else Numerator.ONE
    return PartialFractions(shifts, weights, 0.0, numerator, 0.0, math.nan)


def _logarithm(low: float, high: float, nodes: int) -> PartialFractions:
    r"""Integrate :math:`\log(\lambda/c) = \int_0^\infty \frac{\lambda - c}{(1 + s)(\lambda + c s)} ds`, s = eᵘ.

    The trapezium rule in u converges geometrically: the integrand is analytic for |Im u| < π and decays like
    e^{-|u|}. Step and range balance both errors.
    """
    centre = math.sqrt(low * high)
    half_range = math.log(high / low) / 2
    # error of the step exp(−2π²/h), of the range exp(−(u_max − half_range)); nodes · h = 2 u_max
    step = (half_range + math.sqrt(half_range**2 + 4 * math.pi**2 * nodes)) / nodes
    u = (np.arange(nodes) - (nodes - 1) / 2) * step
    weights = step / (1 + np.exp(-u))
    return PartialFractions(centre * np.exp(u), weights, math.log(centre), Numerator.SHIFTED, centre, math.nan)
