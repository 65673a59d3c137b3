"""Block preconditioned conjugate gradients."""

import torch
from torch import Tensor

from kernelcg.solvers.monitor import Monitor

DEPENDENT = 1e-10
"""Directions with a relative singular value below this are dropped from the block."""

Directions = tuple[Tensor, Tensor, Tensor]
"""D, A D and DᵀAD."""


def block_pcg(monitor: Monitor) -> Tensor:
    r"""Solve :math:`A X = B` over the Krylov space of all columns together.

    With D an orthonormal basis of the preconditioned residuals, made A-orthogonal to the previous block,

    .. math:: X \gets X + D\Gamma, \quad R \gets R - A D \Gamma, \qquad \Gamma = (D^\top A D)^{-1} D^\top R,
        \qquad D \gets \operatorname{orth}\bigl(Z - D (D^\top A D)^{-1} (A D)^\top Z\bigr), \quad Z = P^{-1} R.

    The other right-hand sides act as a free low-rank preconditioner: never more iterations than column by
    column, several times fewer on hard systems. Orthonormal directions keep DᵀAD as well conditioned as A, and
    dependent ones are dropped, so duplicated columns and more columns than rows do no harm. Columns that
    converged leave the block. Each iteration costs one product with A, one solve with P and O(n k²).

    References
    ----------
    O'Leary (1980), The block conjugate gradient algorithm; Ji & Li (2017), A breakdown-free block conjugate
    gradient method, BIT 57.
    """
    X, R = monitor.begin()
    Z = monitor.preconditioned(R)
    previous: Directions | None = None

    while monitor.wants_more(R, Z):
        active = monitor.active.nonzero()[:, 0]
        D, H = next_directions(Z[:, active], previous)
        AD = monitor.counted @ D
        G = symmetric(D.T @ AD)
        monitor.spectrum.add_block(Z[:, active], R[:, active], D, G, previous, H)
        steps = monitor.block_step(G, D.T @ R[:, active])
        X = X.index_add(1, active, D @ steps)
        R = monitor.checked(X, R.index_add(1, active, -(AD @ steps)))
        Z = monitor.preconditioned(R)
        previous = None if monitor.restarts() else (D, AD, G)

    return X


def next_directions(Z: Tensor, previous: Directions | None) -> tuple[Tensor, Tensor | None]:
    """Return an orthonormal basis of Z − D H and H = (DᵀAD)⁻¹(AD)ᵀZ; that of Z if nothing else is left."""
    if previous is not None:
        D, AD, G = previous
        H = torch.linalg.solve(G, AD.T @ Z)
        basis = orthonormal_basis(Z - D @ H, relative_to=Z)
        if basis.shape[1]:
            return basis, H
    return orthonormal_basis(Z, relative_to=Z), None


def orthonormal_basis(Z: Tensor, relative_to: Tensor) -> Tensor:
    """Return orthonormal columns that span Z up to `DEPENDENT`, column by column relative to another block."""
    size = torch.linalg.vector_norm(relative_to, dim=0)
    scaled = Z / torch.where(size > 0, size, 1.0)
    Q, triangle = torch.linalg.qr(scaled)
    U, values, _ = torch.linalg.svd(triangle, full_matrices=False)
    return Q @ U[:, values > DEPENDENT]


def symmetric(M: Tensor) -> Tensor:
    """Return the symmetric part of M."""
    return (M + M.T) / 2
