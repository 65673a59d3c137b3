"""What the workers of a cluster do: each with its own best backend, on blocks of rows that are placed there once.

Arrays that travel are NumPy's, in float64. Sums of the parts of several tasks are made in the order of the blocks, so
that they do not depend on who computed what.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from kernelcg.backends.base import Points
from kernelcg.backends.file_rows import ALIGNMENT
from kernelcg.backends.neighbours import Piece as Ranks
from kernelcg.backends.neighbours import Search
from kernelcg.backends.registry import default
from kernelcg.backends.rounding import rounded_columns
from kernelcg.backends.row_sources import Floats, RowSource
from kernelcg.kernels import Kernel

Integers = NDArray[np.int64]

Piece = Sequence[tuple[Floats, ...]]
"""Rows of one or two matrices, for each of several blocks: small blocks travel together."""

Place = tuple[Piece, int]
"""A piece and the number of a block in it."""


def held(piece: Piece) -> Piece:
    """Return the piece: a task that brings data to a worker, and to another one if that is lost."""
    return piece


def placed(rows: Floats, centre: Tensor) -> Points:
    """Return a block of rows on the best backend of this worker, a GPU if it has one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return default(device=device).place(_tensor(rows).to(device), centre.to(device))


def placed_from(rows: slice, source: RowSource, centre: Tensor) -> Points:
    """Return the same of rows that this worker reads itself."""
    return placed(source.read(rows.start, rows.stop), centre)


def product_of_tile(
    rows: Points,
    columns: Points | None,
    V_of_columns: Place,
    V_of_rows: Place,
    kernel: Kernel,
    dtype: torch.dtype,
) -> tuple[Floats, ...]:
    """Return K(rows, columns) V and K(columns, rows) V, each pair computed once; K(rows, rows) V without columns."""
    K, (W,) = rows.bind(kernel), _found(V_of_rows)
    if columns is None:
        return (_array(K.product(_like(W, K.X), precision=dtype)),)
    (V,) = _found(V_of_columns)
    first, second = K._both_ways(columns.bind(kernel), _like(V, K.X), _like(W, K.X), dtype)
    return _array(first), _array(second)


def entries_of_tile(rows: Points, columns: Points | None, kernel: Kernel, dtype: torch.dtype) -> Tensor:
    """Return K(rows, columns), or K(rows, rows) without columns, which stays on this worker."""
    K = rows.bind(kernel)
    if columns is None:
        return K.block(precision=dtype)
    return columns.bind(kernel).cross_block(K.X, precision=dtype)


def product_of_entries(K: Tensor, V_of_columns: Place, V_of_rows: Place) -> tuple[Floats, ...]:
    """Return what `product_of_tile` does, from stored entries; for a tile on the diagonal both places are the same."""
    (V,), (W,) = _found(V_of_columns), _found(V_of_rows)
    K = K if K.data_ptr() % ALIGNMENT == 0 else K.clone()  # after it came from another worker
    return _multiplied(K, V), _multiplied(K.T, W)


def _multiplied(K: Tensor, V: Floats) -> Floats:
    columns, scale = rounded_columns(_like(V, K), K.dtype)
    return _array((K @ columns).double() * scale)


def columns_of(rows: Points, few: Points, kernel: Kernel, dtype: torch.dtype) -> Floats:
    """Return K(rows, few), which is sent to the process that asks."""
    return _array(few.bind(kernel).cross_block(rows.X, precision=dtype))


def rows_of_points(rows: Points, few: Points, kernel: Kernel, dtype: torch.dtype) -> Floats:
    """Return K(rows, few) as rows of new points are computed: those of the data are where they were."""
    return _array(rows.bind(kernel).cross_block(few.X, precision=dtype).T)


def product_of_columns(rows: Points, few: Points, V: Floats, kernel: Kernel, dtype: torch.dtype) -> Floats:
    """Return K(rows, few) V."""
    return _array(few.bind(kernel).cross(rows.X, _like(V, rows.X), precision=dtype))


