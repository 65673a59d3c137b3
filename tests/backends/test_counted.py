"""The counting backend: the same numbers, and work in units of one column times a whole K."""

import pytest
import torch

from kernelcg import backends
from kernelcg.backends import Dense, Native, Tiles
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import RBF
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.solvers import solve

N = 40
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
KERNEL = RBF([0.7, 1.3], 2.0)


@pytest.fixture(params=["tiles", "default"])
def base(request):
    return Tiles() if request.param == "tiles" else backends.default()


def test_the_numbers_are_those_of_the_base(base):
    counted = backends.counted(base, N)
    V, none = X[:, :1].contiguous(), torch.full((N, 2), -1)
    assert torch.equal(counted.matmul(KERNEL, X, X, V), base.matmul(KERNEL, X, X, V))
    assert torch.equal(counted.block(KERNEL, X, X[:3]), base.block(KERNEL, X, X[:3]))
    assert torch.equal(counted.gradient(KERNEL, X, X, V, V), base.gradient(KERNEL, X, X, V, V))
    local = [one.local_factors(KERNEL, X, none, None, None, torch.ones(N).double()) for one in (counted, base)]
    assert torch.equal(*local)
    assert counted.budget() == pytest.approx(base.budget(), rel=0.2)


def test_columns_are_counted_in_proportion_to_the_part_of_K(base):
    counted = backends.counted(base, N)
    V = torch.ones(N, 3, dtype=torch.float64)
    counted.matmul(KERNEL, X, X, V)
    assert counted.work.columns == 3
    counted.matmul(KERNEL, X[:20], X[:20], V[:20])
    assert counted.work.columns == 3 + 3 / 4
    counted.gradient(KERNEL, X, X, V[:, :2], V[:, :2])
    assert counted.work.columns == 5.75
    counted.block(KERNEL, X, X[:10])
    assert counted.work.columns == 6.0


def test_products_with_a_stored_matrix_count_too(base):
    counted = backends.counted(base, N)
    stored = backends.store(KERNEL, X, counted)
    assert isinstance(stored, Dense)
    assert counted.work.columns == 1.0
    V = torch.ones(N, 4, dtype=torch.float64)
    product = stored.matmul(KERNEL, X, X, V)
    assert counted.work.columns == 5.0
    torch.testing.assert_close(product, base.matmul(KERNEL, X, X, V), rtol=1e-12, atol=1e-12)


def test_a_solve_counts_what_its_report_says(base):
    counted = backends.counted(base, N)
    A = KernelPlusDiagonal(KERNEL, X, torch.tensor(0.1), backend=counted)
    report = solve(A, X)
    assert report.columns > 4
    assert counted.work.columns == report.columns


def test_an_exact_evaluation_counts_n_columns_for_its_factor(base):
    counted = backends.counted(base, N)
    problem = Regression(X, X[:, :1], backend=counted)
    direct_estimate(problem, GaussianProcess(KERNEL, 0.1))
    assert counted.work.columns == 1 + 1 + N  # the entries of K, the pair a aᵀ, the inverse


def test_the_native_backend_still_does_the_work():
    if not backends.available()["native"].usable:
        pytest.skip(backends.available()["native"].reason)
    counted = backends.counted(backends.default("1GB", 1), N)
    assert isinstance(counted.base, Native)
    assert counted.memory == counted.base.memory == counted.budget()
