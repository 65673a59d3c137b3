"""Sparse matrices as torch tensors."""

import warnings
from threading import Lock

import torch
from torch import Tensor

ONE_AT_A_TIME = Lock()
"""A lock, since filters of warnings belong to the whole process: of two threads that change them at the same time, one
might restore what the other had changed."""


def csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these entries, row by row, without torch's warning that the format is new to it."""
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
