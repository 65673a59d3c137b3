"""Matrices that this process has mapped from a file, and from where others read the same rows."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from kernelcg.backends.file_rows import FileRows, owner
from kernelcg.backends.row_sources import CopiedRows, RowSource


@dataclass(frozen=True, eq=False)
class Reference:
    """A matrix in a mapped file, at an address in the memory of this process, and its source."""

    source: RowSource
    address: int

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """Return the reference of a whole matrix that is mapped for reading; None for any other data."""
        mapped = owner(values)
        if not isinstance(mapped, CopiedRows):
            source: RowSource | None = FileRows.of(values)
        else:
            whole = values.ctypes.data == mapped.ctypes.data and values.shape == mapped.shape
            source = mapped.source if whole and values.flags.c_contiguous else None
        return None if source is None else cls(source, values.ctypes.data)

    def holds(self, X: Tensor) -> bool:
        """Say whether a tensor is this matrix, and not a copy or a part of it."""
        return X.data_ptr() == self.address and tuple(X.shape) == self.source.shape and X.is_contiguous()
