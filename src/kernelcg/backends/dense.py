"""Stored kernel matrix: for when it fits and pays (many products with few columns, expensive formulas)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends.base import Backend, check_product, require_memory, rounded_columns
from kernelcg.kernels import Kernel


@dataclass(frozen=True, eq=False, kw_only=True)
class Dense(Backend):
    """K(X, X) computed once; a product with it is one GEMM. Everything else is left to ``base``.

    Made by `store`. It answers from memory only for the very kernel, data and precision it was made for, so
    another kernel, test points or a float64 check are computed afresh and never mistaken.
    """

    kernel: Kernel
    X: Tensor
    K: Tensor
    base: Backend

    def matmul(
        self, kernel: Kernel, X: Tensor, Y: Tensor, V: Tensor, *, precision: torch.dtype | None = None
    ) -> Tensor:
        dtype = check_product(X, Y, V, precision)
        if not (kernel is self.kernel and X is self.X and Y is self.X and dtype == self.K.dtype):
            return self.base.matmul(kernel, X, Y, V, precision=precision)
        columns, scale = rounded_columns(V, dtype)
        return (self.base.stored_product(self.K, columns) * scale).to(V.dtype)

    def gradient(
        self,
        kernel: Kernel,
        X: Tensor,
        Y: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        weights: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        return self.base.gradient(kernel, X, Y, left, right, weights=weights, precision=precision)

    def block(self, kernel: Kernel, X: Tensor, Y: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        return self.base.block(kernel, X, Y, precision=precision)

    def local_factors(
        self,
        kernel: Kernel,
        X: Tensor,
        neighbours: Tensor,
        F: Tensor | None,
        scale: Tensor | None,
        diagonal: Tensor,
    ) -> Tensor:
        return self.base.local_factors(kernel, X, neighbours, F, scale, diagonal)


def store(kernel: Kernel, X: Tensor, base: Backend, *, precision: torch.dtype | None = None) -> Dense:
    """Compute K(X, X) with ``base`` and keep it, if its n² numbers fit the budget of ``base``."""
    dtype = precision or X.dtype
    require_memory(dtype.itemsize * len(X) ** 2, base.budget(), f"storing the {len(X)} x {len(X)} kernel matrix")
    K = base.block(kernel, X, X, precision=dtype)
    return Dense(memory=base.memory, kernel=kernel, X=X, K=K, base=base)
