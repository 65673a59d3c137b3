"""Sparse matrices as torch tensors."""

import warnings
from threading import Lock

import torch
from torch import Tensor

from kernelcg.sums import sums_of_runs

GATHERED = 2**26
"""Numbers that a product on a GPU gathers at once, at most, for one column or more."""

ONE_AT_A_TIME = Lock()
"""A lock, since filters of warnings belong to the whole process: of two threads that change them at the same time, one
might restore what the other had changed."""


def csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these entries, row by row, without torch's warning that the format is new to it."""
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def csr_product(A: Tensor, V: Tensor) -> Tensor:
    """Return A V for a sparse A and V (n, k), each row summed in the order of its entries.

    The library that torch calls on a GPU has another order in each run. There the terms are gathered, a few columns at
    a time, and added up row by row: several times the memory traffic, and still little beside a product with K.
    """
    if not V.is_cuda:
        return A @ V
    if not V.shape[1]:
        return V.new_zeros(len(A), 0)
    starts, columns, values = A.crow_indices(), A.col_indices(), A.values()[:, None]
    at_once = max(GATHERED // max(len(values), 1), 1)
    parts = [sums_of_runs(some[columns].mul_(values), starts) for some in V.split(at_once, dim=1)]
    return torch.cat(parts, dim=1)
