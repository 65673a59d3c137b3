"""Gradients of Σ_j left_jᵀ K right_j + Σ_ij W_ij K_ij for a dense symmetric W."""

import numpy as np
import pytest
import torch
from bound import gradient_of

from kernelcg.backends import Tiles, default
from kernelcg.kernels import RBF, Constant, Linear, Matern, RationalQuadratic

KERNELS = {
    "rbf": RBF([0.7, 1.3, 2.0], 1.7),
    "one lengthscale": RBF(0.9, 0.4),
    "matern12": Matern([0.7, 1.3, 2.0], 1.7, nu=0.5),
    "matern32": Matern([0.7, 1.3, 2.0], 1.7),
    "matern52": Matern(1.1, 1.7, nu=2.5),
    "rational quadratic": RationalQuadratic([0.7, 1.3, 2.0]),
    "sum": RBF(0.8) + Linear(0.3),
    "product": Constant(2.5) * Matern([0.7, 1.3, 2.0]),
}


def problem(n, columns, seed=0):
    rng = np.random.default_rng(seed)
    X, left, right, W = (rng.normal(size=shape) for shape in ((n, 3), (n, columns), (n, columns), (n, n)))
    return (torch.from_numpy(value) for value in (X, left, right, W + W.T))


def by_differences(kernel, X, left, right, W, step=1e-6):
    theta, result = kernel.log_parameters(), []

    def total(values):
        K = kernel.with_log_parameters(values)(X, X)
        return float((left * (K @ right)).sum() + (W * K).sum())

    for i in range(len(theta)):
        change = torch.zeros_like(theta)
        change[i] = step
        result.append((total(theta + change) - total(theta - change)) / (2 * step))
    return np.array(result)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("n", [1, 7, 23, 130])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("backend", [default(), Tiles()], ids=["default", "tiles"])
def test_against_differences(backend, name, n, columns):
    X, left, right, W = problem(n, columns)
    gradient = gradient_of(backend, KERNELS[name], X, X, left, right, weights=W).numpy()
    truth = by_differences(KERNELS[name], X, left, right, W)
    assert np.allclose(gradient, truth, rtol=1e-6, atol=1e-6 * max(np.abs(truth).max(), 1.0))


def test_small_pairs_do_not_drown_the_weights():
    X, left, right, W = problem(40, 2)
    kernel = KERNELS["rbf"]
    alone = gradient_of(default(), kernel, X, X, 0 * left, right, weights=W)
    tiny = gradient_of(default(), kernel, X, X, 1e-200 * left, right, weights=W)
    assert np.allclose(alone.numpy(), tiny.numpy(), rtol=1e-12)


def test_a_stored_matrix_passes_them_on():
    X, left, right, W = problem(30, 2)
    kernel = KERNELS["matern32"]
    K = default().bind(kernel, X)
    stored = K.stored()
    assert stored.is_stored
    assert torch.equal(stored.gradient(left, right, weights=W), K.gradient(left, right, weights=W))


@pytest.mark.parametrize("backend", [default(), Tiles()], ids=["default", "tiles"])
def test_misuse_is_named(backend):
    X, left, right, W = problem(10, 1)
    kernel = KERNELS["rbf"]
    with pytest.raises(ValueError, match="leave columns out"):
        backend.bind(kernel, X).gradient(left, right[:4], columns=slice(4), weights=W)
    with pytest.raises(ValueError, match="weights must have shape"):
        gradient_of(backend, kernel, X, X, left, right, weights=W[:5])
    with pytest.raises(TypeError, match="weights must be float64"):
        gradient_of(backend, kernel, X, X, left, right, weights=W.float())
