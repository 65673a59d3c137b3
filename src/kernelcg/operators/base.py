"""What a solver may ask of a matrix and of a preconditioner."""

from abc import ABC, abstractmethod
from typing import Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Generator, Tensor

from kernelcg.arguments import matrix
from kernelcg.backends.memory import default_budget
from kernelcg.randomness import normal

Operator = TypeVar("Operator", bound="LinearOperator")


class LinearOperator(ABC):
    """A symmetric positive definite n × n matrix known only through its products."""

    @abstractmethod
    def __len__(self) -> int:
        """Return n."""

    @abstractmethod
    def __matmul__(self, V: Tensor) -> Tensor:
        """Return A V, with the dtype of V, for V of shape (n, k)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, n)."""
        return len(self), len(self)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Return where the products run."""

    @property
    @abstractmethod
    def precision(self) -> torch.dtype:
        """Return the floating-point type in which products are computed."""

    @abstractmethod
    def with_precision(self, precision: torch.dtype) -> Self:
        """Return the same matrix with products in another precision; `TypeError` where that is impossible."""

    def dense(self) -> Tensor:
        """Return the matrix itself in float64, the caller's to overwrite: one product with I and n² numbers."""
        return self @ torch.eye(len(self), dtype=torch.float64, device=self.device)

    def memory_budget(self) -> int:
        """Return the bytes that work with this matrix may allocate, half of the machine's unless it was set."""
        return default_budget()

    def spectrum_floor(self) -> float | None:
        """Return a number that is known to be below every eigenvalue, if there is one."""
        return None


def in_best_precision(A: Operator) -> Operator:
    """Return A with products in float64, or A itself if it has one precision only.

    Parameters
    ----------
    A : the operator

    Examples
    --------
    >>> import torch
    >>> from kernelcg.operators import DenseMatrix, in_best_precision
    >>> in_best_precision(DenseMatrix(torch.eye(2).double())).precision
    torch.float64
    """
    try:
        return A.with_precision(torch.float64)
    except TypeError:
        return A


class DenseMatrix(LinearOperator):
    """A symmetric matrix whose entries are stored.

    Parameters
    ----------
    M : (n, n) the entries

    Examples
    --------
    >>> import torch
    >>> from kernelcg.operators import DenseMatrix
    >>> DenseMatrix(2 * torch.eye(2)) @ torch.ones(2, 1)
    tensor([[2.],
            [2.]])
    """

    def __init__(self, M: Tensor):
        self.M = matrix(M, "A", finite=False)
        if self.M.shape[0] != self.M.shape[1]:
            raise ValueError(f"A must be square, not of shape {tuple(self.M.shape)}")

    def __len__(self) -> int:
        return len(self.M)

    def __matmul__(self, V: Tensor) -> Tensor:
        return (self.M @ V.to(self.M.dtype)).to(V.dtype)

    @property
    def device(self) -> torch.device:
        return self.M.device

    @property
    def precision(self) -> torch.dtype:
        return self.M.dtype

    def with_precision(self, precision: torch.dtype) -> Self:
        return type(self)(self.M.to(precision))

    def dense(self) -> Tensor:
        return self.M.to(torch.float64, copy=True)


@runtime_checkable
class Invertible(Protocol):
    """A built preconditioner: a positive definite P that stands in for A and is cheap to invert."""

    is_constant: bool
    """False if `solve` is not the same linear map every time (inner iterations): flexible PCG is needed."""

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R."""
        ...


@runtime_checkable
class ConstantInvertible(Invertible, Protocol):
    """A preconditioner whose determinant is known, and with which draws from N(0, P) can be made."""

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        ...

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) independent draws from N(0, P)."""
        ...


class Identity:
    """No preconditioning: P = I.

    Parameters
    ----------
    n : number of rows
    like : a tensor whose dtype and device P has; None means float64 on the CPU

    Examples
    --------
    >>> import torch
    >>> from kernelcg.operators import Identity
    >>> Identity(2).solve(torch.ones(2, 1)).T
    tensor([[1., 1.]])
    """

    is_constant = True

    def __init__(self, n: int, like: Tensor | None = None):
        self.n = n
        self.like = torch.zeros((), dtype=torch.float64) if like is None else like

    def solve(self, R: Tensor) -> Tensor:
        return R

    def dense(self) -> Tensor:
        return torch.eye(self.n).to(self.like)

    def log_determinant(self) -> Tensor:
        return self.like.new_zeros(())

    def sample(self, generator: Generator, k: int) -> Tensor:
        return normal(self.n, k, generator, like=self.like)
