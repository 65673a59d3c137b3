"""What things cost on this machine, in seconds, from a few measurements."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MULTIPLY_SIZE = 256

EFFICIENCY = 0.6
"""Speed of factorisations relative to a product of square matrices."""

NEIGHBOUR_SECONDS = 5e-8
"""A first guess at one step down a k-d tree; a pilot replaces it."""

CHECKS = 1.2
"""Products of an iteration, with its share of the residuals recomputed in float64."""

VECTOR_PASSES = 60
"""Times that an iteration reads or writes a block of k columns."""

ROWS_OF_PANEL = 2**16

TYPICAL_MULTIPLY_ADDS, TYPICAL_FLOPS, TYPICAL_BANDWIDTH, STEP_OF_PYTHON = 5e10, 8e10, 1.5e9, 1e-3
"""Rates of two cores of a server: products with K, products of matrices, numbers read; overhead of a step, seconds."""


@dataclass(frozen=True)
class Costs:
    """Measured rates, and the time of everything that the automatic choice may do, for n rows and k columns."""

    n: int
    k: int
    product: float
    """Seconds of one product A V with k columns."""
    flops: float
    """Floating-point operations a second of matrix products in float64."""
    bandwidth: float
    """Numbers a second that a product of a tall matrix with k columns reads."""

    def low_rank(self, m: int) -> float:
        """Return the time to make a randomly pivoted Cholesky factor of rank m and its Woodbury form."""
        columns = self.product * m / self.n
        return columns + 5 * self.n * m**2 / (EFFICIENCY * self.flops)

    def local(self, m: int, q: int) -> float:
        """Return the time to find q neighbours of every point and to factor the remainder on them."""
        search = NEIGHBOUR_SECONDS * self.n * q * math.log2(self.n + 1)
        return search + self.n * (q + 1) ** 2 * (m + q) / (EFFICIENCY * self.flops)

    def iteration(self, m: int, q: int) -> float:
        """Return the time of one iteration with a preconditioner of rank m and q neighbours."""
        sparse = 2 * self.n * (q + 1 if q else 0) * (2 + self.k / 4)
        vectors = VECTOR_PASSES * self.n * self.k
        return CHECKS * self.product + (2 * self.n * m + sparse + vectors) / self.bandwidth

    def direct(self) -> float:
        """Return the time of a Cholesky solve."""
        entries, factorisation = self.product, self.n**3 / 3 / (EFFICIENCY * self.flops)
        return 2 * entries + factorisation


def counted(n: int, k: int, d: int, *, stored: bool = False) -> Costs:
    """Return costs on a machine of typical speed, by counting operations: the same in every run.

    A ``stored`` K is read from memory, not computed.
    """
    computed = ((d + 10) / 2 + k) / TYPICAL_MULTIPLY_ADDS
    read = max(1 / TYPICAL_BANDWIDTH, k / TYPICAL_MULTIPLY_ADDS)
    product = n * n * (read if stored else computed) + STEP_OF_PYTHON
    return Costs(n, k, product, TYPICAL_FLOPS, TYPICAL_BANDWIDTH)


def measured(n: int, k: int, product: float, like: Tensor) -> Costs:
    """Return costs from a product of square matrices and one of a tall one: a few milliseconds."""
    square = torch.ones(MULTIPLY_SIZE, MULTIPLY_SIZE, dtype=torch.float64, device=like.device)
    tall = torch.ones(min(n, ROWS_OF_PANEL), 64, dtype=torch.float64, device=like.device)
    few = tall[:64, :1].expand(64, k).contiguous() if len(tall) >= 64 else tall[:1].T.expand(64, k).contiguous()
    multiply = best_of(2, lambda: square @ square)
    panel = best_of(2, lambda: tall @ few)
    return Costs(n, k, product, 2 * MULTIPLY_SIZE**3 / multiply, tall.numel() / panel)


def best_of(repeats: int, work: Callable[[], Tensor]) -> float:
    """Return the least time of a piece of work."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        float(work()[0, 0])  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return min(seconds)
