"""Which preconditioner suits a system: one solve with each."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernelcg import planning
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.laplace.latent_model import Observations
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import available
from kernelcg.solvers import Status, Stopping

NONE = "none"


@dataclass(frozen=True)
class Trial:
    """One solve; ``products`` are columns multiplied with K, building the preconditioner and inner solves included."""

    preconditioner: str
    status: str
    iterations: int = 0
    products: float = math.nan
    seconds: float = math.nan

    @property
    def converged(self) -> bool:
        """Whether the recomputed residual met the tolerance."""
        return self.status == Status.CONVERGED.name.lower()


def system_of(posterior: Any) -> tuple[KernelPlusDiagonal, Tensor] | None:
    """Return the system behind a posterior and its right-hand side; None for several latent functions.

    Regression: (K + λI) a = y. Laplace: A x = Sᵀf̂, A = S K S + I, the last step of Newton's method.
    """
    problem = posterior.problem
    if isinstance(problem, Regression):
        return problem.system(posterior.gp), problem.Y
    if isinstance(problem, Observations) and problem.classes == 1:
        expansion = posterior.mode.expansion
        A = expansion.system(problem.points.bind(posterior.gp.kernel.detached()))
        return A, expansion.half_transposed(posterior.mode.f)
    return None


def trials(A: KernelPlusDiagonal, b: Tensor, *, seconds: float, rtol: float = 1e-6) -> tuple[Trial, ...]:
    """Solve A x = b with every recipe, the automatic choice and plain CG, the quickest first, failures last."""
    stopping = Stopping(rtol=rtol, max_iterations=max(len(A), 1), patience=max(len(A), 1), max_seconds=seconds)
    found = [_tried(name, A, b, stopping) for name in ("auto", NONE, *available())]
    return tuple(sorted(found, key=lambda trial: (not trial.converged, math.isnan(trial.seconds), trial.seconds)))


def _tried(name: str, A: KernelPlusDiagonal, b: Tensor, stopping: Stopping) -> Trial:
    work = A.backend.work
    before = work.columns if work else math.nan
    try:
        report = planning.solve(A, b, preconditioner=None if name == NONE else name, stopping=stopping)
    except (ValueError, TypeError, MemoryBudgetExceeded) as error:  # not for this kernel, dimension or memory
        return Trial(name, f"not possible: {error}")
    spent = work.columns - before if work else float(report.columns + report.inner_columns)
    return Trial(name, report.status.name.lower(), int(report.iterations.max()), spent, report.seconds)
