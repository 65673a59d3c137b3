"""Derivatives in the log hyperparameters, against the complex step applied to the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import gradient_error, kernel_derivatives, kernel_matrix, log_parameters
from strategies import KERNELS, columns, features, kernels, points, sizes

from kernelcg.kernels import Matern, Periodic


def autograd(kernel, X, Y, left, right):
    theta = kernel.log_parameters().detach().requires_grad_()
    value = (left * (kernel.with_log_parameters(theta)(X, Y) @ right)).sum()
    return torch.autograd.grad(value, theta)[0]


@pytest.mark.parametrize("name", KERNELS)
def test_the_complex_step_agrees_with_finite_differences(name):
    """The truth of all gradient tests, checked in the one way that shares nothing with it but the formula."""
    generator, h = np.random.default_rng(0), 1e-6
    kernel, X, Y = KERNELS[name](3), generator.standard_normal((5, 3)), generator.standard_normal((4, 3))
    theta = log_parameters(kernel)
    for p, derivative in enumerate(kernel_derivatives(kernel, X, Y)):
        step = h * np.eye(len(theta))[p]
        difference = kernel_matrix(kernel, X, Y, theta + step) - kernel_matrix(kernel, X, Y, theta - step)
        np.testing.assert_allclose(derivative, difference / (2 * h), rtol=1e-6, atol=1e-8)


@given(st.data(), sizes, sizes, features, st.integers(1, 3))
def test_autograd_equals_the_derivative_of_the_formula(data, n, m, d, k):
    kernel, X, Y = data.draw(kernels(d)), data.draw(points(n, d)), data.draw(points(m, d))
    left, right = data.draw(columns(n, k)), data.draw(columns(m, k))
    assert gradient_error(autograd(kernel, X, Y, left, right), kernel, X, Y, left, right) < 1e-11


@given(st.data(), sizes, features)
def test_coinciding_points_have_the_right_derivative(data, n, d):
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d)).repeat(2, 1)
    left, right = data.draw(columns(2 * n, 1)), data.draw(columns(2 * n, 1))
    assert gradient_error(autograd(kernel, X, X, left, right), kernel, X, X, left, right) < 1e-11


@pytest.mark.parametrize("x", [0.2, 0.6, 2.0, 3.0, 1.4e3])
def test_periodic_where_points_are_whole_periods(x):
    """x / p is an integer up to rounding: which side of it a formula sees must not matter to its derivative."""
    kernel = Periodic(1.0, 0.2, 1.0)
    X, Y, one = torch.tensor([[0.1257]]).double(), torch.tensor([[x]]).double(), torch.ones(1, 1).double()
    assert gradient_error(autograd(kernel, X, Y, one, one), kernel, X, Y, one, one) < 1e-11


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_at_a_single_point(nu):
    """k(x, x) = σ²: no derivative in log l, σ² in log σ²."""
    X = torch.ones(1, 2, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert autograd(Matern([0.7, 1.1], 1.8, nu=nu), X, X, one, one).tolist() == [0.0, 0.0, 1.8]


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_nearly_coinciding_points_have_a_finite_right_derivative(nu):
    X = torch.tensor([[1.0], [1.0 + 1e-12], [1.0 + 1e-9], [1.3]], dtype=torch.float64)
    kernel, left = Matern([0.7], 1.8, nu=nu), torch.eye(4, dtype=torch.float64)
    assert gradient_error(autograd(kernel, X, X, left, left), kernel, X, X, left, left) < 1e-11


def test_a_longer_lengthscale_means_more_correlation_and_variance_scales():
    """The signs, without any reference."""
    X, Y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    for nu in (0.5, 1.5, 2.5):
        kernel = Matern(1.0, 2.0, nu=nu)
        by_lengthscale, by_variance = autograd(kernel, X, Y, one, one).tolist()
        assert by_lengthscale > 0
        assert by_variance == pytest.approx(kernel(X, Y).item())
