"""Portable backend: torch tiles, any kernel, any device, gradients by autograd."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernelcg.arguments import FLOATS
from kernelcg.backends.base import Backend, KernelMatrix, Points, Rows, rows_of
from kernelcg.backends.memory import require_memory
from kernelcg.backends.neighbourhoods import local_rows, local_systems
from kernelcg.backends.rounding import exactly_centred, origin_of, rounded_columns, rounded_pairs
from kernelcg.kernels import Kernel

TEMPORARIES = 10
"""Tiles alive at once, for each kernel of a composite one, while it is evaluated and differentiated."""

CACHE_TILE, DEVICE_TILE, SMALLEST_TILE = 512, 4096, 16
"""Rows of a square tile: the most for which it stays in a CPU's cache, the most on a GPU, which needs larger ones to be
used well, and the fewest for which a call costs less than its arithmetic."""


@dataclass(frozen=True, eq=False)
class Tiles(Backend):
    """Square tiles of the kernel's own torch formula: any kernel, any device. Uses the threads torch uses.

    Parameters
    ----------
    memory, work : as in `Backend`
    threads : of no effect

    Examples
    --------
    >>> import torch
    >>> from kernelcg.backends import Tiles
    >>> from kernelcg.kernels import RBF
    >>> Tiles("100MB").bind(RBF(1.0), torch.zeros(4, 2)).product(torch.ones(4, 1)).T
    tensor([[4., 4., 4., 4.]])
    """

    @classmethod
    def why_not(cls) -> str | None:
        return None

    @classmethod
    def preference(cls, device: str) -> int | None:
        return 0

    def computes(self, kernel: Kernel, X: Tensor) -> bool:
        return True

    def matrix(self, kernel: Kernel, points: Points) -> KernelMatrix:
        return TilesMatrix(kernel, points)


@dataclass(frozen=True, eq=False, repr=False)
class TilesMatrix(KernelMatrix):
    """K in square tiles, each of which is computed, used once and not kept."""

    own: dict[torch.dtype, Kernel] = field(init=False)
    """The kernel with its hyperparameters beside X, for the formula in either precision."""
    origin: Tensor = field(init=False)
    """(d,) what is subtracted from inputs before the formula sees them."""

    def __post_init__(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            own = {dtype: self.kernel._beside(self.X.new_empty(0, dtype=dtype)) for dtype in FLOATS}
            object.__setattr__(self, "own", own)
            object.__setattr__(self, "origin", origin_of(self.kernel, self.X, self.points.centre))

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        self._tile_size(len(self), V.shape[1], dtype)
        with torch.no_grad():
            A = self._seen(dtype)
            return self._multiplied(A, A, V, dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        self._tile_size(len(points), V.shape[1], dtype)
        with torch.no_grad():
            result = V.new_empty(len(points), V.shape[1])
            for rows, A, B in self._seen_together(points, None, dtype):
                result[rows] = self._multiplied(A, B, V, dtype)
            return result

    def _multiplied(self, A: Tensor, B: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K(A, B) V for inputs as the formula sees them; only half of the tiles are computed if B is A."""
        own, symmetric = self.own[A.dtype], B is A
        columns, scale = rounded_columns(V, dtype)
        rows = columns.T.contiguous()  # (k, m): with few columns the transposed product is several times faster
        total = torch.zeros(V.shape[1], len(A), dtype=torch.float64, device=A.device)
        for i, j in _tiles(len(A), len(B), self._tile_size(len(A), V.shape[1], dtype), symmetric):
            K = own.covariance(A[i], B[j]).to(dtype)
            total[:, i] += rows[:, j] @ K.T
            if symmetric and i != j:
                total[:, j] += rows[:, i] @ K
        return (total.T * scale).to(V.dtype)

    def _both_ways(self, other: KernelMatrix, V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        size = self._tile_size(len(other), V.shape[1] + W.shape[1], dtype)
        with torch.no_grad():
            first, second = V.new_zeros(len(self), V.shape[1]), W.new_empty(len(other), W.shape[1])
            for rows, B, A in self._seen_together(other.X, None, dtype):
                (v, v_scale), (w, w_scale) = rounded_columns(V[rows], dtype), rounded_columns(W, dtype)
                own, down = self.own[A.dtype], W.new_zeros(len(B), W.shape[1], dtype=torch.float64)
                across = V.new_zeros(len(A), V.shape[1], dtype=torch.float64)
                for i, j in _tiles(len(A), len(B), size, symmetric=False):
                    K = own.covariance(A[i], B[j]).to(dtype)
                    across[i] += K @ v[j]
                    down[j] += K.T @ w[i]
                first += (across * v_scale).to(V.dtype)
                second[rows] = (down * w_scale).to(W.dtype)
            return first, second

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        with torch.inference_mode(False):  # autograd takes no tensors made in inference mode
            A = self._seen(dtype)
            return self._weighted(A, None if columns is None else A[columns], left, right, weights, dtype)

    def _gradient_between(self, other: KernelMatrix, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.inference_mode(False):
            parts = [
                self._weighted(A, B, left, right[rows], None, dtype)
                for rows, B, A in self._seen_together(other.X, None, dtype)
            ]
            return torch.stack(parts).sum(0)

    def _weighted(
        self, A: Tensor, B: Tensor | None, left: Tensor, right: Tensor, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the gradient of the sum with K(A, B) for inputs as the formula sees them, K(A, A) for no B."""
        size, symmetric = self._tile_size(len(right), 2 * left.shape[1], dtype), B is None
        with torch.enable_grad():
            B = A if B is None else B
            left, right, factor = rounded_pairs(left, right, dtype)
            theta = self.kernel.log_parameters().detach().clone().requires_grad_()
            wide = self.kernel.with_log_parameters(theta)._beside(A.new_empty(0, dtype=torch.float64))
            own, slopes = wide if A.dtype == torch.float64 else wide._beside(A), Slopes(wide._tensors())
            for i, j in _tiles(len(A), len(B), size, symmetric):
                pairs = left[i] @ right[j].T
                if symmetric and i != j:
                    pairs += right[i] @ left[j].T
                if weights is not None:
                    pairs = pairs + (weights[i, j] if i == j else 2 * weights[i, j]) / factor
                slopes.add(own.covariance(A[i], B[j]), pairs)
            return slopes.of(theta).to(A.device) * factor

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        size = self._tile_size(len(rows_of(self.X, rows)), 0, dtype)
        with torch.no_grad():
            A = self._seen(dtype)
            return self._entries(rows_of(A, rows), rows_of(A, columns), size, dtype)

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        size = self._tile_size(len(points), 0, dtype)
        with torch.no_grad():
            found = list(self._seen_together(points, columns, dtype))
            if len(found) == 1:
                return self._entries(*found[0][1:], size, dtype)
            result = points.new_empty(len(points), len(rows_of(self.X, columns)), dtype=dtype)
            for rows, A, B in found:
                result[rows] = self._entries(A, B, size, dtype)
            return result

    def _entries(self, A: Tensor, B: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        result = A.new_empty(len(A), len(B), dtype=dtype)
        for i, j in _tiles(len(A), len(B), size, symmetric=False):
            result[i, j] = self.own[A.dtype].covariance(A[i], B[j])
        return result

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        n, q = neighbours.shape
        size = self._neighbourhoods_at_once(q + 1, 0 if F is None else F.shape[1])
        with torch.no_grad():
            A, own = self._seen(torch.float64), self.own[torch.float64]
            result = A.new_empty(n, q + 1)
            for start in range(0, n, size):
                rows = torch.arange(start, min(start + size, n), device=A.device)
                J = torch.cat([neighbours[rows], rows[:, None]], 1)  # (c, q + 1)
                result[rows] = local_rows(*local_systems(own, A, J, F, scale, diagonal))
            return result

    # inputs as the formula sees them

    def _seen(self, dtype: torch.dtype) -> Tensor:
        """Return X as the formula should see it to give entries that are right to ``dtype``.

        Where the kernel allows, it is centred, then rounded. Other formulas may lose all digits of a difference to
        rounding far from the origin, so their inputs, and with them their entries, stay in float64.
        """
        if self.kernel.is_stationary and self.kernel.rounds_well:
            return self.points.centred.to(dtype)
        return self.X.detach().double() - self.origin

    def _seen_together(
        self, points: Tensor, columns: Rows, dtype: torch.dtype
    ) -> Iterator[tuple[Tensor | slice, Tensor, Tensor]]:
        """Yield numbers of points, these points and X[columns] as the formula should see them.

        All points together, but for those that a phase would not survive: in features where subtracting the origin from
        a point rounds, nothing is subtracted from either side.
        """
        Z = points.detach().double()
        if self.kernel.rounds_well:
            yield slice(None), (Z - self.origin).to(dtype), rows_of(self._seen(dtype), columns)
            return
        X = rows_of(self.X, columns).detach().double()
        patterns, group = exactly_centred(Z, self.origin).unique(dim=0, return_inverse=True)
        for number, exact in enumerate(patterns):
            rows, origin = slice(None) if len(patterns) == 1 else group == number, torch.where(exact, self.origin, 0.0)
            yield rows, Z[rows] - origin, X - origin

    # sizes that fit the budget

    def _neighbourhoods_at_once(self, s: int, m: int) -> int:
        """Return how many neighbourhoods of s points, with rows of m numbers, are treated together."""
        (n, d), budget = self.X.shape, self.budget()
        copies = n * 3 * d * 8
        each = 8 * s * (s * TEMPORARIES * self.kernel._number_of_kernels() + 2 * m + 4 * d + 8)
        size = (budget - copies) // each
        if size < 1:
            require_memory(copies + each, budget, f"local factors of neighbourhoods of {s} points")
        return min(size, max((DEVICE_TILE if self.X.is_cuda else CACHE_TILE) ** 2 // s**2, 1))

    def _tile_size(self, m: int, k: int, dtype: torch.dtype) -> int:
        """Return the rows of a tile of K between X and m rows, beside k columns."""
        (n, d), budget = self.X.shape, self.budget()
        copies = (n + m) * (3 * d + 4 * k) * 8
        per_entry = TEMPORARIES * self.kernel._number_of_kernels() * (dtype.itemsize if self.kernel.rounds_well else 8)
        size = math.isqrt(max(budget - copies, 0) // per_entry)
        if size < SMALLEST_TILE:
            needed = copies + per_entry * SMALLEST_TILE**2
            require_memory(needed, budget, f"work with a {m} x {n} kernel matrix")
        return min(size, DEVICE_TILE if self.X.is_cuda else CACHE_TILE)


class Slopes:
    """Sums of derivatives in hyperparameters that are beside X, pulled back to θ on the host once, after all tiles."""

    def __init__(self, hyperparameters: list[Tensor]):
        self.at = [one for one in hyperparameters if one.requires_grad]
        self.sums = [torch.zeros_like(one) for one in self.at]

    def add(self, K: Tensor, pairs: Tensor) -> None:
        """Add the derivatives of Σ pairs · K for one tile."""
        if not K.requires_grad:  # a kernel without hyperparameters
            return
        found = torch.autograd.grad(
            K, self.at, grad_outputs=pairs.to(K.dtype), retain_graph=True, materialize_grads=True
        )
        self.sums = [total + one for total, one in zip(self.sums, found, strict=True)]

    def of(self, theta: Tensor) -> Tensor:
        """Return the derivatives in θ, from which the hyperparameters were made."""
        if not self.at:
            return torch.zeros_like(theta)
        return torch.autograd.grad(self.at, theta, grad_outputs=self.sums, materialize_grads=True)[0]


def _tiles(n: int, m: int, size: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the row and column slices of all tiles, or of those on and above the diagonal."""
    for i in range(0, n, size):
        for j in range(i if symmetric else 0, m, size):
            yield slice(i, i + size), slice(j, j + size)
