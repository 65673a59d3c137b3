"""The gradient of Laplace's evidence at a mode, by one adjoint solve."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.laplace.expansion import ClassExpansion, ScalarExpansion
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode
from kernelcg.inference.laplace.newton_system import NewtonSystem, Spent
from kernelcg.solvers.least_squares import least_squares


@dataclass(frozen=True, eq=False)
class Sampled:
    """L and R with mean(L Rᵀ) + diag(own) ≈ I − A⁻¹, in its diagonal blocks at least, and R₊H."""

    L: Tensor
    R: Tensor
    RH: Tensor
    own: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class Adjoint:
    """v and t of the implicit term and diag Σ; see `laplace_estimate`."""

    v: Tensor  # (N, 1)
    t: Tensor  # (N, 1)
    variances: Tensor  # (n,); nothing for classes
    spent: Spent

    @classmethod
    def of(
        cls,
        problem: Observations,
        gp: LatentProcess,
        system: NewtonSystem,
        apart: IndefinitePoints,
        sampled: Sampled,
        rtol: float,
    ) -> "Adjoint":
        """Solve the adjoint system with what was sampled."""
        expansion = system.expansion
        if isinstance(expansion, ClassExpansion):
            variances, u = sampled.L.new_zeros(0), expansion.slope(sampled.L, sampled.R)
        elif isinstance(expansion, ScalarExpansion):
            correction = ((apart.T @ apart.B) * apart.T).sum(1)
            diagonal = (sampled.L * sampled.R).mean(1) + sampled.own
            variances = expansion.variances(diagonal, correction, apart.own)
            u = (variances * expansion.derivatives.slope)[:, None]
        unbent = system.unbent(u, rtol)
        v = unbent.V - apart.N @ (apart.B @ (apart.T.T @ u))
        H, RH = problem.H, sampled.RH + apart.N @ (apart.B @ (apart.N.T @ problem.H))
        c = least_squares(H.T @ RH, H.T @ v) if H.shape[1] else H.new_zeros(0, 1)
        v = v - RH @ c
        needs_t = len(gp.likelihood.log_parameters()) > 0
        t = problem.product(gp.kernel, v) + H @ c if needs_t else torch.zeros_like(v)
        return cls(v, t, variances, unbent.spent)


def gradient_at(
    problem: Observations,
    gp: LatentProcess,
    mode: Mode,
    solved: Adjoint,
    pairs: list[tuple[Tensor, Tensor]],
    weights: Tensor | None = None,
) -> Tensor:
    """Return the gradient in the kernel's and the likelihood's log hyperparameters."""
    left, right = (torch.cat(parts, dim=1) for parts in zip(*pairs, strict=True))
    by_kernel = problem.gradient(gp.kernel, left, right, weights)
    if isinstance(mode.expansion, ClassExpansion):
        return by_kernel
    d = gp.likelihood.parameter_derivatives(problem.y, mode.f[:, 0], problem.exposure)  # type: ignore[union-attr]
    by_likelihood = d.log_density.sum(0) - 0.5 * solved.variances @ d.curvature - 0.5 * solved.t[:, 0] @ d.gradient
    return torch.cat([by_kernel, by_likelihood.cpu()])
