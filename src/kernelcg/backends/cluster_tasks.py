"""What the workers of a cluster do: each with its own best backend, on blocks of rows that are placed there once.

Arrays that travel are NumPy's, in float64. Sums of the parts of several tasks are made in the order of the blocks, so
that they do not depend on who computed what.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.backends.base import Points
from kernelcg.backends.file_rows import FileRows
from kernelcg.backends.registry import default
from kernelcg.kernels import Kernel

Floats = NDArray[np.float64]


def held(value: Floats) -> Floats:
    """Return the value: a task that brings data to a worker, and to another one if that is lost."""
    return value


def placed(rows: Floats, centre: Tensor) -> Points:
    """Return a block of rows on the best backend of this worker, a GPU if it has one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return default(device=device).place(_tensor(rows).to(device), centre.to(device))


def placed_from_file(rows: slice, source: FileRows, centre: Tensor) -> Points:
    """Return the same of rows that this worker reads from a file."""
    return placed(source.read(rows.start, rows.stop), centre)


def product_of_tile(
    rows: Points, columns: Points | None, V: Floats, W: Floats | None, kernel: Kernel, dtype: torch.dtype
) -> tuple[Floats, Floats | None]:
    """Return K(rows, columns) V and K(columns, rows) W; K(rows, rows) V if there are no columns."""
    K = rows.bind(kernel)
    if columns is None or W is None:
        return _array(K.product(_like(V, K.X), precision=dtype)), None
    first, second = K._both_ways(columns.bind(kernel), _like(V, K.X), _like(W, K.X), dtype)
    return _array(first), _array(second)


def product_of_points(points: Floats, columns: Points, V: Floats, kernel: Kernel, dtype: torch.dtype) -> Floats:
    """Return K(points, columns) V."""
    K = columns.bind(kernel)
    return _array(K.cross(_like(points, K.X), _like(V, K.X), precision=dtype))


def total(parts: Sequence[tuple[Floats, ...]], places: Sequence[int]) -> Floats:
    """Return the sum of one array of each part, in their order."""
    result = parts[0][places[0]].copy()
    for part, place in zip(parts[1:], places[1:], strict=True):
        result += part[place]
    return result


def sum_of(parts: Sequence[Floats]) -> Floats:
    """Return the sum of some arrays, in their order."""
    return total([(part,) for part in parts], [0] * len(parts))


def gradient_of_tile(
    rows: Points, columns: Points | None, left: Floats, right: Floats, kernel: Kernel, dtype: torch.dtype
) -> Floats:
    """Return ∂/∂θ Σ_j left_jᵀ K(rows, columns) right_j; K(rows, rows) if there are no columns."""
    K = rows.bind(kernel)
    L, R = _like(left, K.X), _like(right, K.X)
    if columns is None:
        return _array(K.gradient(L, R, precision=dtype))
    return _array(K._gradient_between(columns.bind(kernel), L, R, dtype))


def gradient_of_pairs(
    rows: Points,
    columns: Points | None,
    mine: tuple[Floats, Floats],
    theirs: tuple[Floats, Floats],
    kernel: Kernel,
    dtype: torch.dtype,
) -> Floats:
    """Return the gradient of both tiles K(rows, columns) and K(columns, rows) of Σ_j left_jᵀ K right_j.

    ``mine`` and ``theirs`` are left and right of the rows and of the columns.
    """
    if columns is None:
        return gradient_of_tile(rows, None, *mine, kernel, dtype)
    (left, right), (its_left, its_right) = mine, theirs
    return gradient_of_tile(rows, columns, np.hstack([left, right]), np.hstack([its_right, its_left]), kernel, dtype)


def _tensor(values: Floats) -> Tensor:
    """Return a tensor of its own: what Dask hands over may be read-only."""
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _like(values: Floats, X: Tensor) -> Tensor:
    return _tensor(values).to(X.device)


def _array(values: Tensor) -> Floats:
    return values.double().cpu().numpy()
