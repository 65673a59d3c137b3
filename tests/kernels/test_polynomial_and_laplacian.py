"""Polynomial, cosine, Laplacian kernels and powers, against NumPy formulas of their own."""

import math

import numpy as np
import pytest
import reference
import torch
from bound import block_of, gradient_of, local_factors_of, product_of
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    TOLERANCE,
    array,
    block_error,
    gradient_error,
    kernel_derivatives,
    kernel_matrix,
    local_factors_error,
    log_parameters,
    product_error,
)
from strategies import DTYPES, columns, features, normal, per_feature, points, positive, sizes

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF, Cosine, Kernel, Laplacian, Linear, Matern, Polynomial, Power, Product, Sum
from kernelcg.kernels.laplacian import _AbsoluteDistances
from kernelcg.randomness import seeded


def _polynomial(X, Y, gamma, coef0, degree):
    return (gamma * np.einsum("ir,jr->ij", X, Y) + coef0) ** degree


def _laplacian(X, Y, lengthscale, variance):
    return variance * np.exp(-np.sum(np.abs(X[:, None] - Y[None]) / lengthscale, axis=2))


def _cosine(X, Y, variance):
    lengths = np.multiply.outer(np.sqrt(np.sum(X**2, axis=1)), np.sqrt(np.sum(Y**2, axis=1)))
    return variance * np.divide(np.einsum("ir,jr->ij", X, Y), lengths, out=np.zeros_like(lengths), where=lengths > 0)


reference.FORMULAS |= {
    "Polynomial": _polynomial,
    "Laplacian": _laplacian,
    "Cosine": _cosine,
    "Power": lambda X, Y, kernel, exponent: np.prod([kernel] * exponent, axis=0),
}

THREE = {
    "polynomial": Polynomial(0.4),
    "polynomial, homogeneous": Polynomial(0.7, coef0=0.0, degree=2),
    "polynomial, linear": Polynomial(0.7, coef0=0.5, degree=1),
    "polynomial, high degree": Polynomial(0.2, coef0=1.0, degree=5),
    "laplacian": Laplacian(2.0, 0.7),
    "laplacian ard": Laplacian([1.0, 2.0, 4.0], 1.3),
    "cosine": Cosine(1.7),
    "power": Power(Linear(0.3) + RBF(2.0), 3),
    "sum": Cosine(0.5) + Laplacian(3.0),
    "product": Laplacian(3.0) * Polynomial(0.2, degree=2),
}
"""Kernels for data with three features of unit variance."""


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def drawn_kernels(d):
    whole = st.integers(1, 4)
    return st.one_of(
        st.builds(Polynomial, positive, st.one_of(st.just(0.0), positive), whole),
        st.builds(Laplacian, per_feature(d), positive),
        st.builds(Cosine, positive),
        st.builds(Power, st.builds(Matern, per_feature(d), positive), whole),
    )


# formulas


@pytest.mark.parametrize(
    ("kernel", "x", "y", "expected"),
    [
        (Polynomial(0.5, 1.0, 2), (1.0, 2.0), (3.0, -1.0), 2.25),  # (0.5 · 1 + 1)²
        (Polynomial(2.0), (1.0,), (-1.0,), -1.0),  # (1 − 2)³
        (Polynomial(2.0, 0.0, 1), (3.0,), (4.0,), 24.0),
        (Laplacian(2.0), (0.0, 0.0), (1.0, -3.0), 0.1353352832366127),  # e^(−4/2)
        (Laplacian([1.0, 2.0], 3.0), (0.0, 0.0), (1.0, 4.0), 0.14936120510359183),  # 3 e^(−1 − 2)
        (Cosine(), (3.0, 4.0), (4.0, 3.0), 0.96),
        (Cosine(2.0), (1.0, 0.0), (-1e-200, 0.0), -2.0),
        (Cosine(2.0), (0.0, 0.0), (1.0, 0.0), 0.0),
        (Power(Linear(2.0), 3), (1.0,), (-2.0,), -64.0),
    ],
    ids=repr,
)
def test_values_worked_out_by_hand(kernel, x, y, expected):
    assert kernel(row(*x), row(*y)).item() == pytest.approx(expected, rel=1e-14)


