"""Similarities of sets by counting bits in C++: Tanimoto of bits, and MinMax of small counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kernelcg.backends.base import KernelMatrix, Points, Rows, on_own_threads, rows_of
from kernelcg.backends.memory import require_memory
from kernelcg.backends.rounding import rounded_columns, rounded_pairs
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.kernels import Kernel, MinMax, Tanimoto

if TYPE_CHECKING:
    from kernelcg.backends.native import Native

SETS = (Tanimoto, MinMax)
"""Kernels of sets: the size of the intersection over that of the union."""

PROFILE = 4
"""Number of the similarity among the profiles of the compiled code."""

ROWS_AT_ONCE = 1024
"""Rows that are coded, or entries of which are weighted, together."""

MOST_BITS_A_FEATURE = 32
"""Mean of the largest counts of features up to which words of bits are shorter than the numbers themselves."""

LARGEST_SET = 2**22
"""Elements of a set, so that the sizes of two of them and their sum are exact in float32."""


@dataclass(frozen=True, eq=False)
class Code:
    """Rows as sets: element j is in the set of x where x[features[j]] > thresholds[j].

    The bits of a set are the elements themselves. A count c is the set {0, …, c − 1}, so that the smaller of two counts
    is the size of the intersection and the larger that of the union.
    """

    kind: type[Kernel]
    features: Tensor  # (b,) int64
    thresholds: Tensor  # (b,) float64

    def covers(self, X: Tensor) -> bool:
        """Say whether the rows of X, at most 1 for sets of bits, are sets that are not too large."""
        amounts = bool(((X == 0) | (X == 1)).all()) if self.kind is Tanimoto else _are_counts(X)
        return amounts and (len(X) == 0 or float(X.sum(1).max()) < LARGEST_SET)

    def words(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (n, w + 1) numbers of ``dtype`` that hold the bits of every set, and at last its size as a number.

        Elements that no set of the training data has may be missing among the bits: they are in no intersection.
        """
        words = torch.cat([self._bits(some.double(), dtype) for some in X.split(ROWS_AT_ONCE)])
        return torch.cat([words, X.sum(1, dtype=torch.float64, keepdim=True).to(dtype)], 1)

    def _bits(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        packed = np.zeros((len(X), self._bytes(dtype)), dtype=np.uint8)
        bits = np.packbits((X[:, self.features] > self.thresholds).numpy(), axis=1, bitorder="little")
        packed[:, : bits.shape[1]] = bits
        return torch.from_numpy(packed).view(dtype)

    def _bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the bits of a set, in whole words and at least one."""
        return max(-(-len(self.features) // (8 * dtype.itemsize)), 1) * dtype.itemsize


def code_of(kind: type[Kernel], X: Tensor) -> Code | None:
    """Return how the rows of X are coded as sets; None if they are none, or sets so large that it does not pay."""
    d = X.shape[1]
    each = torch.ones(d, dtype=torch.int64)
    if kind is MinMax:
        if not _are_counts(X) or float(X.sum()) >= LARGEST_SET * len(X):
            return None
        each = X.amax(0).long() if len(X) else each
    if int(each.sum()) > MOST_BITS_A_FEATURE * d:
        return None
    starts = each.cumsum(0) - each
    features = torch.arange(d).repeat_interleave(each)
    code = Code(kind, features, (torch.arange(len(features)) - starts[features]).double())
    return code if code.covers(X) else None


def _are_counts(X: Tensor) -> bool:
    return bool(((X >= 0) & (X.floor() == X)).all())


@dataclass(frozen=True, eq=False)
class CodedSets:
    """The sets of the data in words of bits, packed when they are first needed in either precision."""

    X: Tensor
    code: Code
    native: "Native"

    @cached_property
    def _double(self) -> tuple[Tensor, Any]:
        return self._packed(torch.float64)

    @cached_property
    def _single(self) -> tuple[Tensor, Any]:
        return self._packed(torch.float32)

    def _packed(self, dtype: torch.dtype) -> tuple[Tensor, Any]:
        words = self.code.words(self.X.detach(), dtype)
        return words, self.native.packed(words)

    def words(self, dtype: torch.dtype) -> Tensor:
        """Return the words of all rows."""
        return (self._single if dtype == torch.float32 else self._double)[0]

    def panels(self, dtype: torch.dtype) -> Any:
        """Return the words of all rows as the compiled code reads them."""
        return (self._single if dtype == torch.float32 else self._double)[1]


@dataclass(frozen=True, eq=False, repr=False)
class SetsMatrix(KernelMatrix):
    """σ² |x ∩ y| / |x ∪ y|, and 1 between empty sets."""

    native: "Native"
    sets: CodedSets
    variance: float
    whole: TilesMatrix
    """The same by tiles, for further points that are no sets."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data and the kernel: the data are packed again where they are unpickled."""
        return type(self.native).matrix, (self.native, self.kernel, self.points)

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self._multiplied(self.sets.panels(dtype), None, len(self), V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.sets.code.covers(points):
            return self.whole._cross(points, V, dtype)
        A = self.native.packed(self.sets.code.words(points.detach(), dtype))
        return self._multiplied(A, self.sets.panels(dtype), len(points), V, dtype)

    @on_own_threads
    def _multiplied(self, A: Any, B: Any, n: int, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K(A, B) V, a few columns at a time."""
        columns, scale = rounded_columns(V, dtype)
        result = torch.empty(n, V.shape[1], dtype=torch.float64)
        threads, slices = self._slices(A, n, len(V), V.shape[1], dtype, symmetric=B is None)
        for some in slices:
            out = torch.empty(n, some.stop - some.start, dtype=torch.float64)
            self.native.multiply(A, B, columns[:, some].contiguous(), out, PROFILE, threads)
            result[:, some] = out
        return result.mul_(scale * self.variance).to(V.dtype)

    def _slices(
        self, A: Any, n: int, m: int, k: int, dtype: torch.dtype, *, symmetric: bool
    ) -> tuple[int, Iterator[slice]]:
        packed = (1 if symmetric else 2) * 2 * (n + m) * A.features * dtype.itemsize

        def needed(size: int, threads: int) -> int:
            work = self.native.workspace(n, m, A.features, size, dtype.itemsize, threads, symmetric)
            return packed + (n + m) * 3 * k * 8 + work

        return self.native.slices(needed, k, self.budget(), f"work with a {n} x {m} kernel matrix")

    @on_own_threads
    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the derivative in log σ², which is Σ_j left_jᵀ K right_j + Σ_ij weights_ij K_ij itself."""
        left, right, factor = rounded_pairs(left, right, torch.float64)
        B = None if columns is None else self.native.packed(rows_of(self.sets.words(dtype), columns).contiguous())
        total = factor * (left * self._multiplied(self.sets.panels(dtype), B, len(self), right, dtype)).sum()
        if weights is not None:
            for start in range(0, len(self), ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                total = total + (weights[rows].double() * self._block(rows, None, dtype)).sum()
        return total.reshape(1)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        words = self.sets.words(dtype)
        return self._entries(rows_of(words, rows), rows_of(words, columns))

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        if not self.sets.code.covers(points):
            return self.whole._cross_block(points, columns, dtype)
        words = self.sets.code.words(points.detach(), dtype)
        return self._entries(words, rows_of(self.sets.words(dtype), columns))

    @on_own_threads
    def _entries(self, A: Tensor, B: Tensor) -> Tensor:
        copies = 2 * (A.numel() + B.numel()) * A.element_size()
        require_memory(copies, self.budget(), f"a {len(A)} x {len(B)} block of a kernel matrix")
        return self.native.entries(A, B, PROFILE).mul_(self.variance)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        return self.whole._local_factors(neighbours, F, scale, diagonal)


def sets_matrix(kernel: Tanimoto | MinMax, points: Points, sets: CodedSets | None, native: "Native") -> KernelMatrix:
    """Return K of a kernel of sets, by tiles where the data are none."""
    whole = TilesMatrix(kernel, points)
    return whole if sets is None else SetsMatrix(kernel, points, native, sets, kernel.variance.item(), whole)
