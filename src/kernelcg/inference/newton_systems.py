"""Solving with A = Sᵀ(K ⊗ I)S + I for a sequence of expansions: by its factor, or by preconditioned CG."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernelcg import planning
from kernelcg.backends import Dense
from kernelcg.inference.class_systems import ClassPreconditioner, ClassSystem
from kernelcg.inference.expansion import ClassExpansion, Expansion
from kernelcg.inference.latent import LatentProcess, Observations
from kernelcg.inference.lower_bound import LEAST_RANK
from kernelcg.operators import ConstantInvertible, Invertible, KernelPlusDiagonal, LinearOperator
from kernelcg.planning import Kept, product_dtype
from kernelcg.preconditioners import Preconditioner, recipe
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots, weighted
from kernelcg.randomness import child, seeded
from kernelcg.solvers import CholeskyFactor, SolveReport, Status, Stopping, solve

CLASS_WORK = 2e10
"""C n m² up to which a factor for each class is cheap beside the products."""


class NewtonSystems(ABC):
    """Solves with the systems of one kernel; `at` moves on to another expansion."""

    problem: Observations
    gp: LatentProcess
    expansion: Expansion
    A: LinearOperator
    stopping: Stopping
    statuses: list[Status]
    products: int

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

    @property
    def has_chosen(self) -> bool:
        """Whether nothing is to be chosen by the cost of the first solve."""
        return True

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

    def at(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self.A = expansion.system(self.gp.kernel, self.problem.X, self.problem.backend)
        self.factor = CholeskyFactor(self.A.dense())

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Tensor:
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
    kept: Kept | None = None
    statuses: list[Status] = field(default_factory=list)
    products: int = 0
    reports: list[SolveReport] = field(default_factory=list)

    @property
    def has_chosen(self) -> bool:
        return self.preconditioner != "auto" or self.kept is not None or self.problem.classes > 1

    @property
    def report(self) -> SolveReport | None:
        """Return the report of the first solve that failed, or of the last one."""
        failed = (report for report in self.reports if report.status is not Status.CONVERGED)
        return next(failed, self.reports[-1] if self.reports else None)

    def at(self, expansion: Expansion) -> None:
        A = expansion.system(self.gp.kernel, self.problem.X, self.problem.backend)
        self.expansion, self.A = expansion, A.with_precision(self._precision(A))
        self.P: Invertible | None = None

    def _precision(self, A: LinearOperator) -> torch.dtype:
        if isinstance(self.problem.backend, Dense):
            return torch.float64
        if self.problem.precision is not None:
            return self.problem.precision
        if isinstance(A, KernelPlusDiagonal):
            return product_dtype(A)
        first = torch.ones(len(self.problem), dtype=torch.float64, device=self.problem.X.device)
        return product_dtype(KernelPlusDiagonal(self.gp.kernel, self.problem.X, first, backend=self.problem.backend))

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Tensor:
        if isinstance(self.A, KernelPlusDiagonal):
            report = self._solved(self.A, B, stopping, start)
        else:
            report = solve(self.A, B, preconditioner=self._class_preconditioner(), start=start, stopping=stopping)
        self.reports.append(report)
        self.statuses.append(report.status)
        self.products += report.columns
        return report.solution

    def _solved(self, A: KernelPlusDiagonal, B: Tensor, stopping: Stopping, start: Tensor | None) -> SolveReport:
        generator = child(seeded(self.seed), "preconditioner")
        if self.preconditioner == "auto":
            report, self.kept = planning.solve_reusing(
                A, B, self.kept, start=start, stopping=stopping, generator=generator, reproducible=True
            )
            return report
        if self.preconditioner is None:
            return solve(A, B, start=start, stopping=stopping)
        if self.kept is None or self.kept.prepared is None:
            chosen = recipe(self.preconditioner) if isinstance(self.preconditioner, str) else self.preconditioner
            self.kept = Kept(chosen.prepare(A.kernel, A.X, A.backend, generator), 0.0)
        P = self.built()
        return solve(A, B, preconditioner=P, start=start, stopping=stopping)

    def built(self) -> Invertible | None:
        """Return the preconditioner for the present A, if there is one."""
        if isinstance(self.A, ClassSystem):
            return self._class_preconditioner()
        if self.P is None and self.kept is not None and self.kept.prepared is not None:
            scale, one = self.A.scale, self.A.diagonal  # type: ignore[attr-defined]
            self.P = self.kept.prepared.factor(scale, one)
        return self.P

    def sampler(self) -> ConstantInvertible | None:
        """Return the preconditioner if draws from N(0, P) can be made."""
        P = self.built()
        return P if isinstance(P, ConstantInvertible) else None

    def _class_preconditioner(self) -> ClassPreconditioner | None:
        if self.preconditioner is None or not isinstance(self.expansion, ClassExpansion):
            return None
        if not isinstance(self.P, ClassPreconditioner):
            self.P = ClassPreconditioner(self._low_rank(self.expansion.pi), self.expansion.pi)
        return self.P

    def _low_rank(self, pi: Tensor) -> Tensor:
        """Return F with F Fᵀ ≈ K where W is large: pivots are drawn by the diagonal of what is left of it times tr W.

        Where the classes are certain W is next to nothing, and K there does not matter. The rank is one whose
        class-wise factors stay cheap.
        """
        problem, kernel = self.problem, self.gp.kernel
        n, C = len(problem), problem.classes
        rank = max(LEAST_RANK, int((CLASS_WORK / (C * n)) ** 0.5))
        rank = min(rank, n, max(int(problem.backend.budget() / (8 * (4 * n + 2 * C * LEAST_RANK))), 1))
        weights = (pi * (1 - pi)).sum(1).clamp_min(1e-8)
        choose = weighted(random_pivots(child(seeded(self.seed), "pivots")), weights)
        empty = no_pivots(kernel, problem.X)
        return extended(empty, kernel, problem.X, problem.backend, rank=rank, tolerance=1e-10, choose=choose).F
