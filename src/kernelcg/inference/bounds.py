"""Upper bounds of rᵀA⁻¹r that hold in floating-point arithmetic."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernelcg.operators import KernelPlusDiagonal

UNIT_ROUNDOFF = 2.0**-53

ENTRY_ERROR = 32
"""Error of a kernel entry computed in float64, in units of its rounding, apart from that of the inputs."""


class EnergyBound(Protocol):
    """Something with P ⪯ A."""

    def energy(self, R: Tensor) -> Tensor:
        """Return (k,) upper bounds of rᵀA⁻¹r in exact arithmetic."""
        ...

    def energy_matrix(self, R: Tensor) -> Tensor:
        """Return a (k, k) matrix M with RᵀA⁻¹R ⪯ M."""
        ...


@dataclass(frozen=True, eq=False)
class Rounding:
    r"""How far a product with A in float64 may be off: |δ_i| ≤ γ (√k_ii Σ_j √k_jj |x_j| + D_ii |x_i|).

    γ counts the error of an entry, that of the scaled inputs it is computed from, and the accumulation of n terms,
    which grows as √n with overwhelming probability (Higham & Mary 2019). |K_ij| ≤ √(k_ii k_jj) for every kernel.
    """

    diagonal: Tensor  # (n,) D
    root: Tensor  # (n,) √k_ii
    gamma: float

    @classmethod
    def of(cls, A: KernelPlusDiagonal) -> "Rounding":
        coordinates = A.kernel.coordinates(A.X)
        spread = float((coordinates - coordinates.mean(0)).abs().max()) if coordinates.numel() else 0.0
        units = ENTRY_ERROR + 2 * math.sqrt(len(A)) + 2 * math.sqrt(A.X.shape[1]) * spread
        return cls(A.diagonal, A.kernel_diagonal().clamp_min(0).sqrt(), units * UNIT_ROUNDOFF)

    def norm_of_residual_error(self, X: Tensor) -> Tensor:
        """Return (k,) upper bounds of ‖D^-½ δ‖ ≥ (δᵀA⁻¹δ)^½ for the residuals B − A X."""
        total = self.root @ X.abs()  # (k,)
        weights = (self.root.square() / self.diagonal).sum().sqrt()
        return self.gamma * (total * weights + (self.diagonal[:, None] * X.square()).sum(0).sqrt())

    def of_mean(self, root_new: Tensor, weights: Tensor) -> Tensor:
        """Return (t, c) how far k*ᵀa computed in float64 may be off."""
        return self.gamma * root_new[:, None] * (self.root @ weights.abs())

    def of_products(self, root_new: Tensor, V: Tensor) -> Tensor:
        """Return (t,) how far 2 k_jᵀv_j − v_jᵀAv_j computed in float64 may be off."""
        return 4 * self.gamma * root_new * (self.root @ V.abs())


@dataclass(frozen=True, eq=False)
class Certified:
    """Solutions X of A X = B with their residuals and an upper bound of each error ‖x − A⁻¹b‖_A."""

    X: Tensor
    R: Tensor
    error: Tensor  # (k,)
    floor: Tensor  # (k,) the part of it that is rounding


def certified(A: KernelPlusDiagonal, B: Tensor, X: Tensor, bound: EnergyBound, rounding: Rounding) -> Certified:
    """Recompute B − A X in float64 and bound the errors of X. Costs one product."""
    R = B - A.with_precision(torch.float64) @ X
    floor = rounding.norm_of_residual_error(X)
    return Certified(X, R, bound.energy(R).sqrt() + floor, floor)
