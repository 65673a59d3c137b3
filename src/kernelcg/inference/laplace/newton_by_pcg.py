"""Newton's systems by preconditioned conjugate gradients."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import projected
from kernelcg.inference.gaussian.likelihood_by_pcg import Probes
from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion, ScalarExpansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_system import NewtonSystem, NewtonSystems, Solved, Spent
from kernelcg.inference.laplace.softmax_system import SoftmaxLowRank
from kernelcg.operators import ConstantInvertible, Invertible, KernelPlusDiagonal, LinearOperator
from kernelcg.planning import product_dtype
from kernelcg.planning.ranks import Sizes
from kernelcg.preconditioners import Preconditioner, Prepared, recipe
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder, sparse_remainder
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots, weighted
from kernelcg.preconditioners.shapes import Diagonal, Factored, LowRankPlus
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Status, Stopping, solve

SMALLEST_WEIGHT = 1e-8

LITTLE_LEFT = 0.3
"""Mean diagonal of S (K − F Fᵀ) S up to which low rank is near A."""

WIDE = 100
"""Columns beyond which, with P near A, orthonormal directions cost more than the few iterations they save."""

RETRYABLE = (Status.STAGNATED, Status.INDEFINITE_PRECONDITIONER)


@dataclass(frozen=True, eq=False)
class IterativeSystems(NewtonSystems):
    """What a preconditioner knows of K, and how to solve; `at` adds what is prepared at the first expansion."""

    problem: Observations
    gp: LatentProcess
    preconditioner: str | Preconditioner | None = "auto"
    seed: int = 0
    stopping: Stopping = Stopping()
    """Limits of every solve; the tolerance is given with each of them."""
    pivots: Tensor | None = None
    """Rows of the low-rank part: kept nearby, so that estimates which use it are smooth."""
    prepared: Prepared | None = None
    """What the preconditioner for one latent value a point knows of K; it does not depend on W."""
    for_covariances: bool = False
    """Whether classes have the larger low-rank part that pays for covariances, which take C columns a point."""
    callback: Listener | None = None
    """Listener that is told of every iteration."""

    def at(self, expansion: Expansion) -> "IterativeSystem":
        A = expansion.system(self.K)
        A = A.with_precision(self._precision(A))
        if self.preconditioner is None:
            return IterativeSystem(self, expansion, A, None)
        if isinstance(expansion, ClassExpansion):
            n, C = expansion.pi.shape
            m = self.sizes.class_rank(n, C, for_covariances=self.for_covariances)
            F, chosen = self._low_rank(expansion.trace(), m)
            return IterativeSystem(replace(self, pivots=chosen), expansion, A, SoftmaxLowRank(F, expansion.pi))
        if not isinstance(expansion, ScalarExpansion):
            raise TypeError(f"unknown expansion {expansion!r}")
        prepared, pivots = self._prepared(expansion) if self.prepared is None else (self.prepared, self.pivots)
        P = prepared.factor(expansion.root, torch.ones_like(expansion.root))
        return IterativeSystem(replace(self, prepared=prepared, pivots=pivots), expansion, A, P)

    def sharpened(self) -> Self:
        """Return the systems with a larger low-rank part for classes: covariances take C columns a point."""
        if self.problem.classes == 1 or self.for_covariances:
            return self
        return replace(self, for_covariances=True, pivots=None)

    @property
    def sizes(self) -> Sizes:
        """Return the ranks and shares of the memory of the plan."""
        return self.problem.pricing.sizes

    def _precision(self, A: LinearOperator) -> torch.dtype:
        if self.K.is_stored:
            return torch.float64
        if self.problem.precision is not None:
            return self.problem.precision
        if isinstance(A, KernelPlusDiagonal):
            return product_dtype(A)
        first = torch.ones(len(self.problem), dtype=torch.float64, device=self.problem.X.device)
        return product_dtype(KernelPlusDiagonal(self.K, first))

    def _prepared(self, expansion: ScalarExpansion) -> tuple[Prepared, Tensor | None]:
        """Return what is prepared once for the kernel, and its pivots: by default low rank, made for W of now."""
        if self.preconditioner == "auto":
            return self._automatic(expansion.trace())
        chosen = recipe(self.preconditioner) if isinstance(self.preconditioner, str) else self.preconditioner
        if chosen is None:
            raise ValueError("there is no preconditioner to prepare")
        return chosen.prepare(self.K, child(seeded(self.seed), "preconditioner")), self.pivots

    def _automatic(self, weights: Tensor) -> tuple[LowRankAndRemainder, Tensor]:
        """Return low rank alone where it leaves little of S K S beside I, or less of it with neighbours; its pivots."""
        n = len(self.problem)
        F, pivots = self._low_rank(weights, max(self.sizes.bound_rank, int((self.sizes.newton_work / n) ** 0.5)))
        left = weights * (self.K.diagonal() - F.square().sum(1)).clamp_min(0.0)
        if float(left.mean()) <= LITTLE_LEFT:
            return LowRankAndRemainder(F, DiagonalRemainder()), pivots
        F = F[:, : self.sizes.rank_beside_neighbours].contiguous()
        order = child(seeded(self.seed), "order")
        return LowRankAndRemainder(F, sparse_remainder(self.K, order, self.sizes.newton_neighbours, F)), pivots

    def _low_rank(self, weights: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Return F with F Fᵀ ≈ K where W is large, and its pivots, unless they are known already.

        They are drawn by the diagonal of what is left of K times tr W: where the likelihood is certain W is next to
        nothing, and K there does not matter. The rank is ``most``, or less in little memory.
        """
        if self.pivots is not None:
            return projected(self.K, self.pivots)[0], self.pivots
        n, C = len(self.problem), self.problem.classes
        budget = self.sizes.for_preconditioner * self.problem.points.budget()
        held = min(budget / (32 * n), (budget / 32) ** 0.5 / C)
        rank = min(most, max(n // 2, 1), max(int(held), 1))
        weights = weights.clamp_min(SMALLEST_WEIGHT * float(weights.max()) + 1e-300)
        choose = weighted(random_pivots(child(seeded(self.seed), "pivots")), weights)
        made = extended(no_pivots(self.K), self.K, rank=rank, tolerance=1e-10, choose=choose)
        return made.F, made.pivots


@dataclass(frozen=True, eq=False)
class IterativeSystem(NewtonSystem):
    """A of one expansion with its preconditioner P, if one was asked for."""

    systems: IterativeSystems
    expansion: Expansion
    A: LinearOperator
    P: Invertible | None

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Solved:
        known, spent = self.systems, Spent()
        method = "pcg" if B.shape[1] > WIDE and self.below() is not None else None
        report = solve(
            self.A, B, method=method, preconditioner=self.P, start=start, stopping=stopping, callback=known.callback
        )
        if report.status in RETRYABLE and isinstance(self.A, KernelPlusDiagonal) and self.P is not None:
            spent, first, pricing = Spent(products=report.columns), report.solution, known.problem.pricing
            source, listener = child(seeded(known.seed), "further solves"), known.callback
            report, _ = planning.solve_automatically(self.A, B, first, stopping, listener, source, pricing=pricing)
        return Solved(report.solution, spent + Spent.of(report))

    def telling(self, callback: Listener | None) -> Self:
        return replace(self, systems=replace(self.systems, callback=callback))

    def sampler(self) -> ConstantInvertible | None:
        """Return the preconditioner if draws from N(0, P) can be made."""
        return self.P if isinstance(self.P, ConstantInvertible) else None

    def below(self) -> Invertible | None:
        P, automatic = self.P, self.systems.preconditioner == "auto"
        is_low_rank = isinstance(P, LowRankPlus) and isinstance(P.base, Diagonal) and automatic
        return P if is_low_rank or isinstance(P, SoftmaxLowRank) else None

    def near(self) -> Invertible | None:
        return self.P if self.P is not None and self.P.is_constant else None

    def captured(self) -> Tensor:
        """Return Q (N, m) with P⁻¹ = I − QQᵀ where P is of that form and near A; no columns otherwise."""
        P, problem = self.below(), self.systems.problem
        return P.Q if isinstance(P, LowRankPlus) else problem.X.new_zeros(problem.size, 0)

    def guessed(self, R: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return P⁻¹R and the diagonal of I − P⁻¹: a control variate for that of I − A⁻¹, or R and 0 without one."""
        if not isinstance(self.P, Factored | LowRankPlus):
            return R, 0.0
        return self.P.solve(R), 1 - self.P.inverse_diagonal()

    def drawn(self, k: int, generator: Generator) -> Probes | None:
        """Return (N, k) draws w ~ N(0, P), on a sphere, and z = P⁻¹w; None where `captured` says more, or without P."""
        if not isinstance(self.P, ConstantInvertible) or self.captured().shape[1] > 0:
            return None
        return Probes.drawn(self.P, k, generator)
