"""Newton's systems by Cholesky factorisation."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_system import NewtonSystem, NewtonSystems, Solved
from kernelcg.inference.laplace.softmax_factor import SoftmaxFactor
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
        factor = self._factor(expansion, A)
        return DirectSystem(self, expansion, A, factor, float(factor.log_determinant()))

    def traced_at(self, expansion: Expansion) -> "TracedSystem":
        """Return the system of this expansion with what exact traces need of A⁻¹.

        A⁻¹ takes the place of the factor where that is large, but for classes, whose structure needs neither.
        """
        A = expansion.system(self.K)
        factor = self._factor(expansion, A)
        log_determinant = float(factor.log_determinant())
        if isinstance(factor, SoftmaxFactor):
            return TracedSystem(self, expansion, A, factor, log_determinant, *factor.traced())
        inverse = factor.inverse()
        kept = Inverse(inverse) if factor.in_place else factor
        own, total = inverse.diagonal()[:, None, None].clone(), expansion.half(expansion.half(inverse).T)
        return TracedSystem(self, expansion, A, kept, log_determinant, own, total)

    def _factor(self, expansion: Expansion, A: LinearOperator) -> CholeskyFactor | SoftmaxFactor:
        if isinstance(expansion, ClassExpansion):
            return SoftmaxFactor(self.K.block(precision=torch.float64), expansion.pi)
        return CholeskyFactor(A.dense())

    def sharpened(self) -> Self:
        return self


@dataclass(frozen=True, eq=False)
class Inverse:
    """A⁻¹ itself."""

    matrix: Tensor

    def solve(self, B: Tensor) -> Tensor:
        """Return A⁻¹B."""
        return self.matrix @ B


@dataclass(frozen=True, eq=False)
class DirectSystem(NewtonSystem):
    """A of one expansion with its factor."""

    systems: DirectSystems
    expansion: Expansion
    A: LinearOperator
    factor: CholeskyFactor | SoftmaxFactor | Inverse
    log_determinant: float

    def solve(self, B: Tensor, stopping: Stopping, start: Tensor | None = None) -> Solved:
        return Solved(self.factor.solve(B.contiguous()))

    def telling(self, callback: Listener | None) -> Self:
        return self

    def below(self) -> None:
        return None

    def near(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class TracedSystem(DirectSystem):
    """The same with what exact traces need.

    Attributes
    ----------
    own : (n, C, C) the diagonal blocks of A⁻¹
    total : (n, n) the sum over the classes of the blocks of S A⁻¹Sᵀ
    """

    own: Tensor
    total: Tensor
