"""Float32 products: refined to the promised tolerance, or promoted to float64, and told."""

import pytest
import torch
from bound import bound_system
from reference import system_matrix
from solvers.systems import hard_system, normal, nystrom

from kernelcg.operators import Counting
from kernelcg.solvers import METHODS, Status, Stopping, solve

ITERATIVE = [name for name in METHODS if name != "direct"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rtol", [1e-4, 1e-10])
def test_float32_products_reach_float64_tolerances(method, rtol):
    A, B = hard_system(150, 0.1, nu=1.5), normal(150, 3)
    report = solve(A.with_precision(torch.float32), B, method=method, stopping=Stopping(rtol=rtol))
    assert report.status is Status.CONVERGED
    M = torch.from_numpy(system_matrix(A.kernel, A.X, A.diagonal))
    assert float(((B - M @ report.solution).norm(dim=0) / B.norm(dim=0)).max()) <= 1.0001 * rtol


@pytest.mark.parametrize("method", ITERATIVE)
def test_products_run_in_float32_where_that_is_enough(method):
    A = hard_system(150, 1.0, nu=1.5)
    products = {torch.float32: 0, torch.float64: 0}

    class Spy(Counting):
        def __matmul__(self, V):
            products[self.precision] += 1
            return super().__matmul__(V)

    report = solve(Spy(A.with_precision(torch.float32)), normal(150, 2), method=method, stopping=Stopping(rtol=1e-5))
    assert report.status is Status.CONVERGED
    assert report.precision == torch.float32
    assert products[torch.float32] == int(report.iterations.max())
    assert 1 <= products[torch.float64] <= 6
    assert report.products == sum(products.values())


@pytest.mark.parametrize("method", ["pcg", "block_pcg"])
def test_promotion_where_float32_cannot_get_there(method):
    """At noise 1e-7 the rounding of K in float32 exceeds the smallest eigenvalue of A."""
    A = hard_system(200, 1e-7)
    P = nystrom(A, 120)
    stopping = Stopping(rtol=1e-6, max_iterations=3000)
    B = A @ normal(200, 2)
    report = solve(A.with_precision(torch.float32), B, method=method, preconditioner=P, stopping=stopping)
    assert report.status is Status.CONVERGED
    assert report.precision == torch.float64
    assert any("moved to float64" in note for note in report.tried)
    assert "moved to float64" in str(report)


@pytest.mark.parametrize("method", ["cg", "block_pcg"])
@pytest.mark.parametrize("noise", [1e-3, 1e-5])
def test_float32_never_costs_much_more_than_float64(method, noise):
    """Where float32 makes the iteration crawl or stand still, it is given up in time."""
    A, B, stopping = hard_system(400, noise), normal(400, 2), Stopping(rtol=1e-8, max_iterations=4000)
    double, single = (solve(C, B, method=method, stopping=stopping) for C in (A, A.with_precision(torch.float32)))
    assert single.status is double.status is Status.CONVERGED
    assert int(single.iterations.max()) <= int(double.iterations.max()) * 1.2 + 200
    assert single.condition_preconditioned <= 1.01 * torch.linalg.cond(A.dense())


def test_float32_data_are_taken_as_exact():
    A64, B = hard_system(80, 0.1), normal(80, 1).float()
    A32 = bound_system(A64.kernel, A64.X.float(), 0.1)
    report = solve(A32, B, stopping=Stopping(rtol=1e-10))
    assert report.status is Status.CONVERGED
    assert report.solution.dtype == torch.float64
    M = torch.from_numpy(system_matrix(A32.kernel, A32.X.double(), A32.diagonal))
    assert float((B.double() - M @ report.solution).norm() / B.norm()) <= 1.001e-10
