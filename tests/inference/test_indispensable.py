"""Rows without which a linear drift is not determined, against ranks of fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from kernelcg.inference.gaussian.indispensable import indispensable


def rank(rows):
    """Return the rank of a matrix in exact arithmetic."""
    rows, found = [[Fraction(float(value)) for value in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column] != 0), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] / rows[found][column]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[found], strict=True)]
        found += 1
    return found


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_are_needed(seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    X = rng.integers(-1, 2, (n, d)) * 10.0 ** rng.integers(-300, 300, d)
    if seed % 3 == 0:
        X = X[rng.integers(n, size=n)] + (rng.random((n, 1)) < 0.2) * 1e-13 * rng.normal(size=(n, d))
    H = np.column_stack([np.ones(n), X])
    found, needed = indispensable(torch.from_numpy(X))
    assert found == rank(H)
    assert needed.tolist() == [rank(np.delete(H, i, 0)) < found for i in range(n)]
