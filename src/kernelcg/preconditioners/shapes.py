"""The few invertible shapes that every preconditioner reduces to. All of them compute in float64."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import spsolve_triangular
from torch import Generator, Tensor

from kernelcg.dense import inner, multiply, qr
from kernelcg.operators import LinearOperator, Tally
from kernelcg.preconditioners.csr_tensor import csr_product, csr_tensor
from kernelcg.preconditioners.triangular_levels import Triangle
from kernelcg.randomness import normal
from kernelcg.solvers import Stopping, solve


class Factored(ABC):
    """A matrix P = C Cᵀ whose factor C is cheap to apply and to invert."""

    is_constant = True

    @abstractmethod
    def __len__(self) -> int:
        """Return n."""

    @abstractmethod
    def whiten(self, R: Tensor) -> Tensor:
        """Return C⁻¹ R."""

    @abstractmethod
    def unwhiten(self, R: Tensor) -> Tensor:
        """Return C⁻ᵀ R."""

    @abstractmethod
    def color(self, Z: Tensor) -> Tensor:
        """Return C Z."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """Return log|P|."""

    @abstractmethod
    def inverse_diagonal(self) -> Tensor:
        """Return (n,) the diagonal of P⁻¹."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Return where the factor lives."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Return how many floating-point numbers are stored."""

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R."""
        return self.unwhiten(self.whiten(R.double())).to(R.dtype)

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) draws C z from N(0, P)."""
        return self.color(self._normal(generator, k))

    def dense(self) -> Tensor:
        """Return P."""
        C = self.color(torch.eye(len(self), dtype=torch.float64, device=self.device))
        return C @ C.T

    def _normal(self, generator: Generator, k: int) -> Tensor:
        return normal(len(self), k, generator, like=torch.empty(0, dtype=torch.float64, device=self.device))


class Diagonal(Factored):
    """P = diag(d).

    Parameters
    ----------
    diagonal : (n,) d, positive

    Examples
    --------
    >>> import torch
    >>> from kernelcg.preconditioners import Diagonal
    >>> Diagonal(torch.tensor([1.0, 2.0])).solve(torch.ones(2, 1)).T
    tensor([[1.0000, 0.5000]])
    """

    def __init__(self, diagonal: Tensor):
        self.root = diagonal.sqrt()[:, None]

    def __len__(self) -> int:
        return len(self.root)

    def whiten(self, R: Tensor) -> Tensor:
        return R / self.root

    def unwhiten(self, R: Tensor) -> Tensor:
        return R / self.root

    def color(self, Z: Tensor) -> Tensor:
        return Z * self.root

    def log_determinant(self) -> Tensor:
        return 2 * self.root.log().sum()

    def inverse_diagonal(self) -> Tensor:
        return self.root[:, 0].pow(-2)

    @property
    def device(self) -> torch.device:
        return self.root.device

    @property
    def numbers(self) -> int:
        return len(self.root)


class BlockDiagonal(Factored):
    """P is block diagonal, each block B = L Lᵀ; blocks of one size are handled as one batch.

    Parameters
    ----------
    groups : for each size b, the row numbers (g, b) of its g blocks and their factors L (g, b, b)
    jitter : what had to be added to the blocks, relative to their diagonal, to factor them

    Examples
    --------
    >>> import torch
    >>> from kernelcg.preconditioners import BlockDiagonal
    >>> factor = torch.tensor([[[2.0, 0.0], [1.0, 1.0]]]).double()  # L of the one block, of rows 0 and 1
    >>> P = BlockDiagonal([(torch.tensor([[0, 1]]), factor)])
    >>> P.solve(torch.tensor([[6.0], [4.0]]).double()).T  # (LLᵀ) x = b
    tensor([[1., 1.]], dtype=torch.float64)
    """

    def __init__(self, groups: list[tuple[Tensor, Tensor]], jitter: float = 0.0):
        self.groups, self.jitter = groups, jitter

    def __len__(self) -> int:
        return sum(rows.numel() for rows, _ in self.groups)

    def whiten(self, R: Tensor) -> Tensor:
        Z = torch.empty_like(R)
        for rows, L in self.groups:
            Z[rows] = torch.linalg.solve_triangular(L, R[rows], upper=False)
        return Z

    def unwhiten(self, R: Tensor) -> Tensor:
        Z = torch.empty_like(R)
        for rows, L in self.groups:
            Z[rows] = torch.linalg.solve_triangular(L.mT, R[rows], upper=True)
        return Z

    def color(self, Z: Tensor) -> Tensor:
        R = torch.empty_like(Z)
        for rows, L in self.groups:
            R[rows] = L @ Z[rows]
        return R

    def log_determinant(self) -> Tensor:
        return torch.stack([2 * L.diagonal(dim1=1, dim2=2).log().sum() for _, L in self.groups]).sum()

    def inverse_diagonal(self) -> Tensor:
        result = torch.empty(len(self), dtype=torch.float64, device=self.device)
        for rows, L in self.groups:
            result[rows] = torch.cholesky_inverse(L).diagonal(dim1=1, dim2=2)
        return result

    @property
    def device(self) -> torch.device:
        return self.groups[0][1].device

    @property
    def numbers(self) -> int:
        return sum(L.numel() for _, L in self.groups)


class SparseInverse(Factored):
    r"""P⁻¹ = GᵀG with a sparse G that is lower triangular once the points are put in ``order``; C = G⁻¹.

    Parameters
    ----------
    columns : (n, q + 1) column numbers of each row, the last one the row itself, −1 where there is none
    values : (n, q + 1) entries, 0 where there is none
    order : (n,) the points from first to last; row i has entries only at points that come before it
    by_torch : whether torch does all of it, where the data are; None means that SciPy helps for data on the CPU

    Examples
    --------
    >>> import torch
    >>> from kernelcg.preconditioners import SparseInverse
    >>> columns = torch.tensor([[-1, 0], [0, 1]])  # the second row has an entry at the first point
    >>> values = torch.tensor([[0.0, 1.0], [0.5, 2.0]]).double()
    >>> P = SparseInverse(columns, values, torch.tensor([0, 1]))
    >>> P.solve(torch.ones(2, 1).double()).T  # GᵀG b
    tensor([[2.2500, 5.0000]], dtype=torch.float64)
    """

    def __init__(self, columns: Tensor, values: Tensor, order: Tensor, by_torch: bool | None = None):
        self.pivots, self.order = values[:, -1].clone(), order
        by_torch = values.device.type != "cpu" if by_torch is None else by_torch
        self.G, self.GT = (sparse_and_transpose if by_torch else _sparse_by_scipy)(columns, values)
        self.rows = (columns[:, :-1], values) if by_torch else None

    def __len__(self) -> int:
        return len(self.order)

    def whiten(self, R: Tensor) -> Tensor:
        return csr_product(self.G, R)

    def unwhiten(self, R: Tensor) -> Tensor:
        return csr_product(self.GT, R)

    def color(self, Z: Tensor) -> Tensor:
        if self.rows is not None:
            return Triangle.of(*self.rows).solve(Z)
        order = self.order.numpy()
        triangle = _scipy_csr(self.G)[order][:, order].tocsr()
        R = np.empty(Z.shape)
        R[order] = spsolve_triangular(triangle, Z.numpy()[order], lower=True)
        return torch.from_numpy(R).to(Z)

    def log_determinant(self) -> Tensor:
        return -2 * self.pivots.log().sum()

    def inverse_diagonal(self) -> Tensor:
        if self.rows is not None:
            GT = self.GT
            squares = csr_tensor(GT.crow_indices(), GT.col_indices(), GT.values().square(), (len(self), len(self)))
            return csr_product(squares, torch.ones_like(self.pivots)[:, None])[:, 0]
        sparse = _scipy_csr(self.G)
        return torch.from_numpy(np.asarray(sparse.multiply(sparse).sum(0))[0]).to(self.pivots)

    @property
    def device(self) -> torch.device:
        return self.pivots.device

    @property
    def numbers(self) -> int:
        of_triangle = 0 if self.rows is None else 2 * self.rows[1].numel()
        return 2 * self.G.values().numel() + len(self.pivots) + of_triangle


def _sparse_by_scipy(columns: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix with these entries and its transpose, as `sparse_and_transpose` does, for data on the CPU."""
    present = (columns >= 0).numpy()
    pointers = np.concatenate([[0], np.cumsum(present.sum(1))])
    entries = values.numpy()[present], columns.numpy()[present], pointers
    sparse = csr_matrix(entries, shape=(len(columns), len(columns)))
    sparse.sort_indices()
    return _torch_csr(sparse), _torch_csr(sparse.T.tocsr())


