"""The truth: dense float64 NumPy, entry by entry from the textbook formulas. Imports nothing of the package.

A kernel object is only read, field by field, as a dataclass: its class name picks the formula, tensors are
hyperparameters, dataclass fields are parts. Tests with kernels of their own add a formula to `FORMULAS`.
"""

from dataclasses import fields, is_dataclass

import numpy as np

TOLERANCE = {"float32": 5e-6, "float64": 1e-13}
"""Largest relative error of a product, a gradient or a block of entries, by the precision it was computed in."""


def kernel_matrix(kernel, X, Y, log_parameters=None):
    """Return K(X, Y); ``log_parameters`` (complex ones too) replace the hyperparameters, in the order of the fields."""
    theta = None if log_parameters is None else iter(np.asarray(log_parameters))
    return _evaluate(kernel, array(X), array(Y), theta)


def kernel_derivatives(kernel, X, Y):
    """Return ∂K/∂θ_p for every log hyperparameter, (p, n, m), to rounding, by the complex step Im K(θ + ih) / h."""
    theta, h = log_parameters(kernel), 1e-30
    steps = theta + 1j * h * np.eye(len(theta))
    return np.array([kernel_matrix(kernel, X, Y, step).imag / h for step in steps]).reshape(-1, len(X), len(Y))


def system_matrix(kernel, X, diagonal, scale=None):
    """Return A = S K S + D."""
    n = len(X)
    S = np.diag(np.broadcast_to(1.0 if scale is None else array(scale), n))
    return S @ kernel_matrix(kernel, X, X) @ S + np.diag(np.broadcast_to(array(diagonal), n))


def log_parameters(kernel):
    """Return the logarithms of all hyperparameters, depth first in the order of the fields."""
    values = []
    for field in fields(kernel):
        value = getattr(kernel, field.name)
        if is_dataclass(value):
            values.extend(log_parameters(value))
        elif _is_tensor(value):
            values.extend(np.log(array(value)).ravel())
    return np.array(values)


def product_error(result, K, V):
    """Return |result − K V| relative to |K| |V|, in the 2-norm of each column; the worst column counts."""
    K, V = array(K), array(V)
    error = np.linalg.norm(array(result) - K @ V, axis=0)
    return _worst(error, np.linalg.norm(np.abs(K) @ np.abs(V), axis=0))


def gradient_error(result, kernel, X, Y, left, right):
    """Return the worst error of ∇_θ Σ_j left_jᵀ K right_j relative to Σ_j |left_j|ᵀ (|K| + |∂K|) |right_j|."""
    left, right = array(left), array(right)
    K, derivatives = kernel_matrix(kernel, X, Y), kernel_derivatives(kernel, X, Y)
    truth = np.array([np.sum(left * (dK @ right)) for dK in derivatives])
    size = np.array([np.sum(np.abs(left) * ((np.abs(K) + np.abs(dK)) @ np.abs(right))) for dK in derivatives])
    assert array(result).shape == truth.shape
    return _worst(np.abs(array(result) - truth), size)


def block_error(result, K):
    """Return the largest error of an entry relative to the largest entry of K."""
    assert array(result).shape == K.shape
    return _worst(np.max(np.abs(array(result) - K), initial=0.0), np.max(np.abs(K), initial=0.0))


def _worst(error, size):
    """Return the largest error / size with 0 / 0 = 0; NaN stays NaN and so passes no test."""
    return np.max(np.where(error == 0, 0.0, error / np.maximum(size, np.finfo(float).tiny)), initial=0.0)


def array(value):
    """Return a tensor or an array as a float64 array."""
    if _is_tensor(value):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


def _is_tensor(value):
    return type(value).__module__.split(".")[0] == "torch"


def _evaluate(kernel, X, Y, theta):
    def parameter(name):
        value = array(getattr(kernel, name))
        return value if theta is None else np.exp([next(theta) for _ in range(value.size)]).reshape(value.shape)

    own = {}
    for field in fields(kernel):
        value = getattr(kernel, field.name)
        if is_dataclass(value):
            own[field.name] = _evaluate(value, X, Y, theta)
        else:
            own[field.name] = parameter(field.name) if _is_tensor(value) else value
    return FORMULAS[type(kernel).__name__](X, Y, **own)


