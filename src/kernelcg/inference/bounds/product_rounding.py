"""How far products with K in float64 may be off, row by row: one row far away does not spoil the others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.inference.bounds.rounding import (
    ENTIRELY_WRONG,
    ENTRY_ERROR,
    UNIT_ROUNDOFF,
    lengths_from,
    possible_origins,
)
from kernelcg.kernels import Constant, Kernel, Product
from kernelcg.kernels.stationary import Stationary
from kernelcg.sums import sums_of_groups

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
    similar length: those of a row far away from all others are harmless to them, and theirs to it. The parts of a sum
    are bounded one by one.
    """

    root: Tensor  # (n,) √k_ii
    parts: "tuple[_Part, ...]"

    @classmethod
    def of(cls, K: KernelMatrix) -> "ProductRounding":
        """Return it for the data of K."""
        kernel, X = K.kernel, K.X.detach().double()
        parts = (_Part.of(part, X, origins) for part, origins in possible_origins(kernel, X, K.points.centre))
        return cls(_root(kernel, X), tuple(parts))

    def of_product(self, V: Tensor) -> Tensor:
        """Return (n, k) how far K V may be off, V (n, k)."""
        return sum((part.of_product(V.abs()) for part in self.parts), torch.zeros_like(V))

    def of_cross(self, X: Tensor, V: Tensor) -> Tensor:
        """Return (t, k) how far k(X, data) V may be off, V (n, k)."""
        zero = V.new_zeros(len(X), V.shape[1])
        return sum((part.of_cross(X, V.abs(), slice(None)) for part in self.parts), zero)

    def of_forms(self, X: Tensor, V: Tensor) -> Tensor:
        """Return (t,) how far k(x_j, data) v_j may be off, V (n, t): each column for its own point."""
        own = torch.arange(len(X), device=X.device)
        return sum((part.of_cross(X, V.abs(), own) for part in self.parts), X.new_zeros(len(X)))


def _root(kernel: Kernel, X: Tensor) -> Tensor:
    return kernel.diagonal(X).detach().double().clamp_min(0.0).sqrt()


def _falls_with_distance(kernel: Kernel) -> bool:
    """Say whether it is a stationary correlation for which `FAR_APART` holds, perhaps times a constant."""
    if isinstance(kernel, Product) and isinstance(kernel.left, Constant):
        return _falls_with_distance(kernel.right)
    if isinstance(kernel, Product) and isinstance(kernel.right, Constant):
        return _falls_with_distance(kernel.left)
    return isinstance(kernel, Stationary)


@dataclass(frozen=True, eq=False)
class _Part:
    """One term of a sum of kernels."""

    kernel: Kernel
    X: Tensor  # (n, d)
    origins: tuple[Tensor, ...]  # (d,) what may be subtracted before the formula sees the inputs
    root: Tensor  # (n,)
    lengths: Tensor  # (n,) r
    is_local: bool
    """Whether lengths count between rows of similar length only."""

    @classmethod
    def of(cls, kernel: Kernel, X: Tensor, origins: tuple[Tensor, ...]) -> "_Part":
        lengths = _lengths(kernel, X, origins)
        return cls(kernel, X, origins, _root(kernel, X), lengths, _falls_with_distance(kernel))

    def of_product(self, V: Tensor) -> Tensor:
        sizes = self.root[:, None] * V
        near, far = (self._similar(self.lengths, part, slice(None)) for part in self._parts(sizes))
        if self.is_local:  # a row is at no distance from itself
            near, far = near - sizes, far - self.lengths[:, None] * sizes
        return self.root[:, None] * self._wrong(sizes, self.lengths[:, None], near, far)

    def of_cross(self, X: Tensor, V: Tensor, columns: slice | Tensor) -> Tensor:
        """Return (t, k) bounds for all columns, or (t,) for one column a point."""
        sizes, root, lengths = self.root[:, None] * V, _root(self.kernel, X), _lengths(self.kernel, X, self.origins)
        near, far = (self._similar(lengths, part, columns) for part in self._parts(sizes))
        for i in (lengths > LONG).nonzero()[:, 0].tolist() if self.is_local else ():
            same = (X[i] == self.X).all(1)  # rows of the data are at no distance from themselves
            here = columns if isinstance(columns, slice) else slice(i, i + 1)
            near[i] -= sizes[same, here].sum(0).squeeze()
            far[i] -= (self.lengths[:, None] * sizes)[same, here].sum(0).squeeze()
        if isinstance(columns, slice):
            root, lengths = root[:, None], lengths[:, None]
        return root * self._wrong(sizes, lengths, near, far)

    def _parts(self, sizes: Tensor) -> tuple[Tensor, Tensor]:
        return sizes, self.lengths[:, None] * sizes

    def _wrong(self, sizes: Tensor, lengths: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Return the sums of |δk_ij| / √k_ii times |v_j| from the sizes √k_jj |v_j| (n, k)."""
        total = sizes.sum(0)
        units = (ENTRY_ERROR + FAR_APART + 2 * math.sqrt(len(sizes))) * UNIT_ROUNDOFF
        wrong = 2 * UNIT_ROUNDOFF * (lengths * near.clamp_min(0.0) + far.clamp_min(0.0))
        return units * total + torch.minimum(wrong, ENTIRELY_WRONG * total)

    def _similar(self, lengths: Tensor, sizes: Tensor, columns: Tensor | slice) -> Tensor:
        """Return the sums of sizes (n, k) over the rows that count for points of these lengths (t,)."""
        if not self.is_local:
            everyone = torch.arange(len(lengths), device=lengths.device)
            return sizes.sum(0).expand(len(lengths), -1)[everyone, columns].clone()
        own = sums_of_groups(sizes, _level(self.lengths) + 1, LEVELS + 2)
        return (own[:-2] + own[1:-1] + own[2:])[_level(lengths), columns]


def _level(lengths: Tensor) -> Tensor:
    """Return the power of two below a length, 0 if it is less than 1."""
    return lengths.clamp(1.0, torch.finfo(torch.float64).max).log2().floor().long()


def _lengths(kernel: Kernel, X: Tensor, origins: tuple[Tensor, ...]) -> Tensor:
    """Return the lengths as formulas see X: a backend may centre a stationary part of a sum that cannot be centred."""
    return torch.stack([lengths_from(kernel, X, origin) for origin in origins]).amax(0)