def sparse_and_transpose(columns: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, n) matrix with these entries in each row, and its transpose, both row by row; −1 is no column."""
    n = len(columns)
    row = torch.arange(n, device=columns.device)[:, None].expand_as(columns)
    present = columns >= 0
    row, column, entries = row[present], columns[present], values[present]
    made = []
    for first, second in ((row, column), (column, row)):
        order = (first * n + second).argsort()
        starts = torch.nn.functional.pad(torch.bincount(first, minlength=n).cumsum(0), (1, 0))
        made.append(csr_tensor(starts, second[order], entries[order], (n, n)))
    return made[0], made[1]


def _torch_csr(matrix: csr_matrix) -> Tensor:
    """Return the matrix as a torch tensor, whose products run on all cores."""
    pointers, indices = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return csr_tensor(pointers, indices, torch.from_numpy(matrix.data), matrix.shape)


def _scipy_csr(matrix: Tensor) -> csr_matrix:
    """Return a sparse tensor on the CPU as SciPy has it, without a copy of its entries."""
    parts = (matrix.values().numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy())
    return csr_matrix(parts, shape=tuple(matrix.shape))


class LowRankPlus:
    r"""P = F Fᵀ + C Cᵀ: a low-rank part and one of the shapes above, by a stable form of Woodbury's identity.

    With :math:`W = C^{-1} F` and the QR factorisation of W stacked on the identity,

    .. math:: \begin{pmatrix} W \\ I \end{pmatrix} = \begin{pmatrix} Q_1 \\ Q_2 \end{pmatrix} T, \qquad
        P^{-1} = C^{-\top} (I - Q_1 Q_1^\top)\, C^{-1}, \qquad \log|P| = \log|C C^\top| + 2 \log|\det T|.

    Nothing is squared and nothing inverted, so that it stays positive definite at noise 1e-10, where
    :math:`D^{-1} - D^{-1} F (I + F^\top D^{-1} F)^{-1} F^\top D^{-1}` cancels. The factors λ that the paper's
    sections 3.1 and 3.2 lack (`tests/paper/test_errata.py`, items 6 and 7) have no place to be forgotten.
    Costs O(n m²) to make and O(n m k) to apply; n m numbers are stored.

    Parameters
    ----------
    base : C, one of the shapes above
    F : (n, m) the low-rank factor

    Examples
    --------
    >>> import torch
    >>> from kernelcg.preconditioners import Diagonal, LowRankPlus
    >>> P = LowRankPlus(Diagonal(torch.ones(2).double()), torch.ones(2, 1).double())  # [[2, 1], [1, 2]]
    >>> P.solve(torch.tensor([[3.0], [3.0]]).double()).T.round(decimals=4)
    tensor([[1., 1.]], dtype=torch.float64)
    """

    is_constant = True

    def __init__(self, base: Factored, F: Tensor):
        self.base = base
        rank = F.shape[1]
        stacked = F.new_empty(len(base) + rank, rank)
        stacked[: len(base)] = base.whiten(F)
        stacked[len(base) :] = torch.eye(rank, dtype=F.dtype, device=F.device)
        Q, self.T = qr(stacked)
        self.Q = Q[: len(base)]

    def __len__(self) -> int:
        return len(self.base)

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R."""
        Z = self.base.whiten(R.double())
        Z = Z - multiply(self.Q, inner(self.Q, Z))
        return self.base.unwhiten(Z).to(R.dtype)

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        return self.base.log_determinant() + 2 * self.T.diagonal().abs().log().sum()

    def inverse_diagonal(self) -> Tensor:
        """Return (n,) the diagonal of P⁻¹ = C⁻ᵀ (I − Q₁ Q₁ᵀ) C⁻¹."""
        return self.base.inverse_diagonal() - self.base.unwhiten(self.Q).square().sum(1)

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) draws C (W ε₁ + ε₂) from N(0, P)."""
        low_rank = normal(self.T.shape[1], k, generator, like=self.T)
        return self.base.color(self.Q @ (self.T @ low_rank) + self.base._normal(generator, k))

    def dense(self) -> Tensor:
        """Return P."""
        F = self.base.color(self.Q @ self.T)
        return F @ F.T + self.base.dense()

    @property
    def numbers(self) -> int:
        """Return how many floating-point numbers are stored."""
        return self.Q.numel() + 2 * self.T.numel() + self.base.numbers  # the rows below Q₁ stay in memory with it


class InnerSolve:
    """P known by its products alone; P⁻¹R is itself computed by conjugate gradients, to a loose tolerance.

    ``inner`` counts what that costs. The tolerance makes P⁻¹ change from call to call: flexible PCG is needed.

    Parameters
    ----------
    operator : P
    stopping : tolerance and limits of the inner solves

    Examples
    --------
    >>> import torch
    >>> from kernelcg.operators import DenseMatrix
    >>> from kernelcg.preconditioners import InnerSolve
    >>> from kernelcg.solvers import Stopping
    >>> P = InnerSolve(DenseMatrix(2 * torch.eye(3).double()), Stopping(rtol=1e-3))
    >>> P.solve(torch.ones(3, 1).double()).T
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """

    is_constant = False

    def __init__(self, operator: LinearOperator, stopping: Stopping):
        self.operator, self.stopping = operator, stopping
        self.inner = Tally()

    def __len__(self) -> int:
        return len(self.operator)

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R to the inner tolerance."""
        report = solve(self.operator, R, method="cg", stopping=self.stopping)
        self.inner.products += report.products
        self.inner.columns += report.columns
        return report.solution.to(R.dtype)

    def dense(self) -> Tensor:
        """Return P."""
        return self.operator.dense()

    @property
    def numbers(self) -> int:
        """Return how many floating-point numbers are stored."""
        return len(self)
