"""Lanczos processes in the inner product of a preconditioner."""

import torch
from torch import Tensor

from kernelcg.operators import Identity, Invertible, LinearOperator
from kernelcg.solvers.block_pcg import orthonormal_basis, symmetric


class BlockLanczos:
    r"""Grow a basis Q of the block Krylov space of :math:`A P^{-1}` started by W, with :math:`Q^\top P^{-1} Q = I`.

    Afterwards :math:`T = Q^\top P^{-1} A P^{-1} Q` and :math:`W = Q_1 S`, so that for :math:`P = L L^\top` and
    :math:`M = L^{-1} A L^{-\top}`

    .. math:: L f(M) L^{-1} W = f(A P^{-1}) W \approx Q f(T) E_1 S.

    Without a preconditioner this is f(A) W. Fully reorthogonalised; dependent directions are dropped. Memory
    O(n k m) for m steps (twice that with a preconditioner), one product with A and one solve with P a step.
    """

    def __init__(self, A: LinearOperator, W: Tensor, P: Invertible):
        self.A, self.P = A, P
        self.indefinite = False  # becomes true if some wᵀP⁻¹w is negative
        self.Q, self.U = self._orthonormalised(W, self.P.solve(W))
        self.last = slice(0, self.Q.shape[1])
        self.S = self.U.T @ W
        self.T = W.new_zeros(0, 0)
        self.exhausted = self.Q.shape[1] == 0

    def step(self) -> None:
        """Multiply the last block by A, extend T, and orthogonalise a new block against all before."""
        W = self.A @ self.U[:, self.last].contiguous()
        coefficients = self.U.T @ W
        self._extend(coefficients)
        W = W - self.Q @ coefficients
        W = W - self.Q @ (self.U.T @ W)
        size = torch.linalg.vector_norm(coefficients, dim=0).max()
        Q, U = self._orthonormalised(W, self.P.solve(W), smallest=1e-13 * float(size))
        Q = Q - self.Q @ (self.U.T @ Q)
        Q, U = self._orthonormalised(Q, self.P.solve(Q))
        self.last = slice(self.Q.shape[1], self.Q.shape[1] + Q.shape[1])
        self.Q, self.U = torch.cat([self.Q, Q], 1), torch.cat([self.U, U], 1)
        self.exhausted = Q.shape[1] == 0

    def coefficients(self, values: Tensor, vectors: Tensor) -> Tensor:
        """Return f(T) E₁ S from the eigenvectors of T and f of its eigenvalues."""
        return vectors @ (values[:, None] * (vectors[: len(self.S)].T @ self.S))

    def _extend(self, coefficients: Tensor) -> None:
        """Append the rows and columns UᵀA U of the last block to T."""
        size = len(coefficients)
        T = self.T.new_zeros(size, size)
        T[: len(self.T), : len(self.T)] = self.T
        T[:, self.last] = coefficients
        T[self.last, :] = coefficients.T
        T[self.last, self.last] = symmetric(coefficients[self.last])
        self.T = T

    def _orthonormalised(self, W: Tensor, Y: Tensor, smallest: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return Q spanning W with QᵀP⁻¹Q = I, and U = P⁻¹Q, given Y = P⁻¹W; tiny columns are dropped."""
        squares = (W * Y).sum(0)
        rounding = 1e-10 * torch.linalg.vector_norm(W, dim=0) * torch.linalg.vector_norm(Y, dim=0)
        self.indefinite |= bool((squares < -rounding).any())
        norms = squares.clamp_min(0).sqrt()
        kept = norms > smallest
        W, Y = W[:, kept] / norms[kept], Y[:, kept] / norms[kept]
        if isinstance(self.P, Identity):
            Q = orthonormal_basis(W, relative_to=W)
            return Q, Q
        values, vectors = torch.linalg.eigh(symmetric(W.T @ Y))
        kept = values > 1e-13 * values[-1:]
        mix = vectors[:, kept] * values[kept].rsqrt()
        return W @ mix, Y @ mix


class TridiagonalLanczos:
    r"""Run one Lanczos process of :math:`A P^{-1}` for every column of W on its own, all sharing the products.

    Three-term recurrence, O(n k) memory. Quadrature with the tridiagonal matrices stays accurate although
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
        beta = torch.where(beta > 1e-14 * alpha.abs(), beta, 0.0)  # zero: the Krylov space is exhausted
        safe = torch.where(beta > 0, beta, 1.0)
        self.q_before, self.q, self.u = self.q, (W / safe) * (beta > 0), (Y / safe) * (beta > 0)
        self.alphas.append(alpha)
        self.betas.append(beta)

    def matrices(self) -> Tensor:
        """Return the (k, m, m) tridiagonal matrices; a column that ended early goes on with its first entry."""
        alphas, betas = torch.stack(self.alphas, 1), torch.stack(self.betas, 1)[:, :-1]
        alphas = torch.where(alphas == 0, alphas[:, :1], alphas)
        return torch.diag_embed(alphas) + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
