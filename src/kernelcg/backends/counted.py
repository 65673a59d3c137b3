"""Count the work that any backend does with K."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernelcg.backends.base import Backend
from kernelcg.kernels import Kernel


@dataclass
class Work:
    """Columns multiplied with a whole K so far."""

    columns: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Counted(Backend):
    """Pass everything on to ``base`` and count it, in columns multiplied with the n × n matrix of all ``rows``.

    A product with k columns counts k, a gradient of k pairs k, with a part of K in the proportion of its entries to
    n². Entries that are handed out count in that proportion once. An (n, n) tensor of weights, which only an exact
    evaluation has, counts n: the n³ of its factorisation are n products of n².
    """

    base: Backend
    rows: int
    work: Work = field(default_factory=Work)

    def _count(self, columns: float, entries: int) -> None:
        self.work.columns += columns * entries / self.rows**2

    def matmul(
        self, kernel: Kernel, X: Tensor, Y: Tensor, V: Tensor, *, precision: torch.dtype | None = None
    ) -> Tensor:
        self._count(V.shape[1], len(X) * len(Y))
        return self.base.matmul(kernel, X, Y, V, precision=precision)

    def stored_product(self, K: Tensor, V: Tensor) -> Tensor:
        self._count(V.shape[1], K.numel())
        return self.base.stored_product(K, V)

    def gradient(
        self,
        kernel: Kernel,
        X: Tensor,
        Y: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        weights: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        self._count(left.shape[1] + (0 if weights is None else len(weights)), len(X) * len(Y))
        return self.base.gradient(kernel, X, Y, left, right, weights=weights, precision=precision)

    def block(self, kernel: Kernel, X: Tensor, Y: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        self._count(1, len(X) * len(Y))
        return self.base.block(kernel, X, Y, precision=precision)

    def local_factors(
        self,
        kernel: Kernel,
        X: Tensor,
        neighbours: Tensor,
        F: Tensor | None,
        scale: Tensor | None,
        diagonal: Tensor,
    ) -> Tensor:
        self._count(1, len(X) * (neighbours.shape[1] + 1) ** 2)
        return self.base.local_factors(kernel, X, neighbours, F, scale, diagonal)


def counted(base: Backend, rows: int) -> Counted:
    """Return a backend that does what ``base`` does, and counts it."""
    return Counted(memory=base.memory, base=base, rows=rows)
