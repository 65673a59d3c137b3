"""Trial solutions of A v = k from the rows nearest to new points: upper bounds of variances without products with K."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from kernelcg.operators import KernelPlusDiagonal
from kernelcg.threads import allowed

MATRICES = 3
"""Matrices as large as the kernel matrix of a neighbourhood that a trial holds at once."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Trial solutions for a group of g new points, all on the same rows J.

    Attributes
    ----------
    rows : (j,) J
    v : (j, g) entries of the trial solutions there; they are zero elsewhere
    explained : (g,) 2kᵀv − vᵀAv = k_Jᵀ A_JJ⁻¹ k_J, which is kᵀA⁻¹k or less
    R : (n, g) residuals k − Av
    """

    rows: Tensor
    v: Tensor
    explained: Tensor
    R: Tensor


def trial(A: KernelPlusDiagonal, rows: Tensor, K: Tensor) -> Trial:
    """Return v with v_J = A_JJ⁻¹ k_J for the columns k of K (n, g): the solution on the rows J alone.

    Costs j³/3 + j² g multiply-adds and n j kernel values, in the precision of the products with A.
    """
    A_JJ, D = A.kernel_block(rows), A.diagonal[rows]
    A_JJ.diagonal().add_(D)
    L, failed = torch.linalg.cholesky_ex(A_JJ)
    if bool(failed):  # rounding: no trial is better than a wrong one
        return Trial(rows, K.new_zeros(len(rows), K.shape[1]), K.new_zeros(K.shape[1]), K)
    W = torch.linalg.solve_triangular(L, K[rows], upper=False)
    v = torch.linalg.solve_triangular(L.mT, W, upper=True).contiguous()
    R = K - A.K.product_of_columns(rows, v, precision=A.precision)
    R[rows] -= D[:, None] * v
    return Trial(rows, v, W.square().sum(0), R)


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The rows of X near new points, and groups of new points that are near one another."""

    tree: KDTree
    coordinates: NDArray[np.float64]  # (t, c) of the new points
    groups: list[Tensor]
    threads: int

    @classmethod
    def of(cls, A: KernelPlusDiagonal, points: Tensor, size: int) -> "Neighbourhoods | None":
        """Return groups of at most ``size`` points; None for a kernel without coordinates, such as a constant."""
        both = A.kernel.coordinates(torch.cat([A.X.double(), points])).cpu()
        if not both.shape[1] or not bool(both.isfinite().all()):
            return None
        data, new = both[: len(A)].numpy(), both[len(A) :]
        threads = A.backend.threads or allowed()
        return cls(KDTree(data), new.numpy(), grouped(new, size), threads)

    def batches(self, columns: int) -> Iterator[list[Tensor]]:
        """Yield as many groups together as have no more points than there may be columns."""
        some: list[Tensor] = []
        for group in self.groups:
            if some and sum(map(len, some)) + len(group) > columns:
                yield some
                some = []
            some = [*some, group]
        if some:
            yield some

    def rows(self, group: Tensor, q: int) -> Tensor:
        """Return the q rows nearest to each point of the group, all together, in ascending order."""
        asked = range(1, min(q, self.tree.n) + 1)
        found = self.tree.query(self.coordinates[group.numpy()], k=asked, workers=self.threads)[1]
        return torch.from_numpy(np.unique(found))


def points_within(memory: float, most: int, n: int, q: int, matrices: int = MATRICES) -> int:
    """Return of how many points, ``most`` at most, the matrices of their q rows each among n fit so many bytes."""
    rows = math.isqrt(int(memory) // (8 * matrices))
    return most if n <= rows else min(most, rows // q)


def grouped(points: Tensor, size: int) -> list[Tensor]:
    """Return the row numbers of the points in groups of at most ``size``, halved at the median of the widest side."""
    waiting, done = [torch.arange(len(points))], []
    while waiting:
        some = waiting.pop()
        if len(some) <= size:
            done.append(some)
            continue
        own = points[some]
        side = int((own.amax(0) - own.amin(0)).argmax())
        order = own[:, side].argsort(stable=True)
        half = len(some) // 2
        waiting += [some[order[half:]], some[order[:half]]]
    return done
