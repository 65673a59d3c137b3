"""Gaussian process regression in dense float64 NumPy, from the textbook formulas. Imports nothing of the package."""

from dataclasses import dataclass, replace

import numpy as np
from reference import array, kernel_derivatives, kernel_matrix, log_parameters
from scipy.linalg import cholesky, solve_triangular


@dataclass(frozen=True, eq=False)
class Truth:
    """y = h(x)ᵀβ + f(x) + ε: data, kernel, the noise that is learned and the known noise of each observation."""

    kernel: object
    X: np.ndarray
    Y: np.ndarray
    noise: float
    known: np.ndarray | float = 0.0
    mean: str = "zero"

    @property
    def theta(self):
        """Return the log hyperparameters, the noise last."""
        return np.append(log_parameters(self.kernel), np.log(self.noise))

    def basis(self, X):
        """Return h(x) = nothing, 1, or [1, x − the mean of the data], as an (n, b) array."""
        one = np.ones((len(X), 1))
        return {"zero": one[:, :0], "constant": one, "linear": np.c_[one, X - self.X.mean(0)]}[self.mean]

    def system(self, theta=None):
        """Return A = K + D."""
        theta = self.theta if theta is None else np.asarray(theta)
        noise = np.broadcast_to(np.exp(theta[-1]) + self.known, len(self.X))
        return kernel_matrix(self.kernel, self.X, self.X, theta[:-1]) + np.diag(noise)

    def system_derivatives(self):
        """Return ∂A/∂θ_p for every log hyperparameter, (p, n, n)."""
        by_kernel = kernel_derivatives(self.kernel, self.X, self.X)
        return np.concatenate([by_kernel, self.noise * np.eye(len(self.X))[None]])

    def whitened(self, theta=None):
        """Return L, L⁻¹Y, L⁻¹H and the GLS coefficients of the drift."""
        L = cholesky(self.system(theta), lower=True)
        y, H = (solve_triangular(L, part, lower=True) for part in (self.Y, self.basis(self.X)))
        beta = np.linalg.pinv(H) @ y if H.shape[1] else np.zeros((0, y.shape[1]))
        return L, y, H, beta

    def weights(self, theta=None):
        """Return a = A⁻¹(Y − Hβ)."""
        L, y, H, beta = self.whitened(theta)
        return solve_triangular(L.T, y - H @ beta, lower=False)

    # criteria

    def log_evidence(self, theta=None):
        """Return Σ over the columns of −½ (y − Hβ)ᵀA⁻¹(y − Hβ) − ½ log|A| − n/2 log 2π."""
        L, y, H, beta = self.whitened(theta)
        n, c = self.Y.shape
        return -0.5 * np.sum((y - H @ beta) ** 2) - c * np.sum(np.log(np.diag(L))) - n * c / 2 * np.log(2 * np.pi)

    def gradient(self):
        """Return ½ aᵀ∂A a − ½ c tr(A⁻¹∂A) for every log hyperparameter."""
        a, inverse, c = self.weights(), np.linalg.inv(self.system()), self.Y.shape[1]
        return np.array(
            [0.5 * np.sum(a * (dA @ a)) - 0.5 * c * np.sum(inverse * dA) for dA in self.system_derivatives()]
        )

    def loo(self, theta=None):
        """Return −nc/2 log of the mean squared leave-one-out error, zero mean."""
        errors = self.weights(theta) / np.diag(np.linalg.inv(self.system(theta)))[:, None]
        return -0.5 * errors.size * np.log(np.mean(errors**2))

    def gcv(self, theta=None):
        """Return −nc/2 log of (1/nc) ‖a‖² / (tr A⁻¹ / n)²."""
        a, trace = self.weights(theta), np.trace(np.linalg.inv(self.system(theta)))
        n, c = a.shape
        return -0.5 * n * c * np.log(np.sum(a**2) / (n * c) / (trace / n) ** 2)

    # the posterior

    def posterior_mean(self, X):
        return self.basis(X) @ self.whitened()[3] + kernel_matrix(self.kernel, X, self.X) @ self.weights()

    def posterior_covariance(self, X):
        """Return K** − K*ᵀA⁻¹K* + R*ᵀ(HᵀA⁻¹H)⁻¹R*, R* = h* − HᵀA⁻¹K*."""
        L, _, H, _ = self.whitened()
        W = solve_triangular(L, kernel_matrix(self.kernel, self.X, X), lower=True)
        R = self.basis(X) - W.T @ H
        return kernel_matrix(self.kernel, X, X) - W.T @ W + R @ np.linalg.pinv(H.T @ H) @ R.T

    def left_out(self, i):
        """Return residual, predictive variance and log density of observation i given the others: it is left out."""
        others = np.arange(len(self.X)) != i
        known = np.broadcast_to(self.known, len(self.X))
        rest = replace(self, X=self.X[others], Y=self.Y[others], known=known[others])
        residual = self.Y[i] - rest.posterior_mean(self.X[i : i + 1])[0]
        variance = rest.posterior_covariance(self.X[i : i + 1])[0, 0] + self.noise + known[i]
        return residual, variance, -0.5 * (residual**2 / variance + np.log(2 * np.pi * variance))


def finite_differences(function, theta, step=1e-3):
    """Return the gradient by central differences of sixth order."""
    theta = np.asarray(theta, dtype=float)
    coefficients = {1: 45, 2: -9, 3: 1}
    slopes = []
    for i in range(len(theta)):
        e = step * np.eye(len(theta))[i]
        slopes.append(sum(w * (function(theta + j * e) - function(theta - j * e)) for j, w in coefficients.items()))
    return np.array(slopes) / (60 * step)


def toy(n, d, c=1, seed=0):
    """Return inputs with unit variance off the origin and c noisy smooth functions of them, of different sizes."""
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n, d)) + np.linspace(1, 3, d)
    waves = np.sin(X @ generator.standard_normal((d, c)) + np.arange(c))
    return X, (waves + 0.3 * generator.standard_normal((n, c)) + 0.5 * X[:, :1]) * (1 + np.arange(c))


def relative_error(result, truth):
    """Return ‖result − truth‖ / ‖truth‖ in the largest entry."""
    result, truth = array(result), np.asarray(truth)
    assert result.shape == truth.shape
    return np.max(np.abs(result - truth)) / np.max(np.abs(truth))


def drawn(kernel, n, d, noise, seed=0):
    """Return normal inputs and one draw of noisy observations from the process itself."""
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n, d))
    A = kernel_matrix(kernel, X, X) + noise * np.eye(n)
    return X, cholesky(A, lower=True) @ generator.standard_normal((n, 1))
