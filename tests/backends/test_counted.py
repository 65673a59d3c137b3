"""The counting backend: the same numbers, and work in units of one column times a whole K."""

import pytest
import torch
from bound import block_of, bound_system, gradient_of, local_factors_of, product_of

from kernelcg import backends
from kernelcg.backends import Native, Tiles
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import RBF
from kernelcg.solvers import solve

N = 40
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
KERNEL = RBF([0.7, 1.3], 2.0)


@pytest.fixture(params=["tiles", "default"])
def base(request):
    return Tiles() if request.param == "tiles" else backends.default()


def test_the_numbers_are_those_of_the_base(base):
    counted = base.counting(N)
    V, none = X[:, :1].contiguous(), torch.full((N, 2), -1)
    assert torch.equal(product_of(counted, KERNEL, X, X, V), product_of(base, KERNEL, X, X, V))
    assert torch.equal(block_of(counted, KERNEL, X, X[:3]), block_of(base, KERNEL, X, X[:3]))
    assert torch.equal(gradient_of(counted, KERNEL, X, X, V, V), gradient_of(base, KERNEL, X, X, V, V))
    local = [local_factors_of(one, KERNEL, X, none, None, None, torch.ones(N).double()) for one in (counted, base)]
    assert torch.equal(*local)
    assert counted.budget() == pytest.approx(base.budget(), rel=0.2)


def test_columns_are_counted_in_proportion_to_the_part_of_K(base):
    counted = base.counting(N)
    V = torch.ones(N, 3, dtype=torch.float64)
    product_of(counted, KERNEL, X, X, V)
    assert counted.work.columns == 3
    product_of(counted, KERNEL, X[:20], X[:20], V[:20])
    assert counted.work.columns == 3 + 3 / 4
    gradient_of(counted, KERNEL, X, X, V[:, :2], V[:, :2])
    assert counted.work.columns == 5.75
    block_of(counted, KERNEL, X, X[:10])
    assert counted.work.columns == 6.0
    counted.bind(KERNEL, X).product_of_columns(torch.arange(10), V[:10, :2])
    assert counted.work.columns == 6.5


def test_products_with_a_stored_matrix_count_too(base):
    counted = base.counting(N)
    stored = counted.bind(KERNEL, X).stored()
    assert stored.is_stored
    assert counted.work.columns == 1.0
    V = torch.ones(N, 4, dtype=torch.float64)
    product = stored.product(V)
    assert counted.work.columns == 5.0
    torch.testing.assert_close(product, product_of(base, KERNEL, X, X, V), rtol=1e-12, atol=1e-12)


def test_a_solve_counts_what_its_report_says(base):
    counted = base.counting(N)
    A = bound_system(KERNEL, X, torch.tensor(0.1), backend=counted)
    report = solve(A, X)
    assert report.columns > 4
    assert counted.work.columns == report.columns


@pytest.mark.parametrize("outputs", [1, 6])
def test_an_exact_evaluation_counts_n_columns_for_its_factor(base, outputs):
    counted = base.counting(N)
    problem = Regression(X, X[:, :1].repeat(1, outputs), backend=counted)
    direct_estimate(problem, GaussianProcess(KERNEL, 0.1))
    d = X.shape[1]
    information = min(outputs, 4) * (2 * d + 2)  # derivatives of K by d lengthscales and σ², times columns of a
    assert counted.work.columns == 1 + outputs + N + information  # the entries of K, the pairs a aᵀ, the inverse


def test_an_exact_evaluation_of_leave_one_out_counts_no_information(base):
    counted = base.counting(N)
    direct_estimate(Regression(X, X[:, :1], backend=counted), GaussianProcess(KERNEL, 0.1), "loo")
    assert counted.work.columns == 1 + 1 + N


def test_the_native_backend_still_does_the_work():
    if not backends.available()["native"].usable:
        pytest.skip(backends.available()["native"].reason)
    counted = backends.default("1GB", 1).counting(N)
    assert isinstance(counted, Native)
    assert counted.memory == 10**9 == counted.budget()
