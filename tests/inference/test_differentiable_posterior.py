"""Mean, covariance and sample paths as functions of x: their values, their gradients, their distribution."""

import warnings

import numpy as np
import pytest
import torch

from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.kernels import RBF, Linear, Matern
from kernelcg.randomness import seeded

KERNELS = {
    "rbf": RBF([0.8, 1.3], 1.2),
    "matern12": Matern(1.1, 0.9, nu=0.5),
    "matern32": Matern([0.7, 2.0], nu=1.5),
    "matern52": Matern(1.0, 2.0, nu=2.5),
    "sum on columns": RBF(0.7).on(0) + Linear(0.3).on([1]),
}


def data(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) + 3
    return X, 40 + 5 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)


def fitted(kernel=KERNELS["matern52"], mean="constant", method="direct"):
    return GPRegressor(kernel, noise=0.05, mean=mean, method=method, optimizer=None, rtol=1e-10).fit(*data())


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_values_are_those_of_predict(kernel, mean, method):
    model = fitted(kernel, mean, method)
    Z = data()[0][:7] + 0.1
    X = torch.from_numpy(Z)
    found = model.differentiable()
    expected, std = model.predict(Z, return_std=True, include_noise=False)
    np.testing.assert_allclose(found.mean(X), expected, rtol=1e-8)
    np.testing.assert_allclose(found.variance(X), std**2, rtol=2e-2, atol=1e-6)
    _, C = model.predict(Z, return_cov=True)
    np.testing.assert_allclose(found.covariance(X, noisy=True), C, rtol=1e-5, atol=1e-6)


def test_batches_are_sets_of_points():
    found, X = fitted().differentiable(), torch.from_numpy(data()[0][:6]).reshape(3, 2, 2)
    C = found.covariance(X)
    assert C.shape == (3, 2, 2)
    for batch, expected in zip(X, C, strict=True):
        torch.testing.assert_close(found.covariance(batch), expected)
    assert found.mean(X).shape == found.variance(X).shape == (3, 2)


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_gradients_are_those_of_finite_differences(kernel, mean):
    found, h = fitted(kernel, mean).differentiable(), 1e-5
    smooth = kernel.is_stationary and kernel is not KERNELS["matern12"]  # its paths are nowhere differentiable
    paths = found.paths(2, seeded(0)) if smooth else None
    functions = [
        lambda X: found.mean(X).sum(),
        lambda X: found.variance(X).sqrt().sum(),
        lambda X: found.covariance(X)[0, 1],
        *([] if paths is None else [lambda X: paths(X).sin().sum()]),
    ]
    at = torch.from_numpy(data()[0][:2] + 0.137)
    for function in functions:
        X = at.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(X), X)
        for i in range(2):
            for j in range(2):
                step = torch.zeros_like(at)
                step[i, j] = h
                expected = (function(at + step) - function(at - step)) / (2 * h)
                assert gradient[i, j].item() == pytest.approx(expected.item(), rel=2e-4, abs=1e-5)


def test_paths_have_the_distribution_of_the_posterior():
    """Means within 4 standard errors; variances within what random frequencies and 4000 draws allow."""
    found = fitted(RBF([0.8, 1.3])).differentiable()
    X = torch.from_numpy(data()[0][:6] + 0.4)
    paths = found.paths(4000, seeded(3))
    drawn = paths(X)
    C = found.covariance(X)
    error = (drawn.mean(1) - found.mean(X)) / (C.diagonal() / 4000).sqrt()
    assert error.abs().max() < 4
    torch.testing.assert_close(drawn.var(1), C.diagonal(), rtol=0.15, atol=0.02 * float(C.diagonal().max()))
    torch.testing.assert_close(paths(X), drawn)  # the same functions again


def test_misuse_is_named():
    X, y = data()
    with pytest.raises(ValueError, match="one output"):
        GPRegressor(optimizer=None).fit(X, np.stack([y, y + X[:, 0]], 1)).differentiable()
    with pytest.raises(ValueError, match=r"shape \(..., t, 2\)"):
        fitted().differentiable().mean(torch.zeros(3, 5))


def test_log_densities_are_those_of_the_normal_distribution():
    model = fitted()
    X, y = data()
    mean, std = model.predict(X[:5], return_std=True)
    expected = -0.5 * ((y[:5] - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(model.log_predictive_density(X[:5], y[:5]), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="shape"):
        model.log_predictive_density(X[:5], y[:4])


def test_a_tolerance_that_rounding_does_not_reach_is_no_failure():
    X = np.linspace(0, 3, 12)[:, None]
    model = GPRegressor(RBF(1.0), noise=0.1, rtol=0.0, optimizer=None, method="iterative")
    model.fit(X, np.sin(X[:, 0]))
    new = torch.tensor([[0.3], [1.7]], dtype=torch.float64)
    _, covariance = model.predict(new.numpy(), return_cov=True, include_noise=False)
    np.testing.assert_allclose(model.differentiable().covariance(new).numpy(), covariance, rtol=1e-8, atol=1e-12)


def test_covariances_are_as_exact_as_those_of_predict_whatever_the_tolerance():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(64, 2)).astype(float)  # many rows twice
    model = GPRegressor(
        Matern([2.0, 4.0], 0.4), noise=1e-6, rtol=0.01, optimizer=None, method="iterative", preconditioner="jacobi"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a large tolerance may leave the mean uncertain
        model.fit(X, np.sin(X[:, 0]))
    new = X[:3] + np.array([[0.0], [0.1], [0.3]])
    _, covariance = model.predict(new, return_cov=True, include_noise=False)
    size = np.sqrt(np.diag(covariance))
    found = model.differentiable().covariance(torch.from_numpy(new)).numpy()
    np.testing.assert_allclose(found / np.outer(size, size), covariance / np.outer(size, size), atol=0.02)
