"""Dense matrices by the threads of the library: products, triangular solves, QR; any number of threads, the same bits.

Small matrices that solvers have read to the host, NumPy arrays, are decomposed here as well: NumPy's own BLAS takes as
many threads as OMP_NUM_THREADS says, and rounds otherwise with another number of them.

On a GPU each operation is done as one. A tall matrix A may be stored in float32 beside float64: its rows are converted
a part at a time, and all arithmetic is in float64.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.threads import shared, working

Floats = NDArray[np.float64]

PART, WORK = 256, 2**22
"""Rows or columns, at least, of a part that one thread computes, and multiply-adds: less is not worth sharing."""

COLUMNS = 64
"""Right-hand sides, at least, that one thread solves for."""

ROWS = 4096
"""Rows of a part of a product over all rows. The sums over the parts are added in their order."""

CONVERTED, CONVERTED_ON_GPU = 2**19, 2**27
"""Numbers, at most, that are converted to float64 at once: what stays in a cache, and a gigabyte."""

TALL = 8
"""Rows of a part of a QR factorisation, for each of its columns."""


def multiply(A: Tensor, B: Tensor) -> Tensor:
    """Return AB, parts of its rows by one thread each, or parts of its columns if there are more of these."""
    C = B.new_empty(len(A), B.shape[1])
    if A.dtype != B.dtype:
        shared(lambda rows: torch.mm(A[rows].to(B.dtype), B, out=C[rows]), len(A), _converted(A))
        return C
    if A.is_cuda:
        return torch.mm(A, B, out=C)
    if len(A) >= B.shape[1]:
        shared(lambda rows: torch.mm(A[rows], B, out=C[rows]), len(A), _part(C, len(A), B.numel()))
        return C

    def by_columns(columns: slice) -> None:
        C[:, columns] = A @ B[:, columns]

    shared(by_columns, B.shape[1], _part(C, B.shape[1], A.numel()))
    return C


def inner(A: Tensor, B: Tensor) -> Tensor:
    """Return AᵀB, (p, q), of matrices with many rows: the sums over parts of the rows by one thread each."""
    if A.dtype != B.dtype:
        return _inner_of_converted(A, B)
    if A.is_cuda or len(A) <= ROWS:
        return A.mT @ B
    parts = A.new_empty(-(-len(A) // ROWS), A.shape[1], B.shape[1])
    shared(lambda rows: torch.mm(A[rows].mT, B[rows], out=parts[rows.start // ROWS]), len(A), ROWS)
    return parts.sum(0)


def _inner_of_converted(A: Tensor, B: Tensor) -> Tensor:
    """Return AᵀB for an A in float32."""
    size, step = max(len(A), 1) if A.is_cuda else ROWS, _converted(A)
    parts = B.new_zeros(max(-(-len(A) // size), 1), A.shape[1], B.shape[1])

    def add(part: slice) -> None:
        for start in range(part.start, part.stop, step):
            rows = slice(start, min(start + step, part.stop))
            parts[part.start // size].addmm_(A[rows].to(B.dtype).mT, B[rows])

    shared(add, len(A), size)
    return parts.sum(0)


def by_rows(compute: Callable[..., Tensor], *blocks: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return what ``compute`` makes of some blocks of rows, in the shape of the first, each row by itself.

    Parts of the rows that stay in a cache, by one thread each.
    """
    first = blocks[0]
    found = torch.empty_like(first, dtype=dtype)
    size = max(len(first), 1) if first.is_cuda else max(CONVERTED // 4 * len(first) // max(first.numel(), 1), 1)

    def put(rows: slice) -> None:
        found[rows] = compute(*(block[rows] for block in blocks))

    shared(put, len(first), size)
    return found


def scaled_gram(A: Tensor, w: Tensor) -> Tensor:
    """Return Aᵀ diag(w²) A, (m, m) in float64, for A (n, m) in float32 or float64: a part of the rows at a time.

    Blocks of its rows, on and below the diagonal, by one thread each.
    """
    n, m = A.shape
    G, step = w.new_zeros(m, m), _converted(A)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        part = A[rows].to(w.dtype) * w[rows, None]

        def add(own: slice, part: Tensor = part) -> None:
            G[own, : own.stop].addmm_(part[:, own].mT, part[:, : own.stop])

        shared(add, m, max(m, 1) if A.is_cuda else max(PART, -(-m // 8)))
    return G.tril() + G.tril(-1).mT


def subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """Replace C by C − AB, parts of its rows by one thread each."""
    size = _part(C, len(C), B.numel()) if A.dtype == C.dtype else _converted(A)
    shared(lambda rows: C[rows].addmm_(A[rows].to(C.dtype), B, alpha=-1), len(C), size)


def solve_from_the_right(T: Tensor, B: Tensor, *, upper: bool = True) -> None:
    """Replace B by BT⁻¹ for a triangular T, parts of its rows by one thread each."""

    def solve(rows: slice) -> None:
        B[rows] = torch.linalg.solve_triangular(T, B[rows], upper=upper, left=False)

    shared(solve, len(B), _part(B, len(B), T.numel()))


def solve_from_the_left(T: Tensor, B: Tensor, *, upper: bool = False) -> None:
    """Replace B by T⁻¹B for a triangular T, parts of its columns by one thread each."""

    def solve(columns: slice) -> None:
        B[:, columns] = torch.linalg.solve_triangular(T, B[:, columns], upper=upper)

    shared(solve, B.shape[1], _part(B, B.shape[1], T.numel(), COLUMNS))


def qr(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q with orthonormal columns and an upper triangular T, A = QT, for A (n, m) with n ≥ m; A is overwritten.

    Parts of the rows are factorised by one thread each, then their triangles on top of one another.

    References
    ----------
    Demmel, Grigori, Hoemmen & Langou (2012), SIAM J. Sci. Comput. 34: A206-A239.
    """
    n, m = A.shape
    size = TALL * m
    count = max(n // size, 1)
    if A.is_cuda or count == 1:
        found = torch.linalg.qr(A)
        return found.Q, found.R
    parts = [slice(i * size, n if i + 1 == count else (i + 1) * size) for i in range(count)]
    triangles = A.new_empty(count, m, m)

    def factorise(one: slice) -> None:
        rows = A[parts[one.start]]
        found = torch.linalg.qr(rows)
        rows.copy_(found.Q)
        triangles[one.start] = found.R

    shared(factorise, count, 1)
    top = torch.linalg.qr(triangles.reshape(count * m, m))
    across = top.Q.reshape(count, m, m)

    def combine(one: slice) -> None:
        rows = A[parts[one.start]]
        rows.copy_(rows @ across[one.start])

    shared(combine, count, 1)
    return A, top.R


def eigh(S: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of a symmetric array, in rising order, and its eigenvectors; a stack has those of each.

    They are NaN where an entry is not finite.
    """
    if not np.isfinite(S).all():
        return np.full(S.shape[:-1], np.nan), np.full(S.shape, np.nan)
    values, vectors = _of_host(torch.linalg.eigh, S)
    return values, vectors


def eigvalsh(S: Floats) -> Floats:
    """Return the eigenvalues of a symmetric array, in rising order, as `eigh` does."""
    if not np.isfinite(S).all():
        return np.full(S.shape[:-1], np.nan)
    return _of_host(lambda T: (torch.linalg.eigvalsh(T),), S)[0]


def svd(A: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the reduced singular value decomposition of a finite array: U, the singular values and Vᵀ."""
    U, values, V = _of_host(lambda T: torch.linalg.svd(T, full_matrices=False), A)
    return U, values, V


def _of_host(decompose: Callable[[Tensor], Iterable[Tensor]], A: Floats) -> tuple[Floats, ...]:
    """Return the parts into which torch decomposes an array of the host, by one thread."""
    with working():
        return tuple(part.numpy() for part in decompose(torch.from_numpy(np.ascontiguousarray(A))))


def _converted(A: Tensor) -> int:
    """Return how many rows of A are converted to float64 at once."""
    return max((CONVERTED_ON_GPU if A.is_cuda else CONVERTED) // max(A.shape[1], 1), PART)


def _part(of: Tensor, count: int, work: int, least: int = PART) -> int:
    """Return how many rows or columns, of so many, are a part, if each takes so much work."""
    return max(count, 1) if of.is_cuda else max(least, -(-WORK // max(work, 1)))
