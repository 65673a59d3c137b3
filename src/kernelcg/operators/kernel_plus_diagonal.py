"""The matrix with which all systems of the library are written, A = S K S + D."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg.arguments import FLOATS, vector
from kernelcg.backends import Backend, KernelMatrix
from kernelcg.backends.checks import check_columns, check_pairs
from kernelcg.backends.memory import require_memory
from kernelcg.kernels import Kernel
from kernelcg.operators.base import LinearOperator

ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class KernelPlusDiagonal(LinearOperator):
    """A = S K S + D with diagonal S and D: S = I, D = λI in regression, S = √W, D = I in Laplace.

    Parameters
    ----------
    K : a kernel bound to data, by `kernelcg.backends.bind`; data in float64 keep every digit for the checks even when
        products run in float32
    diagonal : one positive number or n of them, D
    scale : n non-negative numbers, S; None means I
    product_dtype : precision of the O(n²) products; None means that of X

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> A = KernelPlusDiagonal(backends.bind(RBF(1.0), torch.zeros(3, 1).double()), 0.5)
    >>> (A @ torch.ones(3, 1).double()).T
    tensor([[3.5000, 3.5000, 3.5000]], dtype=torch.float64)
    """

    K: KernelMatrix
    diagonal: Tensor
    scale: Tensor | None = None
    product_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.K, KernelMatrix):
            raise TypeError(f"K must be made by kernelcg.backends.bind(kernel, X), not a {type(self.K).__name__}")
        if self.product_dtype not in (None, *FLOATS):
            raise TypeError(f"product_dtype must be torch.float32, torch.float64 or None, not {self.product_dtype}")
        n = len(self.K)
        diagonal = vector(self.diagonal, "diagonal", n, like=self.X.new_zeros((), dtype=torch.float64))
        if not bool((diagonal > 0).all()):
            raise ValueError(f"diagonal (the noise) must be positive, but its smallest entry is {diagonal.min():.3g}")
        object.__setattr__(self, "diagonal", diagonal)
        if self.scale is not None:
            scale = vector(self.scale, "scale", n, like=diagonal)
            if not bool((scale >= 0).all()):
                raise ValueError(f"scale must not be negative, but its smallest entry is {scale.min():.3g}")
            object.__setattr__(self, "scale", scale)

    def __len__(self) -> int:
        return len(self.K)

    def __repr__(self) -> str:
        low, high = float(self.diagonal.min()), float(self.diagonal.max())
        D = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        return f"<A = {'K' if self.scale is None else 'S K S'} + D: D = {D}, K = {self.K}>"

    def __matmul__(self, V: Tensor) -> Tensor:
        check_columns(self.X, V)
        product = self.K.product(self.scaled(V), precision=self.precision)
        return self.scaled(product) + self.diagonal.to(V.dtype)[:, None] * V

    @property
    def kernel(self) -> Kernel:
        """Return the kernel."""
        return self.K.kernel

    @property
    def X(self) -> Tensor:
        """Return the data, (n, d)."""
        return self.K.X

    @property
    def backend(self) -> Backend:
        """Return where products run."""
        return self.K.backend

    @property
    def device(self) -> torch.device:
        return self.K.device

    @property
    def precision(self) -> torch.dtype:
        return self.product_dtype or self.X.dtype

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, product_dtype=precision)

    def memory_budget(self) -> int:
        return self.K.budget()

    def spectrum_floor(self) -> float:
        """Return the smallest entry of D: S K S is positive semi-definite."""
        return float(self.diagonal.min())

    def stored(self) -> Self:
        """Return the same operator with K computed once and kept, if n² numbers fit the backend's budget."""
        return replace(self, K=self.K.stored(self.precision))

    def scaled(self, V: Tensor) -> Tensor:
        """Return S V."""
        return V if self.scale is None else self.scale.to(V.dtype)[:, None] * V

    def kernel_columns(self, rows: Tensor) -> Tensor:
        """Return K[:, rows], without scale or diagonal, in float64."""
        return self.K.block(None, rows, precision=torch.float64)

    def kernel_block(self, rows: Tensor) -> Tensor:
        """Return K[rows, rows], without scale or diagonal, in float64."""
        return self.K.block(rows, rows, precision=torch.float64)

    def kernel_diagonal(self) -> Tensor:
        """Return the diagonal of K in float64."""
        return self.K.diagonal()

    def kernel_gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ S K S right_j for the log hyperparameters θ of the kernel."""
        check_pairs(self.X, left, right, self.X, None)
        return self.K.gradient(self.scaled(left), self.scaled(right), precision=self.precision)

    def dense(self) -> Tensor:
        """Return A in float64, filled in place: 8 n² bytes and a block of rows."""
        n = len(self)
        require_memory(8 * n * n, self.memory_budget(), f"storing the {n} x {n} matrix")
        A = torch.empty(n, n, dtype=torch.float64, device=self.device)
        for i in range(0, n, ROWS_AT_ONCE):
            rows = slice(i, i + ROWS_AT_ONCE)
            A[rows] = self.K.block(rows, precision=torch.float64)
            if self.scale is not None:
                A[rows] *= self.scale[rows, None] * self.scale
        A.diagonal().add_(self.diagonal)
        return A
