"""The points at which log p(y | f) is not concave, taken into account exactly."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_system import NewtonSystem, Spent


@dataclass(frozen=True, eq=False)
class IndefinitePoints:
    r"""The points with W ≤ 0 or tiny, taken into account exactly: n_r columns.

    With :math:`M_+ = (I + W_+ K)^{-1}`, :math:`N = M_+ E`, :math:`T = K N = \Sigma_+ E` and
    :math:`B = (I + W_r T_r)^{-1} W_r`, the whole W gives

    .. math:: |I + KW| = |A|\, |I + W_r T_r|, \quad M = M_+ - N B T^\top, \quad
        R = W M^\top = R_+ + N B N^\top, \quad \Sigma = \Sigma_+ - T B T^\top.
    """

    N: Tensor
    T: Tensor
    B: Tensor
    log_determinant: float
    own: Tensor
    """(n_r,) the diagonal of Σ₊ there."""
    spent: Spent

    @property
    def exists(self) -> bool:
        """Whether K⁻¹ + W is positive definite: otherwise the point is no maximum."""
        return math.isfinite(self.log_determinant)

    @classmethod
    def of(cls, problem: Observations, gp: LatentProcess, system: NewtonSystem, rtol: float) -> "IndefinitePoints":
        """Return it at the expansion of the system; NaN where K⁻¹ + W is not positive definite."""
        rows, weights = system.expansion.apart, system.expansion.W_apart
        E = torch.zeros(problem.size, len(rows), dtype=torch.float64, device=problem.X.device)
        E[rows, torch.arange(len(rows), device=rows.device)] = 1.0
        if len(rows) == 0:
            return cls(E, E, E[:0], 0.0, weights, Spent())
        unbent = system.unbent(E, rtol)
        N = unbent.V
        T = problem.product(gp.kernel, N)
        inner = T[rows]
        inner = 0.5 * (inner + inner.T)
        eye = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
        values, vectors = torch.linalg.eigh(inner)
        root = vectors * values.clamp_min(0.0).sqrt()  # inner = root rootᵀ
        spectrum = torch.linalg.eigvalsh(eye + root.T @ (weights[:, None] * root))
        if not bool((spectrum > 0).all()):  # K⁻¹ + W is indefinite: no maximum
            return cls(N, T, torch.full_like(eye, math.nan), math.nan, inner.diagonal(), unbent.spent)
        B = torch.linalg.solve(eye + weights[:, None] * inner, torch.diag(weights))
        return cls(N, T, 0.5 * (B + B.T), float(spectrum.log().sum()), inner.diagonal(), unbent.spent)
