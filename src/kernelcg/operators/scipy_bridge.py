"""Conversion to and from SciPy's LinearOperator."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import aslinearoperator
from torch import Tensor

from kernelcg.operators.base import DenseMatrix, LinearOperator


class FromScipy(LinearOperator):
    """A symmetric SciPy operator, seen as one of ours; products are computed in its own precision."""

    def __init__(self, operator: Any):
        if operator.shape[0] != operator.shape[1]:
            raise ValueError(f"A must be square, not of shape {operator.shape}")
        if np.issubdtype(operator.dtype, np.complexfloating):
            raise TypeError(f"A must be real, not {operator.dtype}")
        self.operator = operator

    def __len__(self) -> int:
        return int(self.operator.shape[0])

    def __matmul__(self, V: Tensor) -> Tensor:
        product = self.operator.matmat(V.detach().cpu().numpy())
        return torch.from_numpy(np.ascontiguousarray(product)).to(V)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def precision(self) -> torch.dtype:
        return torch.float32 if self.operator.dtype == np.float32 else torch.float64

    def with_precision(self, precision: torch.dtype) -> "FromScipy":
        if precision != self.precision:
            raise TypeError("a SciPy LinearOperator has one precision, its own")
        return self


def to_scipy(A: LinearOperator) -> Any:
    """Return A as a `scipy.sparse.linalg.LinearOperator` of float64 NumPy arrays.

    Parameters
    ----------
    A : one of our operators

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.operators import as_operator, to_scipy
    >>> to_scipy(as_operator(2 * np.eye(2))).matvec(np.ones(2))
    array([2., 2.])
    """

    def matmat(V: Any) -> Any:
        columns = np.array(V, dtype=np.float64).reshape(len(A), -1)
        return (A @ torch.from_numpy(columns).to(A.device)).cpu().numpy()

    def matvec(v: Any) -> Any:
        return matmat(v)[:, 0]

    return ScipyOperator(
        (len(A), len(A)), matvec=matvec, matmat=matmat, rmatvec=matvec, rmatmat=matmat, dtype=np.dtype("float64")
    )


def as_operator(A: Any) -> LinearOperator:
    """Return A as one of our operators: ours, a tensor, an array, a SciPy sparse matrix or LinearOperator.

    Parameters
    ----------
    A : symmetric

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.operators import as_operator
    >>> len(as_operator(np.eye(3)))
    3
    """
    if isinstance(A, LinearOperator):
        return A
    if isinstance(A, ScipyOperator) or issparse(A):
        return FromScipy(aslinearoperator(A))
    return DenseMatrix(A)
