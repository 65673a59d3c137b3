"""Portable backend: torch tiles, any kernel, any device, gradients by autograd."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends.base import (
    Backend,
    check_gradient,
    check_inputs,
    check_local_factors,
    check_product,
    require_memory,
    rounded_columns,
    rounded_inputs,
    rounded_pairs,
)
from kernelcg.backends.neighbourhoods import local_rows, local_systems
from kernelcg.kernels import Kernel

TEMPORARIES = 10
"""Tiles alive at once, for each kernel of a composite one, while it is evaluated and differentiated."""

CACHE_TILE, DEVICE_TILE, SMALLEST_TILE = 512, 4096, 16
"""Rows of a square tile: what stays in a CPU's cache, what keeps a GPU busy, what is still worth a call."""


@dataclass(frozen=True, eq=False)
class Tiles(Backend):
    """Evaluate K in square tiles of the kernel's own torch formula. Uses the threads torch uses."""

    def matmul(
        self, kernel: Kernel, X: Tensor, Y: Tensor, V: Tensor, *, precision: torch.dtype | None = None
    ) -> Tensor:
        dtype = check_product(X, Y, V, precision)
        size = self._tile_size(kernel, X, Y, V.shape[1], dtype)
        symmetric = Y is X
        with torch.no_grad():
            X, Y = rounded_inputs(kernel, X, Y, dtype)
            columns, scale = rounded_columns(V, dtype)
            rows = columns.T.contiguous()  # (k, m): skinny products are several times faster this way round
            total = torch.zeros(V.shape[1], len(X), dtype=torch.float64, device=X.device)
            for i, j in _tiles(len(X), len(Y), size, symmetric):
                K = kernel(X[i], Y[j]).to(dtype)
                total[:, i] += rows[:, j] @ K.T
                if symmetric and i != j:
                    total[:, j] += rows[:, i] @ K
            return (total.T * scale).to(V.dtype)

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
        dtype = check_gradient(X, Y, left, right, weights, precision)
        size = self._tile_size(kernel, X, Y, 2 * left.shape[1], dtype)
        symmetric = Y is X
        with torch.inference_mode(False), torch.enable_grad():
            X, Y = rounded_inputs(kernel, X, Y, dtype)
            left, right, factor = rounded_pairs(left, right, dtype)
            theta = kernel.log_parameters().detach().clone().requires_grad_()
            total = torch.zeros_like(theta)
            for i, j in _tiles(len(X), len(Y), size, symmetric):
                pairs = left[i] @ right[j].T
                if symmetric and i != j:
                    pairs += right[i] @ left[j].T
                if weights is not None:
                    pairs = pairs + (weights[i, j] if i == j else 2 * weights[i, j]) / factor
                K = kernel.with_log_parameters(theta)(X[i], Y[j])
                if K.requires_grad:  # false only for a kernel without hyperparameters
                    total += torch.autograd.grad(K, theta, grad_outputs=pairs.to(K.dtype), materialize_grads=True)[0]
            return total.detach().to(X.device) * factor

    def block(self, kernel: Kernel, X: Tensor, Y: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        dtype = check_inputs(X, Y, precision)
        size = self._tile_size(kernel, X, Y, 0, dtype)
        with torch.no_grad():
            A, B = rounded_inputs(kernel, X, Y, dtype)
            result = A.new_empty(len(A), len(B), dtype=dtype)
            for i, j in _tiles(len(A), len(B), size, symmetric=False):
                result[i, j] = kernel(A[i], B[j])
            return result

    def local_factors(
        self,
        kernel: Kernel,
        X: Tensor,
        neighbours: Tensor,
        F: Tensor | None,
        scale: Tensor | None,
        diagonal: Tensor,
    ) -> Tensor:
        check_local_factors(X, neighbours, F, scale, diagonal)
        n, q = neighbours.shape
        size = self._neighbourhoods_at_once(kernel, X, q + 1, 0 if F is None else F.shape[1])
        with torch.no_grad():
            A, _ = rounded_inputs(kernel, X, X, torch.float64)
            result = A.new_empty(n, q + 1)
            for start in range(0, n, size):
                own = torch.arange(start, min(start + size, n), device=A.device)
                J = torch.cat([neighbours[own], own[:, None]], 1)  # (c, q + 1)
                result[own] = local_rows(*local_systems(kernel, A, J, F, scale, diagonal))
            return result

    def _neighbourhoods_at_once(self, kernel: Kernel, X: Tensor, s: int, m: int) -> int:
        """Return how many neighbourhoods of s points, with rows of m numbers, are treated together."""
        copies = len(X) * 3 * X.shape[1] * 8
        each = 8 * s * (s * TEMPORARIES * kernel._number_of_kernels() + 2 * m + 4 * X.shape[1] + 8)
        size = (self.budget() - copies) // each
        if size < 1:
            require_memory(copies + each, self.budget(), f"local factors of neighbourhoods of {s} points")
        return min(size, max((DEVICE_TILE if X.is_cuda else CACHE_TILE) ** 2 // s**2, 1))

    def _tile_size(self, kernel: Kernel, X: Tensor, Y: Tensor, k: int, dtype: torch.dtype) -> int:
        copies = (len(X) + len(Y)) * (3 * X.shape[1] + 4 * k) * 8
        per_entry = TEMPORARIES * kernel._number_of_kernels() * (dtype.itemsize if kernel.rounds_well else 8)
        size = math.isqrt(max(self.budget() - copies, 0) // per_entry)
        if size < SMALLEST_TILE:
            needed = copies + per_entry * SMALLEST_TILE**2
            require_memory(needed, self.budget(), f"work with a {len(X)} x {len(Y)} kernel matrix")
        return min(size, DEVICE_TILE if X.is_cuda else CACHE_TILE)


def _tiles(n: int, m: int, size: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the row and column slices of all tiles, or of those on and above the diagonal."""
    for i in range(0, n, size):
        for j in range(i if symmetric else 0, m, size):
            yield slice(i, i + size), slice(j, j + size)
