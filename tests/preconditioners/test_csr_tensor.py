"""Sparse matrices as torch tensors: the entries, and the filters of warnings left as they were."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.sparse import random_array

from kernelcg.preconditioners.csr_tensor import csr_tensor


@pytest.fixture
def often():
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def made(seed):
    matrix = random_array((7, 5), density=0.4, rng=np.random.default_rng(seed)).tocsr()
    starts, columns = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return csr_tensor(starts, columns, torch.from_numpy(matrix.data), (7, 5)), matrix.toarray()


def test_threads_leave_the_filters_as_they_were(often):
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(made, range(2000)))
    assert list(warnings.filters) == before
    for ours, dense in found:
        np.testing.assert_array_equal(ours.to_dense().numpy(), dense)
