"""Observations without which the others do not determine a linear drift, decided exactly."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PRIME = 2**31 - 1
"""Ranks are those of integers modulo this prime, whose products fit 64 bits: wrong once in 2³¹ times the entries."""

MANTISSA = 53

Integers = NDArray[np.int64]


def indispensable(X: Tensor) -> tuple[int, Tensor]:
    """Return the rank of the functions [1, x] on the rows of X, and (n,) flags of the rows without which it is less.

    Inputs are taken for the exact numbers that they are. Row i is one of these if the unit vector e_i is a combination
    of the columns of [1, X]: a column of their reduced echelon form with row i as its pivot is e_i. Costs n d² integer
    operations.
    """
    M = np.concatenate([np.ones((len(X), 1), dtype=np.int64), residues(X.cpu().numpy())], axis=1)
    needed, rank = np.zeros(len(M), dtype=np.bool_), 0
    pivots: list[int] = []
    for column in range(M.shape[1]):
        rows = np.flatnonzero(M[:, column])
        if len(rows) == 0:
            continue
        pivot, rank = int(rows[0]), rank + 1
        M[:, column] = M[:, column] * pow(int(M[pivot, column]), -1, PRIME) % PRIME
        others = np.flatnonzero(M[pivot]).tolist()
        for other in others:
            if other != column:
                M[:, other] = (M[:, other] - M[:, column] * M[pivot, other]) % PRIME
        pivots.append(pivot)
    single = (M != 0).sum(0) == 1
    for pivot in pivots:
        needed[pivot] = bool(single[M[pivot] != 0].all())
    return rank, torch.from_numpy(needed)


def residues(values: NDArray[np.float64]) -> Integers:
    """Return finite numbers m 2^e, as fractions if e < 0, modulo the prime."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, MANTISSA).astype(np.int64) % PRIME
    kinds, which = np.unique(exponents, return_inverse=True)
    powers = np.array([pow(2, int(kind) - MANTISSA, PRIME) for kind in kinds], dtype=np.int64)
    found: Integers = whole * powers[which.reshape(values.shape)] % PRIME
    return found
