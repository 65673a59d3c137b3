"""Ranks and blocks: the sizes that a plan fixes, and how large the low-rank bound P ⪯ A of a certificate may be."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Between which sizes the work below a plan chooses.

    Attributes
    ----------
    first_rank : rank of the first low-rank factor of an automatic preconditioner, which is doubled while that pays
    neighbours : numbers of neighbours of each point that may be used beside it, 0 for none, the fewest first
    columns : right-hand sides of one block solve in predictions, at most; fewer where the memory asks for it
    """

    first_rank: int = 64
    neighbours: tuple[int, ...] = (0, 30, 60)
    columns: int = 128

    def __post_init__(self) -> None:
        if self.first_rank < 1 or self.columns < 1 or 0 not in self.neighbours or min(self.neighbours) < 0:
            raise ValueError(
                f"ranks and columns must be at least 1, and neighbours 0 or more with 0 among them: {self}"
            )

    def __str__(self) -> str:
        counts = " or ".join(map(str, self.neighbours))
        return (
            f"automatic preconditioners begin with rank {self.first_rank} and use {counts} neighbours; predictions "
            f"solve for up to {self.columns} columns at once"
        )


LEAST_RANK = 256

RANK_WORK = 4e9
"""n m² up to which more rank m is cheap beside everything else."""

BLOCKS = 6
"""Blocks of n × m numbers that exist together while Woodbury's form of the bound is made."""


def bound_rank(n: int, budget: float) -> int:
    """Return a rank that is cheap beside everything else, and fits the budget."""
    cheap = max(LEAST_RANK, math.isqrt(int(RANK_WORK / n)))
    return min(cheap, n, max(int(budget / (8 * n * BLOCKS)), 1))
