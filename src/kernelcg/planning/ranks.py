"""How large the low-rank bound P ⪯ A of a certificate may be."""

import math

LEAST_RANK = 256

RANK_WORK = 4e9
"""n m² up to which more rank m is cheap beside everything else."""

BLOCKS = 6
"""Blocks of n × m numbers that exist together while Woodbury's form of the bound is made."""


def bound_rank(n: int, budget: float) -> int:
    """Return a rank that is cheap beside everything else, and fits the budget."""
    cheap = max(LEAST_RANK, math.isqrt(int(RANK_WORK / n)))
    return min(cheap, n, max(int(budget / (8 * n * BLOCKS)), 1))
