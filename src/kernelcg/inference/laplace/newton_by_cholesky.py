"""Newton's systems by Cholesky factorisation."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.laplace.expansion import Expansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_system import NewtonSystem, NewtonSystems, Solved
from kernelcg.operators import LinearOperator
from kernelcg.solvers import CholeskyFactor, Stopping


@dataclass(frozen=True, eq=False)
class DirectSystems(NewtonSystems):
    """Systems that are solved by the Cholesky factor of A, made anew for each expansion."""

    problem: Observations
    gp: LatentProcess
    stopping: Stopping = Stopping()

    def at(self, expansion: Expansion) -> "DirectSystem":
        A = expansion.system(self.K)
        return DirectSystem(self, expansion, A, CholeskyFactor(A.dense()))

    def inverted_at(self, expansion: Expansion) -> "InvertedSystem":
        """Return the system of this expansion with A⁻¹, which takes the place of the factor where that is large."""
        A = expansion.system(self.K)
        factor = CholeskyFactor(A.dense())
        log_determinant = float(factor.log_determinant())
        inverse = factor.inverse()
        return InvertedSystem(self, expansion, A, inverse, None if factor.in_place else factor, log_determinant)

    def sharpened(self) -> Self:
        return self


@dataclass(frozen=True, eq=False)
class DirectSystem(NewtonSystem):
    """A of one expansion with its Cholesky factor."""

    systems: DirectSystems
    expansion: Expansion
    A: LinearOperator
    factor: CholeskyFactor

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Solved:
        return Solved(self.factor.solve(B.contiguous()))

    def telling(self, callback: Listener | None) -> Self:
        return self

    def below(self) -> None:
        return None

    def near(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class InvertedSystem(NewtonSystem):
    """A of one expansion with its inverse, and with the factor as well unless the inverse has taken its place."""

    systems: DirectSystems
    expansion: Expansion
    A: LinearOperator
    inverse: Tensor  # (N, N)
    factor: CholeskyFactor | None
    log_determinant: float

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Solved:
        return Solved(self.inverse @ B if self.factor is None else self.factor.solve(B.contiguous()))

    def telling(self, callback: Listener | None) -> Self:
        return self

    def below(self) -> None:
        return None

    def near(self) -> None:
        return None
