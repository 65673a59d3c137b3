"""Matrices of stationary kernels on regular grids, and their fast products."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from scipy.fft import next_fast_len
from torch import Tensor

DENSE_UP_TO = 256
"""Toeplitz matrices up to this size are multiplied faster as they stand than by FFT."""


@dataclass(frozen=True, eq=False)
class Toeplitz:
    """A symmetric matrix T_ij = t(i − j) for multi-indices i, j of a grid, by FFT of its circulant embedding.

    A circulant over L ≥ 2g − 1 points in each direction contains T as a block; a product with it is pointwise in
    Fourier space. Each direction is padded only when its turn comes and cut at once on the way back. Costs
    O(∏L log ∏L) for each column.
    """

    spectrum: Tensor
    shape: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, circulant: Tensor, shape: tuple[int, ...]) -> Self:
        """Embed: ``circulant`` holds t(δ) at δ mod L, and t(−δ) = t(δ), so its transform is real."""
        Z = _fourier(circulant[None, ..., None], tuple(circulant.shape))
        return cls(Z[0].real.clone(), shape, tuple(circulant.shape))

    def __matmul__(self, U: Tensor) -> Tensor:
        """Return T U for U of shape (batch, g_1, ..., g_r, columns)."""
        last = len(self.shape)
        Z = _fourier(U, self.lengths)
        Z *= self.spectrum
        for r in range(1, last):
            Z = torch.fft.ifft(Z, dim=r).narrow(r, 0, self.shape[r - 1])
        return torch.fft.irfft(Z, n=self.lengths[-1], dim=last).narrow(last, 0, self.shape[-1])


def _fourier(U: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the transform of real U in its directions 1, 2, ... padded to these lengths; half of it in the last.

    One direction at a time, since libraries limit how many they take together.
    """
    Z = torch.fft.rfft(U, n=lengths[-1], dim=len(lengths))
    for r in range(len(lengths) - 1, 0, -1):
        Z = torch.fft.fft(Z, n=lengths[r - 1], dim=r)
    return Z


def toeplitz(column: Tensor) -> Tensor | Toeplitz:
    """Return the symmetric Toeplitz matrix with this first column: itself if it is small, else for FFT."""
    g = len(column)
    if g <= DENSE_UP_TO:
        i = torch.arange(g, device=column.device)
        return column[(i[:, None] - i).abs()]
    (length,) = embedding((g,))
    padding = column.new_zeros(length - 2 * g + 1)
    return Toeplitz.of(torch.cat([column, padding, column[1:].flip(0)]), (g,))


@dataclass(frozen=True, eq=False)
class OnGrid:
    """Part of a matrix T over a whole grid: the rows and columns of the points ``cells``."""

    T: Toeplitz
    cells: Tensor

    def __matmul__(self, V: Tensor) -> Tensor:
        k, shape = V.shape[1], self.T.shape
        U = V.new_zeros(k, math.prod(shape)).index_copy_(1, self.cells, V.T)
        return (self.T @ U.reshape(k, *shape, 1)).reshape(k, -1).index_select(1, self.cells).T


@dataclass(frozen=True, eq=False)
class Contraction:
    """One direction of a Kronecker product, of g points: replace its input index by its output index.

    What goes in is indexed by the input indices up to this direction and the output indices after it, as far as
    they occur among the grid points wanted. ``heads`` and ``tails`` count those before and after this direction;
    ``rows`` places what occurs into (heads, g), ``columns`` picks from (g, tails) what will be needed.
    """

    factor: Tensor | Toeplitz
    g: int
    heads: int
    rows: Tensor
    tails: int
    columns: Tensor

    @classmethod
    def of(cls, factor: Tensor | Toeplitz, g: int, after: int, cells: Tensor) -> Self:
        """Return the contraction of a direction with ``after`` points of later directions behind each of its g."""
        inner = (cells // after).unique_consecutive()
        heads = (inner // g).unique_consecutive()
        tails, outer = (cells % after).unique(), (cells % (after * g)).unique()
        rows = torch.searchsorted(heads, inner // g) * g + inner % g
        columns = outer // after * len(tails) + torch.searchsorted(tails, outer % after)
        return cls(factor, g, len(heads), rows, len(tails), columns)

    def __call__(self, A: Tensor) -> Tensor:
        k = len(A)
        U = A.new_zeros(k, self.heads * self.g, self.tails).index_copy_(1, self.rows, A)
        if self.tails == 1 and isinstance(self.factor, Tensor):
            U = U.reshape(-1, self.g) @ self.factor  # symmetric: one product in place of many small ones
        else:
            U = self.factor @ U.reshape(-1, self.g, self.tails)
        return U.reshape(k, self.heads, -1).index_select(2, self.columns)


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Rows and columns ``cells`` of T₁ ⊗ … ⊗ T_r: one direction after the other, from the last to the first.

    No intermediate result holds more than the leading indices that occur times the trailing indices that occur.
    """

    contractions: tuple[Contraction, ...]

    @classmethod
    def of(cls, factors: list[Tensor | Toeplitz], cells: Tensor) -> Self:
        steps: list[Contraction] = []
        after = 1
        for factor in reversed(factors):
            g = factor.shape[0]
            steps.append(Contraction.of(factor, g, after, cells))
            after *= g
        return cls(tuple(steps))

    def __matmul__(self, V: Tensor) -> Tensor:
        A = V.T[:, :, None]
        for contract in self.contractions:
            A = contract(A)
        return A[:, 0].T


def embedding(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return lengths of at least 2g − 1 whose FFT is fast; up to 15 every odd one is, and too large ones never run."""
    return tuple(int(next_fast_len(2 * g - 1, real=True)) if 8 < g < 2**40 else 2 * g - 1 for g in shape)
