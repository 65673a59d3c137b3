"""Data and kernel matrices in blocks of rows on the workers of a Dask cluster."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.backends import cluster_tasks as tasks
from kernelcg.backends.base import KernelMatrix, Points, Rows, rows_of
from kernelcg.backends.checks import chosen_precision
from kernelcg.backends.cluster_neighbourhoods import local_factors_by_workers, neighbours_by_workers
from kernelcg.backends.dask_rows import DaskRows
from kernelcg.backends.memory import require_memory
from kernelcg.backends.registry import default

if TYPE_CHECKING:
    from distributed import Future

    from kernelcg.backends.dask import Dask

    PlaceSent = tuple[Future[Any], int]

CHUNKS_AT_ONCE = 16
"""Blocks of points whose predictions are under way at the same time: this process holds no more of them."""

ROW_COPIES = 16
"""Numbers of each feature and row that may exist while entries are computed here, work space included."""

MANY_FEATURES = 50
"""Features from which on an entry of K takes longer to compute than to send."""

PIECE_BYTES = 4_000_000
"""Bytes that are sent at once, where there are so many: smaller pieces cost more time for their number."""


@dataclass(frozen=True, eq=False)
class DaskPoints(Points):
    """Data in blocks of rows, on the workers from the first product on; the centred copy exists there alone."""

    dask: "Dask"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data: they are placed on the machine where they are unpickled."""
        return _placed_here, (self.dask.memory, self.dask.threads, self.X, self.centre)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Return the rows of each block."""
        return self.dask.slices(len(self.X))

    @property
    def size(self) -> int:
        """Return the rows of the largest block."""
        return max(some.stop - some.start for some in self.slices)

    @cached_property
    def here(self) -> Points:
        """Return the same data for work in this process."""
        return self.dask.here.place(self.X, self.centre)

    @property
    def blocks(self) -> "list[Future[Any]]":
        """Return the blocks on the workers.

        The scheduler keeps what they are made from, and has them made again when a worker is lost. A scheduler that was
        started again is sent everything anew.
        """
        if any(block.cancelled() for block in self._sent):
            del self.__dict__["_sent"]
        return self._sent

    @cached_property
    def _sent(self) -> "list[Future[Any]]":
        """Return the blocks, sent now to workers whose versions are checked before that."""
        cluster = self.dask.cluster
        cluster.require_workers()
        reference = self.dask.reference
        if reference is None or not self.is_by_reference:
            return cluster.map(tasks.placed, [_array(self.X[some]) for some in self.slices], centre=self.centre)
        if isinstance(reference.source, DaskRows):
            parts = [reference.source.array[some] for some in self.slices]
            return cluster.map(tasks.placed, cluster.client.compute(parts), centre=self.centre)
        return cluster.map(tasks.placed_from, self.slices, source=reference.source, centre=self.centre)

    @property
    def is_by_reference(self) -> bool:
        """Whether X is mapped from a file and the workers read it themselves."""
        return self.dask.reference is not None and self.dask.reference.holds(self.X)


@dataclass(frozen=True, eq=False, repr=False)
class DaskMatrix(KernelMatrix):
    """K in square tiles of blocks of rows, those on and above the diagonal: one task each."""

    dask: "Dask"
    placed: DaskPoints
    entries: "tuple[torch.dtype, tuple[Future[Any], ...]] | None" = None
    """The tiles on the workers, in the order of `tiles`, if K is stored."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Points.bind, (self.placed, self.kernel)

    @property
    def here(self) -> KernelMatrix:
        """Return the same matrix for work in this process."""
        return self.placed.here.bind(self.kernel)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Return the numbers of the blocks of every tile, those off the diagonal first since they take longer."""
        count = len(self.placed.slices)
        pairs = [(i, j) for i in range(count) for j in range(i, count)]
        return sorted(pairs, key=lambda pair: pair[0] == pair[1])

    def stored(self, precision: torch.dtype | None = None) -> KernelMatrix:
        """Return K with the entries of its tiles kept on the workers, if those on and above the diagonal fit there.

        The entries of a lost worker are computed again by others.
        """
        if not self.dask.cluster.is_open:
            return self.here.stored(precision)
        dtype, cluster, pairs = chosen_precision(self.X, precision), self.dask.cluster, self.tiles
        sizes, n = [some.stop - some.start for some in self.placed.slices], len(self)
        needed = dtype.itemsize * sum(sizes[i] * sizes[j] for i, j in pairs)
        require_memory(needed, self.dask.memory_of_workers(), f"storing the {n} x {n} kernel matrix on the workers")
        X = self.placed.blocks
        columns = [None if i == j else X[j] for i, j in pairs]
        entries = cluster.map(tasks.entries_of_tile, [X[i] for i, _ in pairs], columns, kernel=self.kernel, dtype=dtype)
        return replace(self, entries=(dtype, tuple(entries)))

    @property
    def is_stored(self) -> bool:
        return self.entries is not None

    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.dask.cluster.is_open:
            return self.here._product(V, dtype)
        pairs, count = self.tiles, len(self.placed.slices)
        found = dict(zip(pairs, self._products_of_tiles(pairs, V, dtype), strict=True))
        sums = self.dask.cluster.map(
            tasks.total,
            [[found[min(i, j), max(i, j)] for j in range(count)] for i in range(count)],
            [[int(j < i) for j in range(count)] for i in range(count)],
        )
        return torch.from_numpy(np.concatenate(self.dask.cluster.collect(sums))).to(V.dtype)

    def _products_of_tiles(self, pairs: list[tuple[int, int]], V: Tensor, dtype: torch.dtype) -> "list[Future[Any]]":
        """Return what the tiles contribute to both of their blocks of rows, from stored entries if there are any."""
        cluster, X, parts = self.dask.cluster, self.placed.blocks, self._sent(V)
        of_columns, of_rows = [parts[j] for _, j in pairs], [parts[i] for i, _ in pairs]
        if self.entries is not None and self.entries[0] == dtype:
            return cluster.map(tasks.product_of_entries, self.entries[1], of_columns, of_rows)
        columns = [None if i == j else X[j] for i, j in pairs]
        return cluster.map(
            tasks.product_of_tile,
            [X[i] for i, _ in pairs],
            columns,
            of_columns,
            of_rows,
            kernel=self.kernel,
            dtype=dtype,
        )

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.dask.cluster.is_open:
            return self.here._cross(points, V, dtype)
        parts, chunks = self._sent(V), points.split(self.placed.size) if len(points) else ()
        several = [chunks[start : start + CHUNKS_AT_ONCE] for start in range(0, len(chunks), CHUNKS_AT_ONCE)]
        found = [self._cross_of(some, parts, dtype) for some in several]
        return torch.cat([V.new_zeros(0, V.shape[1], dtype=torch.float64), *found]).to(V.dtype)

    def _cross_of(self, chunks: Sequence[Tensor], parts: "list[PlaceSent]", dtype: torch.dtype) -> Tensor:
        """Return K(points, X) V for some chunks of points and V as it is on the workers."""
        cluster, X = self.dask.cluster, self.placed.blocks
        sent = cluster.map(tasks.held, [_array(points) for points in chunks])
        done = [
            cluster.map(tasks.product_of_points, [points] * len(X), X, parts, kernel=self.kernel, dtype=dtype)
            for points in sent
        ]
        return torch.from_numpy(np.concatenate(cluster.collect(cluster.map(tasks.sum_of, done))))

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        if weights is not None or not self.dask.cluster.is_open:
            return self.here._gradient(left, right, columns, weights, dtype)
        cluster, X = self.dask.cluster, self.placed.blocks
        if columns is None:
            pairs, both = self.tiles, self._sent(left, right)
            done = cluster.map(
                tasks.gradient_of_tile,
                [X[i] for i, j in pairs],
                [None if i == j else X[j] for i, j in pairs],
                [both[i] for i, _ in pairs],
                [both[j] for _, j in pairs],
                kernel=self.kernel,
                dtype=dtype,
            )
        else:
            some = cluster.map(tasks.placed, [_array(self.X[columns])], centre=self.points.centre)
            its = cluster.map(tasks.held, [_array(right)])
            done = cluster.map(
                tasks.gradient_of_columns,
                X,
                some * len(X),
                self._sent(left),
                its * len(X),
                kernel=self.kernel,
                dtype=dtype,
            )
        return torch.from_numpy(tasks.sum_of(cluster.collect(done)))

    def _product_of_columns(self, columns: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.dask.cluster.is_open:
            return self.here._product_of_columns(columns, V, dtype)
        own = self.dask.cluster.map(tasks.held, [_array(V)])
        result = torch.empty(len(self), V.shape[1], dtype=V.dtype)
        return self._by_workers(tasks.product_of_columns, self.X[columns], own, dtype, result)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        """Return entries; columns of K by the workers, where an entry takes longer to compute than to send."""
        if rows is None and columns is not None and self._is_dear:
            points = self.X[columns]
            result = torch.empty(len(self), len(points), dtype=dtype)
            return self._by_workers(tasks.columns_of, points, [], dtype, result)
        few, those = self._at(columns), rows_of(self.X, rows)
        found = torch.empty(len(those), len(few), dtype=dtype)
        size = min(max(self.budget() // (8 * ROW_COPIES * self.X.shape[1]), 1), self.placed.size)
        for start in range(0, len(those), size):
            some = slice(start, start + size)
            found[some] = few._cross_block(those[some], None, dtype)
        return found

    @property
    def _is_dear(self) -> bool:
        """Say whether an entry takes longer to compute than to send: for many features, and by formulas in torch."""
        by_formula = not self.dask.here.computes(self.kernel, self.X)
        return (by_formula or self.X.shape[1] >= MANY_FEATURES) and self.dask.cluster.is_open

    def _by_workers(
        self, task: Callable[..., Any], points: Tensor, given: "list[Future[Any]]", dtype: torch.dtype, result: Tensor
    ) -> Tensor:
        """Return the (n, ...) ``result``, filled with what a task makes of every block of rows and a few points.

        This process holds some of the blocks twice for a while.
        """
        cluster, slices, X = self.dask.cluster, self.placed.slices, self.placed.blocks
        few = cluster.map(tasks.placed, [_array(points)], centre=self.points.centre)
        for start in range(0, len(X), CHUNKS_AT_ONCE):
            blocks = X[start : start + CHUNKS_AT_ONCE]
            shared = [[one] * len(blocks) for one in (*few, *given)]
            done = cluster.map(task, blocks, *shared, kernel=self.kernel, dtype=dtype)
            for rows, found in zip(slices[start : start + CHUNKS_AT_ONCE], cluster.collect(done), strict=True):
                result[rows] = torch.from_numpy(np.array(found))
        return result

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        """Return entries; rows of all columns by the workers, where an entry takes longer to compute than to send."""
        if columns is None and self._is_dear:
            result = torch.empty(len(self), len(points), dtype=dtype)
            return self._by_workers(tasks.rows_of_points, points, [], dtype, result).T
        return self._at(columns)._cross_block(points, None, dtype)

    def _at(self, rows: Rows) -> KernelMatrix:
        """Return K of some of the rows for work in this process."""
        return self.dask.here.place(rows_of(self.X, rows), self.points.centre).bind(self.kernel)

    def _neighbours(self, order: Tensor, count: int) -> Tensor:
        if not self.dask.cluster.is_open:
            return self.here._neighbours(order, count)
        how = (self.placed.blocks, self.kernel, order, count, self.placed.size, self.budget())
        return neighbours_by_workers(self.dask.cluster, *how)

    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        if not self.dask.cluster.is_open:
            return self.here._local_factors(neighbours, F, scale, diagonal)
        given = (self, neighbours, F, scale, diagonal, self.placed.size)
        return local_factors_by_workers(self.dask.cluster, self.placed.blocks, *given)

    # sending

    def _sent(self, *matrices: Tensor) -> "list[PlaceSent]":
        """Return, for every block, the piece on the workers with its rows of the matrices and its number there."""
        slices, size = self.placed.slices, sum(8 * M.numel() for M in matrices)
        together = math.ceil(len(slices) / max(1, min(len(slices), size // PIECE_BYTES)))
        rows = [tuple(_array(M[some]) for M in matrices) for some in slices]
        pieces = [rows[start : start + together] for start in range(0, len(rows), together)]
        sent = self.dask.cluster.map(tasks.held, pieces)
        return [(sent[number // together], number % together) for number in range(len(slices))]


def _array(M: Tensor) -> NDArray[np.float64]:
    return M.detach().double().contiguous().numpy()


def _placed_here(memory: int | str | None, threads: int | None, X: Tensor, centre: Tensor) -> Points:
    """Return points on the best backend of the machine where they are unpickled."""
    return default(memory, threads, X.device.type).place(X, centre)
