"""Dense linear algebra with hundreds of binary digits, on python-flint; imports nothing of the package.

A matrix is a grid of square tiles, each an `arb_mat`, since products of those are fast and access to entries is slow.
The radii of the intervals are dropped after each step: what is computed here is rounded, not enclosed, but with
`digits_for` enough digits that the error is below 2⁻⁸⁰ of the result, however ill-conditioned the matrix.
"""

import math
from collections.abc import Callable

import numpy as np
from flint import arb, arb_mat, ctx

TILE = 96
"""Rows of a tile; products of smaller ones are slower for their size, and factors of larger ones."""

SPARE = 110
"""Binary digits beyond those that the condition number takes away."""

Tiles = list[list[arb_mat]]


def digits_for(largest: float, least: float, n: int) -> int:
    """Return the binary digits with which an n × n matrix is factorised whose spectrum is within these limits."""
    return SPARE + 2 * math.ceil(math.log2(n + 1)) + max(0, math.ceil(math.log2(largest / least)))


def matrix(values: np.ndarray) -> arb_mat:
    """Return (n, m) numbers exactly: float64, or such of flint as objects."""
    n, m = values.shape
    given = values if values.dtype == object else np.asarray(values, np.float64)
    return arb_mat(n, m, [arb(value) for value in given.ravel().tolist()])


def without_dust(A: arb_mat, size: float) -> arb_mat:
    """Return A without entries that are rounding beside ``size``: products are slow where exponents range widely."""
    least = arb(size) * arb(2) ** -ctx.prec
    return arb_mat(A.nrows(), A.ncols(), [value if abs(value) > least else arb(0) for value in A.entries()])


def ranges(n: int) -> list[slice]:
    """Return the rows of each tile."""
    return [slice(first, min(first + TILE, n)) for first in range(0, n, TILE)]


def lower_tiles(entries: Callable[[slice, slice], arb_mat], n: int) -> Tiles:
    """Return the tiles of a symmetric matrix on and below the diagonal."""
    rows = ranges(n)
    return [[entries(rows[i], rows[j]) for j in range(i + 1)] for i in range(len(rows))]


class CholeskyFactor:
    """A = L Lᵀ, from the tiles of A on and below the diagonal."""

    def __init__(self, A: Tiles):
        self.L: Tiles = []
        self.inverses: list[arb_mat] = []
        for i, row in enumerate(A):
            found: list[arb_mat] = []
            for j in range(i):
                rest = row[j]
                for k in range(j):
                    rest = (rest - found[k] * self.L[j][k].transpose()).mid()
                found.append((rest * self.inverses[j].transpose()).mid())
            rest = row[i]
            for k in range(i):
                rest = (rest - found[k] * found[k].transpose()).mid()
            own = _factor(rest)
            self.L.append([*found, own])
            self.inverses.append(own.inv().mid())

    def whitened(self, B: list[arb_mat]) -> list[arb_mat]:
        """Return L⁻¹B; B and the result are lists of tiles of rows."""
        W: list[arb_mat] = []
        for i, row in enumerate(B):
            rest = row
            for j in range(i):
                rest = (rest - self.L[i][j] * W[j]).mid()
            W.append((self.inverses[i] * rest).mid())
        return W

    def log_determinant(self) -> arb:
        """Return log |A|."""
        logs = [row[-1][i, i].log() for row in self.L for i in range(row[-1].nrows())]
        return (2 * sum(logs, arb(0))).mid()


def _factor(A: arb_mat) -> arb_mat:
    """Return L of one tile, row by row."""
    n, rows = A.nrows(), A.tolist()
    L: list[list[arb]] = []
    for i in range(n):
        own: list[arb] = []
        for j in range(i):
            other = L[j]
            rest = rows[i][j]
            for k in range(j):
                rest = rest - own[k] * other[k]
            own.append((rest / other[j]).mid())
        rest = rows[i][i]
        for value in own:
            rest = rest - value * value
        rest = rest.mid()
        if not rest > 0:
            raise ArithmeticError(f"not positive definite with {ctx.prec} binary digits")
        L.append([*own, rest.sqrt().mid()])
    return arb_mat(n, n, [value for own in L for value in (*own, *[arb(0)] * (n - len(own)))])


def gram(W: list[arb_mat]) -> arb_mat:
    """Return WᵀW of a list of tiles of rows."""
    total = W[0].transpose() * W[0]
    for rows in W[1:]:
        total = total + rows.transpose() * rows
    return total.mid()
