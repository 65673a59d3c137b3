"""Hard data: rounding to float32 must cost about a rounding error, whatever the units and the origin of the data."""

import numpy as np
import pytest
import torch
from reference import TOLERANCE, array, gradient_error, kernel_matrix
from strategies import DTYPES, KERNELS, STATIONARY, normal


def check(backend, kernel, X, Y, precision, scales=(1.0, 1.0, 1.0)):
    """Check a product with normal columns in the 2-norm of the result itself, column by column."""
    V = normal(len(Y), 3, 9) * torch.tensor(scales, dtype=torch.float64)
    result = array(backend.matmul(kernel, X, Y, V, precision=DTYPES[precision]))
    truth = kernel_matrix(kernel, X, Y) @ array(V)
    assert np.all(np.linalg.norm(result - truth, axis=0) <= TOLERANCE[precision] * np.linalg.norm(truth, axis=0))


@pytest.mark.parametrize("name", STATIONARY)
def test_data_spread_over_a_hundred_lengthscales(backend_for, precision, name):
    kernel = KERNELS[name](2)
    X = 100 * torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    X[::2] = X[1::2] + 0.3 * normal(150, 2, 2)  # pairs of neighbours: entries that are not 0
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X, precision)
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X[:70].clone(), precision)


@pytest.mark.parametrize("name", KERNELS)
def test_data_far_from_the_origin(backend_for, precision, name):
    """Product with a linear kernel: moving the origin changes that part, rounding must not change the other."""
    kernel, X = KERNELS[name](3), normal(120, 3, 1) + 1e6
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X, precision)
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X[:70] + 0.5, precision)


@pytest.mark.parametrize("name", STATIONARY)
def test_gradients_of_data_far_from_the_origin(backend_for, precision, name):
    kernel, X, left, right = KERNELS[name](3), normal(60, 3, 1) + 1e6, normal(60, 2, 2), normal(60, 2, 3)
    gradient = backend_for(kernel, X, DTYPES[precision]).gradient(
        kernel, X, X, left, right, precision=DTYPES[precision]
    )
    assert gradient_error(gradient, kernel, X, X, left, right) < TOLERANCE[precision]


@pytest.mark.parametrize("name", KERNELS)
def test_columns_of_extreme_size(backend_for, precision, name):
    kernel, X = KERNELS[name](3), normal(120, 3, 1)
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X, precision, scales=(1e-30, 1.0, 1e30))
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X, precision, scales=(1e-300, 0.0, 1e300))


@pytest.mark.parametrize("unit", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["rbf ard", "matern12", "matern52 ard", "periodic"])
def test_units_of_the_data(backend_for, precision, name, unit):
    kernel, X = KERNELS[name](3), normal(60, 3, 1) * unit
    shared = {name: getattr(kernel, name) * unit for name in ("lengthscale", "period") if hasattr(kernel, name)}
    if name == "periodic":
        del shared["lengthscale"]
    kernel = type(kernel)(**{f: getattr(kernel, f) for f in kernel.__dataclass_fields__} | shared)
    check(backend_for(kernel, X, DTYPES[precision]), kernel, X, X, precision)


@pytest.mark.parametrize("name", KERNELS)
def test_float32_data_in_a_float64_product_lose_nothing_more(backend_for, name):
    """How a float32 solve is checked: the data are those float32 numbers, everything after is float64."""
    kernel, X = KERNELS[name](3), (normal(120, 3, 1) + 3).float()
    backend = backend_for(kernel, X, torch.float64)
    check(backend, kernel, X, X, "float64")
    check(backend, kernel, X, X[:70] + 0.5, "float64")
    left, right = normal(120, 2, 2), normal(120, 2, 3)
    gradient = backend.gradient(kernel, X, X, left, right, precision=torch.float64)
    assert gradient_error(gradient, kernel, X, X, left, right) < TOLERANCE["float64"]
    block = array(backend.block(kernel, X, X[:70], precision=torch.float64))
    truth = kernel_matrix(kernel, X, X[:70])
    assert abs(block - truth).max() < TOLERANCE["float64"] * abs(truth).max()


@pytest.mark.parametrize("name", STATIONARY)
def test_points_extremely_far_apart_are_harmless(backend_for, name):
    """Squared distances beyond the largest float32: an outlier, or a feature that is not in use."""
    if "periodic" in name or name == "product":
        pytest.skip("a float32 does not know where in its period 1e25 is")
    kernel, X = KERNELS[name](2), normal(30, 2, 1)
    X[4, 0] = 1e25
    K = kernel_matrix(kernel, X - X.mean(0), X - X.mean(0))
    backend, V = backend_for(kernel, X, torch.float32), normal(30, 2, 2)
    result = backend.matmul(kernel, X, X, V, precision=torch.float32)
    gradient = backend.gradient(kernel, X, X, V, V, precision=torch.float32)
    assert result.isfinite().all()
    assert gradient.isfinite().all()
    np.testing.assert_allclose(result[4], (K @ array(V))[4], rtol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_a_point_has_exactly_the_variance(backend_for, precision, name):
    kernel, X = KERNELS[name](2), normal(60, 2, 1)
    block = backend_for(kernel, X, DTYPES[precision]).block(kernel, X, X, precision=DTYPES[precision])
    assert torch.equal(block.diagonal(), kernel.variance.to(block.dtype).expand(60))
    assert torch.equal(block, block.T)
