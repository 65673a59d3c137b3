"""A kernel matrix whose entries are stored: worth its memory for many products with few columns and dear formulas."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends.base import KernelMatrix, Rows
from kernelcg.backends.rounding import rounded_columns


@dataclass(frozen=True, eq=False, repr=False)
class StoredMatrix(KernelMatrix):
    """K computed once; a product in the precision of its entries is one GEMM. Everything else is left to ``base``."""

    base: KernelMatrix
    entries: Tensor  # (n, n)

    @property
    def is_stored(self) -> bool:
        return True

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype != self.entries.dtype:
            return self.base._product(V, dtype)
        columns, scale = rounded_columns(V, dtype)
        product = (columns.T.contiguous() @ self.entries).T  # with few columns the transposed product is faster
        return (product * scale).to(V.dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.base._cross(points, V, dtype)

    def _product_of_columns(self, columns: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.base._product_of_columns(columns, V, dtype)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.base._block(rows, columns, dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.base._cross_block(points, columns, dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        return self.base._gradient(left, right, columns, weights, dtype)

    def _neighbours(self, order: Tensor, count: int) -> Tensor:
        return self.base._neighbours(order, count)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        return self.base._local_factors(neighbours, F, scale, diagonal)
