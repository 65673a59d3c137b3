"""Low rank plus diagonal with the factor stored in float32: half of the memory, and no other block of its size."""

from torch import Generator, Tensor

from kernelcg.dense import inner, multiply, scaled_gram
from kernelcg.randomness import normal
from kernelcg.solvers.direct import CholeskyFactor


class RoundedLowRank:
    r"""P = S F Fᵀ S + D with F in float32, by its small square matrix in float64.

    With W = D^-½ S F,

    .. math:: P^{-1} = D^{-\frac12} (I - W (I + W^\top W)^{-1} W^\top) D^{-\frac12}, \qquad
        \log|P| = \log|D| + \log|I + W^\top W|.

    P is that of the rounded F, exactly; all arithmetic is in float64, on a part of the rows at a time. What cancels is
    1e-16 of the condition number of P: where K itself may be rounded to float32, since that leaves the noise alone, so
    little of it that P serves as a preconditioner. It does not serve for certificates.
    Costs n m² multiply-adds to make and 2 n m k to apply; nothing of the size of F is stored beside it.

    Parameters
    ----------
    F : (n, m) the low-rank factor, in float32
    diagonal : (n,) D, positive
    scale : (n,) S; None means I

    Examples
    --------
    >>> import torch
    >>> from kernelcg.preconditioners import RoundedLowRank
    >>> P = RoundedLowRank(torch.ones(2, 1), torch.ones(2).double())  # [[2, 1], [1, 2]]
    >>> P.solve(torch.tensor([[3.0], [3.0]]).double()).T.round(decimals=4)
    tensor([[1., 1.]], dtype=torch.float64)
    """

    is_constant = True

    def __init__(self, F: Tensor, diagonal: Tensor, scale: Tensor | None = None):
        self.F, self.root = F, diagonal.sqrt()[:, None]
        self.weights = (1 / self.root if scale is None else scale[:, None] / self.root).double()  # (n, 1)
        square = scaled_gram(F, self.weights[:, 0])
        square.diagonal().add_(1.0)
        self.square = CholeskyFactor(square)

    def __len__(self) -> int:
        return len(self.F)

    @property
    def rank(self) -> int:
        """Return m."""
        return self.F.shape[1]

    def solve(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R."""
        Z = R.double() / self.root
        inside = self.square.solve(inner(self.F, self.weights * Z))
        return ((Z - self.weights * multiply(self.F, inside)) / self.root).to(R.dtype)

    def log_determinant(self) -> Tensor:
        """Return log|P|."""
        return 2 * self.root.log().sum() + self.square.log_determinant()

    def sample(self, generator: Generator, k: int) -> Tensor:
        """Return (n, k) draws D^½ (W ε₁ + ε₂) from N(0, P)."""
        low_rank = normal(self.rank, k, generator, like=self.root)
        return self.root * (self.weights * multiply(self.F, low_rank) + normal(len(self), k, generator, like=self.root))

    def dense(self) -> Tensor:
        """Return P."""
        SF = self.root * self.weights * self.F
        return SF @ SF.T + self.root.square()[:, 0].diag()

    @property
    def numbers(self) -> int:
        """Return how many floating-point numbers of eight bytes are stored."""
        return self.F.numel() // 2 + self.rank**2 + 2 * len(self)
