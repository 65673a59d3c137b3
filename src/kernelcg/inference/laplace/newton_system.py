"""A = Sᵀ(K ⊗ I)S + I of one expansion as a value whose solves return what they took."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.events import Listener
from kernelcg.inference.laplace.expansion import Expansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.operators import Invertible, LinearOperator
from kernelcg.solvers import SolveReport, Status, Stopping


@dataclass(frozen=True, eq=False)
class Spent:
    """What linear solves took and how they ended; the sum of two records is that of all their solves, in order.

    Attributes
    ----------
    status : the first failure, if there was one
    products : columns multiplied with A; 0 in the direct method
    report : of the first solve that failed for good, or of the last one; without the solution, and None in the direct
        method
    """

    status: Status = Status.CONVERGED
    products: int = 0
    report: SolveReport | None = None

    @classmethod
    def of(cls, report: SolveReport) -> "Spent":
        """Return the record of one solve, without the N numbers a column of its solution."""
        return cls(report.status, report.columns, replace(report, solution=report.solution[:0].clone()))

    def __add__(self, later: "Spent") -> "Spent":
        products = self.products + later.products
        if self.status is not Status.CONVERGED:
            return replace(self, products=products)
        return Spent(later.status, products, self.report if later.report is None else later.report)


@dataclass(frozen=True, eq=False)
class Solved:
    """A⁻¹B and what it took."""

    solution: Tensor  # (N, k)
    spent: Spent = Spent()


@dataclass(frozen=True, eq=False)
class Unbent:
    """(I + WK)⁻¹V, W (I + KW)⁻¹H and what they took: see `NewtonSystem.unbent`."""

    V: Tensor  # (N, k)
    RH: Tensor  # (N, b)
    spent: Spent


class NewtonSystems(ABC):
    """What is known for one kernel, whatever the expansion: a value, from which `at` makes systems."""

    problem: Observations
    gp: LatentProcess
    stopping: Stopping

    @abstractmethod
    def at(self, expansion: Expansion) -> "NewtonSystem":
        """Return the system of this expansion. Its ``systems`` are these, with what had to be prepared for it."""

    @abstractmethod
    def sharpened(self) -> Self:
        """Return the systems for solves with many columns, which take more preparation; itself if they are these."""

    @property
    def K(self) -> KernelMatrix:
        """Return the kernel matrix."""
        return self.problem.matrix(self.gp.kernel)


class NewtonSystem(ABC):
    """Solves with A of one expansion."""

    systems: NewtonSystems
    """What is known for the kernel; the systems of further expansions are made from it."""
    expansion: Expansion
    A: LinearOperator

    @abstractmethod
    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Solved:
        """Return A⁻¹B."""

    @abstractmethod
    def telling(self, callback: Listener | None) -> Self:
        """Return the system whose iterations, if it has any, are told to this callback and nobody else."""

    @abstractmethod
    def below(self) -> Invertible | None:
        """Return P ⪯ A, near A and easy to solve with, where one is known."""

    @abstractmethod
    def near(self) -> Invertible | None:
        """Return a constant P near A by which energies may be estimated, where one is known; that of `below` if any."""

    def sharpened(self) -> "NewtonSystem":
        """Return the system for solves with many columns; itself if there is nothing more to prepare."""
        sharp = self.systems.sharpened()
        return self if sharp is self.systems else sharp.at(self.expansion)

    def unbent(self, V: Tensor, rtol: float, further: Tensor | None = None) -> Unbent:
        r"""Return (I + WK)⁻¹V = V − S A⁻¹ SᵀK V and W (I + KW)⁻¹H = S A⁻¹ SᵀH for ``further`` columns H.

        If ρ is what a solution with A leaves, Sρ is what is left of (I + WK) X = V: a residual ‖ρ‖ ≤ rtol ‖V‖ / ‖S‖ is
        small enough, whereas one relative to SᵀKV need not be.
        """
        expansion, systems = self.expansion, self.systems
        H = V[:, :0] if further is None else further
        KV = systems.problem.product(systems.gp.kernel, V)
        right = torch.cat([expansion.half_transposed(KV), expansion.half_transposed(H)], 1)
        sizes = torch.cat([V.norm(dim=0), expansion.half(expansion.half_transposed(H)).norm(dim=0)])
        sizes = torch.where(sizes > 0, sizes, 1.0)
        stopping = replace(systems.stopping, rtol=0.0, atol=rtol / max(expansion.norm(), 1e-100))
        solved = self.solve(right / sizes, stopping)
        found = expansion.half(solved.solution) * sizes
        return Unbent(V - found[:, : V.shape[1]], found[:, V.shape[1] :], solved.spent)
