"""Ranks, blocks and shares of the memory: the sizes between which the work below a plan chooses, fixed by the plan."""

import math
from dataclasses import dataclass

CLASS_ITERATIONS = 50
"""Products with K, of one column for each class, that making the preconditioner of a Newton step may cost."""

BLOCKS = 6
"""Blocks of n × m numbers that exist together while Woodbury's form of the bound is made."""


@dataclass(frozen=True)
class Sizes:
    """Between which sizes the work below a plan chooses.

    Attributes
    ----------
    first_rank : rank of the first low-rank factor of an automatic preconditioner, which is doubled while that pays
    most_rank : rank of an automatic preconditioner, at most, as far as there are rows and memory
    neighbours : numbers of neighbours of each point that may be used beside it, 0 for none, the fewest first
    columns : right-hand sides of one block solve in predictions, at most; fewer where the memory asks for it
    bound_rank : least rank m of the low-rank P ⪯ A from which probes are drawn and on which certificates rest, as far
        as there are rows and memory; also that of the low-rank part in Newton's systems for one latent value a row
    bound_work : n m² up to which the P of a certificate has more rank
    trace_columns : random columns from which exact evaluations take traces where A⁻¹ costs too much; with one of y they
        are the 32 pairs that a gradient in float64 takes in one pass on a GPU
    newton_work : n m² of the low-rank part in Newton's systems for one latent value a row
    class_work, covariance_work : n (Cm)² of the low-rank part in Newton's systems for C classes: for the few solves of
        a Newton step, which is less for few rows, and for the many of covariances
    newton_neighbours, rank_beside_neighbours : neighbours in Newton's systems where low rank alone leaves much of K,
        and the rank that is then used beside them
    for_preconditioner, for_bound, for_columns : parts of the memory for what exists at the same time: a preconditioner
        while it is made, the P of a certificate, the columns of a block that is solved for. The rest is for products
        and data
    """

    first_rank: int = 64
    most_rank: int = 16_384
    neighbours: tuple[int, ...] = (0, 30, 60)
    columns: int = 128
    bound_rank: int = 256
    bound_work: float = 4e9
    trace_columns: int = 31
    newton_work: float = 1e9
    class_work: float = 2e10
    covariance_work: float = 2e11
    newton_neighbours: int = 30
    rank_beside_neighbours: int = 128
    for_preconditioner: float = 0.4
    for_bound: float = 0.2
    for_columns: float = 0.25

    def __post_init__(self) -> None:
        counts = (
            self.first_rank,
            self.most_rank,
            self.columns,
            self.bound_rank,
            self.trace_columns,
            self.newton_neighbours,
            self.rank_beside_neighbours,
        )
        if min(counts) < 1 or 0 not in self.neighbours or min(self.neighbours) < 0:
            raise ValueError(
                f"ranks and columns must be at least 1, and neighbours 0 or more with 0 among them: {self}"
            )
        shares = (self.for_preconditioner, self.for_bound, self.for_columns)
        if not all(0 < share <= 1 for share in shares):
            raise ValueError(f"parts of the memory must be above 0 and at most 1, not {shares}")

    def __str__(self) -> str:
        counts = " or ".join(map(str, self.neighbours))
        return (
            f"automatic preconditioners begin with rank {self.first_rank} and use {counts} neighbours; "
            f"certificates rest on rank {self.bound_rank} or more; predictions solve for up to {self.columns} columns "
            f"at once"
        )

    def of_newton(self) -> str:
        """Return the sizes of Laplace's approximation in words."""
        return (
            f"preconditioners of Newton's systems have rank {self.bound_rank} or more, or {self.newton_neighbours} "
            f"neighbours beside rank {self.rank_beside_neighbours}; predictions solve for up to {self.columns} columns "
            f"at once"
        )

    def rank_of_bound(self, n: int, memory: float) -> int:
        """Return a rank m of P ⪯ A that is cheap beside everything else, and fits its part of the memory."""
        cheap = max(self.bound_rank, math.isqrt(int(self.bound_work / n)))
        return min(cheap, n, max(int(self.for_bound * memory / (8 * n * BLOCKS)), 1))

    def class_rank(self, n: int, classes: int, *, for_covariances: bool = False) -> int:
        """Return the rank m of the low-rank part in Newton's systems for classes."""
        most = CLASS_ITERATIONS * classes * n**2
        work = self.covariance_work if for_covariances else min(self.class_work, most)
        return max(min(int((work / n) ** 0.5 / classes), n // 2), 1)