@given(st.data(), sizes, sizes, features)
def test_a_kernel_equals_its_formula(data, n, m, d):
    kernel, X, Y = data.draw(drawn_kernels(d)), data.draw(points(n, d)), data.draw(points(m, d))
    truth = kernel_matrix(kernel, X, Y)
    np.testing.assert_allclose(kernel(X, Y), truth, rtol=1e-12, atol=1e-13 * max(1.0, np.abs(truth).max()))


@given(st.data(), sizes, features)
def test_a_kernel_matrix_is_symmetric_and_positive_semidefinite(data, n, d):
    kernel, X = data.draw(drawn_kernels(d)), data.draw(points(n, d))
    K = array(kernel(X, X))
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-14 * np.trace(K))
    assert np.linalg.eigvalsh(K).min() >= -1e-13 * np.trace(K)


@given(st.data(), sizes, features, st.sampled_from(list(DTYPES.values())))
def test_the_diagonal_is_that_of_the_matrix(data, n, d, dtype):
    kernel, X = data.draw(drawn_kernels(d)), data.draw(points(n, d)).to(dtype)
    diagonal = kernel.diagonal(X)
    assert diagonal.shape == (n,)
    assert diagonal.dtype == dtype
    rtol = 1e-5 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(diagonal, np.diag(kernel_matrix(kernel, X, X)), rtol=rtol)
    np.testing.assert_allclose(diagonal, Kernel.diagonal(kernel, X), rtol=rtol)


@pytest.mark.parametrize("name", THREE)
def test_float32_data_give_a_float32_matrix(name):
    X = normal(20, 3).float()
    assert THREE[name](X, X).dtype == torch.float32
    assert block_error(THREE[name](X, X), kernel_matrix(THREE[name], X, X)) < TOLERANCE["float32"]


@pytest.mark.parametrize("name", THREE)
def test_the_claim_of_stationarity(name):
    kernel, X = THREE[name], normal(8, 3)
    unchanged = np.allclose(kernel_matrix(kernel, X + 1.25, X + 1.25), kernel_matrix(kernel, X, X), rtol=1e-9)
    assert kernel.is_stationary == unchanged
    assert Power(kernel).is_stationary == kernel.is_stationary
    assert Power(kernel).rounds_well == kernel.rounds_well


def test_a_laplacian_of_one_feature_is_a_matern_kernel():
    X, Y = normal(30, 1, 1), normal(20, 1, 2)
    torch.testing.assert_close(Laplacian(0.7, 1.3)(X, Y), Matern(0.7, 1.3, nu=0.5)(X, Y), rtol=1e-13, atol=0)


