"""Cholesky factorisation and inversion in the memory of the matrix, a block of rows and columns at a time.

Matrix products do nearly all of the work, one per block, on views of the matrix. LAPACK's own routines are called for
diagonal blocks only: torch copies their arguments, and they fail on large matrices in some builds of OpenBLAS.
"""

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

from kernelcg.dense import multiply, solve_from_the_left, solve_from_the_right, subtract_product

BLOCK, MANY_ROWS, BLOCK_OF_MANY = 96, 4000, 192
"""Rows of a block, and from how many rows on they are more. In smaller blocks products are limited by memory traffic;
in larger ones more of the work is in the diagonal blocks, which one thread factorises. Powers of two are slower."""

ON_GPU = 1024
"""The same on a GPU: each diagonal block is a call that keeps few of its processors busy, and products of fewer rows
than about a thousand do not reach its speed in float64."""


def work_bytes(n: int, block: int | None = None, *, on_gpu: bool = False) -> int:
    """Return the bytes that `factorise_in_place` and `invert_in_place` allocate at most: O(n block), not O(n²)."""
    block = min(n, block or _block(n, on_gpu))
    return 8 * block * (2 * n + 2 * block)


def factorise_in_place(A: Tensor, block: int | None = None) -> None:
    r"""Replace A by its Cholesky factor L, A = LLᵀ, with zeros above the diagonal.

    Each block of columns j is made from the blocks k < j on its left:

    .. math:: L_{jj} L_{jj}^\top = A_{jj} - \sum_{k<j} L_{jk} L_{jk}^\top, \qquad
              L_{ij} = \Bigl(A_{ij} - \sum_{k<j} L_{ik} L_{jk}^\top\Bigr) L_{jj}^{-\top}, \quad i > j

    Costs n³/6 multiply-adds and, beside A, no more than `work_bytes`.

    Parameters
    ----------
    A : row-major float64 tensor, (n, n); its lower triangle is read, all of it is overwritten

    Raises
    ------
    LinAlgError : if A is not positive definite; A is then lost. A GPU is asked once, at the end.
    """
    n, codes = len(A), []
    for own in _blocks(n, block or _block(n, A.is_cuda)):
        left, down, below = slice(0, own.start), slice(own.start, n), slice(own.stop, n)
        subtract_product(A[down, own], A[down, left], A[own, left].mT)
        L_own, code = torch.linalg.cholesky_ex(A[own, own])
        codes.append(code)
        if (own.stop == n or not A.is_cuda) and bool(torch.stack(codes).any()):
            raise LinAlgError("the matrix is not positive definite")
        A[own, own] = L_own
        solve_from_the_right(L_own.mT, A[below, own])
        A[own, below] = 0


def invert_in_place(L: Tensor, block: int | None = None) -> None:
    """Replace the factor L of A = LLᵀ by all of A⁻¹ = L⁻ᵀL⁻¹.

    Costs n³/3 multiply-adds and, beside L, no more than `work_bytes`.

    Parameters
    ----------
    L : row-major float64 tensor, (n, n), as `factorise_in_place` leaves it
    """
    size = block or _block(len(L), L.is_cuda)
    _invert_triangle(L, size)
    _multiply_transposed(L, size)


def _invert_triangle(L: Tensor, block: int) -> None:
    r"""Replace L by M = L⁻¹, by substitution from the first row down.

    .. math:: M_{jk} = L_{jj}^{-1} \Bigl(I_{jk} - \sum_{k \le l < j} L_{jl} M_{lk}\Bigr)

    The sums of the rows below j are kept where their L was: L_ij is needed last for the sums in row i that end with j.
    """
    n = len(L)
    for own in _blocks(n, block):
        upto, below = slice(0, own.stop), slice(own.stop, n)
        L_own, column = L[own, own].clone(), L[below, own].clone()
        L[own, own] = torch.eye(len(L_own), dtype=L.dtype, device=L.device)
        solve_from_the_left(L_own, L[own, upto])
        L[below, own] = 0
        subtract_product(L[below, upto], column, L[own, upto])


def _multiply_transposed(M: Tensor, block: int) -> None:
    r"""Replace a lower triangular M by all of C = MᵀM, :math:`C_{jk} = \sum_{i \ge j} M_{ij}^\top M_{ik}` for k ≤ j."""
    n = len(M)
    for own in _blocks(n, block):
        left, upto, down = slice(0, own.start), slice(0, own.stop), slice(own.start, n)
        C = multiply(M[down, own].mT, M[down, upto])
        C[:, own] = C[:, own].tril() + C[:, own].tril(-1).mT  # the same bits on both sides of the diagonal
        M[own, upto] = C
        M[left, own] = C[:, left].mT


def _block(n: int, on_gpu: bool) -> int:
    if on_gpu:
        return ON_GPU
    return BLOCK if n < MANY_ROWS else BLOCK_OF_MANY


def _blocks(n: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]
