"""Solving with A = Sᵀ(K ⊗ I)S + I for a sequence of expansions: by its factor, or by preconditioned CG."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.backends import KernelMatrix
from kernelcg.backends.memory import FOR_PRECONDITIONER
from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import projected
from kernelcg.inference.gaussian.likelihood_by_pcg import Probes
from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion, ScalarExpansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.softmax_system import SoftmaxLowRank
from kernelcg.operators import ConstantInvertible, Invertible, KernelPlusDiagonal, LinearOperator
from kernelcg.planning import product_dtype
from kernelcg.planning.ranks import LEAST_RANK
from kernelcg.preconditioners import Preconditioner, Prepared, recipe
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder, sparse_remainder
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots, weighted
from kernelcg.preconditioners.shapes import Diagonal, Factored, LowRankPlus
from kernelcg.randomness import child, seeded
from kernelcg.solvers import CholeskyFactor, SolveReport, Status, Stopping, solve

CLASS_WORK, SHARP_CLASS_WORK = 2e10, 2e11
"""n (Cm)² of the low-rank part for C classes: for the few solves of a Newton step, and for those of covariances."""

SCALAR_WORK = 1e9
"""n m² of the low-rank part for a single latent value a point."""

SMALLEST_WEIGHT = 1e-8

LITTLE_LEFT = 0.3
"""Mean diagonal of S (K − F Fᵀ) S up to which low rank is near A."""

RANK_BESIDE_NEIGHBOURS, NEIGHBOURS = 128, 30

WIDE = 100
"""Columns beyond which, with P near A, orthonormal directions cost more than the few iterations they save."""

RETRYABLE = (Status.STAGNATED, Status.INDEFINITE_PRECONDITIONER)


class NewtonSystems(ABC):
    """Solves with the systems of one kernel; `at` moves on to another expansion."""

    problem: Observations
    gp: LatentProcess
    expansion: Expansion
    A: LinearOperator
    stopping: Stopping
    statuses: list[Status]
    products: int
    callback: Listener | None

    @abstractmethod
    def at(self, expansion: Expansion) -> None:
        """Make A that of this expansion."""

    @abstractmethod
    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Tensor:
        """Return A⁻¹B."""

    def unbent(self, V: Tensor, rtol: float, further: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""Return (I + WK)⁻¹V = V − S A⁻¹ SᵀK V and W (I + KW)⁻¹H = S A⁻¹ SᵀH for ``further`` columns H.

        If ρ is what a solution with A leaves, Sρ is what is left of (I + WK) X = V: a residual ‖ρ‖ ≤ rtol ‖V‖ / ‖S‖ is
        small enough, whereas one relative to SᵀKV need not be.
        """
        expansion, product = self.expansion, self.problem.product
        H = V[:, :0] if further is None else further
        right = torch.cat([expansion.half_transposed(product(self.gp.kernel, V)), expansion.half_transposed(H)], 1)
        sizes = torch.cat([V.norm(dim=0), expansion.half(expansion.half_transposed(H)).norm(dim=0)])
        sizes = torch.where(sizes > 0, sizes, 1.0)
        stopping = replace(self.stopping, rtol=0.0, atol=rtol / max(expansion.norm(), 1e-100))
        solved = expansion.half(self.solve(right / sizes, stopping)) * sizes
        return V - solved[:, : V.shape[1]], solved[:, V.shape[1] :]

    def below(self) -> Invertible | None:
        """Return P ⪯ A, near A and easy to solve with, where one is known."""
        return None

    def sharpen(self) -> None:  # noqa: B027
        """Prepare for solves with many columns; by default there is nothing to do."""

    @property
    def K(self) -> KernelMatrix:
        """Return the kernel matrix."""
        return self.problem.matrix(self.gp.kernel)

    @property
    def last(self) -> Status:
        """Return the status of the last solve."""
        return self.statuses[-1] if self.statuses else Status.CONVERGED

    @property
    def status(self) -> Status:
        """Return the first failure, if there was one."""
        return next((status for status in self.statuses if status is not Status.CONVERGED), Status.CONVERGED)


