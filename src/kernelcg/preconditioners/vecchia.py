"""Vecchia preconditioner."""

from typing import ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.backends import Backend
from kernelcg.backends.base import require_memory
from kernelcg.kernels import Kernel
from kernelcg.preconditioners.base import Preconditioner, checked_count
from kernelcg.preconditioners.neighbours import earlier_neighbours
from kernelcg.preconditioners.prepared import LowRankAndRemainder, SparseRemainder

NUMBERS_PER_NEIGHBOUR = 14
"""Numbers of eight bytes for each entry of G while it is made: values, transpose, their indices, temporaries."""


class Vecchia(Preconditioner):
    r"""Condition each point on its nearest earlier neighbours: a sparse factor of the inverse.

    In a random order, with :math:`J = N(i) \cup \{i\}` for the q nearest points N(i) before point i,

    .. math:: P^{-1} = G^\top G, \qquad g_i = A_{JJ}^{-1} e_i / \sqrt{e_i^\top A_{JJ}^{-1} e_i}

    (the other order, G Gᵀ, is no preconditioner). Strong where the lengthscale is short, which is where every
    low-rank approximation fails.

    References
    ----------
    Vecchia (1988); Kolotilina & Yeremin (1993), FSAI; Schäfer, Katzfuss & Owhadi (2021).
    """

    COST: ClassVar[str] = "build O(n q³) and a neighbour search, apply O(n q k)"
    EXACT_AT_FULL_RANK: ClassVar[bool] = True

    neighbours: int = 30
    """Earlier neighbours of each point, q."""

    def prepare(self, kernel: Kernel, X: Tensor, backend: Backend, generator: Generator) -> LowRankAndRemainder:
        return LowRankAndRemainder(None, sparse_remainder(kernel, X, backend, generator, self.neighbours, None))


def sparse_remainder(
    kernel: Kernel, X: Tensor, backend: Backend, generator: Generator, neighbours: int, F: Tensor | None
) -> SparseRemainder:
    """Order the points at random and find the earlier neighbours of each."""
    count = checked_count(neighbours, 0, max(len(X) - 1, 0), "neighbours")
    needed = 8 * len(X) * (count + 1) * NUMBERS_PER_NEIGHBOUR
    require_memory(needed, backend.budget(), f"{count} neighbours of each of {len(X)} rows")
    order = torch.randperm(len(X), generator=generator).to(X.device)
    found = earlier_neighbours(kernel.coordinates(X.double()), order, count, backend.budget())
    return SparseRemainder(kernel, X, backend, F, found, order)
