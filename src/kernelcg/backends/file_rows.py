"""Rows of a matrix in a file that several machines read, so that nobody has to send them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.errors import ClusterFailed

ALIGNMENT = 64
"""Bytes of which the address of the first number is a multiple, as in every file that `numpy.save` writes. Sums over
other memory may differ in the last bit."""


@dataclass(frozen=True)
class FileRows:
    """A matrix of float64 numbers, row after row, in a file that is mapped into the memory of this process.

    Attributes
    ----------
    path : of the file, the same on all machines
    offset : bytes before the first number
    address : of the first number in the memory of this process
    """

    path: str
    offset: int
    rows: int
    features: int
    address: int

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """Return the file behind a matrix that `numpy.load` mapped with ``mmap_mode="r"``; None for any other data."""
        mapped = values
        while isinstance(mapped, np.ndarray) and isinstance(mapped.base, np.ndarray):
            mapped = mapped.base
        plain = isinstance(mapped, np.memmap) and values.ndim == 2 and values.dtype == np.float64
        if not plain or values.flags.writeable or not values.flags.c_contiguous or mapped.filename is None:
            return None
        if values.ctypes.data % ALIGNMENT:
            return None
        offset = mapped.offset + values.ctypes.data - mapped.ctypes.data
        rows, features = values.shape
        return cls(str(Path(mapped.filename).resolve()), offset, rows, features, values.ctypes.data)

    def holds(self, X: Tensor) -> bool:
        """Say whether a tensor is this matrix, and not a copy or a part of it."""
        return X.data_ptr() == self.address and tuple(X.shape) == (self.rows, self.features) and X.is_contiguous()

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return some rows, on whichever machine this is called."""
        count = (stop - start) * self.features
        try:
            found = np.fromfile(self.path, np.float64, count, offset=self.offset + 8 * start * self.features)
        except OSError as error:
            raise ClusterFailed(
                f"a worker cannot read {self.path} ({error.strerror}); put the file where all workers see it"
            ) from None
        if len(found) < count:
            raise ClusterFailed(f"{self.path} has become shorter than {self.rows} rows; leave it alone during a fit")
        return found.reshape(stop - start, self.features)
