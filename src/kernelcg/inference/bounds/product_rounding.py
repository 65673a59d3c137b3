"""How far products with K in float64 may be off, row by row: one row far away does not spoil the others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.backends.rounding import origin_of
from kernelcg.inference.bounds.rounding import ENTIRELY_WRONG, ENTRY_ERROR, UNIT_ROUNDOFF
from kernelcg.kernels import Kernel
from kernelcg.kernels.stationary import Stationary

FAR_APART = 12
"""Error of a stationary correlation, in units of rounding, between two rows whose lengths differ by a factor above 2.

Their distance s is at least a third of the sum of their lengths, so that it is known to a relative error of 6u, and
s |k'(s)| ≤ 1 for every correlation of `Stationary`; as much again is left for the distance itself.
"""

LONG = 1e6
"""Lengths beyond which it is looked for rows of the data among new points: they are at no distance from themselves."""

LEVELS = 1100
"""Powers of two that a float64 number ≥ 1 can have, and more."""


@dataclass(frozen=True, eq=False)
class ProductRounding:
    r"""Bounds of the rounding of K v and of k(x, X) v.

    The entries are off by :math:`|\delta k_{ij}| \le u (e + 2 (r_i + r_j)) \sqrt{k_{ii} k_{jj}}` with the lengths r of
    `Kernel.rounding_lengths` and e counting arithmetic and the accumulation of n terms, which grows as √n with
    overwhelming probability (Higham & Mary 2019). For a stationary kernel the lengths count only between rows of
    similar length: those of a row far away from all others are harmless to them, and theirs to it.
    """

    kernel: Kernel
    X: Tensor  # (n, d)
    centre: Tensor  # (d,)
    origin: Tensor  # (d,)
    root: Tensor  # (n,) √k_ii
    lengths: Tensor  # (n,) r

    @classmethod
    def of(cls, K: KernelMatrix) -> "ProductRounding":
        """Return it for the data of K."""
        kernel, centre, X = K.kernel, K.points.centre, K.X.detach().double()
        origin = origin_of(kernel, X, centre)
        root = kernel.diagonal(X).detach().double().clamp_min(0.0).sqrt()
        return cls(kernel, X, centre, origin, root, _lengths(kernel, X, origin, centre))

    def of_product(self, V: Tensor) -> Tensor:
        """Return (n, k) how far K V may be off, V (n, k)."""
        sizes = self.root[:, None] * V.abs()
        near, far = (self._similar(self.lengths, part) for part in self._parts(sizes))
        if isinstance(self.kernel, Stationary):  # a row is at no distance from itself
            near, far = near - sizes, far - self.lengths[:, None] * sizes
        return self.root[:, None] * self._wrong(sizes, self.lengths[:, None], near, far)

    def of_cross(self, X: Tensor, V: Tensor) -> Tensor:
        """Return (t, k) how far k(X, data) V may be off, V (n, k)."""
        sizes, lengths, same = self.root[:, None] * V.abs(), self._lengths_of(X), self._same_rows(X)
        near, far = (self._similar(lengths, part) - same @ part for part in self._parts(sizes))
        return self._root(X)[:, None] * self._wrong(sizes, lengths[:, None], near, far)

    def of_forms(self, X: Tensor, V: Tensor) -> Tensor:
        """Return (t,) how far k(x_j, data) v_j may be off, V (n, t): each column for its own point."""
        sizes, lengths, same = self.root[:, None] * V.abs(), self._lengths_of(X), self._same_rows(X)
        own = torch.arange(len(X), device=X.device)
        near, far = (self._similar(lengths, part, own) - (same.T * part).sum(0) for part in self._parts(sizes))
        return self._root(X) * self._wrong(sizes, lengths, near, far)

    def _parts(self, sizes: Tensor) -> tuple[Tensor, Tensor]:
        return sizes, self.lengths[:, None] * sizes

    def _wrong(self, sizes: Tensor, lengths: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Return the sums of |δk_ij| / √k_ii times |v_j| from the sizes √k_jj |v_j| (n, k)."""
        total = sizes.sum(0)
        units = (ENTRY_ERROR + FAR_APART + 2 * math.sqrt(len(sizes))) * UNIT_ROUNDOFF
        wrong = 2 * UNIT_ROUNDOFF * (lengths * near.clamp_min(0.0) + far.clamp_min(0.0))
        return units * total + torch.minimum(wrong, ENTIRELY_WRONG * total)

    def _similar(self, lengths: Tensor, sizes: Tensor, columns: Tensor | slice = slice(None)) -> Tensor:
        """Return the sums of sizes (n, k) over the rows that count for points of these lengths (t,)."""
        if isinstance(self.kernel, Stationary):
            return self._of_similar_length(sizes)[_level(lengths), columns]
        return sizes.sum(0).expand(len(lengths), -1)[torch.arange(len(lengths)), columns]

    def _same_rows(self, X: Tensor) -> Tensor:
        """Return (t, n) 1 where a point is a row of the data; looked for where lengths make a difference."""
        same = X.new_zeros(len(X), len(self.X))
        if isinstance(self.kernel, Stationary):
            for i in (self._lengths_of(X) > LONG).nonzero()[:, 0].tolist():
                same[i] = (X[i] == self.X).all(1).to(X)
        return same

    def _of_similar_length(self, sizes: Tensor) -> Tensor:
        """Return (LEVELS, k) sums of sizes over the data whose lengths are within a factor of 2 of each power of 2."""
        own = sizes.new_zeros(LEVELS + 2, sizes.shape[1]).index_add(0, _level(self.lengths) + 1, sizes)
        return own[:-2] + own[1:-1] + own[2:]

    def _root(self, X: Tensor) -> Tensor:
        return self.kernel.diagonal(X).detach().clamp_min(0.0).sqrt()

    def _lengths_of(self, X: Tensor) -> Tensor:
        return _lengths(self.kernel, X, self.origin, self.centre)


def _level(lengths: Tensor) -> Tensor:
    """Return the power of two below a length, 0 if it is less than 1."""
    return lengths.clamp(1.0, torch.finfo(torch.float64).max).log2().floor().long()


def _lengths(kernel: Kernel, X: Tensor, origin: Tensor, centre: Tensor) -> Tensor:
    """Return the lengths as formulas see X: a backend may centre a stationary part of a sum that cannot be centred."""
    lengths = kernel.rounding_lengths(X - origin)
    return lengths if kernel.is_stationary else torch.maximum(lengths, kernel.rounding_lengths(X - centre))
