"""Rows that are read where they are needed: in parts, by this process and by the workers of a cluster."""

import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RowSource(ABC):
    """A matrix of float64 numbers that lies elsewhere; this record only says where.

    Attributes
    ----------
    cuts : row numbers from 0 to n; the rows between two of them are best read at once
    """

    cuts: tuple[int, ...]
    features: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and of columns."""
        return self.cuts[-1], self.features

    @abstractmethod
    def read(self, start: int, stop: int) -> Floats:
        """Return some rows, on whichever machine this is called."""


def unmasked(values: Any) -> Any:
    """Return a masked array with NaN for what is masked, and anything else as it is.

    Other functions of NumPy go on with whatever number lies below a mask.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values):
        return values.data
    if values.dtype.kind not in "biuf":
        raise TypeError(f"a masked array of {values.dtype} cannot be used; leave out the rows that are masked")
    return np.ma.filled(values.astype(np.float64), np.nan)


class CopiedRows(np.memmap):
    """The memory of a matrix that is mapped from a file into which a source was copied."""

    source: RowSource | None = None


def copied(source: RowSource) -> Floats:
    """Return a matrix mapped from a temporary file, into which the rows of a source are written part by part.

    The memory of this process holds one part at a time. The file has no name, and its space is free again when nobody
    uses the matrix any more.
    """
    needed, folder = 8 * source.shape[0] * source.shape[1], tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"a copy of X takes {needed / 1e9:.3g} GB, but {folder} has {free / 1e9:.3g} GB left; let the environment "
            "variable TMPDIR name a folder on a larger disk"
        )
    if needed == 0:
        return np.empty(source.shape)
    with tempfile.TemporaryFile(prefix="kernelcg-") as stream:
        for start, stop in pairwise(source.cuts):
            stream.write(_part(source, start, stop).data)
        stream.flush()
        mapped = CopiedRows(stream, dtype=np.float64, mode="r", shape=source.shape)
    mapped.source = source
    return np.asarray(mapped)


def _part(source: RowSource, start: int, stop: int) -> Floats:
    found = np.ascontiguousarray(source.read(start, stop), dtype=np.float64)
    if found.shape != (stop - start, source.features):
        raise ValueError(
            f"rows {start} to {stop} of X should be of shape {(stop - start, source.features)} but are of {found.shape}"
        )
    return found
