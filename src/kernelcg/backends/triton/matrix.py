"""K of an RBF or Matérn kernel by fused GPU kernels."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernelcg.backends.base import KernelMatrix, Rows, rows_of
from kernelcg.backends.memory import require_memory
from kernelcg.backends.rounding import rounded_columns, rounded_pairs
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.backends.triton import launches
from kernelcg.backends.triton.forms import (
    COLUMNS,
    FIXED_RADIUS,
    LARGEST_RADIUS,
    MARGIN,
    Coordinates,
    by_feature,
    fixed_point,
    padded,
    step_for,
)
from kernelcg.backends.triton.launches import PARTIAL_SUMS, PARTS
from kernelcg.backends.triton.shapes import Shape, shape_for, why_wrong

MATERN_HALF = 1

MOMENT_RADIUS = 16.0
"""Largest distance from the centre, in scaled units, at which squared differences may be made of moments.

They cancel: the error of a derivative grows with the square of this distance.
"""


@dataclass(frozen=True, eq=False, repr=False)
class TritonMatrix(KernelMatrix):
    """σ² profile(|x − y|²) with x and y in units of the lengthscale; what no kernel serves is left to tiles."""

    whole: TilesMatrix
    factors: Tensor  # (d,) what centred rows are multiplied by, float64, beside X
    variance: float
    profile: int
    checked: bool
    """Whether a kernel is tried before it is used; not in Triton's interpreter."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data and the kernel: the data are scaled again where they are unpickled."""
        return type(self.backend).matrix, (self.backend, self.kernel, self.points)

    # the data in units of the lengthscale, made when they are first asked for

    @cached_property
    def radius(self) -> float:
        """Return the largest distance of a row from the centre, in scaled units: the one number that is read back."""
        return float(_lengths(self.points.centred * self.factors).max())

    @cached_property
    def _double(self) -> Coordinates:
        return by_feature(self.points.centred * self.factors, torch.float64)

    @cached_property
    def _single(self) -> Coordinates:
        return by_feature(self.points.centred * self.factors, torch.float32)

    @cached_property
    def _fixed(self) -> Coordinates:
        return fixed_point(self.points.centred * self.factors, step_for(self.radius))

    @property
    def fits_fixed_point(self) -> bool:
        """Whether fixed point serves: data that are not too wide, and a correlation that is smooth at 0."""
        return self.profile != MATERN_HALF and self.radius <= FIXED_RADIUS

    def _coordinates(self, dtype: torch.dtype, *, fixed: bool) -> Coordinates:
        return self._fixed if fixed else self._single if dtype == torch.float32 else self._double

    # products

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        fixed = dtype == torch.float32 and self.fits_fixed_point
        if not self._serves("product", dtype, V.shape[1], fixed=fixed):
            return self.whole._product(V, dtype)
        self._require(len(self), V.shape[1])
        A = self._coordinates(dtype, fixed=fixed)
        return self._multiplied(A, A, V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K(points, X) V; points far outside the data are multiplied apart, since fixed point ends there."""
        fixed = dtype == torch.float32 and self.fits_fixed_point
        forms = (False, True) if fixed else (False,)
        self._require(len(points), V.shape[1])
        Z = (points.detach().double() - self.points.centre) * self.factors
        lengths = _lengths(Z)
        if not len(points) or not all(self._serves("product", dtype, V.shape[1], fixed=form) for form in forms):
            return self.whole._cross(points, V, dtype)
        if float(lengths.max()) > LARGEST_RADIUS[dtype]:
            return self.whole._cross(points, V, dtype)
        inside = lengths <= (MARGIN * self.radius if fixed else -1.0)
        result = V.new_empty(len(points), V.shape[1])
        for form in forms:
            rows = inside.nonzero()[:, 0] if form else (~inside).nonzero()[:, 0]
            if len(rows):
                B = self._coordinates(dtype, fixed=form)
                A = fixed_point(Z[rows], B.step) if form else by_feature(Z[rows], dtype)
                result[rows] = self._multiplied(A, B, V, dtype)
        return result

    def _multiplied(self, A: Coordinates, B: Coordinates, V: Tensor, dtype: torch.dtype) -> Tensor:
        columns, scale = rounded_columns(V, torch.float64)
        result = V.new_empty(A.count, V.shape[1])
        for start in range(0, V.shape[1], COLUMNS[dtype]):
            some = slice(start, min(start + COLUMNS[dtype], V.shape[1]))
            tile = self._shape("product", dtype, some.stop - some.start, fixed=A.is_fixed).tile
            found = launches.product(A, B, columns[:, some], self.profile, tile)
            result[:, some] = found.mul_(scale[some] * self.variance)
        return result

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the gradient in (log l, log σ²); the last entry is also Σ_j left_jᵀ K right_j itself."""
        k, work = left.shape[1], self._kind_of_gradient(weights, dtype)
        works = {work, "gradient"} if work == "gradient with weights" and k > COLUMNS[dtype] else {work}
        if not len(right) or not all(self._serves(one, dtype, k, fixed=one == "moments") for one in works):
            return self.whole._gradient(left, right, columns, weights, dtype)
        self._require(len(right), 2 * k)
        L, R, factor = rounded_pairs(left, right, torch.float64)
        given = None if weights is None else (weights.detach().contiguous(), factor.reciprocal().reshape(1))
        total = torch.zeros(1, dtype=torch.float64, device=left.device)
        for start in range(0, max(k, 1), COLUMNS[dtype]):
            both = (L[:, start : start + COLUMNS[dtype]], R[:, start : start + COLUMNS[dtype]])
            total = total + self._slopes(both, columns, given, dtype, work)
            work, given = "moments" if work == "moments" else "gradient", None  # the weights count once
        slopes = total[:-1] if self._per_feature else total[:-1].sum()[None]
        slope = 2 * math.log(2) if self.profile == 0 else 1.0
        return torch.cat([slope * slopes, total[-1:]]) * (factor * self.variance)

    def _kind_of_gradient(self, weights: Tensor | None, dtype: torch.dtype) -> str:
        if weights is not None:
            return "gradient with weights"
        narrow = dtype == torch.float32 and self.fits_fixed_point and self.radius <= MOMENT_RADIUS
        return "moments" if narrow else "gradient"

    def _slopes(
        self,
        pairs: tuple[Tensor, Tensor],
        columns: Rows,
        weights: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype,
        work: str,
    ) -> Tensor:
        """Return Σ_ij w_ij slope_ij (x_ir − x_jr)² for every feature or in all, then Σ_ij w_ij k_ij."""
        A = self._coordinates(dtype, fixed=work == "moments")
        tile = self._shape(work, dtype, pairs[0].shape[1], fixed=A.is_fixed).tile
        rows = self.points.centred * self.factors
        some = rows_of(rows, columns)
        B = A if columns is None else fixed_point(some, A.step) if A.is_fixed else by_feature(some, dtype)
        if work == "moments":
            radius = max(self.radius, 1e-30)
            return launches.gradient_by_moments(A, B, (rows, some), pairs, self.profile, tile, radius)
        return launches.gradient(A, B, pairs, weights, self.profile, tile, per_feature=self._per_feature)

    @property
    def _per_feature(self) -> bool:
        return self.kernel.lengthscale.numel() > 1  # type: ignore[attr-defined]

    # entries

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        if not self._serves("block", dtype, 1, fixed=False):
            return self.whole._block(rows, columns, dtype)
        return self._entries(self._rows(rows, dtype), self._rows(columns, dtype), dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        self._require(len(points), 0)
        Z = (points.detach().double() - self.points.centre) * self.factors
        too_far = len(points) > 0 and float(_lengths(Z).max()) > LARGEST_RADIUS[dtype]
        if too_far or not self._serves("block", dtype, 1, fixed=False):
            return self.whole._cross_block(points, columns, dtype)
        return self._entries(by_feature(Z, dtype), self._rows(columns, dtype), dtype)

    def _rows(self, rows: Rows, dtype: torch.dtype) -> Coordinates:
        """Return some rows of X by feature; all of them are scaled only once."""
        if rows is None:
            return self._coordinates(dtype, fixed=False)
        return by_feature(self.points.centred[rows] * self.factors, dtype)

    def _entries(self, A: Coordinates, B: Coordinates, dtype: torch.dtype) -> Tensor:
        if not A.count or not B.count:
            return self.X.new_empty(A.count, B.count, dtype=dtype)
        self._require(A.count + B.count, 0)
        variance = torch.full((1,), self.variance, dtype=dtype, device=self.device)
        return launches.block(A, B, variance, self.profile, self._shape("block", dtype, 1, fixed=False).tile)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        return self.whole._local_factors(neighbours, F, scale, diagonal)

    # what serves, and in which memory

    def _shape(self, work: str, dtype: torch.dtype, k: int, *, fixed: bool) -> Shape:
        return shape_for(work, dtype, self.profile, self.X.shape[1], k, fixed=fixed, per_feature=self._per_feature)

    def _reason(self, shape: Shape) -> str | None:
        return why_wrong(shape, self.device) if self.checked else None

    def _serves(self, work: str, dtype: torch.dtype, k: int, *, fixed: bool) -> bool:
        """Say whether there is something to do, and the kernels of all its columns are right."""
        if not len(self) or (not k and work == "product") or self.radius > LARGEST_RADIUS[dtype]:
            return False
        most = COLUMNS[dtype]
        counts = {k} if k <= most else {most, k % most or most}
        return all(self._reason(self._shape(work, dtype, count, fixed=fixed)) is None for count in counts)

    def _require(self, m: int, k: int) -> None:
        """Raise unless scaled copies of X and of m other rows, split columns and partial sums fit the budget."""
        n, d = len(self), self.X.shape[1]
        needed = 8 * (padded(n) + padded(m)) * (4 * d + 4 * k) + min(8 * PARTIAL_SUMS, 8 * PARTS * padded(m) * (k + 1))
        require_memory(needed, self.budget(), f"work with a {m} x {n} kernel matrix")


def _lengths(Z: Tensor) -> Tensor:
    """Return (n,) the lengths of rows; none is infinite unless its row is as long as no float64 number's square."""
    return Z.norm(dim=1)
