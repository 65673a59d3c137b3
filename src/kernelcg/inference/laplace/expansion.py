"""log p(y | f) around a point, and the systems of a Newton step that follow from it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.dense import by_rows
from kernelcg.inference.laplace.softmax_system import SoftmaxSystem
from kernelcg.likelihoods import Derivatives, Likelihood, Softmax
from kernelcg.operators import KernelPlusDiagonal, LinearOperator

SMALL = 0.01
"""Curvature, relative to the largest, below which a point of a likelihood that is not log-concave is set apart."""

UNDERFLOW = 1e-200

LEAST_CURVATURE = 0.01
"""Part of (∂log p / ∂f)² that stands for W where W is less: the mean of the square is that of W over y, and where W
says nothing, the square still says at which distance log p changes."""


class Expansion(ABC):
    """log p to third order; W = −∂²log p = S Sᵀ + E W_r Eᵀ, where E picks the few points ``apart`` with W ≤ 0 or tiny.

    With A = Sᵀ(K ⊗ I)S + I every quantity of the Laplace approximation follows without dividing by W.
    """

    log_density: float
    gradient: Tensor  # (N, 1) ∂log p / ∂f

    @property
    @abstractmethod
    def apart(self) -> Tensor:
        """Return the rows E."""

    @property
    @abstractmethod
    def W_apart(self) -> Tensor:
        """Return W_r at these rows."""

    @abstractmethod
    def norm(self) -> float:
        """Return an upper bound of ‖S‖₂."""

    @abstractmethod
    def trace(self) -> Tensor:
        """Return (n,) the trace of S Sᵀ at each point."""

    @abstractmethod
    def half(self, V: Tensor) -> Tensor:
        """Return S V, V (N, k)."""

    @abstractmethod
    def half_transposed(self, V: Tensor) -> Tensor:
        """Return SᵀV."""

    @abstractmethod
    def half_blocks(self, rows: Tensor) -> Tensor:
        """Return (m, C, C) the blocks S of some points."""

    @abstractmethod
    def cautious(self) -> Self:
        """Return it with a larger W where W is much less than the gradient suggests: for shorter steps, not as W."""

    @abstractmethod
    def system(self, K: KernelMatrix) -> LinearOperator:
        """Return A."""


@dataclass(frozen=True, eq=False)
class ScalarExpansion(Expansion):
    """One latent value a point: S = √W where W is clearly positive, 0 elsewhere."""

    derivatives: Derivatives
    root: Tensor  # (n,)
    rows: Tensor  # the points apart

    @classmethod
    def at(cls, likelihood: Likelihood, y: Tensor, f: Tensor, exposure: Tensor) -> Self:
        found = likelihood.derivatives(y, f[:, 0], exposure)
        W = found.curvature
        if likelihood.log_concave:
            return cls(found, W.clamp_min(0.0).sqrt(), torch.zeros(0, dtype=torch.int64, device=W.device))
        least = SMALL * W.max().clamp_min(0.0) if bool((W < 0).any()) else -torch.inf
        apart = least >= W
        root = torch.where(apart, 0.0, W.clamp_min(0.0)).sqrt()
        return cls(found, root, apart.nonzero()[:, 0])

    @property
    def log_density(self) -> float:  # type: ignore[override]
        return float(self.derivatives.log_density.sum())

    @property
    def gradient(self) -> Tensor:  # type: ignore[override]
        return self.derivatives.gradient[:, None]

    @property
    def apart(self) -> Tensor:
        return self.rows

    @property
    def W_apart(self) -> Tensor:
        return self.derivatives.curvature[self.rows]

    def norm(self) -> float:
        return float(self.root.max())

    def trace(self) -> Tensor:
        return self.root.square()

    def half(self, V: Tensor) -> Tensor:
        return self.root[:, None] * V

    def half_transposed(self, V: Tensor) -> Tensor:
        return self.root[:, None] * V

    def half_blocks(self, rows: Tensor) -> Tensor:
        return self.root[rows][:, None, None]

    def cautious(self) -> Self:
        root = torch.maximum(self.root, LEAST_CURVATURE**0.5 * self.derivatives.gradient.abs())
        return replace(self, root=root, rows=self.rows[:0])

    def system(self, K: KernelMatrix) -> KernelPlusDiagonal:
        return KernelPlusDiagonal(K, torch.ones_like(self.root), self.root)

    def variances(self, own: Tensor, correction: Tensor, apart: Tensor) -> Tensor:
        r"""Return (n,) the diagonal of Σ = (K⁻¹ + W)⁻¹ from ``own``, that of I − A⁻¹ = SΣ₊S.

        ``apart`` has the diagonal of Σ₊ at the points apart; ``correction`` is what Σ lacks of Σ₊. Where W underflows
        so does whatever the variance is multiplied with: it is set to 0.
        """
        squared = self.root.square()
        scaled = torch.where(squared > UNDERFLOW, own / squared.clamp_min(UNDERFLOW), 0.0)
        scaled = scaled.index_put((self.rows,), apart)
        return scaled - correction


@dataclass(frozen=True, eq=False)
class ClassExpansion(Expansion):
    """C latent values a point: W = diag(π) − ππᵀ = S Sᵀ, S = diag(√π)(I − √π√πᵀ)."""

    likelihood: Softmax
    log_density: float
    gradient: Tensor
    pi: Tensor  # (n, C)

    @classmethod
    def at(cls, likelihood: Softmax, y: Tensor, f: Tensor, classes: int) -> Self:
        F = f.reshape(-1, classes)
        value = float(likelihood.log_density(y, F).sum())
        return cls(likelihood, value, likelihood.gradient(y, F).reshape(-1, 1), likelihood.probabilities(F))

    @property
    def apart(self) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=self.pi.device)

    @property
    def W_apart(self) -> Tensor:
        return self.pi.new_zeros(0)

    def norm(self) -> float:
        return float(self.pi.max().sqrt())

    def trace(self) -> Tensor:
        return (self.pi * (1 - self.pi)).sum(1)

    def half(self, V: Tensor) -> Tensor:
        found = by_rows(lambda V, pi: self.likelihood.half(pi, V), self._by_class(V), self.pi)
        return found.reshape(V.shape)

    def half_transposed(self, V: Tensor) -> Tensor:
        found = by_rows(lambda V, pi: self.likelihood.half_transposed(pi, V), self._by_class(V), self.pi)
        return found.reshape(V.shape)

    def half_blocks(self, rows: Tensor) -> Tensor:
        pi = self.pi[rows]
        return torch.diag_embed(pi.sqrt()) - pi[:, :, None] * pi.sqrt()[:, None, :]

    def cautious(self) -> Self:
        return self

    def system(self, K: KernelMatrix) -> SoftmaxSystem:
        return SoftmaxSystem(K, self.pi)

    def slope(self, L: Tensor, R: Tensor) -> Tensor:
        r"""Return u (N, 1), :math:`u_{ic} = \sum_{ab} \Sigma_{(ia,ib)}\, \partial W_{ab} / \partial f_c`.

        From L and R (N, k) with E[L Rᵀ] = I − A⁻¹ = SᵀΣS. Since W1 = 0 only differences of latent values count, and
        those are what Sᵀ keeps: `Softmax.slope` at L / √π and R / √π, where every division cancels.
        """
        return self.likelihood.scaled_slope(self.pi, self._by_class(L), self._by_class(R)).reshape(-1, 1)

    def _by_class(self, V: Tensor) -> Tensor:
        return V.reshape(*self.pi.shape, -1)