def product_of_points(points: Floats, columns: Points, V: Place, kernel: Kernel, dtype: torch.dtype) -> Floats:
    """Return K(points, columns) V."""
    K, (own,) = columns.bind(kernel), _found(V)
    return _array(K.cross(_like(points, K.X), _like(own, K.X), precision=dtype))


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
    rows: Points, columns: Points | None, of_rows: Place, of_columns: Place, kernel: Kernel, dtype: torch.dtype
) -> Floats:
    """Return ∂/∂θ of Σ_j left_jᵀ K(rows, columns) right_j + Σ_j left_jᵀ K(columns, rows) right_j.

    The places are those of left and right. Without columns it is the first sum with K(rows, rows).
    """
    K, (left, right) = rows.bind(kernel), _found(of_rows)
    if columns is None:
        return _array(K.gradient(_like(left, K.X), _like(right, K.X), precision=dtype))
    its_left, its_right = _found(of_columns)
    L, R = np.hstack([left, right]), np.hstack([its_right, its_left])
    return _array(K._gradient_between(columns.bind(kernel), _like(L, K.X), _like(R, K.X), dtype))


def gradient_of_columns(
    rows: Points, columns: Points, left: Place, right: Floats, kernel: Kernel, dtype: torch.dtype
) -> Floats:
    """Return ∂/∂θ Σ_j left_jᵀ K(rows, columns) right_j."""
    K, (own,) = rows.bind(kernel), _found(left)
    return _array(K._gradient_between(columns.bind(kernel), _like(own, K.X), _like(right, K.X), dtype))


# neighbourhoods


def coordinates_of(rows: Points, kernel: Kernel) -> Floats:
    """Return the coordinates of some rows in which close means strongly correlated."""
    return _array(kernel.coordinates(rows.X.double()))


def search_in(coordinates: Sequence[Floats], order: Integers, count: int, budget: int) -> Search:
    """Return the search for earlier neighbours among the points of all blocks."""
    return Search.of(_tensor(np.concatenate(coordinates)), torch.from_numpy(np.array(order)), count, budget)


def tree_in(search: Search, stop: int) -> KDTree | None:
    """Return the tree of the points up to the end of a level."""
    return search.tree(stop)


def looked_up(search: Search, first: int, last: int, stop: int, tree: KDTree | None) -> Integers:
    """Return the ranks of the nearest earlier neighbours of some points of a level."""
    return search.look_up(Ranks(first, last, stop), tree).numpy()


def close_together(coordinates: Sequence[Floats]) -> Integers:
    """Return the numbers of all rows in an order in which most rows are near to those just before and after them."""
    points = np.concatenate(coordinates)
    found: Integers = KDTree(points).indices if points.shape[1] else np.arange(len(points))
    return found


def local_factors_of(
    rows: Floats,
    neighbours: Integers,
    F: Floats | None,
    scale: Floats | None,
    diagonal: Floats,
    wanted: Integers,
    kernel: Kernel,
    centre: Tensor,
) -> Floats:
    """Return some of the local factors, from the rows that they depend on."""
    K = placed(rows, centre).bind(kernel)
    own, places = (torch.from_numpy(np.array(one)).to(K.device) for one in (neighbours, wanted))
    F_there, scale_there = (None if one is None else _like(one, K.X) for one in (F, scale))
    return _array(K.local_factors(own, F_there, scale_there, _like(diagonal, K.X))[places])


def _found(place: Place) -> tuple[Floats, ...]:
    piece, number = place
    return piece[number]


def _tensor(values: Floats) -> Tensor:
    """Return a tensor of its own: what Dask hands over may be read-only.

    Its memory is torch's, aligned to 64 bytes: sums over other memory may differ in the last bit.
    """
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def _like(values: Floats, X: Tensor) -> Tensor:
    return _tensor(values).to(X.device)


def _array(values: Tensor) -> Floats:
    return values.double().cpu().numpy()
