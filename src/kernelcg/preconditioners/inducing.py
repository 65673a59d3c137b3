"""The low-rank factor of the Nyström family: K ≈ Q = K_XU K_UU⁻¹ K_UX for a set U of data points."""

import math
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.dense import solve_from_the_right
from kernelcg.preconditioners.base import checked_count, require_rank_memory
from kernelcg.preconditioners.low_rank_remainder import cholesky_with_jitter
from kernelcg.randomness import choose


@dataclass(frozen=True, eq=False)
class Inducing:
    """F with F Fᵀ = Q, the points U it came from, and what had to be done to K_UU."""

    F: Tensor
    points: Tensor
    notes: tuple[str, ...]


def inducing_factor(
    K: KernelMatrix,
    generator: Generator,
    rank: int | None,
    points: tuple[int, ...] | None,
    jitter: float,
) -> Inducing:
    """Return F = K_XU L⁻ᵀ with L Lᵀ = K_UU + jitter: O(n m²) time, O(n m) memory.

    The printed cost in the paper's section 3.1, O(m³), forgets K_UX K_XU.
    """
    n = len(K)
    if points is None:
        chosen = choose(n, max(checked_count(rank, 4 * math.isqrt(n), n, "rank"), 1), generator)
    else:
        if len(points) == 0 or not all(isinstance(point, Integral) and 0 <= point < n for point in points):
            raise ValueError(f"points must be row numbers from 0 to {n - 1}, at least one")
        chosen = torch.tensor(points, dtype=torch.int64)
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter must be in [0, 1), relative to the diagonal of K_UU, not {jitter!r}")
    require_rank_memory(n, len(chosen), K.budget())
    U = chosen.to(K.device)
    K_xu = K.block(None, U, precision=torch.float64)
    L, used = cholesky_with_jitter(K.block(U, U, precision=torch.float64), jitter)
    notes = () if used == jitter else (f"jitter of K_UU raised from {jitter:.0e} to {used:.0e} of its diagonal",)
    solve_from_the_right(L.mT, K_xu)
    return Inducing(K_xu, chosen, notes)


def remaining_diagonal(K: KernelMatrix, F: Tensor) -> Tensor:
    """Return diag(K − F Fᵀ), at least 0."""
    return (K.diagonal() - F.square().sum(1)).clamp_min(0.0)
