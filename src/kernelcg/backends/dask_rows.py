"""Rows of Dask arrays and Dask data frames."""

import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np

from kernelcg.backends.row_sources import Floats, RowSource, unmasked


@dataclass(frozen=True, eq=False)
class DaskRows(RowSource):
    """A Dask array with two dimensions; whoever needs some of its rows has them computed by Dask."""

    array: Any

    @classmethod
    def of(cls, array: Any) -> Self:
        """Return the rows of a Dask array; the sizes of its chunks are computed where they are unknown."""
        if array.dtype.kind not in "biuf":
            raise TypeError(f"X is a Dask array of {array.dtype}; every entry must be a number")
        if any(np.isnan(size) for size in array.chunks[0]):
            array = array.compute_chunk_sizes()
        return cls(tuple(accumulate(array.chunks[0], initial=0)), array.shape[1], array)

    def read(self, start: int, stop: int) -> Floats:
        return np.asarray(unmasked(self.array[start:stop].compute()), dtype=np.float64)


def dask_array(values: Any) -> Any | None:
    """Return a Dask array of a Dask array, a Dask data frame or series, or a Zarr array; None for anything else.

    Nothing is imported for this: whoever has such data has imported their package.
    """
    arrays, frames, zarr = (sys.modules.get(name) for name in ("dask.array", "dask.dataframe", "zarr"))
    if arrays is not None and isinstance(values, arrays.Array):
        return values
    if frames is not None and isinstance(values, frames.DataFrame):
        for name, kind in dict(values.dtypes).items():
            if kind.kind not in "biuf":
                raise TypeError(f"column {name!r} holds {kind} and not numbers; encode it by numbers or leave it out")
        return values.to_dask_array(lengths=True)
    if frames is not None and isinstance(values, frames.Series):
        return values.to_dask_array(lengths=True)
    if zarr is not None and isinstance(values, zarr.Array):
        from dask.array import from_zarr

        return from_zarr(values)
    return None
