"""A low-rank P ⪯ A: bounds on errors of solves with A, and a control variate for traces."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.dense import inner, solve_from_the_right
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, lengths_from_centre
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning.ranks import Sizes
from kernelcg.preconditioners.low_rank_remainder import cholesky_with_jitter
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots
from kernelcg.preconditioners.shapes import Diagonal, LowRankPlus
from kernelcg.solvers import CholeskyFactor


@dataclass(frozen=True, eq=False)
class LowerBound:
    r"""P = Q + D ⪯ A = K + D with :math:`Q = K_{XU} K_{UU}^{-1} K_{UX} = F F^\top`, U some rows of X; all float64.

    Since A⁻¹ ⪯ P⁻¹, for any x̂ and its residual r = b − Ax̂ the error satisfies ‖x − x̂‖²_A = rᵀA⁻¹r ≤ rᵀP⁻¹r.
    """

    A: KernelPlusDiagonal
    pivots: Tensor  # (m,)
    F: Tensor  # (n, m)
    L: Tensor  # (m, m), L Lᵀ = K_UU
    P: LowRankPlus

    @classmethod
    def of(cls, A: KernelPlusDiagonal, generator: Generator, rank: int | None = None, sizes: Sizes = Sizes()) -> Self:
        """Return a bound with randomly pivoted rows U: as many as are cheap and fit the memory, or ``rank`` of them."""
        affordable = sizes.rank_of_bound(len(A), A.memory_budget())
        rank = affordable if rank is None else min(rank, affordable)
        choose = random_pivots(generator)
        factor = extended(no_pivots(A.K), A.K, rank=rank, tolerance=1e-10, choose=choose)
        return cls.at(A, factor.pivots)

    @classmethod
    def at(cls, A: KernelPlusDiagonal, pivots: Tensor) -> Self:
        """Return the bound with given rows U, for the present hyperparameters. Costs O(n m²)."""
        pivots = pivots.to(A.device)
        F, L = projected(A.K, pivots)
        return cls(A, pivots, F, L, LowRankPlus(Diagonal(A.diagonal), F))

    def energy(self, R: Tensor) -> Tensor:
        """Return (k,) upper bounds of rᵀA⁻¹r: rᵀP⁻¹r, widened by what rounding may do to F and in the solve.

        The solve subtracts QQᵀz from z = D^-½r, where rounding costs zᵀ(I − QQᵀ)z up to (32 + 2√n) u ‖z‖².
        """
        lost = (32 + 2 * math.sqrt(len(R))) * UNIT_ROUNDOFF * (R.square() / self.A.diagonal[:, None]).sum(0)
        return rounding_slack(self.A) * ((R * self.P.solve(R)).sum(0).clamp_min(0.0) + lost)

    def gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ Q right_j for the log hyperparameters of the kernel.

        With B = K_XU K_UU⁻¹, ∂Q = ∂K_XU Bᵀ + B ∂K_UX − B ∂K_UU Bᵀ.
        """
        left_U, right_U = self._onto_pivots(left), self._onto_pivots(right)
        columns = self._gradient_of_columns(torch.cat([left, right], 1), torch.cat([right_U, left_U], 1))
        return columns - self._gradient_of_pivots(left_U, right_U)

    def trace_gradient(self) -> Tensor:
        """Return ∂/∂θ log|P| = tr(P⁻¹ ∂Q) for the log hyperparameters of the kernel. Costs O(n m²)."""
        B = self.F.clone()
        solve_from_the_right(self.L, B, upper=False)
        solved = self.P.solve(B)
        one = torch.eye(len(self.L), dtype=torch.float64, device=self.L.device)
        return 2 * self._gradient_of_columns(solved, one) - self._gradient_of_pivots(inner(B, solved), one)

    def trace_of_inverse(self) -> float:
        """Return tr P⁻¹."""
        return float(self.P.inverse_diagonal().sum())

    def _onto_pivots(self, V: Tensor) -> Tensor:
        """Return BᵀV."""
        return torch.linalg.solve_triangular(self.L.mT, inner(self.F, V), upper=True)

    def _gradient_of_columns(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ K_XU right_j."""
        return self.A.K.gradient(left, right, columns=self.pivots, precision=torch.float64).cpu()

    def _gradient_of_pivots(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ K_UU right_j."""
        return self.A.K.at(self.pivots).gradient(left, right, precision=torch.float64).cpu()


def projected(K: KernelMatrix, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """Return F with F Fᵀ = K_XU K_UU⁻¹ K_UX ⪯ K for the rows U, and L with L Lᵀ = K_UU. Costs O(n m²)."""
    U = pivots.to(K.device)
    L, _ = cholesky_with_jitter(K.block(U, U, precision=torch.float64), 0.0)  # jitter: still below K
    columns = K.block(None, U, precision=torch.float64)
    solve_from_the_right(L.mT, columns)
    return columns, L


@dataclass(frozen=True, eq=False)
class Exact:
    """P = A itself, by its Cholesky factor."""

    A: KernelPlusDiagonal
    P: CholeskyFactor

    def energy(self, R: Tensor) -> Tensor:
        """Return (k,) rᵀA⁻¹r, widened by what rounding may do to the factor."""
        return rounding_slack(self.A) * (R * self.P.solve(R)).sum(0).clamp_min(0.0)


def rounding_slack(A: KernelPlusDiagonal) -> float:
    """Return s ≥ 1 such that A⁻¹ ⪯ s P⁻¹ though P was computed in float64.

    P ⪯ A + ε I ⪯ (1 + ε / min D) A, ε = n (8 + 4ρ) u max K. The 8 is for the arithmetic; rounded inputs make all
    entries of a row wrong alike, by a matrix of Frobenius norm 4ρ n u max K, ρ² the mean of `lengths_from_centre`².
    """
    largest, lengths = float(A.kernel_diagonal().max()), float(lengths_from_centre(A).square().mean().sqrt())
    return 1 + (8 + 4 * lengths) * len(A) * UNIT_ROUNDOFF * largest / A.spectrum_floor()
