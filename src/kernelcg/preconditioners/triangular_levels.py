"""Solve with a sparse triangle where the data are: rows that do not need one another are done together."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

CHECKED_EVERY = 32
"""Steps of the search for levels between two looks at whether it has ended; each look waits for a GPU."""

GATHERED = 2**26
"""Numbers that are gathered at once, at most."""


@dataclass(frozen=True, eq=False)
class Triangle:
    """A sparse matrix that is lower triangular in some order, with its rows in groups: each needs only those before it.

    Row i has the entries values_ij at the columns neighbours_ij, −1 where there is none, and its last value on the
    diagonal.
    """

    neighbours: Tensor  # (n, q)
    values: Tensor  # (n, q + 1), 0 where there is no neighbour
    rows: Tensor  # (n,) row numbers, group after group
    ends: tuple[int, ...]  # where each group ends

    @classmethod
    def of(cls, neighbours: Tensor, values: Tensor) -> Self:
        """Find the groups, of which there are about q log(n / q) for the q nearest earlier rows in a random order."""
        level = _levels(neighbours)
        counts = torch.bincount(level) if len(level) else level
        return cls(neighbours, values, level.argsort(stable=True), tuple(counts.cumsum(0).tolist()))

    def solve(self, Z: Tensor) -> Tensor:
        """Return X with Σ_j values_ij X[neighbours_ij] + pivot_i X_i = Z_i, for Z (n, k), by forward substitution.

        Costs O(n q k) time.
        """
        X, pivots, start = torch.zeros_like(Z), self.values[:, -1:], 0
        at_once = max(GATHERED // max(self.values.shape[1] * Z.shape[1], 1), 1)
        for end in self.ends:
            for rows in self.rows[start:end].split(at_once):
                known = X[self.neighbours[rows].clamp_min(0)]  # (r, q, k)
                X[rows] = (Z[rows] - (self.values[rows, None, :-1] @ known)[:, 0]) / pivots[rows]
            start = end
        return X


def _levels(neighbours: Tensor) -> Tensor:
    """Return (n,) the level of each row: 1 more than the highest of the rows it needs, 0 if it needs none.

    Doing that for all rows at once, again and again, ends after as many steps as there are levels.
    """
    n, q = neighbours.shape
    level = torch.zeros(n + 1, dtype=torch.int64, device=neighbours.device)
    level[n] = -1  # of the row that is needed where there is none
    needed = torch.where(neighbours < 0, n, neighbours)
    for step in range(n if q else 0):
        higher = level[needed].amax(1) + 1
        if step % CHECKED_EVERY == CHECKED_EVERY - 1 and bool((higher == level[:n]).all()):
            break
        level[:n] = higher
    return level[:n]
