"""Partial Cholesky factorisation K ≈ F Fᵀ from a few of its columns, with pivots chosen greedily or at random."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.dense import solve_from_the_right, subtract_product
from kernelcg.preconditioners.base import require_rank_memory
from kernelcg.solvers.reading import Floats, read
from kernelcg.sums import running_shares

EXHAUSTED = 1e-14
"""A remaining trace or pivot below this multiple of the original one is rounding."""

PROPOSALS = 100
"""Pivots drawn at once; those that depend on one another are rejected."""


@dataclass(frozen=True, eq=False)
class PartialCholesky:
    """K ≈ F Fᵀ ⪯ K: the factor (n, m), its pivots, and the diagonal (n,) of what is left, K − F Fᵀ."""

    F: Tensor
    pivots: Tensor
    remainder: Tensor
    trace: float
    """The trace of K."""

    @property
    def rank(self) -> int:
        """Return m."""
        return self.F.shape[1]

    @property
    def remaining_share(self) -> float:
        """Return tr(K − F Fᵀ) / tr K."""
        return float(self.remainder.sum()) / self.trace if self.trace > 0 else 0.0


Choose = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function of diag E that returns the rows proposed as the next pivots, and for each of them the limit that its pivot
must exceed when its turn comes."""


def no_pivots(K: KernelMatrix, storage: torch.dtype = torch.float64) -> PartialCholesky:
    """Return the factorisation of rank 0, which is going to be stored in this precision."""
    diagonal = K.diagonal().clone()
    empty = torch.zeros(len(K), 0, dtype=storage, device=K.device)
    return PartialCholesky(empty, torch.zeros(0, dtype=torch.int64), diagonal, float(diagonal.sum()))


def extended(
    previous: PartialCholesky,
    K: KernelMatrix,
    *,
    rank: int,
    tolerance: float,
    choose: Choose,
) -> PartialCholesky:
    r"""Return the factorisation grown until tr(K − F Fᵀ) ≤ tolerance·tr K, or to ``rank`` columns.

    With E = K − F Fᵀ and pivots T, :math:`F \gets [F, E_{:T} L^{-\top}]` where :math:`L L^\top = E_{TT}`.
    Costs n (rank) kernel entries and O(n rank²) in matrix products; nothing but F grows with n. Reads once for each
    block of pivots. F keeps the precision in which it is stored; in float32 later columns make up for the rounding of
    earlier ones, since all arithmetic is in float64.
    """
    if not 0 <= tolerance <= 1:
        raise ValueError(f"tolerance must be in [0, 1], relative to the trace of K, not {tolerance!r}")
    rank = min(rank, len(K))
    if previous.rank >= rank or previous.remaining_share <= max(tolerance, EXHAUSTED):
        return previous
    storage = previous.F.dtype
    require_rank_memory(len(K), rank, K.budget(), rounded=storage == torch.float32)
    F = torch.empty(len(K), rank, dtype=storage, device=K.device)
    F[:, : previous.rank] = previous.F
    pivots, remainder, m = [previous.pivots], previous.remainder.clone(), previous.rank

    while m < rank:
        rows, limits = choose(remainder)
        E = K.block(rows, rows, precision=torch.float64)
        of_rows = F[rows, :m].double()
        E.addmm_(of_rows, of_rows.T, alpha=-1)
        small, thresholds, numbers, [left] = read(E, limits, rows, remainder.sum()[None])
        accepted, L = accept(small, thresholds, rank - m)
        if left <= max(tolerance, EXHAUSTED) * previous.trace or len(accepted) == 0:
            break
        pivots.append(torch.from_numpy(numbers[accepted].astype(np.int64)))
        chosen = pivots[-1].to(K.device)
        E = K.block(None, chosen, precision=torch.float64)
        subtract_product(E, F[:, :m], F[chosen, :m].double().T)
        solve_from_the_right(torch.from_numpy(L).to(E).mT, E)
        F[:, m : m + len(chosen)] = E  # rounded, if so stored
        remainder = (remainder - E.square().sum(1)).clamp_min_(0.0)
        remainder[chosen] = 0.0
        m += len(chosen)
    return PartialCholesky(F if m == rank else F[:, :m].clone(), torch.cat(pivots), remainder, previous.trace)


def greedy(remainder: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the one point that is explained worst."""
    return remainder.argmax()[None], remainder.new_zeros(1)


def random_pivots(generator: Generator) -> Choose:
    """Return a rule that draws pivots with probability proportional to diag E, a block at a time.

    A proposal i drawn with probability E_ii / tr E is accepted with probability E'_ii / E_ii, where E' takes the
    pivots accepted before it in this block into account. The result has the law of one pivot at a time.

    References
    ----------
    Chen, Epperly, Tropp & Webber (2022), Randomly pivoted Cholesky; Epperly, Tropp & Webber (2024),
    Embrace rejection.
    """

    def choose(remainder: Tensor) -> tuple[Tensor, Tensor]:
        places, shares = (_uniform(generator).to(remainder.device) for _ in range(2))
        running = running_shares(remainder)
        proposals = torch.searchsorted(running, (places * running[-1]).long(), right=True).clamp_max(len(remainder) - 1)
        limits = (shares * remainder[proposals]).maximum(EXHAUSTED * remainder.max())
        return proposals, limits

    return choose


def _uniform(generator: Generator) -> Tensor:
    return torch.rand(PROPOSALS, generator=generator, dtype=torch.float64)


def accept(E: Floats, limits: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """Return which proposals have a pivot above their limit, in turn, and the Cholesky factor of their E.

    No more than ``most`` are accepted.
    """
    count = len(E)
    L = np.zeros((count, count))
    accepted: list[int] = []
    diagonal = E.diagonal().copy()
    for i in range(count):
        if diagonal[i] > limits[i] and len(accepted) < most:
            column = E[:, i] - L[:, : len(accepted)] @ L[i, : len(accepted)]
            L[:, len(accepted)] = column / np.sqrt(diagonal[i])
            diagonal -= L[:, len(accepted)] ** 2
            diagonal[i] = 0.0
            accepted.append(i)
    chosen = np.array(accepted, dtype=np.int64)
    return chosen, np.tril(L[chosen][:, : len(chosen)])


def weighted(choose: Choose, weights: Tensor) -> Choose:
    """Return the rule for D^½ E D^½ with D = diag(weights), where rows matter more or less than others."""

    def rule(remainder: Tensor) -> tuple[Tensor, Tensor]:
        rows, limits = choose(remainder * weights)
        return rows, limits / weights[rows]

    return rule
