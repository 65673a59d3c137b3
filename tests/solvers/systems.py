"""Random systems, dense truths and deliberately bad preconditioners for the solver tests."""

import numpy as np
import torch
from bound import bound_system
from hypothesis import strategies as st

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF, Matern
from kernelcg.operators import DenseMatrix


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=seeded(seed), dtype=torch.float64)


def with_eigenvalues(values, seed=0):
    """Return a dense symmetric matrix with these eigenvalues and random eigenvectors."""
    values = np.asarray(values, dtype=float)
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    M = Q @ np.diag(values) @ Q.T
    return torch.from_numpy((M + M.T) / 2)


class Fixed:
    """A preconditioner given by its inverse as a dense matrix, right or wrong."""

    is_constant = True

    def __init__(self, inverse):
        self.inverse = inverse

    def solve(self, R):
        return self.inverse @ R


class Exact:
    """P = A for a dense A, with determinant and draws."""

    is_constant = True

    def __init__(self, A):
        self.A, self.L = A, torch.linalg.cholesky(A)

    def solve(self, R):
        return torch.cholesky_solve(R, self.L)

    def log_determinant(self):
        return torch.logdet(self.A)

    def sample(self, generator, k):
        return self.L @ torch.randn(len(self.A), k, generator=generator, dtype=torch.float64)


def nystrom(system, rank=20, shift=0.0):
    """Return P = K_XU K_UU⁻¹ K_UX + D + shift·I for the first ``rank`` points, dense: below A since S = I."""
    K = system.kernel(system.X, system.X)
    rank = min(rank, len(K))
    L = torch.linalg.cholesky(K[:rank, :rank] + 1e-10 * torch.eye(rank))
    F = torch.linalg.solve_triangular(L, K[:rank], upper=False).T
    return Exact(F @ F.T + (system.diagonal + shift).diag())


def hard_system(n=200, noise=1e-4, d=2, nu=None, **options):
    """Return a smooth, badly conditioned kernel system."""
    kernel = RBF(1.0, 1.0) if nu is None else Matern(1.0, 1.0, nu=nu)
    return bound_system(kernel, normal(n, d, 7), noise, **options)


@st.composite
def systems(draw, largest=25):
    """Draw a kernel system of moderate condition, with or without S."""
    n, d, seed = draw(st.integers(1, largest)), draw(st.integers(1, 3)), draw(st.integers(0, 2**31 - 1))
    g = seeded(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    lengthscale = torch.exp(torch.randn(d, generator=g, dtype=torch.float64))
    kernel = draw(st.sampled_from([RBF(lengthscale, 1.5), Matern(lengthscale, 0.7, nu=0.5)]))
    diagonal = 0.05 + torch.rand(n, generator=g, dtype=torch.float64)
    scale = torch.rand(n, generator=g, dtype=torch.float64) if draw(st.booleans()) else None
    return bound_system(kernel, X, diagonal, scale, backend=Tiles())


def dense(values):
    return DenseMatrix(values)
