"""The Triton backend and what surrounds it on a CUDA device. The contract of backends runs there too, by parameter."""

import numpy as np
import pytest
import torch
from strategies import KERNELS, normal

from kernelcg import GPRegressor, backends
from kernelcg.backends.neighbours import earlier_neighbours
from kernelcg.kernels import Matern
from kernelcg.preconditioners.shapes import SparseInverse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def triton_or_skip():
    found = backends.available()["triton"]
    if not found.usable:
        pytest.skip(found.reason)
    return backends.named("triton")


def relative_error(found, truth):
    return float((found.cpu() - truth.cpu()).norm() / truth.norm())


def test_it_is_the_default_on_a_gpu():
    triton_or_skip()
    assert backends.default(device="cuda").name() == "triton"


@pytest.mark.parametrize("name", ["rbf ard", "matern12", "matern32 ard", "matern52", "multiple of a sum"])
@pytest.mark.parametrize("k", [1, 3, 16, 40, 130])
def test_ten_thousand_rows(name, k):
    """Many tiles, several parts of the columns."""
    kernel, X, V = KERNELS[name](7), normal(10_001, 7, 1).cuda(), normal(10_001, k, 2).cuda()
    K, tiles = triton_or_skip().bind(kernel, X), backends.Tiles().bind(kernel, X)
    truth = tiles.product(V)
    assert relative_error(K.product(V), truth) < 1e-12
    assert relative_error(K.product(V, precision=torch.float32), truth) < 5e-6
    few = slice(0, 3000)
    exact = tiles.at(few).gradient(V[few], V[few].flip(0))
    size = tiles.at(few).gradient(V[few].abs(), V[few].abs()).abs().sum()
    for precision, tolerance in ((torch.float64, 1e-12), (torch.float32, 5e-6)):
        found = K.at(few).gradient(V[few], V[few].flip(0), precision=precision)
        assert float((found - exact).abs().max() / size) < tolerance


def test_the_same_call_gives_the_same_bits():
    K = triton_or_skip().bind(KERNELS["matern32 ard"](5), normal(5_000, 5, 1).cuda())
    V = normal(5_000, 16, 2).cuda()
    for precision in (torch.float32, torch.float64):
        assert torch.equal(K.product(V, precision=precision), K.product(V, precision=precision))
        assert torch.equal(K.gradient(V, V, precision=precision), K.gradient(V, V, precision=precision))


def test_a_sparse_factor_is_that_of_the_cpu():
    X, order = normal(3_000, 3, 1), torch.randperm(3_000, generator=torch.Generator().manual_seed(0))
    neighbours = earlier_neighbours(X, order, 12)
    assert torch.equal(earlier_neighbours(X.cuda(), order.cuda(), 12).cpu(), neighbours)
    values = (
        backends.default()
        .bind(Matern(1.0), X)
        .local_factors(neighbours, None, None, torch.full((3_000,), 0.1, dtype=torch.float64))
    )
    columns, Z = torch.cat([neighbours, torch.arange(3_000)[:, None]], 1), normal(3_000, 4, 2)
    here = SparseInverse(columns, values, order)
    there = SparseInverse(columns.cuda(), values.cuda(), order.cuda())
    for name in ("whiten", "unwhiten", "color"):
        assert relative_error(getattr(there, name)(Z.cuda()), getattr(here, name)(Z)) < 1e-11
    assert relative_error(there.inverse_diagonal(), here.inverse_diagonal()) < 1e-12


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_fit_to_tensors_on_the_gpu_agrees_with_the_cpu(method):
    X = normal(1_500, 3, 1)
    y = X[:, 0].sin() + 0.5 * X[:, 1] + 0.3 * normal(1_500, 1, 2)[:, 0]
    Z, options = normal(50, 3, 3), {"kernel": Matern(1.5), "noise": 0.1, "optimizer": None, "method": method}
    here = GPRegressor(device="cpu", random_state=0, **options).fit(X.numpy(), y.numpy())
    there = [GPRegressor(device="cuda", random_state=0, **options).fit(X.cuda(), y.cuda()) for _ in range(2)]
    expected, std = here.predict(Z.numpy(), return_std=True)
    (one, one_std), (other, other_std) = (model.predict(Z.cuda(), return_std=True) for model in there)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one_std, other_std)
    np.testing.assert_allclose(one, expected, atol=0.02 * float(y.std()))
    np.testing.assert_allclose(one_std, std, rtol=0.05)
