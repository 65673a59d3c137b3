"""Try preconditioners on a few hundred points before building one for all: neighbours, and some of everywhere."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.operators import DenseMatrix, Identity, Invertible, KernelPlusDiagonal
from kernelcg.preconditioners.low_rank_remainder import SparseRemainder
from kernelcg.preconditioners.shapes import Diagonal
from kernelcg.randomness import child, normal
from kernelcg.solvers import Stopping, solve

POINTS, MOST_POINTS = 800, 8000
"""Size of a pilot: large enough for its points to have most of their neighbours inside, and larger where that costs
nothing beside the whole."""

BYTES_PER_ENTRY = 48
"""Memory of a pilot for each entry of its matrix, temporaries included."""

PILOT_READS = 500
"""Times that the matrix of a pilot is read or computed in all trials of it."""

CENTRES = 8

MAX_ITERATIONS = 60

FEW = 5
"""Iterations that are expected where the low-rank factor leaves almost nothing of K."""

DAMPED = 0.5
"""With low rank alone the trace of the remainder bounds its spectrum: iterations grow half as fast (measured)."""

ACCURACY = 1e-9
"""Relative residual of a pilot: the rate over many digits says more than a small number of whole iterations."""

SCATTERED, POWERS = 2000, 12
"""Points of everywhere on which an eigenvalue is looked for, at most, and products of a block for it."""

PART_OF_BOUND = 0.25
"""Iterations of block PCG for some ten columns relative to √κ ln(2 / ε), twice the bound of one column: measured with
ranks from 256 to 2,048 on 16,000 points in eight dimensions, 0.21 to 0.25 at tolerances of 1e-4 and 1e-2."""


@dataclass(frozen=True)
class Trial:
    """What a pilot found: its iterations, and how they grow with the number of points."""

    iterations: float
    growth: float
    """Exponent: twice the points take 2^growth times the iterations."""

    def expected(self, ratio: float, growth: float | None = None) -> float:
        """Return the iterations of a system with ``ratio`` times the points."""
        return max(self.iterations * ratio ** (self.growth if growth is None else growth), 1.0)


@dataclass(frozen=True)
class Alone:
    """What a pilot found of rank without neighbours: iterations at this rank, and how they fall with more of it."""

    rank: int
    iterations: float
    slope: float

    def expected(self, rank: int) -> float:
        """Return the iterations at another rank."""
        return max(self.iterations * (self.rank / rank) ** self.slope, FEW)


@dataclass(frozen=True, eq=False)
class Pilot:
    """A ball of neighbouring points, with the density of the whole data, so that what is local looks the same."""

    A: KernelPlusDiagonal
    rows: Tensor
    scattered: Tensor
    """Points drawn from all of them."""
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

    def rank_alone(self, F: Tensor) -> float:
        r"""Return the iterations that P = S F Fᵀ S + D is expected to take for the whole.

        The eigenvalues of P⁻¹A lie between 1 and κ = 1 + μ for the largest eigenvalue μ of
        :math:`D^{-\frac12} S (K - F F^\top) S D^{-\frac12}`, and CG takes about :math:`\sqrt\kappa \ln(2 / ε)` times
        `PART_OF_BOUND` iterations. The rows of N scattered points of n show μ: what it is beyond the largest entry of
        the diagonal grows with the number of points. Between points nearer than these there may be more.
        """
        part, F = restricted(self.A, self.scattered), F[self.scattered].double()
        whiten = part.diagonal.rsqrt()[:, None]
        SF = whiten * part.scaled(F)
        SKS = part.scaled(part.scaled(part.K.block(precision=torch.float64)).mT)
        E = whiten * SKS * whiten.mT - SF @ SF.mT
        alone = float(E.diagonal().max().clamp_min(0.0))
        shared = max(_largest_eigenvalue(E, self.generator) - alone, 0.0)
        kappa = 1 + alone + shared * len(self.A) / len(self.scattered)
        return max(PART_OF_BOUND * math.sqrt(kappa) * math.log(2 / self.rtol), 1.0)

    @property
    def ratio(self) -> float:
        """Return how many times larger the whole is."""
        return len(self.A) / len(self.rows)

    def _iterations(self, rows: Tensor, F: Tensor, neighbours: int) -> float:
        """Return the iterations that a solve on these rows takes."""
        part, F = restricted(self.A, rows), F[rows].double()
        E = part.dense() - _outer(part, F)
        P = self._preconditioner(part, F, neighbours)
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


def pilot(A: KernelPlusDiagonal, rtol: float, generator: Generator, most: int = POINTS) -> Pilot:
    """Return a ball, nearest points first, around that of a few random points where the data are densest.

    There the correlations are strongest and the system is hardest. O(n d) work. It has at most so many points.
    """
    points = A.kernel.coordinates(A.X.double())
    size = min(most, len(A), max(math.isqrt(A.memory_budget() // BYTES_PER_ENTRY), 2))
    best = torch.inf, torch.arange(size, device=A.device)
    for centre in torch.randint(len(A), (CENTRES,), generator=generator).tolist():
        nearest = (points - points[centre]).square().sum(1).topk(size, largest=False)
        best = min(best, (float(nearest.values[-1]), nearest.indices), key=lambda ball: ball[0])
    scattered = torch.randperm(len(A), generator=child(generator, "scattered"))[: min(size, SCATTERED)].to(A.device)
    return Pilot(A, best[1], scattered, min(max(rtol, 1e-10), 0.1), generator)


def affordable_points(seconds: float, bandwidth: float) -> int:
    """Return the size of a pilot whose solves, several of some tens of iterations, read as much as takes so long."""
    return min(max(math.isqrt(int(seconds * bandwidth / PILOT_READS)), POINTS), MOST_POINTS)


def restricted(A: KernelPlusDiagonal, rows: Tensor) -> KernelPlusDiagonal:
    """Return the system of these rows alone, in float64."""
    scale = None if A.scale is None else A.scale[rows]
    return KernelPlusDiagonal(A.K.at(rows), A.diagonal[rows], scale, torch.float64)


def _largest_eigenvalue(E: Tensor, generator: Generator) -> float:
    """Return the largest eigenvalue of a positive semi-definite matrix, or a little less, by powers of it."""
    V = normal(len(E), min(8, len(E)), generator, like=E)
    for _ in range(POWERS):
        V = torch.linalg.qr(E @ V).Q
    return float(torch.linalg.eigvalsh(V.mT @ E @ V)[-1])


def _outer(part: KernelPlusDiagonal, F: Tensor) -> Tensor:
    """Return S F Fᵀ S."""
    scaled = part.scaled(F)
    return scaled @ scaled.T