def scaled_squares(X, Y, lengthscale):
    """Return Σ_r ((x_r − y_r) / l_r)²."""
    lengthscale = np.broadcast_to(lengthscale, X.shape[1])
    return sum(np.subtract.outer(X[:, r], Y[:, r]) ** 2 / lengthscale[r] ** 2 for r in range(X.shape[1]))


def _rbf(X, Y, lengthscale, variance):
    return variance * np.exp(-scaled_squares(X, Y, lengthscale) / 2)


def _matern(X, Y, lengthscale, variance, nu):
    r = np.sqrt(scaled_squares(X, Y, lengthscale))
    if nu == 0.5:
        return variance * np.exp(-r)
    if nu == 1.5:
        return variance * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    return variance * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)


def _rational_quadratic(X, Y, lengthscale, variance, alpha):
    return variance * (1 + scaled_squares(X, Y, lengthscale) / (2 * alpha)) ** -alpha


def _periodic(X, Y, lengthscale, period, variance):
    lengthscale, period = (np.broadcast_to(value, X.shape[1]) for value in (lengthscale, period))
    exponent = 0
    for r in range(X.shape[1]):
        exponent = (
            exponent + 2 * np.sin(np.pi * np.subtract.outer(X[:, r], Y[:, r]) / period[r]) ** 2 / lengthscale[r] ** 2
        )
    return variance * np.exp(-exponent)


def _linear(X, Y, variance):
    variance = np.broadcast_to(variance, X.shape[1])
    return sum(variance[r] * np.multiply.outer(X[:, r], Y[:, r]) for r in range(X.shape[1]))


def _constant(X, Y, variance):
    return np.full((len(X), len(Y)), np.reshape(variance, ()))


FORMULAS = {
    "RBF": _rbf,
    "Matern": _matern,
    "RationalQuadratic": _rational_quadratic,
    "Periodic": _periodic,
    "Linear": _linear,
    "Constant": _constant,
    "Sum": lambda X, Y, left, right: left + right,
    "Product": lambda X, Y, left, right: left * right,
}


def local_matrix(kernel, X, F, scale, diagonal):
    """Return R = S (K − F Fᵀ) S + D; F and scale may be None."""
    n = len(X)
    F = np.zeros((n, 0)) if F is None else array(F)
    S = np.diag(np.ones(n) if scale is None else array(scale))
    return S @ (kernel_matrix(kernel, X, X) - F @ F.T) @ S + np.diag(array(diagonal))


def local_factors(R, neighbours):
    """Return the rows g_i = R_JJ⁻¹ e_i / √(e_iᵀ R_JJ⁻¹ e_i), J = N(i) ∪ {i}; 0 where a neighbour is −1."""
    n, q = neighbours.shape
    G = np.zeros((n, q + 1))
    for i, row in enumerate(array(neighbours).astype(int)):
        columns = [*np.flatnonzero(row >= 0), q]
        J = [*row[row >= 0], i]
        column = np.linalg.solve(R[np.ix_(J, J)], np.eye(len(J))[-1])
        G[i, columns] = column / np.sqrt(column[-1])
    return G


def local_factors_error(result, kernel, X, neighbours, F, scale, diagonal):
    """Return the worst |g_i − truth| / |truth|, relative to the largest entry of S K S + D over the smallest of D."""
    n = len(X)
    truth = local_factors(local_matrix(kernel, X, F, scale, diagonal), neighbours)
    assert array(result).shape == truth.shape
    S = np.ones(n) if scale is None else array(scale)
    size = np.max(np.abs(S) ** 2 * np.diag(kernel_matrix(kernel, X, X)) + array(diagonal), initial=0.0)
    error = np.linalg.norm(array(result) - truth, axis=1) / np.linalg.norm(truth, axis=1)
    return np.max(error, initial=0.0) / (size / np.min(array(diagonal), initial=1.0))


def partial_cholesky(K, m):
    """Return F (n, m) with K − F Fᵀ positive semidefinite: m steps of a Cholesky factorisation, largest pivot first."""
    F, rest = np.zeros((len(K), m)), np.array(K)
    for k in range(m):
        p = np.argmax(np.diag(rest))
        if rest[p, p] > 1e-12 * np.max(np.diag(K)):
            F[:, k] = rest[:, p] / np.sqrt(rest[p, p])
            rest = rest - np.outer(F[:, k], F[:, k])
    return F
