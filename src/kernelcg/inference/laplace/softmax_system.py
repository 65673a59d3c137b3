"""The system of a softmax Newton step, N = nC rows, and its preconditioner with one factor a class."""

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.dense import by_rows, inner, multiply, solve_from_the_left
from kernelcg.operators import LinearOperator
from kernelcg.randomness import normal
from kernelcg.solvers.blocked_cholesky import factorise_in_place
from kernelcg.threads import shared

ROWS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class SoftmaxSystem(LinearOperator):
    r"""A = Sᵀ(K ⊗ I)S + I with S = diag(√π)(I − √π√πᵀ) at each point: W = S Sᵀ = diag(π) − ππᵀ."""

    K: KernelMatrix
    pi: Tensor  # (n, C)
    product_dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        return self.pi.numel()

    def __matmul__(self, V: Tensor) -> Tensor:
        (n, C), root = self.pi.shape, self.pi.sqrt().to(V.dtype)[..., None]
        by_class = V.reshape(n, C, -1)
        scaled = by_rows(_outer, by_class, root).reshape(n, -1)
        product = self.K.product(scaled, precision=self.precision).reshape(n, C, -1)
        return by_rows(lambda U, V, root: _inner(U, root) + V, product, by_class, root).reshape(V.shape)

    @property
    def device(self) -> torch.device:
        return self.pi.device

    @property
    def precision(self) -> torch.dtype:
        return self.product_dtype

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, product_dtype=precision)

    def memory_budget(self) -> int:
        return self.K.budget()

    def spectrum_floor(self) -> float:
        """Return 1: SᵀKS is positive semi-definite."""
        return 1.0


def without_root(V: Tensor, root: Tensor) -> Tensor:
    """Return Π V, Π = I − √π√πᵀ at each point, for V (n, C, k) and √π (n, C, 1)."""
    return V - root * (root * V).sum(1, keepdim=True)


def _outer(V: Tensor, root: Tensor) -> Tensor:
    """Return S V."""
    return root * without_root(V, root)


def _inner(V: Tensor, root: Tensor) -> Tensor:
    """Return SᵀV."""
    return without_root(root * V, root)


class SoftmaxLowRank:
    r"""P = Sᵀ(F Fᵀ ⊗ I)S + I: A with F Fᵀ ⪯ K in the place of K, by Woodbury's identity.

    With G = Sᵀ(F ⊗ I), :math:`P^{-1} = I - G M^{-1} G^\top` and
    :math:`M = I + G^\top G = I + \operatorname{bldiag}_c(F^\top D_c F) - H^\top H`, D_c = diag(π_c),
    H = [D_1 F, …, D_C F]. Costs ½ n (Cm)² + (Cm)³ / 6 multiply-adds to make and O(n C m k) to apply; n m + (Cm)²
    numbers are stored. The diagonal is I, so that nothing cancels as it would at small noise. One factor for each class
    instead, with Π = I − √π√πᵀ around them, leaves eigenvalues of several hundred where the classes are nearly certain.
    """

    is_constant = True

    def __init__(self, F: Tensor, pi: Tensor):
        self.F, self.root = F, pi.sqrt()[..., None]  # (n, m), (n, C, 1)
        m, C = F.shape[1], pi.shape[1]
        M = torch.eye(C * m, dtype=F.dtype, device=F.device)
        for some, p in zip(F.split(ROWS_AT_ONCE), pi.split(ROWS_AT_ONCE), strict=True):
            H = (p[:, :, None] * some[:, None, :]).reshape(len(p), C * m)

            def add(part: slice, some: Tensor = some, H: Tensor = H) -> None:
                for c in reversed(range(C - part.stop, C - part.start)):  # the rows of blocks with the most work first
                    own = slice(c * m, (c + 1) * m)
                    M[own, : own.stop].addmm_(H[:, own].mT, H[:, : own.stop], alpha=-1)
                    M[own, own].addmm_(some.mT, H[:, own])

            shared(add, C, C if M.is_cuda else 1)  # what is on and below the diagonal, a row of blocks by one thread
        factorise_in_place(M)
        self.L = M

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹R, R (N, k)."""
        V = R.to(self.F.dtype)
        small = self._inwards(V)
        solve_from_the_left(self.L, small)
        solve_from_the_left(self.L.mT, small, upper=True)
        return V.sub(self._outwards(small)).to(R.dtype)

    def in_single(self) -> "SoftmaxLowRank":
        """Return it in float32, for estimates: half of the time, and relative errors of 1e-4 or so."""
        less = copy.copy(self)
        less.F, less.root, less.L = self.F.float(), self.root.float(), self.L.float()
        return less

    def captured(self, R: Tensor) -> Tensor:
        """Return C (Cm, k) with RᵀP⁻¹R = RᵀR − CᵀC: half of the work of a solve."""
        small = self._inwards(R)
        solve_from_the_left(self.L, small)
        return small.to(R.dtype)

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        return 2 * self.L.diagonal().log().sum()

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (N, k) draws G ε₁ + ε₂ from N(0, P)."""
        n, C = self.root.shape[:2]
        small = normal(len(self.L), k, generator, like=self.F)
        return self._outwards(small) + normal(n * C, k, generator, like=self.F)

    def _inwards(self, V: Tensor) -> Tensor:
        """Return GᵀV = (F ⊗ I)ᵀ S V, the classes one after the other: (Cm, k)."""
        n, C = self.root.shape[:2]
        dtype = self.F.dtype
        scaled = by_rows(lambda V, root: _outer(V.to(dtype), root), V.reshape(n, C, -1), self.root, dtype=dtype)
        found = inner(self.F, scaled.reshape(n, -1)).reshape(self.F.shape[1], C, -1)
        return found.transpose(0, 1).reshape(len(self.L), -1)

    def _outwards(self, small: Tensor) -> Tensor:
        """Return G small = Sᵀ(F ⊗ I) small."""
        n, C = self.root.shape[:2]
        by_rank = small.reshape(C, self.F.shape[1], -1).transpose(0, 1).reshape(self.F.shape[1], -1)
        return by_rows(_inner, multiply(self.F, by_rank).reshape(n, C, -1), self.root).reshape(n * C, -1)
