"""The truth to 64 binary digits: the posterior in long double, from the formulas. Imports nothing of the package.

Its rounding is 2,048 times finer than that of float64, and what a certificate allows for rounding is at least that
of float64, so that an error of this reference can hide no violation, at any noise where float64 means anything:
`test_certificates.py` checks it against 60 decimal digits.
"""

from dataclasses import dataclass, field

import numpy as np

REAL = np.longdouble

IS_EXTENDED = np.finfo(REAL).eps < 2e-19
"""False where long double is float64 (Windows, Apple): the tests skip."""


def real(values):
    """Return a tensor or an array of float64 numbers in long double, exactly."""
    return np.asarray(values, dtype=np.float64).astype(REAL)


def kernel_matrix(kind, X, Y, lengthscale, variance):
    """Return K(X, Y); kind is "rbf" or ν of a Matérn kernel."""
    scaled = [np.subtract.outer(X[:, r], Y[:, r]) / lengthscale[r] for r in range(X.shape[1])]
    s = sum(u * u for u in scaled)
    if kind == "rbf":
        return variance * np.exp(-s / 2)
    q = np.sqrt(REAL(2 * kind) * s)
    polynomial = {0.5: 1, 1.5: 1 + q, 2.5: 1 + q + q * q / 3}[kind]
    return variance * polynomial * np.exp(-q)


def cholesky(A):
    """Return lower L with L Lᵀ = A, column by column."""
    rest, L = A.copy(), np.zeros_like(A)
    for j in range(len(A)):
        L[j:, j] = rest[j:, j] / np.sqrt(rest[j, j])
        rest[j + 1 :, j + 1 :] -= np.outer(L[j + 1 :, j], L[j + 1 :, j])
    if not np.isfinite(L).all():
        raise np.linalg.LinAlgError("not positive definite in long double")
    return L


def forward(L, B):
    """Return L⁻¹ B."""
    X = B.copy()
    for j in range(len(L)):
        X[j] /= L[j, j]
        X[j + 1 :] -= np.outer(L[j + 1 :, j], X[j])
    return X


def backward(L, B):
    """Return L⁻ᵀ B."""
    return forward(L.T[::-1, ::-1], B[::-1])[::-1]


def orthogonalised(W):
    """Return Q and upper T with W = Q T and orthonormal columns of Q: Gram–Schmidt, twice."""
    Q, T = W.copy(), np.zeros((W.shape[1], W.shape[1]), dtype=W.dtype)
    for j in range(W.shape[1]):
        for _ in range(2):
            along = Q[:, :j].T @ Q[:, j]
            Q[:, j] -= Q[:, :j] @ along
            T[:j, j] += along
        T[j, j] = np.sqrt(Q[:, j] @ Q[:, j])
        Q[:, j] /= T[j, j]
    return Q, T


def eigen(M):
    """Return eigenvalues and orthonormal eigenvectors of a symmetric M: Jacobi rotations after a start in float64."""
    V, _ = orthogonalised(np.linalg.eigh(M.astype(np.float64))[1].astype(REAL))
    M = V.T @ M @ V
    for _ in range(3):  # they converge quadratically
        size = np.sqrt(np.abs(np.diag(M)))
        for i, j in np.argwhere(np.triu(np.abs(M) > np.finfo(REAL).eps * np.outer(size, size), 1)):
            if M[i, j] != 0:
                theta = (M[j, j] - M[i, i]) / (2 * M[i, j])
                t = (1 if theta >= 0 else -1) / (np.abs(theta) + np.sqrt(theta * theta + 1))
                c = 1 / np.sqrt(t * t + 1)
                J = np.array([[c, t * c], [-t * c, c]])
                M[:, [i, j]] = M[:, [i, j]] @ J
                M[[i, j]] = J.T @ M[[i, j]]
                V[:, [i, j]] = V[:, [i, j]] @ J
    return np.diag(M), V


@dataclass
class Posterior:
    """The exact process given Y at X: kernel, noise variances D (n,), drift functions H (n, b) at X."""

    kind: str | float
    lengthscale: np.ndarray
    variance: np.floating
    X: np.ndarray
    Y: np.ndarray
    D: np.ndarray
    H: np.ndarray
    A: np.ndarray = field(init=False)
    L: np.ndarray = field(init=False)

    def __post_init__(self):
        self.A = self.kernel(self.X, self.X) + np.diag(self.D)
        self.L = cholesky(self.A)
        self.Q, self.T = orthogonalised(forward(self.L, self.H))
        self.whitened_Y = forward(self.L, self.Y)

    def kernel(self, X, Y):
        return kernel_matrix(self.kind, X, Y, self.lengthscale, self.variance)

    def error_norm(self, B, X):
        """Return ‖x − A⁻¹b‖_A of each column."""
        W = forward(self.L, B - self.A @ X)
        return np.sqrt((W * W).sum(0))

    def quadratic_forms(self, B):
        """Return bᵀA⁻¹b of each column."""
        W = forward(self.L, B)
        return (W * W).sum(0)

    def least_quadratic_forms(self):
        """Return the minimum over β of (y − Hβ)ᵀA⁻¹(y − Hβ) for each column of Y."""
        W = self.whitened_Y - self.Q @ (self.Q.T @ self.whitened_Y)
        return (W * W).sum(0)

    def log_determinant(self):
        return 2 * np.log(np.diag(self.L)).sum()

    def predict(self, X, h):
        """Return the mean (t, c) and the latent variance (t,) at X, with drift functions h (t, b) there.

        μ = kᵀA⁻¹(Y − Hβ) + hᵀβ, β = S⁻¹HᵀA⁻¹Y; v = k** − kᵀA⁻¹k + ρᵀS⁻¹ρ, ρ = h − HᵀA⁻¹k, S = HᵀA⁻¹H.
        """
        k = forward(self.L, self.kernel(self.X, X))
        along = self.Q.T @ self.whitened_Y
        rho = forward(self.T.T, h.T - self.T.T @ (self.Q.T @ k))
        mean = k.T @ self.whitened_Y + rho.T @ along
        return mean, self.variance - (k * k).sum(0) + (rho * rho).sum(0)
