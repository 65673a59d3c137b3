"""Rows of a matrix in a file that several machines read, so that nobody has to send them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelcg.backends.row_sources import Floats, RowSource
from kernelcg.errors import ClusterFailed

ALIGNMENT = 64
"""Bytes of which the address of the first number is a multiple, as in every file that `numpy.save` writes. Sums over
other memory may differ in the last bit."""


@dataclass(frozen=True, eq=False)
class FileRows(RowSource):
    """A matrix of float64 numbers, row after row, in a file that is mapped into the memory of this process.

    Attributes
    ----------
    path : of the file, the same on all machines
    offset : bytes before the first number
    """

    path: str
    offset: int

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """Return the file behind a matrix that `numpy.load` mapped with ``mmap_mode="r"``; None for any other data."""
        mapped = owner(values)
        plain = isinstance(mapped, np.memmap) and values.ndim == 2 and values.dtype == np.float64
        if not plain or values.flags.writeable or not values.flags.c_contiguous or mapped.filename is None:
            return None
        if values.ctypes.data % ALIGNMENT:
            return None
        offset = mapped.offset + values.ctypes.data - mapped.ctypes.data
        rows, features = values.shape
        return cls((0, rows), features, str(Path(mapped.filename).resolve()), offset)

    def read(self, start: int, stop: int) -> Floats:
        count = (stop - start) * self.features
        try:
            found = np.fromfile(self.path, np.float64, count, offset=self.offset + 8 * start * self.features)
        except OSError as error:
            raise ClusterFailed(
                f"a worker cannot read {self.path} ({error.strerror}); put the file where all workers see it"
            ) from None
        if len(found) < count:
            raise ClusterFailed(
                f"{self.path} has become shorter than {self.shape[0]} rows; leave it alone during a fit"
            )
        return found.reshape(stop - start, self.features)


def owner(values: Any) -> Any:
    """Return the array whose memory an array is a view of: itself, if it is none."""
    while isinstance(values, np.ndarray) and isinstance(values.base, np.ndarray):
        values = values.base
    return values
