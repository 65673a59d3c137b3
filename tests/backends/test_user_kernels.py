"""A user's own kernel is one class with one formula, and runs on every backend, gradient included."""

import numpy as np
import pytest
import reference
import torch
from bound import block_of, gradient_of, product_of
from reference import TOLERANCE, block_error, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, normal
from torch import Tensor

from kernelcg.kernels import RBF, Constant, Kernel, Matern, Product, Sum, squared_distances


class Cauchy(Kernel):
    """σ² / (1 + |x − y|² / w²), without any of the helpers."""

    width: Tensor
    variance: Tensor

    def covariance(self, X, Y):
        return self.variance / (1 + squared_distances(X / self.width, Y / self.width))


class Gibbs(Kernel):
    """Nonstationary: exp(−a |x|² − a |y|²) + p(x) p(y) with a fixed power p and annotations in quotes."""

    rate: "Tensor"
    power: int = 2

    def covariance(self, X, Y):
        a, b = X.square().sum(1, keepdim=True), Y.square().sum(1, keepdim=True)
        return torch.exp(-self.rate * a) @ torch.exp(-self.rate * b).T + a**self.power @ (b**self.power).T


class Overlap(Kernel):
    """No hyperparameters at all: (1 + xᵀy)²."""

    def covariance(self, X, Y):
        return (1 + X @ Y.T) ** 2


class Triangle(Kernel):
    """A hyperparameter with a name that a method of the base class might have: Π_r max(0, 1 − |x_r − y_r| / size)."""

    size: Tensor

    def covariance(self, X, Y):
        return (1 - (X[:, None] - Y).abs() / self.size).clamp_min(0).prod(2)


class HalfRBF(RBF):
    """A subclass of a fused kernel with another formula."""

    def profile(self, s):
        return torch.exp(-0.25 * s)


class WeightedSum(Sum):
    """A subclass of a sum with another formula."""

    def covariance(self, X, Y):
        return 2 * self.left.covariance(X, Y) + self.right.covariance(X, Y)

    def diagonal(self, X):
        return 2 * self.left.diagonal(X) + self.right.diagonal(X)


class SquaredConstant(Constant):
    """A subclass of the constant kernel with another formula."""

    def covariance(self, X, Y):
        return self.variance**2 * X.new_ones(len(X), len(Y))

    def diagonal(self, X):
        return self.variance.to(X).square().expand(len(X))


def _gibbs(X, Y, rate, power):
    a, b = np.sum(X**2, 1), np.sum(Y**2, 1)
    return np.exp(-rate * np.add.outer(a, b)) + np.multiply.outer(a**power, b**power)


reference.FORMULAS |= {
    "Cauchy": lambda X, Y, width, variance: variance / (1 + reference.scaled_squares(X, Y, width)),
    "Gibbs": _gibbs,
    "Triangle": lambda X, Y, size: np.prod(np.maximum(0, 1 - np.abs(X[:, None] - Y) / size), 2),
    "Overlap": lambda X, Y: (1 + X @ Y.T) ** 2,
    "HalfRBF": lambda X, Y, lengthscale, variance: variance * np.exp(-reference.scaled_squares(X, Y, lengthscale) / 4),
    "WeightedSum": lambda X, Y, left, right: 2 * left + right,
    "SquaredConstant": lambda X, Y, variance: np.full((len(X), len(Y)), variance**2),
}

OWN = {
    "cauchy": Cauchy(1.3, 0.7),
    "cauchy ard": Cauchy([0.5, 1.0, 3.0], 0.7),
    "nonstationary": Gibbs(0.3),
    "nonstationary with a fixed field": Gibbs(0.3, power=1),
    "without hyperparameters": Overlap(),
    "with a size": Triangle(5.0),
    "in a sum": Cauchy(1.3, 0.7) + Matern(1.0, nu=1.5),
    "in a product": 3.0 * Cauchy(1.3, 0.7) * RBF([1.0, 2.0, 3.0]),
    "subclass of RBF": HalfRBF(0.9, 1.2),
    "subclass of RBF in a multiple": 2.0 * HalfRBF(0.9, 1.2),
    "subclass of Sum": WeightedSum(RBF(1.0), Matern(2.0)),
    "factor of a subclass of Constant": Product(RBF(1.0), SquaredConstant(1.5)),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("backend_for", ["tiles", "dense", "native"], indirect=True)
def test_an_own_kernel_runs_on_every_backend(backend_for, precision, name):
    kernel, X, Y = OWN[name], normal(70, 3, 1), normal(40, 3, 2)
    backend = backend_for(kernel, X, DTYPES[precision])
    for other in (X, Y):
        K, left, right = kernel_matrix(kernel, X, other), normal(70, 2, 3), normal(len(other), 2, 4)
        product = product_of(backend, kernel, X, other, right, precision=DTYPES[precision])
        assert product_error(product, K, right) < TOLERANCE[precision]
        assert block_error(block_of(backend, kernel, X, other, precision=DTYPES[precision]), K) < TOLERANCE[precision]
        gradient = gradient_of(backend, kernel, X, other, left, right, precision=DTYPES[precision])
        assert gradient_error(gradient, kernel, X, other, left, right) < TOLERANCE[precision]


@pytest.mark.parametrize("name", OWN)
def test_an_own_kernel_has_the_inherited_methods(name):
    kernel, X = OWN[name], normal(70, 3, 1)
    np.testing.assert_allclose(kernel.diagonal(X), np.diag(kernel_matrix(kernel, X, X)), rtol=1e-13)
    np.testing.assert_allclose(kernel.log_parameters(), reference.log_parameters(kernel))
    assert len(kernel.parameter_names()) == len(kernel.log_parameters())
    shifted = kernel.with_log_parameters(kernel.log_parameters() + 0.1)
    truth = kernel_matrix(kernel, X, X, reference.log_parameters(kernel) + 0.1)
    np.testing.assert_allclose(shifted(X, X), truth, rtol=1e-11)


def test_an_own_kernel_is_checked_and_printed_like_any_other():
    assert repr(Gibbs(0.5)) == "Gibbs(rate=0.5, power=2)"
    with pytest.raises(ValueError, match=r"Cauchy\.width"):
        Cauchy(-1.0, 1.0)
    with pytest.raises(TypeError, match="Gibbs has no spectral density"):
        Gibbs(0.5).sample_frequencies(2, 5, torch.Generator())
    with pytest.raises(TypeError, match="abstract"):
        type("Nameless", (Kernel,), {})()
