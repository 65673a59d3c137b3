"""Count the work that is done with a kernel matrix."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelcg.backends.base import KernelMatrix, Rows, rows_of
from kernelcg.backends.work import Work


@dataclass(frozen=True, eq=False, repr=False)
class CountedMatrix(KernelMatrix):
    """Pass everything on to ``base`` and count it, in columns multiplied with the matrix of all rows of ``work``.

    A product with k columns counts k, a gradient of k pairs k, with a part of K in the proportion of its entries to
    those of the whole. Entries that are handed out count in that proportion once. An (n, n) tensor of weights, which
    only an exact evaluation has, counts n: the n³ of its factorisation are n products of n². Products with the matrix
    of a related kernel, such as the slope in the average information, count like those with K.
    """

    base: KernelMatrix
    work: Work

    @property
    def is_stored(self) -> bool:
        return self.base.is_stored

    def stored(self, precision: torch.dtype | None = None) -> KernelMatrix:
        self._count(1, len(self) ** 2)
        return replace(self, base=self.base.stored(precision))

    def _count(self, columns: float, entries: int) -> None:
        self.work.columns += columns * entries / self.work.rows**2

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        self._count(V.shape[1], len(self) ** 2)
        return self.base._product(V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        self._count(V.shape[1], len(points) * len(self))
        return self.base._cross(points, V, dtype)

    def _product_of_columns(self, columns: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        self._count(V.shape[1], len(columns) * len(self))
        return self.base._product_of_columns(columns, V, dtype)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        self._count(1, len(rows_of(self.X, rows)) * len(rows_of(self.X, columns)))
        return self.base._block(rows, columns, dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        self._count(1, len(points) * len(rows_of(self.X, columns)))
        return self.base._cross_block(points, columns, dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        self._count(left.shape[1] + (0 if weights is None else len(weights)), len(left) * len(right))
        return self.base._gradient(left, right, columns, weights, dtype)

    def _neighbours(self, order: Tensor, count: int) -> Tensor:
        return self.base._neighbours(order, count)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        self._count(1, len(self) * (neighbours.shape[1] + 1) ** 2)
        return self.base._local_factors(neighbours, F, scale, diagonal)
