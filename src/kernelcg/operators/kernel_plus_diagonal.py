"""The one matrix of the library, A = S K S + D."""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.arguments import FLOATS, matrix, vector
from kernelcg.backends import Backend
from kernelcg.backends.base import check_gradient, check_product, require_memory
from kernelcg.kernels import Kernel
from kernelcg.operators.base import LinearOperator

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class KernelPlusDiagonal(LinearOperator):
    """A = S K S + D with diagonal S and D: S = I, D = λI in regression, S = √W, D = I in Laplace.

    Parameters
    ----------
    kernel : Kernel
    X : (n, d) data; float64 keeps every digit for the checks even when products run in float32
    diagonal : one positive number or n of them, D
    scale : n non-negative numbers, S; None means I
    backend : where products run; None picks the fastest of this machine
    product_dtype : precision of the O(n²) products; None means that of X
    """

    kernel: Kernel
    X: Tensor
    diagonal: Tensor
    scale: Tensor | None = None
    backend: Backend = field(default_factory=backends.default)
    product_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a kernelcg kernel, not {type(self.kernel).__name__}")
        if not isinstance(self.backend, Backend):
            raise TypeError(f"backend must be one of kernelcg.backends, not {self.backend!r}")
        if self.product_dtype not in (None, *FLOATS):
            raise TypeError(f"product_dtype must be torch.float32, torch.float64 or None, not {self.product_dtype}")
        X = matrix(self.X, "X")
        object.__setattr__(self, "X", X)
        diagonal = vector(self.diagonal, "diagonal", len(X), like=X.new_zeros((), dtype=torch.float64))
        if not bool((diagonal > 0).all()):
            raise ValueError(f"diagonal (the noise) must be positive, but its smallest entry is {diagonal.min():.3g}")
        object.__setattr__(self, "diagonal", diagonal)
        if self.scale is not None:
            scale = vector(self.scale, "scale", len(X), like=diagonal)
            if not bool((scale >= 0).all()):
                raise ValueError(f"scale must not be negative, but its smallest entry is {scale.min():.3g}")
            object.__setattr__(self, "scale", scale)

    def __len__(self) -> int:
        return len(self.X)

    def __matmul__(self, V: Tensor) -> Tensor:
        check_product(self.X, self.X, V, self.precision)
        product = self.backend.matmul(self.kernel, self.X, self.X, self.scaled(V), precision=self.precision)
        return self.scaled(product) + self.diagonal.to(V.dtype)[:, None] * V

    @property
    def device(self) -> torch.device:
        return self.X.device

    @property
    def precision(self) -> torch.dtype:
        return self.product_dtype or self.X.dtype

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, product_dtype=precision)

    def memory_budget(self) -> int | None:
        return self.backend.budget()

    def spectrum_floor(self) -> float:
        """Return the smallest entry of D: S K S is positive semi-definite."""
        return float(self.diagonal.min())

    def stored(self) -> Self:
        """Return the same operator with K computed once and kept, if n² numbers fit the backend's budget."""
        return replace(self, backend=backends.store(self.kernel, self.X, self.backend, precision=self.precision))

    def scaled(self, V: Tensor) -> Tensor:
        """Return S V."""
        return V if self.scale is None else self.scale.to(V.dtype)[:, None] * V

    def kernel_columns(self, rows: Tensor) -> Tensor:
        """Return K[:, rows], without scale or diagonal, in float64."""
        return self.backend.block(self.kernel, self.X, self.X[rows], precision=torch.float64)

    def kernel_block(self, rows: Tensor) -> Tensor:
        """Return K[rows, rows], without scale or diagonal, in float64."""
        return self.backend.block(self.kernel, self.X[rows], self.X[rows], precision=torch.float64)

    def kernel_diagonal(self) -> Tensor:
        """Return the diagonal of K in float64."""
        return self.kernel.diagonal(self.X.double()).detach()

    def kernel_gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ S K S right_j for the log hyperparameters θ of the kernel."""
        check_gradient(self.X, self.X, left, right, None, self.precision)
        return self.backend.gradient(
            self.kernel, self.X, self.X, self.scaled(left), self.scaled(right), precision=self.precision
        )

    def dense(self) -> Tensor:
        """Return A in float64, filled in place: 8 n² bytes and a block of rows."""
        n = len(self)
        require_memory(8 * n * n, self.backend.budget(), f"storing the {n} x {n} matrix")
        A = torch.empty(n, n, dtype=torch.float64, device=self.device)
        for i in range(0, n, ROWS_AT_ONCE):
            rows = slice(i, i + ROWS_AT_ONCE)
            A[rows] = self.backend.block(self.kernel, self.X[rows], self.X, precision=torch.float64)
            if self.scale is not None:
                A[rows] *= self.scale[rows, None] * self.scale
        A.diagonal().add_(self.diagonal)
        return A
