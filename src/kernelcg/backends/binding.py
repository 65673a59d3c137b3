"""Kernel matrices of sums and of multiples, made of those of their parts; whatever is left goes to tiles."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends.base import KernelMatrix, Points, Rows
from kernelcg.backends.rounding import exactly_centred
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.kernels import Constant, Kernel, Mapped, MinMax, OnColumns, Product, Stationary, Sum, Tanimoto


def matrix_of(kernel: Kernel, points: Points) -> KernelMatrix:
    """Return K by the backend's own code; else by that for the parts of a sum or multiple; else by tiles."""
    backend = points.backend
    if backend.computes(kernel, points.X):
        return backend.matrix(kernel, points)
    if isinstance(kernel, Mapped):
        of_columns = kernel.inputs(points.centre[None])[0] if isinstance(kernel, OnColumns) else None
        mapped = backend.place(kernel.inputs(points.X.double()), of_columns)
        return MappedMatrix(kernel, points, kernel, matrix_of(kernel.part, mapped))
    whole = TilesMatrix(kernel, points)
    if type(kernel) is Sum:
        return SumMatrix(kernel, points, whole, matrix_of(kernel.left, points), matrix_of(kernel.right, points))
    if type(kernel) is Product and (found := constant_factor(kernel)):
        constant, part = found
        first = constant is kernel.left
        return MultipleMatrix(kernel, points, whole, constant.variance.item(), first, matrix_of(part, points))
    return whole


MOST_PATTERNS = 16
"""Sets of features up to which new points are told apart by those from which the centre is subtracted exactly."""


def block_beside(K: KernelMatrix, X: Tensor) -> Tensor:
    """Return k(x, x') of new points (t, d) in float64, seen from where the data of K are seen from.

    Points far away, even if they are most of them, hence leave the entries of the others alone. Where a phase is seen,
    the centre of the data is subtracted from two points in the features where that rounds neither of them.
    """
    kernel, centre, place = K.kernel, K.points.centre, K.points.backend.place
    patterns, group = exactly_centred(X, centre).unique(dim=0, return_inverse=True)
    if kernel.rounds_well or not kernel.is_stationary or not 1 < len(patterns) <= MOST_PATTERNS:
        return place(X, centre).bind(kernel).block(precision=torch.float64)
    result = X.new_empty(len(X), len(X))
    for p, one in enumerate(patterns):
        for q, other in enumerate(patterns[: p + 1]):
            rows, columns, origin = group == p, group == q, torch.where(one & other, centre, 0.0)
            found = place(X[columns], origin).bind(kernel).cross_block(X[rows], precision=torch.float64)
            result[rows[:, None] & columns] = found.reshape(-1)
            result[columns[:, None] & rows] = found.T.reshape(-1)
    return result


def constant_factor(kernel: Product) -> tuple[Constant, Kernel] | None:
    """Return the constant and the other factor of a product, if one of them is a constant."""
    for one, other in ((kernel.left, kernel.right), (kernel.right, kernel.left)):
        if type(one) is Constant:
            return one, other
    return None


