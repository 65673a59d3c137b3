"""Energies rᵀA⁻¹r of residuals, estimated by rᵀP⁻¹r: how far the two are apart, seen at a few columns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.operators import Invertible, LinearOperator
from kernelcg.solvers.energy_descent import energy_descent

MOST_STEPS = 50
"""Steps after which a descent of energies ends: a solve that may choose another preconditioner goes on from there."""

PILOT_FALL = 0.05
"""Part of their energies at which the gaps of a pilot are known well enough."""

SAFETY, LEAST_SPREAD = 3.0, 0.5
"""Factor by which gaps, relative to their estimates, may vary more than in the pilot, and the least variation that is
assumed."""


@dataclass(frozen=True)
class Gap:
    """How a gap rᵀA⁻¹r is estimated by e = rᵀP⁻¹r: as ``middle`` e, off by no more than ``spread`` e."""

    middle: float
    spread: float


UNTRIED, BELOW_A = Gap(1.0, 4.0), Gap(0.5, 0.5)
"""The relation that is assumed without a pilot; for P ⪯ A the gap lies between 0 and e."""


def observed_gap(
    A: LinearOperator,
    P: Invertible,
    V: Tensor,
    R: Tensor,
    untried: Gap,
    *,
    least_spread: float = LEAST_SPREAD,
    callback: Listener | None = None,
) -> Gap:
    """Return how gaps relate to their estimates in the columns of R = B − AV, where iterations compute them.

    A ratio of 1, that of a perfect P, counts as observed too: P may be better elsewhere.
    """
    first = (R * P.solve(R)).sum(0)

    def wants_more(columns: Tensor, _: Tensor, energies: Tensor, gains: Tensor) -> Tensor:
        return energies > PILOT_FALL * first[columns]

    found = energy_descent(A, P, V, R, wants_more, max_steps=MOST_STEPS, callback=callback)
    if not bool(found.done.all()):
        return untried
    ratios = torch.cat([(found.gains + found.energies)[first > 0] / first[first > 0], first.new_ones(1)])
    low, high = float(ratios.min()), float(ratios.max())
    more = 0.5 * (SAFETY - 1) * (high - low)
    low, high = max(low - more, 0.0), min(high + more, untried.middle + untried.spread)
    return Gap(0.5 * (low + high), max(0.5 * (high - low), min(least_spread, untried.spread)))