@dataclass(eq=False)
class DirectSystems(NewtonSystems):
    """By Cholesky factorisation."""

    problem: Observations
    gp: LatentProcess
    stopping: Stopping = Stopping()
    statuses: list[Status] = field(default_factory=list)
    products: int = 0
    inverse: Tensor | None = None
    callback: Listener | None = None

    def at(self, expansion: Expansion) -> None:
        if vars(self).get("expansion") is expansion and self.inverse is None:
            return
        self.expansion = expansion
        self.A = expansion.system(self.K)
        self.factor, self.inverse = CholeskyFactor(self.A.dense()), None

    def inverted(self) -> Tensor:
        """Return A⁻¹, which may take the place of the factor and is used for what follows."""
        self.inverse = self.factor.inverse()
        return self.inverse

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Tensor:
        if self.inverse is not None and self.factor.in_place:
            return self.inverse @ B
        return self.factor.solve(B.contiguous())


@dataclass(eq=False)
class IterativeSystems(NewtonSystems):
    """By preconditioned conjugate gradients; what a preconditioner knows of K is made once and kept."""

    problem: Observations
    gp: LatentProcess
    preconditioner: str | Preconditioner | None = "auto"
    seed: int = 0
    stopping: Stopping = Stopping()
    """Its limits hold for every solve; tolerances are given with each."""
    pivots: Tensor | None = None
    """Rows of the low-rank part: kept nearby, so that estimates which use it are smooth."""
    prepared: Prepared | None = None
    class_work: float = CLASS_WORK
    statuses: list[Status] = field(default_factory=list)
    products: int = 0
    reports: list[SolveReport] = field(default_factory=list)
    callback: Listener | None = None
    """Told of every iteration."""

    @property
    def report(self) -> SolveReport | None:
        """Return the report of the first solve that failed for good, or of the last one."""
        failed = (report for report in self.reports if report.status is self.status)
        return next(failed, None) if self.status is not Status.CONVERGED else next(iter(self.reports[-1:]), None)

    def at(self, expansion: Expansion) -> None:
        if vars(self).get("expansion") is expansion:
            return
        A = expansion.system(self.K)
        self.expansion, self.A = expansion, A.with_precision(self._precision(A))
        self.P: Invertible | None = None

    def _precision(self, A: LinearOperator) -> torch.dtype:
        if self.K.is_stored:
            return torch.float64
        if self.problem.precision is not None:
            return self.problem.precision
        if isinstance(A, KernelPlusDiagonal):
            return product_dtype(A)
        first = torch.ones(len(self.problem), dtype=torch.float64, device=self.problem.X.device)
        return product_dtype(KernelPlusDiagonal(self.K, first))

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Tensor:
        method = "pcg" if B.shape[1] > WIDE and self.below() is not None else None
        P = self.built()
        report = solve(
            self.A, B, method=method, preconditioner=P, start=start, stopping=stopping, callback=self.callback
        )
        if report.status in RETRYABLE and isinstance(self.A, KernelPlusDiagonal) and self.preconditioner is not None:
            self._record(report)
            first = report.solution
            report = planning.solve_automatically(
                self.A, B, first, stopping, self.callback, pricing=self.problem.pricing
            )[0]
        self._record(report)
        self.statuses.append(report.status)
        self.products += report.columns
        return report.solution

    def _record(self, report: SolveReport) -> None:
        """Keep the report, without the N numbers a column of its solution."""
        self.reports.append(replace(report, solution=report.solution[:0].clone()))

    def built(self) -> Invertible | None:
        """Return the preconditioner for the present A, if one was asked for."""
        if self.P is None and self.preconditioner is not None:
            if isinstance(self.expansion, ClassExpansion):
                F = self._low_rank(self.expansion.trace(), self.class_work / self.problem.classes**2)
                self.P = SoftmaxLowRank(F, self.expansion.pi)
            elif isinstance(self.expansion, ScalarExpansion):
                if self.prepared is None:
                    self.prepared = self._prepared(self.expansion)
                self.P = self.prepared.factor(self.expansion.root, torch.ones_like(self.expansion.root))
        return self.P

    def sharpen(self) -> None:
        """Make the low-rank part for classes larger: covariances take C columns a point."""
        if self.problem.classes > 1 and self.class_work != SHARP_CLASS_WORK:
            self.class_work, self.pivots, self.P = SHARP_CLASS_WORK, None, None

    def sampler(self) -> ConstantInvertible | None:
        """Return the preconditioner if draws from N(0, P) can be made."""
        P = self.built()
        return P if isinstance(P, ConstantInvertible) else None

    def below(self) -> Invertible | None:
        P = self.built()
        is_low_rank = isinstance(P, LowRankPlus) and isinstance(P.base, Diagonal) and self.preconditioner == "auto"
        return P if is_low_rank or isinstance(P, SoftmaxLowRank) else None

    def captured(self) -> Tensor:
        """Return Q (N, m) with P⁻¹ = I − QQᵀ where P is of that form and near A; no columns otherwise."""
        P = self.below()
        return P.Q if isinstance(P, LowRankPlus) else self.problem.X.new_zeros(self.problem.size, 0)

    def guessed(self, R: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return P⁻¹R and the diagonal of I − P⁻¹: a control variate for that of I − A⁻¹, or R and 0 without one."""
        P = self.built()
        if not isinstance(P, Factored | LowRankPlus):
            return R, 0.0
        return P.solve(R), 1 - P.inverse_diagonal()

    def drawn(self, k: int, generator: Generator) -> Probes | None:
        """Return (N, k) draws w ~ N(0, P), on a sphere, and z = P⁻¹w; None where `captured` says more, or without P."""
        P = self.built()
        if not isinstance(P, ConstantInvertible) or self.captured().shape[1] > 0:
            return None
        return Probes.drawn(P, k, generator)

    def _prepared(self, expansion: ScalarExpansion) -> Prepared:
        """Return what is prepared once for the kernel: by default low rank, made for the W of the first expansion."""
        if self.preconditioner == "auto":
            return self._automatic(expansion.trace())
        chosen = recipe(self.preconditioner) if isinstance(self.preconditioner, str) else self.preconditioner
        if chosen is None:
            raise ValueError("there is no preconditioner to prepare")
        generator = child(seeded(self.seed), "preconditioner")
        return chosen.prepare(self.K, generator)

    def _automatic(self, weights: Tensor) -> LowRankAndRemainder:
        """Return low rank alone where it leaves little of S K S beside I, or less of it with neighbours."""
        F = self._low_rank(weights, SCALAR_WORK)
        left = weights * (self.K.diagonal() - F.square().sum(1)).clamp_min(0.0)
        if float(left.mean()) <= LITTLE_LEFT:
            return LowRankAndRemainder(F, DiagonalRemainder())
        F = F[:, :RANK_BESIDE_NEIGHBOURS].contiguous()
        order = child(seeded(self.seed), "order")
        return LowRankAndRemainder(F, sparse_remainder(self.K, order, NEIGHBOURS, F))

    def _low_rank(self, weights: Tensor, work: float) -> Tensor:
        """Return F with F Fᵀ ≈ K where W is large: pivots are drawn by the diagonal of what is left of it times tr W.

        Where the likelihood is certain W is next to nothing, and K there does not matter. The rank m is such that n m²
        is ``work``.
        """
        n, C, budget = len(self.problem), self.problem.classes, FOR_PRECONDITIONER * self.problem.points.budget()
        held = min(budget / (32 * n), (budget / 32) ** 0.5 / C)
        least = LEAST_RANK if C == 1 else 1
        rank = min(max(least, int((work / n) ** 0.5)), max(n // 2, 1), max(int(held), 1))
        if self.pivots is None:
            weights = weights.clamp_min(SMALLEST_WEIGHT * float(weights.max()) + 1e-300)
            choose = weighted(random_pivots(child(seeded(self.seed), "pivots")), weights)
            made = extended(no_pivots(self.K), self.K, rank=rank, tolerance=1e-10, choose=choose)
            self.pivots = made.pivots
            return made.F
        return projected(self.K, self.pivots)[0]
