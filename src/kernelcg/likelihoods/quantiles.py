"""Quantiles of an observation, from its cumulative distribution function."""

from collections.abc import Callable

import torch
from torch import Tensor

MOST_WIDENINGS = 60
"""Times that a bracket grows to twice its width, after which the quantile is called infinite."""

MOST_HALVINGS = 100

TOLERANCE = 1e-12
"""Width of a bracket of a real number, relative to that number and to the first width, that is narrow enough."""


def inverse(
    cumulative: Callable[[Tensor], Tensor],
    level: Tensor,
    centre: Tensor,
    width: Tensor,
    *,
    counts: bool = False,
    least: float = -torch.inf,
) -> Tensor:
    """Return the least y with ``cumulative(y)`` ≥ ``level``, entry by entry.

    A bracket around the ``centre`` is widened until it holds the quantile, and then halved. With ``counts``, y is a
    whole number; it is no less than ``least``.
    """
    low, high = _bracket(cumulative, level, centre, width, least)
    if counts:
        low, high = low.floor(), high.ceil()
    for _ in range(MOST_HALVINGS):
        narrow = torch.ones_like(low) if counts else TOLERANCE * (low.abs() + high.abs() + width)
        if bool((~high.isfinite() | (high - low <= narrow.maximum(1e-15 * high.abs()))).all()):
            break
        middle = low + (high - low) / 2
        middle = middle.floor() if counts else middle
        reached = cumulative(middle) >= level
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high


def _bracket(
    cumulative: Callable[[Tensor], Tensor], level: Tensor, centre: Tensor, width: Tensor, least: float
) -> tuple[Tensor, Tensor]:
    """Return ends between which the quantile lies; an infinite upper one where it is beyond all bounds."""
    below = least - 1 if least > -torch.inf else least
    low, high, step = (centre - width).clamp_min(below), centre + width, width.clone()
    for _ in range(MOST_WIDENINGS):
        too_high, too_low = (low > below) & (cumulative(low) >= level), ~(cumulative(high) >= level)
        if not bool((too_high | too_low).any()):
            return low, high
        step = 2 * step
        low, high = torch.where(too_high, (low - step).clamp_min(below), low), torch.where(too_low, high + step, high)
    return low, torch.where(cumulative(high) >= level, high, torch.inf)
