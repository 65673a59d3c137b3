"""∂/∂θ Σ_j left_jᵀ K right_j of all backends, against the complex step applied to the reference."""

import pytest
import torch
from bound import gradient_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TOLERANCE, gradient_error
from strategies import CONTRACT, DTYPES, KERNELS, columns, normal, points


def error(backend, kernel, X, Y, left, right, precision):
    gradient = gradient_of(backend, kernel, X, Y, left, right, precision=DTYPES[precision])
    assert gradient.dtype == torch.float64
    assert not gradient.requires_grad
    return gradient_error(gradient, kernel, X, Y, left, right)


@pytest.mark.parametrize(("backend_for", "name"), CONTRACT, indirect=["backend_for"])
@settings(max_examples=3)
@given(data=st.data(), n=st.integers(1, 50), m=st.integers(1, 50), d=st.integers(1, 6), k=st.integers(1, 9))
def test_gradients_of_every_kernel(backend_for, precision, name, data, n, m, d, k):
    kernel, X, Y = KERNELS[name](d), data.draw(points(n, d)), data.draw(points(m, d))
    backend = backend_for(kernel, X, DTYPES[precision])
    left, right, other = data.draw(columns(n, k)), data.draw(columns(m, k)), data.draw(columns(n, k))
    assert error(backend, kernel, X, Y, left, right, precision) < TOLERANCE[precision]
    assert error(backend, kernel, X, X, left, other, precision) < TOLERANCE[precision]


@pytest.mark.parametrize("n", [1, 8, 33, 97, 258, 530])
@pytest.mark.parametrize("name", ["rbf", "matern12 ard", "matern32 ard", "matern52"])
def test_gradients_of_every_size(backend_within, precision, name, n):
    kernel, X, Y, backend = KERNELS[name](3), normal(n, 3, 1), normal(n // 2 + 1, 3, 2), backend_within()
    left, right = normal(n, 2, 3), normal(n, 2, 4)
    assert error(backend, kernel, X, X, left, right, precision) < TOLERANCE[precision]
    assert error(backend, kernel, X, Y, left, right[: len(Y)], precision) < TOLERANCE[precision]


@pytest.mark.parametrize("d", [1, 7, 17, 60])
@pytest.mark.parametrize("name", ["rbf ard", "matern12 ard", "matern32"])
def test_gradients_with_every_number_of_features(backend_within, precision, name, d):
    kernel, X = KERNELS[name](d), normal(40, d, 1)
    assert error(backend_within(), kernel, X, X, normal(40, 3, 2), normal(40, 3, 3), precision) < TOLERANCE[precision]


@pytest.mark.parametrize("name", ["rbf ard", "matern12", "matern12 ard", "matern32 ard", "matern52 ard", "sum"])
def test_coinciding_points_have_a_right_and_finite_gradient(backend_within, precision, name):
    kernel, X = KERNELS[name](2), normal(15, 2, 1).repeat(3, 1)
    assert error(backend_within(), kernel, X, X, normal(45, 2, 2), normal(45, 2, 3), precision) < TOLERANCE[precision]


@pytest.mark.parametrize("name", ["rbf ard", "periodic"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("by_left", "by_right"), [(1e30, 1e30), (1e-30, 1e-30), (1e-30, 1e30)])
def test_extreme_pairs_neither_overflow_nor_vanish(backend_within, precision, name, dtype, by_left, by_right):
    """The gradient is float64: 1e±60 fits, whatever the dtype of the columns."""
    kernel, X = KERNELS[name](2), normal(30, 2, 1)
    left, right = (by_left * normal(30, 2, 2)).to(DTYPES[dtype]), (by_right * normal(30, 2, 3)).to(DTYPES[dtype])
    assert error(backend_within(), kernel, X, X, left, right, precision) < TOLERANCE[precision]


def test_pairs_of_different_size_keep_their_weight(backend_for, precision):
    kernel, X = KERNELS["rbf ard"](2), normal(30, 2, 1)
    left, right = (
        normal(30, 3, 2) * torch.tensor([1e-20, 1.0, 1e12]),
        normal(30, 3, 3) * torch.tensor([1e20, 1.0, 1e-12]),
    )
    backend = backend_for(kernel, X, DTYPES[precision])
    assert error(backend, kernel, X, X, left, right, precision) < TOLERANCE[precision]


def test_zero_columns_give_a_zero_gradient(backend_for, precision):
    kernel, X = KERNELS["sum"](2), normal(30, 2, 1)
    backend = backend_for(kernel, X, DTYPES[precision])
    zero = torch.zeros(30, 2, dtype=torch.float64)
    assert not gradient_of(backend, kernel, X, X, zero, zero, precision=DTYPES[precision]).any()
    assert not gradient_of(backend, kernel, X, X, zero[:, :0], zero[:, :0], precision=DTYPES[precision]).any()


def test_a_longer_lengthscale_raises_the_sum_of_all_entries(backend_for):
    """The sign, without any reference."""
    kernel, X = KERNELS["matern32"](2), normal(30, 2, 1)
    ones = torch.ones(30, 1, dtype=torch.float64)
    by_lengthscale, by_variance = gradient_of(backend_for(kernel, X), kernel, X, X, ones, ones).tolist()
    assert by_lengthscale > 0
    assert by_variance > 0
