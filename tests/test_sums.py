"""Sums over groups of rows, on the CPU and on the device that stands in for CUDA, against loops in NumPy."""

import itertools

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn

from kernelcg.preconditioners.csr_tensor import csr_product, csr_tensor
from kernelcg.sums import running_shares, sums_of_groups, sums_of_runs

RANDOM = np.random.default_rng(0)


@pytest.fixture(params=["cpu", "cuda"])
def place(request):
    if request.param == "cpu":
        yield lambda values: torch.from_numpy(values)
    else:
        with CudaStandIn():
            yield lambda values: torch.from_numpy(values).cuda()


@pytest.mark.parametrize("n", [0, 1, 50])
def test_groups(place, n):
    values, group = RANDOM.normal(size=(n, 3)), RANDOM.integers(0, 5, n) + 1  # the first and the last are empty
    expected = np.stack([values[group == g].sum(0) for g in range(7)])
    np.testing.assert_allclose(sums_of_groups(place(values), place(group), 7).cpu(), expected, rtol=1e-14, atol=1e-14)


def test_one_group_that_is_not_finite_leaves_the_others(place):
    values = np.array([[1.0], [np.inf], [2.0], [np.nan]])
    found = sums_of_groups(place(values), place(np.array([0, 1, 0, 2])), 3)
    np.testing.assert_array_equal(found.cpu(), [[3.0], [np.inf], [np.nan]])


def test_runs(place):
    values, starts = RANDOM.normal(size=(9, 2)), np.array([0, 0, 4, 5, 9])
    expected = np.stack([values[a:b].sum(0) for a, b in itertools.pairwise(starts)])
    found = sums_of_runs(place(values), place(starts))
    np.testing.assert_allclose(found.cpu(), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("at_once", [1, 2**26])
def test_sparse_product(place, monkeypatch, at_once):
    monkeypatch.setattr("kernelcg.preconditioners.csr_tensor.GATHERED", at_once)
    dense = RANDOM.normal(size=(6, 8)) * (RANDOM.uniform(size=(6, 8)) < 0.4)
    dense[2] = 0
    rows, columns = dense.nonzero()
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=6))])
    A, V = csr_tensor(*map(place, (starts, columns, dense[rows, columns])), (6, 8)), RANDOM.normal(size=(8, 5))
    np.testing.assert_allclose(csr_product(A, place(V)).cpu(), dense @ V, rtol=1e-13, atol=1e-13)
    assert csr_product(A, place(V[:, :0])).shape == (6, 0)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_running_shares_are_those_of_the_weights(place, scale):
    weights = RANDOM.exponential(size=100_000)
    found = running_shares(place(scale * weights)).cpu().numpy()
    assert found.dtype == np.int64
    assert 2**56 < found[-1] < 2**62
    np.testing.assert_allclose(found / found[-1], weights.cumsum() / weights.sum(), rtol=1e-9)


def test_running_shares_of_nothing(place):
    assert not running_shares(place(np.zeros(3))).cpu().any()
