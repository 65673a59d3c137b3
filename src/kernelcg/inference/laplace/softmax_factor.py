"""The matrix of a softmax Newton step by Cholesky factors of n × n matrices, one a class and one for all."""

import torch
from torch import Tensor

from kernelcg.dense import scaled_gram, solve_from_the_left
from kernelcg.solvers import CholeskyFactor
from kernelcg.solvers.blocked_cholesky import invert_in_place
from kernelcg.threads import shared


class SoftmaxFactor:
    r"""A = Sᵀ(K ⊗ I)S + I for S = diag(√π)(I − √π√πᵀ), solved with by its structure.

    With U, which holds √π at each point and has orthonormal columns, and G = I + diag(√π)(K ⊗ I)diag(√π), which has one
    block G_c = I + √π_c K √π_c for each class, A is U Uᵀ + (I − UUᵀ) G (I − UUᵀ), and

    .. math:: A^{-1} = U U^\top + G^{-1} - G^{-1} U M^{-1} U^\top G^{-1}, \qquad
        M = U^\top G^{-1} U = \sum_c \sqrt{\pi_c}\, G_c^{-1} \sqrt{\pi_c}, \qquad |A| = |G|\,|M| .

    Costs (C / 2 + 1 / 6) n³ multiply-adds to make, where a factor of A takes C³n³ / 6, and (2 C + 1) n² a column to
    solve; (C + 1) n² numbers are stored.

    References
    ----------
    Rasmussen & Williams (2006), section 3.5.2, for the same structure of (K + W⁻¹)⁻¹.
    """

    def __init__(self, K: Tensor, pi: Tensor):
        """Take K (n, n) and the probabilities (n, C); neither is changed."""
        self.root = pi.T.sqrt().contiguous()  # (C, n)
        C, n = self.root.shape
        factors: dict[int, CholeskyFactor] = {}  # of G_c
        terms = K.new_empty(C, n, n)  # of M

        def factorise(part: slice) -> None:
            for c in range(part.start, part.stop):
                G = self.root[c][:, None] * K * self.root[c]
                G.diagonal().add_(1.0)
                factors[c] = factor = CholeskyFactor(G)
                torch.mul(self.root[c][:, None], _inverse(factor) * self.root[c], out=terms[c])

        shared(factorise, C, C if K.is_cuda else 1)
        self.blocks = [factors[c] for c in range(C)]
        self.M = CholeskyFactor(terms.sum(0))

    def solve(self, B: Tensor) -> Tensor:
        """Return A⁻¹B, B (nC, k)."""
        C, n = self.root.shape
        B, root = B.reshape(n, C, -1), self.root.T[:, :, None]
        along = (root * B).sum(1, keepdim=True)
        within = self._within(B)
        across = self.M.solve((root * within).sum(1).contiguous())
        return (root * along + within - self._within(root * across[:, None])).reshape(n * C, -1)

    def log_determinant(self) -> Tensor:
        """Return log|A|."""
        return torch.stack([each.log_determinant() for each in (*self.blocks, self.M)]).sum()

    def traced(self) -> tuple[Tensor, Tensor]:
        r"""Return the diagonal blocks (n, C, C) of A⁻¹, and the sum (n, n) over the classes of the blocks of S A⁻¹Sᵀ.

        That is M − Σ_c (√π_c Z_cᵀ)(Z_c √π_c) with :math:`Z_c = L^{-1} \sqrt{\pi_c}\, G_c^{-1}` and M = L Lᵀ. Costs C n³
        multiply-adds, and C n² further numbers meanwhile.
        """
        C, n = self.root.shape
        Z, total = self.root.new_empty(C, n, n), self.M.dense()
        blocks = self.root.T[:, :, None] * self.root.T[:, None, :]
        for c, (root, factor) in enumerate(zip(self.root, self.blocks, strict=True)):
            inverse = _inverse(factor)
            blocks[:, c, c] += inverse.diagonal()
            torch.mul(root[:, None], inverse, out=Z[c])
            solve_from_the_left(self.M.L, Z[c])
            total -= root[:, None] * scaled_gram(Z[c], torch.ones_like(root)) * root
        for c in range(C):
            for d in range(C):
                blocks[:, c, d] -= (Z[c] * Z[d]).sum(0)
        return blocks, total

    def _within(self, B: Tensor) -> Tensor:
        """Return G⁻¹B, B (n, C, k)."""
        return torch.stack([factor.solve(B[:, c].contiguous()) for c, factor in enumerate(self.blocks)], 1)


def _inverse(factor: CholeskyFactor) -> Tensor:
    """Return the inverse of the matrix that has this factor; the factor is kept."""
    if not factor.in_place:
        return factor.inverse()
    inverse = factor.L.clone()
    invert_in_place(inverse)
    return inverse
