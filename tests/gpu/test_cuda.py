"""The portable path on a CUDA device: same numbers as the CPU, nothing left behind on it."""

import pytest
import torch
from bound import bound_system, gradient_of, product_of

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF, Linear, Matern, Periodic, RationalQuadratic
from kernelcg.solvers import (
    CholeskyFactor,
    Status,
    Stopping,
    apply_function,
    apply_function_rational,
    log_determinant,
    sample,
    solve,
)
from kernelcg.solvers.blocked_cholesky import work_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

KERNELS = [
    RBF([1.0, 2.0, 0.5], 1.5),
    Matern(0.7, nu=0.5) + Linear([0.1, 0.2, 0.3]),
    RationalQuadratic(1.0, 2.0, 0.5) * Periodic(1.0, [2.0, 3.0, 4.0]),
]


def data(n, columns):
    g = torch.Generator().manual_seed(0)
    return (torch.randn(n, size, generator=g, dtype=torch.float64) for size in (3, columns))


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_products_and_gradients_agree_with_the_cpu(kernel, precision, tolerance):
    X, V = data(700, 5)
    Xc, Vc = X.cuda(), V.cuda()
    product, expected = (
        product_of(Tiles(), kernel, Xc, Xc, Vc, precision=precision),
        product_of(Tiles(), kernel, X, X, V),
    )
    assert product.is_cuda
    assert float((product.cpu() - expected).norm() / expected.norm()) <= tolerance
    gradient, truth = (
        gradient_of(Tiles(), kernel, *arguments, precision=chosen)
        for arguments, chosen in (((Xc, Xc, Vc, Vc), precision), ((X, X, V, V), torch.float64))
    )
    assert float((gradient.cpu() - truth).norm() / truth.norm()) <= 10 * tolerance


@pytest.mark.parametrize("method", ["cg", "block_pcg", "flexible_pcg", "direct"])
def test_solvers_run_on_the_device(method):
    X, B = data(500, 3)
    A = bound_system(Matern(1.0), X.cuda(), 0.1)
    report = solve(A, B.cuda(), method=method, stopping=Stopping(rtol=1e-8))
    assert report.status is Status.CONVERGED
    assert report.solution.is_cuda
    exact = torch.linalg.solve(A.dense().cpu(), B)
    assert float((report.solution.cpu() - exact).norm() / exact.norm()) <= 1e-6


def test_a_large_factor_and_its_inverse_take_the_place_of_the_matrix():
    X, B = data(6000, 3)
    A = bound_system(Matern(1.0), X.cuda(), 0.1)
    P, B = A.dense(), B.cuda()
    reference = P.cpu()
    CholeskyFactor(A.dense()).inverse()  # the libraries have their work space
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    factor = CholeskyFactor(P)
    solved, inverse = factor.solve(B), factor.inverse()
    assert torch.cuda.max_memory_allocated() - before <= work_bytes(6000, on_gpu=True) + 2**26
    assert inverse.data_ptr() == P.data_ptr()
    exact = torch.linalg.solve(reference, B.cpu())
    for found in (solved, inverse @ B):
        assert float((found.cpu() - exact).norm() / exact.norm()) <= 1e-10


def test_functions_and_determinants_run_on_the_device():
    X, V = data(300, 2)
    on_cpu = bound_system(Matern(1.0), X, 0.1, backend=Tiles())
    on_gpu = bound_system(Matern(1.0), X.cuda(), 0.1)
    for function in (apply_function, apply_function_rational):
        ours, expected = function(on_gpu, V.cuda(), "log").value, function(on_cpu, V, "log").value
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-5, atol=1e-5)
    values = [log_determinant(A, 6, torch.Generator().manual_seed(1), tolerance=1e-7).value for A in (on_cpu, on_gpu)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert sample(on_gpu, 2, torch.Generator().manual_seed(1)).value.is_cuda
