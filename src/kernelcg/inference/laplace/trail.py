"""What an evaluation of Laplace's evidence leaves to the next one nearby."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelcg.inference.gaussian.likelihood_by_pcg import Probes
from kernelcg.inference.laplace.latent_model import Observations
from kernelcg.kernels import Kernel

CHANGED = 0.5
"""Change of K, relative to itself on a few rows, after which probes and pivots are chosen anew: they stay unbiased, but
the noise grows. Lengthscales of irrelevant features move far without consequence."""

FEW_ROWS = 200


@dataclass(frozen=True, eq=False)
class LaplaceTrail:
    """What an evaluation leaves to the next one nearby: the mode, solutions for the probes."""

    f: Tensor
    solutions: Tensor | None = None
    drawn: Probes | None = None
    pivots: Tensor | None = None
    """Probes, and rows of the low-rank part, that stay the same nearby, so that the estimate is smooth."""
    chosen_at: Tensor | None = None
    """Log hyperparameters of the kernel for which probes and rows were chosen."""

    def is_near(self, problem: Observations, kernel: Kernel) -> bool:
        """Say whether its choices still suit this kernel."""
        if self.chosen_at is None:
            return False
        X = problem.X[:: max(len(problem) // FEW_ROWS, 1)]
        before, now = (one(X, X).detach() for one in (kernel.with_log_parameters(self.chosen_at), kernel))
        return float((now - before).norm()) <= CHANGED * float(before.norm())

    def on(self, device: torch.device) -> "LaplaceTrail":
        """Return it on another device."""
        solutions = None if self.solutions is None else self.solutions.to(device)
        drawn = None if self.drawn is None else self.drawn.on(device)
        return replace(self, f=self.f.to(device), solutions=solutions, drawn=drawn)

    def without_probes(self) -> "LaplaceTrail":
        """Return it for an evaluation with other probes."""
        return LaplaceTrail(self.f)
