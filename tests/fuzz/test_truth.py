"""The truths of the fuzz against formulas that share nothing with them: intervals of python-flint, float64 NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint", reason="python-flint is not installed")
sys.path.insert(0, str(Path(__file__).parents[2]))

from flint import arb_mat, ctx
from fuzz import high_precision
from fuzz.gaussian_truth import Process
from fuzz.kernel_truth import described, entries

from kernelcg import kernels

KERNELS = [
    kernels.RBF([0.5, 2.0], 1.5),
    kernels.Matern(0.7, nu=0.5),
    kernels.Matern([0.7, 1.0], 3.0, nu=1.5),
    kernels.Matern(0.7, nu=2.5),
    kernels.RationalQuadratic(0.4, alpha=0.3),
    kernels.Periodic(1.1, [0.3, 5.0], 2.0),
    kernels.Laplacian([1.0, 0.2]),
    kernels.Linear([2.0, 0.1]) + kernels.Constant(0.5),
    kernels.Polynomial(0.5, 1.0, 3) * kernels.RBF(1.0),
    kernels.Cosine(2.0),
    kernels.Power(kernels.RBF(1.0), 2),
    kernels.RBF(0.8).on(1) + kernels.Matern(0.5).on([1, 0]),
    kernels.Wave([0.7, 3.0], 2.0),
    kernels.spectral_mixture([0.5, 2.0], [1.0, 0.3], [1.0, 0.4]),
    kernels.additive(lambda d: kernels.RBF([1.0] * d, 0.3), 2, order=2),
    kernels.OnSphere(kernels.Matern(900.0, nu=2.5)),
    kernels.OnSphere(kernels.RBF(0.3), radius=1.0),
    kernels.GreatCircle(300.0, 2.0),
    kernels.Hamming([0.5, 2.0], 3.0),
    kernels.Tanimoto(2.0),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_kernels_are_those_of_the_library(kernel):
    import torch

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    found = np.array([float(v) for v in entries(described(kernel), X, Y).entries()]).reshape(5, 4)
    expected = kernel(torch.from_numpy(X), torch.from_numpy(Y)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


AMOUNTS = [kernels.MinMax(2.0), kernels.Warped(kernels.RBF([0.5, 2.0]), [0.4, 3.0], 1.7), kernels.Hamming(0.7)]


@pytest.mark.parametrize("kernel", AMOUNTS, ids=lambda kernel: type(kernel).__name__)
def test_kernels_of_amounts_are_those_of_the_library(kernel):
    import torch

    X = np.array([[0.0, 0.5], [1.0, 0.25], [0.0, 0.0], [1.0, 1.0], [1e-9, 0.5]])
    found = np.array([float(v) for v in entries(described(kernel), X, X[1:]).entries()]).reshape(5, 4)
    expected = kernel(torch.from_numpy(X), torch.from_numpy(X[1:])).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def process(n, noise, *, drift=True):
    rng = np.random.default_rng(n)
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    T = np.eye(3) if drift else np.zeros((3, 0))
    return Process(described(kernels.RBF(1.0)), X, Y, np.full(n, noise), np.zeros(2), T)


def test_the_factor_solves_what_intervals_enclose(monkeypatch):
    """Several tiles, condition number 1e14; the intervals of flint's own solver contain what the factor gives."""
    monkeypatch.setattr(high_precision, "TILE", 7)
    one = process(30, 1e-12, drift=False)
    found = one.truth(one.X[:3] + 0.1, np.arange(2))
    with ctx.workprec(256):
        noise = arb_mat(30, 30, [1e-12 * (i == j) for i in range(30) for j in range(30)])
        k = entries(one.kernel, one.X, one.X[:3] + 0.1)
        solved = (entries(one.kernel, one.X, one.X) + noise).solve(high_precision.matrix(one.Y))
        mean = k.transpose() * solved
    np.testing.assert_allclose(found.mean.ravel(), [float(v) for v in mean.entries()], rtol=1e-12)


@pytest.mark.parametrize("drift", [False, True])
def test_all_truths_against_float64(drift):
    one = process(12, 0.1, drift=drift)
    Xs, left_out = one.X[:3] + 0.2, np.array([4, 7])
    found = one.truth(Xs, left_out)

    def k(X, Y):
        return np.exp(-0.5 * ((X[:, None] - Y) ** 2).sum(2))

    def conditioned(X, Y, new):
        H, h = (np.c_[np.ones(len(points)), points][:, : 3 * drift] for points in (X, new))
        A = k(X, X) + 0.1 * np.eye(len(X))
        S = H.T @ np.linalg.solve(A, H)
        beta = np.linalg.solve(S, H.T @ np.linalg.solve(A, Y))
        rho = h.T - H.T @ np.linalg.solve(A, k(X, new))
        mean = h @ beta + k(new, X) @ np.linalg.solve(A, Y - H @ beta)
        covariance = k(new, new) - k(new, X) @ np.linalg.solve(A, k(X, new)) + rho.T @ np.linalg.solve(S, rho)
        rest = Y - H @ beta
        quadratic = np.diag(rest.T @ np.linalg.solve(A, rest))
        return mean, covariance, -0.5 * (quadratic + np.linalg.slogdet(A)[1] + len(X) * np.log(2 * np.pi))

    mean, covariance, likelihood = conditioned(one.X, one.Y, Xs)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.log_likelihood, likelihood, rtol=1e-12)
    for place, row in enumerate(left_out):
        others = np.arange(12) != row
        mean, covariance, _ = conditioned(one.X[others], one.Y[others], one.X[[row]])
        np.testing.assert_allclose(found.left_out_residuals[place], one.Y[row] - mean[0], rtol=1e-9)
        np.testing.assert_allclose(found.left_out_variances[place], covariance[0, 0] + 0.1, rtol=1e-9)


def test_linear_functions_of_wide_range_have_enough_digits():
    rng = np.random.default_rng(3)
    scale = np.logspace(-12, 12, 6)
    X, y, centre = rng.normal(size=(30, 6)) * scale, rng.normal(size=(30, 1)), np.zeros(6)
    X[0] *= 1e12
    bases = np.eye(7), np.diag([1.0, *(2.0 ** -np.round(np.log2(scale)))])  # of the same functions
    kernel = described(kernels.RBF(scale))
    found = [Process(kernel, X, y, np.full(30, 1e-4), centre, T).truth(X[:3] * 1.1, np.arange(2)) for T in bases]
    np.testing.assert_allclose(found[0].covariance, found[1].covariance, rtol=1e-12)
    np.testing.assert_allclose(found[0].left_out_variances, found[1].left_out_variances, rtol=1e-12)
