"""Each kernel is the function its docstring says, symmetric and positive semi-definite."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import kernel_matrix
from strategies import KERNELS, columns, features, kernels, points, sizes

from kernelcg.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern,
    Periodic,
    RationalQuadratic,
    distances,
    squared_distances,
)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kernel", "x", "y", "expected"),
    [
        (RBF(2.0), (0.0,), (2.0,), 0.6065306597126334),  # e^(-1/2)
        (RBF([1.0, 2.0], 3.0), (0.0, 0.0), (1.0, 4.0), 0.24625499587169636),  # 3 e^(-5/2)
        (Matern(2.0, 1.5, nu=0.5), (1.0,), (-1.0,), 0.5518191617571635),  # 1.5 / e
        (Matern(1.0, nu=1.5), (0.0,), (1.0,), 0.4833577245965077),  # (1 + √3) e^-√3
        (Matern(1.0, nu=2.5), (0.0,), (1.0,), 0.5239941088318203),  # (1 + √5 + 5/3) e^-√5
        (RationalQuadratic(1.0, 2.0, 0.5), (0.0,), (2.0,), 0.8944271909999159),  # 2 (1 + 4)^(-1/2)
        (RationalQuadratic(1.0, 1.0, 1.0), (0.0,), (2.0,), 1 / 3),  # (1 + 4/2)^(-1)
        (Periodic(1.0, 4.0, 2.0), (0.0,), (1.0,), 0.7357588823428847),  # 2 e^(-2 sin²(π/4)) = 2/e
        (Periodic(0.5, 4.0), (0.0,), (2.0,), 0.00033546262790251185),  # e^(-2 / 0.25) at half a period
        (Periodic([1.0, 2.0], [4.0, 2.0]), (0.0, 0.0), (1.0, 1.0), 0.22313016014842982),  # e^(-1 - 1/2)
        (Linear([2.0, 3.0]), (1.0, -1.0), (5.0, 7.0), -11.0),
        (Constant(0.3), (1.0,), (9.0,), 0.3),
        (RBF(2.0) + Constant(1.0), (0.0,), (2.0,), 1.6065306597126334),
        (4 * RBF(2.0), (0.0,), (2.0,), 2.4261226388505337),
        (RBF(2.0) * Linear(1.0), (1.0,), (3.0,), 1.8195919791379003),
    ],
    ids=repr,
)
def test_values_worked_out_by_hand(kernel, x, y, expected):
    assert kernel(row(*x), row(*y)).item() == pytest.approx(expected, rel=1e-14)
    assert kernel_matrix(kernel, row(*x), row(*y)).item() == pytest.approx(expected, rel=1e-14)


@given(st.data(), sizes, sizes, features)
def test_a_kernel_equals_its_textbook_formula(data, n, m, d):
    kernel, X, Y = data.draw(kernels(d)), data.draw(points(n, d)), data.draw(points(m, d))
    K = kernel(X, Y)
    assert K.dtype == torch.float64
    np.testing.assert_allclose(K.detach().numpy(), kernel_matrix(kernel, X, Y), rtol=1e-12, atol=1e-13)


@given(st.data(), sizes, features)
def test_a_kernel_matrix_is_symmetric_and_positive_semidefinite(data, n, d):
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d))
    K = kernel(X, X).detach().numpy()
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-14 * np.trace(K))
    assert np.linalg.eigvalsh(K).min() >= -1e-13 * max(np.trace(K), 1.0)


@given(st.data(), sizes, features, st.sampled_from((torch.float32, torch.float64)))
def test_the_diagonal_is_that_of_the_matrix(data, n, d, dtype):
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d)).to(dtype)
    diagonal = kernel.diagonal(X)
    assert diagonal.shape == (n,)
    assert diagonal.dtype == dtype
    rtol = 1e-5 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(diagonal.detach().numpy(), np.diag(kernel_matrix(kernel, X, X)), rtol=rtol)


@pytest.mark.parametrize("name", KERNELS)
def test_the_inherited_diagonal_is_right_beyond_one_block(name):
    X = torch.randn(101, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = KERNELS[name](3)
    np.testing.assert_allclose(Kernel.diagonal(kernel, X), np.diag(kernel_matrix(kernel, X, X)), rtol=1e-13)


@given(st.data(), sizes, features)
def test_moving_all_points_changes_stationary_kernels_only(data, n, d):
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d))
    shifted = kernel_matrix(kernel, X + 1.25, X + 1.25)
    unchanged = np.allclose(shifted, kernel_matrix(kernel, X, X), rtol=1e-9)
    assert unchanged or not kernel.is_stationary


@pytest.mark.parametrize("name", KERNELS)
def test_the_claim_of_stationarity(name):
    assert KERNELS[name](2).is_stationary == ("linear" not in name)


@pytest.mark.parametrize("name", KERNELS)
def test_float32_data_give_a_float32_matrix(name):
    X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    kernel = KERNELS[name](3)
    assert kernel(X, X).dtype == torch.float32
    np.testing.assert_allclose(kernel(X, X), kernel_matrix(kernel, X, X), rtol=2e-5, atol=2e-6)
    assert kernel.log_parameters().dtype == torch.float64


@given(st.data(), sizes, sizes, features)
def test_squared_distances_and_their_derivatives(data, n, m, d):
    X, Y, weights = data.draw(points(n, d)), data.draw(points(m, d)), data.draw(columns(n, m)).numpy()
    A, B = X.numpy()[:, None], Y.numpy()[None]
    X.requires_grad_(), Y.requires_grad_()
    squares = squared_distances(X, Y)
    np.testing.assert_allclose(squares.detach(), np.sum((A - B) ** 2, axis=2), rtol=1e-13)
    by_X, by_Y = torch.autograd.grad(squares, (X, Y), torch.from_numpy(weights))
    np.testing.assert_allclose(by_X, np.sum(2 * weights[..., None] * (A - B), axis=1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_Y, np.sum(2 * weights[..., None] * (B - A), axis=0), rtol=1e-10, atol=1e-12)


def test_squared_distances_between_close_points_far_from_the_origin_keep_their_digits():
    X = torch.tensor([[1e6], [1e6 + 2.0**-10]], dtype=torch.float64)
    assert squared_distances(X, X).tolist() == [[0.0, 2.0**-20], [2.0**-20, 0.0]]


def test_distances_are_exactly_0_with_derivative_0_at_0():
    squares = torch.tensor([0.0, 4.0, 1e-200], dtype=torch.float64, requires_grad=True)
    roots = distances(squares)
    assert roots.tolist() == [0.0, 2.0, 1e-100]
    (slopes,) = torch.autograd.grad(roots.sum(), squares)
    assert slopes.tolist() == [0.0, 0.25, pytest.approx(5e99)]


def test_a_slowly_falling_kernel_is_right_at_distances_beyond_1e15():
    kernel = RationalQuadratic(1.0, alpha=0.1)
    far = torch.tensor([[1e28]], dtype=torch.float64)
    found = float(kernel(far, torch.zeros_like(far)))
    assert found == pytest.approx((1 + 1e56 / 0.2) ** -0.1, rel=1e-12)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_whose_squared_distance_overflows_are_uncorrelated(nu, dtype):
    X = torch.tensor([[0.0], [torch.finfo(dtype).max ** 0.75]], dtype=dtype)
    assert Matern(1.0, 2.0, nu=nu)(X, X).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert RBF(1.0, 2.0)(X, X).tolist() == [[2.0, 0.0], [0.0, 2.0]]


MISFITS = [RBF([1.0, 2.0]), Periodic([1.0, 2.0], 1.0), Periodic(1.0, [1.0, 2.0]), Linear([1.0, 2.0])]


@pytest.mark.parametrize("kernel", MISFITS, ids=repr)
def test_a_hyperparameter_for_every_feature_must_fit_the_data(kernel):
    X = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"(lengthscale|period|variance) has 2 entries but X has 3 features"):
        kernel(X, X)


@pytest.mark.parametrize("kernel", MISFITS, ids=repr)
def test_it_must_fit_for_the_diagonal_and_the_spectrum_too(kernel):
    with pytest.raises(ValueError, match="has 2 entries"):
        kernel.diagonal(torch.ones(4, 3, dtype=torch.float64))
    if kernel.is_stationary:
        with pytest.raises(ValueError, match="has 2 entries"):
            kernel.sample_frequencies(3, 5, torch.Generator())


@pytest.mark.parametrize("name", KERNELS)
def test_points_with_different_numbers_of_features_are_refused(name):
    if name != "constant":
        with pytest.raises(ValueError, match="features"):
            KERNELS[name](1)(torch.ones(4, 1), torch.ones(4, 2))