def test_a_laplacian_keeps_the_digits_of_close_points_far_from_the_origin():
    X = torch.tensor([[1e6], [1e6 + 2.0**-10]], dtype=torch.float64)
    assert Laplacian(1e-3)(X, X)[0, 1].item() == pytest.approx(math.exp(-1000 * 2.0**-10), rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_points_infinitely_many_lengthscales_apart_are_uncorrelated_and_do_not_matter(dtype):
    largest = torch.finfo(dtype).max
    X = torch.tensor([[0.0, 0.0], [largest / 2, largest / 2]], dtype=dtype)
    kernel = Laplacian([0.1, 0.1], 2.0)
    theta = kernel.log_parameters().requires_grad_()
    K = kernel.with_log_parameters(theta)(X, X)
    assert K.tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert torch.autograd.grad(K.sum(), theta)[0].tolist() == [0.0, 0.0, 4.0]


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_a_cosine_does_not_depend_on_the_lengths(size):
    X, Y = normal(10, 3, 1), normal(8, 3, 2)
    np.testing.assert_allclose(Cosine(1.3)(X * size, Y), kernel_matrix(Cosine(1.3), X, Y), rtol=1e-13, atol=1e-15)


def test_a_row_of_zeros_has_cosine_0_with_all_and_with_itself():
    X = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(Cosine(2.0)(X, X), torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    assert Cosine(2.0).diagonal(X).tolist() == [0.0, 2.0]


# gradients


@pytest.mark.parametrize("name", THREE)
def test_the_complex_step_agrees_with_finite_differences(name):
    kernel, X, Y, h = THREE[name], array(normal(5, 3, 1)), array(normal(4, 3, 2)), 1e-6
    theta = log_parameters(kernel)
    for p, derivative in enumerate(kernel_derivatives(kernel, X, Y)):
        step = h * np.eye(len(theta))[p]
        difference = kernel_matrix(kernel, X, Y, theta + step) - kernel_matrix(kernel, X, Y, theta - step)
        np.testing.assert_allclose(derivative, difference / (2 * h), rtol=1e-6, atol=1e-8)


@given(st.data(), sizes, sizes, features, st.integers(1, 3), st.sampled_from(list(DTYPES)))
def test_gradients_equal_the_derivative_of_the_formula(data, n, m, d, k, precision):
    kernel, X, Y = data.draw(drawn_kernels(d)), data.draw(points(n, d)), data.draw(points(m, d))
    left, right = data.draw(columns(n, k)), data.draw(columns(m, k))
    gradient = gradient_of(Tiles(), kernel, X, Y, left, right, precision=DTYPES[precision])
    assert gradient_error(gradient, kernel, X, Y, left, right) < TOLERANCE[precision]


@pytest.mark.parametrize("name", THREE)
def test_a_gradient_agrees_with_finite_differences_of_products(name):
    """Through the backend on both sides: tiles, symmetry and scales included."""
    kernel, X, left, right, h = THREE[name], normal(600, 3, 1), normal(600, 2, 2), normal(600, 2, 3), 1e-5
    theta = kernel.log_parameters()

    def value(shifted):
        return (left * product_of(Tiles(), kernel.with_log_parameters(shifted), X, X, right)).sum()

    differences = [value(theta + step) - value(theta - step) for step in h * torch.eye(len(theta), dtype=torch.float64)]
    gradient = gradient_of(Tiles(), kernel, X, X, left, right)
    size = (left.abs() * product_of(Tiles(), kernel, X, X, right.abs()).abs()).sum().item()
    np.testing.assert_allclose(gradient, torch.stack(differences) / (2 * h), rtol=1e-6, atol=1e-8 * size)


@pytest.mark.parametrize("name", ["laplacian", "laplacian ard", "sum", "product"])
@pytest.mark.parametrize("precision", DTYPES)
def test_coinciding_points_have_a_right_and_finite_gradient(name, precision):
    kernel, X = THREE[name], normal(15, 3, 1).repeat(3, 1)
    left, right = normal(45, 2, 2), normal(45, 2, 3)
    gradient = gradient_of(Tiles(), kernel, X, X, left, right, precision=DTYPES[precision])
    assert gradient_error(gradient, kernel, X, X, left, right) < TOLERANCE[precision]


@given(st.data(), sizes, sizes, features)
def test_absolute_distances_and_all_their_derivatives(data, n, m, d):
    X, Y, weights = data.draw(points(n, d)), data.draw(points(m, d)), data.draw(columns(n, m)).numpy()
    rates = torch.linspace(0.5, 2.0, d, dtype=torch.float64)
    A, c = array(X)[:, None] - array(Y)[None], array(rates)
    total = _AbsoluteDistances.apply(X.requires_grad_(), Y.requires_grad_(), rates.requires_grad_())
    np.testing.assert_allclose(total.detach(), np.sum(c * np.abs(A), axis=2), rtol=1e-13)
    by_X, by_Y, by_rates = torch.autograd.grad(total, (X, Y, rates), torch.from_numpy(weights))
    pull = weights[..., None] * c * np.sign(A)
    np.testing.assert_allclose(by_X, pull.sum(1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_Y, -pull.sum(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_rates, np.sum(weights[..., None] * np.abs(A), axis=(0, 1)), rtol=1e-10, atol=1e-11)


# backends


@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("precision", DTYPES)
def test_every_backend_knows_them(backend_for, name, precision):
    kernel, X, Y = THREE[name], normal(70, 3, 1), normal(50, 3, 2)
    V, backend = normal(70, 2, 3), backend_for(THREE[name], normal(70, 3, 1), DTYPES[precision])
    K = kernel_matrix(kernel, X, X)
    assert product_error(product_of(backend, kernel, X, X, V, precision=DTYPES[precision]), K, V) < TOLERANCE[precision]
    block = block_of(backend, kernel, Y, X, precision=DTYPES[precision])
    assert block_error(block, kernel_matrix(kernel, Y, X)) < TOLERANCE[precision]


@pytest.mark.parametrize("name", THREE)
def test_small_tiles_give_the_same(name):
    kernel, X, V, tiles = THREE[name], normal(150, 3, 1), normal(150, 2, 2), Tiles("200kB")
    K = kernel_matrix(kernel, X, X)
    assert product_error(product_of(tiles, kernel, X, X, V), K, V) < TOLERANCE["float64"]
    assert gradient_error(gradient_of(tiles, kernel, X, X, V, V), kernel, X, X, V, V) < TOLERANCE["float64"]


@pytest.mark.parametrize("name", THREE)
def test_many_small_neighbourhoods_at_once(name):
    X, D = normal(30, 3, 1), torch.full((30,), 0.5, dtype=torch.float64)
    neighbours = (torch.arange(30)[:, None] + torch.arange(1, 5)) % 30
    rows = local_factors_of(Tiles(), THREE[name], X, neighbours, None, None, D)
    assert local_factors_error(rows, THREE[name], X, neighbours, None, None, D) < 1e-12


def test_coordinates_are_close_where_points_are_correlated():
    X = normal(20, 3)
    torch.testing.assert_close(Laplacian([1.0, 2.0, 4.0]).coordinates(X), X / torch.tensor([1.0, 2.0, 4.0]).double())
    torch.testing.assert_close(Power(Laplacian(2.0), 3).coordinates(X), X / 2)
    C = array(Cosine().coordinates(X))
    np.testing.assert_allclose(C @ C.T, kernel_matrix(Cosine(), X, X), rtol=1e-13, atol=1e-15)


# spectrum

COUNT = 40_000


@pytest.mark.parametrize(
    "kernel", [Laplacian(0.8), Laplacian([0.5, 1.0, 3.0], 2.0), Power(RBF(1.0, 2.0), 3), Laplacian(2.0) * RBF(1.0)]
)
def test_cosines_average_to_the_correlation(kernel):
    frequencies = kernel.sample_frequencies(3, COUNT, seeded(11))
    assert frequencies.shape == (COUNT, 3)
    assert torch.equal(frequencies, kernel.sample_frequencies(3, COUNT, seeded(11)))
    lags, origin = 0.4 * np.random.default_rng(5).standard_normal((6, 3)), np.zeros((1, 3))
    correlation = (kernel_matrix(kernel, lags, origin) / kernel_matrix(kernel, origin, origin))[:, 0]
    for wave, truth in ((np.cos, correlation), (np.sin, np.zeros(6))):
        values = wave(array(frequencies) @ lags.T)
        assert np.all(np.abs(values.mean(0) - truth) < 4 * values.std(0) / np.sqrt(COUNT))


@pytest.mark.parametrize("kernel", [Polynomial(1.0), Cosine(), Power(Linear(1.0), 2)], ids=repr)
def test_kernels_of_inner_products_have_no_spectrum(kernel):
    with pytest.raises(TypeError, match="has no spectral density"):
        kernel.sample_frequencies(3, 10, seeded(0))


# input


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, math.inf, [2], [2, 3]])
def test_a_degree_is_a_whole_number(value):
    with pytest.raises(ValueError, match=r"Polynomial\.degree"):
        Polynomial(1.0, degree=value)
    with pytest.raises(ValueError, match=r"Power\.exponent"):
        Power(RBF(1.0), value)


@pytest.mark.parametrize("value", [-1e-3, math.nan, math.inf, [1.0]])
def test_a_negative_offset_is_refused(value):
    with pytest.raises(ValueError, match=r"Polynomial\.coef0"):
        Polynomial(1.0, value)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: Polynomial(1.0, degree=value), "Polynomial.degree"),
        (lambda value: Polynomial(1.0, coef0=value), "Polynomial.coef0"),
        (lambda value: Power(RBF(1.0), value), "Power.exponent"),
        (lambda value: Power(value, 2), "Power.kernel"),
        (Polynomial, "Polynomial.gamma"),
        (Laplacian, "Laplacian.lengthscale"),
        (lambda value: Laplacian(1.0, value), "Laplacian.variance"),
        (Cosine, "Cosine.variance"),
    ],
)
@pytest.mark.parametrize("value", ["3", None, "long"])
def test_what_is_no_number_or_kernel_is_refused_by_name(make, name, value):
    with pytest.raises(TypeError, match=name):
        make(value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("make", [Polynomial, Laplacian, Cosine, lambda value: Laplacian(1.0, value)])
def test_hyperparameters_are_positive(make, value):
    with pytest.raises(ValueError, match="positive"):
        make(value)


@pytest.mark.parametrize("make", [Polynomial, Cosine, lambda value: Laplacian(1.0, value)])
def test_a_vector_is_refused_where_there_is_one_number_for_all_features(make):
    with pytest.raises(ValueError, match="one number"):
        make([1.0, 2.0])


@pytest.mark.parametrize("value", [2, 2.0, np.int64(2), np.float32(2), torch.tensor(2), torch.tensor(2.0)])
def test_numbers_that_are_not_learned_become_plain_numbers(value):
    kernel = Polynomial(1.0, value, value)
    assert (type(kernel.coef0), kernel.coef0, type(kernel.degree), kernel.degree) == (float, 2.0, int, 2)
    assert kernel.parameter_names() == ["gamma"]
    assert Power(RBF(1.0), value).exponent == 2


def test_lengthscales_must_fit_the_data():
    kernel, X = Laplacian([1.0, 2.0]), torch.ones(4, 3, dtype=torch.float64)
    for use in (lambda: kernel(X, X), lambda: kernel.diagonal(X), lambda: kernel.coordinates(X)):
        with pytest.raises(ValueError, match="lengthscale has 2 entries but X has 3 features"):
            use()
    with pytest.raises(ValueError, match="lengthscale has 2 entries"):
        kernel.sample_frequencies(3, 5, seeded(0))


@pytest.mark.parametrize("name", THREE)
def test_points_with_different_numbers_of_features_are_refused(name):
    with pytest.raises(ValueError, match="features"):
        THREE[name](torch.ones(4, 3), torch.ones(4, 2))


def test_they_are_printed_as_they_are_made():
    kernel = Sum(Product(Polynomial(0.5), Cosine()), Power(Laplacian([1.0, 2.0]), 2))
    assert repr(kernel) == (
        "Polynomial(gamma=0.5, coef0=1.0, degree=3) * Cosine(variance=1) "
        "+ Power(kernel=Laplacian(lengthscale=[1, 2], variance=1), exponent=2)"
    )
