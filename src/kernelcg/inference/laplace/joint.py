"""The latent process at many points at once, in Laplace's approximation: covariance, draws, parts of a sum kernel."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kernelcg.backends.binding import block_beside
from kernelcg.backends.memory import require_memory
from kernelcg.errors import SolveFailed
from kernelcg.inference.laplace.mode_error import solved_for_drift
from kernelcg.inference.laplace.posterior import LaplacePosterior
from kernelcg.kernels import Kernel
from kernelcg.randomness import normal
from kernelcg.solvers import Status
from kernelcg.solvers.covariance_root import covariance_root

RTOL = 1e-6
"""Residual of the solves, relative to their right-hand sides; variances feel its square."""

COLUMNS_AT_ONCE = 128


@dataclass(frozen=True, eq=False)
class _Explained:
    """KᵀRK of some columns K = k(X, x) ⊗ I, R = S A⁻¹ Sᵀ + N B Nᵀ, with an error that is quadratic in that of V.

    Attributes
    ----------
    B, V, residual : (N, tC) Sᵀ K, A⁻¹ B nearly, and B − A V
    apart, weighted : (r, t) Nᵀk and B Nᵀk of the points apart
    """

    B: Tensor
    V: Tensor
    residual: Tensor
    apart: Tensor
    weighted: Tensor
    status: Status

    @classmethod
    def of(cls, posterior: LaplacePosterior, K: Tensor) -> "_Explained":
        """Return the form for the columns K (n, t)."""
        system, apart = posterior.at_hand()
        system, C = system.sharpened(), posterior.problem.classes
        if not apart.exists:
            raise SolveFailed("Laplace's approximation does not exist at this mode: its covariance is not positive")
        eye = torch.eye(C, dtype=K.dtype, device=K.device)
        columns = torch.einsum("it,cd->ictd", K, eye).reshape(posterior.problem.size, K.shape[1] * C)
        B = posterior.mode.expansion.half_transposed(columns)
        stopping, solved = replace(posterior.numerics.stopping, rtol=RTOL, atol=0.0), []
        for some in B.split(COLUMNS_AT_ONCE, dim=1):
            solved.append(system.solve(some.contiguous(), stopping))
        V = torch.cat([one.solution for one in solved], 1)
        failed = [one.spent.status for one in solved if one.spent.status is not Status.CONVERGED]
        on_apart = apart.N.T @ K if len(apart.B) else K[:0]
        weighted = apart.B @ on_apart if len(apart.B) else on_apart
        residual = B - system.A.with_precision(torch.float64) @ V
        return cls(B, V, residual, on_apart, weighted, failed[0] if failed else Status.CONVERGED)

    def matrix(self) -> Tensor:
        """Return the whole matrix, (tC, tC)."""
        form = self.B.T @ self.V + self.V.T @ self.residual
        own = 0.5 * (form + form.T)
        return own + self.apart.T @ self.weighted if len(self.apart) else own  # points apart: one latent function

    def diagonal(self) -> Tensor:
        """Return the diagonal of the matrix, (tC,)."""
        own = (self.B * self.V + self.V * self.residual).sum(0)
        return own + (self.apart * self.weighted).sum(0) if len(self.apart) else own


def joint_covariance(posterior: LaplacePosterior, X: Tensor) -> tuple[Tensor, Status]:
    """Return the (tC, tC) covariance of the latent values at the rows of X, the C of a point one after the other.

    K** ⊗ I − K*ᵀRK*, and (h − HᵀRk)ᵀ(HᵀRH)⁻¹(h − HᵀRk) for the drift. It takes tC solves and O((tC)²) memory.
    """
    X, problem, kernel = posterior.checked_inputs(X), posterior.problem, posterior.gp.kernel
    t, C = len(X), problem.classes
    needed = 8 * (4 * (t * C) ** 2 + 3 * problem.size * t * C)
    require_memory(needed, problem.points.budget(), f"the covariance of {t} points with {C} latent values each")
    K = problem.matrix(kernel).cross_block(X, precision=torch.float64).T.contiguous()
    explained = _Explained.of(posterior, K)
    prior = block_beside(problem.matrix(kernel), X)
    covariance = torch.kron(prior, torch.eye(C, dtype=K.dtype, device=K.device)) - explained.matrix()
    if problem.H.shape[1]:
        left = (problem.drift(X) - K.T @ posterior.RH).T  # (b, t)
        covariance = covariance + left.T @ solved_for_drift(problem.H.T @ posterior.RH, left)
    covariance.diagonal().clamp_min_(0.0)
    return covariance, explained.status


def latent_draws(posterior: LaplacePosterior, X: Tensor, count: int, generator: Generator) -> tuple[Tensor, Status]:
    """Return (t, C, count) draws of the latent functions from Laplace's Gaussian, jointly over the rows of X.

    Beside them is the status of their covariance.
    """
    covariance, status = joint_covariance(posterior, X)
    L, mean = covariance_root(covariance), posterior.mean(X)
    draws = L @ normal(len(L), count, generator, like=mean)
    return mean[:, :, None] + draws.reshape(*mean.shape, count), status


def latent_part(posterior: LaplacePosterior, kernel: Kernel, X: Tensor) -> tuple[Tensor, Tensor, Status]:
    """Return (t, C) means and variances of the summand of the latent process that has this kernel, and the status.

    With k = kernel(X, x): kᵀa, and k(x, x) − kᵀRk, to which the drift adds (HᵀRk)ᵀ(HᵀRH)⁻¹HᵀRk.
    """
    X, problem = posterior.checked_inputs(X), posterior.problem
    K = problem.points.bind(kernel).cross_block(X, precision=torch.float64).T.contiguous()
    prior = kernel.diagonal(X).detach().clamp_min(0)
    explained = _Explained.of(posterior, K)
    variance = prior[:, None] - explained.diagonal().reshape(len(X), problem.classes)
    if problem.H.shape[1]:
        left = posterior.RH.T @ K
        variance = variance + (left * solved_for_drift(problem.H.T @ posterior.RH, left)).sum(0)[:, None]
    mean = K.T @ posterior.mode.a.reshape(len(problem), -1)
    return mean, variance.clamp_min(0.0), explained.status


def latent_drift(posterior: LaplacePosterior, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return (t, 1) mean and variance of the drift h(x)ᵀβ."""
    X, problem = posterior.checked_inputs(X), posterior.problem
    h = problem.drift(X)
    variance = (h.T * solved_for_drift(problem.H.T @ posterior.RH, h.T)).sum(0)
    return h @ posterior.mode.beta, variance[:, None]
