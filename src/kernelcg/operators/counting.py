"""Count what a solver does."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from kernelcg.operators.base import LinearOperator


@dataclass
class Tally:
    """How much was multiplied with a matrix.

    Attributes
    ----------
    products : passes over the matrix
    columns : columns that were multiplied in them
    """

    products: int = 0
    columns: int = 0

    def add(self, columns: int) -> None:
        """Count one pass that multiplies so many columns."""
        self.products += 1
        self.columns += columns


@runtime_checkable
class CountsInner(Protocol):
    """A preconditioner that iterates inside and keeps a tally of it."""

    inner: Tally


@dataclass(frozen=True, eq=False)
class Counting(LinearOperator):
    """Pass every product on to ``operator`` and count it; copies in other precisions share the tally.

    Parameters
    ----------
    operator : what products are passed on to
    tally : where they are counted

    Examples
    --------
    >>> import torch
    >>> from kernelcg.operators import Counting, DenseMatrix
    >>> A = Counting(DenseMatrix(torch.eye(2)))
    >>> _ = A @ torch.ones(2, 3)
    >>> A.tally.products, A.tally.columns
    (1, 3)
    """

    operator: LinearOperator
    tally: Tally = field(default_factory=Tally)

    def __len__(self) -> int:
        return len(self.operator)

    def __matmul__(self, V: Tensor) -> Tensor:
        self.tally.add(V.shape[1])
        return self.operator @ V

    @property
    def device(self) -> torch.device:
        return self.operator.device

    @property
    def precision(self) -> torch.dtype:
        return self.operator.precision

    def with_precision(self, precision: torch.dtype) -> Self:
        return replace(self, operator=self.operator.with_precision(precision))

    def dense(self) -> Tensor:
        return self.operator.dense()

    def memory_budget(self) -> int:
        return self.operator.memory_budget()

    def spectrum_floor(self) -> float | None:
        return self.operator.spectrum_floor()
