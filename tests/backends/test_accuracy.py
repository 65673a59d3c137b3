"""Hard data: rounding to float32 must cost about a rounding error, whatever the units and the origin of the data."""

import numpy as np
import pytest
import torch
from bound import block_of, gradient_of, product_of
from reference import TOLERANCE, array, block_error, gradient_error, kernel_matrix
from strategies import CONTRACT, DTYPES, FUSED, KERNELS, STATIONARY, normal

from kernelcg.kernels import RBF, Linear, Matern, Periodic


def assert_product_is_right(backend, kernel, X, Y, precision, scales=(1.0, 1.0, 1.0)):
    """Check a product with normal columns in the 2-norm of the result itself, column by column."""
    V, scales = normal(len(Y), 3, 9), torch.tensor(scales, dtype=torch.float64)
    result = array(product_of(backend, kernel, X, Y, V * scales, precision=DTYPES[precision]) / scales)
    truth = kernel_matrix(kernel, X, Y) @ array(V)
    error = np.linalg.norm(result - truth, axis=0) / np.linalg.norm(truth, axis=0)
    assert np.max(error) < TOLERANCE[precision]


def pairs(*lists):
    """Parametrise over the pairs of backend and kernel that run code of their own and whose kernel is listed."""
    some = [(backend, name) for backend, name in CONTRACT if any(name in names for names in lists)]
    return pytest.mark.parametrize(("backend_for", "name"), some, indirect=["backend_for"])


@pairs(STATIONARY)
def test_data_spread_over_a_hundred_lengthscales(backend_for, precision, name):
    kernel = KERNELS[name](2)
    X = 100 * torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    X[::2] = X[1::2] + 0.3 * normal(150, 2, 2)  # pairs of neighbours: entries that are not 0
    backend = backend_for(kernel, X, DTYPES[precision])
    assert_product_is_right(backend, kernel, X, X, precision)
    assert_product_is_right(backend, kernel, X, X[:70].clone(), precision)


@pytest.mark.parametrize("kernel", [Periodic(1.0, 1.0), Periodic(1.0, 1.0) * RBF(365.0)], ids=["periodic", "product"])
def test_data_spread_over_thousands_of_periods(backend_within, kernel):
    """Ten years of days: where in its day a time lies must survive rounding."""
    X = 3650 * torch.rand(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_product_is_right(backend_within(), kernel, X, X, "float32")


@pairs(STATIONARY)
def test_data_far_from_the_origin(backend_for, precision, name):
    kernel, X = KERNELS[name](3), normal(120, 3, 1) + 1e6
    backend = backend_for(kernel, X, DTYPES[precision])
    assert_product_is_right(backend, kernel, X, X, precision)
    assert_product_is_right(backend, kernel, X, X[:70] + 0.5, precision)


def test_a_nonstationary_part_does_not_spoil_a_stationary_one_far_from_the_origin(backend_within):
    """The data cannot be centred for the linear part, but rounding them to float32 would ruin the RBF."""
    kernel, X = RBF(1.0) * Linear(1.0), normal(120, 3, 1) + 1e6
    assert_product_is_right(backend_within(), kernel, X, X, "float32")


@pairs(STATIONARY)
def test_gradients_of_data_far_from_the_origin(backend_for, precision, name):
    kernel, X, left, right = KERNELS[name](3), normal(60, 3, 1) + 1e6, normal(60, 2, 2), normal(60, 2, 3)
    gradient = gradient_of(
        backend_for(kernel, X, DTYPES[precision]), kernel, X, X, left, right, precision=DTYPES[precision]
    )
    assert gradient_error(gradient, kernel, X, X, left, right) < TOLERANCE[precision]


@pairs(["rbf", "matern32 ard", "sum", "periodic", "product with linear"])
@pytest.mark.parametrize("scales", [(1e-30, 1.0, 1e30), (1e-300, 1e-100, 1e290)])
def test_columns_of_extreme_size(backend_for, precision, name, scales):
    kernel, X = KERNELS[name](3), normal(120, 3, 1)
    backend = backend_for(kernel, X, DTYPES[precision])
    assert_product_is_right(backend, kernel, X, X, precision, scales)
    assert_product_is_right(backend, kernel, X, X[:70].clone(), precision, scales)


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_units_of_the_data(backend_within, precision, unit):
    backend, X, lengthscale = backend_within(), normal(60, 3, 1) * unit, torch.tensor([0.5, 1.0, 3.0]) * unit
    for kernel in (RBF(lengthscale), Matern(unit, nu=0.5), Matern(lengthscale, nu=2.5), Periodic(1.0, 4 * lengthscale)):
        assert_product_is_right(backend, kernel, X, X, precision)


@pairs(KERNELS)
def test_float32_data_in_a_float64_product_lose_nothing_more(backend_for, name):
    """How a float32 solve is checked: the data are those float32 numbers, everything after is float64."""
    kernel, X = KERNELS[name](3), (normal(120, 3, 1) + 3).float()
    backend = backend_for(kernel, X, torch.float64)
    assert_product_is_right(backend, kernel, X, X, "float64")
    assert_product_is_right(backend, kernel, X, X[:70] + 0.5, "float64")
    left, right = normal(120, 2, 2), normal(120, 2, 3)
    gradient = gradient_of(backend, kernel, X, X, left, right, precision=torch.float64)
    assert gradient_error(gradient, kernel, X, X, left, right) < TOLERANCE["float64"]
    block = block_of(backend, kernel, X, X[:70], precision=torch.float64)
    assert block_error(block, kernel_matrix(kernel, X, X[:70])) < TOLERANCE["float64"]


@pairs(FUSED, ["rational quadratic", "constant"])
def test_points_extremely_far_apart_are_harmless(backend_for, name):
    """Squared distances beyond the largest float32: one wild outlier must not spoil the others."""
    kernel, X = KERNELS[name](2), normal(30, 2, 1)
    X[4, 0] = 1e25
    backend, V = backend_for(kernel, X, torch.float32), normal(30, 2, 2)
    result = product_of(backend, kernel, X, X, V, precision=torch.float32)
    assert result.isfinite().all()
    np.testing.assert_allclose(result[4], (kernel_matrix(kernel, X, X) @ array(V))[4], rtol=1e-5)
    assert gradient_of(backend, kernel, X, X, V, V, precision=torch.float32).isfinite().all()


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_a_point_has_exactly_the_variance(backend_within, precision, name):
    kernel, X = KERNELS[name](2), normal(60, 2, 1)
    block = block_of(backend_within(), kernel, X, X, precision=DTYPES[precision])
    assert torch.equal(block.diagonal(), kernel.variance.to(block.dtype).expand(60))
    assert torch.equal(block, block.T)
