"""Rows of columns of Parquet files."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import util
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelcg.backends.row_sources import Floats, RowSource
from kernelcg.errors import ClusterFailed


@dataclass(frozen=True, eq=False)
class ParquetRows(RowSource):
    """Columns of a Parquet file, or of all files of a folder in the order of their names, as a matrix.

    Estimators take it in the place of X. Row groups are read one at a time, by whoever needs their rows.

    Attributes
    ----------
    parts : path and number of the row group between every two cuts; paths are the same on all machines
    columns : their names
    """

    parts: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Self:
        """Return the rows of a file or folder with these columns, by default all.

        Raises
        ------
        ImportError, FileNotFoundError, ValueError, TypeError : without pyarrow, without files, for columns that some
            file does not have, and for columns that are not numbers
        """
        if util.find_spec("pyarrow") is None:
            raise ImportError("Parquet files need the package pyarrow; use pip install pyarrow")
        from pyarrow.parquet import ParquetFile

        names, parts, sizes = None if columns is None else tuple(columns), list[tuple[str, int]](), [0]
        for file in _files(Path(path)):
            opened = ParquetFile(file)
            names = tuple(opened.schema_arrow.names) if names is None else names
            _require_numbers(file, opened.schema_arrow, names)
            for group in range(opened.num_row_groups):
                parts.append((str(file), group))
                sizes.append(opened.metadata.row_group(group).num_rows)
        return cls(tuple(accumulate(sizes)), len(names or ()), tuple(parts), names or ())

    def read(self, start: int, stop: int) -> Floats:
        found = [self._group(*part)[max(start - begin, 0) : stop - begin] for part, begin in self._between(start, stop)]
        return np.concatenate([np.empty((0, self.features)), *found])

    def _between(self, start: int, stop: int) -> Iterator[tuple[tuple[str, int], int]]:
        """Return every row group with some of these rows, and the number of its first row."""
        for part, (begin, end) in zip(self.parts, pairwise(self.cuts), strict=True):
            if begin < stop and start < end:
                yield part, begin

    def _group(self, path: str, group: int) -> Floats:
        from pyarrow.parquet import ParquetFile

        try:
            table = ParquetFile(path).read_row_group(group, columns=list(self.columns))
        except OSError as error:
            raise ClusterFailed(
                f"a worker cannot read {path} ({error}); put the file where all workers see it, and leave it alone"
            ) from None
        return np.column_stack([table[name].to_numpy().astype(np.float64) for name in self.columns])


def _files(path: Path) -> list[Path]:
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found or not all(file.is_file() for file in found):
        raise FileNotFoundError(f"{path} is no Parquet file and no folder with files *.parquet")
    return [file.resolve() for file in found]


def _require_numbers(file: Path, schema: Any, names: Sequence[str]) -> None:
    from pyarrow import types

    for name in names:
        if name not in schema.names:
            raise ValueError(f"{file} has no column {name!r}, but {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise TypeError(
                f"column {name!r} of {file} holds {kind} and not numbers; encode it by numbers or leave it out"
            )
