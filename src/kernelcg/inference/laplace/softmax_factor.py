"""The matrix of a softmax Newton step by Cholesky factors of n × n matrices, one a class and one for all."""

import torch
from torch import Tensor

from kernelcg.dense import multiply, scaled_gram, solve_from_the_left
from kernelcg.solvers import CholeskyFactor
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
        self.inverses = K.new_empty(C, n, n)  # G_c⁻¹
        logs = K.new_empty(C)

        def invert(part: slice) -> None:
            for c in range(part.start, part.stop):
                G = self.root[c][:, None] * K * self.root[c]
                G.diagonal().add_(1.0)
                factor = CholeskyFactor(G)
                logs[c] = factor.log_determinant()
                self.inverses[c] = factor.inverse()

        shared(invert, C, C if K.is_cuda else 1)
        M = torch.zeros_like(K)
        for root, inverse in zip(self.root, self.inverses, strict=True):
            M += root[:, None] * inverse * root
        self.M = CholeskyFactor(M)
        self._log_determinant = logs.sum() + self.M.log_determinant()

    def solve(self, B: Tensor) -> Tensor:
        """Return A⁻¹B, B (nC, k)."""
        C, n = self.root.shape
        B, root = B.reshape(n, C, -1), self.root.T[:, :, None]
        along = (root * B).sum(1, keepdim=True)
        within = self._blocks(B)
        across = self.M.solve((root * within).sum(1).contiguous())
        return (root * along + within - self._blocks(root * across[:, None])).reshape(n * C, -1)

    def log_determinant(self) -> Tensor:
        """Return log|A|."""
        return self._log_determinant

    def traced(self) -> tuple[Tensor, Tensor]:
        r"""Return the diagonal blocks (n, C, C) of A⁻¹, and the sum (n, n) over the classes of the blocks of S A⁻¹Sᵀ.

        That is M − Σ_c (√π_c Z_cᵀ)(Z_c √π_c) with :math:`Z_c = L^{-1} \sqrt{\pi_c}\, G_c^{-1}` and M = L Lᵀ. Costs C n³
        multiply-adds, and C n² further numbers meanwhile.
        """
        Z, total = torch.empty_like(self.inverses), self.M.dense()
        for root, inverse, own in zip(self.root, self.inverses, Z, strict=True):
            torch.mul(root[:, None], inverse, out=own)
            solve_from_the_left(self.M.L, own)
            total -= root[:, None] * scaled_gram(own, torch.ones_like(root)) * root
        blocks = self.root.T[:, :, None] * self.root.T[:, None, :]
        for c in range(len(Z)):
            blocks[:, c, c] += self.inverses[c].diagonal()
            for d in range(c + 1):
                both = (Z[c] * Z[d]).sum(0)
                blocks[:, c, d] -= both
                if d < c:
                    blocks[:, d, c] -= both
        return blocks, total

    def _blocks(self, B: Tensor) -> Tensor:
        """Return G⁻¹B, B (n, C, k)."""
        each = [multiply(inverse, B[:, c].contiguous()) for c, inverse in enumerate(self.inverses)]
        return torch.stack(each, 1)
