"""Block preconditioned conjugate gradients."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernelcg.dense import svd
from kernelcg.solvers.columns import column_norms
from kernelcg.solvers.monitor import Monitor
from kernelcg.solvers.reading import Flags, Floats, read

DEPENDENT = 1e-10
"""Directions with a relative singular value below this are dropped from the block."""

UNREAD: Floats = np.zeros((0, 0))
"""Stands in for a matrix T that has not been copied from the device yet."""

Directions = tuple[Tensor, Tensor, Tensor]
"""The matrices D, A D and DᵀAD of one step."""


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
    span = Span.of(monitor, R, previous=None)

    while monitor.wants_more():
        active = monitor.columns
        D, Z, H = span.directions(monitor.active)
        monitor.tally.add(D.shape[1])
        AD = monitor.A @ D
        G = symmetric(D.T @ AD)
        monitor.spectrum.add_block(Z, R[:, active], D, G, span.previous, H)
        steps = monitor.block_step(G, D.T @ R[:, active])
        X = X.index_add(1, active, D @ steps)
        R = R.index_add(1, active, -(AD @ steps))
        span, T = next_span(monitor, R, (D, AD, G))
        R, [triangle] = monitor.checked_with(X, R, T)
        span = span.after_check(monitor, R, triangle)

    return X


@dataclass(frozen=True, eq=False)
class Span:
    """Where the next directions lie: Z − D₋H = Q T diag(‖z‖), for the columns that were active when it was computed."""

    columns: Flags  # (k,)
    Z: Tensor  # (n, w)
    H: Tensor | None  # None without previous directions D₋
    Q: Tensor  # (n, min(n, w))
    T: Floats  # (min(n, w), w), on the host
    previous: Directions | None

    @classmethod
    def of(cls, monitor: Monitor, R: Tensor, previous: Directions | None) -> "Span":
        """Return the span of the next directions for the residuals R. Reads T."""
        Z = monitor.preconditioned(R)[:, monitor.columns]
        H, Q, T = conjugated(Z, previous)
        [triangle] = read(T)
        return cls(monitor.active, Z, H, Q, triangle, previous)

    def after_check(self, monitor: Monitor, R: Tensor, triangle: Floats) -> "Span":
        """Return the span with T, which was read together with the check of the residuals.

        The span was computed before it was known which columns converged: `directions` leaves those out. It is computed
        anew, with a read of its own, if a column goes on with another residual.
        """
        if monitor.must_precondition_again:
            return Span.of(monitor, R, None if monitor.restarts() else self.previous)
        return replace(self, T=triangle)

    def directions(self, active: Flags) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return D, an orthonormal basis of Z − D₋H or else of Z, with Z and H, all for the active columns alone."""
        kept = np.flatnonzero(active[self.columns])
        columns = torch.from_numpy(kept).to(self.Q.device)
        Z = self.Z[:, columns]
        if self.H is not None:
            D = orthonormal_basis(self.Q, self.T[:, kept], least=0)
            if D.shape[1]:
                return D, Z, self.H[:, columns]
            _, Q, T = conjugated(Z, None)
            [triangle] = read(T)
            return orthonormal_basis(Q, triangle, least=1), Z, None
        return orthonormal_basis(self.Q, self.T[:, kept], least=1), Z, None


def next_span(monitor: Monitor, R: Tensor, previous: Directions) -> tuple[Span, Tensor]:
    """Return the span of the next directions for residuals that are not checked yet, without T, and T on the device."""
    Z = monitor.preconditioned(R)[:, monitor.columns]
    H, Q, T = conjugated(Z, previous)
    return Span(monitor.active, Z, H, Q, UNREAD, previous), T


def conjugated(Z: Tensor, previous: Directions | None) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return H = (DᵀAD)⁻¹(AD)ᵀZ and Q T = (Z − D H) / ‖z‖; without previous directions H is None, and zero here."""
    size = column_norms(Z)
    if previous is None:
        H, W = None, Z
    else:
        D, AD, G = previous
        H = torch.linalg.solve_ex(G, AD.T @ Z).result
        W = Z - D @ H
    Q, T = torch.linalg.qr(W / torch.where(size > 0, size, 1.0))
    return H, Q, T


def orthonormal_basis(Q: Tensor, T: Floats, least: int) -> Tensor:
    """Return orthonormal columns that span Q T up to `DEPENDENT`, and zeros if these are fewer than ``least``."""
    U, values, _ = svd(np.nan_to_num(T))
    kept = values > DEPENDENT
    return Q @ torch.from_numpy((U * kept)[:, : max(least, int(kept.sum()))]).to(Q.device)


def symmetric(M: Tensor) -> Tensor:
    """Return the symmetric part of M."""
    return (M + M.T) / 2
