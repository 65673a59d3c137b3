"""FITC, PITC and VAR in dense float64 NumPy, from their definitions. Imports nothing of the package.

With Q = K_XU K_UU⁻¹ K_UX, where K_UU has 1e-6 of its mean diagonal added to it, the prior covariance of the latent
values at X is Q + Λ, Λ = diag(K − Q) (FITC), blockdiag(K − Q) (PITC), 0 (VAR). A new point is independent of the data
given the values at U: covariances Q_*X with the data, k** with itself. For PITC it joins the block of the training row
nearest to it in standardised inputs, with whose rows its covariances are those of K.
"""

from dataclasses import dataclass

import numpy as np
import torch
from inference.laplace_truth import LIKELIHOODS, LaplaceTruth, richardson
from reference import kernel_matrix, log_parameters
from torch.utils._python_dispatch import TorchDispatchMode

JITTER = 1e-6


@dataclass(frozen=True, eq=False)
class SparseTruth:
    """The approximate prior: its kernel, the data's inputs, the inducing inputs and the blocks of PITC."""

    kind: str
    kernel: object
    X: np.ndarray
    U: np.ndarray
    blocks: tuple = ()  # of row numbers

    @property
    def theta(self):
        return log_parameters(self.kernel)

    def covariance(self, A, B, theta=None):
        return kernel_matrix(self.kernel, A, B, theta)

    def Q(self, A, B, theta=None):
        """Return K_AU K_UU⁻¹ K_UB."""
        K_uu = self.covariance(self.U, self.U, theta)
        K_uu = K_uu + JITTER * np.mean(np.diag(K_uu)) * np.eye(len(self.U))
        return self.covariance(A, self.U, theta) @ np.linalg.solve(K_uu, self.covariance(self.U, B, theta))

    def mask(self):
        """Return (n, n) ones where Q + Λ equals K."""
        n, mask = len(self.X), np.zeros((len(self.X), len(self.X)))
        if self.kind == "fitc":
            return np.eye(n)
        for rows in self.blocks:
            mask[np.ix_(rows, rows)] = self.kind == "pitc"
        return mask

    def prior(self, theta=None):
        """Return Q + Λ."""
        Q = self.Q(self.X, self.X, theta)
        return Q + self.mask() * (self.covariance(self.X, self.X, theta) - Q)

    def cross(self, X_new):
        """Return (t, n) the covariances of new points with the data."""
        cross = self.Q(X_new, self.X)
        if self.kind == "pitc":
            distances = np.linalg.norm((X_new[:, None] - self.X[None]) / self.X.std(0), axis=2)
            for i, nearest in enumerate(distances.argmin(1)):
                (rows,) = (rows for rows in self.blocks if nearest in rows)
                cross[i, rows] = self.covariance(X_new[i : i + 1], self.X[rows])[0]
        return cross

    def dropped(self, theta=None):
        """Return (n,) the diagonal of K − Q for VAR, which its evidence pays for; 0 otherwise."""
        left = np.diag(self.covariance(self.X, self.X, theta) - self.Q(self.X, self.X, theta))
        return left if self.kind == "var" else 0 * left


@dataclass(frozen=True, eq=False)
class SparseRegressionTruth:
    """Noisy observations Y (n, c)."""

    sparse: SparseTruth
    Y: np.ndarray
    noise: float
    known: np.ndarray | float = 0.0

    @property
    def theta(self):
        """Return the log hyperparameters, the noise last."""
        return np.append(self.sparse.theta, np.log(self.noise))

    def D(self, theta=None):
        theta = self.theta if theta is None else theta
        return np.exp(theta[-1]) + self.known * np.ones(len(self.Y))

    def log_evidence(self, theta=None):
        """Return Σ over the columns of log N(y; 0, Q + Λ + D) − ½ tr(D⁻¹(K − Q)), the trace for VAR alone."""
        theta = self.theta if theta is None else theta
        A, D = self.sparse.prior(theta[:-1]) + np.diag(self.D(theta)), self.D(theta)
        sign, log_determinant = np.linalg.slogdet(A)
        assert sign > 0
        trace = np.sum(self.sparse.dropped(theta[:-1]) / D)
        each = -0.5 * np.sum(self.Y * np.linalg.solve(A, self.Y), axis=0)
        return np.sum(each - 0.5 * (log_determinant + trace + len(D) * np.log(2 * np.pi)))

    def gradient(self):
        return richardson(self.log_evidence, self.theta)

    def predict(self, X_new):
        """Return means (t, c) and variances (t,) of new observations."""
        sparse = self.sparse
        A = sparse.prior() + np.diag(self.D())
        K_new = sparse.cross(X_new)
        variance = np.diag(sparse.covariance(X_new, X_new) - K_new @ np.linalg.solve(A, K_new.T))
        return K_new @ np.linalg.solve(A, self.Y), variance + self.noise


@dataclass(frozen=True, eq=False)
class SparseLaplaceTruth:
    """Laplace's approximation with the covariance Q + Λ."""

    sparse: SparseTruth
    name: str
    y: np.ndarray
    phi: np.ndarray
    exposure: np.ndarray | float = 1.0

    @property
    def laplace(self):
        theta = self.sparse.theta
        return LaplaceTruth(self.sparse.prior, theta, LIKELIHOODS[self.name], self.y, self.phi, self.exposure)

    def paid(self, laplace):
        """Return log q − ½ tr(W (K − Q)), the trace for VAR alone."""
        return laplace.log_evidence - 0.5 * np.sum(laplace.W * self.sparse.dropped(laplace.theta))

    def log_evidence(self):
        return self.paid(self.laplace)

    def gradient(self):
        laplace = self.laplace
        return richardson(lambda parameters: self.paid(laplace.at(parameters)), laplace.parameters)

    def predict(self, X_new):
        """Return means and variances (t,) of the latent values."""
        sparse = self.sparse
        mean, covariance = self.laplace.latent(sparse.cross(X_new), sparse.covariance(X_new, X_new))
        return mean, np.diag(covariance)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return result
