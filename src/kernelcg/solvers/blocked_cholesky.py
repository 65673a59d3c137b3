"""Cholesky factorisation and inversion in the memory of the matrix, a block of rows and columns at a time.

Matrix products do nearly all of the work, one per block, on views of the matrix. LAPACK's own routines are called for
diagonal blocks only: torch copies their arguments, and they fail on large matrices in some builds of OpenBLAS.
"""

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

BLOCK = 512
"""Rows of a block. A product with fewer would be limited by memory traffic: it does BLOCK / 4 floating-point operations
for each byte read. With more, the products compute more of the triangle that nobody needs: 3 BLOCK / (2n) of the work,
and as much again goes into triangular solves, which are slower."""


def work_bytes(n: int, block: int = BLOCK) -> int:
    """Return the bytes that `factorise_in_place` and `invert_in_place` allocate at most: O(n block), not O(n²)."""
    block = min(n, block)
    return 8 * block * (2 * n + 2 * block)


def factorise_in_place(A: Tensor, block: int = BLOCK) -> None:
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
    LinAlgError : if A is not positive definite; A is then lost
    """
    n = len(A)
    for own in _blocks(n, block):
        left, down, below = slice(0, own.start), slice(own.start, n), slice(own.stop, n)
        A[down, own].addmm_(A[down, left], A[own, left].mT, alpha=-1)
        L_own, failed = torch.linalg.cholesky_ex(A[own, own])
        if bool(failed):
            raise LinAlgError("the matrix is not positive definite")
        A[own, own] = L_own
        A[below, own] = torch.linalg.solve_triangular(L_own.mT, A[below, own], upper=True, left=False)
        A[own, below] = 0


def invert_in_place(L: Tensor, block: int = BLOCK) -> None:
    """Replace the factor L of A = LLᵀ by all of A⁻¹ = L⁻ᵀL⁻¹.

    Costs n³/3 multiply-adds and, beside L, no more than `work_bytes`.

    Parameters
    ----------
    L : row-major float64 tensor, (n, n), as `factorise_in_place` leaves it
    """
    _invert_triangle(L, block)
    _multiply_transposed(L, block)


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
        L[own, upto] = torch.linalg.solve_triangular(L_own, L[own, upto], upper=False)
        L[below, own] = 0
        L[below, upto].addmm_(column, L[own, upto], alpha=-1)


def _multiply_transposed(M: Tensor, block: int) -> None:
    r"""Replace a lower triangular M by all of C = MᵀM, :math:`C_{jk} = \sum_{i \ge j} M_{ij}^\top M_{ik}` for k ≤ j."""
    n = len(M)
    for own in _blocks(n, block):
        left, upto, down = slice(0, own.start), slice(0, own.stop), slice(own.start, n)
        C = M[down, own].mT @ M[down, upto]
        C[:, own] = C[:, own].tril() + C[:, own].tril(-1).mT  # the same bits on both sides of the diagonal
        M[own, upto] = C
        M[left, own] = C[:, left].mT


def _blocks(n: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]
