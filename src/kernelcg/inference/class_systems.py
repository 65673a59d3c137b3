"""The system of a softmax Newton step, N = nC rows, and its preconditioner with one factor a class."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor

from kernelcg.backends import Backend
from kernelcg.kernels import Kernel
from kernelcg.operators import LinearOperator
from kernelcg.randomness import normal


@dataclass(frozen=True, eq=False)
class ClassSystem(LinearOperator):
    r"""A = Sᵀ(K ⊗ I)S + I with S = diag(√π)(I − √π√πᵀ) at each point: W = S Sᵀ = diag(π) − ππᵀ."""

    kernel: Kernel
    X: Tensor
    pi: Tensor  # (n, C)
    backend: Backend
    product_dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        return self.pi.numel()

    def __matmul__(self, V: Tensor) -> Tensor:
        (n, C), root = self.pi.shape, self.pi.sqrt().to(V.dtype)[..., None]
        scaled = (root * without_root(V.reshape(n, C, -1), root)).reshape(n, -1)
        product = self.backend.matmul(self.kernel, self.X, self.X, scaled, precision=self.precision)
        return without_root(root * product.reshape(n, C, -1), root).reshape(V.shape) + V

    @property
    def device(self) -> torch.device:
        return self.pi.device

    @property
    def precision(self) -> torch.dtype:
        return self.product_dtype

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, product_dtype=precision)

    def memory_budget(self) -> int | None:
        return self.backend.budget()

    def spectrum_floor(self) -> float:
        """Return 1: SᵀKS is positive semi-definite."""
        return 1.0


@dataclass(frozen=True, eq=False)
class LowRankClassSystem(LinearOperator):
    """A with F Fᵀ ⪯ K in the place of K: close to A, with cheap products and draws."""

    F: Tensor  # (n, m)
    pi: Tensor  # (n, C)

    def __len__(self) -> int:
        return self.pi.numel()

    def __matmul__(self, V: Tensor) -> Tensor:
        return self._outwards(self.F @ (self.F.T @ self._inwards(V))).reshape(V.shape) + V

    @property
    def device(self) -> torch.device:
        return self.pi.device

    @property
    def precision(self) -> torch.dtype:
        return torch.float64

    def with_precision(self, precision: torch.dtype) -> Self:
        if precision != torch.float64:
            raise TypeError("it has products in float64 only")
        return self

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (N, k) draws Sᵀ(F ⊗ I)ε₁ + ε₂ from N(0, A)."""
        n, C = self.pi.shape
        inner = normal(self.F.shape[1], C * k, generator, like=self.F)
        return self._outwards(self.F @ inner).reshape(n * C, k) + normal(n * C, k, generator, like=self.F)

    def _inwards(self, V: Tensor) -> Tensor:
        """Return S V as (n, Ck)."""
        root = self.pi.sqrt()[..., None]
        return (root * without_root(V.reshape(*self.pi.shape, -1), root)).reshape(len(self.pi), -1)

    def _outwards(self, V: Tensor) -> Tensor:
        """Return SᵀV, from and as (n, C, k)."""
        root = self.pi.sqrt()[..., None]
        return without_root(root * V.reshape(*self.pi.shape, -1), root)


def without_root(V: Tensor, root: Tensor) -> Tensor:
    """Return Π V, Π = I − √π√πᵀ at each point, for V (n, C, k) and √π (n, C, 1)."""
    return V - root * (root * V).sum(1, keepdim=True)


class ClassPreconditioner:
    r"""P⁻¹ = Π blockdiag_c(I + D_c^½ F Fᵀ D_c^½)⁻¹ Π + (I − Π), D_c = diag(π_c), Π = I − √π√πᵀ at each point.

    F Fᵀ stands for K. Only F and the Cholesky factors of I + FᵀD_cF are kept: n m + C m² numbers; O(C n m²) to make,
    O(C n m k) to apply. D ⪯ I, so that Woodbury's identity in this form loses no digits that matter.
    """

    is_constant = True

    def __init__(self, F: Tensor, pi: Tensor):
        self.F, self.root = F, pi.sqrt()[..., None]  # (n, m), (n, C, 1)
        eye = torch.eye(F.shape[1], dtype=F.dtype, device=F.device)
        self.L = torch.stack([torch.linalg.cholesky(eye + (F * p[:, None]).T @ F) for p in pi.unbind(1)])

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹R, R (N, k)."""
        n, C = self.root.shape[:2]
        V = R.double().reshape(n, C, -1)
        inside = without_root(V, self.root)
        scaled = (self.root * inside).reshape(n, -1)
        small = (self.F.T @ scaled).reshape(self.F.shape[1], C, -1).transpose(0, 1)  # (C, m, k)
        small = torch.cholesky_solve(small, self.L).transpose(0, 1).reshape(self.F.shape[1], -1)
        solved = inside - self.root * (self.F @ small).reshape(V.shape)
        return (without_root(solved, self.root) + V - inside).reshape(R.shape).to(R.dtype)
