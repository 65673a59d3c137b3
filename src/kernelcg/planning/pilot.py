"""Try preconditioners on a few hundred neighbouring points before building one for all."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.operators import DenseMatrix, Identity, Invertible, KernelPlusDiagonal
from kernelcg.preconditioners.low_rank_remainder import SparseRemainder
from kernelcg.preconditioners.shapes import Diagonal
from kernelcg.randomness import normal
from kernelcg.solvers import Stopping, solve

POINTS = 800
"""Size of a pilot: large enough for its points to have most of their neighbours inside."""

BYTES_PER_ENTRY = 48
"""Memory of a pilot for each entry of its matrix, temporaries included."""

CENTRES = 8

MAX_ITERATIONS = 60

DAMPED = 0.5
"""With low rank alone the trace of the remainder bounds its spectrum: iterations grow half as fast (measured)."""

ACCURACY = 1e-9
"""Relative residual of a pilot: the rate over many digits says more than a small number of whole iterations."""


@dataclass(frozen=True)
class Trial:
    """What a pilot found: its iterations, and how they grow with the number of points."""

    iterations: float
    growth: float
    """Exponent: twice the points take 2^growth times the iterations."""

    def expected(self, ratio: float, growth: float | None = None) -> float:
        """Return the iterations of a system with ``ratio`` times the points."""
        return max(self.iterations * ratio ** (self.growth if growth is None else growth), 1.0)


@dataclass(frozen=True, eq=False)
class Pilot:
    """A ball of neighbouring points, with the density of the whole data, so that what is local looks the same."""

    A: KernelPlusDiagonal
    rows: Tensor
    rtol: float
    generator: Generator

    def trial(self, F: Tensor, neighbours: int) -> Trial:
        """Solve with the remainder S (K − F Fᵀ) S + D of the ball, preconditioned as the whole would be.

        How much harder the ball is than its inner half says what the whole will need.
        """
        inner = self.rows[: (len(self.rows) + 1) // 2]
        half, full = (self._iterations(rows, F, neighbours) for rows in (inner, self.rows))
        growth = min(max(math.log2(full / half), 0.0), 1.0) * (DAMPED if F.shape[1] and not neighbours else 1.0)
        return Trial(full, growth)

    @property
    def ratio(self) -> float:
        """Return how many times larger the whole is."""
        return len(self.A) / len(self.rows)

    def _iterations(self, rows: Tensor, F: Tensor, neighbours: int) -> float:
        """Return the iterations that a solve on these rows takes."""
        part = restricted(self.A, rows)
        E = part.dense() - _outer(part, F[rows])
        P = self._preconditioner(part, F[rows], neighbours)
        b = normal(len(rows), 1, self.generator, like=E)
        report = solve(DenseMatrix(E), b, preconditioner=P, stopping=Stopping(ACCURACY, max_iterations=MAX_ITERATIONS))
        reached = math.log(min(max(float(report.relative_residuals[0]), 1e-16), 0.999))
        return max(int(report.iterations[0]), 1) * math.log(self.rtol) / reached

    def _preconditioner(self, part: KernelPlusDiagonal, F: Tensor, neighbours: int) -> Invertible:
        if neighbours == 0:
            return Diagonal(part.diagonal) if F.shape[1] else Identity(len(part), part.diagonal)
        order = torch.randperm(len(part), generator=self.generator).to(part.device)
        remainder = SparseRemainder(part.K, F, part.K.neighbours(order, neighbours), order)
        return remainder.factor(part.scale, part.diagonal)


def pilot(A: KernelPlusDiagonal, rtol: float, generator: Generator) -> Pilot:
    """Return a ball, nearest points first, around that of a few random points where the data are densest.

    There the correlations are strongest and the system is hardest. O(n d) work.
    """
    points = A.kernel.coordinates(A.X.double())
    size = min(POINTS, len(A), max(math.isqrt(A.memory_budget() // BYTES_PER_ENTRY), 2))
    best = torch.inf, torch.arange(size, device=A.device)
    for centre in torch.randint(len(A), (CENTRES,), generator=generator).tolist():
        nearest = (points - points[centre]).square().sum(1).topk(size, largest=False)
        best = min(best, (float(nearest.values[-1]), nearest.indices), key=lambda ball: ball[0])
    return Pilot(A, best[1], min(max(rtol, 1e-10), 0.1), generator)


def restricted(A: KernelPlusDiagonal, rows: Tensor) -> KernelPlusDiagonal:
    """Return the system of these rows alone, in float64."""
    scale = None if A.scale is None else A.scale[rows]
    return KernelPlusDiagonal(A.K.at(rows), A.diagonal[rows], scale, torch.float64)


def _outer(part: KernelPlusDiagonal, F: Tensor) -> Tensor:
    """Return S F Fᵀ S."""
    scaled = part.scaled(F)
    return scaled @ scaled.T