@dataclass(frozen=True, eq=False, repr=False)
class MappedMatrix(KernelMatrix):
    """K of a kernel of mapped inputs: that of its part at the mapped data."""

    mapping: Mapped
    part: KernelMatrix

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.part._product(V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.part._cross(self.mapping.inputs(points.double()), V, dtype)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.part._block(rows, columns, dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.part._cross_block(self.mapping.inputs(points.double()), columns, dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        return self.part._gradient(left, right, columns, weights, dtype)

    def _both_ways(self, other: KernelMatrix, V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if not isinstance(other, MappedMatrix):
            return super()._both_ways(other, V, W, dtype)
        return self.part._both_ways(other.part, V, W, dtype)

    def _gradient_between(self, other: KernelMatrix, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        if not isinstance(other, MappedMatrix):
            return super()._gradient_between(other, left, right, dtype)
        return self.part._gradient_between(other.part, left, right, dtype)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        return self.part._local_factors(neighbours, F, scale, diagonal)


@dataclass(frozen=True, eq=False, repr=False)
class InParts(KernelMatrix):
    """A matrix whose products come from its parts; single entries are computed all at once."""

    whole: TilesMatrix

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.whole._block(rows, columns, dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        return self.whole._cross_block(points, columns, dtype)


@dataclass(frozen=True, eq=False, repr=False)
class SumMatrix(InParts):
    """K₁ + K₂."""

    left: KernelMatrix
    right: KernelMatrix

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.left._product(V, dtype) + self.right._product(V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.left._cross(points, V, dtype) + self.right._cross(points, V, dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        return torch.cat([part._gradient(left, right, columns, weights, dtype) for part in (self.left, self.right)])

    def _both_ways(self, other: KernelMatrix, V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if not isinstance(other, SumMatrix):
            return super()._both_ways(other, V, W, dtype)
        (v, w), (v2, w2) = (mine._both_ways(its, V, W, dtype) for mine, its in self._beside(other))
        return v + v2, w + w2

    def _gradient_between(self, other: KernelMatrix, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        if not isinstance(other, SumMatrix):
            return super()._gradient_between(other, left, right, dtype)
        return torch.cat([mine._gradient_between(its, left, right, dtype) for mine, its in self._beside(other)])

    def _beside(self, other: "SumMatrix") -> tuple[tuple[KernelMatrix, KernelMatrix], ...]:
        return (self.left, other.left), (self.right, other.right)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        return self.whole._local_factors(neighbours, F, scale, diagonal)


@dataclass(frozen=True, eq=False, repr=False)
class MultipleMatrix(InParts):
    """c K."""

    factor: float
    factor_first: bool
    """Whether c comes before the hyperparameters of K."""
    part: KernelMatrix

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.factor * self.part._product(V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self.factor * self.part._cross(points, V, dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return that of the part times c; the entry of log c is that of its log σ², which is the sum itself."""
        if not self._ends_in_variance():
            return self.whole._gradient(left, right, columns, weights, dtype)
        return self._with_factor(self.part._gradient(left, right, columns, weights, dtype))

    def _both_ways(self, other: KernelMatrix, V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if not isinstance(other, MultipleMatrix):
            return super()._both_ways(other, V, W, dtype)
        v, w = self.part._both_ways(other.part, V, W, dtype)
        return self.factor * v, self.factor * w

    def _gradient_between(self, other: KernelMatrix, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        if not (isinstance(other, MultipleMatrix) and self._ends_in_variance()):
            return self.whole._gradient_between(other, left, right, dtype)
        return self._with_factor(self.part._gradient_between(other.part, left, right, dtype))

    def _ends_in_variance(self) -> bool:
        """Say whether the last entry of the part's gradient is the sum itself."""
        kernel = self.part.kernel
        scaled = isinstance(kernel, Stationary | Tanimoto | MinMax) and kernel.parameter_names()[-1] == "variance"
        return scaled and not isinstance(self.part, TilesMatrix)

    def _with_factor(self, inner: Tensor) -> Tensor:
        """Return the gradient from that of the part."""
        inner = self.factor * inner
        return torch.cat([inner[-1:], inner] if self.factor_first else [inner, inner[-1:]])

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        """Return those of σ² k with c σ² in the place of σ², for all constant factors together."""
        factor, part = self.factor, self.part
        while isinstance(part, MultipleMatrix):
            factor, part = factor * part.factor, part.part
        kernel = part.kernel
        if not (isinstance(kernel, Stationary) and self.backend.computes(kernel, self.X)):
            return self.whole._local_factors(neighbours, F, scale, diagonal)
        scaled = kernel._with(variance=factor * kernel.variance.detach())
        return self.backend.matrix(scaled, self.points)._local_factors(neighbours, F, scale, diagonal)
