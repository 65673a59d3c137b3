"""Lanczos processes in the inner product of a preconditioner."""

import numpy as np
import torch
from torch import Tensor

from kernelcg.dense import eigh, svd
from kernelcg.operators import Identity, Invertible, LinearOperator
from kernelcg.solvers.block_pcg import DEPENDENT, symmetric
from kernelcg.solvers.columns import column_norms
from kernelcg.solvers.reading import Floats, read

DISTINCT = 1e-8
"""New columns that are longer than this, relative to what was subtracted from them, and whose inner products have
eigenvalues above this are orthonormal up to rounding after one pass: the second pass then needs no decision."""


class BlockLanczos:
    r"""Grow a basis Q of the block Krylov space of :math:`A P^{-1}` started by W, with :math:`Q^\top P^{-1} Q = I`.

    Afterwards :math:`T = Q^\top P^{-1} A P^{-1} Q` and :math:`W = Q_1 S`, so that for :math:`P = L L^\top` and
    :math:`M = L^{-1} A L^{-\top}`

    .. math:: L f(M) L^{-1} W = f(A P^{-1}) W \approx Q f(T) E_1 S.

    Without a preconditioner this is f(A) W. Fully reorthogonalised; dependent directions are dropped. Memory
    O(n k m) for m steps (twice that with a preconditioner), one product with A and one solve with P a step. T and S are
    on the host; a step reads once, and once more where directions are nearly dependent.
    """

    def __init__(self, A: LinearOperator, W: Tensor, P: Invertible):
        self.A, self.P, self.plain = A, P, isinstance(P, Identity)
        self.indefinite = False  # set to True if some wᵀP⁻¹w is negative
        self.failed = torch.zeros((), dtype=torch.bool, device=W.device)  # the last block has no Cholesky factor
        self.Q, self.U, _, _ = self._orthonormalised(W, self.P.solve(W), 0.0)
        self.last = slice(0, self.Q.shape[1])
        [self.S] = read(self.U.T @ W)
        self.T: Floats = np.zeros((0, 0))
        self.exhausted = self.Q.shape[1] == 0

    def step(self) -> None:
        """Multiply the last block by A, extend T, and orthogonalise a new block against all before."""
        W = self.A @ self.U[:, self.last].contiguous()
        coefficients = self.U.T @ W
        W = W - self.Q @ coefficients
        W = W - self.Q @ (self.U.T @ W)
        size = column_norms(coefficients).max()
        Q, U, distinct, [read_coefficients] = self._orthonormalised(W, self.P.solve(W), size, coefficients)
        self._extend(read_coefficients)
        Q = Q - self.Q @ (self.U.T @ Q)
        if distinct:
            Q, U = self._polished(Q, self.P.solve(Q))
        else:
            Q, U, _, _ = self._orthonormalised(Q, self.P.solve(Q), 0.0)
        self.last = slice(self.Q.shape[1], self.Q.shape[1] + Q.shape[1])
        self.Q, self.U = torch.cat([self.Q, Q], 1), torch.cat([self.U, U], 1)
        self.exhausted = Q.shape[1] == 0

    def coefficients(self, values: Floats, vectors: Floats) -> Floats:
        """Return f(T) E₁ S from the eigenvectors of T and f of its eigenvalues."""
        product: Floats = vectors @ (values[:, None] * (vectors[: len(self.S)].T @ self.S))
        return product

    def _extend(self, coefficients: Floats) -> None:
        """Append the rows and columns UᵀA U of the last block to T."""
        size = len(coefficients)
        T = np.zeros((size, size))
        T[: len(self.T), : len(self.T)] = self.T
        T[:, self.last] = coefficients
        T[self.last, :] = coefficients.T
        own = coefficients[self.last]
        T[self.last, self.last] = (own + own.T) / 2
        self.T = T

    def _orthonormalised(
        self, W: Tensor, Y: Tensor, size: Tensor | float, *more: Tensor
    ) -> tuple[Tensor, Tensor, bool, list[Floats]]:
        """Return Q spanning W with QᵀP⁻¹Q = I and U = P⁻¹Q, given Y = P⁻¹W; tiny and dependent columns are dropped.

        Tiny means rounding beside ``size``. Also say whether W was so far from dependent that Q is orthonormal but for
        a little rounding, and return host copies of ``more`` from the same read.
        """
        squares = (W * Y).sum(0)
        rounding = 1e-10 * column_norms(W) * column_norms(Y)
        negative = (squares < -rounding).any() | self.failed
        norms = squares.clamp_min(0).sqrt()
        kept = norms > 1e-13 * size
        small = (kept & (norms <= DISTINCT * size)).any()
        W, Y = torch.where(kept, W / norms, 0.0), torch.where(kept, Y / norms, 0.0)
        if self.plain:
            W, products = torch.linalg.qr(W)
        else:
            products = symmetric(W.T @ Y)
        M, is_negative, is_small, *others = read(products, negative, small, *more)
        self.indefinite |= bool(is_negative)
        mix, distinct = (_from_triangle if self.plain else _from_inner_products)(np.nan_to_num(M))
        mixing = torch.from_numpy(mix).to(W.device)
        Q = W @ mixing
        return Q, Q if self.plain else Y @ mixing, distinct and not is_small, others

    def _polished(self, Q: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q and U = P⁻¹Q with QᵀP⁻¹Q = I for columns that are nearly so already, given Y = P⁻¹Q."""
        if self.plain:
            Q = torch.linalg.qr(Q).Q
            return Q, Q
        L, failed = torch.linalg.cholesky_ex(symmetric(Q.T @ Y))
        self.failed = failed != 0
        both = torch.linalg.solve_triangular(L.mT, torch.cat([Q, Y]), upper=True, left=False)
        return both[: len(Q)], both[len(Q) :]


def _from_triangle(T: Floats) -> tuple[Floats, bool]:
    """Return U, orthonormal columns that span T up to `DEPENDENT`, and whether T is far from dependent."""
    U, values, _ = svd(T)
    kept = values[values > DEPENDENT]
    return U[:, : len(kept)], bool((kept > DISTINCT**0.5).all())


def _from_inner_products(S: Floats) -> tuple[Floats, bool]:
    """Return C with CᵀSC = I on the range of S, and whether S is far from singular there."""
    values, vectors = eigh(S)
    kept = values > 1e-13 * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept]), bool((values[kept] > DISTINCT).all())


class TridiagonalLanczos:
    r"""Run one Lanczos process of :math:`A P^{-1}` for every column of W on its own, all sharing the products.

    It is a three-term recurrence with O(n k) memory. Quadrature with the tridiagonal matrices stays accurate although
    orthogonality is lost (Golub & Strakoš 1994).
    """

    def __init__(self, A: LinearOperator, W: Tensor, P: Invertible):
        self.A, self.P = A, P
        Y = P.solve(W)
        squares = (W * Y).sum(0)
        self.indefinite = bool((squares < 0).any())  # some wᵀP⁻¹w is negative
        norms = squares.sqrt()
        self.q, self.u = W / norms, Y / norms
        self.q_before = torch.zeros_like(W)
        self.alphas: list[Tensor] = []
        self.betas: list[Tensor] = []

    def step(self) -> None:
        """Extend every tridiagonal matrix by one row."""
        W = self.A @ self.u
        if self.betas:
            W = W - self.betas[-1] * self.q_before
        alpha = (self.u * W).sum(0)
        W = W - alpha * self.q
        Y = self.P.solve(W)
        beta = (W * Y).sum(0).clamp_min(0).sqrt()
        beta = torch.where(beta > 1e-14 * alpha.abs(), beta, 0.0)  # it is zero where the Krylov space is exhausted
        safe = torch.where(beta > 0, beta, 1.0)
        self.q_before, self.q, self.u = self.q, (W / safe) * (beta > 0), (Y / safe) * (beta > 0)
        self.alphas.append(alpha)
        self.betas.append(beta)

    def matrices(self) -> tuple[Floats, Floats]:
        """Return the (k, m, m) tridiagonal matrices and the (k,) entries that would be next to them, by one read.

        A column that ended early goes on with its first entry.
        """
        alphas, betas = read(torch.stack(self.alphas, 1), torch.stack(self.betas, 1))
        alphas = np.where(alphas == 0, alphas[:, :1], alphas)
        k, m = alphas.shape
        T, i = np.zeros((k, m, m)), np.arange(m)
        T[:, i, i] = alphas
        T[:, i[:-1], i[1:]] = T[:, i[1:], i[:-1]] = betas[:, :-1]
        return T, betas[:, -1]
